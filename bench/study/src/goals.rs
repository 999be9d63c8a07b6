//! What a study is to find out: the load line, the capacity, the ceilings. How that is searched is [`crate::searches`].

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use loadline_base::units::{ByteSize, TimeSpan};
use loadline_load::Target;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A percentile that latencies are judged by: one of those that are printed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "f64", into = "f64")]
#[schemars(with = "f64", extend("enum" = [50, 90, 95, 99, 99.9, 99.99, 99.999]))]
pub struct Percentile(f64);

/// A number that is not such a percentile.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{0} is not a percentile that is measured: give 50, 90, 95, 99, 99.9, 99.99 or 99.999")]
pub struct PercentileError(f64);

impl Percentile {
    /// Its name among the figures: `p99.9`.
    pub fn name(self) -> String {
        format!("p{}", self.0)
    }

    /// How many I/Os are needed at least, so that a hundred lie beyond it.
    pub fn samples(self) -> f64 {
        (100.0 / (1.0 - self.0 / 100.0)).round()
    }
}

impl TryFrom<f64> for Percentile {
    type Error = PercentileError;

    fn try_from(percent: f64) -> Result<Percentile, PercentileError> {
        let known =
            loadline_measure::summary::PERCENTILES.iter().any(|(name, _)| *name == format!("p{percent}"));
        if known { Ok(Percentile(percent)) } else { Err(PercentileError(percent)) }
    }
}

impl From<Percentile> for f64 {
    fn from(percentile: Percentile) -> f64 {
        percentile.0
    }
}

/// A share, written `5%`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["5%"]))]
pub struct Share(f64);

/// Text that is not a share.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{0}\" is not a share: write a percentage above 0 and at most 100, such as 5%")]
pub struct ShareError(String);

impl Share {
    /// From 0 to 1.
    pub fn value(self) -> f64 {
        self.0 / 100.0
    }

    /// From 0 to 100.
    pub fn percent(self) -> f64 {
        self.0
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Share, ShareError> {
        let percent = text.trim().strip_suffix('%').and_then(|p| p.trim().parse::<f64>().ok());
        match percent.filter(|p| *p > 0.0 && *p <= 100.0) {
            Some(percent) => Ok(Share(percent)),
            None => Err(ShareError(text.to_string())),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl TryFrom<String> for Share {
    type Error = ShareError;

    fn try_from(text: String) -> Result<Share, ShareError> {
        text.parse()
    }
}

impl From<Share> for String {
    fn from(share: Share) -> String {
        share.to_string()
    }
}

/// What a load line is searched over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadLineBy {
    /// The rate that is offered, arriving at random (Poisson): a stall is charged to every I/O that should have
    /// happened in it.
    #[default]
    Rate,
    /// The I/Os that each thread keeps outstanding.
    Outstanding,
}

/// The most IOPS at which a percentile stays within a limit, searched for each profile (in each combination of the
/// matrix), after all other steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadLineGoal {
    /// The percentile of the fleet's response times: 50, 90, 95, 99, 99.9, 99.99 or 99.999.
    pub percentile: Percentile,
    /// The limit of the percentile.
    pub limit: TimeSpan,
    /// What is varied.
    #[serde(default)]
    pub by: LoadLineBy,
    /// How wide the bracket may be: the upper end is at most this much above the lower one. 5% by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<Share>,
}

impl LoadLineGoal {
    /// How wide the bracket may be, as a share of 1.
    pub fn width(&self) -> f64 {
        self.width.map_or(0.05, Share::value)
    }
}

/// The most workers on each node with which a percentile stays within a limit (and a rate, if the profile has one, is
/// carried), searched for each profile up to the fleet's `workers_per_node`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapacityGoal {
    /// The percentile of the fleet's response times: 50, 90, 95, 99, 99.9, 99.99 or 99.999.
    pub percentile: Percentile,
    /// The limit of the percentile.
    pub limit: TimeSpan,
}

/// The ceilings of the devices and the network below the storage, measured directly before the fleet starts, with the
/// study's block sizes, mixes and patterns. The report then also states figures as a share of the ceiling.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Ceilings {
    /// The devices to measure on each node, one table for each node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node: Vec<CeilingNode>,
    /// Writes on devices that one write to the storage costs: its copies, and its log and its destage if both are on
    /// these devices (4 with two copies and both). 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_writes: Option<f64>,
    /// Bytes that the nodes send each other for each byte that is written: 1 with two copies if one of them is on the
    /// writer's node. Loads are stated as a share of the measured network only if this key or `network_reads` is
    /// given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_writes: Option<f64>,
    /// Bytes that the nodes send each other for each byte that is read: 0 where reads are local.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_reads: Option<f64>,
    /// Threads on each device; 4 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// I/Os that each thread keeps outstanding; 32 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outstanding: Option<u32>,
}

impl Ceilings {
    /// Bytes that the nodes send each other for each byte that is written, and for each that is read; `None` if the study
    /// does not say.
    pub fn network(&self) -> Option<(f64, f64)> {
        let said = self.network_writes.or(self.network_reads);
        said.map(|_| (self.network_writes.unwrap_or(0.0), self.network_reads.unwrap_or(0.0)))
    }
}

/// What is measured on one node, by its first worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CeilingNode {
    /// The node's name, such as `node-1`.
    pub name: String,
    /// Its devices. Writing to them needs `--destroy-data`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Target>,
    /// Instead of devices: a folder on the same storage, in which a scratch file is made, filled, measured and removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The node's address on the network of the storage, over which the network between nodes is measured. By default the
    /// address of its workers' connection to the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Size of the scratch file; 1GiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
}

impl CeilingNode {
    /// The size of the scratch file, if there is a folder for one.
    pub fn scratch_size(&self) -> ByteSize {
        self.size.unwrap_or(ByteSize::GIB)
    }
}

/// Warm-up until the load is steady.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SteadyGoal {
    /// The longest time. If the load is not steady then, it is measured nevertheless and marked as not steady. Whole seconds, at least 10.
    pub limit: TimeSpan,
    /// The length of a round: the last five of them decide. Whole seconds; a tenth of the limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<TimeSpan>,
}

impl SteadyGoal {
    /// The length of a round, whole seconds, at least one.
    pub fn round_s(&self) -> u64 {
        self.round.map_or(self.limit.0.as_secs() / 10, |round| round.0.as_secs()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_percentiles_that_are_measured_are_taken() {
        assert_eq!(Percentile::try_from(99.9).unwrap().name(), "p99.9");
        assert_eq!(Percentile::try_from(99.0).unwrap().samples(), 10_000.0);
        assert_eq!(Percentile::try_from(99.999).unwrap().samples(), 10_000_000.0);
        for wrong in [98.0, 0.0, 100.0, f64::NAN] {
            assert!(Percentile::try_from(wrong).is_err());
        }
    }

    #[test]
    fn a_share_is_a_percentage() {
        assert_eq!("5%".parse::<Share>().unwrap().value(), 0.05);
        for wrong in ["5", "0%", "101%", "x%", ""] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }
}
