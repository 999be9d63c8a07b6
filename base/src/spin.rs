//! Looking for what completes soon, before sleeping for it: being woken may cost more than what is waited for.

use std::io;
use std::time::{Duration, Instant};

/// Pauses of the CPU before each look. Tuned on an AMD EPYC; a pause takes longer on some CPUs, and what is looked for is
/// then seen later by as much.
const PAUSES: u32 = 80;

/// Whether to look before sleeping: not again for a while, and for longer each time, after it did not pay.
#[derive(Debug, Default)]
pub struct Spins {
    allowed: bool,
    /// Waits to go without looking.
    skip: u32,
    /// Failures in a row.
    failures: u32,
}

impl Spins {
    /// One that looks, or never does.
    pub fn new(allowed: bool) -> Spins {
        Spins { allowed, ..Spins::default() }
    }

    /// Whether to look, this time.
    pub fn worth_it(&mut self) -> bool {
        if !self.allowed {
            return false;
        }
        let worth_it = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        worth_it
    }

    /// Looks again and again until it is found, or for so long at most, and no longer than until a limit that has nothing to
    /// do with it.
    pub fn look(
        &mut self,
        longest: Duration,
        limit: Duration,
        mut is_found: impl FnMut() -> io::Result<bool>,
    ) -> io::Result<()> {
        let until = Instant::now() + longest.min(limit);
        loop {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            if is_found()? {
                self.failures = 0;
                return Ok(());
            }
            if Instant::now() >= until {
                // Cut short by the other limit, it says nothing.
                if limit >= longest {
                    self.failures = (self.failures + 1).min(10);
                    // One failure means little; ten in a row are paid with a thousand waits.
                    self.skip = (1 << self.failures) - 2;
                }
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(1);

    #[test]
    fn who_finds_nothing_looks_less_and_less_often() {
        let mut spins = Spins::new(true);
        let mut looks = 0;
        for _ in 0..1000 {
            if spins.worth_it() {
                looks += 1;
                spins.look(SHORT, Duration::MAX, || Ok(false)).unwrap();
            }
        }
        assert!((8..20).contains(&looks), "{looks}");
        let mut found = Spins::new(true);
        let all =
            (0..100).filter(|_| found.worth_it() && found.look(SHORT, Duration::MAX, || Ok(true)).is_ok());
        assert_eq!(all.count(), 100);
        assert!(!Spins::new(false).worth_it());
    }
}
