//! What the thread of the store does, in which order.

use loadline_san_core::ids::{Incarnation, NodeId, Owner};

use super::*;
use crate::config::memory::MemoryStore;
use crate::config::watch::Watch;
use crate::config::{Stored, example};

/// A store whose next commit fails so, before it is made (`false`) or after that: the caller does not know which.
struct Unsure {
    store: MemoryStore,
    fails: Option<(bool, ConfigError)>,
}

impl ConfigStore for Unsure {
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError> {
        self.store.get(key)
    }

    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError> {
        self.store.list(prefix)
    }

    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError> {
        let Some((is_made, why)) = self.fails.take() else { return self.store.commit(changes) };
        if is_made {
            self.store.commit(changes)?;
        }
        Err(why)
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
    example::record(epoch, owner, &[(9, 1)])
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

/// The older copy goes on from the same record, and what this process proposes would replace it.
#[test]
fn once_an_older_copy_was_put_back_no_record_is_changed() {
    let id = VolumeId(3);
    let put = |key: &str| Change { key: key.into(), expected: None, value: Some(b"x".to_vec()) };
    let mut other = MemoryStore::default();
    assert!(other.commit(&[record_change(id, None, &record(1, 1)).unwrap()]).unwrap());
    let restore = other.backup();
    assert!(other.commit(&[put("a")]).unwrap());
    let config = Config::start(Box::new(other.clone())).unwrap();
    let (loop_sender, commands) = crate::event_loop::EventLoop::commands().unwrap();
    let propose = |epoch| config.propose(id, record(epoch, 1).into(), Epoch(epoch - 1), loop_sender.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Records come before jobs.
    let list = || runtime.block_on(config.call(|store| store.list("")));
    assert!(list().is_ok());
    propose(2);
    assert!(list().is_ok());
    let answer = commands.try_iter().next();
    assert!(matches!(answer, Some(LoopCommand::Swapped(_, _, Answer::Committed, _))), "{answer:?}");
    restore();
    assert!(other.commit(&[put("b")]).unwrap() && other.commit(&[put("c")]).unwrap());
    assert!(matches!(list(), Err(ConfigError::WentBack { .. })), "it does not have the second record");
    for epoch in [2, 3] {
        propose(epoch);
        config.read_record(id, Epoch(0), loop_sender.clone());
        let commit = runtime.block_on(config.each(vec![put("d")]));
        assert!(matches!(commit, Err(ConfigError::WentBack { .. })), "{commit:?}");
    }
    assert!(commands.try_iter().next().is_none());
    assert_eq!(read_record(&mut other, id).unwrap().unwrap().0, record(1, 1));
    assert_eq!(other.get("d").unwrap(), None);
}

#[test]
fn a_record_of_another_history_is_not_replaced_although_its_epoch_is_the_same() {
    let (id, mut store) = (VolumeId(3), MemoryStore::default());
    let claimed = |epoch: u64, by: u32| {
        let mut claimed = record(epoch, by);
        claimed.history.claim(Epoch(epoch), claimed.owner);
        claimed
    };
    let theirs = claimed(2, 2);
    assert!(store.commit(&[record_change(id, None, &theirs).unwrap()]).unwrap());
    let mine = Record { epoch: Epoch(3), ..claimed(2, 1) };
    assert_eq!(swap(&mut store, id, &mine, Epoch(2)).unwrap(), Answer::Refused(theirs.clone()));
    let next = Record { epoch: Epoch(3), ..theirs };
    assert_eq!(swap(&mut store, id, &next, Epoch(2)).unwrap(), Answer::Committed);
}

#[test]
fn a_proposal_whose_outcome_is_not_known_is_settled_by_what_is_stored() {
    let silent = ConfigError::Unavailable("no answer".into());
    // A copy of the same commit may have come before the one that is refused.
    let refuses = ConfigError::Refused("permission denied".into());
    let cases = [false, true].into_iter().flat_map(|is_made| [(is_made, &silent), (is_made, &refuses)]);
    for (was_made, why) in cases {
        let (id, first) = (VolumeId(3), record(1, 1));
        let mut store = Unsure { store: MemoryStore::default(), fails: None };
        assert!(store.commit(&[record_change(id, None, &first).unwrap()]).unwrap());
        let (mine, theirs) = (record(2, 1), record(2, 2));
        store.fails = Some((was_made, why.clone()));
        let unknown = swap(&mut store, id, &mine, Epoch(1)).unwrap_err();
        assert_eq!(unknown.to_string(), why.to_string());
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
