//! Receiving what is likely: a sender of messages of one head and one length of data goes on so for a while. Their data is received
//! where it stays, and each head beside it; from a stage it would have to be copied once more.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use crate::pool::{BLOCK_BYTES, BlocksMut, Pool};
use crate::shape::Shape;

/// Messages that are received so at once, at most.
pub(crate) const MOST: usize = 16;

/// Messages of one shape that were likely, as they were received: head and data by turns, whatever they turn out to be.
#[derive(Debug)]
pub(crate) struct ReceiveAhead {
    shape: Shape,
    /// Room for the heads of all.
    heads: Box<[u8]>,
    /// The first whose head was not taken.
    first: usize,
    /// Room for the data of that one, and of those behind it of which something was received.
    data: VecDeque<BlocksMut>,
    /// Bytes received in all of them: all are full but the last.
    bytes: usize,
}

impl ReceiveAhead {
    /// Room for so many messages of this shape. `None` if there is no memory.
    pub(crate) fn new(messages: usize, shape: Shape, pool: &Pool) -> Option<ReceiveAhead> {
        let messages = messages.min(MOST);
        let blocks = shape.data.div_ceil(BLOCK_BYTES) as u32;
        let data = (0..messages).map(|_| pool.take(blocks).ok()).collect::<Option<_>>()?;
        Some(ReceiveAhead { shape, heads: vec![0; messages * shape.head].into(), first: 0, data, bytes: 0 })
    }

    /// Where the next bytes are to be received, in this order.
    pub(crate) fn spaces(&mut self) -> impl Iterator<Item = IoSliceMut<'_>> {
        let Shape { head, data } = self.shape;
        let heads = self.heads.chunks_exact_mut(head).skip(self.first);
        heads.zip(&mut self.data).flat_map(move |(head, into)| {
            [IoSliceMut::new(head), IoSliceMut::new(&mut into.bytes_mut()[..data])]
        })
    }

    /// So many bytes were received there; the room for others is given back.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.data.truncate(bytes.div_ceil(self.shape.bytes()));
    }

    /// Messages of which something was received.
    pub(crate) fn messages(&self) -> usize {
        self.data.len()
    }

    /// The next head, if all of it is there.
    pub(crate) fn head(&self) -> Option<&[u8]> {
        let at = self.first * self.shape.head;
        (self.bytes >= self.shape.head).then(|| &self.heads[at..at + self.shape.head])
    }

    /// What was likely.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// The next message, whose head [was there](Self::head) and is of so much data: the data, and how much of it was received.
    /// Where that is not all, nothing is left.
    pub(crate) fn take(&mut self) -> (BlocksMut, usize) {
        let into = self.data.pop_front().expect("its head was there");
        let filled = (self.bytes - self.shape.head).min(self.shape.data);
        self.bytes -= self.shape.head + filled;
        self.first += 1;
        (into, filled)
    }

    /// All bytes, in the order in which they came, to the beginning of the stage. How many.
    pub(crate) fn stage(mut self, stage: &mut [u8]) -> usize {
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
