//! What a device was asked for and did, in order: so that it can be cut at any place.

use std::collections::BTreeMap;
use std::rc::Rc;

use loadline_san_store::io::{Area, Disk, IoFault, Part, Sector, Writing};

use super::truth::Truth;
use crate::store::{Blocks, SimDisk};

/// What happened at a device, or was reported by the store.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// It was asked for a write.
    Asked(u64, Rc<Writing<Blocks>>),
    /// It has done it.
    Wrote(u64),
    /// It has made durable what was written before this moment.
    Synced(Area, u64),
    /// It was written and made durable before anything else happened.
    WroteNow(Rc<Writing<Blocks>>),
    SyncedNow(Area),
    /// From here on this is what the store was ordered to keep, and how much it has reported as durable.
    Truth(Rc<Truth>),
}

/// A disk that keeps a tape.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) disk: SimDisk,
    pub(super) tape: Vec<Event>,
}

impl Disk for Recorder {
    fn bytes(&self, area: Area) -> u64 {
        self.disk.bytes(area)
    }

    fn read(&mut self, area: Area, at: u64, into: &mut [Sector]) -> Result<(), IoFault> {
        self.disk.read(area, at, into)
    }

    fn write(&mut self, area: Area, at: u64, from: &[Sector]) -> Result<(), IoFault> {
        let parts = vec![Part::Bytes(from.len() as u32)];
        let writing = Writing { area, at, bytes: from.to_vec(), parts, durable: true };
        self.disk.land(&writing, true, || true);
        self.tape.push(Event::WroteNow(Rc::new(writing)));
        Ok(())
    }

    fn sync(&mut self, area: Area) -> Result<(), IoFault> {
        self.tape.push(Event::SyncedNow(area));
        self.disk.sync(area)
    }
}

/// A tape that is played up to some place.
#[derive(Debug, Clone)]
pub(super) struct Played {
    pub(super) disk: SimDisk,
    /// What was asked for and is not done.
    pub(super) in_flight: BTreeMap<u64, Rc<Writing<Blocks>>>,
    pub(super) truth: Rc<Truth>,
}

impl Played {
    pub(super) fn play(&mut self, event: &Event) {
        match event {
            Event::Asked(id, writing) => _ = self.in_flight.insert(*id, Rc::clone(writing)),
            Event::Wrote(id) => {
                let writing = self.in_flight.remove(id).expect("it was asked for");
                self.disk.land(&writing, writing.durable, || true);
            }
            Event::Synced(area, moment) => self.disk.sync_until(*area, *moment),
            Event::WroteNow(writing) => {
                // A process can die, or the power fail, in the middle of it.
                self.disk.land(writing, true, || true);
            }
            Event::SyncedNow(area) => self.disk.sync(*area).expect("it is simulated"),
            Event::Truth(truth) => self.truth = Rc::clone(truth),
        }
    }
}
