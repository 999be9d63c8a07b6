//! WRITE, and WRITE AND VERIFY without a comparison.

use loadline_san_device::pool::BlocksMut;

use super::cdb::Extent;
use super::locks::Sharing;
use super::step::{Next, Outcome};
use crate::block::Operation;

/// A command that writes what the initiator sends.
#[derive(Debug)]
pub(super) struct Write {
    extent: Extent,
    data: Option<BlocksMut>,
    /// It is read back: its checksums are verified.
    verifies: bool,
}

impl Write {
    pub(super) fn new(extent: Extent, verifies: bool) -> Write {
        Write { extent, data: None, verifies }
    }

    pub(super) fn data(&mut self, data: BlocksMut) -> Outcome {
        self.data = Some(data);
        Ok(Next::Lock(self.extent.range(), Sharing::Shared))
    }

    pub(super) fn locked(&mut self) -> Outcome {
        Ok(match self.data.take() {
            Some(data) => Next::Block(Operation::Write(data), self.extent),
            None => Next::busy(),
        })
    }

    pub(super) fn carried_out(&mut self) -> Outcome {
        if std::mem::take(&mut self.verifies) {
            return Ok(Next::Block(Operation::Read, self.extent));
        }
        Ok(Next::good())
    }
}
