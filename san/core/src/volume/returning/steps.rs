//! What an owner does for a returning replica, step by step.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Retry, ReturnProgress, ReturnStage, Returning, Scan};
use crate::ids::{Epoch, Position, ReplicaId, Sequence};
use crate::layout::{GroupIndex, Piece};
use crate::lease::Moment;
use crate::message::{FromReplica, Job, Progress, ToReplica};
use crate::range_set::RangeSet;
use crate::record::Departed;
use crate::rule::{Rule, left_out};
use crate::volume::active::Active;
use crate::volume::replica_session::{ReplicaSession, SessionState};
use crate::volume::{Action, Context};

/// Copies under way to one replica at a time, and blocks of each at the most.
const COPIES: u32 = 4;
/// The same, with a share reserved for copies beside the requests of many clients: 16 MiB.
const MOST_COPIES: u32 = 256;
const COPY_BLOCKS: u64 = 16;
/// Blocks of data, 256 MiB, that an owner keeps in memory for replicas of a group that are behind. The return of a replica
/// that needs more is given up, and begins again.
const MOST_KEPT: u64 = 65_536;
/// And so many entries, whatever is in them.
const MOST_BEHIND: u64 = 16_384;
/// Blocks with data, 4 MiB, that are copied to a replica although it is full. A device has a reserve for what is in flight,
/// which a larger amount would use up.
const MOST_SQUEEZED: u64 = 1024;
/// In [`Job::slot`], of requests that do not belong to a job.
const SCAN: u32 = u32::MAX;

impl<D: Clone> Active<D> {
    /// How far returning replicas are.
    pub(in crate::volume) fn returning(&self) -> Vec<ReturnProgress> {
        self.returning.iter().map(|(replica, returning)| returning.progress(*replica)).collect()
    }

    /// Greets the replicas that have departed and are not returning yet.
    pub(in crate::volume) fn look_for_departed(
        &mut self,
        c: &mut Context,
        now: Moment,
        out: &mut Vec<Action<D>>,
    ) {
        let record = c.record().expect("it owns the volume");
        let waits = |replica| self.retries.get(replica).is_some_and(|retry| now < retry.not_before);
        let mut found = Vec::new();
        for (index, group) in (0..).zip(&record.groups) {
            for (replica, departed) in &group.departed {
                let home = record.homes[replica];
                let ended = c.ended.contains_key(&home);
                if !ended && !self.returning.contains_key(replica) && !waits(replica) {
                    found.push((*replica, *departed, home, GroupIndex(index)));
                }
            }
        }
        if self.returning.is_empty() && found.is_empty() {
            // This is the usual case, and this function is called often.
            return;
        }
        if !found.is_empty() {
            // A swap that is undecided may have added one that departed.
            let linked: BTreeSet<ReplicaId> = self.sessions.iter().map(|session| session.replica).collect();
            found.retain(|(replica, ..)| !linked.contains(replica));
        }
        for (replica, departed, node, group) in found {
            let mut session = ReplicaSession::new(replica, node, group, now);
            session.greet(c, now, SessionState::Greeting, out);
            self.sessions.push(session);
            let returning = Returning {
                group,
                departed,
                stage: ReturnStage::Greeting,
                to_copy: RangeSet::default(),
                unreadable: None,
                put_off: RangeSet::default(),
                waits: None,
                squeezes: false,
                scan: Some(0),
                scanning: None,
                copying: 0,
                copied: 0,
                spared: Sequence(0),
                promised: Epoch(0),
            };
            self.returning.insert(replica, returning);
        }
        let silent: Vec<ReplicaId> = self
            .sessions
            .iter()
            .filter(|session| session.is_open() && self.returning.contains_key(&session.replica))
            .filter(|session| {
                let group = &self.groups[session.group.0 as usize];
                let issued = group.pipeline.issued();
                let behind = issued.0 - group.pipeline.durable_on(session.replica).unwrap_or(issued).0;
                let keeps_too_much = behind > MOST_BEHIND || behind > 0 && group.kept > MOST_KEPT;
                now.since(session.last_answer) >= c.times.silent_ns
                    || session.is_stalled(c, now)
                    || keeps_too_much
            })
            .map(|session| session.replica)
            .collect();
        for replica in silent {
            self.abandon(c, now, replica, out);
        }
        // Only for replicas that answer: a search among the sessions for each of a thousand that are away would take long.
        let open = self.sessions.iter().filter(|session| session.is_open());
        let open = open.map(|session| session.replica).filter(|replica| self.returning.contains_key(replica));
        for replica in open.collect::<Vec<_>>() {
            self.return_on(c, now, replica, out);
        }
    }

    /// Its return is given up for now.
    pub(in crate::volume) fn abandon(
        &mut self,
        c: &mut Context,
        now: Moment,
        replica: ReplicaId,
        out: &mut Vec<Action<D>>,
    ) {
        let Some(returning) = self.returning.remove(&replica) else { return };
        self.end_copies(replica, None);
        let at = self.sessions.iter().position(|session| session.replica == replica);
        let at = at.expect("the owner has a session with a returning replica");
        self.sessions[at].drop_out_of_band();
        let failed = self.sessions[at].state == SessionState::Failed;
        let retry = self.retries.entry(replica).or_insert(Retry { not_before: now, stalls: 0 });
        // While it stalls, blocks are locked that are copied to it: less and less often.
        let stalled = self.sessions[at].is_stalled(c, now);
        let full = self.sessions[at].full && self.sessions[at].returned;
        retry.stalls = if stalled { retry.stalls.saturating_add(1) } else { 0 };
        let wait = match (failed, stalled) {
            // Another life of its process may find its device well.
            (true, _) => 4 * c.times.stalled_ns,
            _ if full => c.times.stalled_ns,
            (_, true) => c.times.stalled_ns << (2 + retry.stalls.min(5)),
            _ => c.times.silent_ns,
        };
        retry.not_before = now.after(wait);
        if c.required(returning.group).contains(&replica) {
            // The swap that adds it may have committed: it has a session like a member.
            if !failed {
                self.sessions[at].greet(c, now, SessionState::Greeting, out);
            }
        }
        // From here on no request waits for the replica.
        self.follow_record(c, now, out);
    }

    /// The replica has answered, and is ordered to return. From now on entries are kept for it (rule C2).
    pub(in crate::volume) fn order_return(
        &mut self,
        c: &mut Context,
        now: Moment,
        at: usize,
        progress: &Progress,
        out: &mut Vec<Action<D>>,
    ) {
        let replica = self.sessions[at].replica;
        let end = Position { ownership: progress.ownership, sequence: progress.durable };
        if self.returning.get(&replica).is_some_and(|r| end < r.departed.had) && !left_out(Rule::C9) {
            // The replica has lost something, so it is emptied. The record must state that first: the changes since
            // the replica left are not enough any more.
            self.lost.insert(replica);
            self.abandon(c, now, replica, out);
            self.change_members(c, now, out);
            return;
        }
        let session = &mut self.sessions[at];
        let pipeline = &mut self.groups[session.group.0 as usize].pipeline;
        match left_out(Rule::C2) {
            true => pipeline.follow_from_now(session.replica),
            false => _ = pipeline.follow(session.replica),
        }
        let from = pipeline.durable_on(session.replica).expect("it follows").next();
        // Nothing is sent before it has dropped what it has.
        session.next = crate::ids::Sequence(u64::MAX);
        let returning = self.returning.get_mut(&session.replica).expect("the caller has looked");
        (returning.stage, returning.promised) = (ReturnStage::Ordered(now), c.mine);
        let empty = returning.departed.epoch == Epoch(0);
        session.send(c, ToReplica::Return { ownership: self.ownership, from, empty }, out);
    }

    /// Its store was found damaged. A member leaves the set as one whose device has failed, if others have what it has lost. One
    /// that has left is emptied; but not before the record states that it is to be copied in full (rule C12).
    pub(in crate::volume) fn damaged(
        &mut self,
        c: &mut Context,
        now: Moment,
        at: usize,
        from: &FromReplica,
        out: &mut Vec<Action<D>>,
    ) {
        let replica = self.sessions[at].replica;
        let Some(returning) = self.returning.get_mut(&replica) else {
            self.sessions[at].state = SessionState::Failed;
            self.change_members(c, now, out);
            return;
        };
        if returning.stage != ReturnStage::Greeting {
            // The replica is being emptied, and answers "damaged" until that is done.
            return;
        }
        if left_out(Rule::C12) {
            returning.departed = Departed::EMPTY;
        } else if returning.departed != Departed::EMPTY {
            self.lost.insert(replica);
            self.abandon(c, now, replica, out);
            self.change_members(c, now, out);
            return;
        }
        let nothing = Progress {
            ownership: Epoch(0),
            received: Sequence(0),
            durable: Sequence(0),
            out_of_band_received: 0,
            out_of_band_durable: 0,
            returned: false,
            gap: false,
            full: false,
        };
        self.welcomed(c, now, at, from, &nothing, out);
    }

    /// The replica has listed what it dropped.
    pub(in crate::volume) fn listed(
        &mut self,
        c: &mut Context,
        now: Moment,
        at: usize,
        after: Position,
        ranges: Vec<Range<u64>>,
        out: &mut Vec<Action<D>>,
    ) {
        let session = &mut self.sessions[at];
        let replica = session.replica;
        let Some(returning) = self.returning.get_mut(&replica) else { return };
        if !matches!(returning.stage, ReturnStage::Ordered(_)) {
            return;
        }
        let pipeline = &self.groups[session.group.0 as usize].pipeline;
        let sequence = pipeline.durable_on(replica).expect("it follows");
        assert_eq!(after, Position { ownership: self.ownership, sequence }, "{replica} did what it was told");
        returning.stage = ReturnStage::Copying;
        session.returned = true;
        if !left_out(Rule::C3List) {
            ranges.into_iter().for_each(|range| returning.to_copy.insert(range));
        }
        session.next = sequence.next();
        session.send_entries(c, self.ownership, pipeline, Some(returning), out);
        self.return_on(c, now, replica, out);
    }

    /// The source has listed a part of what has changed.
    pub(in crate::volume) fn changed(
        &mut self,
        c: &mut Context,
        now: Moment,
        from: ReplicaId,
        job: Job,
        (ranges, next): (Vec<Range<u64>>, Option<u64>),
        out: &mut Vec<Action<D>>,
    ) {
        let asked = |r: &Returning| {
            let ours = |scan: Scan| scan.number == job.turn && scan.source == from && job.slot == SCAN;
            r.scanning.is_some_and(ours)
        };
        let ours = self.returning.iter_mut().find(|(replica, r)| asked(r) && replica.0 as u32 == job.part);
        let Some((replica, returning)) = ours else { return };
        let replica = *replica;
        ranges.into_iter().for_each(|range| returning.to_copy.insert(range));
        (returning.scan, returning.scanning) = (next, None);
        self.return_on(c, now, replica, out);
    }

    /// A copy could not be made: no member has the blocks whole. The copy is tried again after a while, and the replica
    /// is no member before it is made: it would hold old data where the others report that they have lost theirs.
    pub(in crate::volume) fn not_copied(
        &mut self,
        c: &Context,
        now: Moment,
        replica: ReplicaId,
        piece: Piece,
    ) {
        if let Some(returning) = self.returning.get_mut(&replica) {
            let (blocks, since) = returning.unreadable.get_or_insert_with(|| (RangeSet::default(), now));
            // What is corrupted behind the volume's end, in its last extent, would never be mended, and is never read.
            let record = c.record().expect("it owns the volume");
            let end = record.layout.blocks_in(piece.group, record.blocks);
            blocks.insert(piece.block..(piece.block + piece.blocks).min(end));
            *since = now;
            returning.copying -= 1;
        }
    }

    /// Whether blocks with data are to wait until there is room for them.
    pub(in crate::volume) fn puts_off(&self, replica: ReplicaId) -> bool {
        self.returning.get(&replica).is_some_and(Returning::puts_off)
            && self.sessions.iter().any(|session| session.replica == replica && session.full)
    }

    /// A copy has data for which the replica has no room: other copies go first.
    pub(in crate::volume) fn put_off(&mut self, c: &Context, replica: ReplicaId, piece: Piece) {
        if let Some(returning) = self.returning.get_mut(&replica) {
            returning.put_off(piece.block..piece.block + piece.blocks);
            returning.copying -= 1;
            self.start_copies(c, replica);
        }
    }

    /// Continues a return, as far as is possible now.
    pub(in crate::volume) fn return_on(
        &mut self,
        c: &mut Context,
        now: Moment,
        replica: ReplicaId,
        out: &mut Vec<Action<D>>,
    ) {
        let Some(at) =
            self.sessions.iter().position(|session| session.replica == replica && session.is_open())
        else {
            return;
        };
        let ended = self.end_copies(replica, Some(self.sessions[at].confirmed));
        let Some(returning) = self.returning.get_mut(&replica) else { return };
        returning.copying -= ended;
        if returning.unreadable.as_ref().is_some_and(|(_, since)| now.since(*since) >= c.times.silent_ns)
            && let Some((blocks, _)) = returning.unreadable.take()
        {
            blocks.iter().for_each(|range| returning.to_copy.insert(range));
        }
        let waited = |returning: &Returning| {
            // Time for a heartbeat, which brings the commit point, and for the destage that this allows.
            returning.waits.is_some_and(|since| now.since(since) >= c.times.silent_ns / 2)
        };
        returning.squeezes |= waited(returning) && returning.put_off.count() <= MOST_SQUEEZED;
        let idle = returning.scan.is_none() && returning.to_copy.is_empty() && returning.copying == 0;
        if !self.sessions[at].full || returning.squeezes {
            returning.waits = None;
            std::mem::take(&mut returning.put_off).iter().for_each(|range| returning.to_copy.insert(range));
        } else if idle && !returning.put_off.is_empty() {
            returning.waits.get_or_insert(now);
        }
        let resend = c.times.resend_ns;
        match returning.stage {
            ReturnStage::Ordered(sent) if now.since(sent) >= resend => {
                returning.stage = ReturnStage::Ordered(now);
                let from = self.groups[returning.group.0 as usize].pipeline.durable_on(replica);
                let from = from.expect("it follows").next();
                let empty = returning.departed.epoch == Epoch(0);
                self.sessions[at].send(c, ToReplica::Return { ownership: self.ownership, from, empty }, out);
            }
            ReturnStage::Copying => {
                self.scan(c, now, replica, out);
                self.start_copies(c, replica);
                self.go_on(c, now, out);
                self.may_join(c, now, replica, out);
            }
            ReturnStage::Greeting | ReturnStage::Ordered(_) | ReturnStage::Joining => {}
        }
    }

    /// Requests from a member which blocks have changed.
    fn scan(&mut self, c: &Context, now: Moment, replica: ReplicaId, out: &mut Vec<Action<D>>) {
        let Some(returning) = self.returning.get_mut(&replica) else { return };
        let Some(from) = returning.scan else { return };
        if returning.scanning.is_some_and(|scan| now.since(scan.asked) < c.times.resend_ns) {
            return;
        }
        let readable = &self.groups[returning.group.0 as usize].readable;
        let open = |replica: &ReplicaId| {
            self.sessions.iter().find(|session| session.replica == *replica && session.is_open())
        };
        // Sends the same request again, if the member can still answer: it may need longer than the limit.
        let last = returning.scanning.filter(|scan| readable.contains(&scan.source));
        let again = last.and_then(|scan| open(&scan.source));
        let Some(source) = again.or_else(|| readable.iter().find_map(open)) else { return };
        let source = source.replica;
        let Some(session) = self.sessions.iter_mut().find(|session| session.replica == source) else {
            return;
        };
        let number = match last.filter(|scan| scan.source == source) {
            Some(scan) => {
                session.is_awaited(c, now);
                scan.number
            }
            None if left_out(Rule::C10) => 1,
            None => {
                self.scans += 1;
                self.scans
            }
        };
        returning.scanning = Some(Scan { number, source, asked: now });
        let job = Job { slot: SCAN, turn: number, part: replica.0 as u32 };
        session.send(c, ToReplica::Changed { job, since: returning.departed.epoch, from }, out);
    }

    fn start_copies(&mut self, c: &Context, replica: ReplicaId) {
        let layout = c.record().expect("it owns the volume").layout;
        let most = copies_beside(self.jobs.clients(), c.reserved);
        while let Some(returning) = self.returning.get_mut(&replica)
            && returning.copying < most
            && let Some(range) = returning.to_copy.first()
        {
            let together = COPY_BLOCKS.min(layout.together(range.start));
            let blocks = (range.end - range.start).min(together);
            returning.to_copy.remove(&(range.start..range.start + blocks));
            returning.copying += 1;
            returning.copied += blocks;
            self.copied += blocks;
            let piece = Piece { group: returning.group, block: range.start, blocks };
            self.copy(replica, piece, &layout);
        }
    }

    /// Everything is copied: acknowledgements wait for the replica from now on, and it becomes a member when it has what was acknowledged
    /// before.
    fn may_join(&mut self, c: &mut Context, now: Moment, replica: ReplicaId, out: &mut Vec<Action<D>>) {
        let Some(returning) = self.returning.get_mut(&replica) else { return };
        let nothing_left = returning.to_copy.is_empty() && returning.put_off.is_empty();
        let nothing_left = nothing_left && returning.unreadable.is_none();
        let copied = returning.scan.is_none() && nothing_left && returning.copying == 0;
        let durable = self
            .sessions
            .iter()
            .any(|session| session.replica == replica && session.out_of_band_is_durable());
        if returning.stage == ReturnStage::Copying && copied && durable {
            returning.stage = ReturnStage::Joining;
            self.follow_record(c, now, out);
            self.change_members(c, now, out);
        }
    }
}

/// Copies that may be under way to one replica beside so many requests of clients, if so many per cent of all are to be copies: what waits
/// at a device in one queue gets of it as it has asked for.
fn copies_beside(clients: usize, reserved: u32) -> u32 {
    let clients = u32::try_from(clients).unwrap_or(u32::MAX);
    clients.saturating_mul(reserved).div_ceil(100 - reserved.min(99)).clamp(COPIES, MOST_COPIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_their_share_beside_the_requests_of_clients() {
        assert_eq!([copies_beside(0, 0), copies_beside(1000, 0)], [COPIES; 2], "nothing is reserved");
        assert_eq!(copies_beside(0, 50), COPIES, "a few go on beside no client");
        for (clients, reserved, copies) in [(32, 50, 32), (32, 20, 8), (60, 10, 7), (30, 33, 15)] {
            assert_eq!(copies_beside(clients, reserved), copies, "{reserved} % beside {clients}");
            assert!(100 * copies >= reserved * (copies + clients as u32), "{reserved} % beside {clients}");
        }
        assert_eq!([copies_beside(usize::MAX, 90), copies_beside(64, 99)], [MOST_COPIES; 2]);
    }
}
