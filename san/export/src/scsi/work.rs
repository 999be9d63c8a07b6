//! What a command does when a step of it is complete.

use super::cdb::Extent;
use super::compare::Compare;
use super::reservations::Reservations;
use super::reserve_out::Parameters;
use super::write::Write;
use super::write_same::WriteSame;

/// What is to be done when a step is complete.
#[derive(Debug)]
pub(super) enum Work {
    /// Nothing but the answer.
    Answer,
    /// So many bytes of what was read are the answer.
    Read(usize),
    /// The answer is made of the map of these blocks.
    Status(Extent),
    Write(Write),
    Compare(Compare),
    /// A WRITE SAME of these blocks whose data have not come.
    SameOf(Extent),
    /// An UNMAP whose list has not come.
    Unmap,
    Same(WriteSame),
    Select,
    Reserve(Reserve),
    Ports,
}

/// A PERSISTENT RESERVE OUT.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    pub(super) parameters: Option<Parameters>,
    /// What the change that is under way changes.
    pub(super) from: Reservations,
    pub(super) attempts: u32,
}
