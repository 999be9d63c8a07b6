//! Hosts of a fleet, asked about their disks and folders before a run begins.

use std::collections::BTreeMap;

use crate::error::FleetError;
use crate::launcher::{HostAnswer, HostQuestion, Launcher};
use crate::spec::FleetSpec;

/// Asks the hosts of these nodes, all at once. Copies the program to hosts that do not have it, and leaves nothing running. A host
/// that cannot be asked has its error; empty for a kind of fleet that asks no hosts. Dropping the future ends what it began.
pub async fn inspect_hosts(
    spec: &FleetSpec,
    questions: BTreeMap<String, HostQuestion>,
) -> BTreeMap<String, Result<HostAnswer, FleetError>> {
    spec.placement.launcher().inspect(spec.program.clone(), questions).await
}
