//! Gathers the threads' records while they run, and hands each second's on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use loadline_base::clock::Nanos;
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::window::Window;
use nix::sys::resource::{UsageWho, getrusage};

use crate::halt::Halt;
use crate::outcome::CpuTime;
use crate::record::Timetable;
use crate::stop_condition::Watch;

/// Completions are recorded at most this long after their second ended; then a second's records are handed on.
pub(crate) const GRACE: Nanos = Nanos(200_000_000);

/// Takes a second that has ended, and what was recorded up to its end; `None` for what came in after the last.
pub type Sink<'a> = dyn FnMut(Option<i64>, Vec<Interval>) + 'a;

/// Gathers the threads' records while they run. Each thread sends at most three records a second and disk.
pub(crate) struct Collector<'a> {
    pub(crate) timetable: Timetable,
    pub(crate) window: Window,
    /// By second, disk and phase.
    pub(crate) pending: BTreeMap<(i64, u32, Phase), Interval>,
    /// CPU time when the window opened and closed.
    pub(crate) marks: [Option<CpuTime>; 2],
    /// Nanoseconds that each thread has polled for completions in vain.
    pub(crate) polled: Vec<Arc<AtomicU64>>,
    pub(crate) receive: Receiver<Interval>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) sink: &'a mut Sink<'a>,
}

impl Collector<'_> {
    /// Until every thread has ended, or a stop. Returns which stop condition ended it, and how many whole seconds of
    /// the window there are then.
    pub(crate) fn collect(
        &mut self,
        stop: &AtomicBool,
        halt: &Halt,
        give_up: Nanos,
    ) -> Option<(u64, String)> {
        let first = self.timetable.second(self.timetable.begin);
        let mut second_over = self.timetable.begin_of(first + 1) + GRACE;
        loop {
            let now = Nanos::now();
            if stop.load(Ordering::Relaxed) || now > give_up {
                return None;
            }
            for (mark, moment) in self.marks.iter_mut().zip([self.timetable.open, self.timetable.close]) {
                if mark.is_none() && now >= moment {
                    *mark = Some(cpu_time(&self.polled));
                }
            }
            if now >= second_over {
                let second = (second_over.0 as i64 - GRACE.0 as i64 - self.timetable.open.0 as i64)
                    / Nanos::SECOND.0 as i64
                    - 1;
                second_over = second_over + Nanos::SECOND;
                if let Some(why) = self.hand_on(Some(second)) {
                    halt.tell();
                    self.marks[1].get_or_insert_with(|| cpu_time(&self.polled));
                    let length = (self.window.length().0 / Nanos::SECOND.0) as i64;
                    return Some(((second + 1).clamp(0, length) as u64, why));
                }
            }
            let mut wake = second_over.min(now + Nanos(100 * Nanos::MILLISECOND.0));
            for (mark, moment) in self.marks.iter().zip([self.timetable.open, self.timetable.close]) {
                if mark.is_none() {
                    wake = wake.min(moment);
                }
            }
            match self.receive.recv_timeout(Duration::from(wake.since(now))) {
                Ok(interval) => self.take(&interval),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn take(&mut self, interval: &Interval) {
        self.pending
            .entry((interval.second, interval.disk, interval.phase))
            .or_insert_with(|| Interval::new(interval.second, interval.phase, interval.disk))
            .merge(interval);
    }

    /// Hands on what was recorded up to this second, or all of it. Says why the load should end, if it should.
    fn hand_on(&mut self, second: Option<i64>) -> Option<String> {
        let later = match second {
            Some(second) => self.pending.split_off(&(second + 1, 0, Phase::WarmUp)),
            None => BTreeMap::new(),
        };
        let over: Vec<Interval> = std::mem::replace(&mut self.pending, later).into_values().collect();
        over.iter().for_each(|i| self.window.add(i));
        let why = self.watch.judge(&over);
        (self.sink)(second, over);
        why
    }

    /// Takes what came in last. Says which limit it passed.
    pub(crate) fn take_rest(&mut self) -> Option<String> {
        while let Ok(interval) = self.receive.try_recv() {
            self.take(&interval);
        }
        self.hand_on(None)
    }

    pub(crate) fn cpu(&self) -> CpuTime {
        match self.marks {
            [Some(open), close] => {
                let close = close.unwrap_or_else(|| cpu_time(&self.polled));
                CpuTime {
                    user_s: close.user_s - open.user_s,
                    system_s: close.system_s - open.system_s,
                    polling_s: close.polling_s - open.polling_s,
                }
            }
            _ => CpuTime::default(),
        }
    }
}

/// CPU time of this process so far. The kernel counts io_uring's workers as its threads.
fn cpu_time(polled: &[Arc<AtomicU64>]) -> CpuTime {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the process itself can always be asked for");
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    let polling: u64 = polled.iter().map(|polled| polled.load(Ordering::Relaxed)).sum();
    CpuTime {
        user_s: seconds(usage.user_time()),
        system_s: seconds(usage.system_time()),
        polling_s: polling as f64 / 1e9,
    }
}
