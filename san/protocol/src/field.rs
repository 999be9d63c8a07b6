//! Values that cannot be. An encoder and its decoder ask the same checks.

use loadline_san_core::layout::MOST_BLOCKS;
use thiserror::Error;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The highest epoch, sequence number or other count. Core adds to them, and panics beyond 2⁶⁴; nothing that comes from
/// outside may bring it there.
pub const MOST_COUNT: u64 = 1 << 62;

/// The most blocks whose data one frame or log record has: 32 MiB, the most that NBD clients send in one request unless
/// told otherwise (the NBD protocol, "Size constraints").
pub const MOST_DATA_BLOCKS: u32 = 8192;

/// A field has a value that it cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{what} is {value}, and {rule}")]
pub struct FieldError {
    /// The field.
    pub what: &'static str,
    /// The value that is stored.
    pub value: u64,
    /// What it must be.
    pub rule: &'static str,
}

/// A part of a format: a struct of bytes that is looked at where it lies, and may have values that cannot be.
pub(crate) trait Wire: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {
    /// Whether all of its values can be.
    fn check(&self) -> Result<(), FieldError>;
}

/// The checksum of a block can be anything.
impl Wire for U32 {
    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

pub(crate) fn require(
    holds: bool,
    what: &'static str,
    value: impl Into<u64>,
    rule: &'static str,
) -> Result<(), FieldError> {
    if holds { Ok(()) } else { Err(FieldError { what, value: value.into(), rule }) }
}

/// Something counted, from 0.
pub(crate) fn count(what: &'static str, value: impl Into<u64>) -> Result<(), FieldError> {
    let value = value.into();
    require(value <= MOST_COUNT, what, value, "must be at most 2^62")
}

/// Something counted, from 1.
pub(crate) fn number(what: &'static str, value: impl Into<u64>) -> Result<(), FieldError> {
    let value = value.into();
    require(value != 0, what, value, "must count from 1")?;
    count(what, value)
}

/// A flag that has a field of its own.
pub(crate) fn flag(what: &'static str, value: impl Into<u64>) -> Result<(), FieldError> {
    let value = value.into();
    require(value <= 1, what, value, "must be 0 or 1")
}

/// At least one block, and none beyond the largest volume.
pub(crate) fn span(start: u64, end: Option<u64>) -> Result<(), FieldError> {
    let end = end.unwrap_or(u64::MAX);
    require(end > start, "the end of a range of blocks", end, "must be above its start")?;
    require(end <= MOST_BLOCKS, "the end of a range of blocks", end, "must be at most 2^44")
}

/// How many blocks of data there are.
pub(crate) fn data_blocks(what: &'static str, blocks: impl Into<u64>) -> Result<(), FieldError> {
    let blocks = blocks.into();
    let holds = (1..=u64::from(MOST_DATA_BLOCKS)).contains(&blocks);
    require(holds, what, blocks, "must be 1 to 8192: split the request")
}
