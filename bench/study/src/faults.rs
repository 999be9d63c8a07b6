//! Checks whether the faults of a study can be done to its storage, as far as that is known before the run.

use std::collections::BTreeMap;

use loadline_base::figures::counted;
use loadline_base::units::TimeSpan;
use loadline_target::{Fault, FaultKind};

use crate::error::StudyError;
use crate::file::{Study, TimedFault};
use crate::fleet::ResolvedFleet;
use crate::planned_step::{Purpose, Step};

/// Whether things are done to the storage in this step: in what the study asks for, and not in ceilings and searches.
pub(crate) fn has_faults(study: &Study, step: &Step) -> bool {
    !study.faults.is_empty() && step.purpose == Purpose::Load
}

/// The longest pause of a machine: a worker that is silent for five seconds is lost.
const LONGEST_PAUSE: TimeSpan = TimeSpan::seconds(4);

/// Simulates which nodes are harmed while a list of faults is done.
pub(crate) struct Harm<'a> {
    nodes: &'a [String],
    copies: usize,
    /// By node: whether it may cost a copy that is not missed on purpose.
    done: BTreeMap<&'a str, bool>,
}

impl<'a> Harm<'a> {
    /// No node is harmed yet. `copies` is how many copies of everything there are.
    pub(crate) fn none(nodes: &'a [String], copies: usize) -> Harm<'a> {
        Harm { nodes, copies, done: BTreeMap::new() }
    }

    /// Follows one more fault; the error says why it cannot be done.
    pub(crate) fn take(&mut self, what: FaultKind, node: &'a str, force: bool) -> Result<(), String> {
        if !self.nodes.iter().any(|known| known == node) {
            return Err(format!("there is no node {node}; the cluster has {}", self.nodes.join(", ")));
        }
        if what.is_of_machines() {
            return Ok(());
        }
        let costs = !force && !matches!(what, FaultKind::SlowDevice { .. } | FaultKind::Fill);
        let is_return = what == FaultKind::Return;
        let fits = match is_return {
            true => self.done.remove(node).is_some(),
            false => self.done.insert(node, costs).is_none(),
        };
        match (fits, is_return) {
            (true, _) => Ok(()),
            (false, true) => Err(format!("{node} returns, but no fault of this node came before")),
            (false, false) => {
                let fault = Fault { force, ..Fault::of(what, node) };
                Err(format!("{fault}, but the node has an earlier fault: let the node return first"))
            }
        }
    }

    /// Whether what is left can serve every volume.
    pub(crate) fn judge(&self) -> Result<(), String> {
        let copies = self.copies;
        if self.done.values().filter(|costs| **costs).count() >= copies {
            return Err(format!(
                "with {}, the {} may hold all copies of a volume, and \
                 then no node can serve the volume: let a node return first, use more copies, or set force = true if the study \
                 is meant to show this",
                counted(copies as u64, "copy"),
                match self.done.len() {
                    1 => "node that has a fault".to_owned(),
                    nodes => format!("{nodes} nodes that have faults at the same time"),
                }
            ));
        }
        if self.done.len() >= self.nodes.len() {
            return Err(
                "the fault leaves no node of the cluster without a fault: at least one node must serve"
                    .into(),
            );
        }
        Ok(())
    }
}

/// The nodes of the storage that things are done to, and how many may be harmed at once before something is not served, where
/// that is known. `what` does these things; an error if there is no way to do them.
pub(crate) fn storage(
    study: &Study,
    fleet: &ResolvedFleet,
    what: &str,
    faults: impl Iterator<Item = Fault>,
) -> Result<(Vec<String>, usize), StudyError> {
    match (study.fewest_copies(), &study.target.external) {
        // Commands of a cluster that ran before are checked with it.
        (Some(copies), None) => Ok((fleet.nodes.clone(), copies as usize)),
        (None, Some(external)) => {
            let faults: Vec<Fault> = faults.collect();
            external.check(faults.iter()).map_err(|error| StudyError {
                message: format!("[target.external]: {}", error.message),
                ..StudyError::from(error)
            })?;
            // How many copies external storage has is not known here.
            Ok((external.nodes.clone(), usize::MAX))
        }
        (Some(_), Some(_)) => Err(StudyError::usage(
            "[target] san and [target.external] exclude each other: san is a cluster of the SAN, external is other storage; leave one \
             out. Faults in a cluster that runs already are caused by commands in [target] san",
        )),
        (None, None) => Err(StudyError::usage(format!(
            "{what}: the run must be able to control the storage. Set san = {{}} in [target] for a cluster that the run \
             starts, or give the commands that control your storage in [target.external]"
        ))),
    }
}

/// Whether what a study does in its windows can be done, as far as it can be known before.
pub(crate) fn check(study: &Study, fleet: &ResolvedFleet) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    if study.faults.is_empty() {
        return Ok(());
    }
    if !study.condition.is_empty() {
        return usage(
            "faults and [[condition]] do not go together: in a window with faults there is no one condition. Write two studies"
                .into(),
        );
    }
    let (nodes, copies) = storage(study, fleet, "faults", study.faults.iter().map(TimedFault::fault))?;
    if study.target.external.as_ref().is_some_and(|external| !external.tells_redundancy()) {
        return usage(
            "faults: after each window the run undoes all faults and waits until every copy is in sync, but this storage has \
             no way to report that; give health in [target.external], or prompt = true"
                .into(),
        );
    }
    let mut harm = Harm::none(&nodes, copies);
    let window = study.phases.measure;
    let mut last = TimeSpan::ZERO;
    for fault in &study.faults {
        let what = format!("faults, at {}", fault.at);
        if fault.at.0 >= window.0 {
            return usage(format!("{what}: the window ends after {window} ([phases] measure)"));
        }
        if fault.at.0 < last.0 {
            return usage(format!("{what}: it comes after one at {last}; write them in the order of time"));
        }
        last = fault.at;
        let on_node = study.fleet.node.iter().find(|node| node.name == fault.node);
        let has_machine = study.fleet.machine.is_some() || on_node.is_some_and(|node| node.machine.is_some());
        if fault.what.is_of_machines() && !has_machine {
            return usage(format!(
                "{what}: {}, but the workers are processes: set machine = {{}} in [fleet]",
                fault.fault()
            ));
        }
        if matches!(fault.what, FaultKind::PauseMachine { by } if by > LONGEST_PAUSE || by == TimeSpan::ZERO)
        {
            return usage(format!(
                "{what}: machines can be paused for up to {LONGEST_PAUSE}: a worker that says nothing for longer is lost"
            ));
        }
        if let Err(why) = check_destination(study, fault, &fleet.nodes) {
            return usage(format!("{what}: {why}"));
        }
        let done = harm.take(fault.what, &fault.node, fault.force).and_then(|()| harm.judge());
        if let Err(why) = done {
            return usage(format!("{what}: {why}"));
        }
    }
    Ok(())
}

/// Whether machines can go where a fault says that they do.
fn check_destination(study: &Study, fault: &TimedFault, nodes: &[String]) -> Result<(), String> {
    if fault.what != FaultKind::Migrate {
        return match fault.to {
            Some(_) => Err("to is the destination of migrate, and means nothing here: leave it out".into()),
            None => Ok(()),
        };
    }
    if study.target.external.is_some() {
        return Err(
            "machines are migrated between nodes of [target] san: other storage does not go with them".into(),
        );
    }
    let machines =
        study.fleet.machine.iter().chain(study.fleet.node.iter().filter_map(|node| node.machine.as_ref()));
    if machines.into_iter().any(|machine| machine.libvirt.is_some()) {
        return Err("machines that libvirt starts are not migrated: leave out libvirt".into());
    }
    if nodes.len() < 2 {
        return Err("machines are migrated to another node, and the fleet has only one".into());
    }
    match &fault.to {
        Some(to) if to == &fault.node => {
            Err(format!("{to} is where the machines are: give another node as to"))
        }
        Some(to) if !nodes.contains(to) => {
            Err(format!("there is no node {to} to migrate machines to; the fleet has {}", nodes.join(", ")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::read::parse;

    fn plan(faults: &str) -> Result<Plan, String> {
        let text = format!(
            "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\nfaults = [{faults}]\n[target]\nsan = {{}}\n[fleet]\nnodes = 3\n\
             disk_size = \"64MiB\"\n[phases]\nmeasure = \"60s\"\n"
        );
        let study = parse("s.toml", &text).map_err(|e| e.message)?;
        Plan::of(&study).map_err(|e| e.message)
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let kill = "{ at = \"10s\", do = \"kill\", node = \"node-3\" }";
        let back = "{ at = \"30s\", do = \"return\", node = \"node-3\" }";
        plan(&format!("{kill}, {back}")).unwrap();
        for (faults, part) in [
            (kill.replace("10s", "60s"), "the window ends after 1m"),
            (format!("{back}, {kill}"), "no fault of this node came before"),
            (format!("{kill}, {}", back.replace("30s", "5s")), "in the order of time"),
            (format!("{kill}, {kill}"), "let the node return first"),
            (kill.replace("node-3", "node-4"), "there is no node node-4"),
            (
                format!("{kill}, {}", kill.replace("node-3", "node-2")),
                "the 2 nodes that have faults at the same time may hold all copies",
            ),
            (kill.replace("kill", "explode"), "explode"),
        ] {
            let message = plan(&faults).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
