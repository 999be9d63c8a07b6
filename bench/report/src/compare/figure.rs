//! The figures that are compared.

use loadline_base::figures::{latency, thousands};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A figure that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// I/Os a second.
    Iops,
    /// Mean response time, microseconds.
    MeanUs,
    /// 99th percentile of the response times, microseconds.
    P99Us,
}

impl Figure {
    /// What it is called in a sentence.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Iops => "IOPS",
            Figure::MeanUs => "mean response",
            Figure::P99Us => "p99",
        }
    }

    /// A value of it, in its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Figure::Iops => thousands(value),
            Figure::MeanUs | Figure::P99Us => latency(value),
        }
    }
}
