//! Data: one value for each sector, which stands for 512 bytes of it.

use std::ops::Deref;
use std::rc::Rc;

use loadline_san_protocol::log::{SECTOR, block_crc};
use loadline_san_store::io::{Address, Data};

/// A block of data: one value for each of its sectors. All zero: a block of zeroes.
pub type Block = [u64; 8];

/// A block of zeroes.
pub const ZERO: Block = [0; 8];

/// Data of consecutive blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    values: Rc<Vec<Block>>,
    /// The bytes of one block, which stand for no values.
    bytes: Option<Rc<[u8; 8 * SECTOR]>>,
}

impl Blocks {
    /// A buffer with these values, eight for each block.
    pub fn new(blocks: Vec<Block>) -> Blocks {
        Blocks { values: Rc::new(blocks), bytes: None }
    }

    /// One block, as data and as bytes.
    pub(super) fn of_bytes(block: Block, bytes: [u8; 8 * SECTOR]) -> Blocks {
        Blocks { values: Rc::new(vec![block]), bytes: Some(Rc::new(bytes)) }
    }
}

impl Deref for Blocks {
    type Target = [Block];

    fn deref(&self) -> &[Block] {
        &self.values
    }
}

/// The bytes that a value stands for.
pub(super) fn bytes_of(value: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    bytes.chunks_exact_mut(8).for_each(|place| place.copy_from_slice(&value.to_le_bytes()));
    bytes
}

fn checksum(block: &Block, of: Address) -> u32 {
    let mut bytes = [0; 8 * SECTOR];
    for (place, value) in bytes.chunks_exact_mut(SECTOR).zip(block) {
        place.copy_from_slice(&bytes_of(*value));
    }
    block_crc(of.volume, of.group, of.block, &bytes)
}

impl Data for Blocks {
    fn checksum(&self, index: u32, of: Address) -> u32 {
        checksum(&self.values[index as usize], of)
    }

    fn take_checksum(&mut self, index: u32, of: Address) -> u32 {
        match &self.bytes {
            Some(bytes) => block_crc(of.volume, of.group, of.block, &bytes[..]),
            None => checksum(&self.values[index as usize], of),
        }
    }
}
