//! All that a comparison needs of a run, small enough to be kept: its figures by load and repeat, and the circumstances
//! under which it was measured, as text. It does not depend on how a study or a profile is represented, so that a record
//! outlives a change of either.

use std::collections::{BTreeMap, BTreeSet};

use loadline_measure::stats::median;
use loadline_study::when::When;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compare::Side;
use crate::compare::figure::Figure;

/// A run as it is compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// Where the run is, as it was given: a folder, or a kept result. It is no part of what is kept.
    #[serde(skip)]
    pub place: String,
    /// The run's id.
    pub run_id: String,
    /// The study's name.
    pub study: String,
    /// The version of the Loadline that measured.
    pub loadline: String,
    /// When the run began.
    pub begun: When,
    /// Steps that are complete.
    pub complete: usize,
    /// Steps in all.
    pub planned: usize,
    /// Steps that are not complete, in words.
    pub missing: Vec<String>,
    /// How many of these are damaged.
    pub damaged: usize,
    /// The versions of all Loadlines that took part.
    pub versions: BTreeSet<String>,
    /// How many disks got the load.
    pub disks: u32,
    /// Of the busiest host of a median step, the share of the CPU that the hypervisor gave others (0 to 1).
    pub steal: Option<f64>,
    /// Of the busiest host of a median step, the share of the time in which some task waited for a CPU (0 to 1).
    pub cpu_pressure: Option<f64>,
    /// Every key of the study, with dots between the parts of its name.
    pub configuration: BTreeMap<String, String>,
    /// The workers, their versions and their hosts.
    pub fleet: BTreeMap<String, String>,
    /// What each host is: kernel, CPU, memory, disks.
    pub hosts: BTreeMap<String, BTreeMap<String, String>>,
    /// The engines that issued each load.
    pub engines: BTreeMap<String, BTreeSet<String>>,
    /// The loads that were planned, ceilings among them, steps of searches not.
    pub planned_loads: BTreeSet<String>,
    /// Whether the study has searches.
    pub searches: bool,
    /// The loads with a complete repeat, in the order in which they were measured.
    pub loads: Vec<LoadRecord>,
}

/// One load of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRecord {
    /// Its name.
    pub label: String,
    /// What makes it the load that it is: the keys of its profile, and what it was put on.
    pub keys: BTreeMap<String, String>,
    /// Whether it has a rate, so that its latency decides.
    pub has_rate: bool,
    /// How many repeats lost workers, had errors, or have another finding that makes a figure doubtful.
    pub doubtful: usize,
    /// The figures of each complete repeat.
    pub repeats: Vec<RepeatRecord>,
}

/// One complete repeat of a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepeatRecord {
    /// I/Os a second.
    pub iops: f64,
    /// Mean response time, microseconds; `null` if nothing completed.
    pub mean_us: Option<f64>,
    /// 99th percentile of the response times, microseconds; `null` if there are too few I/Os for one.
    pub p99_us: Option<f64>,
}

impl RunRecord {
    /// The load of this name.
    pub fn load(&self, label: &str) -> Option<&LoadRecord> {
        self.loads.iter().find(|load| load.label == label)
    }

    /// Whether it is the same run. Processes in two containers can have the same id in the same second, so that an id
    /// alone does not tell runs of every version apart.
    pub fn is_same_run(&self, other: &RunRecord) -> bool {
        (&self.run_id, &self.begun) == (&other.run_id, &other.begun)
    }

    /// Which run it is.
    pub(super) fn side(&self) -> Side {
        Side {
            folder: self.place.clone(),
            study: self.study.clone(),
            run_id: self.run_id.clone(),
            loadline: self.loadline.clone(),
            begun: self.begun.clone(),
            complete: self.complete,
            planned: self.planned,
        }
    }
}

impl LoadRecord {
    /// One figure of every repeat. `None` if a repeat does not have it: those that have it would be the lucky ones.
    pub fn values(&self, figure: Figure) -> Option<Vec<f64>> {
        let value = |repeat: &RepeatRecord| match figure {
            Figure::Iops => Some(repeat.iops),
            Figure::MeanUs => repeat.mean_us,
            Figure::P99Us => repeat.p99_us,
        };
        self.repeats.iter().map(value).collect()
    }

    /// The median of one figure over the repeats; `None` if a repeat does not have it.
    pub fn median(&self, figure: Figure) -> Option<f64> {
        self.values(figure).and_then(|values| median(&values))
    }
}
