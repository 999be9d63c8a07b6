//! A job run: from the agreed moment to the outcome.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use loadline_base::clock::Nanos;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::window::Window;

use crate::collect::{Collector, Sink};
use crate::error::{ErrorKind, LoadError};
use crate::issuer::IssuerReport;
use crate::open::Transport;
use crate::outcome::{CpuTime, Outcome, POLLING, VerifyReport};
use crate::prepare::{Chosen, Prepared};
use crate::record::Timetable;
use crate::stop_condition::Watch;
use crate::threads::{END_LIMIT, Ended, Threads};

impl Prepared {
    /// Runs the job: warm-up begins at `start`, on this host's monotonic clock. About once a second, shortly
    /// after a second ends, `sink` gets it and what was recorded, one record for each disk and phase (records of one
    /// second may come in several parts, to be added). Set `stop` to end it early. Then, and if a thread fails, the outcome is
    /// of the whole seconds until then and says so; an error if there is none.
    pub fn run(self, start: Nanos, stop: &AtomicBool, sink: &mut Sink<'_>) -> Result<Outcome, LoadError> {
        self.run_from(start, start, stop, sink)
    }

    /// The same, in the place of another that began at `start` and is gone: the load begins now. The phases stay where they
    /// were, and nothing is owed for the time before.
    pub fn run_late(
        self,
        start: Nanos,
        stop: &AtomicBool,
        sink: &mut Sink<'_>,
    ) -> Result<Outcome, LoadError> {
        self.run_from(start, Nanos::now().max(start), stop, sink)
    }

    fn run_from(
        mut self,
        start: Nanos,
        begin: Nanos,
        stop: &AtomicBool,
        sink: &mut Sink<'_>,
    ) -> Result<Outcome, LoadError> {
        assert!(self.writable || !self.job.writes(), "a job that writes is prepared for it");
        self.note_unwritten();
        let job = &self.job;
        let open = start + Nanos::from(job.warm_up.0);
        let close = open + Nanos::from(job.measure.0);
        let end = close + Nanos::from(job.cool_down.0);
        let timetable = Timetable { begin, open, close, end };
        let watch = Arc::new(Watch::new(&job.stop_if));
        let (send, receive) = mpsc::channel();
        let threads = Threads::start(&self, timetable, &watch, send)?;
        let ready = Nanos::now();
        if threads.hindered > 0 {
            self.findings.push(Finding::note(
                FindingKind::Fallback,
                "memory registered with io_uring",
                format!("{} of its threads do without", threads.hindered),
                "An I/O costs somewhat more CPU. The limit of locked memory is too low (ulimit -l), or one thread's \
                 I/Os take more than 1 GiB.",
            ));
        }
        if ready > open && begin == start {
            self.findings.push(Finding::doubt(
                FindingKind::Adjusted,
                "the load to be on when the window opens",
                format!("its threads were ready {:.1} s later", ready.since(open).as_secs()),
                "The host is overloaded, or the I/Os outstanding take very much memory: warm up longer.",
            ));
        }
        let mut collector = Collector {
            timetable,
            window: Window::new(Nanos::from(job.measure.0)),
            pending: BTreeMap::new(),
            marks: [None, None],
            polled: threads.polled.clone(),
            receive,
            watch,
            sink,
        };
        let give_up = end + Nanos::from(job.drain.0) + END_LIMIT;
        let mut stop_condition = collector.collect(stop, threads.halt(), give_up);
        if stop.load(Ordering::Relaxed) {
            threads.halt().tell();
        }
        let halted = threads.halt().at();
        let Ended { reports, failed, stuck } = threads.end();
        if stuck > 0 {
            self.findings.push(Finding::doubt(
                FindingKind::Censored,
                "every thread of the generator to end",
                format!("{stuck} hang in the kernel; no figure includes their I/Os in flight"),
                "The disk is stuck. See the kernel log for the device.",
            ));
        }
        let early = match failed.first() {
            Some(first) => Some(LoadError::failed(match failed.len() {
                1 => format!("the generator failed: {first}"),
                all => format!("{all} threads of the generator failed: {first}"),
            })),
            None => stop.load(Ordering::Relaxed).then(LoadError::interrupted),
        };
        if let Some(error) = early {
            let halted = halted.unwrap_or_else(Nanos::now);
            let whole = halted.since(open).0 / Nanos::SECOND.0;
            let whole = whole.min(collector.window.length().0 / Nanos::SECOND.0);
            if whole == 0 {
                return Err(error);
            }
            // As after a stop condition: what came back later than that is in the latencies, so that a slow I/O is not missing.
            collector.window.cut(Nanos(whole * Nanos::SECOND.0));
            collector.take_rest();
            let cpu = collector.cpu();
            let error = match error.kind {
                ErrorKind::Interrupted => LoadError { message: format!("stopped after {whole} s"), ..error },
                _ => LoadError { message: format!("{}, after {whole} s", error.message), ..error },
            };
            self.findings.push(Finding::doubt(
                FindingKind::Stopped,
                format!("a window of {}", self.job.measure),
                error.message.clone(),
                "The figures are those of the whole seconds until then.",
            ));
            let outcome = self.outcome(begin, collector.window, cpu, reports, None)?;
            return Ok(Outcome { ended_early: Some(error), ..outcome });
        }
        if let Some((seconds, why)) = &stop_condition {
            if *seconds == 0 {
                return Err(LoadError::limit(format!("stopped before anything was measured: {why}")));
            }
            collector.window.cut(Nanos(seconds * Nanos::SECOND.0));
        }
        // After a stop condition, this is what was in flight: it counts with its age.
        let in_the_end = collector.take_rest();
        let whole = collector.window.length().0 / Nanos::SECOND.0;
        stop_condition = stop_condition.or(in_the_end.map(|why| (whole, why)));
        let cpu = collector.cpu();
        self.outcome(begin, collector.window, cpu, reports, stop_condition)
    }

    fn outcome(
        self,
        begin: Nanos,
        window: Window,
        cpu: CpuTime,
        reports: Vec<IssuerReport>,
        stop_condition: Option<(u64, String)>,
    ) -> Result<Outcome, LoadError> {
        let mut findings = self.findings;
        let mut verify = self.job.verify.is_some().then(VerifyReport::default);
        let mut first_error = None;
        let mut began_late = Nanos(0);
        for report in reports {
            began_late = began_late.max(report.began.since(begin));
            first_error = first_error.or(report.first_error);
            if let Some(all) = &mut verify {
                all.merge(report.verify);
            }
        }
        if let Some(error) = first_error {
            let found = format!("the first that failed: {error}");
            let cause = "The kernel log usually says more about the device.";
            findings.push(if window.errors() > 0 {
                // The audit counts them, and calls the figures doubtful.
                Finding::note(FindingKind::Errors, "every I/O to succeed", found, cause)
            } else {
                Finding::doubt(
                    FindingKind::Errors,
                    "every I/O to succeed, outside the window too",
                    found,
                    cause,
                )
            });
        }
        let stop_condition = stop_condition.map(|(seconds, why)| {
            findings.push(Finding::doubt(
                FindingKind::Stopped,
                format!("a window of {}", self.job.measure),
                format!("it was stopped after {seconds} s: {why}"),
                "The stated limit (--stop-if) was passed; the figures are those until then.",
            ));
            why
        });
        let all = |is: fn(&Transport) -> bool| self.disks.iter().all(|disk| is(&disk.open.transport));
        let engine = match self.engine {
            _ if all(|transport| matches!(transport, Transport::Null)) => "null",
            _ if all(|transport| matches!(transport, Transport::Vhost(_))) => "vhost-user",
            _ if all(|transport| matches!(transport, Transport::Rbd(_))) => "librbd",
            Chosen::Uring => "io_uring",
            Chosen::Threads => "threads",
        };
        let engine = format!("{engine}{}", if cpu.polling_s > 0.0 { POLLING } else { "" });
        Ok(Outcome { window, began_late, cpu, findings, engine, verify, stop_condition, ended_early: None })
    }

    fn note_unwritten(&mut self) {
        for disk in &self.disks {
            let most_written = disk.open.size.0.saturating_sub(disk.open.unwritten.0);
            if self.job.profile.write_percent < 100 && most_written < disk.space.length / 100 * 99 {
                self.findings.push(Finding::doubt(
                    FindingKind::UnwrittenReads,
                    format!("{} to be written before it is read", disk.open.name),
                    format!(
                        "{:.0} % of it has no data",
                        100.0 * disk.open.unwritten.0 as f64 / disk.open.size.0 as f64
                    ),
                    "Reading a block that was never written costs the storage almost nothing. Fill the disk first (--fill).",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::prepare;
    use crate::{Disk, Job, Target, WritePermission};
    use loadline_base::units::{ByteSize, TimeSpan};
    use loadline_profile::Profile;

    #[test]
    fn a_load_that_begins_late_owes_nothing_for_the_time_before_and_ends_with_the_others() {
        let disk = Disk { target: Target::Null(ByteSize::GIB), writes: WritePermission::Refused };
        let profile: Profile = serde_json::from_str(r#"{"rate": "1000iops"}"#).unwrap();
        let mut job = Job::new(vec![disk], profile);
        (job.warm_up, job.measure, job.cool_down) =
            (TimeSpan::seconds(1), TimeSpan::seconds(4), TimeSpan::ZERO);
        let begun = Nanos::now();
        // Warm-up began 2.5 s ago: a second and a half of the window has passed.
        let start = Nanos(begun.0 - 2_500_000_000);
        let mut seconds: Vec<i64> = Vec::new();
        let mut sink = |_: Option<i64>, all: Vec<loadline_measure::interval::Interval>| {
            seconds.extend(all.iter().filter(|one| !one.is_empty()).map(|one| one.second));
        };
        let outcome = prepare(&job).unwrap().run_late(start, &AtomicBool::new(false), &mut sink).unwrap();
        assert!((2.4..4.0).contains(&Nanos::now().since(begun).as_secs()), "it ends at the window's end");
        assert_eq!(seconds.first(), Some(&1), "{seconds:?}");
        assert!(seconds.is_sorted() && seconds.iter().all(|second| (1..=4).contains(second)), "{seconds:?}");
        let done = outcome.window.completed();
        assert!((2_300..=2_501).contains(&done), "{done} of the 2,500 of two and a half seconds");
        let first = outcome.window.seconds()[1].reads;
        assert!((400..=510).contains(&first), "{first} of the 500 of the half second that was left of it");
        let slowest = outcome.window.read.response.max().unwrap();
        assert!(slowest < Nanos::SECOND, "no I/O is charged for the time before: {slowest:?}");
        assert!(outcome.findings.is_empty(), "{:?}", outcome.findings);
    }
}
