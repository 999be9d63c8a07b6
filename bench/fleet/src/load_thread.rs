//! The thread of a worker that carries out orders: the load generator blocks, the connection must not.
//!
//! One order is worked on at a time, in the order given. What a thread leaves behind (prepared disks) never leaves
//! the thread.

use std::borrow::Cow;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as std_mpsc;
use std::thread;
use std::time::{Duration, Instant};

use loadline_base::clock::Nanos;
use loadline_base::limits::STACK;
use loadline_load::host::Inventory;
use loadline_load::target::{check_room, make_file, remove_file};
use loadline_load::{
    FileIdentity, Job, LoadError, Prepared, Target, prepare, prepare_to_fill, prepare_to_scan,
};
use loadline_measure::interval::Interval;
use tokio::sync::mpsc;

use crate::clock_offset::KnownClock;
use crate::controller::unix_ms;
use crate::network;
use crate::outside::Outside;
use crate::started::FirstWorker;
use crate::wire::{FileToMake, FileToRemove, Measured, Reply, WorkerOrder};

/// Orders that wait for the thread. The controller gives the next one when the last has ended, and then a stop.
const ORDERS_WAITING: usize = 4;
/// Replies that wait for the connection. Beyond it the thread waits: a controller that takes nothing is given up
/// after [`crate::wire::SILENCE_LIMIT`].
const REPLIES_WAITING: usize = 32;
/// Progress is reported at most so often.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);
/// Records in one message: far below [`crate::wire::LONGEST_FRAME`], at some 40 KiB for the largest.
const INTERVALS_AT_ONCE: usize = 32;

/// Records are never kept back longer than this after the end of their second.
const LONGEST_HOLD_BACK: Nanos = Nanos::SECOND;

/// A message to the thread.
#[derive(Debug)]
pub(crate) enum Work {
    /// An order of the controller; the instant of a run is on this host's clock.
    Do(WorkerOrder),
    /// Drop what is prepared.
    Discard,
}

/// An order's number, the order, and what is set to leave it off.
type Given = (u64, Work, Arc<AtomicBool>);

/// The connection's end of the thread.
#[derive(Debug)]
pub(crate) struct LoadThread {
    pub(crate) work: std_mpsc::SyncSender<Given>,
    /// What it replies, with the number of the order. Ends when the thread has ended.
    pub(crate) replies: mpsc::Receiver<(u64, Reply)>,
}

impl LoadThread {
    /// Starts it, on a host with this address on the way to the controller.
    /// In a virtual machine, `outside` leads to its keeper.
    /// In one that a cluster has started for the fleet, its first worker reports of the start.
    pub(crate) fn start(
        ip: IpAddr,
        outside: Option<Outside>,
        first: Option<FirstWorker>,
    ) -> std::io::Result<LoadThread> {
        let (work, orders) = std_mpsc::sync_channel::<Given>(ORDERS_WAITING);
        let (reply, replies) = mpsc::channel(REPLIES_WAITING);
        thread::Builder::new().name("load".into()).stack_size(STACK).spawn(move || {
            let mut state = LoadState { prepared: None, outside, first, ip, reply };
            while let Ok((task, work, stop)) = orders.recv() {
                state.work(task, work, &stop);
            }
        })?;
        Ok(LoadThread { work, replies })
    }

    /// Hands it an order. `false` if too many wait, or the thread is gone.
    pub(crate) fn give(&self, task: u64, work: Work, stop: Arc<AtomicBool>) -> bool {
        self.work.try_send((task, work, stop)).is_ok()
    }
}

/// What the thread keeps between orders.
struct LoadState {
    /// With the length of its warm-up.
    prepared: Option<(Prepared, Nanos)>,
    /// The keeper, if this is a virtual machine.
    outside: Option<Outside>,
    /// What is known of the machine's start, if this is the first worker of a machine that a cluster has started.
    first: Option<FirstWorker>,
    /// This host's address on the way to the controller.
    ip: IpAddr,
    reply: mpsc::Sender<(u64, Reply)>,
}

impl LoadState {
    fn work(&mut self, task: u64, work: Work, stop: &Arc<AtomicBool>) {
        let last = match work {
            Work::Discard => self.leave().map(|()| Reply::Stopped),
            Work::Do(WorkerOrder::MakeFiles(files)) => match &mut self.outside {
                Some(outside) => outside.make_files(files),
                None => make_files(&files),
            }
            .map(Reply::FilesMade),
            Work::Do(WorkerOrder::RemoveFiles(files)) => match &mut self.outside {
                Some(outside) => outside.remove_files(files),
                None => remove_files(&files),
            }
            .map(|()| Reply::FilesRemoved),
            Work::Do(WorkerOrder::Fill(job)) => {
                let filled = self.fill(task, &job, stop);
                self.left(filled)
            }
            Work::Do(WorkerOrder::Prepare { job, watch }) => self.prepare(&job, watch.as_deref()),
            Work::Do(WorkerOrder::Run { start, hold_back, late, clock: _ }) => {
                let ran = self.run(task, (start, late), hold_back, stop);
                self.left(ran)
            }
            Work::Do(WorkerOrder::Scan(job)) => {
                let scanned = self.scan(task, &job, stop);
                self.left(scanned)
            }
            Work::Do(WorkerOrder::Listen { .. }) if self.outside.is_some() => {
                Ok(Reply::NoWay { why: "the worker is a virtual machine, which has no network".into() })
            }
            Work::Do(WorkerOrder::Listen { ip, key }) => {
                let ip = ip.unwrap_or(self.ip);
                let listening = network::listen(ip, key, stop.clone());
                Ok(listening.map_or_else(|why| Reply::NoWay { why }, |address| Reply::Listening { address }))
            }
            Work::Do(WorkerOrder::MeasureNetwork { address, key }) => {
                let measured = network::measure(address, key, stop);
                Ok(measured.map_or_else(|why| Reply::NoWay { why }, Reply::Network))
            }
            Work::Do(WorkerOrder::Examine { devices, folder }) => {
                let examined = loadline_doctor::examine_with_folder(devices, folder.as_deref(), stop);
                examined.map(|examination| Reply::Examined {
                    examination: Box::new(examination),
                    unix_ms: unix_ms(),
                })
            }
        };
        // If there is no receiver any more, the process is about to end.
        let _ = self.reply.blocking_send((task, last.unwrap_or_else(Reply::from)));
    }

    /// The job with its disks as they are here: in a virtual machine they are attached now.
    fn enter<'a>(&mut self, job: &'a Job) -> Result<Cow<'a, Job>, LoadError> {
        // What was prepared before goes first: it may hold the same disks.
        self.prepared = None;
        if let Some(first) = &mut self.first {
            first.first_io(job);
        }
        match &mut self.outside {
            Some(outside) => outside.enter(job).map(Cow::Owned),
            None => Ok(Cow::Borrowed(job)),
        }
    }

    /// Drops what is prepared, and has its disks taken away if this is a virtual machine.
    fn leave(&mut self) -> Result<(), LoadError> {
        self.prepared = None;
        self.outside.as_mut().map_or(Ok(()), Outside::leave)
    }

    /// The result of a job that is over.
    fn left(&mut self, result: Result<Reply, LoadError>) -> Result<Reply, LoadError> {
        let left = self.leave();
        result.and_then(|reply| left.map(|()| reply))
    }

    fn prepare(&mut self, job: &Job, watch: Option<&[Target]>) -> Result<Reply, LoadError> {
        let job = &*self.enter(job)?;
        let prepared = match prepare(job) {
            Ok(prepared) => prepared,
            error => return self.left(error.map(|_| Reply::Stopped)),
        };
        let host = watch.map(|targets| match &self.outside {
            None => Inventory::collect(targets).with_sizes(&prepared.sizes()),
            Some(outside) => {
                let inside = Inventory::collect(&outside.inside(targets));
                outside.describe(inside.with_sizes(&prepared.sizes()))
            }
        });
        let host = host.map(|host| match &self.first {
            Some(first) => Box::new(first.describe(host)),
            None => Box::new(host),
        });
        self.prepared = Some((prepared, Nanos::from(job.warm_up.0)));
        // The connection adds what it knows of the clock.
        Ok(Reply::Prepared { clock: KnownClock::default(), host })
    }

    fn fill(&mut self, task: u64, job: &Job, stop: &AtomicBool) -> Result<Reply, LoadError> {
        let job = &*self.enter(job)?;
        let mut progress = self.progress(task);
        prepare_to_fill(job)?.fill(stop, &mut progress)?;
        Ok(Reply::Filled)
    }

    fn scan(&mut self, task: u64, job: &Job, stop: &AtomicBool) -> Result<Reply, LoadError> {
        let job = &*self.enter(job)?;
        let mut progress = self.progress(task);
        prepare_to_scan(job)?.scan(stop, &mut progress).into_report().map(Reply::Scanned)
    }

    fn run(
        &mut self,
        task: u64,
        (start, late): (Nanos, bool),
        hold_back: Nanos,
        stop: &AtomicBool,
    ) -> Result<Reply, LoadError> {
        let Some((prepared, warm_up)) = self.prepared.take() else {
            return Err(LoadError::failed("told to run, with nothing prepared"));
        };
        let reply = self.reply.clone();
        let found = prepared.bad_blocks();
        let mut reported = 0;
        // At once, and in full each time: what a worker has found must not be lost with it.
        let mut tell_found = |reply: &mpsc::Sender<(u64, Reply)>| {
            let report = found.report();
            if report.bad() > reported {
                reported = report.bad();
                let _ = reply.blocking_send((task, Reply::Found(Box::new(report))));
            }
        };
        let window = Nanos(start.0.saturating_add(warm_up.0));
        let mut sink = |second: Option<i64>, intervals: Vec<Interval>| {
            tell_found(&reply);
            if let Some(second) = second {
                wait_turn(window, second, hold_back, stop);
            }
            let mut left = intervals.iter().filter(|i| !i.is_empty()).map(Interval::encode).peekable();
            while left.peek().is_some() {
                let part = left.by_ref().take(INTERVALS_AT_ONCE).collect();
                let _ = reply.blocking_send((task, Reply::Intervals(part)));
            }
        };
        let outcome = match late {
            true => prepared.run_late(start, stop, &mut sink),
            false => prepared.run(start, stop, &mut sink),
        };
        tell_found(&self.reply);
        let outcome = outcome?.whole()?;
        let mut findings = outcome.findings;
        findings.extend(self.outside.as_mut().map(Outside::take_findings).unwrap_or_default());
        Ok(Reply::Measured(Box::new(Measured {
            began_late_ns: outcome.began_late.0,
            cpu: outcome.cpu,
            host_cpu: None,
            findings,
            engine: outcome.engine,
            verify: outcome.verify,
            completed: outcome.window.completed(),
            errors: outcome.window.errors(),
            stop_condition: outcome.stop_condition,
        })))
    }

    /// Tells progress, if the connection has time for it, and not too often.
    fn progress(&self, task: u64) -> impl FnMut(u64, u64) + use<> {
        let reply = self.reply.clone();
        let mut reported: Option<Instant> = None;
        move |done, total| {
            if reported.is_none_or(|reported| reported.elapsed() >= PROGRESS_EVERY) || done == total {
                reported = Some(Instant::now());
                let _ = reply.try_send((task, Reply::Progress { done, total }));
            }
        }
    }
}

/// Waits until records of a second have their turn to be sent. Those that are late anyway go at once.
fn wait_turn(window: Nanos, second: i64, hold_back: Nanos, stop: &AtomicBool) {
    let ended = i128::from(window.0) + (i128::from(second) + 1) * i128::from(Nanos::SECOND.0);
    let turn = ended + i128::from(hold_back.min(LONGEST_HOLD_BACK).0);
    let wait = turn - i128::from(Nanos::now().0);
    // A second that has not ended yet is no second to be waited for.
    if (1..=i128::from(LONGEST_HOLD_BACK.0)).contains(&wait) && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_nanos(wait as u64));
    }
}

pub(crate) fn make_files(files: &[FileToMake]) -> Result<Vec<FileIdentity>, LoadError> {
    check_room(files.iter().map(|file| (file.path.as_path(), file.size)))?;
    let mut made = Vec::new();
    for file in files {
        let made_now = remove_leftover(&file.path).and_then(|()| make_file(&file.path, file.size));
        match made_now {
            Ok(identity) => made.push(identity),
            Err(error) => {
                let removed = files.iter().zip(&made).try_for_each(|(f, id)| remove_file(&f.path, *id));
                return Err(match removed {
                    Ok(()) => error,
                    Err(left) => LoadError { message: format!("{error}; and then: {left}"), ..error },
                });
            }
        }
    }
    Ok(made)
}

/// Removes what an order to make this file left behind when its controller ended before it could write down which
/// file it is. The controller's name for it carries the run's id; and only a file of this user in which nothing was
/// ever written is taken for one, so that whatever it is, nothing is lost.
fn remove_leftover(path: &Path) -> Result<(), LoadError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_named = name.starts_with("loadline-") && name.ends_with(".img");
    let is_mine = metadata.uid() == nix::unistd::geteuid().as_raw();
    match is_named && is_mine && metadata.is_file() && metadata.blocks() == 0 {
        true => remove_file(path, FileIdentity::of(&metadata)),
        // Making it says that something is there.
        false => Ok(()),
    }
}

/// Removes all that can be removed; the first error is returned.
pub(crate) fn remove_files(files: &[FileToRemove]) -> Result<(), LoadError> {
    let mut result = Ok(());
    for file in files {
        result = result.and(remove_file(&file.path, file.identity));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::units::ByteSize;

    #[test]
    fn an_order_that_was_carried_out_and_never_written_down_can_be_carried_out_again() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = |name: &str| FileToMake { path: folder.path().join(name), size: ByteSize::MIB };
        let ours = [file("loadline-20260101-7-a-0.img"), file("loadline-20260101-7-a-1.img")];
        make_files(&ours).unwrap();
        let again = make_files(&ours).unwrap();
        let found = FileIdentity::of(&fs::metadata(&ours[1].path).unwrap());
        assert!(again[1].is_same_file(&found));

        let other = [file("precious.img")];
        make_files(&other).unwrap();
        assert!(make_files(&other).unwrap_err().message.contains("exists already"), "it has another name");
        fs::write(&ours[0].path, "written").unwrap();
        assert!(make_files(&ours).unwrap_err().message.contains("exists already"), "something is in it");
        assert_eq!(fs::read(&ours[0].path).unwrap(), b"written");
    }
}
