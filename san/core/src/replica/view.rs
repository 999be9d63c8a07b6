//! What a replica reports of itself at this moment, for a status. Nothing here changes it.

use super::Replica;
use crate::message::Promise;

/// A replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The owner that it follows, and the highest epoch that it knows of that owner or has promised.
    pub follows: Promise,
    /// Its store has failed. It does nothing more before its process is started again.
    pub failed: bool,
    /// Its store was found damaged. It takes no part until it is copied in full, or a person decides.
    pub damaged: bool,
    /// Its device holds an older state than it had, as the record of an owner has shown (rule R9). The same.
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
