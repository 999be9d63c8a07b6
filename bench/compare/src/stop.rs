//! Ctrl-C, for what runs for minutes: it ends in order, and leaves no process behind.

use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::{SigSet, Signal};

/// How often a signal came.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// Catches SIGINT, SIGTERM and SIGHUP (the terminal is gone) from now on. Call it before any thread is made: threads
/// inherit that the signals are not theirs. So do the programs that are run from here; `loadline` waits for them in the
/// same way, and nodes of a cluster are killed.
pub(crate) fn catch() {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    if !hangup_is_ignored() {
        signals.add(Signal::SIGHUP);
    }
    if signals.thread_block().is_err() {
        return;
    }
    std::thread::spawn(move || {
        while signals.wait().is_ok() {
            if ASKED.fetch_add(1, Ordering::Relaxed) == 0 {
                eprintln!("\ncompare: stopping (once more ends it at once)");
            }
        }
    });
}

/// How often it was asked to stop: once is in order, twice is at once.
pub(crate) fn asked() -> u32 {
    ASKED.load(Ordering::Relaxed)
}

/// As `nohup` has it: waiting for the signal would catch it all the same.
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 != 0
}
