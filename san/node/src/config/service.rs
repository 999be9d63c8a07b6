//! The store on a thread of its own, so that event loops do not wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use loadline_san_core::ids::{Epoch, VolumeId};
use loadline_san_core::record::Record;
use loadline_san_core::swap::Answer;
use loadline_san_protocol::record;
use tokio::sync::oneshot;

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
}

impl Config {
    /// Starts the thread, and the one that waits for changes. Both end when the last of these is dropped.
    pub fn start(store: Box<dyn ConfigStore>) -> Result<Config, ConfigError> {
        let not_started = |why: std::io::Error| ConfigError::Unavailable(why.to_string());
        let (watcher, changes) = Watcher::start(store.watch()?).map_err(not_started)?;
        let (sender, work) = channel();
        std::thread::Builder::new()
            .name("config".into())
            .stack_size(STACK)
            .spawn(move || serve(store, watcher, &work))
            .map_err(not_started)?;
        Ok(Config { work: sender, changes })
    }

    /// Notices that something may have changed.
    pub fn changes(&self) -> Changes {
        self.changes.clone()
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

fn serve(mut store: Box<dyn ConfigStore>, watcher: Watcher, work: &Receiver<Work>) {
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
    }
}

/// Logs why loops get no answers about the records of volumes: once, and not again before there was one. That the file of the
/// store was replaced is logged by the reader of the configuration.
fn complain(complaint: &mut Option<String>, failed: Option<ConfigError>) {
    match failed {
        None => *complaint = None,
        Some(ConfigError::Replaced { .. }) => {}
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
        if record.epoch != replaces {
            return Ok(Answer::Refused(record));
        }
        if store.commit(&[record_change(volume, Some(version), next)?])? {
            return Ok(Answer::Committed);
        }
    }
    Err(ConfigError::Contended)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use loadline_san_core::history::History;
    use loadline_san_core::ids::{Incarnation, NodeId, Owner, ProposalId, ReplicaId};
    use loadline_san_core::layout::Layout;
    use loadline_san_core::record::{Group, RecordState};

    use super::*;
    use crate::config::Stored;
    use crate::config::memory::MemoryStore;
    use crate::config::watch::Watch;

    /// A store whose next commit fails, before it is made (`Some(false)`) or after that: the caller does not know which.
    struct Unsure {
        store: MemoryStore,
        fails: Option<bool>,
    }

    impl ConfigStore for Unsure {
        fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
            self.store.get(key)
        }

        fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
            self.store.list(prefix)
        }

        fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
            let fails = self.fails.take();
            if fails != Some(false) {
                let made = self.store.commit(changes)?;
                if fails.is_none() {
                    return Ok(made);
                }
            }
            Err(ConfigError::Unavailable("no answer".into()))
        }

        fn revision(&mut self) -> Result<u64, ConfigError> {
            self.store.revision()
        }

        fn watch(&self) -> Result<Box<dyn Watch>, ConfigError> {
            self.store.watch()
        }
    }

    fn record(epoch: u64, by: u32) -> Record {
        let owner = Owner { node: NodeId(by), incarnation: Incarnation(1) };
        Record {
            epoch: Epoch(epoch),
            made_by: ProposalId { by: owner, number: epoch },
            owner,
            state: RecordState::Active,
            attachment: 1,
            fence: 0,
            lease_ns: 600_000_000,
            blocks: 64,
            layout: Layout::new(1, 64, 64).unwrap(),
            least: 1,
            history: History::default(),
            homes: BTreeMap::from([(ReplicaId(9), NodeId(1))]),
            groups: vec![Group { in_sync: BTreeSet::from([ReplicaId(9)]), ..Group::default() }],
        }
    }

    /// A store whose commits wait for a permission each.
    struct Gated(MemoryStore, std::sync::mpsc::Receiver<()>);

    impl ConfigStore for Gated {
        fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
            self.0.get(key)
        }

        fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
            self.0.list(prefix)
        }

        fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
            let permitted = self.1.recv_timeout(Duration::from_secs(5));
            permitted.map_err(|_| ConfigError::Unavailable("it may not".into()))?;
            self.0.commit(changes)
        }

        fn revision(&mut self) -> Result<u64, ConfigError> {
            self.0.revision()
        }

        fn watch(&self) -> Result<Box<dyn Watch>, ConfigError> {
            self.0.watch()
        }
    }

    /// Has a future begin. It does not end at once.
    async fn begin(future: &mut (impl Future + Unpin)) {
        std::future::poll_fn(|context| {
            assert!(std::pin::Pin::new(&mut *future).poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    }

    #[test]
    fn a_long_change_delays_others_by_one_step_and_ends_with_its_caller() {
        let key = |id| Change { key: format!("a/{id}"), expected: None, value: Some(b"x".to_vec()) };
        let changes: Vec<Change> = (0..5 * crate::config::MOST_CHANGES).map(key).collect();
        let (permits, gate) = channel();
        let config = Config::start(Box::new(Gated(MemoryStore::default(), gate))).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let revision = || config.call(|store| store.revision());
            let (mut long, mut other) = (Box::pin(config.each(changes)), Box::pin(revision()));
            begin(&mut long).await;
            begin(&mut other).await;
            permits.send(()).unwrap();
            assert_eq!(other.await.unwrap(), 1, "the other caller waits for one step");
            // The second step waits for its permission when the caller goes.
            begin(&mut long).await;
            drop(long);
            (0..5).for_each(|_| permits.send(()).unwrap());
            let (one, next) = (revision().await.unwrap(), revision().await.unwrap());
            assert!(one == next && one <= 2, "{one} {next}");
        });
    }

    #[test]
    fn a_job_waits_for_records_but_not_for_ever() {
        let (loop_sender, _commands) = crate::event_loop::EventLoop::commands().unwrap();
        let now = Instant::now();
        let order = |waited: Duration| -> String {
            let mut waiting = Waiting::default();
            for number in 1..=3 {
                let proposal = About::Propose(Box::new(record(2, 1)), Epoch(1));
                waiting.add(Work::Record(VolumeId(number), proposal, loop_sender.clone()));
                waiting.add(Work::Job(Box::new(|_| {})));
            }
            let mut order = String::new();
            while let Some(next) = waiting.next(now + waited) {
                order.push(match next {
                    Next::Reads(_) => 'r',
                    Next::Proposal(..) => 'p',
                    Next::Job(_) => 'j',
                });
            }
            order
        };
        assert_eq!(order(Duration::ZERO), "pppjjj");
        assert_eq!(order(2 * JOBS_WAIT), "jpjpjp");
    }

    #[test]
    fn many_reads_ask_the_store_for_its_revision_and_see_every_change() {
        let mut store = MemoryStore::default();
        let ids: Vec<VolumeId> = (1..=3).map(VolumeId).collect();
        for id in &ids {
            assert!(store.commit(&[record_change(*id, None, &record(1, 1)).unwrap()]).unwrap());
        }
        let (loop_sender, commands) = crate::event_loop::EventLoop::commands().unwrap();
        let mut known = KnownRecords::default();
        let mut epochs = |store: &mut MemoryStore| {
            let reads = ids.iter().map(|id| (*id, Epoch(0), loop_sender.clone())).collect();
            known.answer(store, reads).unwrap();
            let seen = commands.try_iter().map(|command| match command {
                LoopCommand::Seen(_, record, _) => record.epoch.0,
                other => panic!("{other:?}"),
            });
            seen.collect::<Vec<u64>>()
        };
        assert_eq!(epochs(&mut store), [1, 1, 1]);
        assert_eq!(epochs(&mut store), [1, 1, 1]);
        assert_eq!(swap(&mut store, VolumeId(2), &record(2, 2), Epoch(1)).unwrap(), Answer::Committed);
        assert_eq!(epochs(&mut store), [1, 2, 1]);
    }

    #[test]
    fn a_proposal_whose_outcome_is_not_known_is_settled_by_what_is_stored() {
        for was_made in [false, true] {
            let (id, first) = (VolumeId(3), record(1, 1));
            let mut store = Unsure { store: MemoryStore::default(), fails: None };
            assert!(store.commit(&[record_change(id, None, &first).unwrap()]).unwrap());
            let (mine, theirs) = (record(2, 1), record(2, 2));
            store.fails = Some(was_made);
            assert!(matches!(swap(&mut store, id, &mine, Epoch(1)), Err(ConfigError::Unavailable(_))));
            // The other node has proposed meanwhile.
            let answer = swap(&mut store, id, &theirs, Epoch(1)).unwrap();
            let stored = read_record(&mut store, id).unwrap().unwrap().0;
            if was_made {
                assert_eq!((answer, stored), (Answer::Refused(mine.clone()), mine.clone()));
                assert_eq!(swap(&mut store, id, &mine, Epoch(1)).unwrap(), Answer::Committed, "it was made");
            } else {
                assert_eq!((answer, stored), (Answer::Committed, theirs.clone()));
                assert_eq!(swap(&mut store, id, &mine, Epoch(1)).unwrap(), Answer::Refused(theirs));
            }
        }
    }
}
