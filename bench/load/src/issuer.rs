//! One thread's loop: it keeps its I/Os outstanding, or issues them by the schedule, and takes the times.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use loadline_base::clock::Nanos;
use loadline_measure::interval::Interval;
use nix::errno::Errno;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::address::{Addresses, below};
use crate::data::Stamp;
use crate::engine::{Engine, Io, Kind};
use crate::halt::Halt;
use crate::outcome::VerifyReport;
use crate::pace::Schedule;
use crate::record::{Recorder, Sample, Timetable};
use crate::stop_condition::Watch;
use crate::verify::Verifier;

/// At most this many I/Os are handed over at once: on a disk, handing over whole batches settles into lockstep
/// with the device (each batch waits for the slowest of the one before).
const BATCH: usize = 4;
/// How often another offset is drawn when a verified block has a write in flight, before the slot has to wait.
const REDRAWS: usize = 16;
/// How soon a write that found no free block looks for one again, unless a completion comes first.
const RETRY_AFTER: Nanos = Nanos(1_000_000);
/// The longest sleep: a stop is noticed after this.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// A sleep ends late by what the timer and the scheduler take. It is ended early by what they took lately, at the
/// most this, and the rest is spun: so a paced load is on time, for at most this much CPU an I/O.
const MOST_EARLY: Nanos = Nanos(50_000);

/// A backlog that is never issued is counted in at most so many pieces.
const MOST_PIECES: u64 = 1 << 20;

/// From this size on, giving a block its content takes longer than a clock reading may be old.
const LARGE_BLOCK: usize = 64 << 10;

/// What one thread needs to know.
pub(crate) struct Setting {
    pub(crate) disk: u32,
    pub(crate) slots: usize,
    pub(crate) write_percent: u8,
    pub(crate) flush_every: Option<u32>,
    pub(crate) block: usize,
    pub(crate) timetable: Timetable,
    /// How long I/Os are waited for after the load ends.
    pub(crate) drain: Nanos,
    /// How many completions one wait collects: above one only where it saves much and delays little.
    pub(crate) collect: usize,
    /// Spin instead of sleeping.
    pub(crate) poll: bool,
    /// Nanoseconds of CPU in which it polled for completions and saw none, so far. This thread's alone to write.
    pub(crate) polled: Arc<AtomicU64>,
    pub(crate) addresses: Addresses,
    pub(crate) schedule: Option<Schedule>,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) verifier: Option<Arc<Verifier>>,
    pub(crate) rng: Xoshiro256PlusPlus,
    pub(crate) watch: Arc<Watch>,
}

/// What a thread reports when it ends.
#[derive(Debug, Default)]
pub(crate) struct IssuerReport {
    pub(crate) verify: VerifyReport,
    /// The first error that an I/O returned.
    pub(crate) first_error: Option<String>,
    /// When it began to issue I/Os.
    pub(crate) began: Nanos,
}

#[derive(Clone, Copy)]
struct Slot {
    kind: Kind,
    offset: u64,
    intended: Nanos,
    issued: Nanos,
    /// When it was last free: a scheduled I/O that found no slot was not delayed by the generator.
    freed: Nanos,
    in_flight: bool,
}

pub(crate) struct Issuer<E: Engine> {
    engine: E,
    setting: Setting,
    slots: Vec<Slot>,
    /// Free slots, the one that has been free longest first.
    free: std::collections::VecDeque<u32>,
    recorder: Recorder,
    known: Vec<Vec<u64>>,
    writes_since_flush: u32,
    flush_due: bool,
    /// An I/O that was drawn and has not been issued, since every block drawn for it had a write in flight. It goes
    /// first, or the load would have fewer writes than asked.
    pending: Option<Kind>,
    /// Whether checking or stamping blocks takes so long that each needs a clock reading of its own.
    works_on_blocks: bool,
    /// By how much sleeps ended late, lately.
    overslept: Nanos,
    report: IssuerReport,
}

impl<E: Engine> Issuer<E> {
    pub(crate) fn new(engine: E, setting: Setting, send: Sender<Interval>) -> Issuer<E> {
        let begin = setting.timetable.begin;
        let idle = Slot {
            kind: Kind::Read,
            offset: 0,
            intended: begin,
            issued: begin,
            freed: begin,
            in_flight: false,
        };
        let rate_driven = setting.schedule.is_some();
        Issuer {
            slots: vec![idle; setting.slots],
            free: (0..setting.slots as u32).collect(),
            recorder: Recorder::new(setting.timetable, setting.disk, rate_driven, send),
            known: vec![Vec::new(); if setting.verifier.is_some() { setting.slots } else { 0 }],
            writes_since_flush: 0,
            flush_due: false,
            pending: None,
            works_on_blocks: setting.verifier.is_some()
                || (setting.write_percent > 0 && setting.stamp.is_some() && setting.block >= LARGE_BLOCK),
            overslept: Nanos(0),
            report: IssuerReport::default(),
            engine,
            setting,
        }
    }

    /// Runs from the timetable's begin to its end, and until everything of the window has completed or been waited
    /// for long enough. `halt` ends it at once.
    pub(crate) fn run(mut self, halt: &Halt) -> io::Result<IssuerReport> {
        let timetable = self.setting.timetable;
        let mut now = wait_until(timetable.begin, halt);
        self.report.began = now;
        let give_up = timetable.end + self.setting.drain;
        while !halt.is_told() && now < give_up {
            if now >= timetable.end && self.free.len() == self.slots.len() && !self.owes() {
                break;
            }
            now = self.issue_all(now)?;
            let limit = self.next_wake(now, give_up);
            let want = self.setting.collect.min(self.slots.len() - self.free.len()).max(1);
            self.engine.wait(want, limit)?;
            let woken = Nanos::now();
            self.learn_to_wake(now, limit, woken);
            self.setting.polled.store(self.engine.polled().as_nanos() as u64, Ordering::Relaxed);
            if woken >= self.recorder.next_second() {
                self.note_oldest();
            }
            now = self.complete(woken)?;
            self.recorder.roll(now);
            if self.recorder.second_ended() {
                self.watch_overdue(now);
            }
        }
        match halt.at().filter(|_| !self.setting.watch.tripped()) {
            None => self.censor(now, timetable.close),
            // The window ends with the last whole second. What was intended before and has not come back counts with its age.
            Some(halted) => self.censor(now, timetable.begin_of(timetable.second(halted))),
        }
        self.abandon();
        self.recorder.finish();
        Ok(self.report)
    }

    /// Records how old the oldest outstanding I/O is at the end of the second: while none completes, it is all that is known.
    fn note_oldest(&mut self) {
        let out = self.slots.iter().filter(|slot| slot.in_flight && slot.kind != Kind::Flush);
        if let Some(oldest) = out.map(|slot| slot.intended).min() {
            self.recorder.outstanding(oldest);
        }
    }

    /// Reports I/Os to the stop condition that do not come back: they are in no histogram.
    fn watch_overdue(&self, now: Nanos) {
        if self.setting.watch.wanted() {
            let out = self.slots.iter().filter(|slot| slot.in_flight);
            self.setting.watch.still_out(out.map(|slot| now.since(slot.intended)));
        }
    }

    /// Whether the schedule has I/Os of the window that were not issued yet.
    fn owes(&self) -> bool {
        self.setting.schedule.as_ref().is_some_and(|s| s.peek() < self.setting.timetable.close)
    }

    /// Only what is intended before this is still issued: after the load's end, what the window owes.
    #[inline]
    fn last_intended(&self, now: Nanos) -> Nanos {
        let timetable = &self.setting.timetable;
        if now >= timetable.end { timetable.close } else { timetable.end }
    }

    /// Issues everything that is due, a few at a time; the last few are handed over by the wait that follows.
    #[inline]
    fn issue_all(&mut self, mut now: Nanos) -> io::Result<Nanos> {
        loop {
            let before = self.free.len();
            now = self.issue(now)?;
            if before - self.free.len() < BATCH || self.free.is_empty() {
                return Ok(now);
            }
            self.engine.submit()?;
            now = Nanos::now();
        }
    }

    /// Issues what is due, at most [`BATCH`] I/Os. Returns the time.
    #[inline]
    fn issue(&mut self, mut now: Nanos) -> io::Result<Nanos> {
        let timetable = self.setting.timetable;
        for _ in 0..BATCH {
            let Some(&slot) = self.free.front() else { break };
            let intended = match &self.setting.schedule {
                // After the end, only what the window still owes is issued.
                None if now >= timetable.end => break,
                None => now,
                Some(schedule) => {
                    let next = schedule.peek();
                    if next > now || next >= self.last_intended(now) {
                        break;
                    }
                    next
                }
            };
            if self.flush_due {
                self.flush_due = false;
                self.begin(slot, Kind::Flush, 0, now, now)?;
                continue;
            }
            let kind = self.pending.take().unwrap_or_else(|| self.draw_kind());
            let Some(offset) = self.draw(slot, kind) else {
                self.pending = Some(kind);
                break;
            };
            if kind == Kind::Write {
                self.dress(slot, offset);
            }
            if self.works_on_blocks {
                now = Nanos::now();
            }
            let intended = if self.setting.schedule.is_some() { intended } else { now };
            self.begin(slot, kind, offset, intended, now)?;
            if let Some(schedule) = &mut self.setting.schedule {
                schedule.advance();
            }
        }
        Ok(now)
    }

    /// Hands an I/O to the engine.
    #[inline]
    fn begin(&mut self, slot: u32, kind: Kind, offset: u64, intended: Nanos, now: Nanos) -> io::Result<()> {
        self.free.pop_front();
        let state = &mut self.slots[slot as usize];
        if kind != Kind::Flush {
            let could = intended.max(state.freed);
            self.recorder.issued(intended, now.since(could));
        }
        *state = Slot { kind, offset, intended, issued: now, freed: state.freed, in_flight: true };
        let length = if kind == Kind::Flush { 0 } else { self.setting.block as u32 };
        self.engine.push(Io { slot, kind, offset, length })
    }

    #[inline]
    fn draw_kind(&mut self) -> Kind {
        let write = self.setting.write_percent > 0
            && below(&mut self.setting.rng, 100) < u64::from(self.setting.write_percent);
        if write { Kind::Write } else { Kind::Read }
    }

    /// The next offset; `None` if every one drawn has a write in flight that verifying must not overlap.
    #[inline]
    fn draw(&mut self, slot: u32, kind: Kind) -> Option<u64> {
        let Some(verifier) = &self.setting.verifier else {
            return Some(self.setting.addresses.next(&mut self.setting.rng));
        };
        if kind == Kind::Read {
            let offset = self.setting.addresses.next(&mut self.setting.rng);
            verifier.begin_read(offset, self.setting.block, &mut self.known[slot as usize]);
            return Some(offset);
        }
        (0..REDRAWS)
            .map(|_| self.setting.addresses.next(&mut self.setting.rng))
            .find(|offset| verifier.begin_write(*offset, self.setting.block).is_ok())
    }

    /// Gives a block about to be written its content.
    #[inline]
    fn dress(&mut self, slot: u32, offset: u64) {
        if self.setting.stamp.is_none() && self.setting.verifier.is_none() {
            return;
        }
        let block = self.engine.memory().slot(slot, Kind::Write);
        if let Some(stamp) = &mut self.setting.stamp {
            stamp.apply(block);
        }
        if let Some(verifier) = &self.setting.verifier {
            verifier.tag(offset, block);
        }
    }

    /// Takes what has completed and, in a closed loop, issues again: a few at a time. Returns the time.
    #[inline]
    fn complete(&mut self, mut now: Nanos) -> io::Result<Nanos> {
        let mut batch = 0;
        // Bounded, since an engine that completes at once would keep this loop going for ever.
        for _ in 0..self.slots.len() {
            let Some((slot, result)) = self.engine.reap() else { break };
            if batch == BATCH {
                now = self.issue(now)?;
                self.engine.submit()?;
                now = Nanos::now().max(now);
                batch = 0;
            }
            batch += 1;
            self.completed(slot, result, now);
        }
        Ok(now)
    }

    #[inline]
    fn completed(&mut self, slot: u32, result: i32, now: Nanos) {
        let state = &mut self.slots[slot as usize];
        assert!(state.in_flight, "an I/O completes once");
        let Slot { kind, offset, intended, issued, .. } = *state;
        (state.in_flight, state.freed) = (false, now);
        self.free.push_back(slot);
        let whole = kind == Kind::Flush || result == self.setting.block as i32;
        let ok = result >= 0 && whole;
        if kind != Kind::Flush {
            let bytes = self.setting.block as u64;
            self.recorder.completed(Sample { kind, intended, issued, completed: now, bytes }, ok);
        }
        if kind == Kind::Write {
            self.writes_since_flush += 1;
            if self.setting.flush_every.is_some_and(|n| self.writes_since_flush >= n) {
                (self.writes_since_flush, self.flush_due) = (0, true);
            }
        }
        if let Some(verifier) = &self.setting.verifier {
            match kind {
                Kind::Write => verifier.end_write(offset, self.setting.block, ok),
                Kind::Read if ok => {
                    let block = self.engine.memory().slot(slot, Kind::Read);
                    verifier.end_read(offset, block, &self.known[slot as usize], &mut self.report.verify);
                }
                _ => {}
            }
        }
        if !ok {
            self.failed(kind, offset, result, intended);
        }
    }

    #[cold]
    fn failed(&mut self, kind: Kind, offset: u64, result: i32, intended: Nanos) {
        if kind == Kind::Flush {
            self.recorder.flush_failed(intended);
        }
        if self.report.first_error.is_none() {
            let why = match result {
                n if n < 0 => Errno::from_raw(-n).desc().to_string(),
                n => format!("only {n} bytes of {} were moved", self.setting.block),
            };
            self.report.first_error = Some(format!("{kind:?} at byte {offset}: {why}").to_lowercase());
        }
    }

    /// How long to wait at the most: until the next I/O is due, the second ends, or a stop should be seen.
    #[inline]
    fn next_wake(&self, now: Nanos, give_up: Nanos) -> Duration {
        if self.setting.poll && self.free.len() < self.slots.len() {
            return Duration::ZERO;
        }
        let mut wake = self.recorder.next_second().min(give_up);
        if self.pending.is_some() && !self.free.is_empty() {
            // It is due, and cannot be issued: looking for a block all the time would only take CPU.
            wake = wake.min(now + RETRY_AFTER);
        } else if let Some(schedule) = &self.setting.schedule
            && !self.free.is_empty()
            // What is due after the load's end is never issued: waiting for it would spin through the drain.
            && schedule.peek() < self.last_intended(now)
        {
            wake = wake.min(schedule.peek().since(self.overslept));
        }
        Duration::from(wake.since(now)).min(LONGEST_WAIT)
    }

    /// Takes down by how much a sleep ended late: a moving average over about eight.
    #[inline]
    fn learn_to_wake(&mut self, slept_at: Nanos, limit: Duration, woken: Nanos) {
        let planned = slept_at + Nanos::from(limit);
        if self.setting.schedule.is_some() && !limit.is_zero() && woken > planned {
            let late = woken.since(planned).min(MOST_EARLY);
            self.overslept = Nanos((self.overslept.0 * 7 + late.0) / 8);
        }
    }

    /// Counts what was intended in the window, before a moment, and never completed, with its age: a lower bound.
    fn censor(&mut self, now: Nanos, before: Nanos) {
        for slot in &self.slots {
            if slot.in_flight && slot.kind != Kind::Flush && slot.intended < before {
                self.recorder.censored(slot.kind, slot.intended, now, 1);
            }
        }
        let close = self.setting.timetable.close.min(before).min(now);
        let Some(schedule) = &mut self.setting.schedule else { return };
        // A rate far beyond the storage leaves a backlog of any size: it is counted in at most so many pieces.
        let step = schedule.left_before(close).div_ceil(MOST_PIECES).max(1);
        while schedule.peek() < close {
            let count = step.min(schedule.left_before(close)).max(1);
            let writes = if count == 1 {
                u64::from(below(&mut self.setting.rng, 100) < u64::from(self.setting.write_percent))
            } else {
                count * u64::from(self.setting.write_percent) / 100
            };
            let intended = schedule.peek();
            self.recorder.censored(Kind::Write, intended, now, writes);
            self.recorder.censored(Kind::Read, intended, now, count - writes);
            schedule.skip(count);
        }
    }

    /// What is still in flight has an unknown outcome.
    fn abandon(&mut self) {
        if let Some(verifier) = &self.setting.verifier {
            for slot in self.slots.iter().filter(|s| s.in_flight && s.kind == Kind::Write) {
                verifier.end_write(slot.offset, self.setting.block, false);
            }
        }
    }
}

/// Sleeps until a moment, or until a stop is ordered. Returns the time.
fn wait_until(moment: Nanos, halt: &Halt) -> Nanos {
    loop {
        let now = Nanos::now();
        if now >= moment || halt.is_told() {
            return now;
        }
        std::thread::sleep(Duration::from(moment - now).min(LONGEST_WAIT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Space;
    use crate::engine::Memory;
    use crate::record::Timetable;
    use loadline_base::units::ByteSize;
    use loadline_profile::{Arrival, Profile};
    use rand_core::SeedableRng;
    use std::sync::atomic::AtomicUsize;

    /// A disk that never answers; it counts how often it is waited for.
    struct Hung<'a>(Memory, &'a AtomicUsize);

    impl Engine for Hung<'_> {
        fn push(&mut self, _: Io) -> io::Result<()> {
            Ok(())
        }
        fn submit(&mut self) -> io::Result<()> {
            Ok(())
        }
        fn wait(&mut self, _: usize, limit: Duration) -> io::Result<()> {
            self.1.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(limit);
            Ok(())
        }
        fn reap(&mut self) -> Option<(u32, i32)> {
            None
        }
        fn memory(&mut self) -> &mut Memory {
            &mut self.0
        }
    }

    /// A load of 100 reads a second, for so long.
    fn paced(length: Nanos) -> Setting {
        let profile = Profile::default();
        let space = Arc::new(Space::new(&profile, ByteSize::MIB, "disk").unwrap());
        let begin = Nanos::now();
        let close = begin + length;
        Setting {
            disk: 0,
            slots: 64,
            write_percent: 0,
            flush_every: None,
            block: 4096,
            timetable: Timetable { begin, open: begin, close, end: close },
            drain: Nanos(400_000_000),
            collect: 1,
            poll: false,
            polled: Arc::default(),
            addresses: Addresses::new(space, profile.pattern, Arc::new(AtomicU64::new(0))),
            schedule: Some(Schedule::new(begin, 100.0, Arrival::Uniform, (0, 1), 1)),
            stamp: None,
            verifier: None,
            rng: Xoshiro256PlusPlus::seed_from_u64(1),
            watch: Arc::new(Watch::new(&[])),
        }
    }

    #[test]
    fn each_second_says_how_old_the_oldest_outstanding_io_is_while_none_completes() {
        let (send, receive) = std::sync::mpsc::channel();
        let engine = Hung(Memory::new(4096, 64, true, false).unwrap(), &AtomicUsize::new(0));
        let setting = paced(Nanos(2_100_000_000));
        Issuer::new(engine, setting, send).run(&Halt::default()).unwrap();
        let oldest: Vec<u64> = receive.try_iter().map(|i| i.oldest.0 / 1_000_000).collect();
        assert!(
            (980..=1000).contains(&oldest[0]),
            "milliseconds, of an I/O that was due within 20 ms: {oldest:?}"
        );
        assert_eq!(oldest[1], oldest[0] + 1000, "it is the same one");
    }

    #[test]
    fn a_paced_load_sleeps_while_it_waits_for_a_hung_disk() {
        let (send, receive) = std::sync::mpsc::channel();
        let waits = AtomicUsize::new(0);
        let engine = Hung(Memory::new(4096, 64, true, false).unwrap(), &waits);
        let setting = paced(Nanos(200_000_000));
        Issuer::new(engine, setting, send).run(&Halt::default()).unwrap();
        let censored: u64 = receive.try_iter().map(|i| i.read.censored).sum();
        assert_eq!(censored, 20, "all that were intended are counted, with their age");
        let waits = waits.into_inner();
        assert!(waits < 2_000, "{waits} waits for 20 I/Os: it spins");
    }
}
