//! Ctrl-C: the first one stops what runs, in order; the second one ends the program at once, leaves none of the files behind
//! that it made, and names the machines that it leaves in a cluster.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

use loadline_base::limits::STACK;
use loadline_proxmox::machines_present;
use nix::libc;
use nix::sys::signal::{SigSet, Signal};

use crate::output::eprint_line;
use crate::process::exit::Exit;
use crate::process::made;

/// Catches SIGINT, SIGTERM and SIGHUP (the terminal is gone) from now on. Call it before any thread is made: threads
/// inherit that the signals are not theirs. The flag is set by the first one.
pub(crate) fn flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    if !is_ignored(Signal::SIGHUP) {
        signals.add(Signal::SIGHUP);
    }
    if signals.thread_block().is_err() {
        return stop;
    }
    let set = Arc::clone(&stop);
    let waits = move || {
        while let Ok(signal) = signals.wait() {
            if set.swap(true, Ordering::Relaxed) {
                name_machines();
                made::remove_for_good();
                Exit::Interrupted.end();
            }
            let typed = signal == Signal::SIGINT;
            // On a terminal the cursor is behind "^C".
            let line = if typed && std::io::stderr().is_terminal() { "\n" } else { "" };
            let again = if typed { " (once more ends it at once)" } else { "" };
            eprint_line!("{line}loadline: stopping{again}");
        }
    };
    // Without this thread the signals would be blocked for good.
    if Builder::new().name("signals".into()).stack_size(STACK).spawn(waits).is_err() {
        let _ = signals.thread_unblock();
    }
    stop
}

/// Names the machines that runs of this process leave in a cluster.
fn name_machines() {
    for (run, machines) in machines_present() {
        let machines: Vec<String> = machines.iter().map(ToString::to_string).collect();
        eprint_line!(
            "loadline: run {run} leaves VM {} in Proxmox VE: 'loadline fleet clean STUDY.toml' deletes what is left, and so does the next run",
            machines.join(", ")
        );
    }
}

/// Whether a signal is ignored, as `nohup` has it: waiting for it would catch it all the same.
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: sigaction is plain data for which zeros are valid; with no new action the call only fills it.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal as libc::c_int, std::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_IGN
    }
}
