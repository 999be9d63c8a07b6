//! What a verified unit carries in its first 40 bytes.
//!
//! ```text
//!  0  magic          8
//!  8  journal id     8
//! 16  byte offset    8
//! 24  generation     4
//! 28  zero           8
//! 36  CRC32C         4   of the whole unit, with this field zero
//! ```
//! Little-endian. What follows is the profile's data.

const MAGIC: u64 = u64::from_le_bytes(*b"LLvrfy01");
const CRC_AT: usize = 36;
const TAG: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) journal: u64,
    pub(super) offset: u64,
    pub(super) generation: u32,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum TagError {
    Untagged,
    Checksum { stored: u32, computed: u32 },
}

impl Tag {
    pub(super) fn write(&self, unit: &mut [u8]) {
        unit[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        unit[8..16].copy_from_slice(&self.journal.to_le_bytes());
        unit[16..24].copy_from_slice(&self.offset.to_le_bytes());
        unit[24..28].copy_from_slice(&self.generation.to_le_bytes());
        unit[28..TAG].fill(0);
        let crc = loadline_base::crc::crc32c(unit);
        unit[CRC_AT..TAG].copy_from_slice(&crc.to_le_bytes());
    }

    pub(super) fn read(unit: &[u8]) -> Result<Tag, TagError> {
        let eight = |at: usize| u64::from_le_bytes(unit[at..at + 8].try_into().expect("eight bytes"));
        let four = |at: usize| u32::from_le_bytes(unit[at..at + 4].try_into().expect("four bytes"));
        if eight(0) != MAGIC {
            return Err(TagError::Untagged);
        }
        let stored = four(CRC_AT);
        let head = loadline_base::crc::crc32c(&unit[..CRC_AT]);
        let computed =
            loadline_base::crc::crc32c_append(loadline_base::crc::crc32c_append(head, &[0; 4]), &unit[TAG..]);
        if stored != computed {
            return Err(TagError::Checksum { stored, computed });
        }
        Ok(Tag { journal: eight(8), offset: eight(16), generation: four(24) })
    }
}
