//! Mode pages: caching (08), control (0A), informational exceptions (1C). D_SENSE and SWP can be changed, for all sessions; they are not
//! saved.

use loadline_base::scsi::operation::{MODE_SELECT_6, MODE_SENSE_6};
use loadline_base::scsi::{Sense, key};

use super::SECTOR;
use super::cdb::{u16_at, u32_at, u64_at};

const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const EXCEPTIONS: u8 = 0x1c;
const ALL_PAGES: u8 = 0x3f;
/// Bits of the control page: descriptors of sense data (byte 2), software write protection (byte 4).
const D_SENSE: u8 = 0x04;
const SWP: u8 = 0x08;
/// Bits of the device-specific parameter.
const WRITE_PROTECTED: u8 = 0x80;
const DPO_FUA: u8 = 0x10;

/// What sessions can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Modes {
    /// Sense data are sent as descriptors.
    pub(super) descriptors: bool,
    /// Nothing is written.
    pub(super) is_protected: bool,
}

impl Modes {
    /// A page as it is now.
    fn page(self, code: u8) -> Vec<u8> {
        match code {
            CACHING => {
                // No write cache: what is acknowledged is durable.
                let mut page = vec![0; 20];
                (page[0], page[1]) = (CACHING, 18);
                page
            }
            CONTROL => {
                let mut page = vec![0; 12];
                (page[0], page[1]) = (CONTROL, 10);
                page[2] = if self.descriptors { D_SENSE } else { 0 };
                // Commands are carried out in any order.
                page[3] = 0x10;
                page[4] = if self.is_protected { SWP } else { 0 };
                page
            }
            _ => {
                let mut page = vec![0; 12];
                // No exceptions are reported.
                (page[0], page[1], page[2]) = (EXCEPTIONS, 10, 0x08);
                page
            }
        }
    }
}

/// The bits of a page that can be changed.
fn changeable(code: u8) -> Vec<u8> {
    let mut page = Modes::default().page(code);
    page[2..].fill(0);
    if code == CONTROL {
        (page[2], page[4]) = (D_SENSE, SWP);
    }
    page
}

/// What MODE SENSE returns, before it is cut to the allocation length.
pub(super) fn sense(cdb: &[u8; 16], modes: Modes, sectors: u64) -> Result<Vec<u8>, Sense> {
    let is_short = cdb[0] == MODE_SENSE_6;
    let (control, code) = (cdb[2] >> 6, cdb[2] & 0x3f);
    let codes: &[u8] = match code {
        CACHING => &[CACHING],
        CONTROL => &[CONTROL],
        EXCEPTIONS => &[EXCEPTIONS],
        ALL_PAGES => &[CACHING, CONTROL, EXCEPTIONS],
        _ => return Err(Sense::in_command(2)),
    };
    if !matches!(cdb[3], 0x00 | 0xff) {
        return Err(Sense::in_command(3));
    }
    let descriptor = match (cdb[1] & 0x08 != 0, cdb[1] & 0x10 != 0) {
        (true, _) => Vec::new(),
        (false, true) => {
            let mut descriptor = sectors.to_be_bytes().to_vec();
            descriptor.extend([0; 4]);
            descriptor.extend(SECTOR.to_be_bytes());
            descriptor
        }
        (false, false) => {
            let mut descriptor = u32::try_from(sectors).unwrap_or(u32::MAX).to_be_bytes().to_vec();
            descriptor.extend(SECTOR.to_be_bytes());
            descriptor
        }
    };
    let mut pages = Vec::new();
    for code in codes {
        pages.extend(match control {
            0 => modes.page(*code),
            1 => changeable(*code),
            2 => Modes::default().page(*code),
            _ => return Err(Sense::new(key::ILLEGAL_REQUEST, 0x39, 0x00)),
        });
    }
    let specific = DPO_FUA | if modes.is_protected { WRITE_PROTECTED } else { 0 };
    let rest = descriptor.len() + pages.len();
    let mut data = match is_short {
        true => vec![(3 + rest) as u8, 0, specific, descriptor.len() as u8],
        false => {
            let long = u8::from(descriptor.len() == 16);
            vec![0, (6 + rest) as u8, 0, specific, long, 0, 0, descriptor.len() as u8]
        }
    };
    data.extend(descriptor);
    data.extend(pages);
    Ok(data)
}

/// Bytes of the parameter list of a MODE SELECT.
pub(super) fn select_length(cdb: &[u8; 16]) -> usize {
    match cdb[0] {
        MODE_SELECT_6 => cdb[4].into(),
        _ => u16_at(cdb, 7).into(),
    }
}

/// Whether the flags of a MODE SELECT are right: it has pages, and they are not saved.
pub(super) fn check_select(cdb: &[u8; 16]) -> Result<(), Sense> {
    match cdb[1] {
        0x10 => Ok(()),
        _ => Err(Sense::in_command(1)),
    }
}

/// What the parameter list of a MODE SELECT makes of the modes: all of it, or nothing.
pub(super) fn select(cdb: &[u8; 16], list: &[u8], modes: Modes, sectors: u64) -> Result<Modes, Sense> {
    const SHORT: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x1a, 0x00);
    let header = if cdb[0] == MODE_SELECT_6 { 4 } else { 8 };
    if list.len() < header {
        return Err(SHORT);
    }
    let is_long = header == 8 && list[4] & 0x01 != 0;
    let (descriptor, at) = match header {
        4 => (usize::from(list[3]), 3),
        _ => (usize::from(u16_at(list, 6)), 6),
    };
    if descriptor != 0 && descriptor != if is_long { 16 } else { 8 } {
        return Err(Sense::in_parameters(at));
    }
    if list.len() < header + descriptor {
        return Err(SHORT);
    }
    if descriptor > 0 {
        let bytes = &list[header..header + descriptor];
        let (blocks, most, length) = match is_long {
            true => (u64_at(bytes, 0), u64::MAX, u32_at(bytes, 12)),
            false => (u32_at(bytes, 0).into(), u32::MAX.into(), u32_at(bytes, 4) & 0x00ff_ffff),
        };
        if ![0, sectors, most].contains(&blocks) {
            return Err(Sense::in_parameters(header as u16));
        }
        if length != SECTOR {
            return Err(Sense::in_parameters((header + descriptor - 4) as u16));
        }
    }
    let (mut modes, mut at) = (modes, header + descriptor);
    while at < list.len() {
        let code = list[at] & 0x7f;
        if ![CACHING, CONTROL, EXCEPTIONS].contains(&code) {
            return Err(Sense::in_parameters(at as u16));
        }
        let (now, mask) = (modes.page(code), changeable(code));
        let page = list.get(at..at + now.len()).ok_or(SHORT)?;
        if page[1] != now[1] {
            return Err(Sense::in_parameters(at as u16 + 1));
        }
        let differs = (2..now.len()).find(|byte| (page[*byte] ^ now[*byte]) & !mask[*byte] != 0);
        if let Some(byte) = differs {
            return Err(Sense::in_parameters((at + byte) as u16));
        }
        if code == CONTROL {
            (modes.descriptors, modes.is_protected) = (page[2] & D_SENSE != 0, page[4] & SWP != 0);
        }
        at += now.len();
    }
    Ok(modes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTORS: u64 = 4096;

    fn cdb(bytes: &[u8]) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        cdb
    }

    #[test]
    fn all_pages_come_in_rising_order_behind_a_header_and_a_block_descriptor() {
        let data = sense(&cdb(&[MODE_SENSE_6, 0, 0x3f, 0, 0xff]), Modes::default(), SECTORS).unwrap();
        assert_eq!(data[..12], [data.len() as u8 - 1, 0, DPO_FUA, 8, 0, 0, 0x10, 0, 0, 0, 2, 0]);
        let codes: Vec<u8> = {
            let (mut codes, mut at) = (Vec::new(), 12);
            while at < data.len() {
                codes.push(data[at]);
                at += 2 + usize::from(data[at + 1]);
            }
            codes
        };
        assert_eq!(codes, [CACHING, CONTROL, EXCEPTIONS]);
        let without = sense(&cdb(&[MODE_SENSE_6, 8, 0x0a, 0, 0xff]), Modes::default(), SECTORS).unwrap();
        assert_eq!((without.len(), without[3], without[4]), (16, 0, CONTROL));
        let long = sense(&cdb(&[0x5a, 0x10, 0x0a, 0, 0, 0, 0, 1, 0]), Modes::default(), SECTORS).unwrap();
        assert_eq!((long[4], long[7], u64_at(&long, 8), u32_at(&long, 20)), (1, 16, SECTORS, 512));
    }

    #[test]
    fn what_was_selected_is_sensed_and_write_protection_is_in_the_header() {
        let changed = Modes { descriptors: true, is_protected: true };
        let data = sense(&cdb(&[MODE_SENSE_6, 8, 0x0a, 0, 0xff]), changed, SECTORS).unwrap();
        assert_eq!(data[2], DPO_FUA | WRITE_PROTECTED);
        // What was sensed is selected as it is.
        let select_6 = cdb(&[MODE_SELECT_6, 0x10, 0, 0, data.len() as u8]);
        assert_eq!(select(&select_6, &data, Modes::default(), SECTORS), Ok(changed));
        let select_10 = cdb(&[0x55, 0x10]);
        let data = sense(&cdb(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 1, 0]), changed, SECTORS).unwrap();
        assert_eq!(select(&select_10, &data, Modes::default(), SECTORS), Ok(changed));
    }

    #[test]
    fn what_cannot_be_changed_is_refused_with_its_byte_and_changes_nothing() {
        let select_6 = cdb(&[MODE_SELECT_6, 0x10]);
        let list = |pages: &[&[u8]]| [&[0, 0, 0, 0][..], &pages.concat()].concat();
        let control = Modes { descriptors: true, ..Modes::default() }.page(CONTROL);
        let mut caching = Modes::default().page(CACHING);
        caching[2] = 0x04;
        let refused = select(&select_6, &list(&[&control, &caching]), Modes::default(), SECTORS);
        assert_eq!(refused, Err(Sense::in_parameters(4 + 12 + 2)));
        let short = select(&select_6, &list(&[&control[..11]]), Modes::default(), SECTORS);
        assert_eq!(short.unwrap_err().code, (0x1a, 0));
        let unknown = select(&select_6, &list(&[&[0x01, 0]]), Modes::default(), SECTORS);
        assert_eq!(unknown, Err(Sense::in_parameters(4)));
        let saved = sense(&cdb(&[MODE_SENSE_6, 0, 0xca, 0, 0xff]), Modes::default(), SECTORS);
        assert_eq!(saved.unwrap_err().code, (0x39, 0));
        let descriptor = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0x10, 0];
        assert_eq!(select(&select_6, &descriptor, Modes::default(), SECTORS), Err(Sense::in_parameters(8)));
    }
}
