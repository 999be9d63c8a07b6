//! When the next I/O of a thread is intended.
//!
//! A rate's moments come from the schedule alone and are never shifted by a slow disk, so that a stall is charged
//! to every I/O that should have happened in it. A closed loop has no schedule: an I/O is intended when its slot
//! is free.

use loadline_base::clock::Nanos;
use loadline_profile::Arrival;
use rand_core::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::address::unit;

/// The schedule of one thread.
#[derive(Debug)]
pub(crate) struct Schedule {
    begin: Nanos,
    /// Mean distance of two I/Os, nanoseconds.
    gap: f64,
    arrival: Arrival,
    /// Nanoseconds from `begin` to the next I/O.
    next: f64,
    rng: Xoshiro256PlusPlus,
}

impl Schedule {
    /// Thread `index` of `threads` that offer `iops` together from `begin` on. The threads' uniform schedules
    /// interleave evenly; `seed` shifts all of them, so that workers do not beat together.
    pub(crate) fn new(
        begin: Nanos,
        iops: f64,
        arrival: Arrival,
        (index, threads): (usize, usize),
        seed: u64,
    ) -> Schedule {
        assert!(iops > 0.0 && iops.is_finite() && index < threads);
        let gap = threads as f64 * 1e9 / iops;
        let mut shift = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut rng =
            Xoshiro256PlusPlus::seed_from_u64(seed ^ (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let next = match arrival {
            Arrival::Uniform => gap * (index as f64 + unit(&mut shift)) / threads as f64,
            Arrival::Poisson => exponential(gap, &mut rng),
        };
        Schedule { begin, gap, arrival, next, rng }
    }

    /// When the next I/O is intended.
    #[inline]
    pub(crate) fn peek(&self) -> Nanos {
        // A rate of one in a century is due when the clock ends, and not before it.
        Nanos(self.begin.0.saturating_add(self.next as u64))
    }

    /// Goes on to the I/O after it.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.next += match self.arrival {
            Arrival::Uniform => self.gap,
            Arrival::Poisson => exponential(self.gap, &mut self.rng),
        };
    }
}

impl Schedule {
    /// How many I/Os there are before `end`; of random arrivals, about.
    pub(crate) fn left_before(&self, end: Nanos) -> u64 {
        let left = end.since(self.begin).0 as f64 - self.next;
        if left > 0.0 { (left / self.gap).ceil() as u64 } else { 0 }
    }

    /// Goes on by so many I/Os at once; of random arrivals, by their mean distance.
    pub(crate) fn skip(&mut self, count: u64) {
        self.next += self.gap * count as f64;
    }
}

/// The distance of two arrivals of a Poisson process, by inversion.
fn exponential(mean: f64, rng: &mut Xoshiro256PlusPlus) -> f64 {
    -mean * (1.0 - unit(rng)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(mut schedule: Schedule, until: Nanos) -> Vec<u64> {
        let mut all = Vec::new();
        while schedule.peek() < until {
            all.push(schedule.peek().0);
            schedule.advance();
        }
        all
    }

    #[test]
    fn a_rate_holds_at_a_hundred_thousand_a_second_and_at_one_every_five_seconds() {
        for (iops, seconds) in [(100_000.0, 10), (0.2, 1000), (3.0, 100)] {
            let threads = 4;
            let count: usize = (0..threads)
                .map(|i| {
                    let schedule = Schedule::new(Nanos(5), iops, Arrival::Uniform, (i, threads), 42);
                    moments(schedule, Nanos(5 + seconds * Nanos::SECOND.0)).len()
                })
                .sum();
            assert!((count as f64 - iops * seconds as f64).abs() <= 1.0, "{count} of {iops} for {seconds} s");
        }
    }

    #[test]
    fn uniform_threads_interleave_evenly() {
        let mut all: Vec<u64> = (0..3)
            .flat_map(|i| {
                moments(Schedule::new(Nanos(0), 1000.0, Arrival::Uniform, (i, 3), 9), Nanos::SECOND)
            })
            .collect();
        all.sort_unstable();
        for pair in all.windows(2) {
            assert!((pair[1] - pair[0]).abs_diff(1_000_000) < 10, "{pair:?}");
        }
    }

    #[test]
    fn poisson_gaps_vary_as_much_as_their_mean() {
        let seed = 11;
        let all = moments(
            Schedule::new(Nanos(0), 10_000.0, Arrival::Poisson, (0, 1), seed),
            Nanos(10 * Nanos::SECOND.0),
        );
        let gaps: Vec<f64> = all.windows(2).map(|p| (p[1] - p[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean / 1e5 - 1.0).abs() < 0.02, "seed {seed}: mean {mean}");
        assert!((deviation / mean - 1.0).abs() < 0.02, "seed {seed}: deviation {deviation}");
    }
}
