//! Storage that loses a write is found out.
//!
//! Every unit (up to 4 KiB) that a verifying job writes carries a *tag*: who wrote it, where, in which generation,
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
//! as *unjudged*. A write whose outcome nobody saw (an error, a killed process) leaves two possible generations.

mod journal;
mod tag;

pub(crate) use journal::Journal;

use std::sync::atomic::Ordering;

use crate::outcome::{MOST_EXAMPLES, VerifyReport};
use journal::Entry;
use tag::{Tag, TagError};

/// Judges one disk's units by its journal. Shared by the disk's threads.
pub(crate) struct Verifier {
    journal: Journal,
    name: String,
}

/// What one judgement said.
enum Verdict {
    Fine,
    Unjudged,
    Lost(String),
    Corrupt(String),
    Foreign(String),
}

impl Verifier {
    pub(crate) fn new(journal: Journal, name: String) -> Verifier {
        Verifier { journal, name }
    }

    pub(crate) fn unit(&self) -> usize {
        self.journal.unit()
    }

    /// Claims every unit of a block for a write. `false`, and nothing claimed, if a write to one is in flight.
    pub(crate) fn begin_write(&self, offset: u64, length: usize) -> bool {
        let units = self.journal.units(offset, length);
        for (claimed, unit) in units.clone().enumerate() {
            if !self.journal.claim(unit) {
                units.take(claimed).for_each(|unit| self.journal.unclaim(unit));
                return false;
            }
        }
        true
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
            let (count, words) = match self.judge(unit, content, before, after) {
                Verdict::Fine => continue,
                Verdict::Unjudged => {
                    report.unjudged += 1;
                    continue;
                }
                Verdict::Lost(words) => (&mut report.lost, words),
                Verdict::Corrupt(words) => (&mut report.corrupt, words),
                Verdict::Foreign(words) => (&mut report.foreign, words),
            };
            *count += 1;
            if report.examples.len() < MOST_EXAMPLES {
                let place = unit as u64 * self.unit() as u64;
                report.examples.push(format!("{} at byte {place}: {words}", self.name));
            }
        }
    }

    fn judge(&self, unit: usize, content: &[u8], before: Entry, after: Entry) -> Verdict {
        let still = before == after && !after.in_flight();
        let tag = match Tag::read(content) {
            Ok(tag) => tag,
            Err(_) if !still => return Verdict::Unjudged,
            // Nothing was acknowledged yet, so what was there before may still be.
            Err(_) if before.acknowledged() == 0 => return Verdict::Unjudged,
            Err(TagError::Untagged) => {
                return Verdict::Lost(format!(
                    "generation {} was acknowledged, and there is no tag at all",
                    before.acknowledged()
                ));
            }
            Err(TagError::Checksum { stored, computed }) => {
                return Verdict::Corrupt(format!(
                    "its checksum is {computed:08x} and should be {stored:08x}"
                ));
            }
        };
        let expected = self.tag_of(unit, tag.generation);
        if tag.journal != expected.journal || tag.offset != expected.offset {
            // What another run left here is no fault until a write of ours was acknowledged.
            if before.acknowledged() == 0 {
                return Verdict::Unjudged;
            }
            return Verdict::Foreign(format!(
                "it was written for byte {} under journal {:016x}, this is journal {:016x}",
                tag.offset, tag.journal, expected.journal
            ));
        }
        if tag.generation < before.acknowledged() {
            return Verdict::Lost(format!(
                "generation {} was acknowledged, and generation {} is there",
                before.acknowledged(),
                tag.generation
            ));
        }
        if tag.generation > after.issued() {
            return Verdict::Foreign(format!(
                "generation {} is there, and only {} were ever issued",
                tag.generation,
                after.issued()
            ));
        }
        self.journal.seen(unit, tag.generation);
        Verdict::Fine
    }

    fn tag_of(&self, unit: usize, generation: u32) -> Tag {
        Tag { journal: self.journal.id(), offset: unit as u64 * self.unit() as u64, generation }
    }

    /// The offsets, in bytes, of runs of units that were ever issued, each at most `longest` bytes: what a full
    /// scan reads.
    pub(crate) fn issued_runs(&self, longest: usize) -> Vec<(u64, usize)> {
        let unit = self.unit();
        let mut runs: Vec<(u64, usize)> = Vec::new();
        for index in 0..self.journal.len() {
            if self.journal.entry(index).load(Ordering::Acquire).never_issued() {
                continue;
            }
            let offset = (index * unit) as u64;
            match runs.last_mut() {
                Some((start, length)) if *start + *length as u64 == offset && *length + unit <= longest => {
                    *length += unit;
                }
                _ => runs.push((offset, unit)),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 4096;

    struct Disk {
        verifier: Verifier,
        units: Vec<Vec<u8>>,
        _folder: tempfile::TempDir,
    }

    fn disk(units: usize) -> Disk {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(&folder.path().join("journal"), UNIT, (units * UNIT) as u64).unwrap();
        let verifier = Verifier::new(journal, "disk".into());
        Disk { verifier, units: vec![vec![0; UNIT]; units], _folder: folder }
    }

    impl Disk {
        fn write(&mut self, unit: usize, acknowledged: bool) {
            let offset = (unit * UNIT) as u64;
            assert!(self.verifier.begin_write(offset, UNIT));
            self.verifier.tag(offset, &mut self.units[unit]);
            self.verifier.end_write(offset, UNIT, acknowledged);
        }

        fn read(&self, unit: usize) -> VerifyReport {
            let (mut known, mut report) = (Vec::new(), VerifyReport::default());
            let offset = (unit * UNIT) as u64;
            self.verifier.begin_read(offset, UNIT, &mut known);
            self.verifier.end_read(offset, &self.units[unit], &known, &mut report);
            report
        }
    }

    #[test]
    fn what_was_written_is_fine_and_what_never_was_is_not_judged() {
        let mut disk = disk(2);
        disk.write(0, true);
        assert_eq!(disk.read(0), VerifyReport { checked: 1, ..VerifyReport::default() });
        assert_eq!(disk.read(1), VerifyReport::default());
    }

    #[test]
    fn an_acknowledged_write_that_is_gone_is_lost() {
        let mut disk = disk(1);
        disk.write(0, true);
        let old = disk.units[0].clone();
        disk.write(0, true);
        disk.units[0] = old;
        assert_eq!(disk.read(0).lost, 1);
        disk.units[0].fill(0);
        assert_eq!(disk.read(0).lost, 1, "zeros where a write was acknowledged");
    }

    #[test]
    fn one_flipped_bit_is_corrupt() {
        let mut disk = disk(1);
        disk.write(0, true);
        disk.units[0][4000] ^= 1;
        assert_eq!(disk.read(0).corrupt, 1);
    }

    #[test]
    fn a_unit_at_another_place_is_foreign() {
        let mut disk = disk(2);
        disk.write(0, true);
        disk.write(1, true);
        disk.units.swap(0, 1);
        assert_eq!(disk.read(0).foreign, 1);
    }

    #[test]
    fn a_write_with_unknown_outcome_may_be_there_or_not_but_not_come_and_go() {
        let mut disk = disk(1);
        disk.write(0, true);
        let old = disk.units[0].clone();
        disk.write(0, false);
        let new = std::mem::replace(&mut disk.units[0], old.clone());
        assert_eq!(disk.read(0).bad(), 0, "the old one may be there");
        disk.units[0] = new;
        assert_eq!(disk.read(0).bad(), 0, "and the new one");
        disk.units[0] = old;
        assert_eq!(disk.read(0).lost, 1, "but once read, it must stay");
    }

    #[test]
    fn two_writes_to_one_unit_are_never_in_flight_together() {
        let disk = disk(3);
        assert!(disk.verifier.begin_write(0, 2 * UNIT));
        assert!(!disk.verifier.begin_write(UNIT as u64, 2 * UNIT));
        assert!(disk.verifier.begin_write(2 * UNIT as u64, UNIT), "the failed claim left nothing behind");
    }

    #[test]
    fn a_read_beside_a_write_in_flight_is_judged_as_far_as_it_can_be() {
        let mut disk = disk(1);
        disk.write(0, true);
        assert!(disk.verifier.begin_write(0, UNIT));
        assert_eq!(disk.read(0).bad(), 0);
        disk.units[0][100] ^= 1;
        assert_eq!((disk.read(0).bad(), disk.read(0).unjudged), (0, 1));
    }

    #[test]
    fn a_journal_outlives_its_process_and_judges_a_dead_ones_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let open = || Verifier::new(Journal::open(&path, UNIT, UNIT as u64).unwrap(), "disk".into());
        let mut content = vec![0; UNIT];
        let first = open();
        assert!(first.begin_write(0, UNIT));
        first.tag(0, &mut content);
        first.end_write(0, UNIT, true);
        assert!(first.begin_write(0, UNIT), "and dies with this one in flight");
        drop(first);

        let second = open();
        let (mut known, mut report) = (Vec::new(), VerifyReport::default());
        second.begin_read(0, UNIT, &mut known);
        second.end_read(0, &content, &known, &mut report);
        assert_eq!((report.checked, report.bad()), (1, 0));
        content.fill(0);
        second.end_read(0, &content, &known, &mut report);
        assert_eq!(report.lost, 1);
        assert!(second.begin_write(0, UNIT), "a dead writer's claim is no claim");
    }
}
