//! Random commands of several sessions at once, whose steps are carried out in any order, among resets, aborts and failures.
//!
//! What is judged: nothing panics; each step is one that the transport can carry out; each task ends, and leaves nothing locked; and when
//! a COMPARE AND WRITE writes, the volume holds at that moment what it has compared with.

use loadline_base::scsi::operation::*;
use loadline_san_device::pool::{BLOCK_BYTES, Pool};

use super::super::*;
use crate::block::Operation;
use crate::scsi::SECTOR;
use crate::scsi::cdb::COMMANDS;
use crate::scsi::reservations::Reservations;
use crate::scsi::testing::{Disk, Given, Random, about, command, name, pool};
use crate::scsi::unit::{NexusId, Unit};

/// Sessions.
const SESSIONS: u8 = 4;
/// Tasks of a session at once.
const TASKS: usize = 6;

/// A task at its transport.
struct Running {
    task: Task,
    command: Command,
    /// What the initiator sends.
    out: Vec<u8>,
    awaits: Awaits,
    /// It is to end when its block step is complete.
    is_doomed: bool,
}

enum Awaits {
    Data(usize),
    Block(Operation, u64, u32),
    /// The volume has carried its block step out.
    Carried(Given),
    Change(Change),
    Nothing,
}

struct Session {
    nexus: NexusId,
    name: u8,
    tasks: Vec<Option<Running>>,
}

struct World {
    random: Random,
    unit: Unit,
    disk: Disk,
    pool: Pool,
    sessions: Vec<Session>,
    is_standby: bool,
    /// How often each was seen: successful and failed comparisons, waits, conflicts, aborted tasks, changes.
    seen: [u32; 6],
}

impl World {
    fn new(seed: u64) -> World {
        let mut unit = Unit::new(about(), Reservations::default());
        let session = |number| {
            let nexus = unit.enter_now(name(number, 1));
            unit.activate(nexus);
            Session { nexus, name: number, tasks: (0..TASKS).map(|_| None).collect() }
        };
        let sessions = (0..SESSIONS).map(session).collect();
        World {
            random: Random::new(seed),
            unit,
            disk: Disk::new(),
            pool: pool(),
            sessions,
            is_standby: false,
            seen: [0; 6],
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.random.next() as u8).collect()
    }

    /// A block whose bytes are all one of a few.
    fn value(&mut self) -> [u8; SECTOR as usize] {
        [self.random.below(3) as u8; SECTOR as usize]
    }

    /// A command, and what comes with it.
    fn command(&mut self, ticket: u32) -> (Command, Vec<u8>) {
        // Few sectors, so that many overlap.
        let sector = self.random.below(20);
        let sectors = 1 + self.random.below(10) as u32;
        let mut cdb = [0; 16];
        let mut out = Vec::new();
        match self.random.below(12) {
            0 => {
                let bytes = self.bytes(16);
                cdb.copy_from_slice(&bytes);
                let length = self.random.below(5000) as usize;
                out = self.bytes(length);
            }
            1..4 => {
                // A known command, most of whose bits are right.
                let known = self.random.any(COMMANDS);
                for (byte, usage) in cdb.iter_mut().zip(known.usage) {
                    *byte = self.random.next() as u8 & *usage;
                }
                cdb[0] = known.opcode;
                if let Some(action) = known.action {
                    cdb[1] = cdb[1] & 0xe0 | action;
                }
                // Mostly at blocks that are there, and few of them.
                if self.random.below(4) > 0 {
                    let high = if known.usage.len() == 16 { 2..9 } else { 2..5 };
                    cdb[high].fill(0);
                    if known.usage.len() == 16 && known.opcode != COMPARE_AND_WRITE {
                        cdb[10..13].fill(0);
                    }
                }
                let length = self.random.below(6000) as usize;
                out = self.bytes(length);
            }
            4..8 => {
                (cdb[0], cdb[9], cdb[13]) = (COMPARE_AND_WRITE, sector as u8, 1);
                out.extend(self.value());
                out.extend(self.value());
            }
            8 => {
                cdb = super::long(WRITE_16, 0, sector, sectors);
                for _ in 0..sectors {
                    out.extend(self.value());
                }
            }
            9 => {
                let flags = *self.random.any(&[0x00, 0x08, 0x01, 0x09]);
                cdb = super::long(WRITE_SAME_16, flags, sector, sectors);
                out.extend(self.value());
            }
            10 => {
                (cdb[0], cdb[8]) = (UNMAP, 40);
                out = vec![0; 40];
                (out[1], out[3]) = (38, 32);
                for at in [8, 24] {
                    (out[at + 7], out[at + 11]) = (self.random.below(30) as u8, self.random.below(20) as u8);
                }
            }
            _ => {
                let action = self.random.below(7) as u8;
                let kind = *self.random.any(&[1, 3, 5, 6, 7, 8]);
                (cdb[0], cdb[1], cdb[2], cdb[8]) = (PERSISTENT_RESERVE_OUT, action, kind, 24);
                out = vec![0; 24];
                (out[7], out[15]) = (self.random.below(3) as u8, self.random.below(3) as u8);
                out[20] = *self.random.any(&[0, 0, 1, 4, 8]);
            }
        }
        let mut command = command(&cdb, out.len() as u32, self.random.below(6000) as u32, ticket);
        if self.random.below(16) == 0 {
            command.data_out = self.random.below(u64::from(command.data_out) + 1) as u32;
        }
        (command, out)
    }

    fn begin(&mut self, session: usize, slot: usize) {
        let (command, out) = self.command(slot as u32);
        let (task, step) = Task::begin(&mut self.unit, self.sessions[session].nexus, &command);
        let running = Running { task, command, out, awaits: Awaits::Nothing, is_doomed: false };
        self.take(session, slot, running, step);
    }

    /// What a task needs next is kept until it is carried out.
    fn take(&mut self, session: usize, slot: usize, mut running: Running, step: Step) {
        let command = running.command;
        running.awaits = match step {
            Step::Data(bytes) => {
                assert!(bytes > 0 && bytes <= command.data_out as usize, "{command:02x?}: {bytes}");
                Awaits::Data(bytes)
            }
            Step::Block { operation, sector, sectors } => {
                let end = sector + u64::from(sectors);
                assert!(
                    end <= self.unit.about().sectors(),
                    "{command:02x?}: {operation:?} {sector} {sectors}"
                );
                match &operation {
                    Operation::Write(data) => {
                        assert!(sectors > 0 && data.bytes().len() >= sectors as usize * SECTOR as usize);
                        assert!(sectors <= self.unit.about().most / SECTOR);
                    }
                    Operation::Flush => assert_eq!((sector, sectors), (0, 0)),
                    _ => assert!(sectors > 0),
                }
                Awaits::Block(operation, sector, sectors)
            }
            Step::Change(change) => {
                self.seen[5] += 1;
                Awaits::Change(change)
            }
            Step::Wait => {
                self.seen[2] += 1;
                Awaits::Nothing
            }
            Step::Done(answer) => {
                self.judge(&command, &answer);
                running.task.end(&mut self.unit);
                return;
            }
        };
        self.sessions[session].tasks[slot] = Some(running);
    }

    fn judge(&mut self, command: &Command, answer: &Answer) {
        assert_eq!(
            answer.sense.is_some(),
            answer.status == Status::CheckCondition,
            "{command:02x?}: {answer:?}"
        );
        match &answer.data {
            DataIn::Nothing => {}
            DataIn::Bytes(bytes) => assert_eq!(bytes.len() as u64, answer.transfer),
            DataIn::Read { bytes } => {
                assert!(*bytes > 0 && *bytes <= command.data_in as usize && *bytes as u64 <= answer.transfer);
            }
        }
        self.seen[3] += u32::from(answer.status == Status::ReservationConflict);
        if command.cdb[0] == COMPARE_AND_WRITE {
            self.seen[0] += u32::from(answer.status == Status::Good);
            self.seen[1] += u32::from(answer.sense.is_some_and(|sense| sense.key == key::MISCOMPARE));
        }
    }

    /// Carries out something that one task awaits. Whether there was anything.
    fn advance(&mut self, session: usize, slot: usize) -> bool {
        let Some(mut running) = self.sessions[session].tasks[slot].take() else { return false };
        let step = match std::mem::replace(&mut running.awaits, Awaits::Nothing) {
            Awaits::Nothing => {
                self.sessions[session].tasks[slot] = Some(running);
                return false;
            }
            Awaits::Data(bytes) => {
                let mut data = self.pool.take(bytes.div_ceil(BLOCK_BYTES) as u32).unwrap();
                data.bytes_mut().fill(0xaa);
                data.bytes_mut()[..bytes].copy_from_slice(&running.out[..bytes]);
                running.task.data(&mut self.unit, &self.pool, data)
            }
            Awaits::Block(operation, sector, sectors) => {
                let is_write = matches!(operation, Operation::Write(_));
                if is_write && running.command.cdb[0] == COMPARE_AND_WRITE {
                    let now = &self.disk.bytes[(sector * u64::from(SECTOR)) as usize..][..SECTOR as usize];
                    assert!(
                        now == &running.out[..SECTOR as usize],
                        "a write came between comparison and write"
                    );
                }
                let given = match self.random.below(24) {
                    0 => (Err(Failure::Corrupt), Vec::new(), None),
                    _ => self.disk.carry_out(&self.pool, operation, sector, sectors),
                };
                running.awaits = Awaits::Carried(given);
                self.sessions[session].tasks[slot] = Some(running);
                return true;
            }
            Awaits::Carried((result, read, map)) => {
                if running.is_doomed {
                    // Its session may still report the completion. If another session has ended it, nothing follows.
                    if self.random.below(2) == 0 {
                        let step = running.task.carried_out(&mut self.unit, &self.pool, result, &read, map);
                        self.seen[4] += u32::from(
                            matches!(&step, Step::Done(answer) if answer.status == Status::TaskAborted),
                        );
                    }
                    running.task.end(&mut self.unit);
                    return true;
                }
                running.task.carried_out(&mut self.unit, &self.pool, result, &read, map)
            }
            Awaits::Change(Change::Activate(_)) => running.task.changed(&mut self.unit, Ok(())),
            Awaits::Change(Change::Reserve { from, to, .. }) => {
                let result = match self.random.below(8) {
                    0 => Err(ChangeFailed::Unavailable),
                    _ if self.unit.reservations() != &from => Err(ChangeFailed::Differs),
                    known => {
                        if known < 4 {
                            self.unit.learn(to);
                        }
                        Ok(())
                    }
                };
                running.task.changed(&mut self.unit, result)
            }
        };
        self.take(session, slot, running, step);
        true
    }

    /// Ends a task without an answer: at once, or when its block step is complete.
    fn abort(&mut self, session: usize, slot: usize) {
        let Some(mut running) = self.sessions[session].tasks[slot].take() else { return };
        if matches!(running.awaits, Awaits::Block(..) | Awaits::Carried(_)) {
            running.is_doomed = true;
            self.sessions[session].tasks[slot] = Some(running);
        } else {
            running.task.end(&mut self.unit);
        }
    }

    /// What every session does at its turn.
    fn turns(&mut self) {
        while self.unit.take_woken() {
            for session in 0..self.sessions.len() {
                let nexus = self.sessions[session].nexus;
                if self.unit.take_ended(nexus) {
                    (0..TASKS).for_each(|slot| self.abort(session, slot));
                }
                while let Some(ticket) = self.unit.take_resumed(nexus) {
                    let slot = ticket as usize;
                    let mut running = self.sessions[session].tasks[slot].take().expect("one that waits");
                    assert!(matches!(running.awaits, Awaits::Nothing), "it waits");
                    let step = running.task.resume(&mut self.unit, &self.pool);
                    self.take(session, slot, running, step);
                }
            }
        }
    }

    fn event(&mut self) {
        let session = self.random.below(SESSIONS.into()) as usize;
        let slot = self.random.below(TASKS as u64) as usize;
        let nexus = self.sessions[session].nexus;
        match self.random.below(400) {
            0 => self.unit.reset(),
            1 => self.unit.clear_tasks(nexus),
            2..8 => self.abort(session, slot),
            8 => {
                // Its session is gone. What is under way takes effect before anything else, or never does.
                for slot in 0..TASKS {
                    let gone = self.sessions[session].tasks[slot].take();
                    if let Some(Running { awaits: Awaits::Block(operation, sector, sectors), .. }) = gone
                        && self.random.below(2) == 0
                    {
                        let _ = self.disk.carry_out(&self.pool, operation, sector, sectors);
                    }
                }
                self.unit.leave(nexus, false);
                self.sessions[session].nexus = self.unit.enter_now(name(self.sessions[session].name, 1));
                if !self.is_standby {
                    self.unit.activate(self.sessions[session].nexus);
                }
            }
            9 => {
                // The volume is taken away from this node, and comes back: the sessions that are there are on standby meanwhile.
                self.unit.deactivate_all();
                self.is_standby = true;
            }
            10..14 if self.is_standby => {
                self.sessions.iter().for_each(|session| self.unit.activate(session.nexus));
                self.is_standby = false;
            }
            10 => self.unit.change(about()),
            11 => self.unit.learn(Reservations::default()),
            _ if self.sessions[session].tasks[slot].is_some() => {
                self.advance(session, slot);
            }
            _ => self.begin(session, slot),
        }
        self.turns();
    }

    /// Everything that is under way ends.
    fn drain(&mut self) {
        loop {
            let mut has_advanced = false;
            for session in 0..self.sessions.len() {
                for slot in 0..TASKS {
                    has_advanced |= self.advance(session, slot);
                    self.turns();
                }
            }
            if !has_advanced {
                break;
            }
        }
        let left = self.sessions.iter().flat_map(|session| &session.tasks).flatten().count();
        assert_eq!(left, 0, "tasks that wait for ever");
        assert!(self.unit.is_idle(), "something is left: {:?}", self.unit);
    }
}

#[test]
fn whatever_comes_in_whatever_order_each_task_ends_and_comparisons_are_atomic() {
    let seed = Random::any_seed();
    println!("seed {seed}");
    let mut seen = [0; 6];
    for run in 0..30 {
        let mut world = World::new(seed.wrapping_add(run * 2));
        for _ in 0..4 {
            for _ in 0..1000 {
                world.event();
            }
            world.drain();
        }
        for (sum, one) in seen.iter_mut().zip(world.seen) {
            *sum += one;
        }
    }
    assert!(seen.iter().all(|count| *count > 20), "this has hardly happened: {seen:?}");
}
