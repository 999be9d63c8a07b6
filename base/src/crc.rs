//! CRC32C (Castagnoli, RFC 3720 section 12.1), with the widest instructions that the CPU has.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// The CRC32C of these bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// The CRC32C of bytes that begin with those that `crc` is of, and end with these.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    // A checksum is the state with all bits inverted; so much for what came before.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_standards_give_is_found() {
        // RFC 3720, appendix B.4; and the check value of the catalogue of CRCs.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn parts_give_what_the_whole_gives() {
        let bytes: Vec<u8> = (0..9000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut bitwise = !0u32;
        for (at, byte) in bytes.iter().enumerate() {
            if at % 97 == 0 {
                let (head, tail) = bytes.split_at(at);
                assert_eq!(crc32c(head), !bitwise, "the first {at} bytes");
                assert_eq!(crc32c_append(crc32c(head), tail), crc32c(&bytes), "cut at {at}");
            }
            bitwise ^= u32::from(*byte);
            for _ in 0..8 {
                bitwise = (bitwise >> 1) ^ (0x82f6_3b78 & (bitwise & 1).wrapping_neg());
            }
        }
    }
}
