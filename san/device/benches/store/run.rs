//! A store with a driver in one thread, and a load on it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId, Sequence, VolumeId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::message::{Entry, EntryOp, Job, Payload, Promise};
use loadline_san_core::store::{Command, Completion, DurableState, Tag};
use loadline_san_protocol::ClusterId;
use loadline_san_protocol::device::{DeviceId, Superblock};
use loadline_san_store::io::{Area, Data, Disk, Done, IoRequest, Token};
use loadline_san_store::open::{NewReplica, create, open};
use loadline_san_store::space::Space;
use loadline_san_store::store::{Action, Identity, Settings, Store};

pub(crate) const VOLUME: VolumeId = VolumeId(1);
pub(crate) const GROUP: GroupIndex = GroupIndex(0);
const CLUSTER: ClusterId = ClusterId(1);
const REPLICA: ReplicaId = ReplicaId(1);
/// Requests that are outstanding.
pub(crate) const OUTSTANDING: u64 = 32;
const CHUNK: u64 = 64 << 20;

/// What carries out asks: at once, or later.
pub(crate) trait Driver {
    type Data: Data;
    fn start(&mut self, token: Token, request: IoRequest<Self::Data>);
    /// Something that is done; waits if this says so and there is something to wait for.
    fn take(&mut self, wait: bool) -> Option<(Token, Done<Self::Data>)>;
}

/// A store at work.
pub(crate) struct Run<R: Driver> {
    pub(crate) store: Store<R::Data>,
    pub(crate) driver: R,
    actions: Vec<Action<R::Data>>,
    appended: u64,
    pub(crate) reported: u64,
    /// Entries up to this one are said to be acknowledged.
    sequence: u64,
    acknowledges: bool,
    /// The first append opens the sequence.
    opens: bool,
    pub(crate) answers: u64,
    asked: u64,
    random: u64,
}

/// Makes a replica on an empty device.
pub(crate) fn make(disk: &mut impl Disk, blocks: u64, log_bytes: u64) {
    let device = DeviceId(1);
    let superblock = Superblock::fit(CLUSTER, device, disk.bytes(Area::Log), CHUNK, 64).expect("it fits");
    let mut space = Space::format(disk, Area::Log, superblock, false).expect("it is empty");
    let owner = Owner { node: NodeId(0), incarnation: Incarnation(1) };
    let new = NewReplica {
        id: Identity { volume: VOLUME, group: GROUP, replica: REPLICA },
        blocks,
        log_bytes,
        most_in_flight: 1024,
        key: 77,
        promise: Promise { epoch: Epoch(0), owner },
    };
    create(disk, &mut space, device, &new).expect("there is room");
}

/// Opens it.
pub(crate) fn reopen<D: Data>(disk: &mut impl Disk, settings: Settings) -> (Store<D>, DurableState) {
    let space = Arc::new(Mutex::new(Space::load(disk, Area::Log, Some(CLUSTER)).expect("it was made")));
    let opened = open(disk, &space, &space, REPLICA, settings).expect("it is well");
    assert!(opened.2.is_empty(), "{:?}", opened.2);
    (opened.0, opened.1)
}

/// Answers of a device that are taken before the thread that waits for them may request more.
const AT_ONCE: usize = 4;

impl<R: Driver> Run<R> {
    pub(crate) fn new(store: Store<R::Data>, found: &DurableState, driver: R) -> Run<R> {
        let mut run = Run {
            store,
            driver,
            actions: Vec::with_capacity(1024),
            appended: 0,
            reported: 0,
            sequence: found.end.sequence.0,
            acknowledges: true,
            opens: found.end == Position::START,
            answers: 0,
            asked: 0,
            random: 88_172_645_463_325_252,
        };
        if found.end == Position::START {
            run.append(Entry { block: 0, blocks: 0, op: EntryOp::Open });
            run.settle();
        }
        run
    }

    /// From now on nothing more is acknowledged, so that nothing is destaged.
    pub(crate) fn keep_all(&mut self) {
        self.acknowledges = false;
    }

    pub(crate) fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * u128::from(below)) >> 64) as u64
    }

    fn position(sequence: u64) -> Position {
        Position { ownership: Epoch(1), sequence: Sequence(sequence) }
    }

    pub(crate) fn append(&mut self, entry: Entry<R::Data>) {
        self.appended += 1;
        self.sequence += 1;
        let reported = if self.acknowledges { self.sequence - (self.appended - self.reported) } else { 0 };
        let commit_point = if reported == 0 { Position::START } else { Self::position(reported) };
        self.store.submit(Command::Append {
            number: self.appended,
            position: Self::position(self.sequence),
            sequenced: true,
            entry,
            commit_point,
            acknowledged: commit_point,
            epoch: Epoch(1),
        });
    }

    pub(crate) fn write(&mut self, block: u64, blocks: u32, data: R::Data) {
        let op = EntryOp::Data(Payload { data, first: 0 });
        self.append(Entry { block, blocks, op });
    }

    pub(crate) fn read(&mut self, block: u64, blocks: u32) {
        self.asked += 1;
        let job = Job { slot: 0, turn: 0, part: 0 };
        self.store.submit(Command::Read { tag: Tag { session: 1, job }, block, blocks, again: false });
    }

    /// Entries that were told to be durable, without the opening one.
    pub(crate) fn entries_reported(&self) -> u64 {
        self.reported - u64::from(self.opens)
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.appended - self.reported + self.asked - self.answers
    }

    /// Does what there is to do, until something is told. Waits for a device, if this says so and nothing else is to be done.
    pub(crate) fn turn(&mut self, wait: bool) {
        let mut actions = std::mem::take(&mut self.actions);
        loop {
            self.store.run(&mut actions);
            let mut reported = false;
            for action in actions.drain(..) {
                match action {
                    Action::Submit(token, request) => self.driver.start(token, request),
                    Action::Complete(Completion::Appended(through)) => {
                        (self.reported, reported) = (through, true)
                    }
                    Action::Complete(Completion::Data { content, .. }) => {
                        assert!(content.is_ok(), "nothing is corrupted");
                        (self.answers, reported) = (self.answers + 1, true);
                    }
                    Action::Complete(Completion::Failed) => panic!("the device has failed"),
                    Action::Complete(_) => {}
                }
            }
            let mut any = false;
            // Devices complete many at once, and have nothing to do while all of them are looked at.
            for _ in 0..if reported { 0 } else { AT_ONCE } {
                let Some((token, done)) = self.driver.take(wait && !any) else { break };
                self.store.done(token, done, &mut actions);
                any = true;
            }
            if !any {
                break;
            }
        }
        self.actions = actions;
    }

    /// Until nothing that was asked for is left.
    pub(crate) fn settle(&mut self) {
        let began = Instant::now();
        while self.outstanding() > 0 {
            self.turn(true);
            assert!(began.elapsed() < Duration::from_secs(120), "it hangs: {:?}", self.store.fill());
        }
    }

    /// Until the log is empty, or as good as that.
    pub(crate) fn destage(&mut self) {
        self.settle();
        let commit_point = Self::position(self.sequence);
        self.store.submit(Command::CommitPoint { commit_point, acknowledged: commit_point, epoch: Epoch(1) });
        let began = Instant::now();
        loop {
            self.store.destage_soon();
            self.turn(true);
            let fill = self.store.fill();
            if fill.log_used < 1 << 20 {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(300), "it hangs: {fill:?}");
        }
    }
}
