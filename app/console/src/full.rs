//! When a device is full: from how the bytes that are taken of it have grown.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::Serialize;

/// The time from one kept figure to the next, seconds.
const EACH: u64 = 60;
/// Figures that are kept: those of 24 hours.
const KEPT: usize = 24 * 60;
/// The time over which growth must have been observed, seconds.
const LEAST: u64 = 10 * 60;
/// Figures of which the slope is computed, at most: the number of pairs grows with its square.
const MOST: usize = 48;

/// Replicas may take this part of a device more than is promised to them: they take whole chunks.
const SLACK: u64 = 50;

/// When a device is full, if it goes on as it did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Full {
    /// It was not observed for ten minutes yet.
    TooEarly,
    /// What is taken does not grow.
    NotGrowing,
    /// All of it is taken.
    IsFull,
    /// What is promised to the replicas that it has does not fill it: it has room for all that they may take.
    WithinPromises,
    /// It grows.
    Grows {
        /// Bytes a second: the median of the slopes between all pairs of figures.
        rate: f64,
        /// Seconds until it is full at this rate.
        seconds: f64,
        /// The time over which the growth was observed, seconds.
        observed: u64,
    },
}

/// The bytes that were taken of a device, a minute apart, over 24 hours.
#[derive(Debug, Default)]
pub struct Growth {
    /// Seconds, rising, and bytes.
    taken: VecDeque<(u64, u64)>,
    /// Bytes a second, of all of them.
    rate: f64,
}

impl Growth {
    /// At this second so many bytes were taken: kept once a minute. A clock that was set back starts anew.
    pub fn add(&mut self, second: u64, taken: u64) {
        match self.taken.back() {
            Some((last, _)) if second < *last => self.taken.clear(),
            Some((last, _)) if second < last + EACH => return,
            _ => {}
        }
        self.taken.push_back((second, taken));
        // What was taken a day ago, whether or not the console saw all of the day.
        let day = second.saturating_sub(EACH * KEPT as u64);
        while self.taken.front().is_some_and(|(at, _)| *at < day) {
            self.taken.pop_front();
        }
        self.rate = slope(&spread(&self.taken));
    }

    /// When a device of so many bytes is full, of which so many are promised to replicas, and so many are taken now.
    pub fn full(&self, bytes: u64, promised: u64, taken: u64) -> Full {
        let (first, last) = (self.taken.front(), self.taken.back());
        let observed = first.zip(last).map_or(0, |(first, last)| last.0 - first.0);
        if taken >= bytes {
            return Full::IsFull;
        }
        // Replicas take what is promised to them, and little more. If they took much more, what is promised says nothing.
        if promised <= bytes && taken <= promised.saturating_add(bytes / SLACK) {
            return Full::WithinPromises;
        }
        if observed < LEAST {
            return Full::TooEarly;
        }
        if self.rate <= 0.0 {
            return Full::NotGrowing;
        }
        Full::Grows { rate: self.rate, seconds: (bytes - taken) as f64 / self.rate, observed }
    }
}

/// At most [`MOST`] of the figures, evenly spread, with the first and the last.
fn spread(all: &VecDeque<(u64, u64)>) -> Vec<(u64, u64)> {
    let count = all.len().min(MOST);
    let last = (all.len() - 1) as f64 / (count.max(2) - 1) as f64;
    (0..count).map(|n| all[(n as f64 * last).round() as usize]).collect()
}

/// The median of the slopes between all pairs (Theil and Sen), bytes a second: up to 29 % of the figures may be anything.
fn slope(points: &[(u64, u64)]) -> f64 {
    let mut slopes = Vec::with_capacity(points.len() * points.len() / 2);
    for (n, (at, bytes)) in points.iter().enumerate() {
        for (later, more) in &points[n + 1..] {
            slopes.push((*more as f64 - *bytes as f64) / (later - at) as f64);
        }
    }
    if slopes.is_empty() {
        return 0.0;
    }
    let middle = slopes.len() / 2;
    *slopes.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// Promises that exceed any device.
    const MORE: u64 = u64::MAX;

    /// A device of which so many bytes are taken in each second of so many minutes.
    fn growth(minutes: u64, taken: impl Fn(u64) -> u64) -> Growth {
        let mut growth = Growth::default();
        (0..=minutes * 60).for_each(|second| growth.add(second, taken(second)));
        growth
    }

    #[test]
    fn a_device_that_grows_is_full_when_its_room_divided_by_the_rate_is_over() {
        let full = growth(60, |second| 100 * MIB + second * MIB).full(10_000 * MIB, MORE, 3700 * MIB);
        let Full::Grows { rate, seconds, observed } = full else { panic!("{full:?}") };
        assert!((rate / MIB as f64 - 1.0).abs() < 1e-9 && (seconds - 6300.0).abs() < 1e-6, "{full:?}");
        assert_eq!(observed, 3600);
    }

    #[test]
    fn growth_in_whole_chunks_and_a_copy_that_came_or_went_does_not_change_the_rate_much() {
        let chunks = |second: u64| second * MIB / (32 * MIB) * 32 * MIB;
        // For ten of sixty minutes a copy of 500 GiB was there.
        let full =
            growth(60, |second| chunks(second) + if (1200..1800).contains(&second) { 500 << 30 } else { 0 })
                .full(1 << 40, MORE, 3600 * MIB);
        let Full::Grows { rate, .. } = full else { panic!("{full:?}") };
        assert!((rate / MIB as f64 - 1.0).abs() < 0.1, "{full:?}");
    }

    #[test]
    fn what_was_observed_for_less_than_ten_minutes_is_too_early_to_say() {
        assert_eq!(growth(9, |second| second * MIB).full(1 << 40, MORE, MIB), Full::TooEarly);
        assert_eq!(Growth::default().full(1 << 40, MORE, MIB), Full::TooEarly);
        assert!(matches!(growth(10, |second| second * MIB).full(1 << 40, MORE, MIB), Full::Grows { .. }));
    }

    #[test]
    fn what_stays_or_shrinks_or_grew_once_does_not_grow() {
        assert_eq!(growth(60, |_| MIB).full(1 << 40, MORE, MIB), Full::NotGrowing);
        assert_eq!(growth(60, |second| (1 << 40) - second * MIB).full(1 << 40, MORE, MIB), Full::NotGrowing);
        assert_eq!(
            growth(60, |second| if second < 600 { 0 } else { MIB }).full(1 << 40, MORE, MIB),
            Full::NotGrowing
        );
    }

    #[test]
    fn a_device_that_has_all_that_is_promised_does_not_become_full() {
        let grows = growth(60, |second| second * MIB);
        assert_eq!(grows.full(1 << 40, 1 << 40, 3600 * MIB), Full::WithinPromises);
        assert!(matches!(grows.full(1 << 40, (1 << 40) + 1, 3600 * MIB), Full::Grows { .. }));
        // A copy that the configuration does not name takes room that is promised to none.
        assert!(matches!(grows.full(8000 * MIB, MIB, 3600 * MIB), Full::Grows { .. }));
        assert_eq!(grows.full(8000 * MIB, 3500 * MIB, 3600 * MIB), Full::WithinPromises, "whole chunks");
    }

    #[test]
    fn a_device_without_room_is_full_at_once() {
        assert_eq!(Growth::default().full(MIB, MIB, MIB), Full::IsFull);
    }

    #[test]
    fn a_day_is_kept_and_a_clock_that_was_set_back_starts_anew() {
        let mut of = growth(3 * 24 * 60, |second| second);
        assert_eq!((of.taken.len(), of.taken[0].0), (KEPT + 1, 2 * 86_400));
        of.add(5, 1);
        assert_eq!(of.taken, [(5, 1)]);
    }
}
