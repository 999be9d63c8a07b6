//! Writes what a run does at this second into its folder.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loadline_base::figures::{are, counted};
use loadline_fleet::{FleetEvent, LiveSecond, LossReason, WorkerId};
use loadline_measure::audit::Severity;
use loadline_measure::interval::Phase;
use tokio::sync::watch;

use super::{Doing, FILE, LivePoint, LiveRun, LiveStep, LiveWarning, SECONDS, STOP, WARNINGS};
use crate::folder::regular;
use crate::folder::result::StepResult;
use crate::left::TimeLeft;
use crate::planned_step::{Purpose, Step};
use crate::progress::{Progress, Update};

/// The time from one file to the next.
const EACH: Duration = Duration::from_secs(1);

/// The file, and the thread that writes it. The file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct LiveFile {
    state: Arc<Mutex<State>>,
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LiveFile {
    /// Begins to write into a run's folder. A file there that asks the run to end turns `stop` true. A disk that cannot be written makes
    /// the run no worse: it is watched elsewhere then.
    pub(crate) fn start(folder: &Path, stop: watch::Sender<bool>) -> LiveFile {
        let state = Arc::new(Mutex::new(State::new()));
        // It asked an earlier process.
        let _ = std::fs::remove_file(folder.join(STOP));
        // What cannot be removed is no request.
        let mut is_old = folder.join(STOP).exists();
        let (end, ended) = mpsc::channel();
        let (shared, place) = (state.clone(), folder.to_path_buf());
        let work = move || {
            loop {
                let text = serde_json::to_vec(&lock(&shared).now()).expect("it is numbers and texts");
                let temporary = place.join("live.new");
                let _ = regular::create(&temporary)
                    .and_then(|mut file| file.write_all(&text))
                    .and_then(|()| std::fs::rename(&temporary, place.join(FILE)));
                is_old &= place.join(STOP).exists();
                if !is_old && place.join(STOP).exists() {
                    let _ = stop.send(true);
                }
                if ended.recv_timeout(EACH) != Err(mpsc::RecvTimeoutError::Timeout) {
                    break;
                }
            }
            for name in [FILE, "live.new", STOP] {
                let _ = std::fs::remove_file(place.join(name));
            }
        };
        let thread = std::thread::Builder::new().name("live".into()).spawn(work).ok();
        LiveFile { state, end: Some(end), thread }
    }

    /// Shows the run here, and as `other` does.
    pub(crate) fn beside(&self, other: Box<dyn Progress>) -> Box<dyn Progress> {
        Box::new(Both { state: self.state.clone(), other })
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Shows a run in two places.
struct Both {
    state: Arc<Mutex<State>>,
    other: Box<dyn Progress>,
}

impl Progress for Both {
    fn update(&mut self, update: Update<'_>) {
        lock(&self.state).take(&update);
        self.other.update(update);
    }
}

/// What is known of the run.
#[derive(Debug)]
struct State {
    run: LiveRun,
    /// The workers that are there.
    workers: BTreeSet<WorkerId>,
    left: TimeLeft,
}

impl State {
    fn new() -> State {
        let now = wall_ms();
        let run = LiveRun {
            at: now,
            since: now,
            doing: Doing::Preparing,
            complete: 0,
            planned: 0,
            left_s: 0,
            workers: 0,
            seconds: Vec::new(),
            worst: Vec::new(),
            warnings: Vec::new(),
        };
        State { run, workers: BTreeSet::new(), left: TimeLeft::default() }
    }

    /// What the file says now.
    fn now(&mut self) -> &LiveRun {
        self.run.at = wall_ms();
        (self.run.complete, self.run.planned) = self.left.steps();
        self.run.left_s = self.left.left_s();
        self.run.workers = self.workers.len() as u32;
        &self.run
    }

    fn take(&mut self, update: &Update<'_>) {
        match update {
            Update::Begin { plan, phases, complete } => self.left.begin(phases, *complete, plan.steps.len()),
            Update::Waiting { listen, workers, .. } => {
                self.run.doing = Doing::Waiting { listen: *listen, workers: *workers };
            }
            Update::Fleet(event) => self.fleet(event),
            Update::Fill(done, total) => self.run.doing = Doing::Filling { done: *done, total: *total },
            Update::Scan(done, total) => self.run.doing = Doing::Checking { done: *done, total: *total },
            Update::WarmingUp { step, limit } => {
                self.left.begin_warm_up();
                self.run.doing = Doing::WarmingUp { step: shown(step), limit_s: limit.as_secs() };
            }
            Update::StepBegan { step, of } => {
                self.left.begin_step(*of);
                self.run.doing = Doing::Measuring { step: shown(step), phase: Phase::WarmUp };
            }
            Update::Phase(reached) => {
                if let Doing::Measuring { phase, .. } = &mut self.run.doing {
                    *phase = *reached;
                }
            }
            Update::Second(second) => self.second(second),
            Update::StepComplete(result) => self.complete(result),
            Update::Notice(text) => self.warn(false, (*text).to_owned()),
            // A console that follows the cluster shows it: it is none of this file's.
            Update::ClusterRuns(_) | Update::ClusterEnds => {}
        }
    }

    fn fleet(&mut self, event: &FleetEvent) {
        match event {
            FleetEvent::Joined { worker } | FleetEvent::Restarted { worker } => {
                self.workers.insert(worker.id.clone());
            }
            FleetEvent::Starting { unix_ms, .. } => self.left.begin_load(*unix_ms),
            FleetEvent::Lost { worker, loss } => {
                // The others go on: only what they were asked for is not done.
                let is_gone = !matches!(
                    loss.reason,
                    LossReason::Refused | LossReason::Failed | LossReason::StopCondition
                );
                if is_gone {
                    self.workers.remove(&worker.id);
                }
                self.warn(true, format!("worker {}: {}", worker.id, loss.message));
            }
            FleetEvent::BadBlocks { worker, report } => {
                let bad = report.bad();
                let hold = if bad == 1 { "does not hold" } else { "do not hold" };
                let blocks = counted(bad, "block");
                self.warn(true, format!("worker {worker} read {blocks} that {hold} the written data"));
            }
            FleetEvent::Dropped { events } => {
                let text = format!(
                    "the run's folder is too slow: {} {} missing in the series",
                    counted(*events, "record"),
                    are(*events)
                );
                self.warn(true, text);
            }
            _ => {}
        }
    }

    fn second(&mut self, second: &LiveSecond) {
        let step = match &self.run.doing {
            Doing::Measuring { step, .. } | Doing::WarmingUp { step, .. } => step.number,
            _ => return,
        };
        if self.run.seconds.len() >= SECONDS {
            self.run.seconds.remove(0);
        }
        let latency = &second.latency_us;
        self.run.seconds.push(LivePoint {
            at: wall_ms() / 1000,
            step,
            phase: second.phase,
            iops: second.iops,
            bytes: second.bytes,
            errors: second.errors,
            p50: latency.p50,
            p90: latency.p90,
            p95: latency.p95,
            p99: latency.p99,
            p99_9: latency.p99_9,
            oldest_us: second.oldest_us,
            classes: second.classes.clone(),
        });
        self.run.worst = second.worst.clone();
    }

    fn complete(&mut self, result: &StepResult) {
        self.left.end_step();
        self.run.doing = Doing::Preparing;
        self.run.worst.clear();
        for finding in &result.findings {
            let text = format!("step {} ({}): {}", result.step.number, result.step.label, finding);
            self.warn(finding.severity == Severity::Doubt, text);
        }
        for missed in result.verdicts.iter().filter(|verdict| !verdict.held) {
            let (number, label) = (result.step.number, &result.step.label);
            self.warn(
                true,
                format!(
                    "step {number} ({label}): {} was found, and the limit is {}",
                    missed.found, missed.limit
                ),
            );
        }
    }

    fn warn(&mut self, is_doubt: bool, text: String) {
        if self.run.warnings.len() >= WARNINGS {
            self.run.warnings.remove(0);
        }
        self.run.warnings.push(LiveWarning { at: wall_ms(), is_doubt, text });
    }
}

fn shown(step: &Step) -> LiveStep {
    let Step { number, label, repeat, condition, profile, .. } = step;
    let load = profile.words();
    let family = match (step.purpose == Purpose::Ceiling, step.family.is_empty()) {
        (true, _) => String::new(),
        (false, true) => label.clone(),
        (false, false) => step.family.clone(),
    };
    let (label, condition) = (label.clone(), condition.clone());
    LiveStep { number: *number, label, load, repeat: *repeat, condition, family }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{STALE_MS, request_stop};
    use crate::progress::Silent;
    use crate::stand_in::{info, loss};
    use loadline_measure::summary::LatencySummary;
    use std::time::Instant;

    fn second(n: i64) -> LiveSecond {
        LiveSecond {
            second: n,
            phase: Phase::Measure,
            workers: 1,
            iops: n as u64,
            bytes: 0,
            errors: 0,
            latency_us: LatencySummary::default(),
            oldest_us: 0,
            classes: Vec::new(),
            worst: Vec::new(),
        }
    }

    /// Waits for what the file says, for ten seconds at most.
    fn wait_for(folder: &Path, holds: impl Fn(Option<&LiveRun>) -> bool) {
        let begun = Instant::now();
        while !holds(LiveRun::read(folder).unwrap().as_ref()) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", LiveRun::read(folder));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn the_file_says_what_the_run_does_and_is_gone_with_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let (stop, _) = watch::channel(false);
        let live = LiveFile::start(folder.path(), stop);
        let mut shown = live.beside(Box::new(Silent));
        wait_for(folder.path(), |run| run.is_some_and(|run| run.doing == Doing::Preparing));
        shown.update(Update::Fill(1, 9));
        shown.update(Update::Notice("<b>look</b>"));
        wait_for(folder.path(), |run| {
            run.is_some_and(|run| run.doing == Doing::Filling { done: 1, total: 9 })
        });
        let run = LiveRun::read(folder.path()).unwrap().unwrap();
        assert_eq!(run.warnings[0].text, "<b>look</b>");
        assert!(run.is_current(run.at + STALE_MS) && !run.is_current(run.at + STALE_MS + 1));
        assert!(
            !run.is_current(run.at - STALE_MS - 1),
            "a machine whose clock is ahead, and whose process may be gone"
        );
        drop((shown, live));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_run_is_asked_to_end_by_a_file_and_not_by_one_that_is_older() {
        let folder = tempfile::tempdir().unwrap();
        request_stop(folder.path()).unwrap();
        let (stop, ended) = watch::channel(false);
        let live = LiveFile::start(folder.path(), stop);
        wait_for(folder.path(), |run| run.is_some());
        assert!(!*ended.borrow(), "the request was for an earlier process");
        request_stop(folder.path()).unwrap();
        let begun = Instant::now();
        while !*ended.borrow() {
            assert!(begun.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(live);
    }

    #[test]
    fn a_request_that_cannot_be_removed_does_not_end_each_process_that_goes_on_with_the_run() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(STOP)).unwrap();
        let (stop, ended) = watch::channel(false);
        let live = LiveFile::start(folder.path(), stop);
        wait_for(folder.path(), |run| run.is_some());
        std::thread::sleep(EACH / 5);
        assert!(!*ended.borrow());
        drop(live);
    }

    #[test]
    fn nothing_is_written_through_links_in_the_folder_and_no_pipe_is_waited_for() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(other.path(), "mine").unwrap();
        for name in ["live.new", STOP] {
            std::os::unix::fs::symlink(other.path(), folder.path().join(name)).unwrap();
        }
        request_stop(folder.path()).unwrap();
        let live = LiveFile::start(folder.path(), watch::channel(false).0);
        wait_for(folder.path(), |run| run.is_some());
        drop(live);
        assert_eq!(std::fs::read_to_string(other.path()).unwrap(), "mine");
        let pipe = |name: &str| {
            nix::unistd::mkfifo(&folder.path().join(name), nix::sys::stat::Mode::S_IRWXU).unwrap()
        };
        [FILE, "live.new", STOP].into_iter().for_each(pipe);
        assert!(LiveRun::read(folder.path()).is_err());
        request_stop(folder.path()).unwrap();
        drop(LiveFile::start(folder.path(), watch::channel(false).0));
    }

    #[test]
    fn a_worker_whose_load_ended_early_is_still_there_and_one_that_is_lost_twice_is_gone_once() {
        let mut state = State::new();
        let joined = |name: &str| FleetEvent::Joined { worker: info(name) };
        let lost = |name: &str, reason| FleetEvent::Lost { worker: info(name), loss: loss(reason) };
        for event in [
            joined("a"),
            joined("b"),
            joined("c"),
            lost("a", LossReason::StopCondition),
            lost("b", LossReason::Died),
            lost("b", LossReason::Absent),
        ] {
            state.take(&Update::Fleet(&event));
        }
        assert_eq!(state.now().workers, 2);
        state.take(&Update::Fleet(&FleetEvent::Restarted { worker: info("b") }));
        assert_eq!((state.now().workers, state.run.warnings.len()), (3, 3));
    }

    #[test]
    fn only_the_last_seconds_and_warnings_are_kept() {
        let mut state = State::new();
        let step = LiveStep {
            number: 1,
            label: "a".into(),
            load: "a".into(),
            repeat: 1,
            condition: None,
            family: "a".into(),
        };
        state.run.doing = Doing::Measuring { step, phase: Phase::Measure };
        for n in 0..SECONDS as i64 + 5 {
            state.take(&Update::Second(&second(n)));
            state.take(&Update::Notice(&n.to_string()));
        }
        assert_eq!((state.run.seconds.len(), state.run.warnings.len()), (SECONDS, WARNINGS));
        assert_eq!((state.run.seconds[0].iops, state.run.warnings[0].text.as_str()), (5, "25"));
    }
}
