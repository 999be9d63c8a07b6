//! Recovery by cutting: a store's life is recorded, cut at every write and sync, and found again.
//!
//! ```text
//! life ─▶ tape: asked, written, synced, reported
//!           ✂ at each place: of what was in flight all, some sectors or none is written; of what is not synced any
//!             sectors are lost ─▶ open ─▶ is it what was reported, or a little more, with none missing between?
//!                                          └─▶ another life, cut again
//! ```

mod discard;
mod life;
mod tape;
mod truth;

use std::collections::BTreeMap;
use std::rc::Rc;

use loadline_san_core::ids::ReplicaId;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::rule::{Rule, leave_out, left_out};
use loadline_san_core::store::DurableState;
use loadline_san_protocol::log::{SECTOR, header_length};
use loadline_san_store::io::{Area, Disk as _, Sector, Writing};
use loadline_san_store::store::Settings;

use self::life::Life;
use self::tape::{Event, Played, Recorder};
use self::truth::{BLOCKS, Truth, no_promise};
use crate::rng::Rng;
use crate::store::{Blocks, Real, SETTINGS, SimDisk, first_chunk, format, open_disk};

const REPLICA: ReplicaId = ReplicaId(9);
/// Sectors that are overwritten, one at a time, at the end of a life.
const OVERWRITTEN: usize = 150;

/// How many cuts were made, and where they led.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cuts {
    /// Cuts that were recovered from.
    pub cuts: u64,
    /// Of these, in a second or third life.
    pub later: u64,
    /// Records and blocks that were corrupted, one at a time.
    pub corrupt: u64,
}

/// Lives, is cut everywhere, and is found again: all from a seed. What was wrong, if anything.
pub fn run(seed: u64, without: Option<Rule>) -> Result<Cuts, String> {
    leave_out(without);
    let mut cuts = Cuts::default();
    let mut rng = Rng::new(seed ^ 0xc0c0);
    let two = rng.chance(2);
    let mut disk = format(REPLICA, two, BLOCKS, no_promise(), life::MOST_IN_FLIGHT);
    // What was there before the device was prepared: it is not all zeroes.
    disk.soil(first_chunk(), &mut rng);
    let result = live(disk, Truth::default(), Vec::new(), &mut rng, 0, &mut cuts);
    leave_out(None);
    result.map(|()| cuts).map_err(|why| format!("seed {seed}: {why}"))
}

fn opened(recorder: &mut Recorder) -> Result<(Real, DurableState), String> {
    let two = recorder.disk.is_two();
    let (store, found, damage) = open_disk(recorder, two, REPLICA, settings(two))?;
    match damage.first() {
        Some(damage) => Err(format!("it is found damaged: {damage}")),
        None => Ok((store, found)),
    }
}

/// Some destage early, and others late, so that their logs are full.
fn settings(two: bool) -> Settings {
    if two { SETTINGS } else { Settings { low: 90, begin: u64::MAX, high: 95, held: 0, ..SETTINGS } }
}

fn find(disk: SimDisk) -> Result<(Real, DurableState, SimDisk), String> {
    let mut recorder = Recorder { disk, tape: Vec::new() };
    let (store, found) = opened(&mut recorder)?;
    Ok((store, found, recorder.disk))
}

/// Chance finds this too rarely. Of two records in one write the first is lost, and the second is whole. The next life
/// appends a record of the same length in the place of the first: the second is no continuation of that (rule R5).
pub fn stale_record(without: Option<Rule>) -> Result<(), String> {
    leave_out(without);
    let result = stale();
    leave_out(None);
    result
}

/// Bytes of a record with one block of data.
fn record_of_a_block() -> u64 {
    header_length(1) as u64 + BLOCK
}

fn stale() -> Result<(), String> {
    let mut rng = Rng::new(1);
    let disk = format(REPLICA, false, BLOCKS, no_promise(), life::MOST_IN_FLIGHT);
    let mut recorder = Recorder { disk, tape: Vec::new() };
    let (store, found) = opened(&mut recorder)?;
    let mut life = Life::new(store, recorder, &found, Truth::default(), &mut rng);
    life.write_two_at_once()?;
    let with_both = |event: &Event| match event {
        Event::Asked(_, writing) if writing.length() == 2 * record_of_a_block() => Some(Rc::clone(writing)),
        _ => None,
    };
    let batch = life.recorder.tape.iter().rev().find_map(with_both).expect("both are in one write");
    let (mut disk, mut truth) = (life.recorder.disk, life.truth);
    let mut sectors = 0;
    disk.land(&batch, true, || {
        sectors += 1;
        sectors > 1
    });
    let (store, found, disk) = find(disk)?;
    let kept = truth.matching(&found, &store, &disk)?;
    truth.changes.truncate(kept);
    let recorder = Recorder { disk, tape: Vec::new() };
    let mut life = Life::new(store, recorder, &found, truth, &mut rng);
    life.write_one()?;
    let (disk, truth) = (life.recorder.disk, life.truth);
    let (store, found, disk) = find(disk)?;
    truth.matching(&found, &store, &disk).map(|_| ())
}

/// A life, and all that can become of it.
fn live(
    disk: SimDisk,
    truth: Truth,
    late: Vec<Rc<Writing<Blocks>>>,
    rng: &mut Rng,
    depth: u32,
    cuts: &mut Cuts,
) -> Result<(), String> {
    let mut recorder = Recorder { disk: disk.clone(), tape: vec![Event::Truth(Rc::new(truth.clone()))] };
    let (store, found) = opened(&mut recorder)?;
    let mut of_life = Rng::new(rng.bits());
    let mut life = Life::new(store, recorder, &found, truth.clone(), &mut of_life);
    life.late = late;
    let commands = if depth == 0 { 90 } else { 12 };
    life.live(commands)?;
    if depth == 0 && rng.chance(2) {
        life.rest()?;
    }
    let tape = std::mem::take(&mut life.recorder.tape);
    if depth == 0 {
        life.rest()?;
        if !life.store.has_failed() {
            overwrite_sectors(&life.recorder.disk, &life.truth, rng, cuts)?;
            discard::discard(&life.recorder.disk, &life.truth, rng, cuts)?;
            corrupt_records(life, cuts)?;
        }
    }
    let mut played = Played { disk, in_flight: BTreeMap::new(), truth: Rc::new(truth) };
    for (place, event) in tape.iter().enumerate() {
        played.play(event);
        let chosen = depth == 0 || rng.chance(12);
        if !chosen || matches!(event, Event::Truth(_)) {
            continue;
        }
        let samples = if depth == 0 { 3 } else { 1 };
        for _ in 0..samples {
            let of = |why: String| format!("cut {place} of {}: {why}", tape.len());
            cut(&played, rng, depth, cuts).map_err(of)?;
        }
    }
    Ok(())
}

/// The process dies here, with or without the power.
fn cut(played: &Played, rng: &mut Rng, depth: u32, cuts: &mut Cuts) -> Result<(), String> {
    cuts.cuts += 1;
    cuts.later += u64::from(depth > 0);
    let mut disk = played.disk.clone();
    let mut late = Vec::new();
    for writing in played.in_flight.values() {
        match rng.below(5) {
            0 => {}
            1 => disk.land(writing, false, || true),
            2 => {
                // All but the beginning: what comes after it is whole, and is not to be found.
                let mut sectors = 0;
                disk.land(writing, false, || {
                    sectors += 1;
                    sectors > 1
                });
            }
            3 if left_out(Rule::DWait) => late.push(Rc::clone(writing)),
            _ => disk.land(writing, false, || !rng.chance(3)),
        }
    }
    let power = rng.below(3);
    match power {
        0 => {}
        1 => disk.lose(|| true),
        _ => disk.power_loss(rng),
    }
    let (store, found, mut disk) = find(disk)?;
    let kept = played.truth.matching(&found, &store, &disk)?;
    let mut truth = Truth::clone(&played.truth);
    truth.changes.truncate(kept);
    truth.reported = kept;
    truth.commit_points.retain(|(commit_point, _)| *commit_point <= found.commit_point);
    // What was found may be reported. So it must be found again, whatever is lost now.
    disk.lose(|| true);
    let (store, found, mut disk) = find(disk).map_err(|why| format!("found again, {why}"))?;
    truth.matching(&found, &store, &disk).map_err(|why| format!("found again, {why}"))?;
    if depth < 2 && rng.chance(if depth == 0 { 6 } else { 8 }) {
        disk.lose(|| true);
        live(disk, truth, late, rng, depth + 1, cuts)
            .map_err(|why| format!("in life {}, {why}", depth + 2))?;
    }
    Ok(())
}

/// Any sector of a device has something else: a bit changed, zeroes, noise, what belongs elsewhere. It is refused, or found
/// damaged, or what is read is right or corrupt; and nothing panics.
fn overwrite_sectors(disk: &SimDisk, truth: &Truth, rng: &mut Rng, cuts: &mut Cuts) -> Result<(), String> {
    for _ in 0..OVERWRITTEN {
        let mut overwritten = disk.clone();
        overwritten.lose(|| true);
        let area = if rng.chance(2) { Area::Log } else { Area::Capacity };
        // What a device begins with, and any other place, as often.
        let bytes = if rng.chance(2) { overwritten.bytes(area) } else { first_chunk() + 16 * 1024 };
        let mut place = || rng.below(bytes / SECTOR as u64) * SECTOR as u64;
        let (at, other) = (place(), place());
        let mut sector = [Sector::ZERO];
        let from = if rng.chance(2) { at } else { other };
        overwritten.read(area, from, &mut sector).map_err(|fault| fault.to_string())?;
        match rng.below(4) {
            0 => sector[0] = Sector::ZERO,
            1 => sector[0].0[rng.index(SECTOR)] ^= 1 << rng.below(8),
            2 => sector[0]
                .0
                .chunks_exact_mut(8)
                .for_each(|part| part.copy_from_slice(&rng.bits().to_le_bytes())),
            _ => {}
        }
        overwritten.overwrite(area, at, sector[0]);
        cuts.corrupt += 1;
        let Ok((store, found, overwritten)) = find(overwritten) else { continue };
        let of = |why: String| format!("{area:?} byte {at} has something else, and {why}");
        truth.matching_but_corrupt(&found, &store, &overwritten).map_err(of)?;
    }
    Ok(())
}

/// What is corrupted is found out, at the next start or when it is read.
fn corrupt_records(mut life: Life<'_>, cuts: &mut Cuts) -> Result<(), String> {
    // Of a log that is at rest, each record with an entry is covered by another.
    let numbers: Vec<u64> = life.store.entries().map(|entry| entry.number).collect();
    for number in &numbers {
        let (at, bytes) = life.store.record_at(*number).expect("it is in the log");
        for sector in [0, bytes / SECTOR as u64 - 1] {
            let mut disk = life.recorder.disk.clone();
            disk.lose(|| true);
            disk.corrupt_at(Area::Log, at + sector * SECTOR as u64);
            cuts.corrupt += 1;
            if find(disk).is_ok() {
                return Err(format!(
                    "record {number} of the log is corrupt in sector {sector}, and was not found"
                ));
            }
        }
    }
    // A block is corrupted in the log, and is destaged.
    if let Some(number) = numbers.last() {
        let (at, bytes) = life.store.record_at(*number).expect("it is in the log");
        let entry = life.store.entries().last().expect("it is in the log");
        if bytes > SECTOR as u64 {
            life.recorder.disk.corrupt_at(Area::Log, at + bytes - SECTOR as u64);
            cuts.corrupt += 1;
            life.destage_all()?;
            if life.store.has_failed() {
                return Ok(());
            }
            let block = entry.entry.range().end - 1;
            if let Some(value) = life.read(block, 1)?
                && life.truth.differs(block, value[0]).is_some()
            {
                return Err(format!("block {block} is corrupt, and is read as {:?}", value[0]));
            }
        }
    }
    Ok(())
}
