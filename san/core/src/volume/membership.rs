//! Which members leave the in-sync set of a volume that is served, and which replicas join it (rules P1, W3, C5 and S1).

use std::collections::{BTreeMap, BTreeSet};

use super::Context;
use super::active::Active;
use super::replica_session::{ReplicaSession, SessionState};
use super::returning::Returning;
use super::silence::{Members, Verdict};
use crate::ids::{NodeId, Position, ReplicaId};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::rule::{Rule, left_out};
use crate::volume::Action;

impl<D: Clone> Active<D> {
    /// Proposes the swap that is needed: members that do not answer leave, and replicas that have returned join.
    pub(super) fn change_members(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        if c.is_undecided() {
            return;
        }
        let doubted = self.doubted(c, now);
        self.unconfirmed =
            doubted.iter().filter(|group| group.unconfirmed).map(|group| group.index).collect();
        for group in &doubted {
            c.silence.expect(now, &c.times, &group.members, out);
        }
        let joins = self.returning.values().any(Returning::is_joining);
        if !joins && self.lost.is_empty() && doubted.iter().all(|group| group.gone.is_empty()) {
            // This is the usual case, and this function is called often.
            return;
        }
        let mut leave: Vec<(GroupIndex, ReplicaId, Position)> = Vec::new();
        for group in doubted {
            if group.gone.is_empty() {
                continue;
            }
            if !group.answers {
                // If no member answers, each is as good as the others. But another node may reach them.
                self.yields |= c.silence.judge(now, &c.times, &group.members, out) == Verdict::Yield;
                continue;
            }
            if self.may_exclude(c, now, &group, out) {
                let had = self.had(group.index);
                leave.extend(group.gone.into_iter().map(|replica| (group.index, replica, had)));
            }
        }
        if !leave.is_empty() {
            let id = c.proposal();
            let record = c.record().expect("it owns the volume");
            let mut next = record.without(id, &leave).expect("members, and not the last ones");
            let failed = self.sessions.iter().filter(|session| session.state == SessionState::Failed);
            if !left_out(Rule::C9) {
                next = next.copied_in_full(&failed.map(|session| session.replica).collect());
            }
            c.propose(now, next, out);
            if left_out(Rule::W3) {
                for (index, replica, _) in leave {
                    let group = &mut self.groups[index.0 as usize];
                    let others: Vec<_> = group.required.iter().filter(|r| **r != replica).copied().collect();
                    group.pipeline.require(others);
                    self.acknowledge(c, now, index.0 as usize, out);
                }
                return;
            }
            self.follow_record(c, now, out);
            return;
        }
        if !self.lost.is_empty() {
            let id = c.proposal();
            let record = c.record().expect("it owns the volume");
            let next = record.emptied(id, &std::mem::take(&mut self.lost));
            c.propose(now, next, out);
            self.follow_record(c, now, out);
            return;
        }
        let record = c.record().expect("it owns the volume");
        let ready = self.returning.iter().find(|(replica, returning)| {
            let index = returning.group();
            let durable = self.groups[index.0 as usize].pipeline.durable_on(**replica);
            let must_have = self.acknowledged(index).sequence.max(returning.spared());
            let caught_up = durable >= Some(must_have);
            let departed = record.groups[index.0 as usize].departed.contains_key(replica);
            departed && returning.is_joining() && (caught_up || left_out(Rule::C5))
        });
        if let Some((replica, returning)) = ready {
            let id = c.proposal();
            let record = c.record().expect("it owns the volume");
            if let Ok(next) = record.with(id, returning.group(), *replica, returning.promised()) {
                c.propose(now, next, out);
                self.follow_record(c, now, out);
            }
        }
    }

    /// Whether members of a group that are silent, or have failed, may be excluded now (rule S1).
    fn may_exclude(
        &mut self,
        c: &mut Context,
        now: Moment,
        group: &Doubted,
        out: &mut Vec<Action<D>>,
    ) -> bool {
        match c.silence.judge(now, &c.times, &group.members, out) {
            Verdict::Without => !group.unconfirmed,
            Verdict::Wait => false,
            // The other nodes run, and a client may still turn to them. This node continues once one of its own clients sends a request.
            Verdict::Tie => self.unanswered() > 0,
            Verdict::Yield => {
                self.yields = true;
                false
            }
        }
    }

    /// The groups of which a member is silent or has failed, or may soon have been silent for too long: its node must be asked before
    /// it is excluded. A volume can have a thousand groups, and this is called often: so it takes one pass over the sessions if all is
    /// well, also while copies are away that have left the set, and two if not.
    fn doubted(&self, c: &Context, now: Moment) -> Vec<Doubted> {
        let silent_ns = c.times.silent_ns;
        let is_gone = |session: &ReplicaSession<D>| {
            session.state == SessionState::Failed
                || now.since(session.last_answer) >= silent_ns
                || session.is_stalled(c, now)
        };
        // Of two members that are cut off at once, the last message of one arrived later than that of the other.
        let limit = if left_out(Rule::S1Soon) { silent_ns } else { silent_ns / 2 };
        let Some(record) = c.record() else { return Vec::new() };
        let is_member = |session: &ReplicaSession<D>| {
            !self.returning.contains_key(&session.replica)
                && record
                    .groups
                    .get(session.group.0 as usize)
                    .is_some_and(|g| g.in_sync.contains(&session.replica))
        };
        let is_doubted = |session: &&ReplicaSession<D>| {
            (now.since(session.last_answer) >= silent_ns / 2 || is_gone(session)) && is_member(session)
        };
        let doubted = self.sessions.iter().filter(is_doubted);
        let mut doubted: BTreeMap<GroupIndex, Vec<&ReplicaSession<D>>> =
            doubted.map(|session| (session.group, Vec::new())).collect();
        if doubted.is_empty() {
            return Vec::new();
        }
        for session in self.sessions.iter().filter(|session| is_member(session)) {
            if let Some(sessions) = doubted.get_mut(&session.group) {
                sessions.push(session);
            }
        }
        let doubted = doubted.into_iter().map(|(index, sessions)| {
            let silent = |session: &&&ReplicaSession<D>| {
                session.state != SessionState::Failed && now.since(session.last_answer) >= limit
            };
            let mut members =
                Members { all: sessions.iter().map(|session| session.node).collect(), ..Members::default() };
            sessions
                .iter()
                .filter(silent)
                .for_each(|session| members.without(session.node, session.last_answer, &c.ended));
            let unconfirmed = unconfirmed(c, now, &sessions, &mut members);
            let gone =
                sessions.iter().filter(|session| is_gone(session)).map(|session| session.replica).collect();
            let answers = sessions.iter().any(|session| !is_gone(session) && session.is_open());
            Doubted { index, members, gone, answers, unconfirmed }
        });
        doubted.collect()
    }
}

/// A connection that is refused looks like a process that has ended; if all nodes refuse this one, it finds that one member has ended
/// a moment before it finds that of the others. So the other members of the group that have not answered since get a heartbeat, and
/// nothing is concluded before they answer or the time between two heartbeats is over. From then on they count as silent (rule
/// S1Ended). Returns whether that time still runs.
fn unconfirmed<D>(c: &Context, now: Moment, sessions: &[&ReplicaSession<D>], members: &mut Members) -> bool {
    let Some(since) = members.ended.iter().map(|(_, since)| *since).max() else { return false };
    let counted: BTreeSet<NodeId> =
        members.silent.iter().chain(&members.ended).map(|(node, _)| *node).collect();
    let is_quiet = |session: &&&ReplicaSession<D>| {
        let counts = session.node == c.me.node
            || session.state == SessionState::Failed
            || counted.contains(&session.node);
        !counts && session.last_answer <= since && session.alive < since
    };
    let quiet: Vec<_> =
        sessions.iter().filter(is_quiet).map(|session| (session.node, session.last_answer)).collect();
    let count = quiet.len() + members.silent.len() + members.ended.len();
    if quiet.is_empty() || 2 * count <= members.all.len() || left_out(Rule::S1) || left_out(Rule::S1Ended) {
        return false;
    }
    if now.since(since) < c.times.heartbeat_ns {
        return true;
    }
    members.silent.extend(quiet);
    false
}

/// A group of which a member does not answer.
struct Doubted {
    index: GroupIndex,
    members: Members,
    /// The members to exclude: nothing has arrived from them for too long, or they have failed.
    gone: BTreeSet<ReplicaId>,
    /// Whether another member answers. If none does, any member that answers first is as good as those that are gone.
    answers: bool,
    /// The process of one member has ended, and those of others may be found to have ended in a moment: nothing is decided before that.
    unconfirmed: bool,
}
