//! What a replica reports of itself at this moment, for a status. Nothing here changes it.

use super::Replica;
use crate::message::Promise;

/// A replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The owner that the replica follows, and the highest epoch that it has received from that owner or has promised.
    pub follows: Promise,
    /// The store has failed. The replica does nothing more before its process is started again.
    pub failed: bool,
    /// The store was found damaged. The replica takes no part until it is copied in full, or a person continues with it.
    pub damaged: bool,
    /// The device holds an older state than it had, as the record of an owner has shown (rule R9). The replica takes no part until it is
    /// copied in full, or a person continues with it.
    pub went_back: bool,
}

impl Replica {
    /// What it reports.
    pub fn view(&self) -> View {
        View {
            follows: self.follows(),
            failed: self.failed,
            damaged: self.damaged,
            went_back: self.went_back,
        }
    }
}
