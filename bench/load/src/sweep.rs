//! One pass over a disk: filling it, or reading all of it that is known to be checked.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use loadline_profile::Data;
use nix::errno::Errno;

use crate::data::{self, Stamp};
use crate::engine::{Engine, Io, Kind};
use crate::error::LoadError;
use crate::outcome::VerifyReport;
use crate::verify::Verifier;

/// Bytes of one I/O of a sweep, at the most.
pub(crate) const CHUNK: usize = 1 << 20;
/// I/Os outstanding in a sweep.
pub(crate) const DEPTH: usize = 8;
/// No completion at all for so long is a hung disk.
const HUNG: Duration = Duration::from_secs(120);
/// How often a stop is looked for.
const TICK: Duration = Duration::from_millis(100);

/// What a sweep does with each piece.
pub(crate) enum Task<'a> {
    /// Writes it, tagged if it is verified.
    Fill { stamp: Option<Stamp>, verifier: Option<&'a Verifier> },
    /// Reads and judges it.
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

/// Goes over the pieces, [`DEPTH`] at a time, and counts the bytes done.
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
    let mut idle = Duration::ZERO;
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(LoadError::interrupted());
        }
        while let Some(slot) = free.pop() {
            let Some((offset, length)) = pieces.next() else {
                free.push(slot);
                break;
            };
            at[slot as usize] = (offset, length);
            before(engine, &mut task, slot, offset, length).map_err(|what| {
                LoadError::failed(format!("{verb} {name} failed at byte {offset}: {what}"))
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
            if result != length as i32 {
                let why = if result < 0 {
                    Errno::from_raw(-result).desc().to_string()
                } else {
                    format!("only {result} bytes of {length} were moved")
                };
                return Err(LoadError::failed(format!("{verb} {name} failed at byte {offset}: {why}")));
            }
            after(engine, &mut task, slot, offset, length);
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

fn before(
    engine: &mut dyn Engine,
    task: &mut Task<'_>,
    slot: u32,
    offset: u64,
    length: usize,
) -> Result<(), &'static str> {
    match task {
        Task::Fill { stamp, verifier } => {
            let block = &mut engine.memory().slot(slot, Kind::Write)[..length];
            if let Some(stamp) = stamp {
                stamp.apply(block);
            }
            if let Some(verifier) = verifier {
                if !verifier.begin_write(offset, length) {
                    return Err("a write to it is in flight");
                }
                verifier.tag(offset, block);
            }
        }
        Task::Scan { verifier, known, .. } => verifier.begin_read(offset, length, &mut known[slot as usize]),
    }
    Ok(())
}

fn after(engine: &mut dyn Engine, task: &mut Task<'_>, slot: u32, offset: u64, length: usize) {
    match task {
        Task::Fill { verifier: Some(verifier), .. } => verifier.end_write(offset, length, true),
        Task::Fill { verifier: None, .. } => {}
        Task::Scan { verifier, report, known } => {
            let block = &engine.memory().slot(slot, Kind::Read)[..length];
            verifier.end_read(offset, block, &known[slot as usize], report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_once() {
        let all: Vec<_> = pieces(4096, (2 << 20) + 512).collect();
        assert_eq!(all, [(4096, CHUNK), (4096 + (1 << 20), CHUNK), (4096 + (2 << 20), 512)]);
        assert_eq!(pieces(0, 0).count(), 0);
    }
}
