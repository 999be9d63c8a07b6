//! One direction of a connection: bytes are sealed, or opened, with a key and the number of their record (RFC 8446, 5.2 and 5.3).

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;
use thiserror::Error;

/// Bytes of what proves a record.
pub const TAG: usize = 16;

/// How records are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// They are encrypted, and a change of them is noticed: TLS 1.3 as it is.
    Encrypted,
    /// A change of them is noticed, but anyone on the way can read them. The tag covers the head of a record and all of its data: it is
    /// the one that AES-GCM has for the encrypted record, which is not sent. Whoever does not have the key knows neither the encrypted
    /// record nor the tag of another one, so a changed record is as hard to forge as an encrypted one. The tag alone (GMAC) would be
    /// as good, and takes longer with `ring`, whose fast code is for encryption and tag together. A tag over a checksum of the data
    /// would not do: a CRC can be kept while the data change.
    Authenticated,
}

/// A record was not sealed with this key and number: it was changed, sent twice, left out or brought out of order, or forged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("data was changed on the way, or does not come from the node that the connection belongs to")]
pub struct Forged;

/// A key for one direction, with the number of the next record.
#[derive(Debug)]
pub struct Keys {
    key: LessSafeKey,
    iv: [u8; 12],
    number: u64,
    protection: Protection,
    /// Where a record is encrypted that is not sent so.
    scratch: Vec<u8>,
}

impl Keys {
    /// The key that a handshake came to. `number`: of the first record.
    ///
    /// # Panics
    /// If the secrets are of an algorithm that TLS 1.3 does not have.
    pub fn new((number, secrets): (u64, ConnectionTrafficSecrets), protection: Protection) -> Keys {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => panic!("an algorithm that TLS 1.3 does not have"),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).expect("a key of its algorithm's length");
        let iv = iv.as_ref().try_into().expect("twelve bytes");
        Keys { key: LessSafeKey::new(key), iv, number, protection, scratch: Vec::new() }
    }

    /// How records are protected.
    pub fn protection(&self) -> Protection {
        self.protection
    }

    /// The number of the next record: so many were sealed or opened with this key.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The nonce of the next record. Each is used once: the number rises with every record, and a key has one direction.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        let number = self.number.to_be_bytes();
        nonce[4..].iter_mut().zip(number).for_each(|(byte, of_number)| *byte ^= of_number);
        self.number =
            self.number.checked_add(1).expect("a key is changed long before its numbers are used up");
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals a record in place: its first `head` bytes stay as they are, and count. What proves it is added at the end.
    pub fn seal(&mut self, record: &mut Vec<u8>, from: usize, head: usize) {
        let nonce = self.nonce();
        let (head, data) = record[from..].split_at_mut(head);
        let data = match self.protection {
            Protection::Encrypted => data,
            Protection::Authenticated => copied(&mut self.scratch, data),
        };
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(&*head), data);
        record.extend_from_slice(tag.expect("a record is short").as_ref());
    }

    /// Opens a record in place, which begins with `head` bytes that are not encrypted and ends with what proves it. Returns the bytes
    /// between.
    pub fn open<'a>(&mut self, record: &'a mut [u8], head: usize) -> Result<&'a mut [u8], Forged> {
        let nonce = self.nonce();
        let end = record.len().checked_sub(TAG).filter(|end| *end >= head).ok_or(Forged)?;
        let (head_bytes, rest) = record.split_at_mut(head);
        let aad = Aad::from(&*head_bytes);
        if self.protection == Protection::Encrypted {
            return self.key.open_in_place(nonce, aad, rest).map_err(|_| Forged);
        }
        let (data, tag) = rest.split_at_mut(end - head);
        let encrypted = copied(&mut self.scratch, data);
        let proved = self.key.seal_in_place_separate_tag(nonce, aad, encrypted).map_err(|_| Forged)?;
        // All bytes are compared, whether or not the first differ: how long it takes says nothing of the tag.
        let difference = proved.as_ref().iter().zip(&*tag).fold(0, |all, (a, b)| all | (a ^ b));
        if std::hint::black_box(difference) == 0 { Ok(data) } else { Err(Forged) }
    }
}

/// A copy of the data in memory that is used again.
fn copied<'s>(scratch: &'s mut Vec<u8>, data: &[u8]) -> &'s mut [u8] {
    scratch.clear();
    scratch.extend_from_slice(data);
    scratch
}
