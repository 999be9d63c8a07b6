//! All machines of a run: made in parallel within a limit, and removed in the same way.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::api::Api;
use crate::error::{ErrorKind, ProxmoxError};
use crate::ledger::Ledger;
use crate::making::{Making, ReachedMachine, ReadyMachine};
use crate::options::Proxmox;
use crate::parallel::{in_parallel, locked};
use crate::placement::{Place, places};
use crate::present;
use crate::record::Record;
use crate::removal::{Made, Removal};
use crate::site::{Site, Template};
use crate::stop::Stop;

/// How long the deletion of a run's machines may take in all: then those that are left are named.
pub const REMOVAL_LIMIT: Duration = Duration::from_secs(1800);

/// Which machines are to be made, on which nodes: what the cluster was found to have room for.
#[derive(Debug, Clone, PartialEq)]
pub struct MachinePlan {
    templates: Vec<Template>,
    places: Vec<Place>,
    /// The version of Proxmox VE.
    pub version: String,
}

impl MachinePlan {
    /// Asks the cluster, and plans so many machines with so many disks each. Nothing is made.
    pub fn of(api: &Api, options: &Proxmox, machines: u32, disks: u32) -> Result<MachinePlan, ProxmoxError> {
        options.check_disks(disks)?;
        let site = Site::look(api)?;
        let templates = Template::find(api, &site, options)?;
        let places = places(&site, &templates, options, machines, disks)?;
        Ok(MachinePlan { templates, places, version: site.version })
    }

    /// In words, for people: `Proxmox VE 9.1: 4 machines, 2 on pve1, 2 on pve2`.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for place in &self.places {
            *counts.entry(&place.node).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|(node, count)| format!("{count} on {node}")).collect();
        let plural = if self.places.len() == 1 { "" } else { "s" };
        format!("Proxmox VE {}: {} machine{plural}, {}", self.version, self.places.len(), counts.join(", "))
    }
}

/// Makes the machines of one run, and removes them. Its methods block; several threads may call them at the same time.
pub struct Provisioner {
    ledger: Ledger,
    tell: Box<dyn Fn(String) + Send + Sync>,
}

impl std::fmt::Debug for Provisioner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Provisioner({:?}, {})", self.ledger.api, self.ledger.run)
    }
}

impl Provisioner {
    /// For the run of this record. `tell` gets messages for people.
    pub fn new(
        api: Api,
        options: Proxmox,
        disks: u32,
        record: Record,
        tell: Box<dyn Fn(String) + Send + Sync>,
    ) -> Provisioner {
        Provisioner { ledger: Ledger::new(api, options, disks, record), tell }
    }

    /// The record of the run.
    pub fn record(&self) -> &Record {
        &self.ledger.record
    }

    /// What ends all waits of [`make`](Self::make).
    pub fn stop(&self) -> &Stop {
        self.ledger.api.stop()
    }

    /// Makes the machines of a plan with these names, as many as it has, and waits until `reach` reaches each. The results are in the order of
    /// the names. Unless `goes_on`, the first failure stops the others. What was made is left for [`remove`](Self::remove), in any case.
    pub fn make(
        &self,
        plan: &MachinePlan,
        names: &[String],
        goes_on: bool,
        reach: &(dyn Fn(&ReachedMachine) -> Result<(), String> + Sync),
    ) -> Vec<Result<ReadyMachine, ProxmoxError>> {
        let orders: Vec<(usize, &String, &Place)> = names
            .iter()
            .zip(&plan.places)
            .enumerate()
            .map(|(index, (name, place))| (index, name, place))
            .collect();
        let count = orders.len();
        let results = Mutex::new(BTreeMap::new());
        let one = |(index, name, place): (usize, &String, &Place)| {
            let making =
                Making { ledger: &self.ledger, template: &plan.templates[place.template], place, name };
            let began = Instant::now();
            let result = match self.stop().is_requested() {
                true => Err(ProxmoxError::interrupted()),
                false => making.make(reach),
            };
            let mut results = locked(&results);
            match &result {
                Ok(ready) => (self.tell)(format!(
                    "machine {} of {count} is there: {name}, VM {} on {}, after {:.0} s",
                    results.values().filter(|result: &&Result<_, _>| result.is_ok()).count() + 1,
                    ready.vmid,
                    ready.node,
                    began.elapsed().as_secs_f64()
                )),
                Err(error) if error.kind != ErrorKind::Interrupted && !goes_on => self.stop().request(),
                Err(_) => {}
            }
            results.insert(index, result);
        };
        in_parallel(self.ledger.options.at_once, orders, &one);
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.into_values().collect()
    }

    /// Stops and deletes all machines that were made, also if stopping was asked for. Returns what is left, in words; if that is nothing, the
    /// record is removed too.
    pub fn remove(&self) -> Vec<String> {
        let api = self.ledger.api.to_clean();
        let made = self.ledger.take_made();
        if made.is_empty() {
            self.ledger.record.remove();
            return Vec::new();
        }
        let count = made.len();
        (self.tell)(format!("deleting {count} machine{}", if count == 1 { "" } else { "s" }));
        let (run, until) = (&self.ledger.run, Instant::now() + REMOVAL_LIMIT);
        let removal = Removal { api: &api, run, until, tell: &*self.tell };
        let left = Mutex::new(Vec::new());
        in_parallel(self.ledger.options.at_once, made, &|machine: Made| match removal.remove(&machine) {
            Ok(_) => present::forget(run, machine.vmid),
            Err(error) => locked(&left).push(error.message),
        });
        let left = left.into_inner().unwrap_or_else(PoisonError::into_inner);
        if left.is_empty() {
            self.ledger.record.remove();
        }
        left
    }
}
