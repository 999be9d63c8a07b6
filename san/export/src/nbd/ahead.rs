//! Receiving what is likely: who has sent writes of one length for a while goes on so. Their data is received where it stays, and
//! each head beside it; from the stage it would have to be copied once more.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use loadline_base::nbd::Request;
use loadline_san_device::pool::{BlocksMut, Pool};

/// Writes that are received so at once, at most.
pub(super) const MOST: usize = 16;

/// A write that may come: its head, and room for its data.
#[derive(Debug)]
struct Likely {
    head: [u8; Request::BYTES],
    into: BlocksMut,
}

/// Writes of one length that were likely, as they were received: head and data by turns, whatever they turn out to be.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Bytes of data of each.
    length: usize,
    /// Those of which something was received, and that were not taken.
    likely: VecDeque<Likely>,
    /// Bytes received in all of them: all are full but the last.
    bytes: usize,
}

impl Ahead {
    /// Room for so many writes of so many bytes. `None` if there is no memory.
    pub(super) fn new(writes: usize, length: usize, pool: &Pool) -> Option<Ahead> {
        let blocks = length.div_ceil(loadline_san_device::pool::BLOCK_BYTES) as u32;
        let likely = (0..writes.min(MOST))
            .map(|_| Some(Likely { head: [0; Request::BYTES], into: pool.take(blocks).ok()? }))
            .collect::<Option<_>>()?;
        Some(Ahead { length, likely, bytes: 0 })
    }

    /// Where the next bytes are to be received, in this order.
    pub(super) fn spaces(&mut self) -> impl Iterator<Item = IoSliceMut<'_>> {
        let length = self.length;
        self.likely.iter_mut().flat_map(move |likely| {
            [IoSliceMut::new(&mut likely.head), IoSliceMut::new(&mut likely.into.bytes_mut()[..length])]
        })
    }

    /// So many bytes were received there; the room for others is given back.
    pub(super) fn received(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.likely.truncate(bytes.div_ceil(Request::BYTES + self.length));
    }

    /// Writes of which something was received.
    pub(super) fn writes(&self) -> usize {
        self.likely.len()
    }

    /// The next head, if all of it is there.
    pub(super) fn head(&self) -> Option<&[u8; Request::BYTES]> {
        self.likely.front().filter(|_| self.bytes >= Request::BYTES).map(|likely| &likely.head)
    }

    /// Bytes of data that its head is of, if it is as was likely.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The next write, whose head [was there](Self::head) and is of so much data: the data, and how much of it was received.
    /// Where that is not all, nothing is left.
    pub(super) fn take(&mut self) -> (BlocksMut, usize) {
        let likely = self.likely.pop_front().expect("its head was there");
        let filled = (self.bytes - Request::BYTES).min(self.length);
        self.bytes -= Request::BYTES + filled;
        (likely.into, filled)
    }

    /// All bytes, in the order in which they came, to the beginning of the stage. How many.
    pub(super) fn stage(mut self, stage: &mut [u8]) -> usize {
        let (all, mut done) = (self.bytes, 0);
        for space in self.spaces() {
            let some = space.len().min(all - done);
            stage[done..done + some].copy_from_slice(&space[..some]);
            done += some;
        }
        assert_eq!(done, all, "what was received is in them");
        done
    }
}
