//! A session after its login, without its connection: PDUs in, block requests out; completions in, PDUs out.

use std::time::Duration;

use loadline_base::iscsi::{
    Header, NO_TAG, add_key, field, flag, keys, logout, logout_response, opcode, reject,
};
use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{Blocks, Pool};

use super::error::SessionError;
use super::liveness::{LONGEST, Liveness};
use super::management::Management;
use super::name::name_of;
use super::negotiated::Negotiated;
use super::numbers::{Arrival, Numbers};
use super::parameters::MOST_COMMANDS;
use super::reader::{Pdu, Reader};
use super::sender::{Sender, answer_to};
use super::tasks::{MOST_BYTES, Tasks};
use super::text::{TextRequest, Texts};
use crate::scsi::task::ChangeFailed;
use crate::scsi::unit::{NexusId, NexusName, Place, SharedUnit};

/// While so many bytes are not sent, nothing is received.
const MOST_UNSENT: usize = 2 * MOST_BYTES;
/// The most bytes that a session takes without memory for commands, beside data that it has asked for: of commands that wait, and of answers.
const MOST_BESIDE: usize = 1 << 20;

/// The tag by which an initiator answers a ping. No request for data has it.
const PING: u32 = NO_TAG - 1;

/// A session of an initiator.
#[derive(Debug)]
pub(super) struct Session {
    name: NexusName,
    /// The number of its connection.
    connection: u16,
    /// The name of its target.
    target: String,
    unit: SharedUnit,
    /// Its number in the unit.
    id: NexusId,
    /// The same once it has entered. It waits until a former session of its name has left.
    nexus: Option<NexusId>,
    /// This node serves the volume.
    is_serving: bool,
    reader: Reader,
    sender: Sender,
    tasks: Tasks,
    management: Management,
    texts: Texts,
    liveness: Liveness,
    /// There is memory for commands.
    accepts: bool,
    /// The logout that is answered when nothing is under way.
    leaving: Option<Header>,
    is_over: bool,
}

impl Session {
    /// Of an initiator that has logged in to this volume, and has sent this since. `is_serving`: this node serves the volume.
    pub(super) fn new(
        negotiated: Negotiated,
        volume: &str,
        unit: SharedUnit,
        is_serving: bool,
        rest: &[u8],
    ) -> Session {
        let Negotiated { initiator, isid, connection, command_number, status_number, parameters } =
            negotiated;
        let group = unit.borrow().about().here;
        let id = unit.borrow_mut().arrive();
        let numbers = Numbers::new(command_number, status_number, MOST_COMMANDS);
        Session {
            name: NexusName { initiator, isid, group },
            connection,
            target: name_of(volume),
            unit: unit.clone(),
            id,
            nexus: None,
            is_serving,
            reader: Reader::new(&parameters, rest),
            sender: Sender::new(&parameters, numbers),
            tasks: Tasks::new(unit, parameters),
            management: Management::default(),
            texts: Texts::default(),
            liveness: Liveness::default(),
            accepts: true,
            leaving: None,
            is_over: false,
        }
    }

    // ---- turns -----------------------------------------------------------------------------------------

    /// Begins a turn: the session enters the unit if it may, and does what other sessions have given cause for. Whether it has entered.
    /// `accepts`: there is memory for commands, until the next turn begins.
    pub(super) fn turn(&mut self, pool: &Pool, accepts: bool) -> Result<bool, SessionError> {
        self.accepts = accepts;
        match self.nexus {
            None => self.enter()?,
            Some(nexus) if self.unit.borrow().is_displaced(nexus) => {
                return Err(SessionError::Displaced(self.name.initiator.clone()));
            }
            Some(_) => self.tasks.wake(pool, &mut self.sender)?,
        }
        Ok(self.nexus.is_some())
    }

    fn enter(&mut self) -> Result<(), SessionError> {
        let mut unit = self.unit.borrow_mut();
        match unit.place(self.id, &self.name) {
            Place::Free => {}
            Place::Taken => return Ok(()),
            Place::Lost => return Err(SessionError::Displaced(self.name.initiator.clone())),
        }
        unit.enter(self.id, self.name.clone());
        match self.is_serving {
            true => unit.activate(self.id),
            false => unit.stands_by(&self.name),
        }
        self.nexus = Some(self.id);
        self.tasks.enter(self.id);
        Ok(())
    }

    /// This node serves the volume now.
    pub(super) fn serve(&mut self) {
        self.is_serving = true;
        if let Some(nexus) = self.nexus {
            self.unit.borrow_mut().activate(nexus);
        }
    }

    /// Ends a turn: commands begin if there is memory, and what has waited for others to end is answered.
    pub(super) fn settle(&mut self, pool: &Pool) -> Result<(), SessionError> {
        self.tasks.wake(pool, &mut self.sender)?;
        match self.leaving {
            // Nothing more of it is read.
            Some(_) => self.tasks.end_idle(),
            None if self.accepts => self.tasks.begin(pool, &mut self.sender)?,
            None => {}
        }
        // What has ended may have been in the way of others of this session.
        self.tasks.wake(pool, &mut self.sender)?;
        self.management.settle(&self.unit, &self.tasks, &mut self.sender);
        if self.tasks.in_use() == 0
            && let Some(header) = self.leaving.filter(|_| !self.is_over)
        {
            self.is_over = true;
            self.log_out(&header, logout_response::CLOSED);
        }
        Ok(())
    }

    // ---- time ------------------------------------------------------------------------------------------

    /// Time passes. Whether there is something to send.
    pub(super) fn pass(&mut self, passed: Duration) -> Result<bool, SessionError> {
        let has_unsent = self.sender.out.bytes() > 0;
        if self.tasks.pass(passed, has_unsent) >= LONGEST {
            return Err(SessionError::Late(LONGEST.as_secs()));
        }
        let receives = (self.accepts || self.awaits_data()) && self.wants_bytes();
        let pings = self.liveness.pass(passed, receives, has_unsent)?;
        if pings {
            let mut ping = Header::new(opcode::NOP_IN, flag::FINAL);
            ping.set_u32(field::TASK_TAG, NO_TAG);
            ping.set_u32(field::TRANSFER_TAG, PING);
            self.sender.request(ping);
        }
        Ok(pings)
    }

    /// What shows that the initiator lives.
    pub(super) fn liveness(&mut self) -> &mut Liveness {
        &mut self.liveness
    }

    // ---- what the initiator sends ----------------------------------------------------------------------

    /// Where it is received.
    pub(super) fn reader(&mut self) -> &mut Reader {
        &mut self.reader
    }

    /// Handles what was received, as far as answers may be kept.
    pub(super) fn take_received(&mut self, pool: &Pool) -> Result<(), SessionError> {
        while self.wants_bytes() {
            let Some(pdu) = self.reader.next(pool)? else { break };
            self.take(pdu, pool)?;
        }
        Ok(())
    }

    fn take(&mut self, pdu: Pdu, pool: &Pool) -> Result<(), SessionError> {
        let header = pdu.header;
        match header.opcode() {
            // They have no number of a command.
            opcode::DATA_OUT => {
                if !pdu.is_intact {
                    self.reject(&header, reject::DATA_DIGEST);
                }
                return self.tasks.take_data(pdu, pool, &mut self.sender);
            }
            opcode::SNACK => {
                self.reject(&header, reject::SNACK);
                return Ok(());
            }
            opcode::NOP_OUT
            | opcode::SCSI_COMMAND
            | opcode::TASK_MANAGEMENT
            | opcode::TEXT
            | opcode::LOGOUT => {}
            opcode::LOGIN => {
                self.reject(&header, reject::PROTOCOL);
                return Ok(());
            }
            _ => {
                self.reject(&header, reject::NOT_SUPPORTED);
                return Ok(());
            }
        }
        let (expected, _) = self.sender.numbers.next();
        match self.sender.numbers.arrive(&header) {
            Arrival::Now => {}
            Arrival::Ignored => return Ok(()),
            Arrival::Gap => {
                return Err(SessionError::Gap { came: header.u32(field::COMMAND_NUMBER), expected });
            }
        }
        if !pdu.is_intact {
            self.reject(&header, reject::DATA_DIGEST);
        }
        match header.opcode() {
            opcode::SCSI_COMMAND => {
                if header.task_tag() == NO_TAG {
                    self.reject(&header, reject::INVALID_FIELD);
                } else if self.tasks.has(header.task_tag()) {
                    self.reject(&header, reject::TASK_IN_PROGRESS);
                } else {
                    let most = if self.accepts { MOST_BYTES } else { MOST_BESIDE };
                    self.tasks.add(pdu, most, &mut self.sender);
                }
            }
            // What else has data that is not intact is not carried out.
            _ if !pdu.is_intact => {}
            opcode::NOP_OUT => self.ping(&header, pdu.bytes()),
            opcode::TEXT => self.text(&header, pdu.bytes()),
            opcode::TASK_MANAGEMENT => {
                let Session { management, unit, nexus, tasks, sender, .. } = self;
                management.carry_out(&header, unit, *nexus, tasks, sender);
            }
            _ => self.begin_logout(&header),
        }
        self.tasks.allow(&mut self.sender);
        Ok(())
    }

    fn ping(&mut self, header: &Header, data: &[u8]) {
        // An answer to a ping of the target has no tag.
        if header.task_tag() != NO_TAG {
            let mut response = answer_to(header, opcode::NOP_IN);
            response.set_u32(field::TRANSFER_TAG, NO_TAG);
            let some = data.len().min(self.sender.most);
            self.sender.status(response, &data[..some]);
        }
    }

    fn text(&mut self, header: &Header, data: &[u8]) {
        let (text, is_unfinished) = match self.texts.take(header, data) {
            TextRequest::Unfinished => (None, true),
            TextRequest::Rest => (None, false),
            TextRequest::Complete(text) => (Some(text), false),
            TextRequest::TooLong => return self.reject(header, reject::OUT_OF_RESOURCES),
        };
        if let Some(text) = text {
            let Some(keys) = keys(&text) else { return self.reject(header, reject::PROTOCOL) };
            let mut answer = Vec::new();
            for (key, value) in keys {
                match key {
                    // Of this target, the initiator knows the address.
                    "SendTargets" if value.is_empty() || value.eq_ignore_ascii_case(&self.target) => {
                        add_key(&mut answer, "TargetName", &self.target);
                    }
                    // What was agreed on holds as long as the session.
                    _ => add_key(&mut answer, key, "Reject"),
                }
            }
            self.texts.answer(answer);
        }
        let (response, data) = self.texts.response(header, is_unfinished, self.sender.most);
        self.sender.status(response, &data);
    }

    /// The initiator leaves: commands that wait are ended, and it is answered once nothing is under way.
    fn begin_logout(&mut self, header: &Header) {
        let is_ours = u16::from_be_bytes([header.0[20], header.0[21]]) == self.connection;
        match header.flags() & 0x7f {
            logout::CLOSE_SESSION => {}
            logout::CLOSE_CONNECTION if is_ours => {}
            logout::CLOSE_CONNECTION => return self.log_out(header, logout_response::NO_CONNECTION),
            logout::REMOVE_FOR_RECOVERY => return self.log_out(header, logout_response::NO_RECOVERY),
            _ => return self.reject(header, reject::INVALID_FIELD),
        }
        self.tasks.end_idle();
        self.leaving = Some(*header);
    }

    fn log_out(&mut self, header: &Header, response: u8) {
        let mut answer = answer_to(header, opcode::LOGOUT_RESPONSE);
        answer.0[2] = response;
        self.sender.status(answer, &[]);
    }

    /// Rejects a PDU: its header goes back.
    fn reject(&mut self, header: &Header, reason: u8) {
        let mut answer = Header::new(opcode::REJECT, flag::FINAL);
        answer.0[2] = reason;
        answer.set_u32(field::TASK_TAG, NO_TAG);
        self.sender.status(answer, &header.0);
    }

    // ---- what the volume does --------------------------------------------------------------------------

    /// A part of what a request reads.
    pub(super) fn fill(&mut self, slot: u32, at: u64, blocks: u32, content: Content<Blocks>) {
        self.tasks.fill(slot, at, blocks, content);
    }

    /// What the blocks of a request hold.
    pub(super) fn map(&mut self, slot: u32, map: Map) {
        self.tasks.map(slot, map);
    }

    /// A request is complete.
    pub(super) fn complete(
        &mut self,
        slot: u32,
        result: Result<(), Failure>,
        pool: &Pool,
    ) -> Result<(), SessionError> {
        self.tasks.wake(pool, &mut self.sender)?;
        self.tasks.complete(slot, result, pool, &mut self.sender)?;
        self.settle(pool)
    }

    /// The configuration was changed, or not.
    pub(super) fn changed(
        &mut self,
        ticket: u32,
        result: Result<(), ChangeFailed>,
        pool: &Pool,
    ) -> Result<(), SessionError> {
        self.tasks.wake(pool, &mut self.sender)?;
        self.tasks.changed(ticket, result, pool, &mut self.sender)?;
        self.settle(pool)
    }

    // ---- state -----------------------------------------------------------------------------------------

    /// What is sent.
    pub(super) fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// What is requested, changed and answered.
    pub(super) fn tasks(&mut self) -> &mut Tasks {
        &mut self.tasks
    }

    /// Whether other sessions of the volume are to be given a turn.
    pub(super) fn take_wakes(&mut self) -> bool {
        self.unit.borrow_mut().take_woken()
    }

    /// Whether the initiator may send more now.
    pub(super) fn wants_bytes(&self) -> bool {
        let most = if self.accepts { MOST_UNSENT } else { MOST_BESIDE };
        self.leaving.is_none() && self.sender.out.bytes() < most
    }

    /// Whether the initiator has data to send for commands that are there.
    pub(super) fn awaits_data(&self) -> bool {
        self.tasks.await_data()
    }

    /// Whether the session has something that is taken from it when it receives, or commands that may begin then.
    pub(super) fn wants_turn(&self) -> bool {
        let may_begin = self.accepts && self.leaving.is_none() && self.tasks.may_begin(&self.sender);
        !self.tasks.requests.is_empty() || !self.tasks.changes.is_empty() || may_begin
    }

    /// Bytes that commands take, or may take, and answers that were not sent.
    pub(super) fn bytes(&self) -> usize {
        self.tasks.bytes() + self.sender.out.bytes() + self.texts.bytes()
    }

    /// Whether the initiator has announced that it leaves.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Whether it has left, and all is sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_over && self.sender.out.bytes() == 0
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(nexus) = self.nexus {
            self.unit.borrow_mut().leave(nexus, self.leaving.is_none());
        }
    }
}
