//! A store that is found damaged is emptied, and cut at every write of that: a start finds either the damage, or the store
//! empty with its new promise; and once it has reported that it is emptied, only that (rule DDiscard).

use std::collections::BTreeMap;
use std::rc::Rc;

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, Sequence};
use loadline_san_core::message::Promise;
use loadline_san_protocol::log::SECTOR;
use loadline_san_store::io::Area;

use super::life::Life;
use super::tape::{Event, Played, Recorder};
use super::truth::{Change, Truth};
use super::{Cuts, REPLICA, find, live, settings};
use crate::rng::Rng;
use crate::store::{SimDisk, open_disk};

/// Times that a store is damaged and emptied, and cuts at each place of that.
const TIMES: u64 = 4;
const SAMPLES: u64 = 6;

/// Damages a store in several ways, one at a time, and empties it.
pub(super) fn discard(disk: &SimDisk, truth: &Truth, rng: &mut Rng, cuts: &mut Cuts) -> Result<(), String> {
    for _ in 0..TIMES {
        let mut damaged = disk.clone();
        damaged.lose(|| true);
        let (store, _, _) = find(damaged.clone())?;
        let slots: Vec<u64> = store.slots().collect();
        let records: Vec<u64> = store.entries().map(|entry| entry.number).collect();
        // One of them, or several: a slot, and a sector of a record.
        for _ in 0..=rng.below(3) {
            if !slots.is_empty() && rng.chance(2) {
                damaged.corrupt_at(Area::Capacity, slots[rng.index(slots.len())]);
            }
            if !records.is_empty() {
                let (at, bytes) =
                    store.record_at(records[rng.index(records.len())]).expect("it is in the log");
                damaged.corrupt_at(Area::Log, at + rng.below(bytes / SECTOR as u64) * SECTOR as u64);
            }
        }
        empty(damaged, truth, rng, cuts)?;
    }
    Ok(())
}

/// Whether a start finds damage.
fn is_damaged(disk: &SimDisk) -> Result<bool, String> {
    let mut disk = disk.clone();
    let two = disk.is_two();
    open_disk(&mut disk, two, REPLICA, settings(two)).map(|(_, _, damage)| !damage.is_empty())
}

fn empty(disk: SimDisk, truth: &Truth, rng: &mut Rng, cuts: &mut Cuts) -> Result<(), String> {
    let mut truth = truth.clone();
    let mut recorder = Recorder { disk: disk.clone(), tape: vec![Event::Truth(Rc::new(truth.clone()))] };
    let two = disk.is_two();
    let (store, found, damage) = open_disk(&mut recorder, two, REPLICA, settings(two))?;
    if damage.is_empty() {
        // What is corrupt was covered by nothing.
        return Ok(());
    }
    truth.epochs += 1;
    let epoch = Epoch(truth.epochs);
    let promise = Promise { epoch, owner: Owner { node: NodeId(1), incarnation: Incarnation(epoch.0) } };
    let after = Position { ownership: epoch, sequence: Sequence(rng.below(3)) };
    let mut of_life = Rng::new(rng.bits());
    let mut life = Life::new(store, recorder, &found, truth, &mut of_life);
    life.discard(promise, after);
    life.rest()?;
    let tape = std::mem::take(&mut life.recorder.tape);
    if !life.store.has_failed() && life.truth.reported != life.truth.changes.len() {
        return Err("a store that is emptied does not report it".into());
    }
    let mut played = Played { disk, in_flight: BTreeMap::new(), truth: Rc::new(life.truth.clone()) };
    for (place, event) in tape.iter().enumerate() {
        played.play(event);
        let reported = matches!(played.truth.changes.last(), Some(Change::Discard { .. }))
            && played.truth.reported == played.truth.changes.len();
        for _ in 0..SAMPLES {
            cuts.cuts += 1;
            let of = |why: String| format!("emptied, and cut at {place} of {}: {why}", tape.len());
            cut(&played, reported, rng, cuts).map_err(of)?;
        }
    }
    Ok(())
}

/// The process dies here, with or without the power.
fn cut(played: &Played, reported: bool, rng: &mut Rng, cuts: &mut Cuts) -> Result<(), String> {
    let mut disk = played.disk.clone();
    for writing in played.in_flight.values() {
        match rng.below(4) {
            0 => {}
            1 => disk.land(writing, false, || true),
            _ => disk.land(writing, false, || !rng.chance(3)),
        }
    }
    match rng.below(3) {
        0 => {}
        1 => disk.lose(|| true),
        _ => disk.lose(|| rng.chance(2)),
    }
    if is_damaged(&disk)? {
        return if reported {
            Err("it has reported that it is emptied, and is found damaged".into())
        } else {
            Ok(())
        };
    }
    let (store, found, disk) = find(disk)?;
    let mut truth = Truth::clone(&played.truth);
    let Some(Change::Discard { .. }) = truth.changes.last() else {
        return Err("it was not emptied, and the damage is gone".into());
    };
    truth.reported = truth.changes.len();
    truth
        .matching(&found, &store, &disk)
        .map_err(|why| format!("it is found neither damaged nor empty: {why}"))?;
    match rng.chance(12) {
        true => live(disk, truth, Vec::new(), rng, 2, cuts).map_err(|why| format!("lives on, and {why}")),
        false => Ok(()),
    }
}
