//! Who leaves the in-sync set of a volume that is served, and who joins it (rules P1, W3, C5 and S1).

use std::collections::BTreeSet;

use super::Context;
use super::active::Active;
use super::link::{Link, State};
use super::returning::Returning;
use super::silence::{Members, Verdict};
use crate::ids::{Position, ReplicaId};
use crate::layout::GroupIndex;
use crate::lease::Moment;
use crate::record;
use crate::rule::{Rule, left_out};
use crate::volume::Action;

impl<D: Clone> Active<D> {
    /// Proposes what has to change: who does not answer goes, who has come back joins.
    pub(super) fn change_members(&mut self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        if c.is_undecided() {
            return;
        }
        let silent = c.times.silent_ns;
        let is_gone = |c: &Context, link: &Link<D>| {
            link.state == State::Failed || now.since(link.heard) >= silent || link.is_stalled(c, now)
        };
        self.expect_silence(c, now, out);
        let joins = self.returning.values().any(Returning::is_joining);
        if !joins && self.lost.is_empty() && !self.links.iter().any(|link| is_gone(c, link)) {
            // So it is nearly always, and this is asked often.
            return;
        }
        let record = c.record().expect("it owns the volume").clone();
        let mut leave: Vec<(GroupIndex, ReplicaId, Position)> = Vec::new();
        for (index, group) in (0..).zip(&record.groups) {
            let members = || self.links.iter().filter(|link| group.in_sync.contains(&link.replica));
            let gone = |link: &&Link<D>| is_gone(c, link);
            let silent: BTreeSet<ReplicaId> = members().filter(gone).map(|link| link.replica).collect();
            // With nobody left who answers, whoever comes first is as good as the others.
            let somebody = members().any(|link| !silent.contains(&link.replica) && link.is_open());
            if somebody && silent.len() < group.in_sync.len() && self.may_exclude(c, now, group, &silent, out)
            {
                let had = self.had(GroupIndex(index));
                leave.extend(silent.into_iter().map(|replica| (GroupIndex(index), replica, had)));
            }
        }
        let id = c.proposal();
        if !leave.is_empty() {
            let mut next = record.without(id, &leave).expect("members, and not the last ones");
            let failed = self.links.iter().filter(|link| link.state == State::Failed);
            if !left_out(Rule::C9) {
                next = next.copied_in_full(&failed.map(|link| link.replica).collect());
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
            let next = record.emptied(id, &std::mem::take(&mut self.lost));
            c.propose(now, next, out);
            self.follow_record(c, now, out);
            return;
        }
        let ready = self.returning.iter().find(|(replica, returning)| {
            let index = returning.group();
            let durable = self.groups[index.0 as usize].pipeline.durable_on(**replica);
            let must_have = self.acknowledged(index).sequence.max(returning.spared());
            let caught_up = durable >= Some(must_have);
            let departed = record.groups[index.0 as usize].departed.contains_key(replica);
            departed && returning.is_joining() && (caught_up || left_out(Rule::C5))
        });
        if let Some((replica, returning)) = ready
            && let Ok(next) = record.with(id, returning.group(), *replica, returning.promised())
        {
            c.propose(now, next, out);
            self.follow_record(c, now, out);
        }
    }

    /// Whether members of a group that are silent, or have failed, may be excluded now (rule S1).
    fn may_exclude(
        &mut self,
        c: &mut Context,
        now: Moment,
        group: &record::Group,
        gone: &BTreeSet<ReplicaId>,
        out: &mut Vec<Action<D>>,
    ) -> bool {
        // Of two members that are cut off at once, one was heard later than the other.
        let limit = if left_out(Rule::S1Soon) { c.times.silent_ns } else { c.times.silent_ns / 2 };
        let members = self.members(c, now, group, limit);
        if gone.is_empty() {
            return true;
        }
        match c.silence.judge(now, &c.times, &members, out) {
            Verdict::Without => true,
            Verdict::Wait => false,
            // They live, and may still be asked to serve it; this one is, once a client wants something.
            Verdict::Tie => self.unanswered() > 0,
            Verdict::Yield => {
                self.yields = true;
                false
            }
        }
    }

    /// Asks, before it must be decided, whether nodes run from which nothing comes.
    fn expect_silence(&self, c: &mut Context, now: Moment, out: &mut Vec<Action<D>>) {
        let limit = c.times.silent_ns / 2;
        if !self.links.iter().any(|link| now.since(link.heard) >= limit) {
            return;
        }
        let groups = c.record().map_or(Vec::new(), |record| record.groups.clone());
        for group in &groups {
            let members = self.members(c, now, group, limit);
            c.silence.expect(now, &c.times, &members, out);
        }
    }

    /// The nodes of a group's members, and of those from which nothing has come for so long although they are not known to
    /// have failed.
    fn members(&self, c: &Context, now: Moment, group: &record::Group, limit: u64) -> Members {
        let links = || self.links.iter().filter(|link| group.in_sync.contains(&link.replica));
        let is_silent = |link: &&Link<D>| {
            link.state != State::Failed && now.since(link.heard) >= limit && !c.ended.contains(&link.node)
        };
        let silent = links().filter(is_silent).map(|link| (link.node, link.heard)).collect();
        Members { all: links().map(|link| link.node).collect(), silent }
    }
}
