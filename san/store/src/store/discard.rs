//! Emptying a store that was found damaged (rules C12 and DDiscard).
//!
//! ```text
//! page: promise, next content, nothing in the log ─▶ slots that could not be read, as free ─▶ reported
//! ```
//!
//! Until the page is durable a start finds the damage as before: nothing else is written, and nothing is destaged. After
//! that nothing counts that was there. A slot that could not be read is written after the page: written before it, as free,
//! it would hide the damage while the old content counts.

use loadline_san_core::ids::Position;
use loadline_san_core::message::Promise;
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_core::store::Command;

use crate::io::Data;
use crate::store::{Current, Health, Store};

impl<D: Data> Store<D> {
    /// Everything is forgotten but the promise, which is kept with it.
    pub(crate) fn begin_discard(&mut self, promise: Promise, after: Position) {
        // A round would bring what the log has to its places, and free it, past what cannot be read. None is under way: a store
        // that was found damaged has done nothing.
        let quiet = self.destage.hold();
        assert!(quiet, "nothing was destaged before");
        self.health = Health::Well;
        self.meta.state.promise = promise;
        self.begin_generation();
        if left_out(Rule::DDiscard) {
            let change = self.changed();
            self.current = Current::WriteMeta(change, None);
            self.queue.push_front(Command::Return { after, empty: true });
            return;
        }
        self.begin_return(after, true);
    }
}
