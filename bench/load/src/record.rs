//! One thread's samples, by second and phase.

use std::sync::mpsc::Sender;

use loadline_base::clock::Nanos;
use loadline_measure::interval::{Interval, Operations, Phase};

use crate::engine::Kind;

/// When the phases of a measurement are, on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timetable {
    /// Warm-up begins.
    pub(crate) begin: Nanos,
    /// The measured window opens.
    pub(crate) open: Nanos,
    /// The measured window closes.
    pub(crate) close: Nanos,
    /// Cool-down ends; nothing new is issued.
    pub(crate) end: Nanos,
}

impl Timetable {
    #[inline]
    fn phase(&self, intended: Nanos) -> Phase {
        if intended < self.open {
            Phase::WarmUp
        } else if intended < self.close {
            Phase::Measure
        } else {
            Phase::CoolDown
        }
    }

    /// The second of a moment, counted from the window's opening.
    pub(crate) fn second(&self, moment: Nanos) -> i64 {
        (moment.0 as i64 - self.open.0 as i64).div_euclid(Nanos::SECOND.0 as i64)
    }

    /// When a second begins.
    pub(crate) fn begin_of(&self, second: i64) -> Nanos {
        let since_open = second * Nanos::SECOND.0 as i64;
        Nanos((self.open.0 as i64 + since_open) as u64)
    }
}

/// One completed I/O.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) kind: Kind,
    pub(crate) intended: Nanos,
    pub(crate) issued: Nanos,
    pub(crate) completed: Nanos,
    pub(crate) bytes: u64,
}

/// Collects one thread's samples and sends each second's, once it is over.
pub(crate) struct Recorder {
    timetable: Timetable,
    rate_driven: bool,
    second: i64,
    /// When the current second began and ends.
    from: Nanos,
    until: Nanos,
    /// The current second's records, by phase.
    current: [Interval; 3],
    ended: bool,
    send: Sender<Interval>,
}

impl Recorder {
    pub(crate) fn new(
        timetable: Timetable,
        disk: u32,
        rate_driven: bool,
        send: Sender<Interval>,
    ) -> Recorder {
        let second = timetable.second(timetable.begin);
        let current =
            [Phase::WarmUp, Phase::Measure, Phase::CoolDown].map(|phase| Interval::new(second, phase, disk));
        // A load that begins late begins within a second.
        let from = timetable.begin_of(second);
        Recorder {
            timetable,
            rate_driven,
            second,
            from,
            until: from + Nanos::SECOND,
            current,
            ended: false,
            send,
        }
    }

    /// When the current second ends.
    #[inline]
    pub(crate) fn next_second(&self) -> Nanos {
        self.until
    }

    #[inline]
    fn record(&mut self, intended: Nanos) -> &mut Interval {
        &mut self.current[self.timetable.phase(intended) as usize]
    }

    /// An I/O was issued so much later than it could have been.
    #[inline]
    pub(crate) fn issued(&mut self, intended: Nanos, lateness: Nanos) {
        if self.rate_driven {
            self.record(intended).lateness.record(lateness);
        }
    }

    /// An I/O completed, with success or not.
    #[inline]
    pub(crate) fn completed(&mut self, sample: Sample, ok: bool) {
        if sample.completed >= self.until {
            self.roll(sample.completed);
        }
        let (rate_driven, within) = (self.rate_driven, sample.completed.since(self.from));
        let interval = self.record(sample.intended);
        let operations = operations(interval, sample.kind);
        if !ok {
            operations.errors += 1;
            return;
        }
        operations.response.record(sample.completed.since(sample.intended));
        operations.bytes += sample.bytes;
        if rate_driven {
            interval.service.record(sample.completed.since(sample.issued));
        }
        interval.completions.set(within);
        interval.tenths.add(within);
    }

    /// The oldest I/O that is outstanding as the second ends was intended at this moment.
    pub(crate) fn outstanding(&mut self, intended: Nanos) {
        let age = self.until.since(intended);
        let interval = self.record(intended);
        interval.oldest = interval.oldest.max(age);
    }

    /// A flush failed: an error among the writes.
    pub(crate) fn flush_failed(&mut self, intended: Nanos) {
        self.record(intended).write.errors += 1;
    }

    /// So many I/Os intended at about this moment never completed. Outside the window that is counted in no figure.
    pub(crate) fn censored(&mut self, kind: Kind, intended: Nanos, now: Nanos, count: u64) {
        if self.timetable.phase(intended) == Phase::Measure && count > 0 {
            let operations = operations(self.record(intended), kind);
            operations.response.record_many(now.since(intended), count);
            operations.censored += count;
        }
    }

    /// Whether a second has ended since this was last asked.
    #[inline]
    pub(crate) fn second_ended(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// Goes on to the second of `now`, sending what is over.
    #[inline]
    pub(crate) fn roll(&mut self, now: Nanos) {
        if now >= self.until {
            self.ended = true;
            self.send_current();
            self.second = self.timetable.second(now);
            self.from = self.timetable.begin_of(self.second);
            self.until = self.from + Nanos::SECOND;
            let second = self.second;
            self.current.iter_mut().for_each(|i| i.reset(second, i.phase));
        }
    }

    #[cold]
    fn send_current(&mut self) {
        for interval in &mut self.current {
            if !interval.is_empty() {
                let fresh = Interval::new(interval.second, interval.phase, interval.disk);
                // The receiver is gone, so the rest is dropped.
                let _ = self.send.send(std::mem::replace(interval, fresh));
            }
        }
    }

    /// Sends the last second.
    pub(crate) fn finish(&mut self) {
        self.send_current();
    }
}

fn operations(interval: &mut Interval, kind: Kind) -> &mut Operations {
    match kind {
        Kind::Read => &mut interval.read,
        Kind::Write | Kind::Flush => &mut interval.write,
    }
}
