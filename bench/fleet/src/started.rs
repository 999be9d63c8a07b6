//! A virtual machine that was started for the fleet by a cluster, as its first worker learns of it: it reports how long the start took,
//! until it was ready and until its first I/O.
//!
//! The time of a machine leaves out what it waits for the other machines of the fleet: the launcher sends how long it took until the machine was
//! reached and its agent connected, and the agent in the machine adds, on its own clock, what its worker takes from its launch on.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

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
    /// From the request to start it until its agent was connected, nanoseconds, without waits for other machines.
    took_ns: u64,
    /// When its worker was launched, on the machine's monotonic clock, nanoseconds; 0 before.
    #[serde(default)]
    launched_ns: u64,
}

impl StartedMachine {
    /// One that took so long until its agent was connected.
    pub(crate) fn new(what: &str, took: Duration) -> StartedMachine {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        StartedMachine { what: what.into(), took_ns, launched_ns: 0 }
    }

    /// The same, as its worker gets it that is launched now, on this machine.
    pub(crate) fn launched(&self) -> StartedMachine {
        StartedMachine { launched_ns: Nanos::now().0, ..self.clone() }
    }
}

/// What the first worker of such a machine reports of it.
#[derive(Debug)]
pub(crate) struct FirstWorker(MachineFacts);

impl FirstWorker {
    /// That this process is one, and that it is ready now; `None` if it is not.
    pub(crate) fn here() -> Option<FirstWorker> {
        let machine: StartedMachine = serde_json::from_str(&std::env::var(MACHINE_VARIABLE).ok()?).ok()?;
        let since_launched = Nanos::now().0.saturating_sub(machine.launched_ns);
        Some(FirstWorker(MachineFacts {
            libvirt: None,
            acceleration: machine.what,
            start_to_worker_ns: machine.took_ns.saturating_add(since_launched),
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

    #[test]
    fn the_time_of_a_machine_leaves_out_what_its_worker_was_not_launched_in() {
        let sent = StartedMachine::new("a cluster", Duration::from_secs(7));
        let text = serde_json::to_string(&sent).unwrap();
        let arrived = serde_json::from_str::<StartedMachine>(&text).unwrap();
        let before = Nanos::now().0;
        let launched = arrived.launched();
        assert!(launched.launched_ns >= before && launched.took_ns == 7_000_000_000, "{launched:?}");
    }
}
