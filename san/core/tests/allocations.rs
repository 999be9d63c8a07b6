//! Nothing is allocated for a request in the steady state: neither at the owner nor at the replicas.

#[path = "../benches/bookkeeping/instant.rs"]
mod instant;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use instant::{BLOCKS, Instant};
use loadline_san_core::volume::Ask;

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

/// Allocations of so many requests, 32 at a time, after as many to warm up.
fn allocations(copies: u64, stripes: u32, ask: &Ask<u32>) -> u64 {
    const ROUNDS: u64 = 2_000;
    let mut cluster = Instant::new(copies, stripes);
    let mut block = 0;
    let mut round = |cluster: &mut Instant| {
        for _ in 0..32 {
            block = (block + 7919) % BLOCKS;
            cluster.ask(ask.clone(), block);
        }
        cluster.settle();
    };
    (0..ROUNDS).for_each(|_| round(&mut cluster));
    let (before, done) = (ALLOCATIONS.get(), cluster.done);
    (0..ROUNDS).for_each(|_| round(&mut cluster));
    assert_eq!(cluster.done - done, ROUNDS * 32, "all were carried out");
    ALLOCATIONS.get() - before
}

#[test]
fn nothing_is_allocated_for_a_write() {
    for (copies, stripes) in [(1, 1), (2, 1), (3, 4)] {
        assert_eq!(allocations(copies, stripes, &Ask::Write(7)), 0, "{copies} copies, {stripes} stripes");
    }
}

#[test]
fn nothing_is_allocated_for_a_read() {
    for (copies, stripes) in [(1, 1), (2, 1), (3, 4)] {
        assert_eq!(allocations(copies, stripes, &Ask::Read), 0, "{copies} copies, {stripes} stripes");
    }
}

#[test]
fn nothing_is_allocated_for_a_trim() {
    assert_eq!(allocations(2, 2, &Ask::Trim), 0);
}
