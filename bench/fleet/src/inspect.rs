//! Hosts of a fleet, asked about their disks and folders before a run begins.

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::copies::{ProgramCopies, shown_while};
use crate::error::FleetError;
use crate::launcher::{HostAnswer, HostQuestion, Launcher};
use crate::spec::FleetSpec;

/// Asks the hosts of these nodes, all at once. Copies the program to hosts that do not have it, and leaves nothing running. A host
/// that cannot be asked has its error; empty for a kind of fleet that asks no hosts. `show` gets how far the
/// copies are. Dropping the future ends what it began.
pub async fn inspect_hosts(
    spec: &FleetSpec,
    questions: BTreeMap<String, HostQuestion>,
    show: impl FnMut(ProgramCopies),
) -> BTreeMap<String, Result<HostAnswer, FleetError>> {
    let mut launcher = spec.placement.launcher();
    let (copies, copied) = watch::channel(ProgramCopies::default());
    shown_while(launcher.inspect(spec.program.clone(), copies, questions), copied, show).await
}

/// Checks whether the hosts can be made that the fleet makes when it starts, and says in words what was found; `None` if it makes none.
/// Nothing is made.
pub async fn check_hosts_to_make(spec: &FleetSpec) -> Result<Option<String>, FleetError> {
    spec.placement.launcher().check().await
}
