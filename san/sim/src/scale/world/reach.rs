//! Nodes ask each other through the configuration store whether they run and which nodes they reach, as `san/node/src/node/reach.rs` does
//! it: all volumes of a node share one question, and one answer of each node.

use std::collections::{BTreeMap, BTreeSet};

use loadline_san_core::ids::NodeId;
use loadline_san_core::volume::Event;

use super::config::Call;
use super::question::{Question, Reached};
use super::{Happening, World};
use crate::time::{MS, Time};

/// How often a node reads answers while it waits for them.
const POLL_ANSWERS: Time = 40 * MS;
/// A node that does not accept a connection within this time counts as not reached; the asking node sooner.
const REACHES: Time = 250 * MS;
const REACHES_ASKER: Time = 100 * MS;
/// What a node has answered is worth something for so long.
const FRESH: Time = 300 * MS;
/// Volumes that ask within this time for what is known already receive it together.
const TOGETHER: Time = 20 * MS;

/// A node that was asked, and has not answered.
#[derive(Debug, Clone, Copy)]
struct Pending {
    /// The first question that it was asked.
    first: u64,
    /// When the question was in the store.
    asked: Option<Time>,
    within: Time,
}

/// The questions of one node.
#[derive(Debug, Default)]
pub(in crate::scale) struct Asking {
    wanted: BTreeMap<usize, Time>,
    runs: bool,
    number: u64,
    pending: BTreeMap<usize, Pending>,
    answers: BTreeMap<usize, (Time, BTreeSet<usize>)>,
    known: BTreeSet<usize>,
    /// The questions of other nodes that this one has answered.
    answered: BTreeMap<usize, (u64, u64)>,
}

/// The questions and answers in the store.
#[derive(Debug, Default)]
pub(in crate::scale) struct Asked {
    questions: BTreeMap<usize, Question>,
    answers: BTreeMap<(usize, usize), Reached>,
}

impl World {
    fn asking(&mut self, node: usize) -> Option<&mut Asking> {
        self.nodes[node].process.as_mut().map(|process| &mut process.asking)
    }

    /// Asks these nodes for a volume. They have this long to answer.
    pub(in crate::scale) fn want(&mut self, node: usize, of: &[NodeId], within: Time) {
        let now = self.now;
        let Some(process) = &mut self.nodes[node].process else { return };
        let (asking, life) = (&mut process.asking, process.life);
        let mut reports = false;
        for other in of.iter().map(|other| other.0 as usize).filter(|other| *other != node) {
            if asking.answers.get(&other).is_some_and(|(when, _)| now - when < FRESH) {
                reports |= asking.known.is_empty();
                asking.known.insert(other);
            } else if let Some(pending) = asking.pending.get_mut(&other) {
                pending.within = pending.within.max(within);
            } else {
                let wanted = asking.wanted.entry(other).or_default();
                *wanted = within.max(*wanted);
            }
        }
        let begins = !asking.wanted.is_empty() && !std::mem::replace(&mut asking.runs, true);
        if reports {
            self.after(TOGETHER, Happening::Known(node, life));
        }
        if begins {
            self.ask(node, life);
        }
    }

    /// Volumes that have asked since receive what was answered a moment ago.
    pub(in crate::scale) fn report_known(&mut self, node: usize, life: u64) {
        if !self.is_alive(node, life) {
            return;
        }
        let Some(asking) = self.asking(node) else { return };
        let known: Vec<_> = std::mem::take(&mut asking.known)
            .into_iter()
            .filter_map(|other| Some((other, asking.answers.get(&other)?.1.clone())))
            .collect();
        known.into_iter().for_each(|(other, reaches)| self.tell_of(node, other, Some(&reaches)));
    }

    /// All volumes of a node receive an answer, or that there is none.
    fn tell_of(&mut self, node: usize, other: usize, reaches: Option<&BTreeSet<usize>>) {
        let of = NodeId(other as u32);
        let reaches = reaches.map(|nodes| nodes.iter().map(|node| NodeId(*node as u32)).collect());
        let event = || match &reaches {
            Some(reaches) => Event::Reaches(of, BTreeSet::clone(reaches)),
            None => Event::Silent(of),
        };
        for volume in self.volumes_of(node) {
            self.step_volume(node, volume, event());
        }
    }

    /// Goes on until all have answered, or had time to.
    pub(in crate::scale) fn ask(&mut self, node: usize, life: u64) {
        if !self.is_alive(node, life) {
            return;
        }
        let Some(asking) = self.asking(node) else { return };
        let wanted = std::mem::take(&mut asking.wanted);
        if wanted.is_empty() && asking.pending.is_empty() {
            asking.runs = false;
            return;
        }
        let mut question = None;
        if !wanted.is_empty() {
            asking.number += 1;
            let first = asking.number;
            let pending = |(other, within)| (other, Pending { first, asked: None, within });
            asking.pending.extend(wanted.into_iter().map(pending));
            let of = asking.pending.keys().copied().collect();
            question = Some(Question { life, number: first, of });
        }
        let of = asking.pending.keys().copied().collect();
        self.call(node, Call::Ask(question, of));
    }

    /// The store did not answer: a new question is asked anew, under another number.
    pub(in crate::scale) fn not_asked(&mut self, node: usize, question: Option<Question>) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let (asking, life) = (&mut process.asking, process.life);
        if question.is_some() {
            let again = asking.pending.iter().map(|(other, pending)| (*other, pending.within));
            asking.wanted.extend(again);
        }
        self.after(POLL_ANSWERS, Happening::Ask(node, life));
    }

    /// A question is in the store, and these nodes' answers were read.
    pub(in crate::scale) fn asked(&mut self, node: usize, question: Option<Question>, of: &[usize]) {
        let now = self.now;
        let is_new = question.is_some();
        if let Some(question) = question {
            self.asked.questions.insert(node, question);
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let (asking, life) = (&mut process.asking, process.life);
        let mut told = Vec::new();
        for other in of {
            let Some(pending) = asking.pending.get_mut(other) else { continue };
            let said = self.asked.answers.get(&(node, *other));
            let said = said.filter(|said| said.question.0 == life && said.question.1 >= pending.first);
            if let Some(said) = said {
                asking.pending.remove(other);
                asking.answers.insert(*other, (now, said.nodes.clone()));
                told.push((*other, Some(said.nodes.clone())));
            } else if now - *pending.asked.get_or_insert(now) >= pending.within {
                asking.pending.remove(other);
                told.push((*other, None));
            }
        }
        self.after(POLL_ANSWERS, Happening::Ask(node, life));
        if is_new {
            self.notice();
        }
        told.into_iter().for_each(|(other, reaches)| self.tell_of(node, other, reaches.as_ref()));
    }

    /// A node has read the questions of all: it answers those that it is asked. First it tries which nodes it reaches.
    pub(in crate::scale) fn read_questions(&mut self, node: usize) {
        let mut answers = Vec::new();
        for (by, question) in &self.asked.questions {
            let this = (question.life, question.number);
            let Some(process) = &mut self.nodes[node].process else { return };
            let is_new = question.of.contains(&node)
                && *by != node
                && process.asking.answered.insert(*by, this) != Some(this);
            if !is_new {
                continue;
            }
            let (mut nodes, mut delay) = (BTreeSet::new(), MS);
            for other in question.of.iter().chain(std::iter::once(by)).filter(|other| **other != node) {
                if self.cut.contains(&(node, *other)) || self.nodes[*other].is_gone {
                    delay = delay.max(if other == by { REACHES_ASKER } else { REACHES });
                } else if self.nodes[*other].process.is_some() {
                    nodes.insert(*other);
                }
            }
            answers.push((delay, Reached { by: *by, question: this, nodes }));
        }
        let Some(life) = self.nodes[node].process.as_ref().map(|process| process.life) else { return };
        for (delay, answer) in answers {
            self.after(delay, Happening::Answers(node, life, answer));
        }
    }

    /// An answer is in the store.
    pub(in crate::scale) fn write_answer(&mut self, node: usize, reached: Reached) {
        self.asked.answers.insert((reached.by, node), reached);
        self.notice();
    }
}
