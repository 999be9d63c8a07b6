//! All machines of a run: made in parallel within a limit, and removed in the same way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::api::Api;
use crate::error::{ErrorKind, ProxmoxError};
use crate::making::Making;
use crate::options::Proxmox;
use crate::placement::{Place, places};
use crate::record::Record;
use crate::removal::remove;
use crate::site::{Site, Template, number};
use crate::stop::Stop;
use crate::task::Task;

/// So many VMIDs behind the one that Proxmox VE proposes are tried.
const IDS_TRIED: u32 = 1000;

/// A machine that has an address and an SSH server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachedMachine {
    /// The name of the fleet's node.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The public key of its SSH server, as its agent read it: `ssh-ed25519 AAAA...`.
    pub host_key: String,
}

/// A machine that SSH reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyMachine {
    /// The name of the fleet's node.
    pub name: String,
    /// The node of the cluster on which it is.
    pub node: String,
    /// Its number in the cluster.
    pub vmid: u32,
    /// Its address.
    pub address: IpAddr,
    /// When its start was asked for.
    pub started: Instant,
}

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

/// A machine that was made, or may have been.
#[derive(Debug, Clone)]
struct Made {
    node: String,
    /// The task that clones it, while it runs.
    clone: Option<Task>,
}

/// Makes the machines of one run, and removes them. Its methods block; several threads may call them at the same time.
pub struct Provisioner {
    pub(crate) api: Api,
    pub(crate) options: Proxmox,
    /// The run's id.
    pub(crate) run: String,
    /// Disks of each machine.
    pub(crate) disks: u32,
    /// The key that machines let in.
    pub(crate) public_key: String,
    record: Record,
    tell: Box<dyn Fn(String) + Send + Sync>,
    made: Mutex<BTreeMap<u32, Made>>,
    /// VMIDs that this run has taken.
    taken: Mutex<BTreeSet<u32>>,
}

impl std::fmt::Debug for Provisioner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Provisioner({:?}, {})", self.api, self.run)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        Provisioner {
            api,
            options,
            run: record.run().into(),
            disks,
            public_key: record.public_key().into(),
            record,
            tell,
            made: Mutex::default(),
            taken: Mutex::default(),
        }
    }

    /// The record of the run.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// What ends all waits of [`make`](Self::make).
    pub fn stop(&self) -> &Stop {
        self.api.stop()
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
        let orders: VecDeque<(usize, &String, &Place)> = names
            .iter()
            .zip(&plan.places)
            .enumerate()
            .map(|(index, (name, place))| (index, name, place))
            .collect();
        let count = orders.len();
        let results = Mutex::new(BTreeMap::new());
        let one = |(index, name, place): (usize, &String, &Place)| {
            let making = Making { provisioner: self, template: &plan.templates[place.template], place, name };
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
        self.in_parallel(orders, &one);
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.into_values().collect()
    }

    fn in_parallel<T: Send>(&self, orders: VecDeque<T>, one: &(dyn Fn(T) + Sync)) {
        let threads = orders.len().min(self.options.at_once as usize);
        let orders = Mutex::new(orders);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let Some(order) = locked(&orders).pop_front() else { return };
                        one(order);
                    }
                });
            }
        });
    }

    /// Stops and deletes all machines that were made, also if stopping was asked for. Returns what is left, in words; if that is nothing, the
    /// record is removed too.
    pub fn remove(&self) -> Vec<String> {
        let api = self.api.to_clean();
        let made = std::mem::take(&mut *locked(&self.made));
        if made.is_empty() {
            self.record.remove();
            return Vec::new();
        }
        let count = made.len();
        (self.tell)(format!("deleting {count} machine{}", if count == 1 { "" } else { "s" }));
        let left = Mutex::new(Vec::new());
        self.in_parallel(made.into_iter().collect(), &|(vmid, made)| {
            if let Some(clone) = &made.clone {
                clone.abort(&api);
            }
            if let Err(error) = remove(&api, &self.run, vmid, &made.node) {
                locked(&left).push(error.message);
            }
        });
        let left = left.into_inner().unwrap_or_else(PoisonError::into_inner);
        if left.is_empty() {
            self.record.remove();
        }
        left
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
        self.record.note(vmid, node)?;
        locked(&self.made).insert(vmid, Made { node: node.into(), clone: None });
        Ok(())
    }

    pub(crate) fn note_clone(&self, vmid: u32, task: Option<&Task>) {
        if let Some(made) = locked(&self.made).get_mut(&vmid) {
            made.clone = task.cloned();
        }
    }

    /// The machine is not ours.
    pub(crate) fn forget(&self, vmid: u32) {
        locked(&self.made).remove(&vmid);
    }
}
