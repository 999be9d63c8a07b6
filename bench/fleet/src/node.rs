//! A node of this machine: a name, and limits that its workers share.

use loadline_base::units::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;
use crate::error::FleetError;
use crate::identity::{LONGEST_NAME, is_name};

/// A place for workers on this machine: a name, and limits that its workers share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The CPUs that its workers may run on, such as `0-3,6`. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// How much CPU its workers may use together, in cores (`1.5`). Needs the right to make control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<f64>,
    /// How much memory its workers may use together. Needs the right to make control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<ByteSize>,
}

impl NodeSpec {
    /// A node without limits.
    pub fn named(name: impl Into<String>) -> NodeSpec {
        NodeSpec { name: name.into(), ..NodeSpec::default() }
    }

    /// Checks the rules that need no system. The error is of kind `Usage`.
    pub fn validate(&self) -> Result<(), FleetError> {
        let NodeSpec { name, cpus, cpu_limit, memory_limit } = self;
        if !is_name(name) {
            return Err(FleetError::usage(format!(
                "\"{name}\" is not a valid name of a node: use letters, digits, '-', '_' and '.', at most {LONGEST_NAME}"
            )));
        }
        if let Some(cpus) = cpus {
            cpus.parse::<CpuList>().map_err(|e| FleetError::usage(format!("node {name}: cpus: {e}")))?;
        }
        // The kernel takes no quota below 1 ms in a period of 100 ms.
        if let Some(cores) = cpu_limit
            && !(0.01..=4096.0).contains(cores)
        {
            return Err(FleetError::usage(format!(
                "node {name}: a cpu_limit of {cores} cores cannot be set: give 0.01 to 4096"
            )));
        }
        if let Some(limit) = memory_limit
            && *limit < ByteSize(16 << 20)
        {
            return Err(FleetError::usage(format!(
                "node {name}: a memory_limit of {limit} is less than one worker needs: give 16MiB for each, and \
                 its I/O buffers"
            )));
        }
        Ok(())
    }
}
