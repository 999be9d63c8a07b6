//! Ctrl-C: the first one stops what runs, in order; the second one ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};

/// Catches SIGINT and SIGTERM from now on. Call it before any thread is made: threads inherit that the signals are
/// not theirs. The flag is set by the first one.
pub(crate) fn flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    if signals.thread_block().is_err() {
        return stop;
    }
    let set = Arc::clone(&stop);
    std::thread::spawn(move || {
        while signals.wait().is_ok() {
            if set.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            eprintln!("\nloadline: stopping (once more ends it at once)");
        }
    });
    stop
}
