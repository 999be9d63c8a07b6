//! Looking for what completes soon, before sleeping for it: being woken may cost more than what is waited for.

use std::io;
use std::time::{Duration, Instant};

/// Pauses of the CPU before each look. Tuned on an AMD EPYC; a pause takes longer on some CPUs, and what is looked for is
/// then seen later by as much.
const PAUSES: u32 = 80;

/// From one look to the next it takes a microsecond or two; if more than this, somebody else had the CPU meanwhile.
const PREEMPTED: Duration = Duration::from_micros(50);

/// What a look has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Nothing has happened.
    Nothing,
    /// Something has, and was dealt with; not yet all that is waited for.
    Some,
    /// What is waited for.
    All,
}

/// Whether to look before sleeping: not again for a while, and for longer each time, after it did not pay.
#[derive(Debug, Default)]
pub struct Spins {
    allowed: bool,
    /// See [`Spins::waited`].
    waited: Duration,
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

    /// CPU time in which it looked and saw nothing: what a wait would have been asleep for. It is used, and is not work.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Looks again and again until all is seen, or for so long at most, and no longer than until a limit that has nothing to
    /// do with it.
    pub fn look(
        &mut self,
        longest: Duration,
        limit: Duration,
        mut look: impl FnMut() -> io::Result<Seen>,
    ) -> io::Result<()> {
        let mut last = Instant::now();
        let until = last + longest.min(limit);
        loop {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            let now = Instant::now();
            let gap = now - last;
            if gap < PREEMPTED {
                self.waited += gap;
            }
            last = now;
            match look()? {
                Seen::All => {
                    self.failures = 0;
                    return Ok(());
                }
                // What was done about it is work.
                Seen::Some => last = Instant::now(),
                Seen::Nothing => {}
            }
            if last >= until {
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
                spins.look(SHORT, Duration::MAX, || Ok(Seen::Nothing)).unwrap();
            }
        }
        assert!((8..20).contains(&looks), "{looks}");
        let mut found = Spins::new(true);
        let all = (0..100)
            .filter(|_| found.worth_it() && found.look(SHORT, Duration::MAX, || Ok(Seen::All)).is_ok());
        assert_eq!(all.count(), 100);
        assert!(!Spins::new(false).worth_it());
    }

    #[test]
    fn the_time_in_which_nothing_is_seen_is_waited_and_that_of_work_is_not() {
        const LONG: Duration = Duration::from_millis(20);
        let (mut idle, begun) = (Spins::new(true), Instant::now());
        idle.look(LONG, Duration::MAX, || Ok(Seen::Nothing)).unwrap();
        // Whoever else has the CPU meanwhile takes from it, and may take most.
        assert!(idle.waited() > LONG / 20 && idle.waited() <= begun.elapsed(), "{:?}", idle.waited());

        let mut busy = Spins::new(true);
        let work = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(30) {}
            Ok(Seen::Some)
        };
        busy.look(LONG, Duration::MAX, work).unwrap();
        assert!(busy.waited() < LONG / 2, "{:?}", busy.waited());
    }
}
