//! Percentiles of latencies from the classes that nodes count: classes of several nodes, volumes and seconds add up.

use schemars::JsonSchema;
use serde::Serialize;

/// How many requests were in each class of latency.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classes(Vec<u64>);

/// Latencies of requests, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Latency {
    /// The mean: of the exact sum.
    pub mean: f64,
    /// Half of the requests took no longer. This and the two below are within a class, which is at most 15 % wide.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1,000 took no longer.
    pub p999: f64,
}

impl Classes {
    /// Adds what a sample has: the number of each class, and its count.
    pub fn add(&mut self, classes: &[(u8, u32)]) {
        for (class, count) in classes {
            let class = usize::from(*class);
            if self.0.len() <= class {
                self.0.resize(class + 1, 0);
            }
            self.0[class] += u64::from(*count);
        }
    }

    /// Adds others.
    pub fn merge(&mut self, other: &Classes) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own += other);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The latency that so many of the requests did not exceed, microseconds: `share` is between 0 and 1. Requests of a class count as spread
    /// evenly over it. What is beyond the last bound counts as of the last bound. `None` if there are no requests.
    fn quantile(&self, bounds_ns: &[u64], share: f64) -> Option<f64> {
        let count = self.count();
        let wanted = (count as f64 * share).max(f64::MIN_POSITIVE);
        let mut below = 0.0;
        for (class, of) in self.0.iter().enumerate().filter(|(_, of)| **of > 0) {
            let with = below + *of as f64;
            if with >= wanted {
                let last = bounds_ns.len().checked_sub(1)?;
                let upper = bounds_ns[class.min(last)] as f64;
                let lower = if class == 0 { 0.0 } else { bounds_ns[(class - 1).min(last)] as f64 };
                return Some((lower + (upper - lower) * (wanted - below) / *of as f64) / 1000.0);
            }
            below = with;
        }
        None
    }

    /// Latencies, if these classes have this mean and their bounds are these; `None` if there are no requests.
    pub fn latency(&self, bounds_ns: &[u64], sum_us: u64) -> Option<Latency> {
        let at = |share| self.quantile(bounds_ns, share);
        let mean = sum_us as f64 / self.count() as f64;
        Some(Latency { mean, p50: at(0.5)?, p99: at(0.99)?, p999: at(0.999)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [u64; 3] = [10_000, 20_000, 40_000];

    #[test]
    fn percentiles_are_within_the_class_that_has_them() {
        let mut classes = Classes::default();
        classes.add(&[(0, 50), (1, 40)]);
        classes.add(&[(1, 9), (2, 1)]);
        let of = classes.latency(&BOUNDS, 1234).unwrap();
        assert_eq!((of.mean, of.p50), (12.34, 10.0));
        assert!((of.p99 - 20.0).abs() < 1e-9, "{of:?}");
        assert!((of.p999 - 38.0).abs() < 1e-9, "{of:?}");
        assert_eq!(Classes::default().latency(&BOUNDS, 0), None);
        let mut beyond = Classes::default();
        beyond.add(&[(3, 5)]);
        assert_eq!(beyond.latency(&BOUNDS, 0).unwrap().p999, 40.0, "beyond the last bound nothing is known");
    }

    #[test]
    fn classes_of_several_sources_add_up_in_any_order() {
        let (mut one, mut other) = (Classes::default(), Classes::default());
        one.add(&[(0, 1)]);
        other.add(&[(2, 3), (0, 1)]);
        let mut both = one.clone();
        both.merge(&other);
        other.merge(&one);
        assert_eq!((&both, both.count()), (&other, 5));
    }
}
