//! Nothing is allocated for a request in the steady state: neither at the owner nor at the replicas.

mod counting;
#[path = "../benches/bookkeeping/instant.rs"]
mod instant;

use counting::ALLOCATIONS;
use instant::{BLOCKS, Instant};
use loadline_san_core::volume::RequestOp;

/// Allocations of so many requests, 32 at a time, after as many to warm up.
fn allocations(copies: u64, stripes: u32, op: &RequestOp<u32>) -> u64 {
    const ROUNDS: u64 = 2_000;
    let mut cluster = Instant::new(copies, stripes);
    let mut block = 0;
    let mut round = |cluster: &mut Instant| {
        for _ in 0..32 {
            block = (block + 7919) % BLOCKS;
            cluster.ask(op.clone(), block);
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
        assert_eq!(
            allocations(copies, stripes, &RequestOp::Write(7)),
            0,
            "{copies} copies, {stripes} stripes"
        );
    }
}

#[test]
fn nothing_is_allocated_for_a_read() {
    for (copies, stripes) in [(1, 1), (2, 1), (3, 4)] {
        assert_eq!(allocations(copies, stripes, &RequestOp::Read), 0, "{copies} copies, {stripes} stripes");
    }
}

#[test]
fn nothing_is_allocated_for_a_trim() {
    assert_eq!(allocations(2, 2, &RequestOp::Trim), 0);
}
