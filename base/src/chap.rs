//! CHAP as iSCSI uses it, for both ends: how a secret answers a challenge (RFC 1994; RFC 7143, 12.1.3), and how bytes are written as text
//! (RFC 7143, 6.1). The hash is MD5 (RFC 1321): it is all that every initiator and target has. It must be used for nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The number of CHAP with MD5, the value of `CHAP_A`.
pub const MD5: &str = "5";
/// The most bytes of a challenge or an answer (RFC 7143, 12.1.3).
pub const MOST_BYTES: usize = 1024;

/// What answers this challenge with this identifier: `CHAP_R`.
pub fn response(id: u8, secret: &[u8], challenge: &[u8]) -> [u8; 16] {
    md5(&[&[id], secret, challenge].concat())
}

/// Bytes as the text `0x…`.
pub fn encode_binary(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text takes all");
        text
    })
}

/// The bytes of a text of hexadecimal digits behind `0x`, or of base64 behind `0b`; `None` if it is neither, or has more than `most`
/// bytes. An odd number of hexadecimal digits has a 0 before the first one.
pub fn decode_binary(text: &str, most: usize) -> Option<Vec<u8>> {
    let (kind, rest) = (text.get(..2)?, text.get(2..)?);
    let bytes = match kind {
        "0x" | "0X" if rest.len() <= 2 * most => {
            let digits = rest.bytes().map(|digit| char::from(digit).to_digit(16).map(|value| value as u8));
            let digits = digits.collect::<Option<Vec<u8>>>()?;
            let (first, pairs) = digits.split_at(digits.len() % 2);
            first.iter().copied().chain(pairs.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1])).collect()
        }
        "0b" | "0B" if rest.len() <= most.div_ceil(3) * 4 => STANDARD.decode(rest).ok()?,
        _ => return None,
    };
    (bytes.len() <= most).then_some(bytes)
}

/// How far each step of MD5 rotates: four a round, in turn.
const ROTATIONS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// The MD5 of these bytes.
fn md5(bytes: &[u8]) -> [u8; 16] {
    let mut padded = bytes.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - bytes.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let end = padded.len() - 8;
    padded[end..].copy_from_slice(&(bytes.len() as u64).wrapping_mul(8).to_le_bytes());
    let mut state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476_u32];
    for block in padded.chunks_exact(64) {
        let word = |at: usize| u32::from_le_bytes(block[4 * at..4 * at + 4].try_into().expect("four bytes"));
        let [mut a, mut b, mut c, mut d] = state;
        for step in 0..64 {
            let (mixed, at) = match step / 16 {
                0 => (b & c | !b & d, step),
                1 => (d & b | !d & c, 5 * step + 1),
                2 => (b ^ c ^ d, 3 * step + 5),
                _ => (c ^ (b | !d), 7 * step),
            };
            // The constants are the first bits of the sines of 1, 2, 3, … (RFC 1321, 3.4).
            let constant = (((step + 1) as f64).sin().abs() * 4_294_967_296.0) as u32;
            let sum = a.wrapping_add(mixed).wrapping_add(constant).wrapping_add(word(at % 16));
            let rotated = b.wrapping_add(sum.rotate_left(ROTATIONS[step / 16][step % 4]));
            (a, d, c, b) = (d, c, b, rotated);
        }
        for (sum, part) in state.iter_mut().zip([a, b, c, d]) {
            *sum = sum.wrapping_add(part);
        }
    }
    let mut digest = [0; 16];
    for (bytes, part) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&part.to_le_bytes());
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_standard() {
        // RFC 1321, A.5.
        for (text, hash) in [
            ("", "0xd41d8cd98f00b204e9800998ecf8427e"),
            ("a", "0x0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "0x900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "0xf96b697d7cb7938d525a2f31aaf161d0"),
            ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "0xd174ab98d277d9f5a5611c2c9f419d9f"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "0x57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(encode_binary(&md5(text.as_bytes())), hash, "{text}");
        }
    }

    #[test]
    fn a_text_of_every_length_around_a_block_is_padded() {
        // Each differs from the next, and none panics.
        let hashes: std::collections::HashSet<_> = (0..200).map(|length| md5(&vec![b'x'; length])).collect();
        assert_eq!(hashes.len(), 200);
    }

    #[test]
    fn the_answer_to_a_challenge_is_the_hash_of_identifier_secret_and_challenge() {
        assert_eq!(response(b'a', b"b", b"c"), md5(b"abc"));
    }

    #[test]
    fn bytes_are_read_from_both_notations() {
        assert_eq!(decode_binary("0x00fF", 2), Some(vec![0, 255]));
        assert_eq!(decode_binary("0xabc", 2), Some(vec![0x0a, 0xbc]));
        assert_eq!(decode_binary("0bAP8=", 2), Some(vec![0, 255]));
        assert_eq!(decode_binary(&encode_binary(&[1, 2, 3]), 3), Some(vec![1, 2, 3]));
        for wrong in ["", "0", "0x000102", "0xzz", "0b!!!!", "0bAAEC", "7", "é", "0é"] {
            assert_eq!(decode_binary(wrong, 2), None, "{wrong}");
        }
    }
}
