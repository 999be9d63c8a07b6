//! The volumes of a run's own cluster: which ones each worker has, and how it reaches them.

use std::collections::{BTreeMap, BTreeSet};

use loadline_fleet::{WorkerId, WorkerInfo};
use loadline_load::Target;
use loadline_target::{Disk, VolumeSpec};

use crate::file::{Access, Study};
use crate::name::Name;
use crate::plan::Plan;
use crate::worker_order::in_circle;

/// The disks of each policy (or of the study, if it compares none), by worker.
pub(crate) type Volumes = BTreeMap<Option<Name>, BTreeMap<WorkerId, Vec<Target>>>;

/// The workers that are apart from their volumes, spread evenly over all of them.
pub(crate) fn apart(workers: &[WorkerInfo], percent: u8) -> BTreeSet<WorkerId> {
    let so_far = |count: usize| count * usize::from(percent) / 100;
    let order = in_circle(workers);
    let chosen = order.iter().enumerate().filter(|(at, _)| so_far(at + 1) > so_far(*at));
    chosen.map(|(_, index)| workers[*index].id.clone()).collect()
}

/// The volumes that these workers have of a policy, in the order of their disks, each owned by the worker's node.
pub(crate) fn volumes_of(
    study: &Study,
    plan: &Plan,
    workers: &[WorkerInfo],
    policy: Option<&Name>,
) -> BTreeMap<WorkerId, Vec<VolumeSpec>> {
    let san = study.san(policy).cloned().unwrap_or_default();
    let size = plan.fleet.file_size;
    let of_policy = policy.map(|policy| format!("{policy}-")).unwrap_or_default();
    let volume = |worker: &WorkerInfo, disk: u32| VolumeSpec {
        name: format!("{of_policy}{}-{disk}", worker.id.0.replace('/', "-")),
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

/// How a worker reaches a volume.
pub(crate) fn target(access: Access, disk: &Disk) -> Target {
    match access {
        Access::Local => disk.local.clone(),
        Access::Nbd => disk.nbd.clone(),
    }
}
