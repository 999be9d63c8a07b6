//! Where blocks are read to, if it is not a buffer of the pool: memory of another owner, which waits for them there.

use std::any::Any;
use std::fmt;
use std::rc::Rc;

use crate::pool::BLOCK_BYTES;

#[derive(Debug, Clone, Copy)]
struct Span {
    start: *mut u8,
    blocks: usize,
}

/// Spans of memory of another owner, such as a guest, into which blocks are read. The other owner may change the bytes at any time, so this
/// program writes them and never reads them.
pub struct DirectRead {
    /// Keeps the memory mapped.
    _keep: Rc<dyn Any>,
    first: Option<Span>,
    /// Most have one.
    more: Vec<Span>,
}

impl DirectRead {
    /// Nothing yet, in memory that is there as long as this is.
    pub fn new(keep: Rc<dyn Any>) -> DirectRead {
        DirectRead { _keep: keep, first: None, more: Vec::new() }
    }

    /// More blocks, which are to follow those before.
    ///
    /// # Safety
    /// So many blocks from there on may be written as long as what keeps the memory is there, and nothing in this process has a
    /// reference to them.
    pub unsafe fn add(&mut self, start: *mut u8, blocks: usize) {
        let span = Span { start, blocks };
        match self.first {
            None => self.first = Some(span),
            Some(_) => self.more.push(span),
        }
    }

    /// The number of blocks in all spans.
    pub fn blocks(&self) -> usize {
        self.first.iter().chain(&self.more).map(|span| span.blocks).sum()
    }

    /// Where one goes: 4 KiB that may be written, and not be referred to.
    ///
    /// # Panics
    /// If there are not so many.
    pub(crate) fn block(&self, index: usize) -> *mut u8 {
        let mut before = 0;
        for span in self.first.iter().chain(&self.more) {
            if index - before < span.blocks {
                // SAFETY: a block of the span, as was just seen.
                return unsafe { span.start.add((index - before) * BLOCK_BYTES) };
            }
            before += span.blocks;
        }
        panic!("there are no {index} blocks where these are read to");
    }
}

impl fmt::Debug for DirectRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectRead").field("blocks", &self.blocks()).finish_non_exhaustive()
    }
}
