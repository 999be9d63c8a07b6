//! A store at work allocates nothing for an I/O: not for a write, which is appended, indexed, destaged and freed, and not
//! for a read.

#[path = "../benches/store/drivers.rs"]
#[allow(dead_code, reason = "the benchmark uses more of it")]
mod drivers;
#[path = "../benches/store/run.rs"]
#[allow(dead_code, reason = "the benchmark uses more of it")]
mod run;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use drivers::{Instantly, Nothing, Thin};
use loadline_san_store::store::Settings;
use run::{Run, make, reopen};

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

const BLOCKS: u64 = 16_384;
/// The log of 64 MiB is filled more than once with these.
const WRITES: u64 = 40_000;

fn write(run: &mut Run<Instantly>, writes: u64) {
    for _ in 0..writes / 32 {
        for _ in 0..32 {
            let block = run.random(BLOCKS);
            run.write(block, 1, Nothing);
        }
        run.turn(true);
    }
    run.settle();
}

#[test]
fn nothing_is_allocated_for_an_io() {
    let mut disk = Thin::new(1 << 30);
    make(&mut disk, BLOCKS, 64 << 20);
    let settings = Settings { low: 20, high: 60, held: 4 << 20, ..Settings::default() };
    let (store, found) = reopen::<Nothing>(&mut disk, settings);
    let mut run = Run::new(store, &found, Instantly::default());
    write(&mut run, 3 * WRITES);
    let before = ALLOCATIONS.get();
    write(&mut run, WRITES);
    let of_writes = ALLOCATIONS.get() - before;
    // Each round of destaging, of 4 MiB here, has a page to write, and a list of what it writes.
    let rounds = WRITES * 4608 / (4 << 20) + 2;
    assert!(of_writes <= rounds * 40, "{of_writes} allocations for {WRITES} writes in {rounds} rounds");

    let read = |run: &mut Run<Instantly>| {
        for _ in 0..32 {
            let block = run.random(BLOCKS);
            run.read(block, 1);
        }
        run.turn(true);
        run.settle();
    };
    // Until every vector that is used again has once had the scrub's largest read.
    (0..4000).for_each(|_| read(&mut run));
    let before = ALLOCATIONS.get();
    (0..500).for_each(|_| read(&mut run));
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations for 16,000 reads");
}
