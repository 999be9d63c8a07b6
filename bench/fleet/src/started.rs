//! A virtual machine that was started for the fleet by a cluster, as its first worker learns of it: it reports how long the start took,
//! until it was ready and until its first I/O.
//!
//! The launcher knows when it asked for the start, the worker knows when it is ready, and the two have different clocks. So the launcher
//! sends how long ago the start was, and the agent in the machine notes the moment of that message on the machine's own clock.

use std::fs::File;
use std::io::Read;
use std::time::Instant;

use loadline_base::clock::Nanos;
use loadline_load::host::{Inventory, MachineFacts};
use loadline_load::{Job, Target};
use serde::{Deserialize, Serialize};

use crate::outside::most_memory;

/// The environment variable by which a worker learns that it is the first one in its machine.
pub(crate) const MACHINE_VARIABLE: &str = "LOADLINE_MACHINE";

/// A machine that was started for the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartedMachine {
    /// What runs it, in words.
    pub(crate) what: String,
    /// How long ago its start was asked for when this was sent, nanoseconds.
    since_ns: u64,
    /// When this was received, on the machine's monotonic clock, nanoseconds; 0 before.
    #[serde(default)]
    received_ns: u64,
}

impl StartedMachine {
    /// To be sent now.
    pub(crate) fn since(what: &str, started: Instant) -> StartedMachine {
        let since_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        StartedMachine { what: what.into(), since_ns, received_ns: 0 }
    }

    /// Received now, on this machine.
    pub(crate) fn received(self) -> StartedMachine {
        StartedMachine { received_ns: Nanos::now().0, ..self }
    }
}

/// What the first worker of such a machine reports of it.
#[derive(Debug)]
pub(crate) struct FirstWorker(MachineFacts);

impl FirstWorker {
    /// That this process is one, and that it is ready now; `None` if it is not.
    pub(crate) fn here() -> Option<FirstWorker> {
        let machine: StartedMachine = serde_json::from_str(&std::env::var(MACHINE_VARIABLE).ok()?).ok()?;
        let since_received = Nanos::now().0.saturating_sub(machine.received_ns);
        Some(FirstWorker(MachineFacts {
            libvirt: None,
            acceleration: machine.what,
            start_to_worker_ns: machine.since_ns.saturating_add(since_received),
            start_to_first_io_ns: None,
            worker_bytes: None,
        }))
    }

    /// Reads a block of the job's first disk, unless that was done: the machine's first I/O. The time until then leaves out the time that
    /// the worker waited for its first order.
    pub(crate) fn first_io(&mut self, job: &Job) {
        let disk = job.disks.iter().find_map(|disk| match &disk.target {
            Target::Path(path) => Some(path),
            _ => None,
        });
        let (None, Some(path)) = (self.0.start_to_first_io_ns, disk) else { return };
        let (begun, mut block) = (Nanos::now(), [0; 4096]);
        // If it fails, the job itself says why.
        if File::open(path).and_then(|mut file| file.read(&mut block)).is_ok() {
            let took = Nanos::now().since(begun).0;
            self.0.start_to_first_io_ns = Some(self.0.start_to_worker_ns.saturating_add(took));
        }
    }

    /// Adds what is known of the machine.
    pub(crate) fn describe(&self, inventory: Inventory) -> Inventory {
        Inventory {
            machine: Some(MachineFacts { worker_bytes: most_memory(), ..self.0.clone() }),
            ..inventory
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn how_long_ago_a_machine_was_started_is_sent_and_the_moment_of_that_message_noted() {
        let started = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        let sent = StartedMachine::since("a cluster", started);
        assert!((7_000_000_000..9_000_000_000).contains(&sent.since_ns), "{}", sent.since_ns);
        let text = serde_json::to_string(&sent).unwrap();
        let received = serde_json::from_str::<StartedMachine>(&text).unwrap().received();
        assert!(received.received_ns > 0 && received.since_ns == sent.since_ns);
    }
}
