//! One step of a plan: one measurement of one load.

use loadline_profile::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::Name;
use crate::point::Point;
use crate::volume_limit::VolumeLimit;

/// What a step is measured for, beside the table of loads.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// For its own sake.
    #[default]
    Load,
    /// To know what the storage below can do.
    Ceiling,
    /// A search requested it.
    Search {
        /// Which of the study's searches, from 1.
        search: u32,
        /// The load that the search requested: I/Os a second of the fleet, I/Os outstanding of a thread, or workers of a node.
        load: f64,
    },
}

/// One measurement of one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its place in the run, from 1.
    pub number: u32,
    /// What the report calls its load.
    pub label: String,
    /// Which measurement of this load it is, from 1.
    pub repeat: u32,
    /// Its folder in the run's folder `steps`.
    pub folder: String,
    /// The load on each disk.
    pub profile: Profile,
    /// What the loads of one sweep have in common; empty in runs of versions that did not record it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub family: String,
    /// How many workers put it on, in a circle over the nodes; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Percent of each disk that is written before; absent: what the loads use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill_level: Option<f64>,
    /// Percent of the workers whose volumes are owned by another node, which they reach over the network.
    #[serde(default, skip_serializing_if = "is_none")]
    pub unaligned_percent: u8,
    /// How much the clients of each volume may do a second; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_limit: Option<VolumeLimit>,
    /// The policy on whose disks it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Name>,
    /// The condition of the storage in which it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<Name>,
    /// What it is measured for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub purpose: Purpose,
    /// The name of the table that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Name>,
}

fn is_default(purpose: &Purpose) -> bool {
    *purpose == Purpose::Load
}

fn is_none(percent: &u8) -> bool {
    *percent == 0
}

impl Step {
    /// The measurement of a point.
    pub(crate) fn of(point: &Point, number: u32, repeat: u32, purpose: Purpose) -> Step {
        Step {
            number,
            label: point.label.clone(),
            repeat,
            folder: folder_name(number, &point.label, repeat),
            profile: point.profile.clone(),
            family: point.family.clone(),
            workers: point.workers,
            fill_level: point.fill_level,
            unaligned_percent: point.unaligned_percent,
            volume_limit: point.volume_limit,
            policy: point.policy.clone(),
            condition: point.condition.clone(),
            purpose,
            table: point.table.clone(),
        }
    }

    /// What a warm-up is shared over: the same data under the same kind of load.
    pub(crate) fn warm_up_key(&self) -> (&str, Option<&Name>, Option<f64>, bool) {
        // A family has one limit of its volumes.
        (&self.family, self.policy.as_ref(), self.fill_level, self.purpose == Purpose::Ceiling)
    }
}

/// `001-B4-T1-O8-W0-PR-r1`. Labels may be long, names in a file system at most 255 bytes.
fn folder_name(number: u32, label: &str, repeat: u32) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let label: String = label.chars().take(100).map(safe).collect();
    format!("{number:03}-{label}-r{repeat}")
}
