//! The axes of a study: values that its loads are measured with, in every combination or one at a time.

use loadline_base::units::ByteSize;
use loadline_profile::{OfferedRate, Pattern, WorkingSet};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::goals::Share;
use crate::point::Point;
use crate::volume_limit::LimitValue;

/// `"each"`: one worker, two, three, and so on up to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Each {
    /// Growth by one worker at a time.
    Each,
}

/// With how many workers a load is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "write a list of numbers of workers, such as [1, 4, 16], or \"each\"")]
pub enum WorkerCounts {
    /// Every number from one to all.
    Every(Each),
    /// These numbers.
    These(Vec<u32>),
}

/// Values that profiles are measured with. A key that is not given is not varied.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Axes {
    /// Percent of each disk that is written before it is measured, such as `["25%", "75%"]`: how full the storage is.
    /// Levels are measured from the lowest to the highest, because disks are not emptied between levels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fill_level: Vec<Share>,
    /// Bytes in each I/O.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub block_size: Vec<ByteSize>,
    /// Percent of the I/Os that are writes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub write_percent: Vec<u8>,
    /// Where one I/O goes after another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pattern: Vec<Pattern>,
    /// How much of each disk is used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub working_set: Vec<WorkingSet>,
    /// Threads on each disk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub threads: Vec<u32>,
    /// I/Os that each thread keeps outstanding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outstanding: Vec<u32>,
    /// The rate that each worker offers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rate: Vec<OfferedRate>,
    /// Percent of the workers whose volumes are owned by another node, which they reach over the network, such as `[0,
    /// 50, 100]`: as in a cluster whose virtual machines have moved away from their disks. Only for a cluster that the
    /// run starts itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unaligned_percent: Vec<u8>,
    /// How much the clients of each volume may do a second, such as `[{ iops = 100 }, { iops = 1000, mbps = 50 }, "none"]`: the run sets
    /// the limit of its volumes before each step. Only in a cluster of the SAN.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume_limit: Vec<LimitValue>,
    /// How many workers generate the load, such as `[1, 4, 16]`, or `"each"` for growth by one worker at a time. Workers
    /// are added round robin over the nodes: the first worker of each node, then the second of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkerCounts>,
}

/// One axis: a load with each of its values.
type Axis = Vec<Box<dyn Fn(&mut Point)>>;

impl Axes {
    /// Whether nothing is varied.
    pub fn is_empty(&self) -> bool {
        *self == Axes::default()
    }

    /// Every axis that has values, the one that varies slowest first. `workers` is how many there are.
    fn all(&self, workers: u32) -> Vec<Axis> {
        fn axis<T: Clone + 'static>(values: &[T], set: fn(&mut Point, T)) -> Axis {
            let each = |value: &T| {
                let value = value.clone();
                Box::new(move |point: &mut Point| set(point, value.clone())) as Box<dyn Fn(&mut Point)>
            };
            values.iter().map(each).collect()
        }
        let counts: Vec<u32> = match &self.workers {
            None => Vec::new(),
            Some(WorkerCounts::Every(Each::Each)) => (1..=workers).collect(),
            Some(WorkerCounts::These(counts)) => counts.clone(),
        };
        // All of them is what a load is without this axis.
        let counts: Vec<Option<u32>> =
            counts.into_iter().map(|count| Some(count).filter(|count| *count != workers)).collect();
        let mut axes = vec![
            axis(&self.fill_level, |p, v| p.fill_level = Some(v.percent())),
            axis(&self.block_size, |p, v| p.profile.block_size = v),
            axis(&self.write_percent, |p, v| p.profile.write_percent = v),
            axis(&self.pattern, |p, v| p.profile.pattern = v),
            axis(&self.working_set, |p, v| p.profile.working_set = Some(v)),
            axis(&self.threads, |p, v| p.profile.threads = v),
            axis(&self.outstanding, |p, v| p.profile.outstanding = v),
            axis(&self.rate, |p, v| p.profile.rate = Some(v)),
            axis(&self.unaligned_percent, |p, v| p.unaligned_percent = v),
            axis(&self.volume_limit, |p, v| p.varied_limit = Some(v)),
            axis(&counts, |p, v| p.workers = v),
        ];
        axes.retain(|axis| !axis.is_empty());
        axes
    }

    /// How many combinations there are. Saturates.
    pub(crate) fn combinations(&self, workers: u32) -> usize {
        self.all(workers).iter().fold(1, |all, axis| all.saturating_mul(axis.len()))
    }

    /// How many loads there are with one value changed at a time, and the unchanged one. Saturates.
    pub(crate) fn variations(&self, workers: u32) -> usize {
        self.all(workers).iter().fold(1, |all, axis| all.saturating_add(axis.len()))
    }

    /// `base` in every combination; the last axis varies fastest.
    pub(crate) fn over(&self, base: Point, workers: u32) -> Vec<Point> {
        let mut points = vec![base];
        for axis in self.all(workers) {
            points = points.iter().flat_map(|point| axis.iter().map(|set| with(point, set))).collect();
        }
        points
    }

    /// `base`, and then with each value of each axis alone; a value that it has already is not measured twice.
    pub(crate) fn one_at_a_time(&self, base: Point, workers: u32) -> Vec<Point> {
        let mut points = vec![base.clone()];
        for set in self.all(workers).iter().flatten() {
            let varied = with(&base, set);
            if !points.contains(&varied) {
                points.push(varied);
            }
        }
        points
    }
}

fn with(point: &Point, set: &dyn Fn(&mut Point)) -> Point {
    let mut varied = point.clone();
    set(&mut varied);
    varied
}
