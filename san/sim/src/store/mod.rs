//! A replica's store on a simulated disk: in memory, in small steps, with every fault.
//!
//! ```text
//! submit ─▶ queue ─▶ step: write … sync … tell ─▶ completions
//!                           │
//!                           ▼
//!            disk: log, extents, what is kept  ◀── destage: write, sync, commit, free
//! ```
//!
//! The simulator may let the process die ([`Store::kill`]) or cut the power ([`Store::power_loss`]) between any two steps.
//! What is written is readable at once, and survives a kill; only what is synced survives a loss of power for certain.

mod destage;
mod disk;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use loadline_san_core::ids::{Epoch, Position};
use loadline_san_core::message::{Promise, What};
use loadline_san_core::rule::{Rule, left_out};
use loadline_san_core::store::{Command, Completion, Found};

use self::destage::Destage;
use self::disk::{Disk, View};
pub use self::disk::{Known, Record};
use crate::rng::Rng;

/// A block of data: one value for each of its sectors. All zero: a block of zeroes.
pub type Block = [u64; 8];

/// Data of consecutive blocks.
pub type Blocks = Rc<Vec<Block>>;

/// A block of zeroes.
pub const ZERO: Block = [0; 8];

/// Blocks of an extent: they are allocated and freed together, and share one stamp.
pub const EXTENT: u64 = 4;

/// Ranges in one answer to [`Command::Changed`]. Few, so that owners have to ask on.
pub const MOST_RANGES: usize = 2;

/// Appends that are synced together.
const MOST_TOGETHER: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Store {
    disk: Disk,
    health: Health,
    process: Option<Process>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Well,
    /// The next write or sync fails.
    FailsNext,
    /// A write or a sync has failed, or something is lost. The process was not told yet.
    Untold,
    /// It was told. Nothing is done any more.
    Dead,
}

/// What is gone when the process dies.
#[derive(Debug, Default)]
struct Process {
    /// What it was told last: how far destage may go, and its stamp.
    known: Known,
    /// What changes something is done in the order in which it came.
    queue: VecDeque<Command<Blocks>>,
    /// What is left to do of the command that was taken from the queue last.
    plan: VecDeque<Step>,
    /// What only reads is done at any time, in any order.
    reads: Vec<Command<Blocks>>,
    destage: Option<Destage>,
}

/// A step of a command. The process can die between any two.
#[derive(Debug)]
enum Step {
    Append(Record),
    Promise(Promise),
    Keep(Known),
    /// The first half of a return.
    List,
    /// The second.
    Drop(Position),
    /// Everything is forgotten.
    Empty(Position),
    ForgetList,
    /// What cannot be read of the log is dropped.
    Salvage,
    Sync,
    Tell(Completion<Blocks>),
    TellList,
}

impl Store {
    /// A formatted store for so many blocks, empty and durable. It is to be opened.
    pub fn new(blocks: u64, promise: Promise) -> Store {
        Store { disk: Disk::new(blocks, promise), health: Health::Well, process: None }
    }

    /// A process starts: it reads the log, and syncs it (rule R4).
    ///
    /// # Panics
    /// If another has it open.
    pub fn open(&mut self) -> Found {
        assert!(self.process.is_none(), "a process has it open");
        // Only what was durable rots; what was torn ended the log already.
        let rotten = self.disk.log(View::Written).any(|record| record.rotten);
        if self.fails() {
            self.health = Health::Dead;
        } else if !left_out(Rule::R4) {
            self.disk.sync_log();
            self.disk.sync_extents();
        }
        if rotten {
            self.health = Health::Dead;
        }
        let mut known = self.disk.known();
        known.epoch = known.epoch.max(self.disk.promise.written.epoch);
        self.process = Some(Process { known, ..Process::default() });
        Found {
            promise: self.disk.promise.written,
            mark: known.mark,
            epoch: known.epoch,
            end: self.disk.end(),
            damaged: self.health == Health::Dead,
        }
    }

    /// Takes a command. It is carried out by [`step`](Self::step).
    ///
    /// # Panics
    /// If the store is not open, or has no such blocks.
    pub fn submit(&mut self, command: Command<Blocks>) {
        let process = self.process.as_mut().expect("commands come from a process");
        if matches!(command, Command::Salvage) && self.health == Health::Dead && self.disk.has_rotten_log() {
            self.health = Health::Well;
        }
        if matches!(self.health, Health::Untold | Health::Dead) {
            return;
        }
        match &command {
            Command::Append { entry, mark, epoch, .. } => {
                assert!(entry.range().end <= self.disk.blocks, "{:?} is outside", entry.range());
                if let What::Data(payload) = &entry.what {
                    let long =
                        payload.data.len() as u64 >= u64::from(payload.first) + u64::from(entry.blocks);
                    assert!(long, "there is data for each block");
                }
                process.known.raise(Known { mark: *mark, epoch: *epoch });
            }
            Command::Mark { mark, epoch } => process.known.raise(Known { mark: *mark, epoch: *epoch }),
            Command::Read { block, blocks, .. } => {
                assert!(
                    block + u64::from(*blocks) <= self.disk.blocks,
                    "{block} and {blocks} more is outside"
                );
            }
            _ => {}
        }
        match command {
            Command::Read { .. } | Command::Fetch { .. } | Command::Changed { .. } | Command::Above(_) => {
                process.reads.push(command);
            }
            // What a loss of power brings back does no harm.
            Command::Keep(epoch) => self.disk.forget_tombstones(epoch),
            _ => process.queue.push_back(command),
        }
    }

    /// Does the next small step of what is queued. False if there is nothing to do.
    ///
    /// What changes something is done in the order in which it came. What only reads is done in any order, and overtakes:
    /// a device with deep queues is no different.
    pub fn step(&mut self, rng: &mut Rng, out: &mut Vec<Completion<Blocks>>) -> bool {
        let Some(process) = &mut self.process else { return false };
        if self.health == Health::Untold {
            self.health = Health::Dead;
            out.push(Completion::Failed);
            return true;
        }
        let writes = !process.plan.is_empty() || !process.queue.is_empty();
        if !process.reads.is_empty() && (!writes || rng.chance(2)) {
            let read = process.reads.swap_remove(rng.index(process.reads.len()));
            out.push(answer(&self.disk, process.known.mark, read));
            return true;
        }
        if !writes {
            return false;
        }
        if process.plan.is_empty() {
            process.take(rng);
        }
        let step = process.plan.pop_front().expect("every command has a step");
        let tells = matches!(step, Step::Tell(_) | Step::TellList);
        if tells || !self.fails() {
            self.carry_out(step, out);
        }
        true
    }

    fn carry_out(&mut self, step: Step, out: &mut Vec<Completion<Blocks>>) {
        let mark = self.process.as_ref().map_or(Position::START, |process| process.known.mark);
        match step {
            Step::Append(record) => self.disk.append(record),
            Step::Promise(promise) => self.disk.promise.write(|written| *written = promise),
            Step::Keep(known) => {
                let known = self.disk.to_keep(known);
                self.disk.known.write(|written| written.raise(known));
            }
            Step::List => {
                if !left_out(Rule::C1) {
                    self.disk.list_above(mark);
                }
            }
            Step::Drop(after) => self.disk.drop_above(mark, after),
            Step::Empty(after) => {
                if let Some(process) = &mut self.process {
                    process.destage = None;
                }
                self.disk.empty(after);
            }
            Step::Salvage => self.disk.salvage(),
            Step::ForgetList => self.disk.list.write(Vec::clear),
            Step::Sync => self.disk.sync_log(),
            Step::Tell(completion) => out.push(completion),
            Step::TellList => out.push(Completion::Listed(self.disk.list.written.clone())),
        }
    }

    /// The process dies. What is written stays; of the appends that it had queued, some may be written yet.
    pub fn kill(&mut self, rng: &mut Rng) {
        let Some(process) = self.process.take() else { return };
        match self.health {
            Health::Well => {}
            Health::FailsNext => return,
            Health::Untold | Health::Dead => {
                self.health = Health::Dead;
                return;
            }
        }
        let queue = process.queue.into_iter().flat_map(|command| Process::steps_of([command]));
        for step in process.plan.into_iter().chain(queue) {
            if rng.chance(4) {
                break;
            }
            match step {
                Step::Append(_) | Step::Promise(_) => self.carry_out(step, &mut Vec::new()),
                Step::Keep(_) | Step::Sync | Step::Tell(_) | Step::ForgetList => {}
                // Nothing after these was handed to the device before they were durable.
                Step::List | Step::Drop(_) | Step::Empty(_) | Step::TellList | Step::Salvage => break,
            }
        }
    }

    /// The power fails: the process dies, and of all that is not synced a part is lost.
    pub fn power_loss(&mut self, rng: &mut Rng) {
        self.kill(rng);
        self.disk.power_loss(rng);
    }

    /// A block of an extent rots: it cannot be read until it is overwritten. False if there is none.
    pub fn rot(&mut self, rng: &mut Rng) -> bool {
        self.disk.rot(rng)
    }

    /// A durable record of the log rots. What it covers cannot be read, and a start finds the store damaged. False if there
    /// is none.
    pub fn rot_log(&mut self, rng: &mut Rng) -> bool {
        self.disk.rot_log(rng)
    }

    /// A block of an extent does not match its checksum any more.
    pub fn rot_block(&mut self, block: u64) {
        self.disk.rot_block(block);
    }

    /// The device loses what it had said to be durable: the last entry, and the first blocks.
    pub fn lose_last(&mut self) {
        self.disk.lose_last();
    }

    /// The next write or sync fails. That is final (rule R6).
    pub fn fail_next(&mut self) {
        if self.health == Health::Well {
            self.health = Health::FailsNext;
        }
    }

    /// The device is well again, which a start of the process finds.
    pub fn revive(&mut self) {
        self.health = Health::Well;
    }

    /// Whether a write or a sync has failed, or a start has found that something is lost.
    pub fn is_dead(&self) -> bool {
        matches!(self.health, Health::Untold | Health::Dead)
    }

    /// Whether nothing is queued. There may be something to destage.
    pub fn is_idle(&self) -> bool {
        let idle = |p: &Process| p.plan.is_empty() && p.queue.is_empty() && p.reads.is_empty();
        self.health != Health::Untold && self.process.as_ref().is_none_or(idle)
    }

    /// What a read of this block would return if all that has rotted in the log were given up.
    pub fn value_without_rot(&self, block: u64) -> Option<Block> {
        self.disk.value_without_rot(block)
    }

    /// Whether a block matches its checksum.
    pub fn is_whole(&self, block: u64) -> bool {
        self.disk.is_whole(block)
    }

    /// Whether some block does not match its checksum.
    pub fn is_rotten(&self) -> bool {
        self.disk.is_rotten()
    }

    /// Whether a start would find it damaged.
    pub fn has_rotten_log(&self) -> bool {
        self.disk.has_rotten_log()
    }

    /// Blocks of its group.
    pub fn blocks(&self) -> u64 {
        self.disk.blocks
    }

    /// What a read of this block would return now, if nothing had rotted. `None` where nothing is allocated: it reads as
    /// zeroes.
    pub fn value(&self, block: u64) -> Option<Block> {
        self.disk.block(block, View::Written).0
    }

    /// The same, after a loss of power that takes all that is not synced.
    pub fn durable_value(&self, block: u64) -> Option<Block> {
        self.disk.block(block, View::Synced).0
    }

    /// The epoch that the extent of this block is stamped with. `None` if it has neither data nor a tombstone.
    pub fn stamp(&self, block: u64) -> Option<Epoch> {
        self.disk.stamp(block)
    }

    /// What is in the log, in its order.
    pub fn log(&self) -> impl Iterator<Item = &Record> {
        self.disk.log(View::Written)
    }

    /// Whom the replica follows, as far as it is written.
    pub fn promise(&self) -> Promise {
        self.disk.promise.written
    }

    /// The same, durably.
    pub fn durable_promise(&self) -> Promise {
        *self.disk.promise.synced()
    }

    /// The mark: what the process was told last, or a start would find.
    pub fn mark(&self) -> Position {
        self.process.as_ref().map_or_else(|| self.disk.known(), |process| process.known).mark
    }

    /// The last entry of the sequence that is written.
    pub fn end(&self) -> Position {
        self.disk.end()
    }

    /// What is to be copied to it, since entries of its log were dropped.
    pub fn list(&self) -> &[Range<u64>] {
        &self.disk.list.written
    }

    /// Whether the next write or sync fails; if so, nothing is done any more.
    fn fails(&mut self) -> bool {
        if self.health == Health::FailsNext {
            self.health = Health::Untold;
            if let Some(process) = &mut self.process {
                *process = Process { known: process.known, ..Process::default() };
            }
        }
        self.is_dead()
    }
}

impl Process {
    /// Plans what comes next: some appends that are synced together, or one of anything else.
    fn take(&mut self, rng: &mut Rng) {
        let is_append = |command: &&Command<Blocks>| matches!(command, Command::Append { .. });
        let appends = self.queue.iter().take(MOST_TOGETHER).take_while(is_append).count();
        let together = 1 + rng.index(appends.max(1));
        self.plan.extend(Process::steps_of(self.queue.drain(..together)));
    }

    /// The steps of one command, or of some appends.
    fn steps_of(commands: impl IntoIterator<Item = Command<Blocks>>) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut appended = None;
        for command in commands {
            match command {
                Command::Append { number, position, sequenced, entry, mark, epoch } => {
                    let known = Known { mark, epoch };
                    // The log gives it its number.
                    let record = Record { number: 0, position, sequenced, entry, known, rotten: false };
                    steps.push(Step::Append(record));
                    appended = Some(number);
                }
                Command::Promise(promise) => {
                    let tell = Step::Tell(Completion::Promised(promise));
                    steps.extend([Step::Promise(promise), Step::Sync, tell]);
                }
                // What is synced next takes it along.
                Command::Mark { mark, epoch } => steps.push(Step::Keep(Known { mark, epoch })),
                Command::Return { after, empty: false } => {
                    steps.extend([Step::List, Step::Sync, Step::Drop(after), Step::Sync, Step::TellList]);
                }
                Command::Return { after, empty: true } => {
                    steps.extend([Step::Empty(after), Step::Sync, Step::TellList]);
                }
                Command::Joined => steps.push(Step::ForgetList),
                Command::Salvage => steps.extend([Step::Salvage, Step::Sync]),
                Command::Keep(_)
                | Command::Read { .. }
                | Command::Fetch { .. }
                | Command::Changed { .. }
                | Command::Above(_) => {
                    unreachable!("it is not queued")
                }
            }
        }
        if let Some(through) = appended {
            steps.extend([Step::Sync, Step::Tell(Completion::Appended(through))]);
        }
        steps
    }
}

fn answer(disk: &Disk, mark: Position, read: Command<Blocks>) -> Completion<Blocks> {
    match read {
        Command::Read { tag, block, blocks } => Completion::Data { tag, content: disk.read(block, blocks) },
        Command::Fetch { tag, number } => Completion::Data { tag, content: disk.fetch(number) },
        Command::Changed { tag, since, from } => {
            let (ranges, next) = disk.changed(since, from);
            Completion::Changed { tag, ranges, next }
        }
        Command::Above(question) => Completion::Above(question, disk.above(mark)),
        _ => unreachable!("only what reads is answered"),
    }
}
