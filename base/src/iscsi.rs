//! What iSCSI calls its parts, for both ends: numbers, the basic header segment, keys of text. Everything is big-endian, but for the
//! digests. The protocol is RFC 7143; section numbers are of that document.

use crate::crc::{crc32c, crc32c_append};

/// The port that IANA gave the protocol (14).
pub const PORT: u16 = 3260;
/// Bytes of a basic header segment (11.2).
pub const HEADER: usize = 48;
/// The most bytes of a data segment that an end takes before anything else was negotiated (13.12).
pub const LEAST_SEGMENT: u32 = 8192;
/// The longest name of an initiator or a target, bytes (4.2.7.1).
pub const LONGEST_NAME: usize = 223;

/// Operation codes of PDUs (11.2.1.2).
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod opcode {
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const TEXT: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const R2T: u8 = 0x31;
    pub const ASYNC: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// The bit of the first byte that makes a PDU an immediate one.
pub const IMMEDIATE: u8 = 0x40;

/// Bits of the second byte.
pub mod flag {
    /// The last of a sequence.
    pub const FINAL: u8 = 0x80;
    /// Of a command: it reads.
    pub const READ: u8 = 0x40;
    /// Of a command: it writes.
    pub const WRITE: u8 = 0x20;
    /// Of a login: to the next stage.
    pub const TRANSIT: u8 = 0x80;
    /// Of a login or a text: more text follows.
    pub const CONTINUE: u8 = 0x40;
    /// Of a response, or the last data of a read: more was asked for than there is.
    pub const UNDERFLOW: u8 = 0x02;
    /// Of a response, or the last data of a read: there is more than was asked for.
    pub const OVERFLOW: u8 = 0x04;
    /// Of the last data of a read: the status is in it.
    pub const STATUS: u8 = 0x01;
}

/// No task, or no transfer.
pub const NO_TAG: u32 = 0xffff_ffff;

/// Stages of a login (11.12.3).
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod stage {
    pub const SECURITY: u8 = 0;
    pub const OPERATIONAL: u8 = 1;
    pub const FULL_FEATURE: u8 = 3;
}

/// How a login ended: class and detail (11.13.5).
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod login_status {
    pub const SUCCESS: (u8, u8) = (0, 0);
    pub const MOVED_TEMPORARILY: (u8, u8) = (1, 1);
    pub const INITIATOR_ERROR: (u8, u8) = (2, 0);
    pub const AUTHENTICATION_FAILED: (u8, u8) = (2, 1);
    pub const FORBIDDEN: (u8, u8) = (2, 2);
    pub const NOT_FOUND: (u8, u8) = (2, 3);
    pub const UNSUPPORTED_VERSION: (u8, u8) = (2, 5);
    pub const TOO_MANY_CONNECTIONS: (u8, u8) = (2, 6);
    pub const MISSING_PARAMETER: (u8, u8) = (2, 7);
    pub const SESSION_TYPE: (u8, u8) = (2, 9);
    pub const NO_SESSION: (u8, u8) = (2, 10);
    pub const INVALID: (u8, u8) = (2, 11);
    pub const UNAVAILABLE: (u8, u8) = (3, 1);
    pub const OUT_OF_RESOURCES: (u8, u8) = (3, 2);
}

/// Functions of task management (11.5.1).
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod function {
    pub const ABORT_TASK: u8 = 1;
    pub const ABORT_TASK_SET: u8 = 2;
    pub const CLEAR_ACA: u8 = 3;
    pub const CLEAR_TASK_SET: u8 = 4;
    pub const LUN_RESET: u8 = 5;
    pub const TARGET_WARM_RESET: u8 = 6;
    pub const TARGET_COLD_RESET: u8 = 7;
    pub const TASK_REASSIGN: u8 = 8;
}

/// Answers to task management (11.6.1).
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod function_response {
    pub const COMPLETE: u8 = 0;
    pub const NO_TASK: u8 = 1;
    pub const NO_LUN: u8 = 2;
    pub const NO_REASSIGNMENT: u8 = 4;
    pub const NOT_SUPPORTED: u8 = 5;
    pub const REJECTED: u8 = 255;
}

/// Why a PDU is rejected (11.17.1).
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod reject {
    pub const DATA_DIGEST: u8 = 0x02;
    pub const SNACK: u8 = 0x03;
    pub const PROTOCOL: u8 = 0x04;
    pub const NOT_SUPPORTED: u8 = 0x05;
    pub const IMMEDIATE_COMMAND: u8 = 0x06;
    pub const TASK_IN_PROGRESS: u8 = 0x07;
    pub const INVALID_FIELD: u8 = 0x09;
    pub const OUT_OF_RESOURCES: u8 = 0x0a;
}

/// Why an initiator logs out (11.14.1): the low seven bits of the second byte.
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod logout {
    pub const CLOSE_SESSION: u8 = 0;
    pub const CLOSE_CONNECTION: u8 = 1;
    pub const REMOVE_FOR_RECOVERY: u8 = 2;
}

/// Answers to a logout (11.15.1).
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod logout_response {
    pub const CLOSED: u8 = 0;
    pub const NO_CONNECTION: u8 = 1;
    pub const NO_RECOVERY: u8 = 2;
}

/// How a command may be ordered among others (11.3.1): the low three bits of the second byte.
#[allow(missing_docs, reason = "each is called as in the standard")]
pub mod attribute {
    pub const MASK: u8 = 0x07;
    pub const SIMPLE: u8 = 1;
    pub const ORDERED: u8 = 2;
    pub const HEAD_OF_QUEUE: u8 = 3;
}

/// A basic header segment. Fields whose place is the same in several PDUs have one name here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header(pub [u8; HEADER]);

impl Header {
    /// Of this operation code with these flags; all else is 0.
    pub fn new(opcode: u8, flags: u8) -> Header {
        let mut header = Header([0; HEADER]);
        (header.0[0], header.0[1]) = (opcode, flags);
        header
    }

    /// One of [`opcode`], without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// Whether it is delivered immediately: it has a number of a command, and does not use it up.
    pub fn is_immediate(&self) -> bool {
        self.0[0] & IMMEDIATE != 0
    }

    /// The second byte.
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Whether all these flags are set.
    pub fn has(&self, flags: u8) -> bool {
        self.0[1] & flags == flags
    }

    /// Bytes of the additional header segments that follow.
    pub fn additional_bytes(&self) -> usize {
        4 * usize::from(self.0[4])
    }

    /// Bytes of the data segment, without its padding.
    pub fn data_bytes(&self) -> usize {
        self.u32(4) as usize & 0x00ff_ffff
    }

    /// Sets the bytes of the data segment.
    ///
    /// # Panics
    /// If they are 16 MiB or more.
    pub fn set_data_bytes(&mut self, bytes: usize) {
        assert!(bytes < 1 << 24, "a data segment of {bytes} bytes");
        self.0[5..8].copy_from_slice(&(bytes as u32).to_be_bytes()[1..]);
    }

    /// The logical unit: its eight bytes.
    pub fn lun(&self) -> [u8; 8] {
        self.0[8..16].try_into().expect("eight bytes")
    }

    /// The tag that the initiator has chosen.
    pub fn task_tag(&self) -> u32 {
        self.u32(16)
    }

    /// The four bytes from this one on.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    /// Sets the four bytes from this one on.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    /// The command of a SCSI command PDU.
    pub fn cdb(&self) -> [u8; 16] {
        self.0[32..].try_into().expect("sixteen bytes")
    }
}

/// Where fields of four bytes are, for [`Header::u32`].
pub mod field {
    /// The initiator's tag of the task.
    pub const TASK_TAG: usize = 16;
    /// The target's tag of the transfer.
    pub const TRANSFER_TAG: usize = 20;
    /// Of a command: the bytes that it transfers.
    pub const EXPECTED_LENGTH: usize = 20;
    /// Of task management: the tag of the task that it is about.
    pub const REFERENCED_TAG: usize = 20;
    /// Of the initiator: the number of the command.
    pub const COMMAND_NUMBER: usize = 24;
    /// Of the initiator: the number of the status that it expects next.
    pub const EXPECTED_STATUS_NUMBER: usize = 28;
    /// Of the target: the number of the status.
    pub const STATUS_NUMBER: usize = 24;
    /// Of the target: the number of the command that it expects next.
    pub const EXPECTED_COMMAND_NUMBER: usize = 28;
    /// Of the target: the last number of a command that it takes now.
    pub const LAST_COMMAND_NUMBER: usize = 32;
    /// Of data, R2T and a response: the number within the task.
    pub const DATA_NUMBER: usize = 36;
    /// Of data and R2T: where in the transfer it begins.
    pub const OFFSET: usize = 40;
    /// Of R2T: the bytes that are asked for.
    pub const DESIRED_LENGTH: usize = 44;
    /// Of a response, or the last data of a read: the bytes that were asked for and are not there, or the other way round.
    pub const RESIDUAL: usize = 44;
}

/// Bytes behind a segment of so many that make it a multiple of four.
pub fn padding(bytes: usize) -> usize {
    bytes.wrapping_neg() & 3
}

/// The digest of a segment and of its padding, as its four bytes are sent (13.1): a CRC32C, the least significant byte first.
pub fn digest(segment: &[u8]) -> [u8; 4] {
    crc32c_append(crc32c(segment), &[0; 3][..padding(segment.len())]).to_le_bytes()
}

/// The keys of a text, `key=value` each, in their order (6.1). `None` if a part has no `=`, or is no UTF-8.
pub fn keys(text: &[u8]) -> Option<Vec<(&str, &str)>> {
    let parts = text.split(|byte| *byte == 0).filter(|part| !part.is_empty());
    parts.map(|part| std::str::from_utf8(part).ok()?.split_once('=')).collect()
}

/// Adds a key and its value to a text.
pub fn add_key(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// Whether a number of a command or a status comes before another one (RFC 1982).
pub fn is_before(number: u32, other: u32) -> bool {
    number != other && other.wrapping_sub(number) < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_its_fields_where_the_standard_says() {
        let mut header = Header::new(opcode::SCSI_COMMAND | IMMEDIATE, flag::FINAL | flag::READ);
        header.set_data_bytes(0x01_02_03);
        header.0[4] = 2;
        header.set_u32(field::EXPECTED_LENGTH, 4096);
        assert_eq!(header.0[..8], [0x41, 0xc0, 0, 0, 2, 1, 2, 3]);
        assert_eq!((header.opcode(), header.is_immediate()), (opcode::SCSI_COMMAND, true));
        assert_eq!((header.data_bytes(), header.additional_bytes()), (0x01_02_03, 8));
        assert_eq!(header.0[20..24], [0, 0, 16, 0]);
        assert!(header.has(flag::FINAL) && !header.has(flag::FINAL | flag::WRITE));
    }

    #[test]
    fn a_digest_covers_the_padding() {
        // RFC 7143, appendix A.4: 32 bytes of zeroes have the CRC aa 36 91 8a.
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[1, 2, 3, 4, 5]), digest(&[1, 2, 3, 4, 5, 0, 0, 0]));
        assert_eq!([0, 3, 2, 1], [0, 1, 2, 3].map(padding));
    }

    #[test]
    fn keys_are_read_as_they_were_written() {
        let mut text = Vec::new();
        add_key(&mut text, "InitiatorName", "iqn.2003-01.org.example:a");
        add_key(&mut text, "CHAP_R", "0x1=2");
        let read = keys(&text).unwrap();
        assert_eq!(read, [("InitiatorName", "iqn.2003-01.org.example:a"), ("CHAP_R", "0x1=2")]);
        assert_eq!(keys(b"\0\0").unwrap(), []);
        assert!(keys(b"InitialR2T\0").is_none() && keys(b"a=\xff\0").is_none());
    }

    #[test]
    fn numbers_go_on_behind_the_largest() {
        assert!(
            is_before(0xffff_ffff, 0) && !is_before(0, 0xffff_ffff) && !is_before(7, 7) && is_before(7, 8)
        );
    }
}
