//! Commands that give many blocks the same content: WRITE SAME and UNMAP. They are carried out piece by piece.
//!
//! What is given back reads as zeroes, all of it: parts of physical blocks get zeroes that are written.

use std::collections::VecDeque;
use std::ops::Range;

use loadline_base::scsi::operation::WRITE_SAME_16;
use loadline_base::scsi::{Sense, key};
use loadline_san_core::volume::SECTORS;
use loadline_san_device::pool::{BLOCK_BYTES, Pool};

use super::about::About;
use super::cdb::{Extent, u16_at, u32_at, u64_at};
use super::locks::Sharing;
use super::step::{Next, Outcome};
use super::{MOST_SAME, MOST_UNMAP_RANGES, MOST_UNMAPPED, SECTOR};
use crate::block::Operation;

/// The most bytes of a pattern that are written at once.
const CHUNK: u32 = 1 << 20;
/// Bytes of the header of a list of UNMAP, and of each of its descriptors.
const HEADER: usize = 8;
const DESCRIPTOR: usize = 16;

#[derive(Debug)]
enum Content {
    /// It is given back.
    Nothing,
    /// Its space stays allocated.
    Zeroes,
    Pattern(Box<[u8; SECTOR as usize]>),
}

/// A command that gives blocks the same content.
#[derive(Debug)]
pub(super) struct WriteSame {
    rest: VecDeque<Extent>,
    content: Content,
    /// The most blocks of a pattern at once.
    chunk: u32,
}

/// The blocks of a WRITE SAME.
pub(super) fn extent_of(cdb: &[u8; 16], about: &About) -> Result<Extent, Sense> {
    let extent = Extent::of(cdb, about)?.at_most(MOST_SAME, cdb)?;
    match extent.sectors {
        0 => Err(Sense::in_command(if cdb[0] == WRITE_SAME_16 { 10 } else { 7 })),
        _ => Ok(extent),
    }
}

/// Whether a WRITE SAME comes without data: it writes zeroes (NDOB).
pub(super) fn has_no_data(cdb: &[u8; 16]) -> bool {
    cdb[0] == WRITE_SAME_16 && cdb[1] & 0x01 != 0
}

impl WriteSame {
    /// A WRITE SAME with this block of data, or with zeroes.
    pub(super) fn new(cdb: &[u8; 16], extent: Extent, data: Option<&[u8]>, about: &About) -> WriteSame {
        let pattern = data.filter(|data| data.iter().any(|byte| *byte != 0));
        let content = match pattern {
            Some(data) => Content::Pattern(Box::new(data.try_into().expect("one block of data"))),
            None if cdb[1] & 0x08 != 0 => Content::Nothing,
            None => Content::Zeroes,
        };
        let chunk = about.most.min(CHUNK) / SECTOR;
        WriteSame { rest: VecDeque::from([extent]), content, chunk }
    }

    /// An UNMAP by its list. Nothing is done if any of it is wrong.
    pub(super) fn unmap(list: &[u8], about: &About) -> Result<WriteSame, Sense> {
        const LENGTH: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x1a, 0x00);
        if list.len() < HEADER {
            return Err(LENGTH);
        }
        let bytes = usize::from(u16_at(list, 2));
        let descriptors = list.get(HEADER..HEADER + bytes).ok_or(LENGTH)?;
        if descriptors.len() / DESCRIPTOR > MOST_UNMAP_RANGES as usize {
            return Err(Sense::in_parameters(2));
        }
        let (mut rest, mut sum) = (VecDeque::new(), 0);
        for (index, descriptor) in descriptors.chunks_exact(DESCRIPTOR).enumerate() {
            let extent =
                Extent { sector: u64_at(descriptor, 0), sectors: u32_at(descriptor, 8) }.within(about)?;
            sum += u64::from(extent.sectors);
            if sum > u64::from(MOST_UNMAPPED) {
                return Err(Sense::in_parameters((HEADER + DESCRIPTOR * index + 8) as u16));
            }
            if extent.sectors > 0 {
                rest.push_back(extent);
            }
        }
        Ok(WriteSame { rest, content: Content::Nothing, chunk: 0 })
    }

    /// The first step: all of its blocks are locked. Nothing is to be done for none.
    pub(super) fn begin(&self) -> Next {
        let first = self.rest.iter().map(|extent| extent.sector).min();
        let end = self.rest.iter().map(|extent| extent.range().end).max();
        match first.zip(end) {
            Some((first, end)) => Next::Lock(Range { start: first, end }, Sharing::Shared),
            None => Next::good(),
        }
    }

    /// The next piece. A pattern needs a pool.
    pub(super) fn go_on(&mut self, pool: Option<&Pool>) -> Outcome {
        let Some(extent) = self.rest.front_mut() else { return Ok(Next::good()) };
        let (operation, sectors) = match &self.content {
            Content::Nothing => give_back(*extent),
            Content::Zeroes => (Operation::WriteZeroes, extent.sectors),
            Content::Pattern(pattern) => {
                let sectors = extent.sectors.min(self.chunk);
                let blocks = (sectors as usize * pattern.len()).div_ceil(BLOCK_BYTES) as u32;
                let Some(mut data) = pool.and_then(|pool| pool.take(blocks).ok()) else {
                    return Ok(Next::busy());
                };
                data.bytes_mut()
                    .chunks_exact_mut(pattern.len())
                    .for_each(|sector| sector.copy_from_slice(&pattern[..]));
                (Operation::Write(data), sectors)
            }
        };
        let piece = Extent { sector: extent.sector, sectors };
        extent.sector += u64::from(sectors);
        extent.sectors -= sectors;
        if extent.sectors == 0 {
            self.rest.pop_front();
        }
        Ok(Next::Block(operation, piece))
    }
}

/// How the first blocks of an extent are given back, and how many: whole physical blocks are trimmed, others get zeroes.
fn give_back(extent: Extent) -> (Operation, u32) {
    let physical = SECTORS as u32;
    let before = (extent.sector.next_multiple_of(SECTORS) - extent.sector) as u32;
    let whole = extent.sectors / physical * physical;
    match (before, whole) {
        (1.., _) => (Operation::WriteZeroes, before.min(extent.sectors)),
        (0, 1..) => (Operation::Trim, whole),
        (0, 0) => (Operation::WriteZeroes, extent.sectors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::testing::{about, pool};

    fn pieces(mut same: WriteSame, pool: &Pool) -> Vec<(&'static str, u64, u32)> {
        let mut pieces = Vec::new();
        while let Next::Block(operation, extent) = same.go_on(Some(pool)).unwrap() {
            let name = match operation {
                Operation::Trim => "trim",
                Operation::WriteZeroes => "zeroes",
                Operation::Write(_) => "write",
                other => panic!("{other:?}"),
            };
            pieces.push((name, extent.sector, extent.sectors));
        }
        pieces
    }

    fn list(ranges: &[(u64, u32)]) -> Vec<u8> {
        let bytes = (16 * ranges.len()) as u16;
        let mut list = [(bytes + 6).to_be_bytes(), bytes.to_be_bytes(), [0; 2], [0; 2]].concat();
        for (sector, sectors) in ranges {
            list.extend(sector.to_be_bytes());
            list.extend(sectors.to_be_bytes());
            list.extend([0; 4]);
        }
        list
    }

    #[test]
    fn whole_blocks_are_given_back_and_parts_of_blocks_get_zeroes() {
        let (about, pool) = (about(), pool());
        let unmap = |ranges: &[(u64, u32)]| pieces(WriteSame::unmap(&list(ranges), &about).unwrap(), &pool);
        assert_eq!(unmap(&[(0, 16)]), [("trim", 0, 16)]);
        assert_eq!(unmap(&[(3, 20)]), [("zeroes", 3, 5), ("trim", 8, 8), ("zeroes", 16, 7)]);
        assert_eq!(unmap(&[(3, 2), (9, 0), (16, 1)]), [("zeroes", 3, 2), ("zeroes", 16, 1)]);
        assert_eq!(unmap(&[]), []);
    }

    #[test]
    fn a_list_that_is_too_long_or_beyond_the_end_is_refused_as_a_whole() {
        let about = about();
        let refused = |list: &[u8]| WriteSame::unmap(list, &about).unwrap_err();
        assert_eq!(refused(&list(&[(0, 8), (about.sectors(), 1)])).code, (0x21, 0));
        assert_eq!(refused(&list(&vec![(0, 0); MOST_UNMAP_RANGES as usize + 1])), Sense::in_parameters(2));
        let large = About { bytes: 1 << 40, ..about.clone() };
        let sum = [(0, MOST_UNMAPPED), (8, 1)];
        assert_eq!(WriteSame::unmap(&list(&sum), &large).unwrap_err(), Sense::in_parameters(32));
        assert_eq!(refused(&[0; 7]).code, (0x1a, 0));
        assert_eq!(refused(&list(&[(0, 8)])[..20]).code, (0x1a, 0));
    }

    #[test]
    fn a_pattern_is_written_in_portions_and_zeroes_are_not_written_as_data() {
        let (about, pool) = (About { most: 4096, ..about() }, pool());
        let extent = Extent { sector: 1, sectors: 20 };
        let (mut keeps, mut frees) = ([0; 16], [0; 16]);
        (keeps[0], frees[0], frees[1]) = (WRITE_SAME_16, WRITE_SAME_16, 0x08);
        let same =
            |cdb: &[u8; 16], byte| pieces(WriteSame::new(cdb, extent, Some(&[byte; 512]), &about), &pool);
        assert_eq!(same(&keeps, 7), [("write", 1, 8), ("write", 9, 8), ("write", 17, 4)]);
        assert_eq!(same(&frees, 7), same(&keeps, 7), "what does not read as zeroes cannot be given back");
        assert_eq!(same(&keeps, 0), [("zeroes", 1, 20)]);
        assert_eq!(same(&frees, 0), [("zeroes", 1, 7), ("trim", 8, 8), ("zeroes", 16, 5)]);
        let without = pieces(WriteSame::new(&keeps, extent, None, &about), &pool);
        assert_eq!(without, [("zeroes", 1, 20)]);
        assert_eq!(extent_of(&keeps, &about), Err(Sense::in_command(10)));
    }
}
