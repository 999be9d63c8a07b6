//! What is on its way between nodes: late, lost, doubled, overtaken.

use loadline_san_core::message::ToReplica;

use super::wire;
use super::{Happening, World};
use crate::time::US;
use crate::violation::Violation;

impl World {
    /// Something is sent.
    pub(crate) fn carry(&mut self, from: usize, to: usize, message: Happening) {
        if from == to {
            self.after(0, message);
            return;
        }
        let message = match wire::carried(&message) {
            Ok(message) => message,
            Err(why) => {
                self.fail(Violation::NotSendable(why));
                return;
            }
        };
        let entry = matches!(
            message,
            Happening::ToReplica(_, _, ToReplica::Entry { .. } | ToReplica::OutOfBand { .. })
        );
        let cut = self.cut.contains(&(from, to)) || self.lasting.cut.contains(&(from, to));
        let cut = cut || entry && self.without_entries.contains(&(from, to));
        if cut || self.rng.chance(self.weather.loses) {
            self.trace_event(|| format!("n{from} ✗ n{to}"));
            return;
        }
        if self.rng.chance(self.weather.doubles) {
            let late = self.rng.below(20 * self.weather.slowest);
            self.after(late, message.clone());
        }
        if let Some(late) = self.repeats.get(&(from, to)) {
            self.after(*late, message.clone());
        }
        let slow = self.slow.get(&(from, to)).copied().unwrap_or(0);
        let delay = 20 * US + slow + self.rng.below(self.weather.slowest);
        self.after(delay, message);
    }
}
