//! Command descriptor blocks: which commands there are, which bits of each are evaluated, and where the fields of block addresses are.
//!
//! A bit that is set and not evaluated is refused: INVALID FIELD IN CDB, with its byte.

use std::ops::Range;

use loadline_base::scsi::operation::*;
use loadline_base::scsi::{Sense, key, service_action};

use super::about::About;

/// What a command does to a unit, for reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touches {
    /// No reservation prevents it, and no unit attention delays it.
    Never,
    /// It is about paths: no reservation prevents it.
    Paths,
    /// No persistent reservation prevents it.
    Nothing,
    /// It has its own rules: commands of reservations.
    Reservations,
    /// It reads.
    Reads,
    /// It writes, or changes the unit.
    Writes,
}

/// A command that is carried out.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) opcode: u8,
    /// Its service action, if its operation code has those.
    pub(super) action: Option<u8>,
    /// The bits that are evaluated; of the first byte the operation code. As many bytes as the command has.
    pub(super) usage: &'static [u8],
    pub(super) touches: Touches,
    /// Whether a port that is not active carries it out.
    pub(super) on_standby: bool,
}

const fn known(usage: &'static [u8], touches: Touches) -> Known {
    Known { opcode: usage[0], action: None, usage, touches, on_standby: false }
}

const fn with_action(action: u8, usage: &'static [u8], touches: Touches) -> Known {
    Known { opcode: usage[0], action: Some(action), usage, touches, on_standby: false }
}

const fn on_standby(known: Known) -> Known {
    Known { on_standby: true, ..known }
}

/// Service actions of PERSISTENT RESERVE IN.
pub(super) mod reserve_in {
    pub(crate) const READ_KEYS: u8 = 0;
    pub(crate) const READ_RESERVATION: u8 = 1;
    pub(crate) const REPORT_CAPABILITIES: u8 = 2;
    pub(crate) const READ_FULL_STATUS: u8 = 3;
}

use Touches::{Never, Nothing, Paths, Reads, Reservations, Writes};

const RESERVE_IN: [u8; 10] = [PERSISTENT_RESERVE_IN, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
const RESERVE_OUT: [u8; 10] = [PERSISTENT_RESERVE_OUT, 0x1f, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0];

/// The usage of a command of 10 bytes with a block address and a length, and of those of 12 and 16 bytes.
const fn of_ten(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]
}
const fn of_twelve(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0]
}
const fn of_sixteen(opcode: u8, flags: u8) -> [u8; 16] {
    [opcode, flags, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0]
}

/// DPO, FUA and FUA_NV: nothing is cached that is not durable.
const READ_WRITE: u8 = 0x1a;
/// DPO, and BYTCHK of one bit.
const WRITE_AND_VERIFY: u8 = 0x12;
/// DPO, and BYTCHK of two bits.
const VERIFY: u8 = 0x16;
const IMMEDIATELY: u8 = 0x02;
const FLUSH: u8 = 0x06;

/// All commands, in rising order.
///
/// A port that is not active carries out what touches no data: also what an initiator reads only when it finds a path, such as the size. It
/// takes changes of reservations that let others do more, or the nexus itself: the active port learns them a little later. What
/// prevents others is done by the active port alone.
pub(super) const COMMANDS: &[Known] = &[
    known(&[TEST_UNIT_READY, 0, 0, 0, 0, 0], Nothing),
    on_standby(known(&[REQUEST_SENSE, 0x01, 0, 0, 0xff, 0], Never)),
    known(&[READ_6, 0x1f, 0xff, 0xff, 0xff, 0], Reads),
    known(&[WRITE_6, 0x1f, 0xff, 0xff, 0xff, 0], Writes),
    on_standby(known(&[INQUIRY, 0x01, 0xff, 0xff, 0xff, 0], Never)),
    known(&[MODE_SELECT_6, 0x11, 0, 0, 0xff, 0], Writes),
    known(&[RESERVE_6, 0, 0, 0, 0, 0], Reservations),
    known(&[RELEASE_6, 0, 0, 0, 0, 0], Reservations),
    on_standby(known(&[MODE_SENSE_6, 0x08, 0xff, 0xff, 0xff, 0], Writes)),
    known(&[START_STOP_UNIT, 0x01, 0, 0x0f, 0xf7, 0], Writes),
    known(&[PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 0x03, 0], Writes),
    on_standby(known(&[READ_CAPACITY_10, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0], Nothing)),
    known(&of_ten(READ_10, READ_WRITE), Reads),
    known(&of_ten(WRITE_10, READ_WRITE), Writes),
    known(&of_ten(WRITE_AND_VERIFY_10, WRITE_AND_VERIFY), Writes),
    known(&of_ten(VERIFY_10, VERIFY), Reads),
    known(&of_ten(PREFETCH_10, IMMEDIATELY), Reads),
    known(&of_ten(SYNCHRONIZE_CACHE_10, FLUSH), Writes),
    known(&of_ten(WRITE_SAME_10, 0x08), Writes),
    known(&[UNMAP, 0, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0], Writes),
    known(&[MODE_SELECT_10, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0], Writes),
    on_standby(known(&[MODE_SENSE_10, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0], Writes)),
    on_standby(with_action(reserve_in::READ_KEYS, &RESERVE_IN, Reservations)),
    on_standby(with_action(reserve_in::READ_RESERVATION, &RESERVE_IN, Reservations)),
    on_standby(with_action(reserve_in::REPORT_CAPABILITIES, &RESERVE_IN, Reservations)),
    on_standby(with_action(reserve_in::READ_FULL_STATUS, &RESERVE_IN, Reservations)),
    on_standby(with_action(0, &RESERVE_OUT, Reservations)),
    on_standby(with_action(1, &RESERVE_OUT, Reservations)),
    on_standby(with_action(2, &RESERVE_OUT, Reservations)),
    on_standby(with_action(3, &RESERVE_OUT, Reservations)),
    on_standby(with_action(4, &RESERVE_OUT, Reservations)),
    on_standby(with_action(5, &RESERVE_OUT, Reservations)),
    on_standby(with_action(6, &RESERVE_OUT, Reservations)),
    known(&of_sixteen(READ_16, READ_WRITE), Reads),
    known(
        &[COMPARE_AND_WRITE, READ_WRITE, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, 0x1f, 0],
        Writes,
    ),
    known(&of_sixteen(WRITE_16, READ_WRITE), Writes),
    known(&of_sixteen(WRITE_AND_VERIFY_16, WRITE_AND_VERIFY), Writes),
    known(&of_sixteen(VERIFY_16, VERIFY), Reads),
    known(&of_sixteen(PREFETCH_16, IMMEDIATELY), Reads),
    known(&of_sixteen(SYNCHRONIZE_CACHE_16, FLUSH), Writes),
    known(&of_sixteen(WRITE_SAME_16, 0x09), Writes),
    on_standby(with_action(
        service_action::READ_CAPACITY_16,
        &[SERVICE_ACTION_IN_16, 0x1f, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x01, 0],
        Nothing,
    )),
    with_action(
        service_action::GET_LBA_STATUS,
        &[SERVICE_ACTION_IN_16, 0x1f, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0],
        Reads,
    ),
    on_standby(known(&[REPORT_LUNS, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0], Never)),
    on_standby(with_action(
        service_action::REPORT_TARGET_PORT_GROUPS,
        &[MAINTENANCE_IN, 0x3f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Paths,
    )),
    on_standby(with_action(
        service_action::REPORT_SUPPORTED_OPERATION_CODES,
        &[MAINTENANCE_IN, 0x1f, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Reads,
    )),
    on_standby(with_action(
        service_action::REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS,
        &[MAINTENANCE_IN, 0x1f, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Reads,
    )),
    on_standby(with_action(
        service_action::SET_TARGET_PORT_GROUPS,
        &[MAINTENANCE_OUT, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Writes,
    )),
    known(&of_twelve(READ_12, READ_WRITE), Reads),
    known(&of_twelve(WRITE_12, READ_WRITE), Writes),
    known(&of_twelve(WRITE_AND_VERIFY_12, WRITE_AND_VERIFY), Writes),
    known(&of_twelve(VERIFY_12, VERIFY), Reads),
];

/// The command of this block. Fails if there is none.
pub(super) fn find(cdb: &[u8; 16]) -> Result<&'static Known, Sense> {
    let mut has_opcode = false;
    let first = COMMANDS.partition_point(|known| known.opcode < cdb[0]);
    for known in COMMANDS[first..].iter().take_while(|known| known.opcode == cdb[0]) {
        has_opcode = true;
        if known.action.is_none_or(|action| action == cdb[1] & 0x1f) {
            return Ok(known);
        }
    }
    Err(match has_opcode {
        true => Sense::in_command(1),
        false => Sense::new(key::ILLEGAL_REQUEST, 0x20, 0x00),
    })
}

impl Known {
    /// Whether only bits are set that are evaluated.
    pub(super) fn check(&self, cdb: &[u8; 16]) -> Result<(), Sense> {
        let wrong =
            (1..).zip(self.usage.iter().zip(cdb).skip(1)).find(|(_, (usage, byte))| **byte & !**usage != 0);
        wrong.map_or(Ok(()), |(at, _): (u16, _)| Err(Sense::in_command(at)))
    }
}

/// Two bytes of a block of a command or of parameters, big-endian.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Four bytes.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Eight bytes.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The blocks that a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// The first.
    pub(super) sector: u64,
    /// How many.
    pub(super) sectors: u32,
}

impl Extent {
    /// Of a command that has a block address and a length. Fails if not all of the blocks are there.
    pub(super) fn of(cdb: &[u8; 16], about: &About) -> Result<Extent, Sense> {
        let (sector, sectors) = match cdb[0] {
            COMPARE_AND_WRITE => (u64_at(cdb, 2), u32::from(cdb[13])),
            opcode => match opcode >> 5 {
                0 => {
                    let sector = u32::from_be_bytes([0, cdb[1] & 0x1f, cdb[2], cdb[3]]);
                    // Of these commands 0 stands for 256.
                    (sector.into(), if cdb[4] == 0 { 256 } else { cdb[4].into() })
                }
                4 => (u64_at(cdb, 2), u32_at(cdb, 10)),
                5 => (u32_at(cdb, 2).into(), u32_at(cdb, 6)),
                _ => (u32_at(cdb, 2).into(), u16_at(cdb, 7).into()),
            },
        };
        Extent { sector, sectors }.within(about)
    }

    /// Itself. Fails if not all of the blocks are there.
    pub(super) fn within(self, about: &About) -> Result<Extent, Sense> {
        match self.sector.checked_add(self.sectors.into()) {
            Some(end) if end <= about.sectors() => Ok(self),
            _ => Err(Sense::new(key::ILLEGAL_REQUEST, 0x21, 0x00)),
        }
    }

    /// Itself, of a command that transfers the blocks. Fails if they are more than are transferred at once.
    pub(super) fn at_most(self, sectors: u32, cdb: &[u8; 16]) -> Result<Extent, Sense> {
        if self.sectors <= sectors {
            return Ok(self);
        }
        Err(Sense::in_command(match cdb[0] {
            COMPARE_AND_WRITE => 13,
            opcode => match opcode >> 5 {
                0 => 4,
                4 => 10,
                5 => 6,
                _ => 7,
            },
        }))
    }

    /// Its bytes.
    pub(super) fn bytes(self) -> usize {
        self.sectors as usize * super::SECTOR as usize
    }

    /// The numbers of its blocks.
    pub(super) fn range(self) -> Range<u64> {
        self.sector..self.sector + u64::from(self.sectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::testing::about;

    fn cdb(bytes: &[u8]) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        cdb
    }

    #[test]
    fn commands_are_listed_in_rising_order_and_as_long_as_their_group_says() {
        for pair in COMMANDS.windows(2) {
            assert!((pair[0].opcode, pair[0].action) < (pair[1].opcode, pair[1].action), "{pair:?}");
        }
        for known in COMMANDS {
            let length = [6, 10, 10, 0, 16, 12][usize::from(known.opcode >> 5)];
            assert_eq!(known.usage.len(), length, "{known:?}");
        }
    }

    #[test]
    fn a_bit_that_is_not_evaluated_is_refused_with_its_byte() {
        for (wrong, byte) in [
            (cdb(&[READ_10, 0x20]), 1),
            (cdb(&[WRITE_16, 0x60]), 1),
            (cdb(&[READ_10, 0, 0, 0, 0, 0, 0x20]), 6),
            (cdb(&[TEST_UNIT_READY, 0, 0, 0, 0, 0x04]), 5),
            (cdb(&[UNMAP, 0x01]), 1),
        ] {
            assert_eq!(find(&wrong).unwrap().check(&wrong), Err(Sense::in_command(byte)), "{wrong:02x?}");
        }
        assert_eq!(find(&cdb(&[0xff])).unwrap_err().code, (0x20, 0));
        assert_eq!(find(&cdb(&[MAINTENANCE_IN, 0x1f])).unwrap_err(), Sense::in_command(1));
    }

    #[test]
    fn each_length_of_command_has_its_block_address_elsewhere() {
        let about = about();
        let extent =
            |bytes: &[u8]| Extent::of(&cdb(bytes), &about).map(|extent| (extent.sector, extent.sectors));
        assert_eq!(extent(&[READ_6, 0, 1, 2, 3]), Ok((0x102, 3)));
        assert_eq!(extent(&[READ_6, 0, 0, 0, 0]), Ok((0, 256)));
        assert_eq!(extent(&[READ_10, 0, 0, 0, 1, 2, 0, 0, 0]), Ok((0x102, 0)));
        assert_eq!(extent(&[READ_12, 0, 0, 0, 1, 2, 0, 0, 0, 7]), Ok((0x102, 7)));
        assert_eq!(extent(&[READ_16, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 7]), Ok((0x102, 7)));
        assert_eq!(extent(&[COMPARE_AND_WRITE, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 1]), Ok((0x102, 1)));
        let beyond = Sense::new(key::ILLEGAL_REQUEST, 0x21, 0);
        assert_eq!(extent(&[READ_16, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 1]), Err(beyond));
        assert_eq!(extent(&[READ_10, 0, 255, 255, 255, 255, 0, 0, 0]), Err(beyond));
    }
}
