//! How long requests of clients took, in classes that are fine enough for percentiles of a single second.

/// Upper bounds of the classes, nanoseconds, from 10 us to 10 s: twenty a decade, so that a class is at most 15 % wide. They are the
/// preferred numbers of the series R20 (ISO 3). What takes longer is in one more class.
pub const FINE_BOUNDS_NS: [u64; BOUNDS] = bounds();

// A number, and not the length of the array: an optimising rustc 1.95 finds a circle in that.
const BOUNDS: usize = 121;
const CLASSES: usize = BOUNDS + 1;

/// A decade of the series R20, times 100.
const DECADE: [u64; 20] =
    [112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800, 900, 1000];

const fn bounds() -> [u64; BOUNDS] {
    let mut bounds = [10_000; BOUNDS];
    let (mut at, mut scale) = (0, 100);
    while at < 120 {
        bounds[at + 1] = DECADE[at % 20] * scale;
        if at % 20 == 19 {
            scale *= 10;
        }
        at += 1;
    }
    bounds
}

/// How many requests were in each class, since the volume was opened. Counts start again at 0 after 2^32: only differences are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latencies([u32; CLASSES]);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies([0; CLASSES])
    }
}

impl Latencies {
    /// One took so long, nanoseconds.
    #[inline]
    pub(crate) fn add(&mut self, took_ns: u64) {
        let class = FINE_BOUNDS_NS.partition_point(|bound| *bound < took_ns);
        self.0[class] = self.0[class].wrapping_add(1);
    }

    /// How many each class has more than before: the number of the class, and the count. Classes without any are left out.
    pub(crate) fn since(&self, before: &Latencies) -> Vec<(u8, u32)> {
        let pairs = (0..).zip(self.0.iter().zip(&before.0));
        pairs
            .map(|(class, (now, before))| (class, now.wrapping_sub(*before)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_by_at_most_15_per_cent_from_10_us_to_10_s() {
        assert_eq!((FINE_BOUNDS_NS[0], FINE_BOUNDS_NS[120]), (10_000, 10_000_000_000));
        for pair in FINE_BOUNDS_NS.windows(2) {
            assert!(pair[0] < pair[1] && pair[1] * 100 <= pair[0] * 115, "{pair:?}");
        }
    }

    #[test]
    fn a_difference_has_the_classes_that_grew_also_across_the_largest_count() {
        let mut before = Latencies::default();
        before.0[3] = u32::MAX;
        let mut now = before;
        for took in [1, 10_000, 10_001, FINE_BOUNDS_NS[3], u64::MAX] {
            now.add(took);
        }
        assert_eq!(now.since(&before), [(0, 2), (1, 1), (3, 1), (121, 1)]);
        assert!(now.since(&now).is_empty());
    }
}
