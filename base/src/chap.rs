//! CHAP as iSCSI uses it, for both ends: how a secret answers a challenge (RFC 1994; RFC 7143, 12.1.3), and how bytes are written as text
//! (RFC 7143, 6.1). The hash is MD5: it is all that every initiator and target has.
//! It must be used for nothing else.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};

/// The number of CHAP with MD5, the value of `CHAP_A`.
pub const MD5: &str = "5";
/// The most bytes of a challenge or an answer (RFC 7143, 12.1.3).
pub const MOST_BYTES: usize = 1024;

/// What answers this challenge with this identifier: `CHAP_R`.
pub fn response(id: u8, secret: &[u8], challenge: &[u8]) -> [u8; 16] {
    Md5::new().chain_update([id]).chain_update(secret).chain_update(challenge).finalize().into()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_challenge_is_the_hash_of_identifier_secret_and_challenge() {
        // RFC 1321, A.5: the hashes of "abc" and of "message digest".
        assert_eq!(encode_binary(&response(b'a', b"b", b"c")), "0x900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            encode_binary(&response(b'm', b"essage ", b"digest")),
            "0xf96b697d7cb7938d525a2f31aaf161d0"
        );
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
