//! From a command to its first step: unit attentions, states of ports and reservations come first, then the fields of the command.

use loadline_base::scsi::operation::*;
use loadline_base::scsi::{Sense, Status, key, service_action};
use loadline_san_core::map::Map;

use super::cdb::{self, Extent, Known, Touches, u16_at, u32_at};
use super::compare::{Compare, Purpose};
use super::step::{Answer, Command, DataIn, Next, Outcome};
use super::unit::{TaskId, Unit};
use super::work::Work;
use super::write::Write;
use super::write_same::{self, WriteSame};
use super::{MOST_COMPARED, SECTOR, capacity, inquiry, modes, opcodes, ports, reserve_in, reserve_out};
use crate::block::Operation;

/// LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE.
pub(super) const STANDBY: Sense = Sense::new(key::NOT_READY, 0x04, 0x0b);
/// LOGICAL UNIT SOFTWARE WRITE PROTECTED.
const PROTECTED: Sense = Sense::new(key::DATA_PROTECT, 0x27, 0x02);
/// The initiator does not send as much as the command needs: INVALID FIELD IN COMMAND INFORMATION UNIT.
const WRONG_LENGTH: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x0e, 0x03);

type Begun = Result<(Work, Next), Sense>;

/// The first step of a command, and what is done when it is complete. Sets how many bytes the command transfers.
pub(super) fn begin(unit: &mut Unit, id: TaskId, command: &Command, transfer: &mut u64) -> Begun {
    let cdb = &command.cdb;
    let known = cdb::find(cdb);
    let touches = known.as_ref().map_or(Touches::Nothing, |known| touches(known, cdb));
    if touches != Touches::Never
        && let Some(attention) = unit.take_attention(id.nexus)
    {
        return Err(attention);
    }
    let known = known?;
    if !known.on_standby
        && let Some(sense) = not_ready(unit, id)
    {
        return Err(sense);
    }
    if unit.prevent(id.nexus, touches)
        || touches == Touches::Reservations && reserve_out::is_of_other_kind(cdb, unit)
    {
        return Ok((Work::Answer, Next::conflict()));
    }
    known.check(cdb)?;
    if unit.modes().is_protected && writes(cdb[0]) {
        return Err(PROTECTED);
    }
    match cdb[0] {
        READ_6 | READ_10 | READ_12 | READ_16 => read(unit, command, transfer),
        WRITE_6 | WRITE_10 | WRITE_12 | WRITE_16 => write(unit, command, transfer, false),
        WRITE_AND_VERIFY_10 | WRITE_AND_VERIFY_12 | WRITE_AND_VERIFY_16 if cdb[1] & 0x02 == 0 => {
            write(unit, command, transfer, true)
        }
        WRITE_AND_VERIFY_10 | WRITE_AND_VERIFY_12 | WRITE_AND_VERIFY_16 => {
            let extent = transferred(unit, cdb)?;
            *transfer = extent.bytes() as u64;
            let extent = sent(extent, command)?;
            compare(Compare::new(Purpose::WriteAndVerify, extent), extent, command)
        }
        VERIFY_10 | VERIFY_12 | VERIFY_16 => verify(unit, command, transfer),
        COMPARE_AND_WRITE => compare_and_write(unit, command, transfer),
        WRITE_SAME_10 | WRITE_SAME_16 => write_same(unit, command, transfer),
        UNMAP => list(command, Work::Unmap, transfer),
        MODE_SELECT_6 | MODE_SELECT_10 => {
            modes::check_select(cdb)?;
            list(command, Work::Select, transfer)
        }
        PERSISTENT_RESERVE_OUT => {
            reserve_out::check(cdb)?;
            list(command, Work::Reserve(Default::default()), transfer)
        }
        MAINTENANCE_OUT => list(command, Work::Ports, transfer),
        SYNCHRONIZE_CACHE_10 | SYNCHRONIZE_CACHE_16 => {
            Extent::of(cdb, unit.about())?;
            let nothing = Extent { sector: 0, sectors: 0 };
            Ok((Work::Answer, Next::Block(Operation::Flush, nothing)))
        }
        SERVICE_ACTION_IN_16 if known.action == Some(service_action::GET_LBA_STATUS) => {
            let extent = capacity::status_of(cdb, unit.about())?;
            Ok((Work::Status(extent), Next::Block(Operation::Map, extent)))
        }
        _ => Ok((Work::Answer, at_once(unit, id, known, cdb)?)),
    }
}

/// Commands that need no step.
fn at_once(unit: &mut Unit, id: TaskId, known: &Known, cdb: &[u8; 16]) -> Outcome {
    let good = Ok(Next::good());
    match cdb[0] {
        TEST_UNIT_READY => good,
        REQUEST_SENSE => {
            let pending = unit.take_attention(id.nexus).or_else(|| not_ready(unit, id));
            let sense = pending.unwrap_or(Sense::new(key::NO_SENSE, 0x00, 0x00));
            Next::bytes(sense.encode(cdb[1] & 0x01 != 0), cdb[4].into())
        }
        INQUIRY => Next::bytes(inquiry::inquiry(cdb, unit.about())?, u16_at(cdb, 3).into()),
        REPORT_LUNS => Next::bytes(capacity::luns(cdb)?, u32_at(cdb, 6) as usize),
        RESERVE_6 | RELEASE_6 => match reserve_out::reserve_unit(cdb, unit, id.nexus) {
            true => good,
            false => Ok(Next::conflict()),
        },
        MODE_SENSE_6 | MODE_SENSE_10 => {
            let allocation = if cdb[0] == MODE_SENSE_6 { cdb[4].into() } else { u16_at(cdb, 7).into() };
            Next::bytes(modes::sense(cdb, unit.modes(), unit.about().sectors())?, allocation)
        }
        // It is always started; there is no medium to load, and no power to save.
        START_STOP_UNIT if cdb[4] & 0xf2 != 0 => Err(Sense::in_command(4)),
        // The medium is never removed.
        PREVENT_ALLOW_MEDIUM_REMOVAL if cdb[4] > 1 => Err(Sense::in_command(4)),
        START_STOP_UNIT | PREVENT_ALLOW_MEDIUM_REMOVAL => good,
        READ_CAPACITY_10 => Next::bytes(capacity::short(cdb, unit.about())?, usize::MAX),
        SERVICE_ACTION_IN_16 => Next::bytes(capacity::long(cdb, unit.about())?, u32_at(cdb, 10) as usize),
        PREFETCH_10 | PREFETCH_16 => Extent::of(cdb, unit.about()).map(|_| Next::good()),
        PERSISTENT_RESERVE_IN => {
            let data = reserve_in::report(cdb[1] & 0x1f, unit.reservations());
            Next::bytes(data, u16_at(cdb, 7).into())
        }
        MAINTENANCE_IN => {
            let data = match known.action {
                Some(service_action::REPORT_TARGET_PORT_GROUPS) => ports::report(cdb, unit.about())?,
                Some(service_action::REPORT_SUPPORTED_OPERATION_CODES) => opcodes::report(cdb)?,
                _ => opcodes::functions(cdb),
            };
            Next::bytes(data, u32_at(cdb, 6) as usize)
        }
        _ => Err(Sense::new(key::ILLEGAL_REQUEST, 0x20, 0x00)),
    }
}

fn not_ready(unit: &Unit, id: TaskId) -> Option<Sense> {
    (!unit.is_active(id.nexus)).then_some(STANDBY)
}

/// What a command does to the unit, by its fields too.
fn touches(known: &Known, cdb: &[u8; 16]) -> Touches {
    match cdb[0] {
        START_STOP_UNIT if cdb[4] & 0xf1 == 0x01 => Touches::Nothing,
        PREVENT_ALLOW_MEDIUM_REMOVAL if cdb[4] == 0 => Touches::Paths,
        _ => known.touches,
    }
}

/// Whether a command writes blocks.
fn writes(opcode: u8) -> bool {
    matches!(
        opcode,
        WRITE_6
            | WRITE_10
            | WRITE_12
            | WRITE_16
            | WRITE_AND_VERIFY_10
            | WRITE_AND_VERIFY_12
            | WRITE_AND_VERIFY_16
            | WRITE_SAME_10
            | WRITE_SAME_16
            | COMPARE_AND_WRITE
            | UNMAP
    )
}

/// The blocks of a command that transfers them.
fn transferred(unit: &Unit, cdb: &[u8; 16]) -> Result<Extent, Sense> {
    Extent::of(cdb, unit.about())?.at_most(unit.about().most_sectors(), cdb)
}

/// No more than the initiator takes is read.
fn read(unit: &Unit, command: &Command, transfer: &mut u64) -> Begun {
    let extent = transferred(unit, &command.cdb)?;
    *transfer = extent.bytes() as u64;
    let bytes = extent.bytes().min(command.data_in as usize);
    let sectors = (bytes as u32).div_ceil(SECTOR);
    if sectors == 0 {
        return Ok((Work::Answer, Next::good()));
    }
    Ok((Work::Read(bytes), Next::Block(Operation::Read, Extent { sectors, ..extent })))
}

/// The blocks of an extent that the initiator sends: no more are written.
fn sent(extent: Extent, command: &Command) -> Result<Extent, Sense> {
    let bytes = extent.bytes().min(command.data_out as usize);
    match bytes.is_multiple_of(SECTOR as usize) {
        true => Ok(Extent { sectors: bytes as u32 / SECTOR, ..extent }),
        false => Err(WRONG_LENGTH),
    }
}

fn write(unit: &Unit, command: &Command, transfer: &mut u64, verifies: bool) -> Begun {
    let extent = transferred(unit, &command.cdb)?;
    *transfer = extent.bytes() as u64;
    let extent = sent(extent, command)?;
    if extent.sectors == 0 {
        return Ok((Work::Answer, Next::good()));
    }
    Ok((Work::Write(Write::new(extent, verifies)), Next::Data(extent.bytes())))
}

fn compare_and_write(unit: &Unit, command: &Command, transfer: &mut u64) -> Begun {
    let cdb = &command.cdb;
    let extent = Extent::of(cdb, unit.about())?.at_most(MOST_COMPARED.into(), cdb)?;
    let work = Compare::new(Purpose::CompareAndWrite, extent);
    let most = 2 * u32::from(MOST_COMPARED) * SECTOR;
    if command.data_out > most {
        // The number of blocks has one byte: of an initiator that means 256 it says 0, and nothing would be written.
        return Err(Sense::in_command(13));
    }
    *transfer = work.bytes() as u64;
    if extent.sectors > 0 && command.data_out as usize != work.bytes() {
        return Err(WRONG_LENGTH);
    }
    compare(work, extent, command)
}

fn verify(unit: &Unit, command: &Command, transfer: &mut u64) -> Begun {
    let extent = transferred(unit, &command.cdb)?;
    let purpose = match command.cdb[1] >> 1 & 0x03 {
        0 if extent.sectors == 0 => return Ok((Work::Answer, Next::good())),
        // The volume verifies what it reads.
        0 => return Ok((Work::Answer, Next::Block(Operation::Read, extent))),
        1 => Purpose::Verify,
        3 => Purpose::VerifyEach,
        _ => return Err(Sense::in_command(1)),
    };
    let work = Compare::new(purpose, extent);
    *transfer = if extent.sectors == 0 { 0 } else { work.bytes() as u64 };
    compare(work, extent, command)
}

fn compare(work: Compare, extent: Extent, command: &Command) -> Begun {
    if extent.sectors == 0 {
        return Ok((Work::Answer, Next::good()));
    }
    let bytes = work.bytes();
    if (command.data_out as usize) < bytes {
        return Err(WRONG_LENGTH);
    }
    Ok((Work::Compare(work), Next::Data(bytes)))
}

fn write_same(unit: &Unit, command: &Command, transfer: &mut u64) -> Begun {
    let cdb = &command.cdb;
    let extent = write_same::extent_of(cdb, unit.about())?;
    if write_same::has_no_data(cdb) {
        let same = WriteSame::new(cdb, extent, None, unit.about());
        let next = same.begin();
        return Ok((Work::Same(same), next));
    }
    *transfer = SECTOR.into();
    if command.data_out != SECTOR {
        return Err(WRONG_LENGTH);
    }
    Ok((Work::SameOf(extent), Next::Data(SECTOR as usize)))
}

/// A command whose parameters come as a list.
fn list(command: &Command, work: Work, transfer: &mut u64) -> Begun {
    let length = list_length(&command.cdb);
    *transfer = length as u64;
    if length == 0 {
        return Ok((Work::Answer, Next::good()));
    }
    if matches!(work, Work::Ports) && length > ports::MOST_LIST {
        return Err(Sense::in_command(6));
    }
    if (command.data_out as usize) < length {
        return Err(WRONG_LENGTH);
    }
    Ok((work, Next::Data(length)))
}

/// Bytes of the list that a command comes with.
pub(super) fn list_length(cdb: &[u8; 16]) -> usize {
    match cdb[0] {
        UNMAP => u16_at(cdb, 7).into(),
        PERSISTENT_RESERVE_OUT => u32_at(cdb, 5) as usize,
        MAINTENANCE_OUT => u32_at(cdb, 6) as usize,
        _ => modes::select_length(cdb),
    }
}

/// The answer to GET LBA STATUS for these blocks.
pub(super) fn status(cdb: &[u8; 16], extent: Extent, map: &Map) -> Outcome {
    Next::bytes(capacity::status(cdb, extent, map), u32_at(cdb, 10) as usize)
}

/// The answer to a command for a LUN that is not there: any but LUN 0. INQUIRY says so in its data, and REPORT LUNS is carried out. All
/// else is refused: LOGICAL UNIT NOT SUPPORTED.
pub fn wrong_lun(command: &Command) -> Answer {
    let cdb = &command.cdb;
    let answered = match cdb[0] {
        INQUIRY if cdb[1] & 0x01 == 0 => Ok((inquiry::not_there(), u16_at(cdb, 3).into())),
        REPORT_LUNS => capacity::luns(cdb).map(|data| (data, u32_at(cdb, 6) as usize)),
        REQUEST_SENSE => {
            let sense = NO_UNIT.encode(cdb[1] & 0x01 != 0);
            Ok((sense, cdb[4].into()))
        }
        _ => Err(NO_UNIT),
    };
    match answered {
        Ok((mut data, allocation)) => {
            data.truncate(allocation);
            let transfer = data.len() as u64;
            Answer { status: Status::Good, sense: None, data: DataIn::Bytes(data), transfer }
        }
        Err(sense) => {
            let (sense, data) = (Some(sense), DataIn::Nothing);
            Answer { status: Status::CheckCondition, sense, data, transfer: 0 }
        }
    }
}

const NO_UNIT: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x25, 0x00);
