//! Numbers of commands and of statuses: the window of commands, and what each PDU of the target says of both (RFC 7143, 4.2.2).
//!
//! The last number that an initiator may send never comes down: what was allowed stays allowed.

use loadline_base::iscsi::{Header, field, is_before};

/// What is to be done with a PDU by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is the next one, or has no number of its own.
    Now,
    /// It came before, or is not allowed yet: it is dropped without an answer.
    Ignored,
    /// Others before it are missing, which cannot come any more: there is one connection.
    Gap,
}

#[derive(Debug)]
pub(super) struct Numbers {
    /// The command that is expected next.
    expected: u32,
    /// The last command that is allowed.
    last: u32,
    /// The next status.
    status: u32,
}

impl Numbers {
    /// The first command and the first status have these numbers; so many commands are allowed.
    pub(super) fn new(expected: u32, status: u32, room: u32) -> Numbers {
        Numbers { expected, last: expected.wrapping_add(room).wrapping_sub(1), status }
    }

    /// The command that is expected next, and the next status.
    pub(super) fn next(&self) -> (u32, u32) {
        (self.expected, self.status)
    }

    /// A PDU with a number of a command has come.
    pub(super) fn arrive(&mut self, header: &Header) -> Arrival {
        let number = header.u32(field::COMMAND_NUMBER);
        if header.is_immediate() {
            return Arrival::Now;
        }
        if is_before(self.last, number) || is_before(number, self.expected) {
            return Arrival::Ignored;
        }
        if number != self.expected {
            return Arrival::Gap;
        }
        self.expected = self.expected.wrapping_add(1);
        Arrival::Now
    }

    /// So many commands are allowed from the next one on, if it were not more already.
    pub(super) fn allow(&mut self, room: u32) {
        let last = self.expected.wrapping_add(room).wrapping_sub(1);
        if is_before(self.last, last) {
            self.last = last;
        }
    }

    /// Fills in the numbers of a PDU that has a status: its own and those of commands.
    pub(super) fn stamp(&mut self, header: &mut Header) {
        self.stamp_next(header);
        self.status = self.status.wrapping_add(1);
    }

    /// Fills in the numbers of a PDU that shows the next status, and has none.
    pub(super) fn stamp_next(&self, header: &mut Header) {
        header.set_u32(field::STATUS_NUMBER, self.status);
        self.stamp_commands(header);
    }

    /// Fills in the numbers of commands only.
    pub(super) fn stamp_commands(&self, header: &mut Header) {
        header.set_u32(field::EXPECTED_COMMAND_NUMBER, self.expected);
        header.set_u32(field::LAST_COMMAND_NUMBER, self.last);
    }
}

#[cfg(test)]
mod tests {
    use loadline_base::iscsi::{IMMEDIATE, opcode};

    use super::*;

    fn command(number: u32) -> Header {
        let mut header = Header::new(opcode::SCSI_COMMAND, 0);
        header.set_u32(field::COMMAND_NUMBER, number);
        header
    }

    #[test]
    fn commands_come_in_their_order_and_within_the_window() {
        let mut numbers = Numbers::new(u32::MAX, 1, 3);
        assert_eq!(numbers.arrive(&command(u32::MAX - 1)), Arrival::Ignored);
        assert_eq!(numbers.arrive(&command(2)), Arrival::Ignored, "three are allowed");
        assert_eq!(numbers.arrive(&command(0)), Arrival::Gap);
        assert_eq!(numbers.arrive(&command(u32::MAX)), Arrival::Now);
        assert_eq!(numbers.arrive(&command(u32::MAX)), Arrival::Ignored, "it came before");
        assert_eq!(numbers.arrive(&command(0)), Arrival::Now);
        let mut immediate = command(77);
        immediate.0[0] |= IMMEDIATE;
        assert_eq!(numbers.arrive(&immediate), Arrival::Now);
        assert_eq!(numbers.arrive(&command(1)), Arrival::Now);
        assert_eq!(numbers.arrive(&command(2)), Arrival::Ignored);
    }

    #[test]
    fn what_was_allowed_stays_allowed() {
        let mut numbers = Numbers::new(10, 5, 4);
        numbers.allow(1);
        let mut response = Header::new(opcode::SCSI_RESPONSE, 0);
        numbers.stamp(&mut response);
        assert_eq!([24, 28, 32].map(|at| response.u32(at)), [5, 10, 13]);
        numbers.arrive(&command(10));
        numbers.allow(4);
        numbers.stamp_next(&mut response);
        assert_eq!([24, 28, 32].map(|at| response.u32(at)), [6, 11, 14]);
        assert_eq!(numbers.next(), (11, 6));
    }
}
