//! What is received: messages of a head each and, where it has some, of data behind it, which is put where it stays.

use std::io::{self, IoSliceMut};

use crate::pool::{BLOCK_BYTES, BlocksMut, Pool};
use crate::receive_ahead::{self, ReceiveAhead};
use crate::shape::Shape;

/// Bytes that are received and not taken, unless a head is longer.
const STAGE: usize = 256 << 10;
/// Bytes that are received at once: 16 blocks with their heads. They are answered, and their sender goes on, while the rest is
/// received. All 32 of a client at once made a tenth fewer: it and the loop slept in turn.
const TOGETHER: usize = 68 << 10;
/// While as much data as this is missing, nothing else is received; and longer data is not received ahead.
const DIRECT: usize = 16 << 10;
/// After so many messages of one shape, more of them are likely.
const ALIKE: u32 = 8;

/// Data of which something is missing, or that was not asked for since.
#[derive(Debug)]
struct Data {
    into: BlocksMut,
    length: usize,
    filled: usize,
}

/// Receives a stream of messages. Each has a head, which is staged, and possibly data, which is received into its final buffer.
#[derive(Debug)]
pub struct ReceiveBuffer {
    stage: Vec<u8>,
    /// What is received and not taken.
    start: usize,
    end: usize,
    /// Bytes of the next head, if it was not all there.
    wanted: usize,
    /// Of the message whose head was taken.
    data: Option<Data>,
    /// What was received elsewhere, and not taken: then nothing is staged.
    ahead: Option<ReceiveAhead>,
    /// The shape of the last message, and how many in a row had it.
    alike: (Shape, u32),
    /// Messages that may come together.
    together: usize,
}

impl ReceiveBuffer {
    /// These bytes have come already.
    ///
    /// # Panics
    /// If they are more than are received at once.
    pub fn new(rest: &[u8]) -> ReceiveBuffer {
        let mut stage = vec![0; STAGE];
        stage[..rest.len()].copy_from_slice(rest);
        let alike = (Shape { head: 0, data: 0 }, 0);
        ReceiveBuffer {
            stage,
            start: 0,
            end: rest.len(),
            wanted: 0,
            data: None,
            ahead: None,
            alike,
            together: 1,
        }
    }

    /// Receives what comes next: `receive` gets the places for it, in their order, and returns how many bytes came, if any
    /// did. Whether there may be more.
    ///
    /// # Panics
    /// If more have come than there is room for.
    pub fn receive(
        &mut self,
        pool: &Pool,
        receive: impl FnOnce(&mut [IoSliceMut<'_>]) -> Option<usize>,
    ) -> bool {
        if self.ahead.is_some() {
            // The data that was read ahead must be taken first.
            return true;
        }
        let missing = self.data.as_ref().map_or(0, |data| data.length - data.filled);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            let (shape, in_a_row) = self.alike;
            if in_a_row >= ALIKE && (1..=DIRECT).contains(&shape.data) && missing < DIRECT {
                let messages = self.together.min((TOGETHER - missing) / shape.bytes());
                self.ahead = (messages > 0).then(|| ReceiveAhead::new(messages, shape, pool)).flatten();
            }
        }
        self.make_room();
        let mut spaces = [(); 1 + 2 * receive_ahead::MOST].map(|()| IoSliceMut::new(&mut []));
        let direct = self.data.as_mut().map(|data| &mut data.into.bytes_mut()[data.filled..data.length]);
        let mut used = 0;
        if let Some(direct) = direct.filter(|direct| !direct.is_empty()) {
            spaces[0] = IoSliceMut::new(direct);
            used = 1;
        }
        if let Some(ahead) = &mut self.ahead {
            for (space, some) in spaces[used..].iter_mut().zip(ahead.spaces()) {
                *space = some;
                used += 1;
            }
        } else if missing < DIRECT {
            let end = self.stage.len().min(self.end + TOGETHER - missing);
            spaces[used] = IoSliceMut::new(&mut self.stage[self.end..end]);
            used += 1;
        }
        let room: usize = spaces[..used].iter().map(|space| space.len()).sum();
        let Some(bytes) = receive(&mut spaces[..used]) else {
            self.ahead = None;
            return false;
        };
        assert!(bytes <= room, "more was received than there is room for");
        let direct = bytes.min(missing);
        if let Some(data) = &mut self.data {
            data.filled += direct;
        }
        match &mut self.ahead {
            None => self.end += bytes - direct,
            Some(ahead) => {
                ahead.received(bytes - direct);
                self.together = 2 * (ahead.messages() + 1);
                self.ahead.take_if(|ahead| ahead.messages() == 0);
            }
        }
        bytes == room
    }

    /// Room for what is received next, and for a head that was not all there.
    fn make_room(&mut self) {
        if self.start > 0 && self.stage.len() - self.end < STAGE / 4 {
            self.stage.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        // Only twice as much at a time: the length is what the peer states, and it has to send so much first.
        if self.wanted > self.stage.len() - self.start && self.stage.len() - self.end < STAGE / 4 {
            self.stage.resize(self.stage.len() * 2, 0);
        }
    }

    /// The next head, if all of it is there, and no [data](Self::data) is missing. `length` computes how long it is from what there
    /// is, as soon as that is enough to know.
    pub fn head<E>(
        &mut self,
        length: impl Fn(&[u8]) -> Result<Option<usize>, E>,
    ) -> Result<Option<&[u8]>, E> {
        if self.data.is_some() {
            return Ok(None);
        }
        // By its head it is what was likely, or it is staged, as if it had been received there.
        if let Some(ahead) = &self.ahead
            && !matches!(ahead.head().map(&length), Some(Ok(Some(length))) if length == ahead.shape().head)
        {
            self.stage_ahead();
        }
        if let Some(ahead) = &self.ahead {
            return Ok(ahead.head());
        }
        let there = &self.stage[self.start..self.end];
        self.wanted = length(there)?.unwrap_or(0);
        Ok((self.wanted > 0).then(|| there.get(..self.wanted)).flatten())
    }

    fn stage_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            (self.start, self.end) = (0, ahead.stage(&mut self.stage));
        }
    }

    /// Takes the next [head](Self::head), and what is there of the data that follows it. Fails, and takes nothing, if there is no
    /// memory.
    pub fn take(&mut self, shape: Shape, pool: &Pool) -> io::Result<()> {
        if self.ahead.as_ref().is_some_and(|ahead| ahead.shape() != shape) {
            self.stage_ahead();
        }
        self.alike = match self.alike {
            (last, in_a_row) if last == shape => (shape, in_a_row.saturating_add(1)),
            _ => (shape, 1),
        };
        if let Some(ahead) = &mut self.ahead {
            let (into, filled) = ahead.take();
            self.data = Some(Data { into, length: shape.data, filled });
            self.ahead.take_if(|ahead| ahead.messages() == 0);
            return Ok(());
        }
        if shape.data > 0 {
            let into = pool.take(shape.data.div_ceil(BLOCK_BYTES) as u32)?;
            self.data = Some(Data { into, length: shape.data, filled: 0 });
        }
        self.start += shape.head;
        if let Some(Data { into, length, filled }) = &mut self.data {
            *filled = (self.end - self.start).min(*length);
            into.bytes_mut()[..*filled].copy_from_slice(&self.stage[self.start..self.start + *filled]);
            self.start += *filled;
        }
        Ok(())
    }

    /// The data of the message whose head was taken, once all of it is there.
    pub fn data(&mut self) -> Option<BlocksMut> {
        self.data.take_if(|data| data.filled == data.length).map(|data| data.into)
    }

    /// Drops what is there, up to so many bytes. How many.
    pub fn skip(&mut self, bytes: usize) -> usize {
        self.stage_ahead();
        let some = bytes.min(self.end - self.start);
        self.start += some;
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Class;

    #[test]
    fn a_long_head_gets_room_only_as_it_comes() {
        const LONG: usize = 30 << 20;
        let pool = Pool::new(&[Class { blocks: 1, buffers: 1 }]).unwrap();
        let (mut receive_buffer, mut done) = (ReceiveBuffer::new(&[]), 0);
        let said = |there: &[u8]| Ok::<_, io::Error>((there.len() >= 16).then_some(LONG));
        while receive_buffer.head(said).unwrap().is_none() {
            receive_buffer.receive(&pool, |spaces| {
                let room: usize = spaces.iter().map(|space| space.len()).sum();
                assert!(room > 0 && done < LONG, "after {done}");
                done += room.min(LONG - done);
                Some(room.min(LONG))
            });
            assert!(
                receive_buffer.stage.len() <= 2 * (done + STAGE),
                "{} bytes for {done}",
                receive_buffer.stage.len()
            );
        }
        assert_eq!(done, LONG);
    }
}
