//! Whether a disk has a table of partitions: read from its start, so that a file system is not taken for one.

/// Where a table of the PC has its four entries.
const ENTRIES: usize = 446;
const ENTRY: usize = 16;
/// The kind of an entry that stands for a table by GUID.
const PROTECTIVE: u8 = 0xee;

/// Whether the start of a disk has a table of partitions that names a first one.
pub(crate) fn has_first(start: &[u8]) -> bool {
    if start.get(510..512) != Some(&[0x55, 0xaa]) {
        return false;
    }
    let entries = || start[ENTRIES..510].chunks_exact(ENTRY);
    // Where a boot program is in the place of a table, these bytes are part of it.
    if entries().any(|entry| entry[0] & 0x7f != 0) {
        return false;
    }
    if entries().any(|entry| entry[4] == PROTECTIVE) {
        // Behind a sector of 512 bytes, or of 4 KiB.
        return [512, 4096].iter().any(|at| start.get(*at..*at + 8) == Some(b"EFI PART"));
    }
    let first = &start[ENTRIES..ENTRIES + ENTRY];
    let number = |at: usize| u32::from_le_bytes(first[at..at + 4].try_into().expect("four bytes"));
    first[4] != 0 && number(8) != 0 && number(12) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entry: &[u8]) -> Vec<u8> {
        let mut start = vec![0; 8192];
        start[ENTRIES..ENTRIES + entry.len()].copy_from_slice(entry);
        start[510..512].copy_from_slice(&[0x55, 0xaa]);
        start
    }

    const LINUX: [u8; 16] = [0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 2, 0];

    #[test]
    fn a_table_names_a_first_partition_or_is_none() {
        assert!(has_first(&table(&LINUX)));
        assert!(!has_first(&table(&[])), "an empty table");
        assert!(!has_first(&[0; 8192]) && !has_first(&[]) && !has_first(&[0x55; 511]));
        let mut boot = LINUX;
        boot[0] = 0x33;
        assert!(!has_first(&table(&boot)), "a boot program");
        let mut only_second = [0; 32];
        only_second[16..].copy_from_slice(&LINUX);
        assert!(!has_first(&table(&only_second)));
    }

    #[test]
    fn a_table_by_guid_is_one_if_its_header_is_there() {
        let mut entry = LINUX;
        (entry[0], entry[4]) = (0, PROTECTIVE);
        let mut start = table(&entry);
        assert!(!has_first(&start));
        start[4096..4104].copy_from_slice(b"EFI PART");
        assert!(has_first(&start));
    }
}
