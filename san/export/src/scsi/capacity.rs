//! The size of a unit, and which of its blocks hold something: READ CAPACITY, GET LBA STATUS, REPORT LUNS.

use loadline_base::scsi::Sense;
use loadline_san_core::map::{Held, Map};
use loadline_san_core::volume::SECTORS;

use super::SECTOR;
use super::about::About;
use super::cdb::{Extent, u32_at, u64_at};

/// The most blocks that one GET LBA STATUS is about: 4 GiB.
const MOST_STATUS: u64 = 1 << 23;
/// The most descriptors that one returns.
const MOST_DESCRIPTORS: usize = 1024;
const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;

/// What READ CAPACITY(10) returns.
pub(super) fn short(cdb: &[u8; 16], about: &About) -> Result<Vec<u8>, Sense> {
    // Without PMI there is no address.
    if cdb[8] & 0x01 == 0 && u32_at(cdb, 2) != 0 {
        return Err(Sense::in_command(2));
    }
    let last = u32::try_from(about.sectors().saturating_sub(1)).unwrap_or(u32::MAX);
    Ok([last.to_be_bytes(), SECTOR.to_be_bytes()].concat())
}

/// What READ CAPACITY(16) returns, before it is cut to the allocation length.
pub(super) fn long(cdb: &[u8; 16], about: &About) -> Result<Vec<u8>, Sense> {
    if cdb[14] & 0x01 == 0 && u64_at(cdb, 2) != 0 {
        return Err(Sense::in_command(2));
    }
    let mut data = vec![0; 32];
    data[..8].copy_from_slice(&about.sectors().saturating_sub(1).to_be_bytes());
    data[8..12].copy_from_slice(&SECTOR.to_be_bytes());
    // Eight blocks are a physical block.
    data[13] = SECTORS.trailing_zeros() as u8;
    // LBPME and LBPRZ: space can be given back, and reads as zeroes then.
    data[14] = 0xc0;
    Ok(data)
}

/// What REPORT LUNS returns, before it is cut to the allocation length: LUN 0 is the only one.
pub(super) fn luns(cdb: &[u8; 16]) -> Result<Vec<u8>, Sense> {
    if u32_at(cdb, 6) < 16 {
        return Err(Sense::in_command(6));
    }
    match cdb[2] {
        0x00 | 0x02 => Ok([&[0, 0, 0, 8][..], &[0; 12]].concat()),
        // Of well-known units there is none.
        0x01 => Ok(vec![0; 8]),
        _ => Err(Sense::in_command(2)),
    }
}

/// The blocks of which GET LBA STATUS needs a map.
pub(super) fn status_of(cdb: &[u8; 16], about: &About) -> Result<Extent, Sense> {
    let sector = u64_at(cdb, 2);
    let rest = about.sectors().saturating_sub(sector);
    // The first block must be there.
    let sectors = rest.clamp(1, MOST_STATUS) as u32;
    Extent { sector, sectors }.within(about)
}

/// What GET LBA STATUS returns for these blocks by their map.
pub(super) fn status(cdb: &[u8; 16], extent: Extent, map: &Map) -> Vec<u8> {
    let most = (u32_at(cdb, 10) as usize).saturating_sub(8) / 16;
    let most = most.clamp(1, MOST_DESCRIPTORS);
    // The map counts blocks of 4 KiB from the one that has the first sector.
    let base = extent.sector / SECTORS * SECTORS;
    let end = (extent.sector + u64::from(extent.sectors)).min(base + map.until * SECTORS);
    let mut runs: Vec<(u64, u64, u8)> = Vec::new();
    let mut at = extent.sector;
    for (until, held) in map.runs(0..(end - base).div_ceil(SECTORS), &mut 0) {
        let until = (base + until * SECTORS).min(end);
        let status = if held == Held::Nothing { DEALLOCATED } else { MAPPED };
        let is_full = runs.len() == most;
        match runs.last_mut() {
            Some(last) if last.2 == status => last.1 = until,
            _ if is_full => break,
            _ => runs.push((at, until, status)),
        }
        at = until;
    }
    let mut data = ((4 + 16 * runs.len()) as u32).to_be_bytes().to_vec();
    data.extend([0; 4]);
    for (from, until, status) in runs {
        data.extend(from.to_be_bytes());
        data.extend(((until - from) as u32).to_be_bytes());
        data.extend([status, 0, 0, 0]);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::testing::about;

    #[test]
    fn capacity_is_the_last_block_and_both_commands_agree_on_it() {
        let about = about();
        let (short, long) = (short(&[0; 16], &about).unwrap(), long(&[0; 16], &about).unwrap());
        assert_eq!(u64::from(u32_at(&short, 0)), u64_at(&long, 0));
        assert_eq!((u64_at(&long, 0) + 1) * 512, about.bytes);
        assert_eq!((u32_at(&long, 8), long[13], long[14]), (512, 3, 0xc0));
        let large = About { bytes: 4 << 40, ..about };
        assert_eq!(super::short(&[0; 16], &large).unwrap()[..4], [0xff; 4]);
        let mut wrong = [0; 16];
        wrong[5] = 1;
        assert_eq!(super::short(&wrong, &large), Err(Sense::in_command(2)));
    }

    #[test]
    fn runs_of_blocks_that_hold_the_same_are_described_from_the_first_block_on() {
        let about = about();
        let mut cdb = [0; 16];
        cdb[9] = 10;
        cdb[10..14].copy_from_slice(&1000_u32.to_be_bytes());
        let extent = status_of(&cdb, &about).unwrap();
        assert_eq!((extent.sector, u64::from(extent.sectors)), (10, about.sectors() - 10));
        let mut map = Map::from(0);
        for (until, held) in [(2, Held::Data), (3, Held::Zeroes), (5, Held::Nothing), (6, Held::Data)] {
            assert!(map.describe(until, held, usize::MAX));
        }
        let data = status(&cdb, extent, &map);
        let runs: Vec<_> =
            data[8..].chunks_exact(16).map(|of| (u64_at(of, 0), u32_at(of, 8), of[12])).collect();
        assert_eq!(runs, [(10, 22, 0), (32, 16, 1), (48, 8, 0)], "zeroes that were written are mapped");
        assert_eq!(u32_at(&data, 0) as usize, data.len() - 4);
        cdb[10..14].copy_from_slice(&24_u32.to_be_bytes());
        assert_eq!(status(&cdb, extent, &map).len(), 24);
        cdb[2..10].copy_from_slice(&about.sectors().to_be_bytes());
        assert_eq!(status_of(&cdb, &about).unwrap_err().code, (0x21, 0));
    }
}
