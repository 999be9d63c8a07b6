//! A device that completes at once and keeps nothing; the real ones; and one that counts.

use std::collections::VecDeque;
use std::time::Duration;

use loadline_san_device::direct::Direct;
use loadline_san_device::pool::Blocks;
use loadline_san_device::uring::Uring;
use loadline_san_protocol::log::SECTOR;
use loadline_san_store::io::{Address, Area, Data, Disk, Done, IoFault, IoRequest, Sector, Token};

use crate::run::Driver;

/// Data that is none.
#[derive(Debug, Clone)]
pub(crate) struct Nothing;

impl Data for Nothing {
    fn checksum(&self, _: u32, _: Address) -> u32 {
        7
    }

    fn take_checksum(&mut self, _: u32, _: Address) -> u32 {
        7
    }
}

/// Completes at once.
#[derive(Debug, Default)]
pub(crate) struct Instantly {
    done: VecDeque<(Token, Done<Nothing>)>,
}

impl Driver for Instantly {
    type Data = Nothing;

    fn start(&mut self, token: Token, request: IoRequest<Nothing>) {
        let done = match request {
            IoRequest::Read(reading) => Done::Read(reading, Ok(Nothing)),
            IoRequest::Write(writing) => Done::Wrote(writing, Ok(())),
            IoRequest::Sync(area) => Done::Synced(area, Ok(())),
        };
        self.done.push_back((token, done));
    }

    fn take(&mut self, _: bool) -> Option<(Token, Done<Nothing>)> {
        self.done.pop_front()
    }
}

/// What a store that keeps nothing begins with: its first pages, and zeroes.
#[derive(Debug)]
pub(crate) struct Thin {
    bytes: u64,
    first: Vec<Sector>,
}

impl Thin {
    pub(crate) fn new(bytes: u64) -> Thin {
        Thin { bytes, first: Sector::zeroes((192 << 20) / SECTOR) }
    }
}

impl Disk for Thin {
    fn bytes(&self, _: Area) -> u64 {
        self.bytes
    }

    fn read(&mut self, _: Area, at: u64, into: &mut [Sector]) -> Result<(), IoFault> {
        for (at, sector) in (at as usize / SECTOR..).zip(into) {
            *sector = self.first.get(at).copied().unwrap_or(Sector::ZERO);
        }
        Ok(())
    }

    fn write(&mut self, _: Area, at: u64, from: &[Sector]) -> Result<(), IoFault> {
        for (at, sector) in (at as usize / SECTOR..).zip(from) {
            if let Some(place) = self.first.get_mut(at) {
                *place = *sector;
            }
        }
        Ok(())
    }

    fn sync(&mut self, _: Area) -> Result<(), IoFault> {
        Ok(())
    }
}

/// A real device in memory, and the bytes that were written to it.
#[derive(Debug)]
pub(crate) struct Counted {
    direct: Direct,
    done: VecDeque<(Token, Done<Blocks>)>,
    pub(crate) written: u64,
}

impl Counted {
    pub(crate) fn new(direct: Direct) -> Counted {
        Counted { direct, done: VecDeque::with_capacity(256), written: 0 }
    }

    pub(crate) fn into_direct(self) -> Direct {
        self.direct
    }
}

impl Driver for Counted {
    type Data = Blocks;

    fn start(&mut self, token: Token, request: IoRequest<Blocks>) {
        if let IoRequest::Write(writing) = &request {
            self.written += writing.length();
        }
        self.done.push_back((token, self.direct.carry_out(request)));
    }

    fn take(&mut self, _: bool) -> Option<(Token, Done<Blocks>)> {
        self.direct.settle();
        self.done.pop_front()
    }
}

/// A real device by io_uring.
pub(crate) struct Ringed {
    pub(crate) ring: Uring,
    pub(crate) store: u32,
}

impl Driver for Ringed {
    type Data = Blocks;

    fn start(&mut self, token: Token, request: IoRequest<Blocks>) {
        self.ring.start(self.store, token, request);
    }

    fn take(&mut self, wait: bool) -> Option<(Token, Done<Blocks>)> {
        if let Some((_, token, done)) = self.ring.take() {
            return Some((token, done));
        }
        match wait && self.ring.in_flight() > 0 {
            true => self.ring.wait(Duration::from_secs(5)).expect("the ring works"),
            false => self.ring.submit().expect("the ring works"),
        }
        self.ring.take().map(|(_, token, done)| (token, done))
    }
}
