//! Watching a volume: it is taken over if that is requested, or if no node serves it.
//!
//! No node serves it if no member that can be reached has granted a lease for a while, nor was asked to be sealed: a takeover in
//! progress is left alone. The node with most of the volume begins at once, and the others later, one after the other, in case that
//! node is dead too: so two watching nodes rarely begin together.
//!
//! Before anything is proposed, replicas report which owner they follow: a promise above the record's epoch, or of another history, shows a
//! configuration store that went back in time (rule P4). Replicas that have left the set are asked too: they may follow an owner that only
//! a newer record names.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::silence::{Members, Verdict, last_heard};
use super::{Action, Context};
use crate::ids::{Epoch, Incarnation, NodeId, ReplicaId};
use crate::lease::Moment;
use crate::message::{FromOwner, FromReplica, ToOwner, ToReplica};
use crate::record::{Group, Record};
use crate::rule::{Rule, left_out};

/// The state of a node that watches a volume: when the volume was last known to be served, and when a takeover may begin.
#[derive(Debug)]
pub(super) struct Watch {
    /// The earliest moment of the next try: another node may be taking over, or a try of this node has failed.
    not_before: Moment,
    /// Since when no node is known to serve it.
    quiet_since: Option<Moment>,
    /// The record's epoch that was seen, and since when.
    seen: (Epoch, Moment),
    /// When the members were first and last probed, and their answers since: nanoseconds without a lease.
    first_asked: Option<Moment>,
    asked: Option<Moment>,
    /// How often they were probed. At the first probe a connection may be missing.
    rounds: u32,
    answers: BTreeMap<ReplicaId, u64>,
    /// When the last message of each replica arrived.
    heard: BTreeMap<ReplicaId, Moment>,
    /// Replicas whose device has failed or whose store is damaged. They send no other answer.
    failed: BTreeSet<ReplicaId>,
}

/// Whose turn it is to take a volume over: how many nodes come before this one. First those that have most replicas in sync, so
/// that reads are local; the one that owned it last. Nodes without any come after all of these, together: one of them is first at the
/// store.
fn turn(c: &Context, record: &Record) -> u64 {
    let in_sync = record.groups.iter().flat_map(|group| &group.in_sync);
    let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
    for home in in_sync.filter_map(|replica| record.homes.get(replica)) {
        *counts.entry(*home).or_default() += 1;
    }
    let place = |node: NodeId| {
        let count = counts.get(&node).copied().unwrap_or(0);
        (node == record.owner.node, Reverse(count), node)
    };
    let mine = place(c.me.node);
    counts.keys().filter(|node| place(**node) < mine).count() as u64
}

impl Watch {
    pub(super) fn new(now: Moment) -> Watch {
        Watch {
            not_before: now,
            quiet_since: None,
            seen: (Epoch(0), now),
            first_asked: None,
            asked: None,
            rounds: 0,
            answers: BTreeMap::new(),
            heard: BTreeMap::new(),
            failed: BTreeSet::new(),
        }
    }

    /// Of a node that has served the volume: when it last heard of each replica.
    pub(super) fn after(now: Moment, heard: impl Iterator<Item = (ReplicaId, Moment)>) -> Watch {
        Watch { heard: heard.collect(), ..Watch::new(now) }
    }

    pub(super) fn message<D>(&mut self, now: Moment, from: &FromReplica, message: &ToOwner<D>) {
        self.heard.insert(from.replica, now);
        match message {
            ToOwner::Probed { quiet_ns, .. } => {
                self.answers.insert(from.replica, *quiet_ns);
                self.failed.remove(&from.replica);
            }
            ToOwner::Failed | ToOwner::Damaged => {
                self.failed.insert(from.replica);
            }
            _ => {}
        }
    }

    /// When the last message of each replica arrived, as far as this node knows.
    pub(super) fn heard(&self) -> &BTreeMap<ReplicaId, Moment> {
        &self.heard
    }

    /// It is not taken over before this moment.
    pub(super) fn leave_alone(&mut self, until: Moment) {
        self.not_before = self.not_before.max(until);
    }

    /// Whether it is to be taken over now.
    pub(super) fn tick<D>(
        &mut self,
        c: &mut Context,
        now: Moment,
        attached: bool,
        watching: bool,
        out: &mut Vec<Action<D>>,
    ) -> bool {
        if !attached && !watching || c.is_undecided() {
            return false;
        }
        let Some(record) = c.record() else {
            c.read_record(now, out);
            return false;
        };
        if c.promised > record.epoch && !left_out(Rule::P4) {
            // Either the record that is known here is old, or what the store holds is.
            c.read_record(now, out);
            return false;
        }
        if attached {
            // A member that has fallen silent since has not answered.
            let heard = &self.heard;
            self.answers.retain(|replica, _| {
                heard.get(replica).is_some_and(|then| now.since(*then) < 2 * c.times.resend_ns)
            });
            if now >= self.not_before && (left_out(Rule::P4) || self.have_answered(c, record, now)) {
                match self.judge(c, now, true, out) {
                    Verdict::Without | Verdict::Tie => return true,
                    Verdict::Wait => {}
                    Verdict::Yield => self.leave_alone(now.after(c.times.quiet_ns / 2)),
                }
            }
            let Some(record) = c.record() else { return false };
            if self.asked.is_none_or(|then| now.since(then) >= c.times.resend_ns) {
                self.ask(c, record, now, out);
                // Its members may be others by now.
                c.read_record(now, out);
            }
            return false;
        }
        if self.seen.0 != record.epoch {
            self.seen = (record.epoch, now);
        }
        let quiet = c.times.quiet_ns;
        if self.asked.is_some_and(|then| now.since(then) < quiet / 4) {
            return false;
        }
        // The time for which no member of the group has had a message of an owner: the shortest one that its members report.
        let quiet_of = |group: &Group| {
            let answers = group.in_sync.iter().filter_map(|replica| self.answers.get(replica));
            answers.min().copied()
        };
        let everywhere = record.groups.iter().all(|group| quiet_of(group).is_some());
        // An owner that reaches only some groups serves no client.
        let is_quiet = everywhere
            && record.groups.iter().any(|group| quiet_of(group) >= Some(quiet))
            && now.since(self.seen.1) >= quiet
            && now >= self.not_before;
        let turn = turn(c, record) * (quiet / 2);
        let verdict = if is_quiet { self.judge(c, now, false, out) } else { Verdict::Wait };
        let Some(record) = c.record() else { return false };
        self.answers.clear();
        self.ask(c, record, now, out);
        if !is_quiet {
            self.quiet_since = None;
        } else if now.since(*self.quiet_since.get_or_insert(now)) >= turn {
            match verdict {
                Verdict::Without => {
                    self.quiet_since = None;
                    self.not_before = now.after(quiet / 2 + c.random(quiet));
                    return true;
                }
                Verdict::Tie | Verdict::Yield => self.quiet_since = None,
                Verdict::Wait => {}
            }
        }
        c.read_record(now, out);
        false
    }

    /// What follows from the silence of members, over all groups (rule S1). If others hold as many members as this node reaches, it
    /// claims the volume only if that was ordered, or if the last owner does not run elsewhere. The last owner's node is asked too,
    /// because an owner need not have a copy.
    fn judge<D>(&self, c: &mut Context, now: Moment, asked_for: bool, out: &mut Vec<Action<D>>) -> Verdict {
        let Context { swap: Some(swap), silence, times, ended, me, .. } = c else { return Verdict::Wait };
        let record = swap.settled();
        let owner = record.owner.node;
        // Since when members are silent is not known here.
        let last_answer = last_heard(now, times);
        let mut worst = Verdict::Without;
        for group in &record.groups {
            let all: Vec<NodeId> = group.in_sync.iter().map(|replica| record.homes[replica]).collect();
            let mut members = Members { all, ..Members::default() };
            let answers =
                |replica: &&ReplicaId| self.answers.contains_key(*replica) || self.failed.contains(*replica);
            for replica in group.in_sync.iter().filter(|replica| !answers(replica)) {
                members.without(record.homes[replica], last_answer, ended);
            }
            let mut verdict = silence.judge(now, times, &members, out);
            if verdict == Verdict::Tie {
                let elsewhere = !asked_for && owner != me.node;
                verdict = match elsewhere.then(|| silence.runs(now, times, (owner, last_answer), out)) {
                    None | Some(Some(false)) => Verdict::Without,
                    Some(Some(true)) => Verdict::Tie,
                    Some(None) => Verdict::Wait,
                };
            }
            worst = match (worst, verdict) {
                (Verdict::Wait, _) | (_, Verdict::Wait) => Verdict::Wait,
                (Verdict::Yield, _) | (_, Verdict::Yield) => Verdict::Yield,
                (Verdict::Tie, _) | (_, Verdict::Tie) => Verdict::Tie,
                (Verdict::Without, Verdict::Without) => Verdict::Without,
            };
        }
        worst
    }

    /// Whether the replicas have answered which owner they follow: all of them, or after a while at least one member of each group. A
    /// takeover that reaches no member of some group could not continue.
    fn have_answered(&self, c: &Context, record: &Record, now: Moment) -> bool {
        let since = self.first_asked.is_some_and(|then| now.since(then) >= c.times.resend_ns);
        let waited = since && self.rounds > 1;
        let answered = |replica: &&ReplicaId| self.answers.contains_key(*replica);
        let silent = |replica: &&ReplicaId| {
            self.failed.contains(*replica) || c.ended.contains_key(&record.homes[*replica])
        };
        let mut left = record.groups.iter().flat_map(|group| group.departed.keys());
        if !waited && !left_out(Rule::P4All) && !left.all(|replica| answered(&replica) || silent(&replica)) {
            return false;
        }
        record.groups.iter().all(|group| {
            let count = group.in_sync.iter().filter(answered).count();
            let others = group.in_sync.iter().filter(|replica| !answered(replica));
            count > 0 && (waited || count + others.filter(silent).count() >= group.in_sync.len())
        })
    }

    fn ask<D>(&mut self, c: &Context, record: &Record, now: Moment, out: &mut Vec<Action<D>>) {
        self.asked = Some(now);
        self.rounds = self.rounds.saturating_add(1);
        self.first_asked.get_or_insert(now);
        let all = record.homes.iter().map(|(replica, node)| (*replica, *node));
        let members = record.members().filter(|_| left_out(Rule::P4All));
        for (replica, node) in all.filter(|_| !left_out(Rule::P4All)).chain(members) {
            let header = FromOwner {
                volume: c.volume,
                replica,
                owner: c.me,
                epoch: record.epoch,
                session: 0,
                process: Incarnation(0),
            };
            out.push(Action::Send { to: node, header, message: ToReplica::Probe });
        }
    }
}
