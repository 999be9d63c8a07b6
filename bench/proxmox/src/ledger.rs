//! What one run has made so far: noted before it is made, so that the end of the run looks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::SystemTime;

use crate::api::Api;
use crate::error::ProxmoxError;
use crate::options::Proxmox;
use crate::parallel::locked;
use crate::present;
use crate::record::Record;
use crate::removal::{CloneState, Made};
use crate::site::number;
use crate::task::Task;

/// So many VMIDs behind the one that Proxmox VE proposes are tried.
const IDS_TRIED: u32 = 1000;

/// The machines of a run, and what all of them are made with.
pub(crate) struct Ledger {
    pub(crate) api: Api,
    pub(crate) options: Proxmox,
    /// The run's id.
    pub(crate) run: String,
    /// Disks of each machine.
    pub(crate) disks: u32,
    /// The key that machines let in.
    pub(crate) public_key: String,
    pub(crate) record: Record,
    made: Mutex<BTreeMap<u32, Made>>,
    /// VMIDs that this run has taken.
    taken: Mutex<BTreeSet<u32>>,
}

impl Ledger {
    pub(crate) fn new(api: Api, options: Proxmox, disks: u32, record: Record) -> Ledger {
        let (run, public_key) = (record.run().into(), record.public_key().into());
        Ledger {
            api,
            options,
            run,
            disks,
            public_key,
            record,
            made: Mutex::default(),
            taken: Mutex::default(),
        }
    }

    /// All machines that were made or may have been; none are left noted here.
    pub(crate) fn take_made(&self) -> Vec<Made> {
        std::mem::take(&mut *locked(&self.made)).into_values().collect()
    }

    /// A VMID that is free now, and that this run has not tried.
    pub(crate) fn next_id(&self) -> Result<u32, ProxmoxError> {
        let mut taken = locked(&self.taken);
        let proposed = self.api.get("/cluster/nextid", &[], "a token that is valid")?;
        let proposed = number(&proposed).ok_or_else(|| {
            ProxmoxError::failed(format!(
                "Proxmox VE answered {proposed} where the next free VMID is expected"
            ))
        })?;
        // Those that are being made may not be there yet.
        let mut id = proposed;
        while taken.contains(&id) {
            id = id.saturating_add(1);
            if id > proposed.saturating_add(IDS_TRIED) {
                return Err(ProxmoxError::failed("there is no free VMID"));
            }
        }
        taken.insert(id);
        Ok(id)
    }

    /// Notes a machine before it is made.
    pub(crate) fn note(&self, vmid: u32, node: &str) -> Result<(), ProxmoxError> {
        self.record.note(vmid, node, None)?;
        let clone = CloneState::Asked(SystemTime::now());
        locked(&self.made).insert(vmid, Made { vmid, node: node.into(), clone });
        present::note(&self.run, vmid);
        Ok(())
    }

    /// Notes the task that clones a machine.
    pub(crate) fn note_clone(&self, vmid: u32, node: &str, task: &Task) -> Result<(), ProxmoxError> {
        self.set_clone(vmid, CloneState::Task(task.clone()));
        self.record.note(vmid, node, Some(task))
    }

    /// The clone of a machine has ended, or was refused.
    pub(crate) fn clone_ended(&self, vmid: u32) {
        self.set_clone(vmid, CloneState::Ended);
    }

    fn set_clone(&self, vmid: u32, state: CloneState) {
        if let Some(made) = locked(&self.made).get_mut(&vmid) {
            made.clone = state;
        }
    }

    /// The machine is another user's.
    pub(crate) fn forget(&self, vmid: u32) {
        locked(&self.made).remove(&vmid);
        present::forget(&self.run, vmid);
    }
}
