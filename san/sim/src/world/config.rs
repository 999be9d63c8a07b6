//! The configuration store: one record, changed by compare-and-swap, with answers that come late or not at all.

use loadline_san_core::ids::NodeId;
use loadline_san_core::record::{Record, RecordState};
use loadline_san_core::swap::Answer;

use super::wire;
use super::{Happening, Question, World, show};
use crate::time::{MS, US};
use crate::violation::Violation;

impl World {
    pub(crate) fn is_cut_from_config(&self, node: usize) -> bool {
        self.cut_from_config.contains(&node) || self.is_out(node) && self.lasting.cut_from_config
    }

    /// A node's process calls the store.
    pub(crate) fn ask(&mut self, node: usize, life: u64, question: Question) {
        if self.is_cut_from_config(node) || self.rng.chance(self.weather.config_loses) {
            return;
        }
        let delay = 100 * US + self.rng.below(self.weather.config_slowest);
        self.after(delay, Happening::Config(node, life, question));
    }

    /// A node asks others, through the configuration store, whether they run and which nodes they reach.
    pub(crate) fn ask_whether_they_run(&mut self, node: usize, life: u64, others: &[NodeId], within: u64) {
        self.coverage.count("situation", "half or more are silent");
        if self.is_cut_from_config(node) {
            return;
        }
        for other in others {
            self.after(within, Happening::NoAnswer(node, life, other.0 as usize));
            if !self.rng.chance(self.weather.config_loses) {
                let delay = 2 * MS + self.rng.below(self.weather.config_slowest);
                self.after(delay, Happening::ReachAsked(node, life, other.0 as usize));
            }
        }
    }

    /// The question arrives: a node that runs tests which nodes it reaches, and answers through the configuration store.
    pub(crate) fn reach_asked(&mut self, by: usize, life: u64, node: usize) {
        let runs = |node: usize| self.nodes[node].process.is_some() && self.nodes[node].paused.is_none();
        if !self.settings.answers
            || !runs(node)
            || self.is_cut_from_config(node)
            || self.is_cut_from_config(by)
        {
            return;
        }
        let passes = |from: usize, to: usize| {
            !self.cut.contains(&(from, to)) && !self.lasting.cut.contains(&(from, to))
        };
        let reaches =
            |other: &usize| *other != node && runs(*other) && passes(node, *other) && passes(*other, node);
        let reaches = (0..self.nodes.len()).filter(reaches).map(|other| NodeId(other as u32)).collect();
        if !self.rng.chance(self.weather.config_loses) {
            let delay = 2 * MS + self.rng.below(self.weather.config_slowest);
            self.after(delay, Happening::Reaches(by, life, node, reaches));
        }
    }

    /// A question arrives.
    pub(crate) fn ask_config(&mut self, node: usize, life: u64, question: Question) {
        let now = self.held().clone();
        let answer = match &question {
            Question::Read(_) => Ok(now),
            Question::Propose(record, replaces) => Err(match now.epoch == *replaces {
                true => {
                    match wire::kept(record) {
                        Ok(record) => self.commit(record),
                        Err(why) => self.fail(Violation::NotSendable(why)),
                    }
                    Answer::Committed
                }
                false => Answer::Refused(now),
            }),
        };
        let lost = self.is_cut_from_config(node) || self.without_config_answers.contains(&node);
        if lost || self.rng.chance(self.weather.config_loses) {
            self.coverage.count("situation", "answer of the configuration store lost");
            return;
        }
        let delay = 100 * US + self.rng.below(self.weather.config_slowest);
        self.after(delay, Happening::ConfigAnswer(node, life, question, answer));
    }

    fn commit(&mut self, record: Record) {
        self.trace_event(|| format!("committed {}", show(&record)));
        if self.goes_on_with_branch(&record) {
            return;
        }
        self.check_restored(&record);
        let grown = record.blocks > self.record().blocks;
        if grown {
            self.history.grow(record.blocks * 8);
        }
        if record.groups.len() > self.record().groups.len() {
            self.coverage.count("situation", "group opened by growth");
        }
        if record.state == RecordState::Active {
            if self.record().state == RecordState::TakingOver {
                self.history.made_equal();
            }
            self.coverage.count("situation", "record active");
        }
        self.config.push(record);
        self.check_emptied();
        self.check_went_back();
        self.check_members();
    }
}
