//! Faults of a store's devices: of the one, or of one of two.

use loadline_san_store::cache::Region;
use loadline_san_store::io::{Area, IoRequest, Token};
use loadline_san_store::space::Space;

use super::{Blocks, CLUSTER, Health, SimDisk, Store};
use crate::rng::Rng;

/// A slow device does one of so many requests before all that the other one has been asked for.
const SELDOM: u64 = 12;

impl Store {
    /// The next write or sync fails. That is final (rule R6).
    pub fn fail_next(&mut self) {
        if self.health == Health::Well {
            self.health = Health::FailsNext(None);
        }
    }

    /// The same; of two devices, it is one that fails, and the other is well. Which.
    pub fn fail_one_next(&mut self, rng: &mut Rng) -> Option<Area> {
        let device = self.disk.is_two().then(|| if rng.chance(2) { Area::Log } else { Area::Capacity });
        if self.health == Health::Well {
            self.health = Health::FailsNext(device);
        }
        device
    }

    /// One of two devices is much slower than the other from now on, or none is. Which.
    pub fn slow_down(&mut self, rng: &mut Rng) -> Option<Area> {
        let slow = [None, Some(Area::Log), Some(Area::Capacity)][rng.index(3)];
        self.slow = slow.filter(|_| self.disk.is_two());
        self.slow
    }
}

/// The device that a request changes, or makes durable.
pub(super) fn written(request: &IoRequest<Blocks>) -> Option<Area> {
    match request {
        IoRequest::Read(_) => None,
        IoRequest::Write(writing) => Some(writing.area),
        IoRequest::Sync(area) => Some(*area),
    }
}

/// Which request the devices do next: one of a slow device seldom, while the other has something to do.
pub(super) fn next(
    submitted: &[(Token, IoRequest<Blocks>, u64)],
    slow: Option<Area>,
    rng: &mut Rng,
) -> usize {
    let any = rng.index(submitted.len());
    let of = |at: usize| match &submitted[at].1 {
        IoRequest::Read(reading) => reading.pieces.first().map(|piece| piece.area),
        request => written(request),
    };
    if slow.is_none() || of(any) != slow || rng.chance(SELDOM) {
        return any;
    }
    (0..submitted.len()).find(|at| of(*at) != slow).unwrap_or(any)
}

/// A read cache with a few places, at the end of the log device.
pub(super) fn cache_of(disk: &mut SimDisk) -> Region {
    let mut space = Space::load(disk, Area::Log, Some(CLUSTER)).expect("the device is well");
    space.lend(1).expect("the log device is as long as if it had the extents too")
}
