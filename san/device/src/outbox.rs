//! Bytes to send: small heads, data where it lies, and zeroes that take no memory.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use crate::pool::Blocks;

/// So much memory is kept to be used again.
const MOST_SPENT: usize = 64;
const LARGEST_SPENT: usize = 64 << 10;
/// Bytes of the longest head: of a chunk, with the offset of its data.
const HEAD: usize = 32;
/// Zeroes, for reads of blocks without data.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Debug)]
enum Part {
    Head { bytes: [u8; HEAD], length: u8 },
    Bytes(Vec<u8>),
    Data { blocks: Blocks, range: Range<usize> },
    Zeroes(usize),
}

impl Part {
    fn length(&self) -> usize {
        match self {
            Part::Head { length, .. } => *length as usize,
            Part::Bytes(bytes) => bytes.len(),
            Part::Data { range, .. } => range.len(),
            Part::Zeroes(bytes) => *bytes,
        }
    }

    /// What of it can be sent at once, from this byte on.
    fn slice(&self, from: usize) -> &[u8] {
        match self {
            Part::Head { bytes, length } => &bytes[from..*length as usize],
            Part::Bytes(bytes) => &bytes[from..],
            Part::Data { blocks, range } => &blocks.bytes()[range.start + from..range.end],
            Part::Zeroes(bytes) => &ZEROES[..(bytes - from).min(ZEROES.len())],
        }
    }
}

/// A queue of bytes to send: it owns small heads, and refers to data in buffers and to zeroes without copying them.
#[derive(Debug, Default)]
pub struct Outbox {
    parts: VecDeque<Part>,
    /// Of the first part, so many bytes are sent.
    sent: usize,
    bytes: usize,
    /// Memory that is used again.
    spent: Vec<Vec<u8>>,
}

impl Outbox {
    /// Bytes that are not sent.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a head, or anything as short.
    ///
    /// # Panics
    /// If it is longer than 32 bytes.
    pub fn head(&mut self, head: &[u8]) {
        let mut bytes = [0; HEAD];
        bytes[..head.len()].copy_from_slice(head);
        self.add(Part::Head { bytes, length: head.len() as u8 });
    }

    /// Adds something longer that is seldom sent.
    pub fn text(&mut self, bytes: Vec<u8>) {
        self.add(Part::Bytes(bytes));
    }

    /// Adds what this writes, behind what was written so before if nothing came between. What it refuses to write leaves all
    /// as it was.
    pub fn write<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        if !matches!(self.parts.back(), Some(Part::Bytes(_))) {
            let memory = self.spent.pop().unwrap_or_default();
            self.parts.push_back(Part::Bytes(memory));
        }
        let Some(Part::Bytes(bytes)) = self.parts.back_mut() else { unreachable!("it was put there") };
        let before = bytes.len();
        let written = write(bytes);
        if written.is_err() {
            bytes.truncate(before);
        }
        self.bytes += bytes.len() - before;
        if bytes.is_empty() {
            self.parts.pop_back();
        }
        written
    }

    /// Adds these bytes of blocks.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn data(&mut self, blocks: Blocks, range: Range<usize>) {
        assert!(range.end <= blocks.bytes().len(), "there are so many");
        self.add(Part::Data { blocks, range });
    }

    /// Adds so many zeroes.
    pub fn zeroes(&mut self, bytes: usize) {
        self.add(Part::Zeroes(bytes));
    }

    fn add(&mut self, part: Part) {
        if part.length() > 0 {
            self.bytes += part.length();
            self.parts.push_back(part);
        }
    }

    /// What is to be sent next, as far as there is room for it. Returns how many slices these are.
    pub fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut used = 0;
        let mut sent = self.sent;
        for part in &self.parts {
            if used == into.len() {
                break;
            }
            let slice = part.slice(sent);
            into[used] = IoSlice::new(slice);
            used += 1;
            if slice.len() < part.length() - sent {
                // There are more zeroes than are sent at once.
                break;
            }
            sent = 0;
        }
        used
    }

    /// So many bytes were sent.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn sent(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "no more is sent than there is");
        self.bytes -= bytes;
        let mut left = bytes;
        while left > 0 {
            let first = self.parts.front().expect("it has all bytes that are counted");
            let rest = first.length() - self.sent;
            if left < rest {
                self.sent += left;
                return;
            }
            left -= rest;
            self.sent = 0;
            if let Some(Part::Bytes(mut bytes)) = self.parts.pop_front()
                && self.spent.len() < MOST_SPENT
                && bytes.capacity() <= LARGEST_SPENT
            {
                bytes.clear();
                self.spent.push(bytes);
            }
        }
    }
}
