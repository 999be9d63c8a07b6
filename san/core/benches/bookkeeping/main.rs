//! `./dev bench san-core`: how many requests a second core can order, replicate and acknowledge in one thread, when stores
//! and network take no time. The work of the owner and of all replicas is counted.

mod instant;

use instant::{BLOCKS, Instant};
use loadline_san_core::volume::RequestOp;

/// Requests that are outstanding.
const OUTSTANDING: u64 = 32;
/// Of each measurement.
const REQUESTS: u64 = 2_000_000;
/// Measurements of which the median counts.
const RUNS: usize = 7;

fn main() {
    println!("{:<44} {:>14} {:>26}", "one thread, 32 outstanding, 4 KiB", "a second", "range");
    for (name, copies, stripes, writes, wanted) in [
        ("writes, 1 copy", 1, 1, true, 1.0e6),
        ("writes, 2 copies", 2, 1, true, 1.0e6),
        ("writes, 3 copies", 3, 1, true, 0.0),
        ("writes, 2 copies, 12 stripes", 2, 12, true, 0.0),
        ("reads, 1 copy", 1, 1, false, 2.0e6),
        ("reads, 2 copies", 2, 1, false, 2.0e6),
        ("reads, 2 copies, 12 stripes", 2, 12, false, 0.0),
    ] {
        let mut rates: Vec<f64> = (0..RUNS).map(|_| measure(copies, stripes, writes)).collect();
        rates.sort_by(f64::total_cmp);
        let (median, least, most) = (rates[RUNS / 2], rates[0], rates[RUNS - 1]);
        let verdict = match wanted {
            0.0 => String::new(),
            wanted if median >= wanted => format!("wanted {wanted:.0}"),
            wanted => format!("wanted {wanted:.0}: not met"),
        };
        println!("{name:<44} {median:>14.0} {:>26}  {verdict}", format!("{least:.0}..{most:.0}"));
    }
}

/// Requests a second.
fn measure(copies: u64, stripes: u32, writes: bool) -> f64 {
    let mut cluster = Instant::new(copies, stripes);
    let mut block = 1;
    let began = std::time::Instant::now();
    let first = cluster.done;
    while cluster.done - first < REQUESTS {
        for _ in 0..OUTSTANDING {
            // Any order will do, as long as few overlap.
            block = u64::wrapping_mul(block, 6_364_136_223_846_793_005).wrapping_add(1442695040888963407);
            cluster.ask(if writes { RequestOp::Write(0) } else { RequestOp::Read }, (block >> 20) % BLOCKS);
        }
        cluster.settle();
        // So much time for these, that heartbeats come at their rate at a million a second.
        if cluster.done.is_multiple_of(OUTSTANDING * 1024) {
            cluster.pass(OUTSTANDING * 1024 * 1000);
        }
    }
    REQUESTS as f64 / began.elapsed().as_secs_f64()
}
