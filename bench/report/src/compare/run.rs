//! One side of a comparison: a run's report, and under which circumstances it was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use loadline_load::host::Inventory;
use loadline_study::folder::manifest::Manifest;
use loadline_study::planned_step::Purpose;
use loadline_study::{RunFolder, StudyError};

use loadline_load::engine_alone;

use crate::page::series::cpu_pressure;
use crate::report::Report;

/// A run, as far as it is compared: rows, not whole results.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its folder, as it was given.
    pub folder: String,
    /// What was requested, which workers measured it, and which steps were planned.
    pub manifest: Manifest,
    /// The figures of the run.
    pub report: Report,
    /// How many disks were measured in all.
    pub disks: u32,
    /// What each host of the workers is, by its name, as it was when a load was first complete.
    pub hosts: BTreeMap<String, Inventory>,
    /// Which engines issued each load in its first complete repeat.
    pub engines: BTreeMap<String, BTreeSet<String>>,
    /// Of each measured step, the share of a second in which some task waited for a CPU, on the host where that was most, as far as the
    /// kernels told.
    pub cpu_pressure: Vec<f64>,
}

impl Run {
    /// Reads a run's folder, finished or not. A step that is damaged is one that is missing, and the report counts it.
    ///
    /// The error says which file cannot be read, and what to do.
    pub fn open(path: &Path) -> Result<Run, StudyError> {
        let folder = RunFolder::open(path)?;
        let report = Report::of(&folder)?;
        let (mut hosts, mut engines) = (BTreeMap::new(), BTreeMap::<String, BTreeSet<String>>::new());
        let loads = folder.plan.steps.iter().filter(|step| !is_of_search(step.purpose));
        let cpu_pressure = loads.filter_map(|step| cpu_pressure(&folder, step)).collect();
        for step in &folder.plan.steps {
            let is_of_search = is_of_search(step.purpose);
            if engines.contains_key(&step.label) || is_of_search && !hosts.is_empty() {
                continue;
            }
            // One at a time: a result holds the figures of every worker.
            let Ok(Some(result)) = folder.result(step) else { continue };
            if !is_of_search {
                let engines_of = result.workers.iter().filter_map(|worker| worker.engine.as_deref());
                let issued = engines_of.map(|engine| engine_alone(engine).to_string()).collect();
                engines.insert(step.label.clone(), issued);
            }
            for (host, inventory) in result.hosts {
                hosts.entry(host).or_insert(inventory);
            }
        }
        let folder_name = path.display().to_string();
        let disks = folder.plan.fleet.disks();
        let manifest = folder.manifest;
        Ok(Run { folder: folder_name, manifest, report, disks, hosts, engines, cpu_pressure })
    }
}

/// Whether a search requested it, so that it is no load of the study.
pub(super) fn is_of_search(purpose: Purpose) -> bool {
    matches!(purpose, Purpose::Search { .. })
}
