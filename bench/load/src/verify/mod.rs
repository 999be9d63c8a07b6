//! Storage that loses a write is found out.
//!
//! Every unit (up to 4 KiB) that a verifying job writes carries a *tag*: its writer, its place, its generation,
//! under a checksum of the whole unit. A *journal* beside it, a memory-mapped file that outlives the process, says
//! for each unit which generation was last issued and which was last acknowledged. So any process can judge any
//! unit at any time, a dead worker's included:
//!
//! - its generation is at least the acknowledged one, or an acknowledged write was **lost**;
//! - its checksum holds, or it is **corrupt**;
//! - it was written for this place, by this journal's writers, and was ever issued, or it is **foreign**;
//! - once a generation has been read, nothing older may be read later: reading acknowledges.
//!
//! While a write to a unit is in flight, its content is judged only as far as it can be: torn content is counted
//! as *unjudged*. A write without a known outcome (an error, a killed process) leaves two possible generations,
//! or a mixture of both, since devices write no more than a sector at once: a checksum that fails there is
//! *unjudged* as well. (No mixture lacks the tag: both generations have it, in their first sector.)
//!
//! A bad unit is counted once, however often it is read: the journal marks it as reported.

mod journal;
mod tag;

pub(crate) use journal::{Journal, Refused, Reported};
pub use journal::{share_journal, temporary_journal};

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use crate::outcome::{MOST_EXAMPLES, VerifyReport};
use journal::Entry;
use tag::{Tag, TagError};

/// Judges one disk's units by its journal. Shared by the disk's threads.
pub(crate) struct Verifier {
    journal: Journal,
    name: String,
    /// The bad units so far, of all threads: what is found must be known before its finder ends, or dies.
    found: Mutex<VerifyReport>,
}

/// The bad blocks that a job has found so far, while it runs.
#[derive(Clone)]
pub struct BadBlocks(pub(crate) Vec<Arc<Verifier>>);

impl BadBlocks {
    /// All disks together; `checked` counts the bad ones only. Nothing, if the job does not verify.
    pub fn report(&self) -> VerifyReport {
        let mut all = VerifyReport::default();
        for verifier in &self.0 {
            all.merge(verifier.found.lock().unwrap_or_else(PoisonError::into_inner).clone());
        }
        all
    }
}

/// What is wrong with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Lost,
    Corrupt,
    Foreign,
    Unreadable,
}

impl Fault {
    /// Adds it to a report, with its words if there is room.
    fn count(self, report: &mut VerifyReport, words: &str) {
        *match self {
            Fault::Lost => &mut report.lost,
            Fault::Corrupt => &mut report.corrupt,
            Fault::Foreign => &mut report.foreign,
            Fault::Unreadable => &mut report.unreadable,
        } += 1;
        if report.examples.len() < MOST_EXAMPLES {
            report.examples.push(words.to_string());
        }
    }
}

/// What one judgement said.
enum Verdict {
    Fine,
    Unjudged,
    /// And why, in words.
    Bad(Fault, String),
}

impl Verifier {
    pub(crate) fn new(journal: Journal, name: String) -> Verifier {
        Verifier { journal, name, found: Mutex::default() }
    }

    pub(crate) fn unit(&self) -> usize {
        self.journal.unit()
    }

    /// Claims every unit of a block for a write, or none.
    pub(crate) fn begin_write(&self, offset: u64, length: usize) -> Result<(), Refused> {
        let units = self.journal.units(offset, length);
        for (claimed, unit) in units.clone().enumerate() {
            if let Err(refused) = self.journal.claim(unit) {
                units.take(claimed).for_each(|unit| self.journal.unclaim(unit));
                return Err(refused);
            }
        }
        Ok(())
    }

    /// Tags a claimed block.
    pub(crate) fn tag(&self, offset: u64, block: &mut [u8]) {
        let units = self.journal.units(offset, block.len());
        for (unit, content) in units.zip(block.chunks_mut(self.unit())) {
            let generation = self.journal.entry(unit).load(Ordering::Acquire).issued();
            self.tag_of(unit, generation).write(content);
        }
    }

    /// A claimed write ended: acknowledged, or with an unknown outcome.
    pub(crate) fn end_write(&self, offset: u64, length: usize, acknowledged: bool) {
        for unit in self.journal.units(offset, length) {
            self.journal.release(unit, acknowledged);
        }
    }

    /// Takes down what is known of a block before it is read.
    pub(crate) fn begin_read(&self, offset: u64, length: usize, known: &mut Vec<u64>) {
        known.clear();
        known.extend(
            self.journal.units(offset, length).map(|u| self.journal.entry(u).load(Ordering::Acquire).bits()),
        );
    }

    /// Judges a block that was read; `known` is what [`begin_read`](Self::begin_read) took down.
    pub(crate) fn end_read(&self, offset: u64, block: &[u8], known: &[u64], report: &mut VerifyReport) {
        let units = self.journal.units(offset, block.len());
        for ((unit, content), known) in units.zip(block.chunks(self.unit())).zip(known) {
            let before = Entry::from_bits(*known);
            let after = self.journal.entry(unit).load(Ordering::Acquire);
            if after.never_issued() {
                continue;
            }
            report.checked += 1;
            match self.judge(unit, content, before, after) {
                Verdict::Fine => {}
                Verdict::Unjudged => report.unjudged += 1,
                Verdict::Bad(fault, words) => self.bad(unit, fault, words, report),
            }
        }
    }

    /// Takes down that a block known to be written cannot be read, and why.
    pub(crate) fn unreadable(&self, offset: u64, length: usize, why: &str, report: &mut VerifyReport) {
        for unit in self.journal.units(offset, length) {
            if !self.journal.entry(unit).load(Ordering::Acquire).never_issued() {
                self.bad(unit, Fault::Unreadable, format!("it cannot be read: {why}"), report);
            }
        }
    }

    /// Counts a bad unit, unless it was counted before.
    fn bad(&self, unit: usize, fault: Fault, words: String, report: &mut VerifyReport) {
        if !self.journal.report(unit) {
            return;
        }
        let place = unit as u64 * self.unit() as u64;
        let words = format!("{} at byte {place}: {words}", self.name);
        // Bad units are rare: no thread waits here for another on a disk that is as it should be.
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.checked += u64::from(fault != Fault::Unreadable);
        fault.count(&mut found, &words);
        fault.count(report, &words);
    }

    fn judge(&self, unit: usize, content: &[u8], before: Entry, after: Entry) -> Verdict {
        let still = before.same_writes(after) && !after.in_flight();
        let tag = match Tag::read(content) {
            Ok(tag) => tag,
            Err(_) if !still => return Verdict::Unjudged,
            // Nothing was acknowledged yet, so what was there before may still be.
            Err(_) if before.acknowledged() == 0 => return Verdict::Unjudged,
            Err(TagError::Untagged) => {
                let words = format!(
                    "generation {} was acknowledged, but the block has no tag",
                    before.acknowledged()
                );
                return Verdict::Bad(Fault::Lost, words);
            }
            Err(TagError::Checksum { .. }) if before.outcome_unknown() => return Verdict::Unjudged,
            Err(TagError::Checksum { stored, computed }) => {
                let words = format!("its checksum is {computed:08x} and should be {stored:08x}");
                return Verdict::Bad(Fault::Corrupt, words);
            }
        };
        let expected = self.tag_of(unit, tag.generation);
        if tag.journal != expected.journal || tag.offset != expected.offset {
            // What another run left here is no fault until a write of ours was acknowledged.
            if before.acknowledged() == 0 {
                return Verdict::Unjudged;
            }
            let words = format!(
                "it was written for byte {} under journal {:016x}, this is journal {:016x}",
                tag.offset, tag.journal, expected.journal
            );
            return Verdict::Bad(Fault::Foreign, words);
        }
        if tag.generation < before.acknowledged() {
            let words = format!(
                "generation {} was acknowledged, but the block has generation {}",
                before.acknowledged(),
                tag.generation
            );
            return Verdict::Bad(Fault::Lost, words);
        }
        if tag.generation > after.issued() {
            let words = format!(
                "the block has generation {}, but only {} generations were ever issued",
                tag.generation,
                after.issued()
            );
            return Verdict::Bad(Fault::Foreign, words);
        }
        self.journal.seen(unit, tag.generation);
        Verdict::Fine
    }

    fn tag_of(&self, unit: usize, generation: u32) -> Tag {
        Tag { journal: self.journal.id(), offset: unit as u64 * self.unit() as u64, generation }
    }

    /// The offsets and lengths, in bytes, of runs of units that were ever issued: what a full scan reads. A run is
    /// made of whole granules (whole numbers of units, of which at least one was issued), and is at most `longest`
    /// bytes. The last one may reach beyond the disk's end.
    pub(crate) fn issued_runs(&self, longest: usize, granule: usize) -> impl Iterator<Item = (u64, usize)> {
        let (unit, step) = (self.unit(), (granule / self.unit()).max(1));
        let most = longest / unit;
        let mut next = 0;
        let issued = move |first: usize| {
            let last = (first + step).min(self.journal.len());
            (first..last).any(|unit| !self.journal.entry(unit).load(Ordering::Acquire).never_issued())
        };
        std::iter::from_fn(move || {
            while next < self.journal.len() && !issued(next) {
                next += step;
            }
            let first = next;
            while next < self.journal.len() && next + step - first <= most && issued(next) {
                next += step;
            }
            (next > first).then_some(((first * unit) as u64, (next - first) * unit))
        })
    }

    /// How much of a run lies on the disk, bytes.
    pub(crate) fn on_disk(&self, offset: u64, length: usize) -> usize {
        let end = self.journal.len() as u64 * self.unit() as u64;
        end.saturating_sub(offset).min(length as u64) as usize
    }
}

#[cfg(test)]
mod tests;
