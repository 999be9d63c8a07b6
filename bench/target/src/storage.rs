//! Storage that things can be done to, of the run's own cluster or external.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::cluster::{Cluster, ModelledDevice};
use crate::error::TargetError;
use crate::external::External;
use crate::fault::{Fault, FaultKind};

/// Storage that things can be done to.
#[derive(Debug)]
pub enum Storage {
    /// A cluster of ours.
    Own(Cluster),
    /// External storage.
    Foreign(External),
}

/// How the copies of everything are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    /// Whether every copy is in sync.
    pub in_sync: bool,
    /// Whether the storage itself has found that a copy is missing: a volume that is not served is found by its clients.
    pub is_missing: bool,
    /// Bytes that are still to be copied; `None` if the storage does not report it.
    pub left_bytes: Option<u64>,
}

impl Storage {
    /// The cluster, if it is ours.
    pub fn own(&self) -> Option<&Cluster> {
        match self {
            Storage::Own(cluster) => Some(cluster),
            Storage::Foreign(_) => None,
        }
    }

    /// Whether something can be done to a node now; where not, why. Of external storage that is not known before.
    pub fn refuses(&self, fault: &Fault) -> Result<(), TargetError> {
        if fault.what.is_of_machines() {
            return Ok(());
        }
        self.own().map_or(Ok(()), |cluster| cluster.refuses(fault))
    }

    /// Whether workers on the host of the node end with it: the host is gone, or the process of the node is another one afterwards, which
    /// a client by shared memory loses.
    pub fn takes_workers(&self, fault: &Fault) -> bool {
        if fault.what.is_of_machines() {
            return fault.what.ends_machines();
        }
        let is_gone = matches!(fault.what, FaultKind::Kill | FaultKind::Freeze);
        is_gone || self.cuts_host(fault) || self.own().is_some_and(|cluster| cluster.restarts(fault))
    }

    /// Whether it cuts the host of the node off, with all that runs there.
    pub fn cuts_host(&self, fault: &Fault) -> bool {
        self.own().is_some_and(|cluster| cluster.cuts_host(fault))
    }

    /// Does something to a node. What is done to machines is the fleet's to do, and nothing here.
    pub fn inject(&mut self, fault: &Fault, stop: &AtomicBool) -> Result<(), TargetError> {
        match self {
            _ if fault.what.is_of_machines() => Ok(()),
            Storage::Own(cluster) => cluster.inject(fault, stop),
            Storage::Foreign(external) => external.inject(fault, stop),
        }
    }

    /// Whether a person does it: when it is done is known, and not when it was begun.
    pub fn asks_for(&self, fault: &Fault) -> bool {
        matches!(self, Storage::Foreign(external) if external.asks_for(fault))
    }

    /// Takes back whatever was done to any node.
    pub fn heal(&mut self, stop: &AtomicBool) -> Result<(), TargetError> {
        match self {
            Storage::Own(cluster) => cluster.heal(stop),
            Storage::Foreign(external) => external.heal(stop),
        }
    }

    /// Waits until every copy is in sync, at most so long. Whether it is.
    pub fn await_redundancy(&mut self, limit: Duration, stop: &AtomicBool) -> Result<bool, TargetError> {
        match self {
            Storage::Own(cluster) => cluster.await_redundancy(limit, stop),
            Storage::Foreign(external) => external.await_redundancy(limit, stop),
        }
    }

    /// How the copies are at the moment; `None` if the storage does not report it.
    pub fn copies(&self, stop: &AtomicBool) -> Option<Copies> {
        match self {
            Storage::Own(cluster) => {
                let health = cluster.health().ok()?;
                Some(Copies {
                    in_sync: health.is_redundant(),
                    is_missing: health.degraded > health.waiting,
                    left_bytes: Some(health.left_bytes),
                })
            }
            Storage::Foreign(external) => {
                let in_sync = external.is_in_sync(stop)?;
                Some(Copies { in_sync, is_missing: !in_sync, left_bytes: None })
            }
        }
    }

    /// The devices of the cluster that behave as a model says; none of other storage.
    pub fn modelled(&self) -> Result<Vec<ModelledDevice>, TargetError> {
        match self {
            Storage::Own(cluster) => cluster.modelled(),
            Storage::Foreign(_) => Ok(Vec::new()),
        }
    }

    /// What has ended without a request.
    pub fn ended_unasked(&mut self) -> Vec<String> {
        match self {
            Storage::Own(cluster) => cluster.ended_unasked(),
            Storage::Foreign(_) => Vec::new(),
        }
    }

    /// Ends what is ours.
    pub fn stop(self) {
        if let Storage::Own(cluster) = self {
            cluster.stop();
        }
    }
}
