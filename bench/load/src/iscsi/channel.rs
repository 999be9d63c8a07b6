//! PDUs before requests follow: whole ones, with calls that wait, and one time limit for all of them.

use std::io;
use std::os::fd::OwnedFd;

use loadline_base::iscsi::{
    HEADER, Header, IMMEDIATE, NO_TAG, digest, field, flag, is_before, opcode, padding,
};

use crate::handshake::HandshakeSocket;

/// The most bytes of a data segment that is received here.
const MOST_DATA: usize = 64 << 10;

/// The numbers of a session (RFC 7143, 4.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// Of the next command.
    pub(crate) next: u32,
    /// The last number of a command that the target takes now.
    pub(crate) last: u32,
    /// Of the status that is expected next.
    pub(crate) status: u32,
}

impl Numbers {
    /// Takes over what a PDU of the target says. `has_status`: its status has a number of its own.
    pub(crate) fn learn(&mut self, header: &Header, has_status: bool) {
        let expected = header.u32(field::EXPECTED_COMMAND_NUMBER);
        let last = header.u32(field::LAST_COMMAND_NUMBER);
        // Both are ignored where they contradict each other, and an older window is never gone back to.
        if !is_before(last, expected.wrapping_sub(1)) && is_before(self.last, last) {
            self.last = last;
        }
        if has_status {
            self.status = header.u32(field::STATUS_NUMBER).wrapping_add(1);
        }
    }

    /// Whether the target takes another command now.
    pub(crate) fn has_room(&self) -> bool {
        !is_before(self.last, self.next)
    }
}

/// What a target does that no target may.
pub(crate) fn broken(what: &str) -> io::Error {
    io::Error::other(format!("the iSCSI target {what}: it is broken, or not a target of this protocol"))
}

/// A connection whose session is not an engine's yet.
pub(super) struct Channel {
    socket: HandshakeSocket,
    /// Headers have a digest.
    pub(super) header_digest: bool,
    /// Data have a digest.
    pub(super) data_digest: bool,
}

impl Channel {
    /// A channel without digests.
    pub(super) fn new(socket: HandshakeSocket) -> Channel {
        Channel { socket, header_digest: false, data_digest: false }
    }

    /// Whether some of the time limit is left.
    pub(super) fn has_time(&self) -> bool {
        self.socket.has_time()
    }

    /// Sends a PDU with this data.
    pub(super) fn send(&mut self, mut header: Header, data: &[u8]) -> io::Result<()> {
        header.set_data_bytes(data.len());
        let mut bytes = header.0.to_vec();
        if self.header_digest {
            bytes.extend(digest(&header.0));
        }
        bytes.extend(data);
        bytes.resize(bytes.len() + padding(data.len()), 0);
        if self.data_digest && !data.is_empty() {
            bytes.extend(digest(data));
        }
        self.socket.write(&bytes)
    }

    /// Receives a PDU and its data.
    pub(super) fn receive(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let header = Header(self.socket.read::<HEADER>()?);
        if self.header_digest && self.socket.read::<4>()? != digest(&header.0) {
            return Err(broken("sent a header whose digest is wrong"));
        }
        if header.additional_bytes() > 0 {
            return Err(broken("sent a header with an addition, which no target has"));
        }
        let bytes = header.data_bytes();
        if bytes > MOST_DATA {
            return Err(broken(&format!("announced {bytes} bytes where it may send {MOST_DATA}")));
        }
        let mut data = vec![0; bytes + padding(bytes)];
        self.socket.fill(&mut data)?;
        data.truncate(bytes);
        if self.data_digest && bytes > 0 && self.socket.read::<4>()? != digest(&data) {
            return Err(broken("sent data whose digest is wrong"));
        }
        Ok((header, data))
    }

    /// Nothing has a limit any more.
    pub(super) fn end(self) -> io::Result<OwnedFd> {
        self.socket.end()
    }
}

/// The answer to a ping of the target, with this tag and unit.
pub(crate) fn pong(transfer: u32, lun: [u8; 8], numbers: &Numbers) -> Header {
    let mut header = Header::new(opcode::NOP_OUT | IMMEDIATE, flag::FINAL);
    header.0[8..16].copy_from_slice(&lun);
    header.set_u32(field::TASK_TAG, NO_TAG);
    header.set_u32(field::TRANSFER_TAG, transfer);
    header.set_u32(field::COMMAND_NUMBER, numbers.next);
    header.set_u32(field::EXPECTED_STATUS_NUMBER, numbers.status);
    header
}

/// The PDU that ends a session, whole.
pub(crate) fn logout(numbers: &Numbers, header_digest: bool) -> Vec<u8> {
    let mut header = Header::new(opcode::LOGOUT | IMMEDIATE, flag::FINAL);
    header.set_u32(field::TASK_TAG, LOGOUT_TAG);
    header.set_u32(field::COMMAND_NUMBER, numbers.next);
    header.set_u32(field::EXPECTED_STATUS_NUMBER, numbers.status);
    let mut bytes = header.0.to_vec();
    if header_digest {
        bytes.extend(digest(&header.0));
    }
    bytes
}

/// The tag of a logout. No command has it: their highest bit is clear.
const LOGOUT_TAG: u32 = 1 << 31;

/// A command in its PDU, without the number that it is sent with.
pub(crate) fn command(flags: u8, lun: [u8; 8], tag: u32, length: u32, cdb: [u8; 16]) -> Header {
    let mut header = Header::new(opcode::SCSI_COMMAND, flags | SIMPLE);
    header.0[8..16].copy_from_slice(&lun);
    header.set_u32(field::TASK_TAG, tag);
    header.set_u32(field::EXPECTED_LENGTH, length);
    header.0[32..].copy_from_slice(&cdb);
    header
}

/// Of a command: the target may carry out others before it.
const SIMPLE: u8 = 0x01;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_only_moves_on_and_one_that_contradicts_itself_is_ignored() {
        let mut numbers = Numbers { next: 5, last: 4, status: 1 };
        assert!(!numbers.has_room());
        let mut said = |expected: u32, last: u32| {
            let mut header = Header::new(opcode::NOP_IN, flag::FINAL);
            header.set_u32(field::EXPECTED_COMMAND_NUMBER, expected);
            header.set_u32(field::LAST_COMMAND_NUMBER, last);
            numbers.learn(&header, false);
            (numbers.last, numbers.has_room())
        };
        assert_eq!(said(5, 8), (8, true));
        assert_eq!(said(5, 6), (8, true), "it came late");
        assert_eq!(said(20, 10), (8, true), "less than it has taken already");
        assert_eq!(said(9, 8), (8, true), "it takes none now");
        assert_eq!(numbers.status, 1);
    }

    #[test]
    fn numbers_go_on_behind_the_largest() {
        let numbers = Numbers { next: u32::MAX, last: 2, status: 0 };
        assert!(numbers.has_room());
        assert!(!Numbers { next: 3, ..numbers }.has_room());
    }
}
