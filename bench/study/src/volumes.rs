//! The volumes of a run: which ones each worker has, on which host it runs, and how it reaches them.

use std::collections::{BTreeMap, BTreeSet};

use loadline_fleet::{WorkerId, WorkerInfo};
use loadline_load::Target;
use loadline_target::{Cluster, Disk, VolumeSpec};

use crate::file::{Access, Study};
use crate::name::Name;
use crate::plan::Plan;
use crate::worker_order::in_circle;

/// The disks of each policy (or of the study, if it compares none), by worker.
pub(crate) type Volumes = BTreeMap<Option<Name>, BTreeMap<WorkerId, Vec<Target>>>;

/// The node on whose host each worker runs, by policy: as [`Volumes`]. Empty if all workers are on this machine.
pub(crate) type Places = BTreeMap<Option<Name>, BTreeMap<WorkerId, String>>;

/// What the cluster has made for the workers of a run.
#[derive(Debug, Default)]
pub(crate) struct MadeVolumes {
    pub(crate) volumes: Volumes,
    pub(crate) places: Places,
    /// The node that owns each volume.
    pub(crate) owners: BTreeMap<String, String>,
    /// The name of a volume that did not exist before; `None` if all did.
    pub(crate) new: Option<String>,
}

/// The workers that are apart from their volumes, spread evenly over all of them.
pub(crate) fn apart(workers: &[WorkerInfo], percent: u8) -> BTreeSet<WorkerId> {
    let so_far = |count: usize| count * usize::from(percent) / 100;
    let order = in_circle(workers);
    let chosen = order.iter().enumerate().filter(|(at, _)| so_far(at + 1) > so_far(*at));
    chosen.map(|(_, index)| workers[*index].id.clone()).collect()
}

/// The volumes that these workers have of a policy, in the order of their disks, each owned by the worker's node. Their names begin
/// with `prefix`.
pub(crate) fn volumes_of(
    study: &Study,
    plan: &Plan,
    prefix: &str,
    workers: &[WorkerInfo],
    policy: Option<&Name>,
) -> BTreeMap<WorkerId, Vec<VolumeSpec>> {
    let san = study.san(policy).cloned().unwrap_or_default();
    let size = plan.fleet.file_size;
    let of_policy = policy.map(|policy| format!("{policy}-")).unwrap_or_default();
    let volume = |worker: &WorkerInfo, disk: u32| VolumeSpec {
        name: format!("{prefix}{of_policy}{}-{disk}", worker.id.0.replace('/', "-")),
        size,
        copies: san.copies(),
        least: san.least,
        stripes: san.stripes(),
        log: san.log,
        node: worker.node.clone(),
    };
    let all =
        |worker: &WorkerInfo| (0..plan.fleet.disks_per_worker).map(|disk| volume(worker, disk)).collect();
    workers.iter().map(|worker| (worker.id.clone(), all(worker))).collect()
}

/// The node of the fleet on whose host a worker runs whose volume has this owner: the owner, or where that is no node of the fleet, the
/// first one that serves.
pub(crate) fn place(cluster: &Cluster, nodes: &[String], owner: &str) -> String {
    let is_owner = nodes.iter().find(|node| *node == owner);
    let other = || nodes.iter().find(|node| cluster.is_reached(node));
    is_owner.or_else(other).map_or_else(|| owner.to_string(), Clone::clone)
}

/// How a worker reaches a volume. If it runs on another host than the owner, it shares no memory with it.
pub(crate) fn target(access: Access, disk: &Disk, is_at_owner: bool) -> Target {
    match access {
        Access::Local if is_at_owner => disk.local.clone(),
        Access::Local | Access::Nbd => disk.nbd.clone(),
    }
}
