//! The limit of a volume: how many requests and bytes of its clients a second may begin.
//!
//! Two token buckets, of requests and of bytes, each as the moment until which it is used up (the generic cell rate algorithm, ITU-T
//! I.371): a request may begin if neither is used up further ahead than the burst. What begins late does not lower the rate, as
//! long as it is not later than the burst.

use loadline_san_core::lease::Moment;

use crate::config::catalog::Limit;

/// No burst is shorter: a loop may come so much too late, and nothing of the rate is to be lost by that.
const LEAST_BURST_NS: u64 = 10_000_000;

/// Decides when the requests of a volume's clients may begin.
#[derive(Debug)]
pub(super) struct Limiter {
    limit: Limit,
    /// Until when each bucket is used up.
    requests: Moment,
    bytes: Moment,
}

impl Limiter {
    pub(super) fn new(limit: Limit) -> Limiter {
        Limiter { limit, requests: Moment(0), bytes: Moment(0) }
    }

    /// When the next request may begin: a moment that has passed if it may at once.
    pub(super) fn next(&self) -> Moment {
        let burst = (self.limit.burst_ms * 1_000_000).max(LEAST_BURST_NS);
        Moment(self.requests.max(self.bytes).0.saturating_sub(burst))
    }

    /// A request of so many bytes begins.
    pub(super) fn begins(&mut self, bytes: u64, now: Moment) {
        let cost = |units: u64, rate: Option<u64>| match rate {
            None => 0,
            Some(rate) => {
                let ns = u128::from(units) * 1_000_000_000 / u128::from(rate.max(1));
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        };
        self.requests = self.requests.max(now).after(cost(1, self.limit.iops));
        self.bytes = self.bytes.max(now).after(cost(bytes, self.limit.bytes_per_s));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const BEGIN: Moment = Moment(1 << 40);

    /// How many requests of so many bytes begin in ten seconds, if each begins as soon as it may, and the loop looks every so many
    /// nanoseconds only.
    fn in_ten_seconds(limit: Limit, bytes: u64, every_ns: u64) -> u64 {
        let (mut limiter, mut begun) = (Limiter::new(limit), 0);
        for turn in 0..10 * SECOND / every_ns {
            let now = BEGIN.after(turn * every_ns);
            while limiter.next() <= now {
                limiter.begins(bytes, now);
                begun += 1;
            }
        }
        begun
    }

    #[test]
    fn a_limit_is_kept_within_two_per_cent_over_ten_seconds() {
        let limit = |iops, bytes_per_s| Limit { iops, bytes_per_s, burst_ms: 100 };
        for every_ns in [10_000, 1_000_000, 9_000_000] {
            let within = |begun: u64, expected: u64| (expected..=expected * 102 / 100).contains(&begun);
            let begun = in_ten_seconds(limit(Some(500), None), 4096, every_ns);
            assert!(within(begun, 5000), "{begun} of 5000");
            let begun = in_ten_seconds(limit(None, Some(100 << 20)), 1 << 20, every_ns);
            assert!(within(begun, 1000), "{begun} of 1000");
            // The one that is reached first counts.
            let begun = in_ten_seconds(limit(Some(500), Some(1 << 20)), 64 << 10, every_ns);
            assert!(within(begun, 160), "{begun} of 160");
        }
    }

    #[test]
    fn what_was_idle_may_begin_a_burst_and_no_more() {
        let mut limiter = Limiter::new(Limit { iops: Some(1000), bytes_per_s: None, burst_ms: 50 });
        let begun = |limiter: &mut Limiter, now: Moment| {
            (0..)
                .take_while(|_| {
                    limiter.next() <= now && {
                        limiter.begins(4096, now);
                        true
                    }
                })
                .count()
        };
        assert_eq!(begun(&mut limiter, BEGIN), 51);
        assert_eq!(begun(&mut limiter, BEGIN), 0);
        assert_eq!(begun(&mut limiter, BEGIN.after(10_000_000)), 10);
        assert_eq!(begun(&mut limiter, BEGIN.after(60 * SECOND)), 51, "nothing more is saved up");
    }
}
