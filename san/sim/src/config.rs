//! The configuration store: one record, changed by compare-and-swap, with answers that come late or not at all.

use loadline_san_core::record::{Record, State};
use loadline_san_core::swap::Answer;

use crate::oracle::Violation;
use crate::wire;
use crate::world::{Happening, Question, US, World, show};

impl World {
    fn is_lonely(&self, node: usize) -> bool {
        self.lonely.contains(&node) || self.is_out(node) && self.lasting.lonely
    }

    /// A node's process asks.
    pub(crate) fn ask(&mut self, node: usize, life: u64, question: Question) {
        if self.is_lonely(node) || self.rng.chance(self.weather.config_loses) {
            return;
        }
        let delay = 100 * US + self.rng.below(self.weather.config_slowest);
        self.after(delay, Happening::Config(node, life, question));
    }

    /// A question arrives.
    pub(crate) fn ask_config(&mut self, node: usize, life: u64, question: Question) {
        let now = self.record().clone();
        let answer = match &question {
            Question::Look(_) => Ok(now),
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
        let unheard = self.is_lonely(node) || self.deaf.contains(&node);
        if unheard || self.rng.chance(self.weather.config_loses) {
            self.coverage.count("situation", "answer of the configuration store lost");
            return;
        }
        let delay = 100 * US + self.rng.below(self.weather.config_slowest);
        self.after(delay, Happening::ConfigAnswer(node, life, question, answer));
    }

    fn commit(&mut self, record: Record) {
        self.say(|| format!("committed {}", show(&record)));
        let grown = record.blocks > self.record().blocks;
        if grown {
            self.history.grow(record.blocks * 8);
        }
        if record.groups.len() > self.record().groups.len() {
            self.coverage.count("situation", "group opened by growth");
        }
        if record.state == State::Active {
            if self.record().state == State::TakingOver {
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
