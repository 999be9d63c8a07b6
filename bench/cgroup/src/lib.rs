//! Control groups of a run: limits of CPU and memory for processes that the run starts.
//!
//! | module | idea |
//! | --- | --- |
//! | `limits` | what a group limits, and which figures are possible |
//! | `hierarchy` | where the system has control groups, and below which of them a new one may be made |
//! | `groups` | the groups of one node: made, given processes, removed; what killed runs left is removed first |
//! | [`error`] | what can go wrong |

pub mod error;
mod groups;
mod hierarchy;
mod limits;

pub use error::GroupError;
pub use groups::{CpuPeriods, NodeGroups, RunPrefix};
pub use limits::Limits;
