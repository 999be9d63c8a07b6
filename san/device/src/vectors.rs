//! What both ways of I/O do with requests before the system sees them: check and lay out reads, gather writes.

use std::io;

use loadline_san_core::layout::BLOCK;
use loadline_san_protocol::log::SECTOR;
use loadline_san_store::io::{Area, IoFault, Part, Reading, Writing};
use nix::libc::iovec;

use crate::pool::{BLOCK_BYTES, Blocks, BlocksMut, Pool};

/// The most parts that the system gathers in one write (`IOV_MAX`, `UIO_MAXIOV` of Linux).
pub(crate) const MOST_VECTORS: usize = 1024;
/// How often a call that the system asks to repeat is repeated, before that counts as a fault. Every wait is bounded.
pub(crate) const MOST_TRIES: u32 = 1000;

/// The error of an I/O at this place, as it is reported to a store.
pub(crate) fn failed(area: Area, at: u64, error: io::Error) -> IoFault {
    IoFault::Failed { area, at, error }
}

fn senseless(area: Area, at: u64, what: &'static str) -> IoFault {
    failed(area, at, io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// Whether the pieces of a reading are in the order of its buffer, do not overlap, and fit.
pub(crate) fn is_in_order(reading: &Reading) -> bool {
    let mut filled = 0;
    reading.pieces.iter().all(|piece| {
        let end = piece.first.checked_add(piece.blocks).filter(|end| *end <= reading.blocks);
        let fits = piece.first >= filled && piece.blocks > 0;
        filled = end.unwrap_or(u32::MAX);
        fits && end.is_some()
    })
}

/// The buffer for a reading, with zeroes where no piece is. Fails for pieces that are not in the order of the buffer, overlap
/// or do not fit, and if there is no memory.
pub(crate) fn buffer_for(reading: &Reading, pool: &Pool) -> Result<BlocksMut, IoFault> {
    let (area, at) = reading.pieces.first().map_or((Area::Log, 0), |piece| (piece.area, piece.at));
    let mut buffer = pool.take(reading.blocks).map_err(|error| failed(area, at, error))?;
    let mut filled = 0;
    for piece in &reading.pieces {
        let end = piece.first.checked_add(piece.blocks).filter(|end| *end <= reading.blocks);
        let (Some(end), true) = (end, piece.first >= filled && piece.blocks > 0) else {
            let what = "the pieces of a read are not in order, or do not fit into its buffer: report it";
            return Err(senseless(piece.area, piece.at, what));
        };
        zero(&mut buffer, filled, piece.first);
        in_range(piece.area, piece.at, u64::from(piece.blocks) * BLOCK)?;
        filled = end;
    }
    zero(&mut buffer, filled, reading.blocks);
    Ok(buffer)
}

/// Beyond what the system can name, -1 would mean *where the last I/O ended*.
fn in_range(area: Area, at: u64, bytes: u64) -> Result<(), IoFault> {
    match at.checked_add(bytes).is_some_and(|end| i64::try_from(end).is_ok()) {
        true => Ok(()),
        false => Err(senseless(area, at, "no device is as long as that: report it")),
    }
}

/// Memory of the pool is used again, so it has what others read before.
fn zero(buffer: &mut BlocksMut, from: u32, to: u32) {
    if to > from {
        buffer.some_mut(from, to - from).fill(0);
    }
}

/// Fills `into` with where the bytes of a write are, in order. They are valid until the writing is dropped or changed. Fails
/// for parts that are longer than what they are parts of, and for nothing at all.
pub(crate) fn gather(writing: &Writing<Blocks>, into: &mut Vec<iovec>) -> Result<(), IoFault> {
    into.clear();
    let mut sectors = writing.bytes.iter().as_slice();
    for part in &writing.parts {
        let bytes = match part {
            Part::Bytes(count) => sectors.split_at_checked(*count as usize).map(|(these, others)| {
                sectors = others;
                (these.as_ptr().cast::<u8>(), these.len() * SECTOR)
            }),
            Part::Data { data, first, blocks } => {
                let end = first.checked_add(*blocks).filter(|end| *end <= data.blocks());
                end.map(|_| {
                    let from = &data.bytes()[*first as usize * BLOCK_BYTES..];
                    (from.as_ptr(), *blocks as usize * BLOCK_BYTES)
                })
            }
        };
        let Some((start, length)) = bytes else {
            let what = "a part of a write is longer than what it is a part of: report it";
            return Err(senseless(writing.area, writing.at, what));
        };
        match into.last_mut() {
            _ if length == 0 => {}
            // The kernel takes fewer vectors faster.
            Some(last) if last.iov_base as usize + last.iov_len == start as usize => last.iov_len += length,
            _ => into.push(iovec { iov_base: start.cast_mut().cast(), iov_len: length }),
        }
    }
    in_range(writing.area, writing.at, writing.length())?;
    match into.is_empty() {
        true => Err(senseless(writing.area, writing.at, "a write of nothing: report it")),
        false => Ok(()),
    }
}

/// Takes away what has been written: so many bytes from vector `first` on. Gives the first vector that has any left; or the
/// number of them if none has.
pub(crate) fn advance(vectors: &mut [iovec], mut first: usize, mut bytes: usize) -> usize {
    while let Some(vector) = vectors.get_mut(first).filter(|vector| vector.iov_len <= bytes) {
        bytes -= vector.iov_len;
        first += 1;
    }
    if let Some(vector) = vectors.get_mut(first) {
        vector.iov_base = vector.iov_base.wrapping_byte_add(bytes);
        vector.iov_len -= bytes;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(of: &[usize]) -> Vec<iovec> {
        let memory = std::ptr::without_provenance_mut(4096);
        of.iter().map(|length| iovec { iov_base: memory, iov_len: *length }).collect()
    }

    #[test]
    fn what_was_written_is_taken_away() {
        let mut vectors = lengths(&[512, 4096, 512]);
        assert_eq!(advance(&mut vectors, 0, 512 + 1024), 1);
        assert_eq!((vectors[1].iov_base as usize, vectors[1].iov_len), (4096 + 1024, 3072));
        assert_eq!(advance(&mut vectors, 1, 3072), 2);
        assert_eq!(advance(&mut vectors, 2, 512), 3);
        assert_eq!(advance(&mut vectors, 3, 0), 3);
    }
}
