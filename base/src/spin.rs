//! Polling for operations that complete soon, before sleeping: a wake-up may cost more than the operation.

use std::io;
use std::time::{Duration, Instant};

/// Pauses of the CPU before each poll. Tuned on an AMD EPYC; a pause takes longer on some CPUs, and what is polled for is
/// then seen later by as much.
const PAUSES: u32 = 80;

/// From one poll to the next takes a microsecond or two; if more than this, another thread had the CPU meanwhile.
const PREEMPTED: Duration = Duration::from_micros(50);

/// To yield takes a fraction of a microsecond where no other thread needs the CPU, and longer than this where one does.
const GAVE_WAY: Duration = Duration::from_micros(4);

/// What a poll has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Nothing has happened.
    Nothing,
    /// Something has, and was dealt with; not yet all that is waited for.
    Some,
    /// What is waited for.
    All,
}

/// Whether to poll before sleeping: not again for a while, and for longer each time, after it did not pay.
#[derive(Debug, Default)]
pub struct Spins {
    allowed: bool,
    /// The total that [`Spins::waited`] returns.
    waited: Duration,
    /// Waits to go without polling.
    skip: u32,
    /// Failures in a row.
    failures: u32,
}

impl Spins {
    /// One that polls, or never does.
    pub fn new(allowed: bool) -> Spins {
        Spins { allowed, ..Spins::default() }
    }

    /// Whether to poll, this time.
    pub fn worth_it(&mut self) -> bool {
        if !self.allowed {
            return false;
        }
        let worth_it = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        worth_it
    }

    /// CPU time in which it polled and saw nothing: what a wait would have been asleep for. It is used, and is not work.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Polls until all is seen, or for so long at most, and no longer than until a limit that has nothing to
    /// do with it.
    pub fn poll(
        &mut self,
        longest: Duration,
        limit: Duration,
        poll: impl FnMut() -> io::Result<Seen>,
    ) -> io::Result<()> {
        self.poll_while_idle(longest, longest, limit, poll)
    }

    /// As [`poll`](Self::poll), but after the first while it yields the CPU before each poll, and ends once another thread
    /// had it. Then it did not pay, whatever was seen: had this thread slept, that thread would not have waited.
    pub fn poll_while_idle(
        &mut self,
        first: Duration,
        longest: Duration,
        limit: Duration,
        mut poll: impl FnMut() -> io::Result<Seen>,
    ) -> io::Result<()> {
        let begun = Instant::now();
        let mut last = begun;
        let (alone, until) = (begun + first, begun + longest.min(limit));
        loop {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            let wanted = last >= alone && give_way();
            let now = Instant::now();
            let gap = now - last;
            if gap < PREEMPTED && !wanted {
                self.waited += gap;
            }
            last = now;
            let seen = poll()?;
            if wanted {
                self.failed();
                return Ok(());
            }
            match seen {
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
                    self.failed();
                }
                return Ok(());
            }
        }
    }

    /// It did not pay. Once means little; ten times in a row are paid with a thousand waits.
    fn failed(&mut self) {
        self.failures = (self.failures + 1).min(10);
        self.skip = (1 << self.failures) - 2;
    }
}

/// Yields the CPU. Whether another thread had it.
fn give_way() -> bool {
    let before = Instant::now();
    std::thread::yield_now();
    before.elapsed() > GAVE_WAY
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;

    use super::*;

    const SHORT: Duration = Duration::from_micros(1);

    #[test]
    fn who_finds_nothing_looks_less_and_less_often() {
        let mut spins = Spins::new(true);
        let mut polls = 0;
        for _ in 0..1000 {
            if spins.worth_it() {
                polls += 1;
                spins.poll(SHORT, Duration::MAX, || Ok(Seen::Nothing)).unwrap();
            }
        }
        assert!((8..20).contains(&polls), "{polls}");
        let mut found = Spins::new(true);
        let all = (0..100)
            .filter(|_| found.worth_it() && found.poll(SHORT, Duration::MAX, || Ok(Seen::All)).is_ok());
        assert_eq!(all.count(), 100);
        assert!(!Spins::new(false).worth_it());
    }

    #[test]
    fn who_looks_while_idle_ends_once_somebody_else_wants_the_cpu() {
        let us = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let mut one = CpuSet::new();
        one.set((0..CpuSet::count()).find(|cpu| us.is_set(*cpu).unwrap()).unwrap()).unwrap();
        // Of this thread, and of those that it begins.
        sched_setaffinity(Pid::from_raw(0), &one).unwrap();
        const LONG: Duration = Duration::from_secs(20);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let mut spins = Spins::new(true);
            let begun = Instant::now();
            for _ in 0..3 {
                spins.poll_while_idle(SHORT, LONG, LONG, || Ok(Seen::Nothing)).unwrap();
            }
            // What is seen after the other's turn does not pay either. (It may see it without having given way.)
            let mut seen = Spins::new(true);
            while seen.failures == 0 && begun.elapsed() < LONG {
                seen.poll_while_idle(Duration::ZERO, LONG, LONG, || Ok(Seen::All)).unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
            assert!(begun.elapsed() < LONG, "no other thread got the CPU: {:?}", begun.elapsed());
            assert!(!spins.worth_it(), "three did not pay");
        });
        sched_setaffinity(Pid::from_raw(0), &us).unwrap();
    }

    #[test]
    fn the_time_in_which_nothing_is_seen_is_waited_and_that_of_work_is_not() {
        const LONG: Duration = Duration::from_millis(20);
        let (mut idle, begun) = (Spins::new(true), Instant::now());
        idle.poll(LONG, Duration::MAX, || Ok(Seen::Nothing)).unwrap();
        // Another process may use the CPU meanwhile; the wait is then counted shorter, perhaps by most of it.
        assert!(idle.waited() > LONG / 20 && idle.waited() <= begun.elapsed(), "{:?}", idle.waited());

        let mut busy = Spins::new(true);
        let work = || {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(30) {}
            Ok(Seen::Some)
        };
        busy.poll(LONG, Duration::MAX, work).unwrap();
        assert!(busy.waited() < LONG / 2, "{:?}", busy.waited());
    }
}
