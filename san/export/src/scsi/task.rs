//! A command that is carried out, step by step.
//!
//! # Invariants
//! - A task ends once: with [`Step::Done`], or with [`Task::end`]. What it has locked is free then.
//! - A task that another session has ended, or whose session has left, begins no further block step and no further change.

use loadline_base::scsi::{Sense, Status, key};
use loadline_san_core::map::Map;
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{BlocksMut, Pool};

use super::about::NexusId;
use super::cdb::Extent;
use super::reservations::{Refused, Request};
use super::reserve_out::{self, PARAMETERS};
pub use super::start::wrong_lun;
pub use super::step::{Answer, Change, ChangeFailed, Command, DataIn, Fill, LONGEST_CHANGE, Step};
use super::step::{Next, Outcome};
use super::unit::{Held, TaskId, Unit};
use super::work::Work;
use super::write_same::WriteSame;
use super::{modes, ports, start};

/// How often a change of the reservations is tried again after what is kept was found to be something else.
const MOST_ATTEMPTS: u32 = 3;

/// A command that is carried out.
#[derive(Debug)]
pub struct Task {
    /// `None` once it is over.
    id: Option<TaskId>,
    command: Command,
    held: Option<Held>,
    work: Work,
    transfer: u64,
    /// The volume holds something else because of it.
    has_written: bool,
}

impl Task {
    /// Begins a command of this session.
    pub fn begin(unit: &mut Unit, nexus: NexusId, command: &Command) -> (Task, Step) {
        let id = unit.begin_task(nexus, command.ticket);
        let mut task =
            Task { id, command: *command, held: None, work: Work::Answer, transfer: 0, has_written: false };
        let step = match id {
            Some(id) => {
                let begun = start::begin(unit, id, command, &mut task.transfer);
                let outcome = begun.map(|(work, next)| {
                    task.work = work;
                    next
                });
                task.go_on(unit, None, outcome)
            }
            None => task.abort(unit),
        };
        (task, step)
    }

    /// What [`Step::Data`] needed is here: so many bytes from the first byte of `data` on.
    pub fn data(&mut self, unit: &mut Unit, pool: &Pool, data: BlocksMut) -> Step {
        if self.is_ended(unit) {
            return self.abort(unit);
        }
        let cdb = &self.command.cdb;
        let bytes = |length: usize| data.bytes().get(..length).unwrap_or_default();
        let outcome = match &mut self.work {
            Work::Write(write) => write.data(data),
            Work::Compare(compare) => compare.data(data),
            Work::SameOf(extent) => {
                let same = WriteSame::new(cdb, *extent, Some(bytes(super::SECTOR as usize)), unit.about());
                let next = same.begin();
                self.work = Work::Same(same);
                Ok(next)
            }
            Work::Unmap => WriteSame::unmap(bytes(start::list_length(cdb)), unit.about()).map(|same| {
                let next = same.begin();
                self.work = Work::Same(same);
                next
            }),
            Work::Select => {
                let list = bytes(start::list_length(cdb));
                modes::select(cdb, list, unit.modes(), unit.about().sectors()).map(|modes| {
                    if let Some(id) = self.id {
                        unit.select(modes, id.nexus);
                    }
                    Next::good()
                })
            }
            Work::Reserve(reserve) => {
                let parameters = data.bytes()[..PARAMETERS].try_into().expect("so many bytes");
                reserve_out::read(cdb, parameters).map(|parameters| {
                    reserve.parameters = Some(parameters);
                    Next::LockReservations
                })
            }
            Work::Ports => {
                ports::set(bytes(start::list_length(cdb)), unit.about()).map(|group| match group {
                    Some(group) => Next::Change(Change::Activate(group)),
                    None => Next::good(),
                })
            }
            Work::Answer | Work::Read(_) | Work::Status(_) | Work::Same(_) => Ok(Next::busy()),
        };
        self.go_on(unit, Some(pool), outcome)
    }

    /// The volume has carried out what [`Step::Block`] says. `read` is what a read gave, in rising order without gaps or overlaps, and `map`
    /// what a map gave.
    pub fn carried_out(
        &mut self,
        unit: &mut Unit,
        pool: &Pool,
        result: Result<(), Failure>,
        read: &[Fill],
        map: Option<Map>,
    ) -> Step {
        if self.is_ended(unit) {
            return self.abort(unit);
        }
        if let Err(failure) = result {
            let outcome = self.failed(failure);
            return self.go_on(unit, Some(pool), outcome);
        }
        self.has_written |= self.is_writing();
        let outcome = match &mut self.work {
            Work::Read(bytes) => Ok(Next::Done(Status::Good, DataIn::Read { bytes: *bytes })),
            Work::Status(extent) => match map.filter(|map| map.until > 0) {
                Some(map) => start::status(&self.command.cdb, *extent, &map),
                None => Err(Sense::new(key::HARDWARE_ERROR, 0x44, 0x00)),
            },
            Work::Write(write) => write.carried_out(),
            Work::Compare(compare) => compare.carried_out(pool, read),
            Work::Same(same) => same.go_on(Some(pool)),
            _ => Ok(Next::good()),
        };
        self.go_on(unit, Some(pool), outcome)
    }

    /// What [`Step::Block`] says is not carried out: the command has waited for too long.
    pub fn refuse(&mut self, unit: &mut Unit) -> Step {
        let outcome = self.failed(Failure::TooMany);
        self.go_on(unit, None, outcome)
    }

    /// The configuration was changed as [`Step::Change`] says, or not.
    pub fn changed(&mut self, unit: &mut Unit, result: Result<(), ChangeFailed>) -> Step {
        if let (Work::Reserve(reserve), Some(id)) = (&self.work, self.id) {
            unit.has_changed(id, &reserve.from, result.is_ok());
        }
        if self.is_ended(unit) {
            return self.abort(unit);
        }
        let outcome = match (&mut self.work, result) {
            (Work::Reserve(_), Ok(())) => {
                // Tasks that it aborts may still be there.
                self.let_go(unit);
                if unit.is_ending() { Ok(Next::AwaitEnd) } else { Ok(Next::good()) }
            }
            (Work::Reserve(reserve), Err(ChangeFailed::Differs)) if reserve.attempts < MOST_ATTEMPTS => {
                self.reserve(unit)
            }
            (Work::Ports, Err(_)) => Err(ports::FAILED),
            (_, Ok(())) => Ok(Next::good()),
            (_, Err(_)) => Ok(Next::busy()),
        };
        self.go_on(unit, None, outcome)
    }

    /// The task that was in the way has ended.
    pub fn resume(&mut self, unit: &mut Unit, pool: &Pool) -> Step {
        if self.is_ended(unit) {
            return self.abort(unit);
        }
        let outcome = match self.held {
            Some(Held::Ending) if unit.is_ending() => Ok(Next::AwaitEnd),
            Some(Held::Ending) => Ok(Next::good()),
            _ => self.locked(unit, Some(pool)),
        };
        self.go_on(unit, Some(pool), outcome)
    }

    /// The task is aborted, or its session is gone. If it has a block step under way, this is called once that is complete, unless the
    /// volume carries out what overlaps in the order in which it was issued: what the task has locked is free afterwards.
    pub fn end(mut self, unit: &mut Unit) {
        self.close(unit);
    }

    fn is_ended(&self, unit: &Unit) -> bool {
        self.id.is_none_or(|id| unit.is_ended(id))
    }

    /// The answer of a task that has none: it was ended by another session, or is over already.
    fn abort(&mut self, unit: &mut Unit) -> Step {
        self.close(unit);
        let (sense, data) = (None, DataIn::Nothing);
        Step::Done(Answer { status: Status::TaskAborted, sense, data, transfer: self.transfer })
    }

    fn close(&mut self, unit: &mut Unit) {
        if let Some(id) = self.id.take() {
            unit.end_task(id, self.held.take());
        }
    }

    /// Whether its block step writes, or verifies what it has written.
    fn is_writing(&self) -> bool {
        match &self.work {
            Work::Write(_) | Work::Same(_) => true,
            Work::Compare(compare) => compare.is_writing(),
            _ => false,
        }
    }

    fn let_go(&mut self, unit: &mut Unit) {
        if let (Some(id), Some(held)) = (self.id, self.held.take()) {
            unit.let_go(id, held);
        }
    }

    /// Turns what the command needs into a step.
    fn go_on(&mut self, unit: &mut Unit, pool: Option<&Pool>, mut outcome: Outcome) -> Step {
        loop {
            let Some(id) = self.id else { return self.abort(unit) };
            let (held, is_held) = match outcome {
                Ok(Next::Data(bytes)) => return Step::Data(bytes),
                Ok(Next::Block(operation, Extent { sector, sectors })) => {
                    return Step::Block { operation, sector, sectors };
                }
                Ok(Next::Change(change)) => return Step::Change(change),
                Ok(Next::Done(status, data)) => {
                    let transfer = match &data {
                        DataIn::Bytes(bytes) => bytes.len() as u64,
                        _ => self.transfer,
                    };
                    self.close(unit);
                    return Step::Done(Answer { status, sense: None, data, transfer });
                }
                Err(sense) => {
                    self.close(unit);
                    let (status, sense, transfer) = (Status::CheckCondition, Some(sense), self.transfer);
                    return Step::Done(Answer { status, sense, data: DataIn::Nothing, transfer });
                }
                Ok(Next::Lock(blocks, sharing)) => unit.lock(id, blocks, sharing),
                Ok(Next::LockReservations) => unit.lock_reservations(id),
                Ok(Next::AwaitEnd) => (unit.await_end(id), false),
            };
            self.held = Some(held);
            if !is_held {
                return Step::Wait;
            }
            outcome = self.locked(unit, pool);
        }
    }

    /// What is done with what was waited for.
    fn locked(&mut self, unit: &mut Unit, pool: Option<&Pool>) -> Outcome {
        match (&mut self.work, pool) {
            (Work::Write(write), _) => write.locked(),
            (Work::Compare(compare), Some(pool)) => compare.locked(pool),
            (Work::Same(same), pool) => same.go_on(pool),
            (Work::Reserve(_), _) => self.reserve(unit),
            _ => Ok(Next::busy()),
        }
    }

    /// The change of the reservations that the command makes of what they are now.
    fn reserve(&mut self, unit: &mut Unit) -> Outcome {
        let (Work::Reserve(reserve), Some(id)) = (&mut self.work, self.id) else { return Ok(Next::busy()) };
        let (Some(parameters), Some(name)) = (reserve.parameters, unit.name_of(id.nexus)) else {
            return Ok(Next::busy());
        };
        reserve.attempts += 1;
        let now = unit.reservations();
        let ports: Vec<u16> = unit.about().ports.iter().map(|port| port.group).collect();
        match now.carry_out(name, parameters.request, parameters.keys, &ports) {
            Err(Refused::Conflict) => Ok(Next::conflict()),
            Err(Refused::Sense(sense)) => Err(sense),
            // On standby, what is known may be old, and the owner may not know it yet.
            Ok(to) if to == *now && unit.is_active(id.nexus) => Ok(Next::good()),
            Ok(to) => {
                reserve.from = now.clone();
                unit.is_changing(id, to.clone());
                let restricts = matches!(parameters.request, Request::Reserve(_) | Request::Preempt { .. });
                Ok(Next::Change(Change::Reserve { from: reserve.from.clone(), to, restricts }))
            }
        }
    }

    /// The answer to a command that the volume has not carried out.
    fn failed(&mut self, failure: Failure) -> Outcome {
        if matches!(self.work, Work::Answer | Work::Read(_) | Work::Status(_)) {
            // Nothing is transferred.
            self.transfer = 0;
        }
        let is_write = self.is_writing();
        Err(match failure {
            // What is refused by a status has not begun. Initiators send this one again too.
            Failure::TooMany if self.has_written => Sense::new(key::ABORTED_COMMAND, 0x00, 0x00),
            Failure::TooMany => return Ok(Next::Done(Status::TaskSetFull, DataIn::Nothing)),
            // Another port is active now.
            Failure::Deposed | Failure::NotAttached => start::STANDBY,
            Failure::TooLong => Sense::new(key::ILLEGAL_REQUEST, 0x24, 0x00),
            Failure::OutOfRange => Sense::new(key::ILLEGAL_REQUEST, 0x21, 0x00),
            // SPACE ALLOCATION FAILED WRITE PROTECT.
            Failure::NoSpace => Sense::new(key::DATA_PROTECT, 0x27, 0x07),
            Failure::Corrupt if is_write => Sense::new(key::MEDIUM_ERROR, 0x0c, 0x00),
            Failure::Corrupt => Sense::new(key::MEDIUM_ERROR, 0x11, 0x00),
        })
    }
}

#[cfg(test)]
mod tests;
