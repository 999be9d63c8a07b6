//! What may be concluded from the silence of others (rule S1 of `docs/explanation/san-rules.md`).
//!
//! A node that receives nothing from half of a group's members or more cannot tell whether they have failed or whether it is
//! cut off itself. So before it continues without them, it asks their nodes through the configuration store whether they
//! run, and which nodes they reach.
//!
//! ```text
//!  silent: less than half ────────────────────────────────────────────────▶ without them
//!  silent: half or more ──▶ ask ──┬─ those that run and reach each other
//!                                 │  have more members ────────────────────▶ yield
//!                                 ├─ they have as many ─────────────────────▶ tie
//!                                 └─ they have fewer, or did not answer in time ─▶ without them
//! ```
//!
//! Nodes of members whose processes seem to have ended are asked only if more than half of the members have ended or are silent
//! (rule S1Ended).
//!
//! No promise depends on it: whatever is concluded, a set changes by a swap only. It decides which side serves.

use std::collections::{BTreeMap, BTreeSet};

use super::{Action, Times};
use crate::ids::NodeId;
use crate::lease::Moment;
use crate::rule::{Rule, left_out};

/// What follows from the silence of some members of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The nodes are asked, and still have time to answer.
    Wait,
    /// Other nodes hold more members of the group than this node reaches, and are to serve it.
    Yield,
    /// Other nodes hold as many members as this node reaches.
    Tie,
    /// This node may continue without the silent members.
    Without,
}

/// The nodes that were asked, and what they have answered.
#[derive(Debug)]
pub(super) struct Silence {
    /// This node.
    me: NodeId,
    /// When each node was last asked, and how long it has to answer.
    asked: BTreeMap<NodeId, (Moment, u64)>,
    /// For each node, when the question was sent that it answered last, and which nodes it reaches. `None`: it did not answer in
    /// time, and the store was read after that.
    answers: BTreeMap<NodeId, (Moment, Option<BTreeSet<NodeId>>)>,
}

/// The moment after which a node must be asked if it is not known when it was last heard, and it does not answer now.
pub(super) fn last_heard(now: Moment, times: &Times) -> Moment {
    Moment(now.0.saturating_sub(2 * times.answer_ns))
}

/// A group's members by the nodes that have them, as this node finds them.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// The node of each member.
    pub(super) all: Vec<NodeId>,
    /// The node of each member that is silent, and is not known to have ended or failed; and when the last message of it arrived. A
    /// question from before that proves nothing about this silence.
    pub(super) silent: Vec<(NodeId, Moment)>,
    /// The node of each member whose process has ended, and when that was found out.
    pub(super) ended: Vec<(NodeId, Moment)>,
}

impl Members {
    /// The members whose nodes are to be asked before they are excluded, if so many are silent that it may be this node that is cut
    /// off; and since when they are silent.
    fn doubtful(&self) -> Vec<(NodeId, Moment)> {
        let together = self.silent.len() + self.ended.len();
        if 2 * together > self.all.len() && !left_out(Rule::S1) && !left_out(Rule::S1Ended) {
            return self.silent.iter().chain(&self.ended).copied().collect();
        }
        if !self.silent.is_empty() && 2 * self.silent.len() >= self.all.len() && !left_out(Rule::S1) {
            return self.silent.clone();
        }
        Vec::new()
    }

    /// A member does not answer, and its device has not failed.
    pub(super) fn without(&mut self, node: NodeId, last_answer: Moment, ended: &BTreeMap<NodeId, Moment>) {
        match ended.get(&node) {
            Some(since) => self.ended.push((node, *since)),
            None => self.silent.push((node, last_answer)),
        }
    }

    /// How long they have to answer.
    fn answer_ns(&self, times: &Times) -> u64 {
        if 2 * self.silent.len() > self.all.len() { times.most_answer_ns } else { times.answer_ns }
    }
}

impl Silence {
    pub(super) fn new(me: NodeId) -> Silence {
        Silence { me, asked: BTreeMap::new(), answers: BTreeMap::new() }
    }

    /// A node has answered: it runs, and reaches these nodes.
    pub(super) fn answered(&mut self, by: NodeId, reaches: BTreeSet<NodeId>) {
        if let Some((asked, _)) = self.asked.get(&by) {
            self.answers.insert(by, (*asked, Some(reaches)));
        }
    }

    /// A node had time to answer, and did not.
    pub(super) fn not_answered(&mut self, by: NodeId) {
        if let Some((asked, _)) = self.asked.get(&by)
            && self.answers.get(&by).is_none_or(|(when, _)| when < asked)
        {
            self.answers.insert(by, (*asked, None));
        }
    }

    /// Whether a node runs, by its last answer. It is asked if it was not asked lately, or not since this moment. `None` until it
    /// has answered, or its time to answer is over.
    pub(super) fn runs<D>(
        &mut self,
        now: Moment,
        times: &Times,
        node: (NodeId, Moment),
        out: &mut Vec<Action<D>>,
    ) -> Option<bool> {
        self.ask(now, times, &[node], times.answer_ns, out);
        self.answers.get(&node.0).map(|(_, reaches)| reaches.is_some())
    }

    /// Which nodes a node reaches, if it runs.
    fn reach(&self, node: NodeId) -> Option<&BTreeSet<NodeId>> {
        self.answers.get(&node).and_then(|(_, reaches)| reaches.as_ref())
    }

    /// Asks about members that may soon have been silent for too long, so that the answers are there then.
    pub(super) fn expect<D>(
        &mut self,
        now: Moment,
        times: &Times,
        members: &Members,
        out: &mut Vec<Action<D>>,
    ) {
        self.ask(now, times, &members.doubtful(), members.answer_ns(times), out);
    }

    /// What follows from the silence of these members.
    pub(super) fn judge<D>(
        &mut self,
        now: Moment,
        times: &Times,
        members: &Members,
        out: &mut Vec<Action<D>>,
    ) -> Verdict {
        let doubtful = members.doubtful();
        if doubtful.is_empty() {
            return Verdict::Without;
        }
        self.ask(now, times, &doubtful, members.answer_ns(times), out);
        let silent: Vec<NodeId> = doubtful.iter().map(|(node, _)| *node).collect();
        let reached = members.all.len() - silent.len();
        let verdict = |others_run| match self.largest_side(&silent, others_run) {
            theirs if theirs > reached => Verdict::Yield,
            theirs if theirs == reached => Verdict::Tie,
            _ => Verdict::Without,
        };
        // An answer that cannot change the verdict is not waited for: a node that has ended needs all of its time. While the store is away
        // nothing is known, and nothing could be changed.
        match (verdict(false), verdict(true)) {
            (least, most) if least == most => least,
            _ => Verdict::Wait,
        }
    }

    /// Asks these nodes, if one was not asked lately, or before it fell silent, or had less time to answer than it has now. Then all
    /// are asked together: if they were asked one after the other, each could be without an answer while the other has one. The
    /// answer of a node that need not be asked yet counts until its next answer.
    fn ask<D>(
        &mut self,
        now: Moment,
        times: &Times,
        nodes: &[(NodeId, Moment)],
        within_ns: u64,
        out: &mut Vec<Action<D>>,
    ) {
        let is_due = |(node, last_answer): &&(NodeId, Moment)| match self.asked.get(node) {
            None => true,
            Some((asked, _)) if asked < last_answer && !left_out(Rule::S1Anew) => true,
            Some((_, within)) if *within < within_ns => true,
            Some((asked, within)) => {
                // A node that has answered may answer something else by now; one that has not may still answer.
                let lasts = if self.reach(*node).is_some() { times.answer_ns } else { *within };
                now.since(*asked) >= 2 * lasts.max(times.resend_ns / 4)
            }
        };
        let due: BTreeSet<NodeId> = nodes.iter().filter(is_due).map(|(node, _)| *node).collect();
        if due.is_empty() {
            return;
        }
        let all: BTreeSet<NodeId> = nodes.iter().map(|(node, _)| *node).collect();
        for node in &all {
            let within =
                self.asked.get(node).filter(|_| !due.contains(node)).map_or(0, |(_, within)| *within);
            self.asked.insert(*node, (now, within_ns.max(within)));
        }
        self.answers.retain(|node, _| !due.contains(node));
        out.push(Action::QueryNodes { nodes: all.into_iter().collect(), within_ns });
    }

    /// The most members that nodes have which answered and all reach each other, and not this node. One that reaches this node is
    /// not cut off from it: it is silent for another reason, such as a device that it does not find. `others_run`: nodes that may still
    /// answer count as ones that reach all others, and not this node; otherwise as ones that do not run.
    fn largest_side(&self, silent: &[NodeId], others_run: bool) -> usize {
        let may_answer = |node: &NodeId| others_run && !self.answers.contains_key(node);
        let cut_off = |node: &NodeId| {
            may_answer(node) || self.reach(*node).is_some_and(|reaches| !reaches.contains(&self.me))
        };
        let nodes: BTreeSet<NodeId> = silent.iter().copied().filter(cut_off).collect();
        let nodes: Vec<NodeId> = nodes.into_iter().collect();
        let reach = |one: NodeId, other: NodeId| {
            one == other
                || may_answer(&one)
                || self.reach(one).is_some_and(|reaches| reaches.contains(&other))
        };
        // A group has three members, and a few more while some move.
        let few = nodes.len().min(8);
        let sides = (1u32..1 << few).map(|chosen| {
            let side = || (0..few).filter(move |at| chosen & 1 << at != 0).map(|at| nodes[at]);
            let stands = side().all(|one| side().all(|other| reach(one, other)));
            let has = |node: &&NodeId| side().any(|one| one == **node);
            if stands { silent.iter().filter(has).count() } else { 0 }
        });
        sides.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times { answer_ns: 100, most_answer_ns: 300, ..Times::of_lease(1600) };

    fn nodes(ids: &[u32]) -> Vec<NodeId> {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    fn members(all: &[u32], silent: &[u32], last_answer: u64) -> Members {
        let silent = nodes(silent).into_iter().map(|node| (node, Moment(last_answer))).collect();
        Members { all: nodes(all), silent, ended: Vec::new() }
    }

    fn judge(silence: &mut Silence, now: u64, all: &[u32], silent: &[u32]) -> (Verdict, usize) {
        let mut out: Vec<Action<()>> = Vec::new();
        let members = members(all, silent, 0);
        (silence.judge(Moment(now), &TIMES, &members, &mut out), out.len())
    }

    fn answers(silence: &mut Silence, by: u32, reaches: &[u32]) {
        silence.answered(NodeId(by), nodes(reaches).into_iter().collect());
    }

    #[test]
    fn one_of_three_that_is_silent_is_excluded_and_not_asked() {
        assert_eq!(judge(&mut Silence::new(NodeId(1)), 0, &[1, 2, 3], &[3]), (Verdict::Without, 0));
    }

    #[test]
    fn two_of_three_that_run_and_reach_each_other_are_yielded_to() {
        let mut silence = Silence::new(NodeId(1));
        assert_eq!(judge(&mut silence, 0, &[1, 2, 3], &[2, 3]), (Verdict::Wait, 1));
        answers(&mut silence, 2, &[3]);
        assert_eq!(judge(&mut silence, 10, &[1, 2, 3], &[2, 3]), (Verdict::Wait, 0));
        answers(&mut silence, 3, &[2]);
        assert_eq!(judge(&mut silence, 20, &[1, 2, 3], &[2, 3]), (Verdict::Yield, 0));
    }

    #[test]
    fn two_of_three_that_do_not_reach_each_other_are_a_tie_each() {
        let mut silence = Silence::new(NodeId(1));
        judge(&mut silence, 0, &[1, 2, 3], &[2, 3]);
        answers(&mut silence, 2, &[3]);
        answers(&mut silence, 3, &[]);
        assert_eq!(judge(&mut silence, 10, &[1, 2, 3], &[2, 3]).0, Verdict::Tie);
    }

    #[test]
    fn those_that_reach_this_node_are_silent_for_another_reason() {
        let mut silence = Silence::new(NodeId(1));
        judge(&mut silence, 0, &[1, 2, 3], &[2, 3]);
        answers(&mut silence, 2, &[1, 3]);
        answers(&mut silence, 3, &[1, 2]);
        assert_eq!(judge(&mut silence, 10, &[1, 2, 3], &[2, 3]).0, Verdict::Without);
    }

    #[test]
    fn those_that_do_not_answer_in_time_are_excluded() {
        let mut silence = Silence::new(NodeId(1));
        assert_eq!(judge(&mut silence, 0, &[1, 2], &[2]), (Verdict::Wait, 1));
        assert_eq!(judge(&mut silence, 199, &[1, 2], &[2]), (Verdict::Wait, 0), "the store may be away");
        assert_eq!(judge(&mut silence, 200, &[1, 2], &[2]), (Verdict::Wait, 1), "it is asked again");
        silence.not_answered(NodeId(2));
        assert_eq!(judge(&mut silence, 210, &[1, 2], &[2]), (Verdict::Without, 0));
        // Its answer comes late, and counts until it is asked again.
        answers(&mut silence, 2, &[]);
        silence.not_answered(NodeId(2));
        assert_eq!(judge(&mut silence, 250, &[1, 2], &[2]), (Verdict::Tie, 0));
        assert_eq!(judge(&mut silence, 400, &[1, 2], &[2]), (Verdict::Wait, 1));
    }

    #[test]
    fn an_answer_that_cannot_change_the_verdict_is_not_waited_for() {
        let mut silence = Silence::new(NodeId(1));
        assert_eq!(judge(&mut silence, 0, &[1, 2, 3], &[2, 3]), (Verdict::Wait, 1));
        answers(&mut silence, 3, &[]);
        assert_eq!(judge(&mut silence, 10, &[1, 2, 3], &[2, 3]), (Verdict::Tie, 0), "2 may run or not");
        let mut silence = Silence::new(NodeId(1));
        judge(&mut silence, 0, &[1, 2, 3], &[2, 3]);
        answers(&mut silence, 3, &[2]);
        assert_eq!(judge(&mut silence, 10, &[1, 2, 3], &[2, 3]).0, Verdict::Wait, "2 may be on its side");
        let mut silence = Silence::new(NodeId(1));
        judge(&mut silence, 0, &[1, 2, 3], &[2, 3]);
        answers(&mut silence, 3, &[1, 2]);
        assert_eq!(judge(&mut silence, 10, &[1, 2, 3], &[2, 3]).0, Verdict::Wait, "2 may be a side alone");
    }

    #[test]
    fn nodes_that_together_hold_most_members_have_longer_to_answer() {
        let mut silence = Silence::new(NodeId(1));
        let mut asked = |now, all: &[u32], silent: &[u32]| {
            let members = members(all, silent, 0);
            let mut out: Vec<Action<()>> = Vec::new();
            silence.judge(Moment(now), &TIMES, &members, &mut out);
            let within = |action: &Action<()>| match action {
                Action::QueryNodes { nodes, within_ns } => (nodes.clone(), *within_ns),
                _ => panic!("{action:?}"),
            };
            out.iter().map(within).collect::<Vec<_>>()
        };
        assert_eq!(asked(0, &[1, 2], &[2]), [(nodes(&[2]), TIMES.answer_ns)]);
        // Of another group it has one of two members that are silent, of three.
        assert_eq!(asked(10, &[1, 2, 3], &[2, 3]), [(nodes(&[2, 3]), TIMES.most_answer_ns)]);
        assert_eq!(asked(300, &[1, 2], &[2]), [], "the longer question is not over");
    }

    #[test]
    fn two_that_fall_silent_one_after_the_other_are_asked_together_from_then_on() {
        // Neither runs. If they were asked separately, each would have an answer while the other is asked again.
        let mut silence = Silence::new(NodeId(1));
        let mut out: Vec<Action<()>> = Vec::new();
        let two = members(&[1, 2], &[2], 0);
        silence.judge(Moment(0), &TIMES, &two, &mut out);
        silence.not_answered(NodeId(2));
        let mut waits = 0;
        let (mut late, step) = (Vec::new(), TIMES.answer_ns / 4);
        for now in (0..80).map(|turn| TIMES.answer_ns + turn * step) {
            late.retain(|(until, node)| {
                if *until <= now {
                    silence.not_answered(*node);
                }
                *until > now
            });
            let four = members(&[1, 4, 2, 3], &[2, 3], 0);
            let verdict = silence.judge(Moment(now), &TIMES, &four, &mut out);
            waits = if verdict == Verdict::Wait { waits + 1 } else { 0 };
            assert!(waits <= 2 * TIMES.answer_ns / step, "it waits for long at {now}");
            for action in out.drain(..) {
                let Action::QueryNodes { nodes, within_ns } = action else { panic!("{action:?}") };
                late.extend(nodes.into_iter().map(|node| (now + within_ns, node)));
            }
        }
    }

    #[test]
    fn two_of_three_that_have_ended_are_asked_and_one_is_not() {
        let judge = |silence: &mut Silence, all: &[u32], silent: &[u32], ended: &[u32]| {
            let mut out: Vec<Action<()>> = Vec::new();
            let ended = nodes(ended).into_iter().map(|node| (node, Moment(0))).collect();
            let members = Members { ended, ..members(all, silent, 0) };
            let verdict = silence.judge(Moment(0), &TIMES, &members, &mut out);
            let within = |action: Action<()>| match action {
                Action::QueryNodes { nodes, within_ns } => (nodes, within_ns),
                action => panic!("{action:?}"),
            };
            (verdict, out.into_iter().map(within).collect::<Vec<_>>())
        };
        for (all, ended) in [(&[1, 2][..], [2]), (&[1, 2, 3], [2])] {
            assert_eq!(judge(&mut Silence::new(NodeId(1)), all, &[], &ended), (Verdict::Without, vec![]));
        }
        for (silent, ended) in [(&[][..], &[2, 3][..]), (&[3], &[2])] {
            let mut silence = Silence::new(NodeId(1));
            let asked = vec![(nodes(&[2, 3]), TIMES.answer_ns)];
            assert_eq!(judge(&mut silence, &[1, 2, 3], silent, ended), (Verdict::Wait, asked));
            answers(&mut silence, 2, &[3]);
            answers(&mut silence, 3, &[2]);
            assert_eq!(judge(&mut silence, &[1, 2, 3], silent, ended).0, Verdict::Yield);
        }
    }

    #[test]
    fn what_was_answered_before_they_fell_silent_does_not_count() {
        let mut silence = Silence::new(NodeId(1));
        assert_eq!(judge(&mut silence, 0, &[1, 2, 3], &[2, 3]).0, Verdict::Wait);
        answers(&mut silence, 2, &[1, 3]);
        answers(&mut silence, 3, &[1, 2]);
        assert_eq!(judge(&mut silence, 10, &[1, 2, 3], &[2, 3]).0, Verdict::Without, "they reach this node");
        // Their messages arrive again, and then stop.
        let mut out: Vec<Action<()>> = Vec::new();
        let later = members(&[1, 2, 3], &[2, 3], 20);
        assert_eq!(silence.judge(Moment(80), &TIMES, &later, &mut out), Verdict::Wait);
        assert_eq!(out.len(), 1, "they are asked anew");
    }

    #[test]
    fn an_answer_that_was_not_asked_for_is_not_taken() {
        let mut silence = Silence::new(NodeId(1));
        answers(&mut silence, 2, &[3]);
        assert_eq!(judge(&mut silence, 0, &[1, 2], &[2]), (Verdict::Wait, 1));
        answers(&mut silence, 3, &[2]);
        silence.not_answered(NodeId(3));
        assert_eq!(judge(&mut silence, 100, &[1, 2], &[2]), (Verdict::Wait, 0));
    }
}
