//! What a logical unit reports of itself, asked before any load is put on it.

use std::io;
use std::time::Duration;

use loadline_base::iscsi::{Header, NO_TAG, field, flag, opcode};
use loadline_base::scsi::{Sense, Status, key, operation, service_action};

use super::channel::{Channel, Numbers, broken, command, pong};

/// How long a unit that is not ready is left alone before it is asked again.
const RETRY: Duration = Duration::from_millis(100);
/// The most unit attentions that are taken before one command.
const MOST_ATTENTIONS: u32 = 32;
/// The most bytes that a command here reads.
const MOST_READ: usize = 255;
/// Bytes of the blocks that a unit may have.
const BLOCKS: std::ops::RangeInclusive<u32> = 512..=64 << 10;

/// The properties of a logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Its size.
    pub(crate) bytes: u64,
    /// Bytes of a block: a power of two.
    pub(crate) block: u32,
    /// The most bytes of one command.
    pub(crate) most: u64,
    /// It may not be written to.
    read_only: bool,
    /// It has a cache that writes reach before they are durable, as far as it says.
    pub(crate) has_cache: bool,
    /// A write can be made durable before it is answered (FUA).
    durable_writes: bool,
}

impl Unit {
    /// One of so many bytes, in blocks of 512, which has a cache and makes writes durable.
    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: u64) -> Unit {
        Unit { bytes, block: 512, most: u64::MAX, read_only: false, has_cache: true, durable_writes: true }
    }

    /// Asks the unit. Unit attentions that it has for a new session are taken.
    pub(super) fn ask(asking: &mut Asking<'_>) -> io::Result<Unit> {
        asking.ready()?;
        let inquiry = asking.must("INQUIRY", cdb(operation::INQUIRY, &[(4, 96)]), 96)?;
        match inquiry.first() {
            Some(0) => {}
            Some(kind) if kind >> 5 != 0 => {
                return Err(io::Error::other(format!("the target has no LUN {}", asking.number)));
            }
            Some(kind) => {
                return Err(io::Error::other(format!(
                    "LUN {} is no disk (it is a device of type {:02x}): name the LUN of a disk",
                    asking.number,
                    kind & 0x1f
                )));
            }
            None => return Err(broken("describes its unit by nothing")),
        }
        let capacity =
            cdb(operation::SERVICE_ACTION_IN_16, &[(1, service_action::READ_CAPACITY_16), (13, 32)]);
        let capacity = asking.must("READ CAPACITY(16)", capacity, 32)?;
        let (last, block) = match (capacity.get(..8), capacity.get(8..12)) {
            (Some(last), Some(block)) => (
                u64::from_be_bytes(last.try_into().expect("eight bytes")),
                u32::from_be_bytes(block.try_into().expect("four bytes")),
            ),
            _ => return Err(broken("does not say how large its unit is")),
        };
        let bytes = last.checked_add(1).and_then(|blocks| blocks.checked_mul(block.into()));
        let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
        let Some(bytes) = bytes.filter(|_| block.is_power_of_two() && BLOCKS.contains(&block)) else {
            return Err(io::Error::other(format!(
                "LUN {} has {last} blocks and one, of {block} bytes: such a unit is not known here",
                asking.number
            )));
        };
        let mut unit =
            Unit { bytes, block, most: u64::MAX, read_only: false, has_cache: true, durable_writes: false };
        // All its mode pages, without block descriptors. A unit without such pages says nothing of what they are asked for here.
        let modes = asking.may(cdb(operation::MODE_SENSE_6, &[(1, 0x08), (2, 0x3f), (4, 255)]), 255)?;
        unit.take_modes(&modes.unwrap_or_default());
        let limits = asking.may(cdb(operation::INQUIRY, &[(1, 1), (2, 0xb0), (4, 64)]), 64)?;
        unit.take_limits(&limits.unwrap_or_default());
        Ok(unit)
    }

    /// Takes over a list of mode pages.
    fn take_modes(&mut self, modes: &[u8]) {
        let (Some(specific), Some(descriptors)) = (modes.get(2), modes.get(3)) else { return };
        self.read_only = specific & 0x80 != 0;
        self.durable_writes = specific & 0x10 != 0;
        let mut pages = modes.get(4 + usize::from(*descriptors)..).unwrap_or_default();
        while let [page, length, rest @ ..] = pages {
            if page & 0x40 != 0 {
                // A subpage: its length has two bytes.
                let [high, low, ..] = rest else { return };
                let whole = 4 + usize::from(u16::from_be_bytes([*high, *low]));
                pages = pages.get(whole..).unwrap_or_default();
                continue;
            }
            if let (0x08, Some(flags)) = (page & 0x3f, rest.first()) {
                self.has_cache = flags & 0x04 != 0;
            }
            pages = rest.get(usize::from(*length)..).unwrap_or_default();
        }
    }

    /// Takes over the page of limits.
    fn take_limits(&mut self, limits: &[u8]) {
        if let (Some(0xb0), Some(most)) = (limits.get(1), limits.get(8..12)) {
            let blocks = u32::from_be_bytes(most.try_into().expect("four bytes"));
            if blocks > 0 {
                self.most = u64::from(blocks) * u64::from(self.block);
            }
        }
    }

    /// Why a load cannot be put on it, if it cannot.
    pub(crate) fn objection(&self, write: bool, through: bool) -> Option<&'static str> {
        if write && self.read_only {
            Some("its target lets it be read only (write protected): use a profile that only reads (W0)")
        } else if write && through && self.has_cache && !self.durable_writes {
            Some("its target has no durable writes (FUA): leave out write-through")
        } else {
            None
        }
    }

    /// Whether a write is to ask for being durable before it is answered. Without a cache each one is.
    pub(crate) fn asks_durable(&self) -> bool {
        self.has_cache && self.durable_writes
    }
}

/// A command of this code, with these bytes at these places.
fn cdb(code: u8, bytes: &[(usize, u8)]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    for (at, byte) in bytes {
        cdb[*at] = *byte;
    }
    cdb
}

/// How a command ended that was not carried out.
struct Refused {
    status: u8,
    sense: Option<Sense>,
}

/// A session in which one command follows the other.
pub(super) struct Asking<'a> {
    channel: &'a mut Channel,
    pub(super) numbers: Numbers,
    number: u16,
    lun: [u8; 8],
    tag: u32,
}

impl Asking<'_> {
    /// A session that was just logged in, and asks this unit.
    pub(super) fn new<'a>(channel: &'a mut Channel, numbers: Numbers, number: u16) -> Asking<'a> {
        Asking { channel, numbers, number, lun: lun(number), tag: 0 }
    }

    /// Gives back the numbers of the session and the bytes of the unit: the channel is free again.
    pub(super) fn end(self) -> (Numbers, [u8; 8]) {
        (self.numbers, self.lun)
    }

    /// Waits until the unit is ready.
    fn ready(&mut self) -> io::Result<()> {
        match self.ask(cdb(operation::TEST_UNIT_READY, &[]), 0)? {
            Ok(_) => Ok(()),
            Err(refused) => Err(self.error("TEST UNIT READY", &refused)),
        }
    }

    /// What the command reads. It is an error that it is refused.
    fn must(&mut self, name: &str, cdb: [u8; 16], most: usize) -> io::Result<Vec<u8>> {
        self.ask(cdb, most)?.map_err(|refused| self.error(name, &refused))
    }

    /// What the command reads; `None` if it is refused.
    fn may(&mut self, cdb: [u8; 16], most: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(self.ask(cdb, most)?.ok())
    }

    fn error(&self, name: &str, refused: &Refused) -> io::Error {
        let number = self.number;
        let Refused { status, sense } = refused;
        if *status == Status::ReservationConflict as u8 {
            return io::Error::other(format!(
                "LUN {number} is reserved by another initiator: end what has reserved it"
            ));
        }
        let Some(Sense { key, code: (code, qualifier), .. }) = *sense else {
            return io::Error::other(format!("LUN {number} refuses {name} with status {status:02x}"));
        };
        let why = match (key, code, qualifier) {
            (key::NOT_READY, 0x04, 0x0a) => "its path is changing its state",
            (key::NOT_READY, 0x04, 0x0b) => {
                "this portal is a standby path to it: name the portal of the active path, which for a volume of Loadline is the owner's \
                 ('loadline volume show NAME' names the owner)"
            }
            (key::NOT_READY, 0x04, 0x0c) => {
                "it cannot be reached by this portal: name the portal of the active path"
            }
            (key::NOT_READY, _, _) => "it is not ready",
            (key::ILLEGAL_REQUEST, 0x25, _) => "the target has no such LUN",
            (key::ILLEGAL_REQUEST, 0x20, _) => "it does not know this command, which a disk needs here",
            (key::UNIT_ATTENTION, _, _) => "it has something new to report again and again",
            _ => "see the target's log",
        };
        io::Error::other(format!(
            "LUN {number} refuses {name}: {why} (sense {key:x}/{code:02x}/{qualifier:02x})"
        ))
    }

    /// Carries out a command that reads at most `most` bytes. While the unit has attentions, is busy or is becoming ready, the command
    /// is repeated.
    fn ask(&mut self, cdb: [u8; 16], most: usize) -> io::Result<Result<Vec<u8>, Refused>> {
        let mut attentions = 0;
        loop {
            let refused = match self.once(cdb, most)? {
                Ok(read) => return Ok(Ok(read)),
                Err(refused) => refused,
            };
            let is_busy = [Status::Busy as u8, Status::TaskSetFull as u8].contains(&refused.status);
            match refused.sense.map(|sense| (sense.key, sense.code)) {
                Some((key::UNIT_ATTENTION, _)) if attentions < MOST_ATTENTIONS => attentions += 1,
                Some((key::NOT_READY, (0x04, 0x01 | 0x0a))) if self.channel.has_time() => {
                    std::thread::sleep(RETRY);
                }
                None if is_busy && self.channel.has_time() => std::thread::sleep(RETRY),
                _ => return Ok(Err(refused)),
            }
        }
    }

    fn once(&mut self, cdb: [u8; 16], most: usize) -> io::Result<Result<Vec<u8>, Refused>> {
        debug_assert!(most <= MOST_READ);
        self.tag += 1;
        let flags = flag::FINAL | if most > 0 { flag::READ } else { 0 };
        while !self.numbers.has_room() {
            self.receive()?;
        }
        let mut header = command(flags, self.lun, self.tag, most as u32, cdb);
        header.set_u32(field::COMMAND_NUMBER, self.numbers.next);
        header.set_u32(field::EXPECTED_STATUS_NUMBER, self.numbers.status);
        self.numbers.next = self.numbers.next.wrapping_add(1);
        self.channel.send(header, &[])?;
        let mut read = Vec::new();
        let refused = loop {
            let Some((header, data)) = self.receive()? else { continue };
            if header.task_tag() != self.tag {
                return Err(broken("answered a request that was not sent"));
            }
            match header.opcode() {
                opcode::DATA_IN => {
                    let at = header.u32(field::OFFSET) as usize;
                    if !data.is_empty() && (at != read.len() || data.len() > most - read.len()) {
                        return Err(broken("sent data that was not asked for"));
                    }
                    read.extend(data);
                    if header.has(flag::STATUS) {
                        break Refused { status: header.0[3], sense: None };
                    }
                }
                opcode::SCSI_RESPONSE if header.0[2] == 0 => {
                    break Refused { status: header.0[3], sense: sense(&data) };
                }
                opcode::SCSI_RESPONSE => {
                    return Err(io::Error::other(format!(
                        "the target failed to carry out a command (response {:02x})",
                        header.0[2]
                    )));
                }
                _ => return Err(broken("answered a command with another kind of message")),
            }
        };
        Ok(if refused.status == Status::Good as u8 { Ok(read) } else { Err(refused) })
    }

    /// The next PDU that belongs to a command; `None` of another one, which is dealt with.
    fn receive(&mut self) -> io::Result<Option<(Header, Vec<u8>)>> {
        let (header, data) = self.channel.receive()?;
        self.numbers.learn(&header, has_status(&header));
        match header.opcode() {
            opcode::NOP_IN if header.task_tag() == NO_TAG => {
                let transfer = header.u32(field::TRANSFER_TAG);
                if transfer != NO_TAG {
                    self.channel.send(pong(transfer, header.lun(), &self.numbers), &[])?;
                }
                Ok(None)
            }
            opcode::ASYNC => ended_by(&header).map_or(Ok(None), Err),
            opcode::REJECT => Err(rejected(&header)),
            _ => Ok(Some((header, data))),
        }
    }
}

/// The sense data in the data of a response: two bytes of length, and that much.
pub(crate) fn sense(data: &[u8]) -> Option<Sense> {
    let length = usize::from(u16::from_be_bytes([*data.first()?, *data.get(1)?]));
    let rest = &data[2..];
    Sense::decode(rest.get(..length).unwrap_or(rest))
}

/// Whether a PDU of a target has a number of a status that is its own.
pub(crate) fn has_status(header: &Header) -> bool {
    match header.opcode() {
        opcode::SCSI_RESPONSE | opcode::ASYNC | opcode::REJECT => true,
        opcode::DATA_IN => header.has(flag::STATUS),
        _ => false,
    }
}

/// Why an event that a target reports ends the session, if it does.
pub(crate) fn ended_by(header: &Header) -> Option<io::Error> {
    let why = match header.0[36] {
        1 => "asks its initiators to log out",
        2 => "closes the connection",
        3 => "closes all connections of the session",
        4 => "wants to agree on something new",
        // A unit attention, which commands report too, or something of the vendor's.
        _ => return None,
    };
    Some(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("the iSCSI target {why}: the target's log has the reason"),
    ))
}

/// A request that the target calls wrong.
pub(crate) fn rejected(header: &Header) -> io::Error {
    io::Error::other(format!("the iSCSI target rejects a request (reason {:02x})", header.0[2]))
}

/// The eight bytes by which the target knows a unit: up to 255 by its number on the bus, above by its flat number.
pub(crate) fn lun(number: u16) -> [u8; 8] {
    let [high, low] = number.to_be_bytes();
    let flat = if high == 0 { 0 } else { 0x40 };
    [flat | high, low, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Unit = Unit {
        bytes: 1 << 20,
        block: 512,
        most: u64::MAX,
        read_only: false,
        has_cache: true,
        durable_writes: false,
    };

    #[test]
    fn mode_pages_say_whether_a_unit_may_be_written_to_and_has_a_cache() {
        let taken = |modes: &[u8]| {
            let mut unit = PLAIN;
            unit.take_modes(modes);
            (unit.read_only, unit.durable_writes, unit.has_cache)
        };
        // A page of errors, a subpage, and that of the cache, behind a block descriptor of one byte.
        let pages = [0, 0, 0x90, 1, 9, 0x01, 1, 0, 0x4a, 1, 0, 1, 7, 0x88, 2, 0x00, 0];
        assert_eq!(taken(&pages), (true, true, false));
        assert_eq!(taken(&[0, 0, 0x10, 0, 0x08, 2, 0x04, 0]), (false, true, true));
        for length in 0..pages.len() {
            taken(&pages[..length]);
        }
        assert_eq!(taken(&[]), (false, false, true), "the careful way");
    }

    #[test]
    fn what_a_unit_does_not_allow_is_said() {
        let protected = Unit { read_only: true, ..PLAIN };
        assert!(protected.objection(true, false).unwrap().contains("W0"));
        assert_eq!(protected.objection(false, false), None);
        assert!(PLAIN.objection(true, true).unwrap().contains("FUA"));
        assert_eq!(PLAIN.objection(true, false), None);
        let durable = Unit { has_cache: false, ..PLAIN };
        assert_eq!((durable.objection(true, true), durable.asks_durable()), (None, false));
    }

    #[test]
    fn the_longest_command_is_that_of_the_page_of_limits() {
        let taken = |limits: &[u8]| {
            let mut unit = PLAIN;
            unit.take_limits(limits);
            unit.most
        };
        assert_eq!(taken(&[0, 0xb0, 0, 60, 0, 0, 0, 0, 0, 0, 8, 0]), 1 << 20);
        assert_eq!(taken(&[0, 0xb0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0]), u64::MAX, "no limit is reported");
        assert_eq!(taken(&[0, 0xb0, 0]), u64::MAX);
        assert_eq!(taken(&[0, 0xb1, 0, 60, 0, 0, 0, 0, 0, 0, 8, 0]), u64::MAX, "another page");
    }

    #[test]
    fn sense_data_that_are_cut_do_not_panic() {
        let whole = [0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0];
        assert_eq!(sense(&whole), Some(Sense::new(6, 0x29, 0)));
        for length in 0..whole.len() {
            let _ = sense(&whole[..length]);
        }
        assert_eq!(sense(&[0xff, 0xff, 0x72, 5, 0x20, 0]), Some(Sense::new(5, 0x20, 0)));
    }

    #[test]
    fn units_have_the_bytes_of_the_standard() {
        assert_eq!(lun(7), [0, 7, 0, 0, 0, 0, 0, 0]);
        assert_eq!(lun(0x1234), [0x52, 0x34, 0, 0, 0, 0, 0, 0]);
    }
}
