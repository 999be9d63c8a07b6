//! Which loads are compared, and why one is not: a doubtful figure, a window with faults, and storage in memory compare with
//! nothing that is published.

use loadline_load::Target;
use loadline_load::host::{DiskInventory, Inventory};
use loadline_load::result::BenchResult;
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_study::RunFolder;
use loadline_study::folder::result::StepResult;
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
    let in_memory = result.inventory.disks.iter().find_map(in_memory);
    let stopped = result.stopped.as_ref().map(|why| format!("the load was stopped: {why}"));
    let refused = in_memory
        .or(stopped)
        .or_else(|| doubt(&result.findings))
        .or_else(|| (result.figures.errors > 0).then(|| "I/Os failed".into()))
        .or_else(|| result.profile.rate.is_some().then(offered));
    super::of(&[Load {
        label: result.profile.label(),
        profile: result.profile.clone(),
        iops: total.iops,
        bytes_per_s: total.bytes_per_s,
        within: None,
        at_least: false,
        p99_us: total.latency_us.p99,
        nodes: None,
        refused,
    }])
}

/// What the storage of a run is, as far as its loads compare with anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Storage {
    /// Its nodes, if they are known.
    pub(crate) nodes: Option<u32>,
    /// Why nothing on it compares with storage: it is in memory.
    pub(crate) in_memory: Option<String>,
}

impl Storage {
    /// What the study says of it, and where the devices of a cluster of the run's own are.
    pub(crate) fn of(folder: &RunFolder) -> Storage {
        let target = &folder.manifest.study.target;
        let named = target.external.as_ref().map(|external| external.nodes.len() as u32);
        let own = folder.plan.cluster.map(|cluster| cluster.nodes);
        // The devices of the run's own cluster are files in its folder.
        let here = own.and_then(|_| {
            let inventory = Inventory::collect(&[Target::Path(folder.path().to_path_buf())]);
            inventory.disks.first().and_then(in_memory)
        });
        Storage { nodes: own.or(named).filter(|nodes| *nodes > 0), in_memory: here }
    }

    /// Adds what is below the disks of a step's workers.
    pub(crate) fn of_hosts(&mut self, result: &StepResult) {
        let mut disks = result.hosts.values().flat_map(|host| &host.disks);
        if self.in_memory.is_none() {
            self.in_memory = disks.find_map(in_memory);
        }
    }
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
        let most = verdict::most(steps, loads);
        all.extend(most.into_iter().filter_map(|load| largest(steps, load, storage)));
        // A load with faults in its window is never the largest; it is named with the reason.
        let harmed = |load: &&LoadRow| {
            verdict::of_label(steps, &load.label).iter().any(|step| step.timeline.is_some())
                && !all.iter().any(|named| named.label == load.label)
        };
        let harmed: Vec<Load> =
            loads.iter().filter(harmed).filter_map(|load| largest(steps, load, storage)).collect();
        all.extend(harmed);
    }
    all.truncate(MOST_LOADS);
    super::of(&all)
}

/// The load line that a search found, or that it found none; `None` if nothing was measured for it.
fn load_line(steps: &[StepRow], search: &SearchResult, number: u32, storage: &Storage) -> Option<Load> {
    let is_its = |step: &&StepRow| matches!(step.purpose, Purpose::Search { search, .. } if search == number);
    let profile = steps.iter().find(is_its)?.profile.clone();
    let held = search.held.filter(|_| search.latency_us.is_some());
    let why = match held {
        Some(_) => why_not(&verdict::measured_at(steps, number, held)),
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
        refused: storage.in_memory.clone().or(why),
    })
}

/// The largest load of a family.
fn largest(steps: &[StepRow], load: &LoadRow, storage: &Storage) -> Option<Load> {
    let of_load = verdict::of_label(steps, &load.label);
    let profile = of_load.first()?.profile.clone();
    let paced = of_load.iter().any(|step| step.rate_iops.is_some());
    let refused = storage.in_memory.clone().or_else(|| why_not(&of_load)).or_else(|| paced.then(offered));
    Some(Load {
        label: load.label.clone(),
        profile,
        iops: load.iops?.median,
        bytes_per_s: load.bytes_per_s?.median,
        within: None,
        at_least: false,
        p99_us: load.p99_us.map(|p99| p99.median),
        nodes: storage.nodes,
        refused,
    })
}

/// Why measurements of one load cannot be compared; `None` if they can.
fn why_not(steps: &[&StepRow]) -> Option<String> {
    steps.iter().find_map(|step| {
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
        (FindingKind::UnwrittenReads, _) => Some("it read blocks that were never written".into()),
        (_, Severity::Note) => None,
        (FindingKind::Errors, _) => Some("I/Os failed".into()),
        (FindingKind::LostWorkers, _) => Some("workers were lost".into()),
        _ => Some(format!("it is doubtful: expected {}; found {}", finding.expected, finding.found)),
    })
}

fn offered() -> String {
    "it was offered a rate, and more was not asked for".into()
}

/// Why what is measured on a disk is no storage; `None` if it may be one.
pub(crate) fn in_memory(disk: &DiskInventory) -> Option<String> {
    if disk.kind == "null" {
        return Some("its target completes everything at once, and stores nothing".into());
    }
    let system = disk.file_system.as_deref().unwrap_or_default().split(' ').next().unwrap_or_default();
    let device = disk.device.as_deref().unwrap_or_default();
    let of_memory = ["ram", "zram", "nullb"].iter().any(|begin| {
        device.strip_prefix(begin).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    });
    match system {
        "tmpfs" | "ramfs" => Some(format!("its disks are in memory ({system})")),
        _ if of_memory => Some(format!("its disks are in memory ({device})")),
        _ => None,
    }
}
