//! Random secrets, and what the console keeps of them.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a secret.
const LENGTH: usize = 32;

/// A random secret of 256 bits. Its debug form does not show it.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// A new one.
    pub fn new() -> Secret {
        let mut bytes = [0; LENGTH];
        SystemRandom::new().fill(&mut bytes).expect("the system has random bytes");
        Secret(URL_SAFE_NO_PAD.encode(bytes))
    }

    /// The secret as text: 43 letters, digits, `-` and `_`.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }
}

impl Default for Secret {
    fn default() -> Secret {
        Secret::new()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The SHA-256 of a secret. A secret of 256 random bits cannot be found from it, so that no slower function is needed.
#[derive(Clone, Copy)]
pub struct Digest([u8; LENGTH]);

impl Digest {
    /// That of a secret.
    pub fn of(secret: &str) -> Digest {
        Digest::of_bytes(secret.as_bytes())
    }

    /// That of some bytes: a certificate.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Digest {
        let digest = digest(&SHA256, bytes);
        Digest(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// The digest with these 64 hexadecimal digits; `None` if the text has others.
    pub fn read(text: &str) -> Option<Digest> {
        if text.len() != 2 * LENGTH || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; LENGTH];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Digest(bytes))
    }

    /// Its bytes, as a key of a table.
    pub(crate) fn bytes(&self) -> [u8; LENGTH] {
        self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest")
    }
}

/// All bytes are compared, so that the time does not show where two differ.
impl PartialEq for Digest {
    fn eq(&self, other: &Digest) -> bool {
        let differs =
            self.0.iter().zip(&other.0).fold(0, |differs, (a, b)| std::hint::black_box(differs | (a ^ b)));
        differs == 0
    }
}

impl Eq for Digest {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_random_and_is_known_by_its_digest_alone() {
        let [one, other] = [Secret::new(), Secret::new()];
        assert_ne!(one.text(), other.text());
        assert_eq!(one.text().len(), 43);
        assert_eq!(format!("{one:?}{:?}", one.digest()), "SecretDigest");
        assert!(one.digest() == Digest::of(one.text()) && one.digest() != other.digest());
    }

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Digest::of("key");
        assert_eq!(Digest::read(&digest.to_string()), Some(digest));
        let text = digest.to_string();
        for wrong in ["", &text[1..], &format!("{text}0"), &text.replace(&text[..1], "g"), &"é".repeat(32)] {
            assert_eq!(Digest::read(wrong), None, "{wrong}");
        }
        // One bit anywhere makes another one.
        for at in 0..LENGTH {
            let mut other = digest;
            other.0[at] ^= 1;
            assert!(other != digest, "{at}");
        }
    }
}
