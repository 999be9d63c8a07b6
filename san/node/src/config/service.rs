//! The store on a thread of its own, so that event loops do not wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use loadline_san_core::ids::{Epoch, Promise, VolumeId};
use loadline_san_core::record::Record;
use loadline_san_core::swap::Answer;
use loadline_san_protocol::record;
use tokio::sync::oneshot;

use super::continuing::{Continuing, StoreHealth};
use super::steps::{Each, Step};
use super::watch::{Changes, Watcher};
use super::{Change, ConfigError, ConfigStore};
use crate::event_loop::LoopSender;
use crate::event_loop::command::LoopCommand;

/// How long an answer of the store is waited for.
const LIMIT: Duration = Duration::from_secs(10);

/// How long the end of a node waits until the store is closed.
const CLOSES: Duration = Duration::from_secs(2);

type Job = Box<dyn FnOnce(&mut dyn ConfigStore) + Send>;

/// What the store is asked for.
enum Work {
    Job(Job),
    Record(VolumeId, About, LoopSender),
    /// The store is closed. Nothing is asked of it after that.
    Close(Sender<()>),
}

/// What is asked of a record.
enum About {
    Read(Epoch),
    Propose(Box<Record>, Epoch),
}

/// To use the store, from anywhere.
#[derive(Debug, Clone)]
pub struct Config {
    work: Sender<Work>,
    changes: Changes,
    health: StoreHealth,
    /// Pieces of work that the thread has done.
    turns: Arc<AtomicU64>,
}

impl Config {
    /// Starts the thread, and the one that waits for changes. Both end when the last of these is dropped.
    pub fn start(store: Box<dyn ConfigStore>) -> Result<Config, ConfigError> {
        let not_started = |why: std::io::Error| ConfigError::Unavailable(why.to_string());
        let (watcher, changes) = Watcher::start(store.watch()?).map_err(not_started)?;
        let health = StoreHealth::default();
        let store = Box::new(Continuing::new(store, health.clone()));
        let (sender, work) = channel();
        let turns = Arc::new(AtomicU64::new(0));
        let of_thread = turns.clone();
        std::thread::Builder::new()
            .name("config".into())
            .stack_size(STACK)
            .spawn(move || serve(store, watcher, &work, &of_thread))
            .map_err(not_started)?;
        Ok(Config { work: sender, changes, health, turns })
    }

    /// Whether the store answers, and continues what was read of it.
    pub fn health(&self) -> &StoreHealth {
        &self.health
    }

    /// Notices that something may have changed.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Pieces of work that the thread has done: one that hangs does no more.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Gives the thread something to do that takes no time.
    pub(crate) fn take_a_turn(&self) {
        self.give(Work::Job(Box::new(|_| ())));
    }

    /// Does something with the store. Whether it was done is not known if there is no answer in time.
    pub async fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn ConfigStore) -> Result<T, ConfigError> + Send + 'static,
    ) -> Result<T, ConfigError> {
        let (answer, answered) = oneshot::channel();
        self.give(Work::Job(Box::new(move |store| {
            // The caller may have given up: then its job is dropped.
            if !answer.is_closed() {
                let _ = answer.send(job(store));
            }
        })));
        match tokio::time::timeout(LIMIT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ConfigError::Unavailable("its thread has ended".into())),
            Err(_) if self.health.silence() < LIMIT / 2 => Err(ConfigError::Busy(LIMIT)),
            Err(_) => Err(ConfigError::Unavailable(format!("not within {} s", LIMIT.as_secs()))),
        }
    }

    /// Makes a change that has several commits: each call of `step` is a job of its own, so other callers wait for one step at most. If
    /// the caller drops the future, no further step is made.
    pub async fn in_steps<T: Send + 'static>(
        &self,
        step: impl FnMut(&mut dyn ConfigStore) -> Result<Step<T>, ConfigError> + Send + 'static,
    ) -> Result<T, ConfigError> {
        let mut next = step;
        loop {
            let (done, step) = self.call(move |store| Ok((next(store)?, next))).await?;
            match done {
                Step::Done(result) => return Ok(result),
                Step::More => next = step,
            }
        }
    }

    /// Makes changes of which each is safe alone, in as many commits as they need. Returns whether all were made: if not, read the
    /// configuration again.
    pub async fn each(&self, changes: Vec<Change>) -> Result<bool, ConfigError> {
        let mut each = Each::new(changes);
        self.in_steps(move |store| each.step(store)).await
    }

    /// What is the record? The loop gets the answer, if there is one; otherwise it asks again.
    pub fn read_record(&self, volume: VolumeId, asked_at: Epoch, orders: LoopSender) {
        self.give(Work::Record(volume, About::Read(asked_at), orders));
    }

    /// Makes this the record, if it is at this epoch. The loop gets the answer, if it is known; otherwise it proposes again.
    pub fn propose(&self, volume: VolumeId, record: Box<Record>, replaces: Epoch, orders: LoopSender) {
        self.give(Work::Record(volume, About::Propose(record, replaces), orders));
    }

    /// Closes the store: the last node that does leaves the configuration in one file, which a person can copy. Waits for what is under
    /// way, but not for long: a store that hangs is left as it is.
    pub fn close(&self) {
        let (done, closed) = channel();
        self.give(Work::Close(done));
        let _ = closed.recv_timeout(CLOSES);
    }

    fn give(&self, work: Work) {
        // The thread ends only when no sender of jobs is left.
        let _ = self.work.send(work);
    }
}

/// How long a job waits for records, if there are always some.
const JOBS_WAIT: Duration = Duration::from_millis(500);

/// What waits. Records come first: volumes wait for them, and lose their owners if they wait for long. But a job that has waited for
/// [`JOBS_WAIT`] comes before the next record: with a slow store there is always one, and clients are let in by jobs.
#[derive(Default)]
struct Waiting {
    /// The task that waits until the store is closed.
    close: Option<Sender<()>>,
    records: VecDeque<(VolumeId, About, LoopSender)>,
    /// Jobs, and since when each waits.
    jobs: VecDeque<(Instant, Job)>,
    /// Whether a job was done since a record was.
    job_was_done: bool,
}

/// What is done next.
enum Next {
    /// Reads that were all asked for before now.
    Reads(Vec<(VolumeId, Epoch, LoopSender)>),
    Proposal(VolumeId, About, LoopSender),
    Job(Job),
}

impl Waiting {
    fn add(&mut self, work: Work) {
        let (volume, about, orders) = match work {
            Work::Job(job) => {
                self.jobs.push_back((Instant::now(), job));
                return;
            }
            Work::Close(done) => {
                self.close = Some(done);
                return;
            }
            Work::Record(volume, about, orders) => (volume, about, orders),
        };
        // A loop asks again when it has waited for a while; one answer is enough.
        for (_, waits, _) in self.records.iter_mut().filter(|(of, ..)| *of == volume) {
            match (waits, &about) {
                // It is looked at later than either was asked.
                (About::Read(old), About::Read(new)) => {
                    *old = *new;
                    return;
                }
                (About::Propose(old, _), About::Propose(new, _)) if old == new => return,
                _ => {}
            }
        }
        self.records.push_back((volume, about, orders));
    }

    /// Takes what is done next. `None` if nothing waits.
    fn next(&mut self, now: Instant) -> Option<Next> {
        let is_due = |(since, _): &(Instant, Job)| now.duration_since(*since) >= JOBS_WAIT;
        let job_first = !self.job_was_done && self.jobs.front().is_some_and(is_due);
        self.job_was_done = job_first || self.records.is_empty();
        if self.job_was_done {
            return self.jobs.pop_front().map(|(_, job)| Next::Job(job));
        }
        let reads = self.take_reads();
        if !reads.is_empty() {
            return Some(Next::Reads(reads));
        }
        self.records.pop_front().map(|(volume, about, orders)| Next::Proposal(volume, about, orders))
    }

    /// The reads that come before the next proposal.
    fn take_reads(&mut self) -> Vec<(VolumeId, Epoch, LoopSender)> {
        let mut reads = Vec::new();
        while let Some((volume, about, orders)) = self.records.pop_front() {
            match about {
                About::Read(asked_at) => reads.push((volume, asked_at, orders)),
                About::Propose(..) => {
                    self.records.push_front((volume, about, orders));
                    break;
                }
            }
        }
        reads
    }
}

/// Records as they were at a revision of the store. Nodes that watch many volumes read all their records again and again: as long as
/// nothing has changed, only the revision of the store is read.
#[derive(Debug, Default)]
struct KnownRecords {
    revision: Option<u64>,
    records: BTreeMap<VolumeId, Option<Record>>,
}

impl KnownRecords {
    /// Answers reads that were all asked for before now. Without an answer, loops ask again.
    fn answer(
        &mut self,
        store: &mut dyn ConfigStore,
        reads: Vec<(VolumeId, Epoch, LoopSender)>,
    ) -> Result<(), ConfigError> {
        let mut answers: Vec<(LoopSender, Vec<LoopCommand>)> = Vec::new();
        let mut result = Ok(());
        // One alone would cost no less if the revision was checked.
        let alone = reads.len() == 1;
        let mut is_current = false;
        for (volume, asked_at, orders) in reads {
            let record = match alone {
                true => read_record(store, volume).map(|found| found.map(|(record, _)| record)),
                false => self.read(store, volume, &mut is_current),
            };
            let record = match record {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(why) => {
                    result = Err(why);
                    break;
                }
            };
            let seen = LoopCommand::Seen(volume, Box::new(record), asked_at);
            match answers.iter_mut().find(|(of, _)| of.is_same(&orders)) {
                Some((_, commands)) => commands.push(seen),
                None => answers.push((orders, vec![seen])),
            }
        }
        for (orders, commands) in answers {
            orders.give_all(commands);
        }
        result
    }

    /// A record. For the first of several the revision is checked; what is read after that is at least as new.
    fn read(
        &mut self,
        store: &mut dyn ConfigStore,
        volume: VolumeId,
        is_current: &mut bool,
    ) -> Result<Option<Record>, ConfigError> {
        if !std::mem::replace(is_current, true) {
            let revision = Some(store.revision()?);
            if self.revision != revision {
                *self = KnownRecords { revision, records: BTreeMap::new() };
            }
        }
        if let Some(record) = self.records.get(&volume) {
            return Ok(record.clone());
        }
        let record = read_record(store, volume)?.map(|(record, _)| record);
        self.records.insert(volume, record.clone());
        Ok(record)
    }
}

fn serve(mut store: Box<dyn ConfigStore>, watcher: Watcher, work: &Receiver<Work>, turns: &AtomicU64) {
    let (mut waiting, mut known, mut complaint) = (Waiting::default(), KnownRecords::default(), None);
    loop {
        work.try_iter().for_each(|work| waiting.add(work));
        if let Some(done) = waiting.close.take() {
            drop((watcher, store));
            // The caller may have given up.
            let _ = done.send(());
            return;
        }
        match waiting.next(Instant::now()) {
            Some(Next::Reads(reads)) => {
                let answered = known.answer(&mut *store, reads);
                complain(&mut complaint, answered.err());
            }
            Some(Next::Proposal(volume, about, orders)) => {
                let answered = propose(&mut *store, volume, about, &orders);
                complain(&mut complaint, answered.err());
            }
            Some(Next::Job(job)) => job(&mut *store),
            None => match work.recv() {
                Ok(work) => waiting.add(work),
                Err(_) => return,
            },
        }
        turns.fetch_add(1, Ordering::Relaxed);
    }
}

/// Logs why loops get no answers about the records of volumes: once, and not again before there was one. That the file of the
/// store was replaced is logged by the reader of the configuration, and that an older copy was put back where that is found.
fn complain(complaint: &mut Option<String>, failed: Option<ConfigError>) {
    match failed {
        None => *complaint = None,
        Some(ConfigError::Replaced { .. } | ConfigError::WentBack { .. }) => {}
        Some(why) => {
            let why = why.to_string();
            if complaint.as_ref() != Some(&why) {
                tracing::warn!("the record of a volume cannot be read or changed: {why}");
                *complaint = Some(why);
            }
        }
    }
}

/// Makes a proposal. Without an answer the loop asks again.
fn propose(
    store: &mut dyn ConfigStore,
    volume: VolumeId,
    about: About,
    orders: &LoopSender,
) -> Result<(), ConfigError> {
    let About::Propose(record, replaces) = about else { return Ok(()) };
    let answer = swap(store, volume, &record, replaces)?;
    orders.give(LoopCommand::Swapped(volume, record.made_by, answer, replaces));
    Ok(())
}

/// Where the record of a volume is kept.
pub fn record_key(volume: VolumeId) -> String {
    format!("record/{}", volume.0)
}

/// The record of a volume, and its version. None, if there is no such volume.
pub fn read_record(
    store: &mut dyn ConfigStore,
    volume: VolumeId,
) -> Result<Option<(Record, u64)>, ConfigError> {
    let key = record_key(volume);
    let Some(stored) = store.get(&key)? else { return Ok(None) };
    let record =
        record::decode(&stored.value).map_err(|why| ConfigError::Broken { key, why: why.to_string() })?;
    Ok(Some((record, stored.version)))
}

/// The change that makes this the record.
pub fn record_change(volume: VolumeId, expected: Option<u64>, next: &Record) -> Result<Change, ConfigError> {
    let key = record_key(volume);
    let value =
        record::encode(next).map_err(|why| ConfigError::Broken { key: key.clone(), why: why.to_string() })?;
    Ok(Change { key, expected, value: Some(value) })
}

fn swap(
    store: &mut dyn ConfigStore,
    volume: VolumeId,
    next: &Record,
    replaces: Epoch,
) -> Result<Answer, ConfigError> {
    for _ in 0..8 {
        let Some((record, version)) = read_record(store, volume)? else {
            return Err(ConfigError::Missing(record_key(volume)));
        };
        // Asked again: it is there already.
        if record.made_by == next.made_by && record.epoch == next.epoch {
            return Ok(Answer::Committed);
        }
        // An epoch alone is no proof once an older copy was put back: another node may have claimed the volume at the same epoch since.
        let by = Promise { epoch: record.epoch, owner: record.owner };
        if record.epoch != replaces || next.history.contradicts(&by).is_some() {
            return Ok(Answer::Refused(record));
        }
        if store.commit(&[record_change(volume, Some(version), next)?])? {
            return Ok(Answer::Committed);
        }
    }
    Err(ConfigError::Contended)
}

#[cfg(test)]
mod tests;
