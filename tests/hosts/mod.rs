//! Fault scripts on real nodes, each in a network namespace as its host.
//!
//! | module | idea |
//! | --- | --- |
//! | `netns` | hosts and their links |
//! | `cluster` | nodes, the store and devices on them |
//! | `etcd` | the store as an etcd on hosts of its own |
//! | `script` | what happens when, from a seed |
//! | `clients` | what clients do, and the log of it |
//! | `play` | a script, played |
//! | `judge` | whether what was read is legal |
//! | `service` | whether what can be served is served |
//! | `summary` | what is printed about the scripts |
//! | `stalls` | how long each kind of fault stops clients |

mod clients;
mod cluster;
mod etcd;
mod judge;
pub(crate) mod netns;
mod play;
pub(crate) mod script;
mod service;
mod service_tests;
pub(crate) mod stalls;
pub(crate) mod summary;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use play::play;
use script::Script;
use summary::Tally;

/// Held while a test of this process runs scripts.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs the scripts of so many seeds from this one on, so many at a time. What they came to.
pub(crate) fn run(first: u64, scripts: u64, at_a_time: u64) -> Tally {
    run_all(&(first..first + scripts).map(Script::of).collect::<Vec<_>>(), at_a_time)
}

/// Runs these scripts, so many at a time. What they came to.
pub(crate) fn run_all(scripts: &[Script], at_a_time: u64) -> Tally {
    // Their hosts have the same names, and a machine is busy with a few.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    netns::remove_leftovers();
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let work = &|worker: usize| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(script) = scripts.get(number).cloned() else { return };
            let seed = script.seed;
            let played = std::thread::spawn(move || play(script, worker)).join();
            let mut tally = tally.lock().expect("no worker panics with it");
            match played {
                Ok(played) => tally.add(&played),
                // What it panicked with is printed.
                Err(_) => tally.broken(seed),
            }
        }
    };
    std::thread::scope(|scope| {
        for worker in 0..scripts.len().min(at_a_time as usize) {
            scope.spawn(move || work(worker));
        }
    });
    let tally = tally.into_inner().expect("no worker panics with it");
    println!("\n{tally}");
    tally
}

/// Whether namespaces can be made here.
pub(crate) fn possible() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("network namespaces need root: not tested");
    }
    root
}
