//! Nothing is allocated for an I/O in the steady state, by neither way of I/O.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use common::*;
use loadline_san_device::direct::Direct;
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Pool};
use loadline_san_store::io::{Area, Data, Done, IoRequest, Part, Piece, Reading, Sector, Token, Writing};

/// Counts what this thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged, and its result returned. The counter is a thread-local
// without a destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from `System`, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Asks that are used again and again, as a store does.
struct Spares {
    reads: Vec<Reading>,
    writes: Vec<Writing<Blocks>>,
}

const ASKS: u32 = 24;

impl Spares {
    fn new() -> Spares {
        let writing = || Writing {
            area: Area::Log,
            at: 0,
            bytes: Vec::with_capacity(8),
            parts: Vec::with_capacity(16),
            durable: false,
        };
        let reading = || Reading { blocks: 0, pieces: Vec::with_capacity(8) };
        Spares {
            reads: (0..ASKS).map(|_| reading()).collect(),
            writes: (0..ASKS).map(|_| writing()).collect(),
        }
    }

    fn read(&mut self, n: u64) -> IoRequest<Blocks> {
        let mut reading = self.reads.pop().unwrap();
        reading.pieces.clear();
        reading.blocks = [1, 4, 12][n as usize % 3];
        let piece =
            |first, blocks| Piece { area: Area::Log, at: n % 200 * BLOCK_BYTES as u64, first, blocks };
        reading.pieces.push(piece(0, 1));
        if reading.blocks > 4 {
            reading.pieces.extend([piece(3, 2), piece(5, 7)]);
        }
        IoRequest::Read(reading)
    }

    fn write(&mut self, n: u64, pool: &Pool) -> IoRequest<Blocks> {
        let mut writing = self.writes.pop().unwrap();
        writing.parts.clear();
        writing.bytes.clear();
        writing.at = n % 200 * BLOCK_BYTES as u64;
        writing.durable = n.is_multiple_of(16);
        for _ in 0..n % 4 {
            writing.bytes.push(Sector([n as u8; SECTOR]));
            writing.parts.push(Part::Bytes(1));
            let mut data = pool.take(2).unwrap();
            data.bytes_mut()[0] = n as u8;
            writing.parts.push(Part::Data { data: data.freeze(at_block), first: 0, blocks: 1 });
        }
        let data = pool.take(1).unwrap().freeze(at_block);
        writing.parts.push(Part::Data { data, first: 0, blocks: 1 });
        IoRequest::Write(writing)
    }

    fn put_back(&mut self, done: Done<Blocks>) {
        match done {
            Done::Read(reading, result) => {
                assert!(result.unwrap().take_checksum(0, at(1)) != 1);
                self.reads.push(reading);
            }
            Done::Wrote(mut writing, result) => {
                result.unwrap();
                writing.parts.clear();
                self.writes.push(writing);
            }
            Done::Synced(_, result) => result.unwrap(),
        }
    }
}

fn at_block(index: u32) -> loadline_san_store::io::Address {
    at(u64::from(index))
}

fn round(driver: &mut Driver, pool: &Pool, spares: &mut Spares, n: u64) {
    let request = |spares: &mut Spares, token: u32| match token % 8 {
        7 => IoRequest::Sync(Area::Log),
        even if even % 2 == 0 => spares.read(n + u64::from(token)),
        _ => spares.write(n + u64::from(token), pool),
    };
    match driver {
        Driver::Direct(direct) => {
            for token in 0..ASKS {
                let done = direct.carry_out(request(spares, token));
                spares.put_back(done);
            }
        }
        Driver::Uring(uring, store, _) => {
            for token in 0..ASKS {
                uring.start(*store, Token(token), request(spares, token));
            }
            let begin = std::time::Instant::now();
            let mut left = ASKS;
            while left > 0 {
                assert!(begin.elapsed() < LIMIT);
                uring.wait(Duration::from_millis(100)).unwrap();
                while let Some((_, _, done)) = uring.take() {
                    spares.put_back(done);
                    left -= 1;
                }
            }
        }
    }
}

#[test]
fn nothing_is_allocated_for_an_io() {
    for place in places() {
        for uring in [true, false] {
            let (folder, pool) = (folder_in(&place), pool());
            let Some(devices) = devices(folder.path(), 2 << 20, None) else { continue };
            let driver = match uring {
                // Fewer than there are requests, so that some wait.
                true => Driver::uring(devices, &pool, 16),
                false => Some(Driver::Direct(Direct::new(devices, pool.clone()))),
            };
            let Some(mut driver) = driver else { continue };
            let mut spares = Spares::new();
            (0..20).for_each(|n| round(&mut driver, &pool, &mut spares, n * 29));
            let before = ALLOCATIONS.get();
            (0..100).for_each(|n| round(&mut driver, &pool, &mut spares, n * 31));
            assert_eq!(ALLOCATIONS.get() - before, 0, "{}, uring: {uring}", place.display());
            assert_eq!(pool.statistics().on_their_own, 0);
        }
    }
}
