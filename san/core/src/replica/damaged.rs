//! A replica whose store was found damaged by a start.
//!
//! ```text
//!              Seal, of a person ─▶ goes on with what is left
//! damaged ─┬─▶ Return, empty ─────▶ emptied by its store ─▶ returns, as any that is empty
//!          └─▶ anything else ─────▶ "damaged"
//! ```
//!
//! The order to return empty comes only from an owner whose record says that the replica is to be copied in full (rule C12). The
//! replica accepts the order in a session that was opened with this life of its process, from the owner that it follows or a later
//! one.

use super::{Action, Replica, Truncation, Work};
use crate::ids::{Position, Sequence};
use crate::message::{FromOwner, Promise, ToOwner, ToReplica};
use crate::store::Command;

impl Replica {
    /// Handles a message to a replica whose store was found damaged. Returns whether the message is to be handled like any
    /// other now, because a person continues with the replica.
    pub(super) fn takes_damaged<D>(
        &mut self,
        from: &FromOwner,
        message: &ToReplica<D>,
        out: &mut Vec<Action<D>>,
    ) -> bool {
        let to_this_life = from.process == self.process;
        let answer = match message {
            // The store is being emptied: the owner will send the seal again.
            ToReplica::Seal { salvage: true, .. }
                if to_this_life && matches!(self.work, Work::Truncating(..)) =>
            {
                return false;
            }
            ToReplica::Seal { salvage: true, .. } if to_this_life && !self.is_below_promise(from) => {
                self.damaged = false;
                out.push(Action::Store(Command::Salvage));
                return true;
            }
            // The next recovery by force must use an epoch above the promise.
            ToReplica::Seal { salvage: true, .. } if to_this_life => ToOwner::Refused(self.follows()),
            // A deposed owner opens no session.
            ToReplica::Hello { .. } | ToReplica::Return { .. } if self.is_below_promise(from) => {
                ToOwner::Refused(self.follows())
            }
            ToReplica::Hello { .. } => match self.open_session(from) {
                true => ToOwner::Damaged,
                false => return false,
            },
            ToReplica::Return { ownership, from: first, empty: true } if to_this_life => {
                let after = Position { ownership: *ownership, sequence: Sequence(first.0.saturating_sub(1)) };
                self.discard(from, after, out);
                return false;
            }
            _ => ToOwner::Damaged,
        };
        self.answer(from, answer, out);
        false
    }

    /// Empties the replica, by order of an owner whose record says that it is to be copied in full. In one change of the
    /// store, the replica follows that owner and drops what it has.
    fn discard<D>(&mut self, from: &FromOwner, after: Position, out: &mut Vec<Action<D>>) {
        let in_session =
            self.session.as_ref().is_some_and(|s| s.owner == from.owner && s.number == from.session);
        if !in_session || matches!(self.work, Work::Truncating(..)) {
            return;
        }
        self.grants.seal(from.owner);
        self.epoch = self.epoch.max(from.epoch);
        self.promise = Promise { epoch: from.epoch, owner: from.owner };
        self.work = Work::Truncating(Truncation { after, empty: true }, self.sessions);
        out.push(Action::Store(Command::Discard { promise: self.promise, after }));
    }
}
