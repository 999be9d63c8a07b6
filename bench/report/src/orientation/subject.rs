//! Which loads are compared. A doubtful figure, harmed storage and storage in memory are compared with nothing that is published, and the
//! reason is given.

use std::collections::BTreeMap;

use loadline_load::host::DiskInventory;
use loadline_load::result::BenchResult;
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_profile::{Extent, Profile};
use loadline_study::RunFolder;
use loadline_study::file::Condition;
use loadline_study::folder::result::StepResult;
use loadline_study::name::Name;
use loadline_study::planned_step::Purpose;
use loadline_study::searches::SearchResult;

use super::{Load, Orientation, Within};
use crate::rows::{LoadRow, StepRow};
use crate::verdict;

/// So many loads of a run are compared.
const MOST_LOADS: usize = 3;

/// What a result of `loadline bench` compares with.
pub fn of_bench(result: &BenchResult) -> Orientation {
    let total = &result.figures.total;
    let disks = &result.inventory.disks;
    let stopped = result.stopped.as_ref().map(|why| format!("the load was stopped: {why}"));
    let refused = disks
        .iter()
        .find_map(in_memory)
        .or(stopped)
        .or_else(|| doubt(&result.findings))
        .or_else(|| (result.figures.errors > 0).then(|| "I/Os failed".into()))
        .or_else(|| result.profile.rate.is_some().then(offered));
    let sets: Option<Vec<u64>> = disks.iter().map(|disk| working_set(&result.profile, disk.bytes)).collect();
    super::of(&[Load {
        label: result.profile.label(),
        profile: result.profile.clone(),
        iops: total.iops,
        bytes_per_s: total.bytes_per_s,
        within: None,
        at_least: false,
        p99_us: total.latency_us.p99,
        nodes: None,
        working_set: sets.map(|sets| sets.into_iter().fold(0, u64::saturating_add)),
        refused,
    }])
}

/// Bytes of a disk that a load works on; `None` if that depends on the size of the disk, and the size is not known.
fn working_set(profile: &Profile, disk: Option<u64>) -> Option<u64> {
    match profile.working_set {
        Some(Extent::Bytes(bytes)) => Some(bytes.0),
        Some(Extent::Percent(percent)) => Some((disk? as f64 * percent / 100.0) as u64),
        None => Some(disk?.saturating_sub(profile.base_offset.0)),
    }
}

/// What the storage of a run is, as far as its loads compare with anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Storage {
    /// Its nodes, if they are known.
    pub(crate) nodes: Option<u32>,
    /// Why nothing that was measured on it is compared: it is in memory, or not known.
    pub(crate) refused: Option<String>,
    /// The conditions in which something had been done to it, each with the reason that its loads are not compared.
    pub(crate) harmed: BTreeMap<Name, String>,
    /// The size of the smallest disk, bytes, if it is known.
    pub(crate) disk: Option<u64>,
    /// Disks of each worker.
    pub(crate) disks_per_worker: u32,
}

impl Storage {
    /// What the manifest of a run says of it. Where the run's folder is now does not count.
    pub(crate) fn of(folder: &RunFolder) -> Storage {
        let RunFolder { manifest, plan, .. } = folder;
        let named = manifest.study.target.external.as_ref().map(|external| external.nodes.len() as u32);
        let own = plan.cluster.map(|cluster| cluster.nodes);
        Storage {
            nodes: own.or(named).filter(|nodes| *nodes > 0),
            refused: match own {
                Some(_) if plan.starts_cluster() => own_storage(&manifest.storage),
                Some(_) => Some("the run does not know the devices of a cluster that ran before it".into()),
                None => None,
            },
            harmed: harmed(&manifest.study.condition),
            disk: plan.disk_size.map(|size| size.0),
            disks_per_worker: plan.fleet.disks_per_worker,
        }
    }

    /// Adds what is below the disks of a step's workers.
    pub(crate) fn of_hosts(&mut self, result: &StepResult) {
        let mut disks = result.hosts.values().flat_map(|host| &host.disks);
        if self.disk.is_none() {
            self.disk = disks.clone().filter_map(|disk| disk.bytes).min();
        }
        if self.refused.is_none() {
            self.refused = disks.find_map(in_memory);
        }
    }

    /// Bytes that the load of a step works on, all disks together.
    fn working_set(&self, step: &StepRow) -> Option<u64> {
        let disks = (step.workers as u64).saturating_mul(u64::from(self.disks_per_worker));
        Some(working_set(&step.profile, self.disk)?.saturating_mul(disks))
    }

    /// Why a load in the condition of a step is not compared; `None` if it is.
    fn harm(&self, step: &StepRow) -> Option<&String> {
        step.condition.as_ref().and_then(|condition| self.harmed.get(condition))
    }
}

/// Why the storage of a run's own cluster, as the manifest records it, is not compared; `None` if it is.
fn own_storage(recorded: &[DiskInventory]) -> Option<String> {
    match recorded {
        [] => Some("the storage of the run's own cluster was not recorded when the run began".into()),
        [one] => in_memory(one),
        many => many
            .iter()
            .find_map(in_memory)
            .or_else(|| Some("the run was resumed on another storage than it began on".into())),
    }
}

/// The conditions in which something had been done to the storage, in them or in those before, each with the reason that its loads
/// are not compared.
fn harmed(conditions: &[Condition]) -> BTreeMap<Name, String> {
    let mut done: Vec<String> = Vec::new();
    let mut harmed = BTreeMap::new();
    for condition in conditions {
        done.extend(condition.actions.iter().map(ToString::to_string));
        if !done.is_empty() {
            let why = format!(
                "it is not of the healthy storage, by its condition {}: {}",
                condition.name,
                done.join(", ")
            );
            harmed.insert(condition.name.clone(), why);
        }
    }
    harmed
}

/// What the loads of a run compare with: the load lines that were found, or else the largest load of each family.
pub(crate) fn of_run(
    steps: &[StepRow],
    loads: &[LoadRow],
    searches: &[SearchResult],
    storage: &Storage,
) -> Orientation {
    let ended = searches.iter().zip(1u32..).filter(|(search, _)| search.done);
    let mut all: Vec<Load> =
        ended.filter_map(|(search, number)| load_line(steps, search, number, storage)).collect();
    if searches.is_empty() {
        // A load on harmed storage is never the largest; it is named after the others, with the reason.
        let is_harmed = |load: &LoadRow| {
            let of_load = verdict::of_label(steps, &load.label);
            of_load.iter().any(|step| step.timeline.is_some() || storage.harm(step).is_some())
        };
        let (harmed, healthy): (Vec<LoadRow>, Vec<LoadRow>) = loads.iter().cloned().partition(is_harmed);
        let most = verdict::most(steps, &healthy);
        all.extend(most.into_iter().chain(&harmed).filter_map(|load| largest(steps, load, storage)));
    }
    all.truncate(MOST_LOADS);
    super::of(&all)
}

/// The load line that a search found, or that it found none; `None` if nothing was measured for it.
fn load_line(steps: &[StepRow], search: &SearchResult, number: u32, storage: &Storage) -> Option<Load> {
    let is_its = |step: &&StepRow| matches!(step.purpose, Purpose::Search { search, .. } if search == number);
    let profile = steps.iter().find(is_its)?.profile.clone();
    let held = search.held.filter(|_| search.latency_us.is_some());
    let measured = verdict::measured_at(steps, number, held);
    let why = match held {
        Some(_) => why_not(&measured, storage),
        None => Some("its search found no load that keeps the limit".into()),
    };
    let iops = search.iops.filter(|_| held.is_some()).unwrap_or(0.0);
    Some(Load {
        label: search.label.clone(),
        iops,
        bytes_per_s: iops * profile.block_size.0 as f64,
        profile,
        within: Some(Within { percentile: search.percentile.clone(), limit_us: search.limit_us }),
        at_least: held.is_some() && search.missed.is_none(),
        p99_us: None,
        nodes: storage.nodes,
        working_set: measured.first().and_then(|step| storage.working_set(step)),
        refused: storage.refused.clone().or(why),
    })
}

/// The largest load of a family.
fn largest(steps: &[StepRow], load: &LoadRow, storage: &Storage) -> Option<Load> {
    let of_load = verdict::of_label(steps, &load.label);
    let profile = of_load.first()?.profile.clone();
    let paced = of_load.iter().any(|step| step.rate_iops.is_some());
    let refused =
        storage.refused.clone().or_else(|| why_not(&of_load, storage)).or_else(|| paced.then(offered));
    Some(Load {
        label: load.label.clone(),
        profile,
        iops: load.iops?.median,
        bytes_per_s: load.bytes_per_s?.median,
        within: None,
        at_least: false,
        p99_us: load.p99_us.map(|p99| p99.median),
        nodes: storage.nodes,
        working_set: of_load.first().and_then(|step| storage.working_set(step)),
        refused,
    })
}

/// Why measurements of one load cannot be compared; `None` if they can.
fn why_not(steps: &[&StepRow], storage: &Storage) -> Option<String> {
    steps.iter().find_map(|step| {
        if let Some(why) = storage.harm(step) {
            return Some(why.clone());
        }
        if step.timeline.is_some() {
            return Some("something was done to the storage in its window".into());
        }
        if step.lost_workers > 0 {
            return Some("workers were lost".into());
        }
        doubt(&step.findings).or_else(|| (step.errors > 0).then(|| "I/Os failed".into()))
    })
}

/// Of the findings of a measurement, the first that leaves nothing to compare.
fn doubt(findings: &[Finding]) -> Option<String> {
    findings.iter().find_map(|finding| match (finding.kind, finding.severity) {
        (FindingKind::NotDirect, _) => Some("its I/O went through the page cache".into()),
        (FindingKind::GeneratorBound, _) => {
            Some("the load generator was the bottleneck, not the storage".into())
        }
        (FindingKind::UnwrittenReads, _) => {
            Some("it read blocks that were never written, or its server does not tell whether it did".into())
        }
        (_, Severity::Note) => None,
        (FindingKind::Errors, _) => Some("I/Os failed".into()),
        (FindingKind::LostWorkers, _) => Some("workers were lost".into()),
        _ => Some(format!("it is doubtful: expected {}; found {}", finding.expected, finding.found)),
    })
}

fn offered() -> String {
    "it was offered a rate, and the storage may carry more".into()
}

/// Why what is measured on a disk is no storage; `None` if it may be one.
pub(crate) fn in_memory(disk: &DiskInventory) -> Option<String> {
    if disk.kind == "null" {
        return Some("its target completes everything at once, and stores nothing".into());
    }
    // Results of earlier versions have the file system and the device, and not what is below them.
    let system = disk.file_system.as_deref().unwrap_or_default().split(' ').next().unwrap_or_default();
    let device = disk.device.as_deref().unwrap_or_default();
    let of_memory = ["ram", "zram", "nullb"].iter().any(|begin| {
        device.strip_prefix(begin).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    let found = match (&disk.memory, system) {
        (Some(layers), _) => layers,
        (None, "tmpfs" | "ramfs" | "devtmpfs") => system,
        (None, _) if of_memory => device,
        _ => return None,
    };
    Some(format!("its disks are in memory ({found})"))
}
