//! What runs that are over have left in a cluster, deleted.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::Api;
use crate::error::ProxmoxError;
use crate::options::Proxmox;
use crate::ownership::{find, is_of_run, is_run_id, run_in};
use crate::record::{left, records_folder};
use crate::removal::remove;
use crate::site::Site;

/// What was found of earlier runs, and done about it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// VMIDs of machines that were deleted, by run.
    pub deleted: BTreeMap<String, Vec<u32>>,
    /// VMIDs of machines that may be of a run which goes on, here or on another machine, by run.
    pub others: BTreeMap<String, Vec<u32>>,
    /// What could not be deleted, in words.
    pub left: Vec<String>,
}

/// Deletes what runs of this user and this machine have left that are over; with `run`, also what that run has left, whatever machine it ran
/// on. Machines that do not carry a run's id in name and description are never touched.
pub fn clean(api: &Api, options: &Proxmox, run: Option<&str>) -> Result<Cleaned, ProxmoxError> {
    if let Some(run) = run.filter(|run| !is_run_id(run)) {
        return Err(ProxmoxError::usage(format!(
            "{run:?} is no id of a run: it has eight hexadecimal digits, and is in the names of its machines"
        )));
    }
    let site = Site::look(api)?;
    let mut by_run: BTreeMap<String, BTreeMap<u32, String>> = BTreeMap::new();
    for machine in site.machines.iter().filter(|machine| !machine.is_template) {
        if let Some(run) = run_in(&machine.name) {
            by_run.entry(run.into()).or_default().insert(machine.vmid, machine.node.clone());
        }
    }
    let records = left(&records_folder()?, &options.api);
    for record in &records {
        by_run.entry(record.run.clone()).or_default().extend(record.machines.iter().cloned());
    }
    let over: BTreeSet<&str> = records.iter().map(|record| record.run.as_str()).chain(run).collect();
    let mut cleaned = Cleaned::default();
    let mut unclean = BTreeSet::new();
    for (run, machines) in by_run {
        for (vmid, node) in machines {
            if over.contains(run.as_str()) {
                match remove(api, &run, vmid, &node) {
                    Ok(true) => cleaned.deleted.entry(run.clone()).or_default().push(vmid),
                    Ok(false) => {}
                    Err(error) => {
                        cleaned.left.push(error.message);
                        unclean.insert(run.clone());
                    }
                }
            } else if find(api, vmid, &node)?.is_some_and(|(_, config)| is_of_run(&config, &run)) {
                cleaned.others.entry(run.clone()).or_default().push(vmid);
            }
        }
    }
    for record in records {
        if !unclean.contains(&record.run) {
            // If it cannot be removed, the next run tries again.
            let _ = record.remove();
        }
    }
    Ok(cleaned)
}
