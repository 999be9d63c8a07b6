//! Follows single requests of a volume from their arrival to their answer. One request is followed at a time, so that nothing but
//! a comparison is spent on all others.

use loadline_san_core::ids::{Epoch, NodeId, ReplicaId, Sequence};
use loadline_san_core::layout::{GroupIndex, Layout, Piece};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{EntryOp, Job, Progress, ToOwner, ToReplica};
use loadline_san_core::volume::{RequestId, SECTORS};
use loadline_san_export::block::{BlockRequest, Operation};
use tokio::sync::oneshot;

use crate::clock::now;

/// Arrivals that are skipped at the most before one is followed.
const MOST_SKIPPED: u64 = 15;

/// Which requests are to be followed.
#[derive(Debug)]
pub struct TraceOrder {
    /// The number of requests to follow.
    pub wanted: usize,
    /// Nanoseconds, at the least, from the end of one to the arrival of the next one that is followed.
    pub every_ns: u64,
    /// Nanoseconds until no more are waited for.
    pub limit_ns: u64,
    /// The receiver of the result. Dropped without one if the volume is closed.
    pub answer: oneshot::Sender<Vec<Trace>>,
}

/// A request, as the owner of its volume saw it.
#[derive(Debug, Clone)]
pub struct Trace {
    /// `read`, `map`, `write`, `zero`, `trim` or `flush`.
    pub kind: &'static str,
    /// The first sector.
    pub sector: u64,
    /// The number of sectors.
    pub sectors: u32,
    /// Where the client is.
    pub client: String,
    /// When the loop received it.
    pub received: Moment,
    /// When it began: there was room in the logs for it.
    pub begun: Moment,
    /// What replicas did for it.
    pub legs: Vec<Leg>,
    /// When all that had to be done was.
    pub completed: Moment,
    /// When the answer was given to the client's connection.
    pub answered: Moment,
    /// It was answered without an error.
    pub succeeded: bool,
}

/// What a replica did for a request.
#[derive(Debug, Clone)]
pub struct Leg {
    /// The id of the replica.
    pub replica: ReplicaId,
    /// The node that it is at.
    pub node: NodeId,
    /// What it did.
    pub work: Work,
    /// When the trace was requested.
    pub sent: Moment,
    /// When its answer was received. None if the request did not wait for it.
    pub done: Option<Moment>,
}

/// What a replica does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// An entry of its log becomes durable: which one, of which ownership.
    Log(Epoch, Sequence),
    /// It reads blocks, or reports what they hold.
    Read(Job),
}

/// The request that is followed.
#[derive(Debug)]
struct Followed {
    /// Its number among all requests of clients of the volume.
    number: u64,
    client: u32,
    request: Option<RequestId>,
    pieces: Vec<Piece>,
    /// The step in which it begins is under way.
    begins: bool,
    is_complete: bool,
    trace: Trace,
}

/// A trace of one volume in progress: it follows one request at a time, and keeps the traces of those that have completed.
#[derive(Debug)]
pub(super) struct Tracer {
    wanted: usize,
    every_ns: u64,
    /// From then on one that arrives is followed.
    next: Moment,
    /// Arrivals since the last one that was followed, and how many more are skipped, once that is decided.
    arrived: u64,
    skips: Option<u64>,
    until: Moment,
    followed: Option<Followed>,
    traces: Vec<Trace>,
    answer: oneshot::Sender<Vec<Trace>>,
}

impl Tracer {
    pub(super) fn new(order: TraceOrder) -> Tracer {
        let TraceOrder { wanted, every_ns, limit_ns, answer } = order;
        let now = now();
        let until = now.after(limit_ns);
        Tracer {
            wanted,
            every_ns,
            next: now,
            arrived: 0,
            skips: None,
            until,
            followed: None,
            traces: Vec::new(),
            answer,
        }
    }

    /// A client sends a request. `number` is that of the request, `layout` that of the volume.
    pub(super) fn arrives(&mut self, number: u64, client: u32, request: &BlockRequest, layout: Layout) {
        if self.followed.is_some() {
            return;
        }
        let received = now();
        self.arrived += 1;
        if received < self.next {
            return;
        }
        // The first to arrive after a moment is often one that follows a slow one: a client that reads and writes by turns would show
        // its reads alone. So some are skipped, by chance.
        let skips = self.skips.get_or_insert_with(|| random(received) % self.arrived.min(MOST_SKIPPED + 1));
        if *skips > 0 {
            *skips -= 1;
            return;
        }
        (self.arrived, self.skips) = (0, None);
        let kind = match request.operation {
            Operation::Read => "read",
            Operation::Map => "map",
            Operation::Write(_) => "write",
            Operation::WriteZeroes => "zero",
            Operation::Trim => "trim",
            Operation::Flush => "flush",
        };
        let end = request.sector + u64::from(request.sectors);
        let pieces = match request.sectors {
            0 => Vec::new(),
            _ => layout.pieces(request.sector / SECTORS..end.div_ceil(SECTORS)).collect(),
        };
        let trace = Trace {
            kind,
            sector: request.sector,
            sectors: request.sectors,
            client: String::new(),
            received,
            begun: received,
            legs: Vec::new(),
            completed: received,
            answered: received,
            succeeded: false,
        };
        self.followed = Some(Followed {
            number,
            client,
            request: None,
            pieces,
            begins: false,
            is_complete: false,
            trace,
        });
    }

    /// A request was taken from the queue, and has this id now.
    pub(super) fn named(&mut self, number: u64, id: RequestId) {
        if let Some(followed) = self.followed.as_mut().filter(|followed| followed.number == number) {
            followed.request = Some(id);
        }
    }

    /// A request is refused before it begins.
    pub(super) fn refused(&mut self, number: u64) {
        self.followed.take_if(|followed| followed.number == number);
    }

    /// A request begins, in the step that follows.
    pub(super) fn begins(&mut self, id: RequestId) {
        if let Some(followed) = self.followed.as_mut().filter(|followed| followed.request == Some(id)) {
            followed.begins = true;
            followed.trace.begun = now();
        }
    }

    /// The step is over.
    pub(super) fn stepped(&mut self) {
        if let Some(followed) = &mut self.followed {
            followed.begins = false;
        }
    }

    /// The volume sends a replica a message. `group` is the group that the replica is a member of, if it is one.
    pub(super) fn sent<D>(
        &mut self,
        replica: ReplicaId,
        node: NodeId,
        message: &ToReplica<D>,
        group: Option<GroupIndex>,
    ) {
        let Some(followed) = self.followed.as_mut().filter(|followed| followed.request.is_some()) else {
            return;
        };
        let is_within = |block: u64, blocks: u32| {
            followed.pieces.iter().any(|piece| {
                group == Some(piece.group)
                    && piece.block <= block
                    && block + u64::from(blocks) <= piece.block + piece.blocks
            })
        };
        let legs = &followed.trace.legs;
        let work = match message {
            // Two requests that change the same blocks are never at work together: this is the one that is followed.
            ToReplica::Entry { ownership, sequence, entry, .. }
                if matches!(followed.trace.kind, "write" | "zero" | "trim")
                    && !matches!(entry.op, EntryOp::Open)
                    && is_within(entry.block, entry.blocks) =>
            {
                Work::Log(*ownership, *sequence)
            }
            // Several may read the same blocks: the first message of this one's is sent in the step in which it begins, or is
            // the first that can be its.
            ToReplica::Read { job, block, blocks, .. } | ToReplica::Map { job, block, blocks }
                if is_within(*block, *blocks) =>
            {
                let is_its = |leg: &Leg| matches!(leg.work, Work::Read(of) if (of.slot, of.turn) == (job.slot, job.turn));
                let reads = legs.iter().any(|leg| matches!(leg.work, Work::Read(_)));
                if !followed.begins && reads && !legs.iter().any(is_its) {
                    return;
                }
                Work::Read(*job)
            }
            _ => return,
        };
        // What is sent again was not taken the first time.
        if !legs.iter().any(|leg| leg.replica == replica && leg.work == work) {
            followed.trace.legs.push(Leg { replica, node, work, sent: now(), done: None });
        }
    }

    /// A replica has sent the volume a message.
    pub(super) fn received<D>(&mut self, replica: ReplicaId, message: &ToOwner<D>) {
        let Some(followed) = self.followed.as_mut().filter(|followed| !followed.trace.legs.is_empty()) else {
            return;
        };
        let is_done = |work: Work| match (message, work) {
            (ToOwner::Data { job, .. } | ToOwner::Mapped { job, .. }, Work::Read(of)) => *job == of,
            (
                ToOwner::Welcome(progress) | ToOwner::Durable(progress) | ToOwner::Alive { progress, .. },
                Work::Log(ownership, sequence),
            ) => is_durable(progress, ownership, sequence),
            _ => false,
        };
        for leg in &mut followed.trace.legs {
            if leg.replica == replica && leg.done.is_none() && is_done(leg.work) {
                leg.done = Some(now());
            }
        }
    }

    /// A request has ended. True if its answer is to be reported too: [`Tracer::answered`].
    pub(super) fn completed(&mut self, id: RequestId, client: &str, succeeded: bool) -> bool {
        let Some(followed) = self.followed.as_mut().filter(|followed| followed.request == Some(id)) else {
            return false;
        };
        followed.trace.completed = now();
        followed.trace.client = client.into();
        followed.trace.succeeded = succeeded;
        followed.is_complete = true;
        true
    }

    /// The client whose request was completed, and is not known to be answered.
    pub(super) fn unanswered(&self) -> Option<u32> {
        self.followed.as_ref().filter(|followed| followed.is_complete).map(|followed| followed.client)
    }

    /// The answer was given to the client's connection.
    pub(super) fn answered(&mut self) {
        if let Some(mut followed) = self.followed.take_if(|followed| followed.is_complete) {
            followed.trace.answered = now();
            self.next = followed.trace.answered.after(self.every_ns);
            self.traces.push(followed.trace);
        }
    }

    /// A client has gone: its request is not followed any more.
    pub(super) fn left(&mut self, client: u32) {
        self.followed.take_if(|followed| followed.client == client);
    }

    /// Whether there are as many as are wanted, or no more are waited for.
    pub(super) fn has_ended(&self) -> bool {
        self.traces.len() >= self.wanted || now() >= self.until
    }

    /// Gives the result to the task that waits for it.
    pub(super) fn end(self) {
        // The task that requested the trace may have ended.
        let _ = self.answer.send(self.traces);
    }
}

/// A number from the last digits of the clock, which no client chooses.
fn random(moment: Moment) -> u64 {
    moment.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

fn is_durable(progress: &Progress, ownership: Epoch, sequence: Sequence) -> bool {
    progress.ownership == ownership && progress.durable >= sequence
}

#[cfg(test)]
mod tests {
    use loadline_san_core::message::{Entry, Payload};

    use super::*;

    const GROUP: Option<GroupIndex> = Some(GroupIndex(0));

    fn job(slot: u32) -> Job {
        Job { slot, turn: 1, part: 0 }
    }

    fn read(slot: u32, block: u64) -> ToReplica<()> {
        ToReplica::Read { job: job(slot), block, blocks: 1, again: false }
    }

    fn entry(sequence: u64, block: u64) -> ToReplica<()> {
        let op = EntryOp::Data(Payload { data: (), first: 0 });
        let entry = Entry { block, blocks: 1, op };
        ToReplica::Entry {
            ownership: Epoch(3),
            sequence: Sequence(sequence),
            commit_point: Sequence(0),
            entry,
        }
    }

    fn durable(sequence: u64) -> ToOwner<()> {
        ToOwner::Durable(Progress {
            ownership: Epoch(3),
            received: Sequence(sequence),
            durable: Sequence(sequence),
            out_of_band_received: 0,
            out_of_band_durable: 0,
            returned: false,
            gap: false,
            full: false,
        })
    }

    /// Follows a request of client 1 for block 7, which has begun.
    fn following(operation: Operation) -> (Tracer, oneshot::Receiver<Vec<Trace>>) {
        let (answer, traces) = oneshot::channel();
        let order = TraceOrder { wanted: 1, every_ns: 0, limit_ns: 1_000_000_000, answer };
        let mut tracer = Tracer::new(order);
        let layout = Layout::new(1, 16, 1024).expect("it is possible");
        let request = BlockRequest { slot: 0, operation, sector: 7 * SECTORS, sectors: SECTORS as u32 };
        tracer.arrives(5, 1, &request, layout);
        tracer.named(5, RequestId(9));
        tracer.begins(RequestId(9));
        (tracer, traces)
    }

    fn end(mut tracer: Tracer, mut traces: oneshot::Receiver<Vec<Trace>>) -> Trace {
        assert!(tracer.completed(RequestId(9), "here", true));
        assert_eq!(tracer.unanswered(), Some(1));
        tracer.answered();
        assert!(tracer.has_ended());
        tracer.end();
        traces.try_recv().expect("it was given").remove(0)
    }

    #[test]
    fn only_what_is_done_for_the_request_is_in_its_trace() {
        let (mut tracer, traces) = following(Operation::WriteZeroes);
        let (here, there) = (NodeId(1), NodeId(2));
        tracer.sent(ReplicaId(1), here, &entry(40, 8), GROUP);
        tracer.sent(ReplicaId(1), here, &entry(41, 7), Some(GroupIndex(1)));
        for (replica, node) in [(1, here), (2, there)] {
            tracer.sent(ReplicaId(replica), node, &entry(42, 7), GROUP);
        }
        // Once more, because it was lost.
        tracer.sent(ReplicaId(2), there, &entry(42, 7), GROUP);
        tracer.received(ReplicaId(1), &durable(41));
        tracer.received(ReplicaId(2), &durable(43));
        let trace = end(tracer, traces);
        let legs: Vec<_> =
            trace.legs.iter().map(|leg| (leg.replica.0, leg.work, leg.done.is_some())).collect();
        let log = Work::Log(Epoch(3), Sequence(42));
        assert_eq!(legs, [(1, log, false), (2, log, true)]);
        assert_eq!((trace.kind, trace.client.as_str(), trace.succeeded), ("zero", "here", true));
    }

    #[test]
    fn a_read_of_the_same_block_by_another_request_is_not_in_the_trace() {
        let (mut tracer, traces) = following(Operation::Read);
        tracer.sent(ReplicaId(1), NodeId(1), &read(4, 7), GROUP);
        tracer.stepped();
        tracer.sent(ReplicaId(1), NodeId(1), &read(5, 7), GROUP);
        // What was corrupt is read from another copy.
        tracer.sent(ReplicaId(2), NodeId(2), &read(4, 7), GROUP);
        tracer.received(
            ReplicaId(1),
            &ToOwner::<()>::Data { job: job(5), content: Ok(loadline_san_core::message::Content::Nothing) },
        );
        let trace = end(tracer, traces);
        let legs: Vec<_> =
            trace.legs.iter().map(|leg| (leg.replica.0, leg.work, leg.done.is_some())).collect();
        assert_eq!(legs, [(1, Work::Read(job(4)), false), (2, Work::Read(job(4)), false)]);
    }

    #[test]
    fn a_request_of_a_client_that_leaves_is_not_followed_any_more() {
        let (mut tracer, _traces) = following(Operation::Read);
        tracer.left(2);
        assert!(tracer.followed.is_some());
        tracer.left(1);
        assert!(!tracer.completed(RequestId(9), "here", true));
    }

    #[test]
    fn of_a_client_that_reads_and_writes_by_turns_both_are_followed() {
        let layout = Layout::new(1, 16, 1024).expect("it is possible");
        let mut kinds = [0_u32; 2];
        let (answer, _traces) = oneshot::channel();
        let order = TraceOrder { wanted: 1000, every_ns: 0, limit_ns: u64::MAX / 2, answer };
        let mut tracer = Tracer::new(order);
        // The clock passes the moment always when a read is next.
        for pair in 0..4000 {
            for (which, operation) in [Operation::Read, Operation::Flush].into_iter().enumerate() {
                let request = BlockRequest { slot: 0, operation, sector: 0, sectors: 8 };
                tracer.arrives(pair, 1, &request, layout);
                if tracer.followed.take().is_some() {
                    kinds[which] += 1;
                    (tracer.arrived, tracer.skips) = (8, None);
                }
            }
        }
        let [reads, others] = kinds;
        assert!(reads + others > 500 && reads.abs_diff(others) * 4 < reads + others, "{kinds:?}");
    }
}
