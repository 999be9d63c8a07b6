//! Simulated time.

use loadline_san_core::lease::Moment;

use crate::rng::Rng;

/// A moment, as nanoseconds since the beginning of the run, or a length of time in nanoseconds.
pub type Time = u64;

/// One microsecond.
pub const US: Time = 1_000;
/// One millisecond.
pub const MS: Time = 1_000_000;

/// The clock of a node. It began at any moment, and is as fast or slow as the margin of the leases allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    began: u64,
    /// Parts in a million by which it is fast, plus a million.
    rate: u64,
}

impl Clock {
    pub(crate) fn new(rng: &mut Rng) -> Clock {
        Clock { began: rng.below(1 << 40), rate: 1_000_000 - 500 + rng.below(1_001) }
    }

    /// What it shows at a simulated moment.
    pub(crate) fn at(&self, now: Time) -> Moment {
        Moment(self.began + (u128::from(now) * u128::from(self.rate) / 1_000_000) as u64)
    }

    /// The simulated moment at which it shows this, or a moment later.
    pub(crate) fn when(&self, shows: Moment) -> Time {
        let since = u128::from(shows.0.saturating_sub(self.began));
        (since * 1_000_000).div_ceil(u128::from(self.rate)) as Time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_a_moment_when_it_says_so() {
        let mut rng = Rng::new(3);
        for _ in 0..1_000 {
            let (clock, now) = (Clock::new(&mut rng), rng.below(1 << 40));
            let when = clock.when(clock.at(now));
            assert!(when <= now && now - when <= 1 && clock.at(when) >= clock.at(now));
        }
    }
}
