//! What devices have done, held back until it is to be known: of a device that is slow on purpose, or that has a model.

use std::collections::BTreeMap;

use loadline_san_core::lease::Moment;
use loadline_san_device::pool::Blocks;
use loadline_san_store::io::{Done, Token};

/// When a device got a request, and when its model says that the request completes, if it has one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub(super) at: Moment,
    pub(super) due: Option<Moment>,
}

/// A completion that is held back.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) token: Token,
    pub(super) done: Done<Blocks>,
    pub(super) begun: Begun,
}

/// Completions of one replica's devices that are held back, in the order in which they are to be known.
#[derive(Debug, Default)]
pub(super) struct HeldBack {
    waiting: BTreeMap<(Moment, u64), Held>,
    /// Of those with the same moment, the first to be held back is the first to be known.
    number: u64,
}

impl HeldBack {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Holds one back until then.
    pub(super) fn hold(&mut self, until: Moment, held: Held) {
        self.number += 1;
        self.waiting.insert((until, self.number), held);
    }

    /// When the next is to be known.
    pub(super) fn next(&self) -> Option<Moment> {
        self.waiting.first_key_value().map(|((until, _), _)| *until)
    }

    /// The next that is to be known by now.
    pub(super) fn take(&mut self, now: Moment) -> Option<Held> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
