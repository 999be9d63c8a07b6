//! What a host does second by second, reported by the one worker that watches it.

use loadline_base::clock::Nanos;
use loadline_load::host::{HostSampler, HostSecond, Inventory};

/// Takes a sample at the end of each second of a load.
pub(crate) struct HostSeconds {
    inventory: Inventory,
    /// When second 0 begins, on this host's monotonic clock.
    window: Nanos,
    /// When the load ends.
    end: Nanos,
    next: Nanos,
    /// What the counters are compared with, from the first poll on.
    sampler: Option<HostSampler>,
}

impl HostSeconds {
    /// Watches from the beginning of warm-up to the end of the load. Whole seconds lie between the three.
    pub(crate) fn new(inventory: Inventory, start: Nanos, window: Nanos, end: Nanos) -> HostSeconds {
        HostSeconds { inventory, window, end, next: start, sampler: None }
    }

    /// When the next poll is due; `None`: never.
    pub(crate) fn next(&self) -> Option<Nanos> {
        (self.next <= self.end).then_some(self.next)
    }

    /// Polls the host if a poll is due. What it returns covers the time since the last poll: a second, or more if this one is late.
    pub(crate) fn poll(&mut self, now: Nanos) -> Option<HostSecond> {
        if self.next().is_none_or(|next| now < next) {
            return None;
        }
        let since = i128::from(now.min(self.end).0) - i128::from(self.window.0);
        let begun = since.div_euclid(i128::from(Nanos::SECOND.0));
        let ends = i128::from(self.window.0) + (begun + 1) * i128::from(Nanos::SECOND.0);
        self.next = Nanos(u64::try_from(ends).unwrap_or(u64::MAX));
        let Some(sampler) = &mut self.sampler else {
            self.sampler = Some(HostSampler::new(&self.inventory));
            return None;
        };
        Some(sampler.sample(i64::try_from(begun - 1).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_of_the_load_is_told_once_at_its_end() {
        let at = |ms: u64| Nanos(ms * 1_000_000);
        let mut seconds = HostSeconds::new(Inventory::default(), at(1000), at(2000), at(4000));
        let reported: Vec<i64> = [900, 1000, 1001, 2003, 2004, 3000, 4000, 4001, 9000]
            .into_iter()
            .filter_map(|ms| Some(seconds.poll(at(ms))?.second))
            .collect();
        assert_eq!(reported, [-1, 0, 1]);
        assert_eq!(seconds.next(), None);
    }

    #[test]
    fn a_worker_that_was_stopped_for_a_while_tells_the_last_second() {
        let at = |s: u64| Nanos(s * 1_000_000_000);
        let mut seconds = HostSeconds::new(Inventory::default(), at(1), at(2), at(20));
        assert_eq!((seconds.poll(at(1)), seconds.next()), (None, Some(at(2))));
        assert_eq!(seconds.poll(at(7)).map(|s| s.second), Some(4));
        assert_eq!(seconds.next(), Some(at(8)));
    }
}
