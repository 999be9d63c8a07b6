//! Questions of nodes to each other, and their answers, as they are in the configuration store.

use std::collections::BTreeSet;

/// A question: the number of the asking process and of the question, and the nodes that are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::scale) struct Question {
    pub(super) life: u64,
    pub(super) number: u64,
    pub(super) of: BTreeSet<usize>,
}

/// An answer to a question of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::scale) struct Reached {
    pub(super) by: usize,
    pub(super) question: (u64, u64),
    pub(super) nodes: BTreeSet<usize>,
}
