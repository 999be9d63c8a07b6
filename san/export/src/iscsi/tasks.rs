//! The commands of a session: they wait for their turn, are carried out step by step, and are answered.
//!
//! - **K1. A command is answered once, or is ended and not answered.** Whatever ends it takes its tag away; the tag names no other command before.
//! - **K2. A command that is ended while the volume carries something out for it keeps its slot until that is complete.** So no write of it
//!   comes after the answer to what has ended it.
//! - **K3. What commands may take has a bound.** Commands wait until what is taken allows them to begin; the window limits how many wait.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use loadline_base::iscsi::{Header, attribute, field, flag, opcode};
use loadline_base::scsi::{Sense, Status};
use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{BLOCK_BYTES, Blocks, Pool};

use super::answer::Reply;
use super::error::SessionError;
use super::parameters::{MOST_COMMANDS, Parameters};
use super::reader::Pdu;
use super::sender::{ReadData, Sender};
use super::slot::{Slot, State, command_of};
use super::transfer::announced_by;
use crate::block::BlockRequest;
use crate::scsi::SECTOR;
use crate::scsi::task::{Answer, Change, ChangeFailed, Command, DataIn, Fill, Step, Task};
use crate::scsi::unit::{NexusId, SharedUnit};

/// The most bytes that commands of a session and answers to them take before others have to wait; one command of any length always begins.
pub(super) const MOST_BYTES: usize = 32 << 20;
/// The most commands that are there, those that are delivered immediately included.
const MOST_SLOTS: usize = 2 * MOST_COMMANDS as usize;

/// The commands of a session.
#[derive(Debug)]
pub(super) struct Tasks {
    unit: SharedUnit,
    nexus: Option<NexusId>,
    parameters: Parameters,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    tags: HashMap<u32, u32>,
    /// Commands that have not begun, in their order.
    waiting: VecDeque<u32>,
    /// Commands that have begun and are not over, and whether one of them lets no other pass.
    begun: usize,
    is_ordered: bool,
    /// Commands that were ended and keep their slots.
    ended: usize,
    /// Bytes that commands take or may take, and how many have data to come.
    bytes: usize,
    unsettled: usize,
    /// The next tag by which data is asked for.
    transfer_tag: u32,
    /// How long commands that come now may have waited before they could be received.
    pub(super) waited_before: Duration,
    /// Commands that were answered since this was last taken.
    pub(super) answered: usize,
    /// What the volume is to carry out.
    pub(super) requests: Vec<BlockRequest>,
    /// What is to be changed in the configuration.
    pub(super) changes: Vec<(u32, Change)>,
}

impl Tasks {
    pub(super) fn new(unit: SharedUnit, parameters: Parameters) -> Tasks {
        Tasks {
            unit,
            nexus: None,
            parameters,
            slots: Vec::new(),
            free: Vec::new(),
            tags: HashMap::new(),
            waiting: VecDeque::new(),
            begun: 0,
            is_ordered: false,
            ended: 0,
            bytes: 0,
            unsettled: 0,
            transfer_tag: 0,
            waited_before: Duration::ZERO,
            answered: 0,
            requests: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// The session has entered the unit: commands begin.
    pub(super) fn enter(&mut self, nexus: NexusId) {
        self.nexus = Some(nexus);
    }

    /// Bytes that commands take, or may take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Commands that are there.
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether the initiator has data to send for commands that are there.
    pub(super) fn await_data(&self) -> bool {
        self.unsettled > 0
    }

    /// Whether commands that were ended are still there.
    pub(super) fn have_ended(&self) -> bool {
        self.ended > 0
    }

    /// Time passes. How long the command has waited for anything but the initiator that has waited for longest.
    pub(super) fn pass(&mut self, passed: Duration, has_unsent: bool) -> Duration {
        // One that has not begun waits for those before it.
        let is_slow = self.unsettled > 0 || has_unsent;
        self.waited_before = Duration::ZERO;
        let slots = self.slots.iter_mut().flatten();
        slots.map(|slot| slot.pass(passed, is_slow)).max().unwrap_or_default()
    }

    /// How long what the volume is to carry out for this command may wait until it begins.
    pub(super) fn longest_wait(&self, ticket: u32) -> Option<Duration> {
        self.slots.get(ticket as usize)?.as_ref().map(Slot::longest_wait)
    }

    /// Allows the initiator to send as many commands as there is room for. If nothing is there, it is one at least: no answer is to come that
    /// would allow more.
    pub(super) fn allow(&self, sender: &mut Sender) {
        let (used, is_tight) = (self.in_use() as u32, self.bytes + sender.out.bytes() >= MOST_BYTES);
        let room = if is_tight { 0 } else { MOST_COMMANDS.saturating_sub(used) };
        sender.numbers.allow(if used == 0 { room.max(1) } else { room });
    }

    // ---- commands come ---------------------------------------------------------------------------------

    /// Whether a command of this tag is there.
    pub(super) fn has(&self, tag: u32) -> bool {
        self.tags.contains_key(&tag)
    }

    /// A command has come, whose tag is new. It [begins](Self::begin) later. `most`: the most bytes of data that those may have together
    /// which have not begun.
    pub(super) fn add(&mut self, pdu: Pdu, most: usize, sender: &mut Sender) {
        let header = pdu.header;
        let announced = announced_by(&pdu, &self.parameters);
        if self.in_use() >= MOST_SLOTS || !self.has_room_for(announced, most) {
            let (command, answer) = (command_of(&pdu, 0), answer(Status::TaskSetFull, None));
            let read = ReadData { fills: &[], skip: 0 };
            return self.reply(header.task_tag(), &command, answer, read, 0, sender);
        }
        let ticket = self.free.pop().unwrap_or(self.slots.len() as u32);
        let slot = Slot::new(pdu, ticket, &self.parameters, self.waited_before);
        let is_over = matches!(slot.state, State::Over(_));
        match self.slots.get_mut(ticket as usize) {
            Some(place) => *place = Some(slot),
            None => self.slots.push(Some(slot)),
        }
        self.tags.insert(header.task_tag(), ticket);
        self.count(ticket);
        match header.flags() & attribute::MASK {
            _ if is_over => self.settle(ticket, sender),
            attribute::HEAD_OF_QUEUE => self.waiting.push_front(ticket),
            _ => self.waiting.push_back(ticket),
        }
    }

    /// Whether a command may come with so many bytes of data. Any may if none waits.
    fn has_room_for(&self, announced: usize, most: usize) -> bool {
        let waiting = self.waiting.iter().filter_map(|ticket| self.slots[*ticket as usize].as_ref());
        announced == 0
            || self.waiting.is_empty()
            || waiting.map(|slot| slot.transfer.announced()).sum::<usize>() + announced <= most
    }

    /// Data of a command has come. Data of none is dropped: its command has ended.
    pub(super) fn take_data(
        &mut self,
        pdu: Pdu,
        pool: &Pool,
        sender: &mut Sender,
    ) -> Result<(), SessionError> {
        let Some(ticket) = self.tags.get(&pdu.header.task_tag()).copied() else { return Ok(()) };
        self.slot(ticket).transfer.take(pdu, pool)?;
        self.count(ticket);
        match std::mem::replace(&mut self.slot(ticket).state, State::Waits) {
            State::Needs(task) => self.needs(ticket, task, pool, sender)?,
            state => self.slot(ticket).state = state,
        }
        self.settle(ticket, sender);
        Ok(())
    }

    /// The next command that may begin.
    fn next(&self, sender: &Sender) -> Option<u32> {
        let ticket = *self.waiting.front()?;
        let slot = self.slots[ticket as usize].as_ref()?;
        let may_pass = !self.is_ordered && (!slot.is_ordered || self.begun == 0);
        let most = self.unit.borrow().about().most;
        let cost = slot.cost(most).saturating_sub(slot.counted.0);
        let is_alone = self.begun == 0 && sender.out.bytes() == 0;
        let has_room = self.bytes + sender.out.bytes() + cost <= MOST_BYTES || is_alone;
        (self.nexus.is_some() && may_pass && has_room).then_some(ticket)
    }

    /// Whether a command that waits may begin.
    pub(super) fn may_begin(&self, sender: &Sender) -> bool {
        self.next(sender).is_some()
    }

    /// Begins commands that wait, as many as may.
    pub(super) fn begin(&mut self, pool: &Pool, sender: &mut Sender) -> Result<(), SessionError> {
        let Some(nexus) = self.nexus else { return Ok(()) };
        while let Some(ticket) = self.next(sender) {
            let slot = self.slot(ticket);
            let (is_ordered, failed) = (slot.is_ordered, slot.transfer.failed());
            self.waiting.pop_front();
            if let Some(sense) = failed {
                self.slot(ticket).state = State::Over(failure(sense));
                self.settle(ticket, sender);
                continue;
            }
            self.begun += 1;
            self.is_ordered = is_ordered;
            let command = self.slot(ticket).command;
            let (task, step) = Task::begin(&mut self.unit.borrow_mut(), nexus, &command);
            self.proceed(ticket, task, step, pool, sender)?;
        }
        Ok(())
    }

    // ---- steps -----------------------------------------------------------------------------------------

    /// Does what a task needs next.
    fn proceed(
        &mut self,
        ticket: u32,
        task: Task,
        step: Step,
        pool: &Pool,
        sender: &mut Sender,
    ) -> Result<(), SessionError> {
        let slot = self.slot(ticket);
        match step {
            Step::Data(bytes) => {
                slot.transfer.want(bytes);
                return self.needs(ticket, task, pool, sender);
            }
            Step::Block { .. } if !slot.begin_step() => {
                let mut task = task;
                let step = task.refuse(&mut self.unit.borrow_mut());
                return self.proceed(ticket, task, step, pool, sender);
            }
            Step::Change(_) if !slot.may_change() => {
                let mut task = task;
                let step = task.refuse(&mut self.unit.borrow_mut());
                return self.proceed(ticket, task, step, pool, sender);
            }
            Step::Block { operation, sector, sectors } => {
                (slot.state, slot.sector) = (State::AtWork(task), sector);
                slot.fills.clear();
                self.requests.push(BlockRequest { slot: ticket, operation, sector, sectors });
            }
            Step::Change(change) => {
                slot.state = State::AtWork(task);
                self.changes.push((ticket, change));
            }
            Step::Wait => slot.state = State::Blocked(task),
            Step::Done(answer) => {
                slot.state = State::Over(answer);
                self.is_over();
                self.settle(ticket, sender);
                return Ok(());
            }
        }
        self.count(ticket);
        Ok(())
    }

    /// A task needs data: it goes on if all is there, and if not, more is asked for.
    fn needs(
        &mut self,
        ticket: u32,
        mut task: Task,
        pool: &Pool,
        sender: &mut Sender,
    ) -> Result<(), SessionError> {
        let slot = self.slots[ticket as usize].as_mut().expect("a command is there");
        if let Some(sense) = slot.transfer.failed() {
            task.end(&mut self.unit.borrow_mut());
            slot.state = State::Over(failure(sense));
            self.is_over();
            self.settle(ticket, sender);
            return Ok(());
        }
        if let Some(data) = slot.transfer.finish(pool)? {
            let step = task.data(&mut self.unit.borrow_mut(), pool, data);
            return self.proceed(ticket, task, step, pool, sender);
        }
        slot.state = State::Needs(task);
        while let Some(wanted) = slot.transfer.request(self.transfer_tag, &self.parameters) {
            let mut header = Header::new(opcode::R2T, flag::FINAL);
            header.set_u32(field::TASK_TAG, slot.tag);
            header.set_u32(field::TRANSFER_TAG, self.transfer_tag);
            header.set_u32(field::DATA_NUMBER, wanted.number);
            header.set_u32(field::OFFSET, wanted.offset);
            header.set_u32(field::DESIRED_LENGTH, wanted.bytes);
            sender.request(header);
            // No tag: that of nothing.
            self.transfer_tag = (self.transfer_tag + 1) % (u32::MAX - 1);
        }
        self.count(ticket);
        Ok(())
    }

    /// A part of what a command reads.
    pub(super) fn fill(&mut self, ticket: u32, at: u64, blocks: u32, content: Content<Blocks>) {
        let fills = &mut self.slot(ticket).fills;
        fills.retain(|old| old.at + u64::from(old.blocks) <= at || old.at >= at + u64::from(blocks));
        fills.push(Fill { at, blocks, content });
    }

    /// What the blocks of a command hold.
    pub(super) fn map(&mut self, ticket: u32, map: Map) {
        self.slot(ticket).map = Some(map);
    }

    /// The volume has carried out what a command needs.
    pub(super) fn complete(
        &mut self,
        ticket: u32,
        result: Result<(), Failure>,
        pool: &Pool,
        sender: &mut Sender,
    ) -> Result<(), SessionError> {
        let slot = self.slot(ticket);
        let State::AtWork(mut task) = std::mem::replace(&mut slot.state, State::Waits) else {
            panic!("nothing is carried out for command {ticket}");
        };
        if slot.is_ended {
            self.drop_ended(ticket, task);
            return Ok(());
        }
        slot.fills.sort_unstable_by_key(|fill| fill.at);
        let map = slot.map.take();
        let fills = std::mem::take(&mut slot.fills);
        let step = task.carried_out(&mut self.unit.borrow_mut(), pool, result, &fills, map);
        self.slot(ticket).fills = fills;
        self.proceed(ticket, task, step, pool, sender)
    }

    /// The configuration was changed as a command needs it, or not.
    pub(super) fn changed(
        &mut self,
        ticket: u32,
        result: Result<(), ChangeFailed>,
        pool: &Pool,
        sender: &mut Sender,
    ) -> Result<(), SessionError> {
        let slot = self.slot(ticket);
        let State::AtWork(mut task) = std::mem::replace(&mut slot.state, State::Waits) else {
            panic!("nothing is changed for command {ticket}");
        };
        if slot.is_ended {
            self.drop_ended(ticket, task);
            return Ok(());
        }
        let step = task.changed(&mut self.unit.borrow_mut(), result);
        self.proceed(ticket, task, step, pool, sender)
    }

    /// Does what other sessions, and other commands of this one, have given cause for: commands are ended, or go on.
    pub(super) fn wake(&mut self, pool: &Pool, sender: &mut Sender) -> Result<(), SessionError> {
        let Some(nexus) = self.nexus else { return Ok(()) };
        if self.unit.borrow_mut().take_ended(nexus) {
            self.end_all();
        }
        loop {
            let resumed = self.unit.borrow_mut().take_resumed(nexus);
            let Some(ticket) = resumed else { return Ok(()) };
            let Some(Some(slot)) = self.slots.get_mut(ticket as usize) else { continue };
            match std::mem::replace(&mut slot.state, State::Waits) {
                State::Blocked(mut task) => {
                    let step = task.resume(&mut self.unit.borrow_mut(), pool);
                    self.proceed(ticket, task, step, pool, sender)?;
                }
                state => slot.state = state,
            }
        }
    }

    // ---- commands end ----------------------------------------------------------------------------------

    /// Sends the answer of a command that is over, unless the initiator is still sending for it.
    fn settle(&mut self, ticket: u32, sender: &mut Sender) {
        self.count(ticket);
        let slot = self.slots[ticket as usize]
            .take_if(|slot| matches!(slot.state, State::Over(_)) && slot.transfer.is_settled());
        let Some(slot) = slot else { return };
        let State::Over(answer) = slot.state else { unreachable!("it was looked at") };
        self.tags.remove(&slot.tag);
        self.remove(ticket, slot.counted);
        self.allow(sender);
        if answer.status == Status::TaskAborted {
            // Another session has ended it.
            return;
        }
        self.answered += 1;
        let skip = (slot.sector * u64::from(SECTOR)) as usize % BLOCK_BYTES;
        let read = ReadData { fills: &slot.fills, skip };
        self.reply(slot.tag, &slot.command, answer, read, slot.transfer.requests(), sender);
    }

    fn reply(
        &self,
        tag: u32,
        command: &Command,
        answer: Answer,
        read: ReadData<'_>,
        requests: u32,
        sender: &mut Sender,
    ) {
        let sends_descriptors = self.unit.borrow().sends_descriptors();
        let burst = self.parameters.burst;
        Reply { tag, command, answer, read, requests, burst, sends_descriptors }.send(sender);
    }

    /// Ends the command of this tag: it is not answered. Whether there is one.
    pub(super) fn end(&mut self, tag: u32) -> bool {
        let Some(ticket) = self.tags.remove(&tag) else { return false };
        let slot = self.slots[ticket as usize].as_mut().expect("a command is there");
        match std::mem::replace(&mut slot.state, State::Waits) {
            State::AtWork(task) => {
                (slot.state, slot.is_ended) = (State::AtWork(task), true);
                self.ended += 1;
                return true;
            }
            State::Needs(task) | State::Blocked(task) => {
                task.end(&mut self.unit.borrow_mut());
                self.is_over();
            }
            State::Waits => self.waiting.retain(|waits| *waits != ticket),
            State::Over(_) => {}
        }
        if let Some(slot) = self.slots[ticket as usize].take() {
            self.remove(ticket, slot.counted);
        }
        true
    }

    /// Ends all commands.
    pub(super) fn end_all(&mut self) {
        let tags: Vec<u32> = self.tags.keys().copied().collect();
        tags.into_iter().for_each(|tag| _ = self.end(tag));
    }

    /// Ends all commands but those for which something is carried out.
    pub(super) fn end_idle(&mut self) {
        let is_idle = |slot: &&Slot| !matches!(slot.state, State::AtWork(_));
        let tags: Vec<u32> = self.slots.iter().flatten().filter(is_idle).map(|slot| slot.tag).collect();
        tags.into_iter().for_each(|tag| _ = self.end(tag));
    }

    /// A command that was ended has nothing under way any more.
    fn drop_ended(&mut self, ticket: u32, task: Task) {
        task.end(&mut self.unit.borrow_mut());
        self.ended -= 1;
        self.is_over();
        if let Some(slot) = self.slots[ticket as usize].take() {
            self.remove(ticket, slot.counted);
        }
    }

    /// A command that has begun is over.
    fn is_over(&mut self) {
        self.begun -= 1;
        // One that lets no other pass has none beside it.
        self.is_ordered = false;
    }

    fn remove(&mut self, ticket: u32, counted: (usize, bool)) {
        self.bytes -= counted.0;
        self.unsettled -= usize::from(counted.1);
        self.free.push(ticket);
    }

    // ---- slots -----------------------------------------------------------------------------------------

    fn slot(&mut self, ticket: u32) -> &mut Slot {
        self.slots[ticket as usize].as_mut().expect("a command is there")
    }

    /// Counts a command anew, if it is still there.
    fn count(&mut self, ticket: u32) {
        let most = self.unit.borrow().about().most;
        let Some(slot) = &mut self.slots[ticket as usize] else { return };
        let bytes = match slot.state {
            State::Waits | State::Over(_) => slot.transfer.bytes(),
            State::Needs(_) | State::AtWork(_) | State::Blocked(_) => slot.cost(most),
        };
        let before = std::mem::replace(&mut slot.counted, (bytes, !slot.transfer.is_settled()));
        self.unsettled = self.unsettled - usize::from(before.1) + usize::from(slot.counted.1);
        self.bytes = self.bytes - before.0 + bytes;
    }
}

/// The answer to a command whose data is wrong.
fn failure(sense: Sense) -> Answer {
    answer(Status::CheckCondition, Some(sense))
}

/// An answer without data.
fn answer(status: Status, sense: Option<Sense>) -> Answer {
    Answer { status, sense, data: DataIn::Nothing, transfer: 0 }
}
