//! INQUIRY: what a unit is, and its vital product data (VPD).

use std::mem::size_of;

use loadline_base::scsi::Sense;

use super::about::{About, hex_of};
use super::{MOST_COMPARED, MOST_SAME, MOST_UNMAP_RANGES, MOST_UNMAPPED, SECTOR};

/// The vendor, as configurations of initiators name it.
pub const VENDOR: &[u8; 8] = b"LOADLINE";
/// The product.
pub const PRODUCT: &[u8; 16] = b"VOLUME          ";
const REVISION: &[u8; 4] = b"0001";

const SUPPORTED: u8 = 0x00;
const SERIAL: u8 = 0x80;
const IDENTIFICATION: u8 = 0x83;
const EXTENDED: u8 = 0x86;
const LIMITS: u8 = 0xb0;
const CHARACTERISTICS: u8 = 0xb1;
const PROVISIONING: u8 = 0xb2;

/// Pages of vital product data, in rising order.
const PAGES: [u8; 7] = [SUPPORTED, SERIAL, IDENTIFICATION, EXTENDED, LIMITS, CHARACTERISTICS, PROVISIONING];

/// Blocks of a physical block.
const PHYSICAL: u32 = 8;
/// Blocks that are best read or written at once: of 1 MiB.
const OPTIMAL: u32 = (1 << 20) / SECTOR;
/// The standards that the unit follows: SAM-5, SPC-4, SBC-3, iSCSI.
const STANDARDS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];

/// What INQUIRY returns, before it is cut to the allocation length.
pub(super) fn inquiry(cdb: &[u8; 16], about: &About) -> Result<Vec<u8>, Sense> {
    match (cdb[1] & 0x01 != 0, cdb[2]) {
        (false, 0) => Ok(standard(0x00)),
        (false, _) => Err(Sense::in_command(2)),
        (true, page) => vital(page, about).ok_or(Sense::in_command(2)),
    }
}

/// What INQUIRY returns for a LUN that is not there.
pub(super) fn not_there() -> Vec<u8> {
    standard(0x7f)
}

fn standard(peripheral: u8) -> Vec<u8> {
    let mut data = vec![0; 96];
    // SPC-4; hierarchical LUNs in the format of today; implicit and explicit states of ports; several ports; queues.
    // TPGS: states of ports change by themselves. SET TARGET PORT GROUPS is carried out, and not announced: Linux would send it at a mere
    // login at a node that stands by, and to undo what an administrator has moved.
    data[..8].copy_from_slice(&[peripheral, 0, 0x06, 0x12, 96 - 5, 0x10, 0x10, 0x02]);
    data[8..16].copy_from_slice(VENDOR);
    data[16..32].copy_from_slice(PRODUCT);
    data[32..36].copy_from_slice(REVISION);
    for (place, standard) in data[58..].chunks_exact_mut(size_of::<u16>()).zip(STANDARDS) {
        place.copy_from_slice(&standard.to_be_bytes());
    }
    data
}

fn vital(page: u8, about: &About) -> Option<Vec<u8>> {
    let content = match page {
        SUPPORTED => PAGES.to_vec(),
        SERIAL => serial(about).into_bytes(),
        IDENTIFICATION => identification(about),
        EXTENDED => {
            let mut content = vec![0; 60];
            // Simple, ordered and head-of-queue tasks.
            content[1] = 0x07;
            content
        }
        LIMITS => limits(about),
        CHARACTERISTICS => {
            let mut content = vec![0; 60];
            // It does not rotate.
            content[1] = 0x01;
            content
        }
        // UNMAP and WRITE SAME of both lengths give space back; what was given back reads as zeroes; thin.
        PROVISIONING => vec![0, 0xe4, 0x02, 0],
        _ => return None,
    };
    let mut data = vec![0, page];
    data.extend((content.len() as u16).to_be_bytes());
    data.extend(content);
    Some(data)
}

/// The id of a volume among all clusters, in 32 digits.
fn serial(about: &About) -> String {
    let cluster = (about.cluster >> 64) as u64 ^ about.cluster as u64;
    format!("{cluster:016x}{:016x}", about.volume)
}

/// The name that an administrator gives (NAA 3): 60 bits that both ids have made.
fn local_name(about: &About) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in [about.cluster as u64, (about.cluster >> 64) as u64, about.volume] {
        // The finaliser of splitmix64: each bit of a part changes each bit of the sum with a probability of a half.
        hash ^= part;
        hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^= hash >> 31;
    }
    0x3 << 60 | hash >> 4
}

fn identification(about: &About) -> Vec<u8> {
    let mut content = Vec::new();
    let mut add = |kind: [u8; 2], designator: &[u8]| {
        content.extend([kind[0], kind[1], 0, designator.len() as u8]);
        content.extend_from_slice(designator);
    };
    // Of the unit: a name of 64 bits, and text that begins with the vendor.
    add([0x01, 0x03], &local_name(about).to_be_bytes());
    add([0x02, 0x01], &[&VENDOR[..], serial(about).as_bytes()].concat());
    // Of the port: its number, and its group.
    let [high, low] = about.here.to_be_bytes();
    add([0x51, 0x94], &[0, 0, high, low]);
    add([0x51, 0x95], &[0, 0, high, low]);
    content
}

fn limits(about: &About) -> Vec<u8> {
    let mut content = vec![0; 60];
    let most = about.most_sectors();
    // WRITE SAME needs a length.
    (content[0], content[1]) = (0x01, MOST_COMPARED);
    content[2..4].copy_from_slice(&(PHYSICAL as u16).to_be_bytes());
    content[4..8].copy_from_slice(&most.to_be_bytes());
    content[8..12].copy_from_slice(&most.min(OPTIMAL).to_be_bytes());
    content[16..20].copy_from_slice(&MOST_UNMAPPED.to_be_bytes());
    content[20..24].copy_from_slice(&MOST_UNMAP_RANGES.to_be_bytes());
    content[24..28].copy_from_slice(&PHYSICAL.to_be_bytes());
    // The alignment is valid: 0.
    content[28..32].copy_from_slice(&0x8000_0000_u32.to_be_bytes());
    content[32..40].copy_from_slice(&u64::from(MOST_SAME).to_be_bytes());
    content
}

/// The identifier of an initiator's port as a TransportID: its name and its part of the session's identifier.
pub(super) fn transport_id(initiator: &str, isid: &[u8; 6]) -> Vec<u8> {
    let mut name = format!("{initiator},i,0x{}", hex_of(isid)).into_bytes();
    name.push(0);
    name.resize(name.len().next_multiple_of(4).max(20), 0);
    let mut id = vec![0x45, 0];
    id.extend((name.len() as u16).to_be_bytes());
    id.extend(name);
    id
}

#[cfg(test)]
mod tests {
    use super::super::cdb::{u16_at, u32_at, u64_at};
    use super::*;
    use crate::scsi::testing::about;

    fn page(page: u8) -> Vec<u8> {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[4]) = (0x12, 1, page, 0xff);
        inquiry(&cdb, &about()).unwrap()
    }

    #[test]
    fn each_page_that_is_listed_is_there_and_as_long_as_it_says() {
        let listed = page(SUPPORTED)[4..].to_vec();
        assert!(listed.is_sorted() && listed.len() == PAGES.len());
        for code in listed {
            let data = page(code);
            assert_eq!((data[1], usize::from(u16_at(&data, 2))), (code, data.len() - 4), "{code:02x}");
        }
        let mut cdb = [0; 16];
        (cdb[0], cdb[2]) = (0x12, 0x83);
        assert_eq!(inquiry(&cdb, &about()), Err(Sense::in_command(2)), "a page needs EVPD");
        (cdb[1], cdb[2]) = (1, 0x84);
        assert_eq!(inquiry(&cdb, &about()), Err(Sense::in_command(2)));
    }

    #[test]
    fn standard_data_are_those_of_a_disk_with_several_ports() {
        let data = inquiry(&[0; 16], &about()).unwrap();
        assert_eq!((data[0], data[2], data[3] & 0x0f, usize::from(data[4])), (0, 6, 2, data.len() - 5));
        assert_eq!((data[5] & 0x30, &data[8..16]), (0x10, &b"LOADLINE"[..]));
        assert_eq!(u16_at(&data, 62), 0x04c0);
        assert_eq!(not_there()[0], 0x7f);
    }

    #[test]
    fn limits_are_those_that_commands_are_held_to() {
        let data = page(LIMITS);
        assert_eq!((data.len(), data[4], data[5]), (64, 1, MOST_COMPARED));
        assert_eq!(u32_at(&data, 8), about().most / 512);
        assert_eq!((u32_at(&data, 20), u32_at(&data, 24)), (MOST_UNMAPPED, MOST_UNMAP_RANGES));
        assert_eq!((u32_at(&data, 28), u32_at(&data, 32), u64_at(&data, 36)), (8, 1 << 31, MOST_SAME.into()));
    }

    #[test]
    fn a_unit_has_the_same_names_at_each_port_and_others_than_another_unit() {
        let here = page(IDENTIFICATION);
        assert_eq!((&here[4..8], here[8] >> 4), (&[0x01, 0x03, 0, 8][..], 3));
        let there = About { here: 2, ..about() };
        let there = vital(IDENTIFICATION, &there).unwrap();
        let unit = here.len() - 16;
        assert_eq!(here[..unit], there[..unit]);
        assert_ne!(here[unit..], there[unit..]);
        let other = vital(IDENTIFICATION, &About { volume: about().volume + 1, ..about() }).unwrap();
        assert_ne!(here[8..16], other[8..16]);
        assert_ne!(page(SERIAL), vital(SERIAL, &About { cluster: 1, ..about() }).unwrap());
    }

    #[test]
    fn a_transport_id_is_padded_text_of_name_and_session() {
        let id = transport_id("iqn.2003-01.org.example:a", &[0, 2, 0x3d, 0, 0, 1]);
        assert_eq!((id[0], id.len() % 4, usize::from(u16_at(&id, 2))), (0x45, 0, id.len() - 4));
        assert!(id[4..].starts_with(b"iqn.2003-01.org.example:a,i,0x00023d000001\0"));
    }
}
