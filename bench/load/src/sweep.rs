//! One pass over a disk: filling it, or reading all of it that is known to be checked.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use loadline_profile::Data;
use nix::errno::Errno;

use crate::data::{self, Stamp};
use crate::engine::{Engine, Io, Kind};
use crate::error::LoadError;
use crate::outcome::VerifyReport;
use crate::verify::{Refused, Verifier};

/// Bytes of one I/O of a sweep, at the most.
pub(crate) const CHUNK: usize = 1 << 20;
/// I/Os outstanding in a sweep.
pub(crate) const DEPTH: usize = 8;
/// How long a server may take to make durable what it was given.
const FLUSHED: Duration = Duration::from_secs(120);
/// A scan reads in whole multiples of this, so that direct I/O takes them, however small the verified units are; and
/// where a larger piece cannot be read, it is tried again in pieces of this size.
pub(crate) const GRANULE: usize = 4096;
/// No completion at all for so long is a hung disk.
const HUNG: Duration = Duration::from_secs(120);
/// How often a stop is checked for.
const TICK: Duration = Duration::from_millis(100);

/// What a sweep does with each piece.
pub(crate) enum Task<'a> {
    /// Writes it, tagged if it is verified.
    Fill { stamp: Option<Stamp>, verifier: Option<&'a Verifier> },
    /// Reads and judges it. What cannot be read is counted, and the scan goes on.
    Scan { verifier: &'a Verifier, report: &'a mut VerifyReport, known: Vec<Vec<u64>> },
}

impl Task<'_> {
    fn kind(&self) -> Kind {
        match self {
            Task::Fill { .. } => Kind::Write,
            Task::Scan { .. } => Kind::Read,
        }
    }
}

/// The pieces of a range, in order.
pub(crate) fn pieces(from: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..length.div_ceil(CHUNK as u64)).map(move |i| {
        let at = i * CHUNK as u64;
        (from + at, (length - at).min(CHUNK as u64) as usize)
    })
}

/// Gives an engine's write memory its content before a fill.
pub(crate) fn prepare_memory(engine: &mut dyn Engine, data: Data, seed: u64) {
    if let Some(memory) = engine.memory().write_region() {
        data::fill(memory, CHUNK, data, seed);
    }
}

/// Goes over the pieces, [`DEPTH`] at a time, and counts the bytes done. Where it fails, what it found so far stands
/// in the task's report.
pub(crate) fn sweep(
    engine: &mut dyn Engine,
    name: &str,
    pieces: &mut dyn Iterator<Item = (u64, usize)>,
    mut task: Task<'_>,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), LoadError> {
    let kind = task.kind();
    let verb = if kind == Kind::Write { "filling" } else { "checking" };
    let failed = |e: io::Error| LoadError::failed(format!("{verb} {name} failed: {e}"));
    let mut at = [(0u64, 0usize); DEPTH];
    let mut free: Vec<u32> = (0..DEPTH as u32).collect();
    let mut again: VecDeque<(u64, usize)> = VecDeque::new();
    let mut idle = Duration::ZERO;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(LoadError::interrupted());
        }
        while let Some(slot) = free.pop() {
            let Some((offset, length)) = again.pop_front().or_else(|| pieces.next()) else {
                free.push(slot);
                break;
            };
            at[slot as usize] = (offset, length);
            before(engine, &mut task, slot, offset, length).map_err(|refused| {
                LoadError::failed(format!("{verb} {name} failed at byte {offset}: {refused}"))
            })?;
            engine.push(Io { slot, kind, offset, length: length as u32 }).map_err(failed)?;
        }
        if free.len() == DEPTH {
            return Ok(());
        }
        engine.wait(1, TICK).map_err(failed)?;
        let mut any = false;
        while let Some((slot, result)) = engine.reap() {
            any = true;
            let (offset, length) = at[slot as usize];
            // A short transfer has no error of its own.
            let moved = usize::try_from(result).unwrap_or(0);
            let why = || match result {
                n if n < 0 => Errno::from_raw(-n).desc().to_string(),
                n => format!("only {n} bytes of {length} were moved"),
            };
            let whole = moved >= on_disk(&task, offset, length);
            match &mut task {
                task if whole => after(engine, task, slot, offset, length),
                Task::Scan { .. } if length > GRANULE => {
                    again.extend(split(offset, length));
                    free.push(slot);
                    continue;
                }
                Task::Scan { verifier, report, .. } => {
                    verifier.unreadable(offset, verifier.on_disk(offset, length), &why(), report);
                }
                Task::Fill { .. } => {
                    return Err(LoadError::failed(format!(
                        "{verb} {name} failed at byte {offset}: {}",
                        why()
                    )));
                }
            }
            done.fetch_add(length as u64, Ordering::Relaxed);
            free.push(slot);
        }
        idle = if any { Duration::ZERO } else { idle + TICK };
        if idle >= HUNG {
            return Err(LoadError::failed(format!(
                "{verb} {name}: nothing completed for {} s",
                HUNG.as_secs()
            )));
        }
    }
}

/// The pieces in which one that failed is tried again.
fn split(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize)> {
    (0..length).step_by(GRANULE).map(move |at| (offset + at as u64, (length - at).min(GRANULE)))
}

/// How much of a piece an I/O moves if all is well: the last piece of a scan may reach beyond the disk's end.
fn on_disk(task: &Task<'_>, offset: u64, length: usize) -> usize {
    match task {
        Task::Fill { .. } => length,
        Task::Scan { verifier, .. } => verifier.on_disk(offset, length),
    }
}

fn before(
    engine: &mut dyn Engine,
    task: &mut Task<'_>,
    slot: u32,
    offset: u64,
    length: usize,
) -> Result<(), Refused> {
    let judged = on_disk(task, offset, length);
    match task {
        Task::Fill { stamp, verifier } => {
            let block = &mut engine.memory().slot(slot, Kind::Write)[..length];
            if let Some(stamp) = stamp {
                stamp.apply(block);
            }
            if let Some(verifier) = verifier {
                verifier.begin_write(offset, length)?;
                verifier.tag(offset, block);
            }
        }
        Task::Scan { verifier, known, .. } => verifier.begin_read(offset, judged, &mut known[slot as usize]),
    }
    Ok(())
}

fn after(engine: &mut dyn Engine, task: &mut Task<'_>, slot: u32, offset: u64, length: usize) {
    let judged = on_disk(task, offset, length);
    match task {
        Task::Fill { verifier: Some(verifier), .. } => verifier.end_write(offset, length, true),
        Task::Fill { verifier: None, .. } => {}
        Task::Scan { verifier, report, known } => {
            let block = &engine.memory().slot(slot, Kind::Read)[..judged];
            verifier.end_read(offset, block, &known[slot as usize], report);
        }
    }
}

/// Makes all durable that the engine has written.
pub(crate) fn flush(engine: &mut dyn Engine, name: &str) -> Result<(), LoadError> {
    let failed =
        |why: String| LoadError::failed(format!("filling {name} failed: it could not be flushed: {why}"));
    engine
        .push(Io { slot: 0, kind: Kind::Flush, offset: 0, length: 0 })
        .map_err(|e| failed(e.to_string()))?;
    let begun = std::time::Instant::now();
    while begun.elapsed() < FLUSHED {
        engine.wait(1, TICK).map_err(|e| failed(e.to_string()))?;
        match engine.reap() {
            Some((_, result)) if result < 0 => return Err(failed(Errno::from_raw(-result).desc().into())),
            Some(_) => return Ok(()),
            None => {}
        }
    }
    Err(failed(format!("it is not answered within {} s", FLUSHED.as_secs())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Memory;
    use crate::verify::{Journal, Reported};

    #[test]
    fn pieces_cover_a_range_once() {
        let all: Vec<_> = pieces(4096, (2 << 20) + 512).collect();
        assert_eq!(all, [(4096, CHUNK), (4096 + (1 << 20), CHUNK), (4096 + (2 << 20), 512)]);
        assert_eq!(pieces(0, 0).count(), 0);
    }

    /// A disk of zeros, on which some bytes cannot be read.
    struct Broken {
        memory: Memory,
        bad: std::ops::Range<u64>,
        size: u64,
        done: VecDeque<(u32, i32)>,
    }

    impl Engine for Broken {
        fn push(&mut self, io: Io) -> io::Result<()> {
            let end = io.offset + u64::from(io.length);
            let fails = io.offset < self.bad.end && self.bad.start < end;
            let moved = end.min(self.size).saturating_sub(io.offset) as i32;
            self.memory.slot(io.slot, Kind::Read).fill(0);
            self.done.push_back((io.slot, if fails { -(Errno::EIO as i32) } else { moved }));
            Ok(())
        }

        fn submit(&mut self) -> io::Result<()> {
            Ok(())
        }

        fn wait(&mut self, _want: usize, _limit: Duration) -> io::Result<()> {
            Ok(())
        }

        fn reap(&mut self) -> Option<(u32, i32)> {
            self.done.pop_front()
        }

        fn memory(&mut self) -> &mut Memory {
            &mut self.memory
        }
    }

    fn scan_broken(unit: usize, units: usize, bad: std::ops::Range<u64>) -> (VerifyReport, u64) {
        let folder = tempfile::tempdir().unwrap();
        let size = (unit * units) as u64;
        let journal = Journal::open(&folder.path().join("journal"), unit, size, Reported::Forget).unwrap();
        let verifier = Verifier::new(journal, "disk".into());
        verifier.begin_write(0, unit * units).unwrap();
        verifier.end_write(0, unit * units, true);
        let memory = Memory::new(CHUNK, DEPTH, true, false).unwrap();
        let mut engine = Broken { memory, bad, size, done: VecDeque::new() };
        let (mut report, done) = (VerifyReport::default(), AtomicU64::new(0));
        let task = Task::Scan { verifier: &verifier, report: &mut report, known: vec![Vec::new(); DEPTH] };
        let mut runs = verifier.issued_runs(CHUNK, GRANULE);
        sweep(&mut engine, "disk", &mut runs, task, &done, &AtomicBool::new(false)).unwrap();
        (report, done.into_inner())
    }

    #[test]
    fn what_cannot_be_read_is_counted_and_the_scan_goes_on() {
        let (report, done) = scan_broken(4096, 1000, 40_000..41_000);
        assert_eq!((report.unreadable, report.lost, report.checked), (2, 998, 998));
        assert_eq!(done, 4096 * 1000, "progress comes to the end");
        let (report, _) = scan_broken(4096, 16, 40_000..41_000);
        let words = report.examples.iter().find(|e| e.contains("cannot be read")).unwrap();
        assert!(words.contains("byte 36864"), "{words}");
    }

    #[test]
    fn small_units_are_read_in_pieces_that_direct_io_takes() {
        // 1001 units of 512 bytes: the last piece reaches beyond the end.
        let (report, _) = scan_broken(512, 1001, 0..1);
        assert_eq!((report.unreadable, report.lost), (8, 993));
    }
}
