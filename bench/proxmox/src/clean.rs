//! What runs that are over have left in a cluster, deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::api::Api;
use crate::error::ProxmoxError;
use crate::options::Proxmox;
use crate::ownership::{find, is_of_run, is_run_id, run_in};
use crate::parallel::{in_parallel, locked};
use crate::record::{left, records_folder};
use crate::removal::{CloneState, Made, Removal};
use crate::site::Site;

/// How long it may take in all: a run waits for it before it makes machines.
const CLEAN_LIMIT: Duration = Duration::from_secs(600);

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
/// on. Machines that do not carry a run's id in name and description are never touched. A request to stop leaves the deletion of those
/// machines whole that has begun, and the others to the next time. `tell` gets messages for people.
pub fn clean(
    api: &Api,
    options: &Proxmox,
    run: Option<&str>,
    tell: &(dyn Fn(String) + Sync),
) -> Result<Cleaned, ProxmoxError> {
    if let Some(run) = run.filter(|run| !is_run_id(run)) {
        return Err(ProxmoxError::usage(format!(
            "{run:?} is no id of a run: it has eight hexadecimal digits, and is in the names of its machines"
        )));
    }
    let until = Instant::now() + CLEAN_LIMIT;
    let site = Site::look(api)?;
    let mut by_run: BTreeMap<String, BTreeMap<u32, Made>> = BTreeMap::new();
    for machine in site.machines.iter().filter(|machine| !machine.is_template) {
        if let Some(run) = run_in(&machine.name) {
            let (vmid, node) = (machine.vmid, machine.node.clone());
            by_run.entry(run.into()).or_default().insert(vmid, Made { vmid, node, clone: CloneState::Ended });
        }
    }
    let records = left(&records_folder()?, &options.api);
    for record in &records {
        let machines = record.machines.iter().map(|machine| (machine.vmid, machine.clone()));
        by_run.entry(record.run.clone()).or_default().extend(machines);
    }
    let over: BTreeSet<&str> = records.iter().map(|record| record.run.as_str()).chain(run).collect();
    let (ours, others): (Vec<_>, Vec<_>) = by_run
        .iter()
        .flat_map(|(run, machines)| machines.values().map(move |machine| (run, machine)))
        .partition(|(run, _)| over.contains(run.as_str()));
    let cleaned = Mutex::new(Cleaned::default());
    let unclean = Mutex::new(BTreeSet::new());
    if !ours.is_empty() {
        tell(format!(
            "deleting what earlier runs have left in Proxmox VE: up to {} machine(s), within {} s",
            ours.len(),
            CLEAN_LIMIT.as_secs()
        ));
    }
    let cleaning = api.to_clean();
    in_parallel(options.at_once, ours, &|(run, machine): (&String, &Made)| {
        if api.stop().is_requested() {
            locked(&unclean).insert(run.clone());
            return;
        }
        match (Removal { api: &cleaning, run, until, tell }).remove(machine) {
            Ok(true) => {
                tell(format!("deleted VM {} that run {run} had left in Proxmox VE", machine.vmid));
                locked(&cleaned).deleted.entry(run.clone()).or_default().push(machine.vmid);
            }
            Ok(false) => {}
            Err(error) => {
                locked(&cleaned).left.push(error.message);
                locked(&unclean).insert(run.clone());
            }
        }
    });
    let mut cleaned = cleaned.into_inner().unwrap_or_else(PoisonError::into_inner);
    cleaned.deleted.values_mut().for_each(|ids| ids.sort_unstable());
    let unclean = unclean.into_inner().unwrap_or_else(PoisonError::into_inner);
    for record in records {
        if !unclean.contains(&record.run) {
            // If it cannot be removed, the next run tries again.
            let _ = record.remove();
        }
    }
    if api.stop().is_requested() {
        return Err(ProxmoxError::interrupted());
    }
    for (run, machine) in others {
        // One that cannot be looked at is named too: its name has the form of ours.
        let is_named = Instant::now() >= until
            || match find(api, machine.vmid, &machine.node) {
                Ok(found) => found.is_some_and(|(_, config)| is_of_run(&config, run)),
                Err(_) => true,
            };
        if is_named {
            cleaned.others.entry(run.clone()).or_default().push(machine.vmid);
        }
    }
    Ok(cleaned)
}
