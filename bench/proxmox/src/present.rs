//! The machines that runs of this process have made and not deleted yet: what a process that is ended at once leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use crate::parallel::locked;

static PRESENT: Mutex<BTreeMap<String, BTreeSet<u32>>> = Mutex::new(BTreeMap::new());

/// VMIDs of machines that runs of this process have made, or may have, and not deleted yet, by run.
pub fn machines_present() -> BTreeMap<String, BTreeSet<u32>> {
    locked(&PRESENT).clone()
}

/// Notes a machine.
pub(crate) fn note(run: &str, vmid: u32) {
    locked(&PRESENT).entry(run.into()).or_default().insert(vmid);
}

/// The machine is deleted, or was never the run's.
pub(crate) fn forget(run: &str, vmid: u32) {
    let mut present = locked(&PRESENT);
    if let Some(machines) = present.get_mut(run) {
        machines.remove(&vmid);
        if machines.is_empty() {
            present.remove(run);
        }
    }
}
