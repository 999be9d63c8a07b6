//! Disks that keep, lose, tear and mix up what was written to them.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::*;
use crate::error::{ErrorKind, LoadError};

const UNIT: usize = 4096;

struct Disk {
    verifier: Verifier,
    units: Vec<Vec<u8>>,
    _folder: tempfile::TempDir,
}

fn journal(path: &Path, units: usize) -> Result<Journal, LoadError> {
    Journal::open(path, UNIT, (units * UNIT) as u64, Reported::Forget)
}

fn verifier(path: &Path, units: usize) -> Verifier {
    Verifier::new(journal(path, units).unwrap(), "disk".into())
}

fn disk(units: usize) -> Disk {
    let folder = tempfile::tempdir().unwrap();
    let verifier = verifier(&folder.path().join("journal"), units);
    Disk { verifier, units: vec![vec![0; UNIT]; units], _folder: folder }
}

impl Disk {
    fn write(&mut self, unit: usize, acknowledged: bool) {
        let offset = (unit * UNIT) as u64;
        self.verifier.begin_write(offset, UNIT).unwrap();
        self.verifier.tag(offset, &mut self.units[unit]);
        self.verifier.end_write(offset, UNIT, acknowledged);
    }

    /// Reads and judges as a process that has not seen this disk before.
    fn read(&self, unit: usize) -> VerifyReport {
        self.verifier.journal.settle(Reported::Forget).unwrap();
        self.read_again(unit)
    }

    fn read_again(&self, unit: usize) -> VerifyReport {
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
    let begin = |unit: usize, units: usize| disk.verifier.begin_write((unit * UNIT) as u64, units * UNIT);
    assert_eq!(begin(1, 1), Ok(()));
    assert_eq!(begin(0, 2), Err(Refused::InFlight));
    assert_eq!(begin(1, 2), Err(Refused::InFlight));
    assert_eq!(begin(2, 1), Ok(()));
    assert_eq!(begin(0, 1), Ok(()), "the failed claim left nothing behind");
}

#[test]
fn a_read_beside_a_write_in_flight_is_judged_as_far_as_it_can_be() {
    let mut disk = disk(1);
    disk.write(0, true);
    disk.verifier.begin_write(0, UNIT).unwrap();
    assert_eq!(disk.read_again(0).bad(), 0);
    disk.units[0][100] ^= 1;
    let report = disk.read_again(0);
    assert_eq!((report.bad(), report.unjudged), (0, 1));
}

#[test]
fn a_journal_outlives_its_process_and_judges_a_dead_ones_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let open = || verifier(&path, 1);
    let mut content = vec![0; UNIT];
    let first = open();
    first.begin_write(0, UNIT).unwrap();
    first.tag(0, &mut content);
    first.end_write(0, UNIT, true);
    // And dies with this one in flight.
    first.begin_write(0, UNIT).unwrap();
    drop(first);

    let second = open();
    let (mut known, mut report) = (Vec::new(), VerifyReport::default());
    second.begin_read(0, UNIT, &mut known);
    second.end_read(0, &content, &known, &mut report);
    assert_eq!((report.checked, report.bad()), (1, 0));
    content.fill(0);
    second.end_read(0, &content, &known, &mut report);
    assert_eq!(report.lost, 1);
    assert_eq!(second.begin_write(0, UNIT), Ok(()), "a dead writer's claim is no claim");
}

#[test]
fn a_torn_write_of_unknown_outcome_is_not_judged() {
    let mut disk = disk(1);
    disk.write(0, true);
    let old = disk.units[0].clone();
    disk.units[0][1000..].fill(7);
    disk.write(0, false);
    // Devices write no more than a sector at once: the old half and the new half may both be there.
    disk.units[0][2048..].copy_from_slice(&old[2048..]);
    let report = disk.read(0);
    assert_eq!((report.bad(), report.unjudged), (0, 1), "{:?}", report.examples);
    disk.units[0].fill(0);
    assert_eq!(disk.read(0).lost, 1, "zeros are in neither half");
    disk.write(0, true);
    disk.units[0][3000] ^= 1;
    assert_eq!(disk.read(0).corrupt, 1, "once a later write is acknowledged, it counts again");
}

#[test]
fn a_bad_unit_is_counted_once_however_often_it_is_read() {
    let mut disk = disk(1);
    disk.write(0, true);
    disk.units[0][4000] ^= 1;
    let mut all = disk.read(0);
    (0..1000).for_each(|_| all.merge(disk.read_again(0)));
    disk.verifier.unreadable(0, UNIT, "gone", &mut all);
    assert_eq!((all.checked, all.corrupt, all.bad()), (1001, 1, 1));
    assert_eq!(all.examples.len(), 1);
    disk.write(0, true);
    assert_eq!(disk.read_again(0).bad(), 0, "the mark survives a write, and does no harm");
}

#[test]
fn the_next_process_reports_a_bad_unit_again_unless_it_adds_to_the_same_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let judge = |reported: Reported| {
        let journal = Journal::open(&path, UNIT, UNIT as u64, reported).unwrap();
        let verifier = Verifier::new(journal, "disk".into());
        let (mut known, mut report) = (Vec::new(), VerifyReport::default());
        verifier.begin_read(0, UNIT, &mut known);
        verifier.end_read(0, &[0; UNIT], &known, &mut report);
        report.bad()
    };
    let writer = verifier(&path, 1);
    writer.begin_write(0, UNIT).unwrap();
    writer.end_write(0, UNIT, true);
    drop(writer);
    assert_eq!(judge(Reported::Forget), 1);
    assert_eq!(judge(Reported::Keep), 0);
    assert_eq!(judge(Reported::Forget), 1);
}

#[test]
fn a_claim_that_failed_uses_no_generation_up() {
    let mut disk = disk(2);
    disk.write(0, true);
    disk.verifier.begin_write(UNIT as u64, UNIT).unwrap();
    for _ in 0..10 {
        disk.verifier.begin_write(0, 2 * UNIT).unwrap_err();
    }
    let entry = disk.verifier.journal.entry(0).load(Ordering::Acquire);
    assert_eq!((entry.issued(), entry.acknowledged(), entry.in_flight()), (1, 1, false));
    disk.units[0][4000] ^= 1;
    assert_eq!(disk.read_again(0).corrupt, 1, "nothing about it is unknown");
}

#[test]
fn a_unit_written_as_often_as_can_be_counted_is_left_alone() {
    let disk = disk(2);
    let most = (1u64 << 31) - 1;
    disk.verifier.journal.force(1, most << 32 | most);
    assert_eq!(disk.verifier.begin_write(0, 2 * UNIT), Err(Refused::Exhausted));
    assert_eq!(disk.verifier.begin_write(0, UNIT), Ok(()));
}

#[test]
fn a_damaged_journal_is_said_to_be_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    // Acknowledged and never issued; acknowledged beyond what was issued; claimed and never issued.
    for damage in [1, 5 << 32 | 6, 1 << 63, u64::MAX >> 33 | 1 << 31] {
        journal(&path, 2).unwrap().force(1, damage);
        let error = journal(&path, 2).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.message.contains("damaged") && error.message.contains("byte 4096"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_journal_that_was_memory_of_a_machine_keeps_what_it_says_and_one_of_another_disk_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    journal(&path, 2).unwrap().claim(1).unwrap();
    let shared = share_journal(&path, UNIT, 2 * UNIT as u64).unwrap();
    assert_eq!(shared.metadata().unwrap().len(), 1 << 20);
    let error = journal(&path, 2).err().unwrap();
    assert!(error.message.contains("another process uses the journal"), "{error}");
    drop(shared);
    let opened = journal(&path, 2).unwrap();
    assert_eq!(opened.entry(1).load(Ordering::Acquire).issued(), 1);
    assert_eq!(Journal::unit_of(&path), Some(UNIT));
    drop(opened);
    let error = share_journal(&path, UNIT, 1 << 40).unwrap_err();
    assert!(error.message.contains("not a journal of this disk"), "{error}");
    assert_eq!(Journal::unit_of(&folder.path().join("none")), None);
    drop(share_journal(&folder.path().join("new"), UNIT, 2 * UNIT as u64).unwrap());
    assert_eq!(Journal::unit_of(&folder.path().join("new")), None);
    assert_eq!(journal(&folder.path().join("new"), 2).unwrap().len(), 2);
}

#[test]
fn a_journal_has_its_room_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let journal = journal(&path, 1 << 20).unwrap();
    let metadata = std::fs::metadata(&path).unwrap();
    assert!(metadata.blocks() * 512 >= metadata.size(), "{} of {}", metadata.blocks() * 512, metadata.size());
    drop(journal);
    let huge = folder.path().join("huge");
    // An exbibyte of disk needs two pebibytes of journal, which no file system here has.
    let error = Journal::open(&huge, UNIT, 1 << 60, Reported::Forget).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Usage, "{error}");
    assert!(error.message.contains("no room") && error.message.contains("--journal"), "{error}");
    assert!(!huge.exists(), "nothing half made is left");
}

#[test]
fn temporary_journals_are_new_and_not_shared() {
    let folder = tempfile::tempdir().unwrap();
    let (first, made) = temporary_journal(folder.path()).unwrap();
    let (second, _) = temporary_journal(folder.path()).unwrap();
    assert_ne!(first, second);
    let metadata = std::fs::symlink_metadata(&first).unwrap();
    assert_eq!((metadata.size(), metadata.mode() & 0o777), (0, 0o600));
    assert_eq!((metadata.dev(), metadata.ino()), (made.device, made.inode));
    let error = temporary_journal(&folder.path().join("nowhere")).unwrap_err();
    assert!(error.message.contains("TMPDIR"), "{error}");
}

#[test]
fn runs_are_whole_granules_and_at_most_so_long() {
    let disk = disk(11);
    for unit in [0, 1, 5, 6, 7, 10] {
        disk.verifier.begin_write((unit * UNIT) as u64, UNIT).unwrap();
    }
    let runs = |longest: usize, granule: usize| {
        let runs = disk.verifier.issued_runs(longest * UNIT, granule * UNIT);
        runs.map(|(offset, length)| (offset as usize / UNIT, length / UNIT)).collect::<Vec<_>>()
    };
    assert_eq!(runs(2, 1), [(0, 2), (5, 2), (7, 1), (10, 1)]);
    assert_eq!(runs(256, 1), [(0, 2), (5, 3), (10, 1)]);
    assert_eq!(runs(256, 2), [(0, 2), (4, 4), (10, 2)], "the last one reaches beyond the end");
    assert_eq!(disk.verifier.on_disk((10 * UNIT) as u64, 2 * UNIT), UNIT);
}

#[test]
fn what_is_found_is_known_while_the_job_runs_and_each_bad_unit_once() {
    let mut disk = disk(2);
    disk.write(0, true);
    disk.write(1, true);
    disk.units[0].fill(0);
    disk.units[1][1000..].fill(7);
    let mut ended = disk.read_again(0);
    ended.merge(disk.read_again(1));
    ended.merge(disk.read_again(1));
    let Disk { verifier, .. } = disk;
    let found = BadBlocks(vec![Arc::new(verifier)]).report();
    assert_eq!((found.lost, found.corrupt, found.bad()), (1, 1, 2));
    assert_eq!((found.bad(), &found.examples), (ended.bad(), &ended.examples));
    assert_eq!(found.checked, 2, "the bad ones only");
}
