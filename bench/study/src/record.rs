//! Records what the fleet reports in the run's folder, and shows it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use loadline_fleet::{EventSink, FleetEvent, Operation, WorkerId};
use loadline_measure::interval::Phase;
use tokio::sync::{oneshot, watch};

use crate::error::StudyError;
use crate::folder::events::EventLog;
use crate::folder::series::SeriesWriter;
use crate::progress::{Progress, Update};
use crate::settle::Settling;
use crate::trace::Trace;

/// The recorder, shared between the run and the thread that the fleet's events come on.
#[derive(Clone)]
pub(crate) struct Shared(Arc<Mutex<Recorder>>);

impl Shared {
    pub(crate) fn new(events: EventLog, progress: Box<dyn Progress>) -> Shared {
        let recorder = Recorder {
            progress,
            events,
            series: None,
            announced: false,
            settling: None,
            measure_s: 0,
            phase: None,
            swept: BTreeMap::new(),
            bad: BTreeMap::new(),
            dropped: 0,
            error: None,
            awaited: None,
            begins: None,
            trace: None,
        };
        Shared(Arc::new(Mutex::new(recorder)))
    }

    /// The recorder itself, for this thread alone.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Recorder> {
        // A panic elsewhere leaves it as whole as a crash would.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What the fleet reports to.
    pub(crate) fn sink(&self) -> EventSink {
        let shared = self.clone();
        Box::new(move |event| shared.lock().take(event))
    }
}

/// Takes what the fleet reports.
pub(crate) struct Recorder {
    progress: Box<dyn Progress>,
    pub(crate) events: EventLog,
    series: Option<SeriesWriter>,
    /// Whether the load of the step that was begun has been announced: what comes before is of a warm-up that was ended.
    announced: bool,
    /// A warm-up that runs, and the channel that is notified when the load is steady.
    settling: Option<(Settling, watch::Sender<bool>)>,
    measure_s: i64,
    phase: Option<Phase>,
    /// Bytes done and in all, of each worker that fills or scans.
    swept: BTreeMap<WorkerId, (u64, u64)>,
    /// Bad blocks that each worker has reported in this step.
    bad: BTreeMap<WorkerId, u64>,
    dropped: u64,
    error: Option<StudyError>,
    /// The token and the number of workers that are to join.
    awaited: Option<(String, u32)>,
    /// The channel that gets the moment at which the load of the step begins, milliseconds since 1970 (UTC).
    begins: Option<oneshot::Sender<u64>>,
    /// What the fleet completes second by second, if a timeline is made.
    trace: Option<Trace>,
}

impl Recorder {
    /// Workers are to join: as soon as the fleet listens, the user is shown how to start them.
    pub(crate) fn await_workers(&mut self, token: String, workers: u32) {
        self.awaited = Some((token, workers));
    }

    /// A step begins: its series go here. `measure_s` is the window's length.
    pub(crate) fn begin_step(&mut self, series: SeriesWriter, measure_s: i64) {
        (self.series, self.measure_s) = (Some(series), measure_s);
        (self.phase, self.dropped, self.announced) = (None, 0, false);
        self.bad.clear();
    }

    /// The window of the step that was begun is watched, and with `traced` the step has a timeline. The receiver gets the moment
    /// at which the load begins (milliseconds since 1970, UTC), or an error if it never does.
    pub(crate) fn await_window(&mut self, traced: bool) -> oneshot::Receiver<u64> {
        let (sender, receiver) = oneshot::channel();
        (self.begins, self.trace) = (Some(sender), traced.then(Trace::default));
        receiver
    }

    /// Ends the wait for the load: it has ended, or will not begin.
    pub(crate) fn end_waiting(&mut self) {
        self.begins = None;
    }

    /// What the step's timeline is drawn from.
    pub(crate) fn end_timeline(&mut self) -> Trace {
        self.trace.take().unwrap_or_default()
    }

    /// A warm-up begins. The receiver turns true when the load is steady.
    pub(crate) fn begin_warm_up(&mut self, settling: Settling) -> watch::Receiver<bool> {
        self.bad.clear();
        let (sender, receiver) = watch::channel(false);
        self.settling = Some((settling, sender));
        receiver
    }

    /// The warm-up is over, steady or not.
    pub(crate) fn end_warm_up(&mut self) -> Option<Settling> {
        self.settling.take().map(|(settling, _)| settling)
    }

    /// The step was measured: its series, and how many events are missing in them.
    pub(crate) fn end_step(&mut self) -> Result<(Option<SeriesWriter>, u64), StudyError> {
        self.check()?;
        Ok((self.series.take(), self.dropped))
    }

    /// The step was interrupted: what was recorded stays in its folder. Returns how many bad blocks were reported.
    pub(crate) fn drop_step(&mut self) -> u64 {
        (self.series, self.trace, self.begins) = (None, None, None);
        self.bad.values().fold(0, |all, bad| all.saturating_add(*bad))
    }

    /// A fill or a scan begins.
    pub(crate) fn begin_sweep(&mut self) {
        self.swept.clear();
    }

    /// The first error in recording since the last check, if there was one.
    pub(crate) fn check(&mut self) -> Result<(), StudyError> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// Shows something.
    pub(crate) fn show(&mut self, update: Update<'_>) {
        self.progress.update(update);
    }

    fn take(&mut self, event: FleetEvent) {
        if let Err(error) = self.record(&event) {
            self.error.get_or_insert(error);
        }
    }

    fn record(&mut self, event: &FleetEvent) -> Result<(), StudyError> {
        match event {
            FleetEvent::Interval { worker, interval } => {
                if let Some((settling, _)) = &mut self.settling {
                    settling.record(interval);
                }
                if let Some(series) = self.series.as_mut().filter(|_| self.announced) {
                    series.add(worker, interval)?;
                }
                if let Some(trace) = self.trace.as_mut().filter(|_| self.announced) {
                    trace.add(worker, interval);
                }
                return Ok(());
            }
            FleetEvent::HostSecond { host, second } => {
                let series = self.series.as_mut().filter(|_| self.announced);
                return series.map_or(Ok(()), |series| series.add_host(host, second));
            }
            FleetEvent::Second(second) if self.settling.is_some() => {
                self.progress.update(Update::Second(second));
                if let Some((settling, steady)) = &mut self.settling
                    && settling.second(second.iops)
                {
                    // The task that waited for it may have been stopped.
                    let _ = steady.send(true);
                }
                return Ok(());
            }
            FleetEvent::Second(_) if !self.announced => return Ok(()),
            FleetEvent::Second(second) => {
                self.progress.update(Update::Second(second));
                // A second is shown when it is over: the next one runs.
                self.reach(second.second.saturating_add(1));
                return self.series.as_mut().map_or(Ok(()), SeriesWriter::flush);
            }
            FleetEvent::Progress { worker, operation, done, total } => {
                self.swept.insert(worker.clone(), (*done, *total));
                let add =
                    |(a, b): (u64, u64), (c, d): &(u64, u64)| (a.saturating_add(*c), b.saturating_add(*d));
                let (done, total) = self.swept.values().fold((0, 0), add);
                self.progress.update(match operation {
                    Operation::Fill => Update::Fill(done, total),
                    Operation::Scan => Update::Scan(done, total),
                });
                return Ok(());
            }
            FleetEvent::Copying(_) | FleetEvent::Notice(_) => {
                self.progress.update(Update::Fleet(event));
                return Ok(());
            }
            FleetEvent::Starting { unix_ms, .. } => {
                self.progress.update(Update::Fleet(event));
                self.announced = self.settling.is_none();
                if let Some(begins) = self.begins.take().filter(|_| self.announced) {
                    // The task that waited may have been stopped.
                    let _ = begins.send(*unix_ms);
                }
                if let Some(series) = self.series.as_mut().filter(|_| self.announced) {
                    series.begin(*unix_ms)?;
                    let warm_up = series.warm_up_s();
                    self.reach(-warm_up);
                }
                return self.events.fleet(event);
            }
            FleetEvent::Listening { address } => {
                if let Some((token, workers)) = self.awaited.take() {
                    self.progress.update(Update::Waiting { listen: *address, token: &token, workers });
                }
            }
            FleetEvent::Lost { .. } => self.settling.iter_mut().for_each(|(settling, _)| settling.lose()),
            FleetEvent::BadBlocks { worker, report } => {
                if let Some((settling, _)) = &mut self.settling {
                    settling.bad.insert(worker.clone(), report.clone());
                }
                self.bad.insert(worker.clone(), report.bad());
            }
            FleetEvent::Dropped { events } => self.dropped = self.dropped.saturating_add(*events),
            _ => {}
        }
        self.progress.update(Update::Fleet(event));
        self.events.fleet(event)
    }

    /// Shows the phase in which `second` lies, if it is a new one.
    fn reach(&mut self, second: i64) {
        let phase = match second {
            s if s < 0 => Phase::WarmUp,
            s if s < self.measure_s => Phase::Measure,
            _ => Phase::CoolDown,
        };
        if self.phase.is_none_or(|known| known < phase) {
            self.phase = Some(phase);
            self.progress.update(Update::Phase(phase));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Silent;
    use loadline_measure::interval::Interval;

    #[test]
    fn what_comes_late_of_a_warm_up_is_not_of_the_step_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let events = EventLog::open(&folder.path().join("events.jsonl")).unwrap();
        let shared = Shared::new(events, Box::new(Silent));
        let mut sink = shared.sink();
        let interval = || FleetEvent::Interval {
            worker: WorkerId("a".into()),
            interval: Box::new(Interval::new(9, Phase::Measure, 0).encode()),
        };
        let starting = || FleetEvent::Starting { workers: 1, unix_ms: 1 };
        let lines = || {
            let path = folder.path().join("seconds.jsonl");
            std::fs::read_to_string(path).unwrap_or_default().lines().count()
        };
        let _steady = shared.lock().begin_warm_up(Settling::new(1, 10));
        sink(starting());
        sink(interval());
        shared.lock().end_warm_up().unwrap();
        let series = SeriesWriter::create(folder.path(), 0).unwrap();
        shared.lock().begin_step(series, 10);
        sink(interval());
        sink(starting());
        sink(interval());
        let (series, _) = shared.lock().end_step().unwrap();
        series.unwrap().finish().unwrap();
        assert_eq!(lines(), 1, "only what came after the step began");
    }
}
