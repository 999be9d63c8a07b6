//! Conditions of the storage in which every load is measured: healthy, one node down, coming back.

use std::collections::BTreeSet;

use loadline_target::FaultKind;

use crate::error::StudyError;
use crate::faults::{self, Harm};
use crate::file::{Study, WhenNodeIsGone};
use crate::fleet::ResolvedFleet;
use crate::name::Name;

/// The longest wait for copies to be in sync, seconds.
const LONGEST_WAIT: u64 = 24 * 60 * 60;

/// The nodes that are gone in a condition: what was done in those before it stays as it is.
pub fn gone_in<'a>(study: &'a Study, condition: &Name) -> BTreeSet<&'a str> {
    let mut gone = BTreeSet::new();
    let Some(place) = study.condition.iter().position(|one| one.name == *condition) else { return gone };
    for fault in study.condition[..=place].iter().flat_map(|condition| &condition.actions) {
        match fault.what {
            FaultKind::Kill | FaultKind::Freeze => _ = gone.insert(fault.node.as_str()),
            FaultKind::Return => _ = gone.remove(fault.node.as_str()),
            FaultKind::Cut if study.cuts_hosts() => _ = gone.insert(fault.node.as_str()),
            // Its clients are still there, and it serves them for what they are worth.
            FaultKind::Cut | FaultKind::FailDevice | FaultKind::SlowDevice { .. } | FaultKind::Fill => {}
            // These pass.
            FaultKind::KillMachine
            | FaultKind::CrashMachine
            | FaultKind::PauseMachine { .. }
            | FaultKind::Migrate => {}
        }
    }
    gone
}

/// The nodes whose workers take no part in a condition.
pub(crate) fn resting<'a>(study: &'a Study, condition: &Name) -> BTreeSet<&'a str> {
    match study.fleet.when_node_is_gone {
        WhenNodeIsGone::Move => BTreeSet::new(),
        WhenNodeIsGone::Rest => gone_in(study, condition),
    }
}

/// Checks that workers can rest whose node is gone, if the study asks for it.
fn restful(study: &Study, fleet: &ResolvedFleet) -> Result<(), StudyError> {
    if study.fleet.when_node_is_gone == WhenNodeIsGone::Move {
        return Ok(());
    }
    let usage =
        |message: &str| Err(StudyError::usage(format!("[fleet] when_node_is_gone = \"rest\": {message}")));
    if study.condition.is_empty() {
        return usage("no node is ever lost: this option needs [[condition]] tables");
    }
    if study.matrix.workers.is_some() || study.vary.workers.is_some() {
        return usage(
            "the study also varies the number of workers, so a worker could rest for two reasons. Write two studies",
        );
    }
    let gone_first = study.condition.first().is_some_and(|first| !gone_in(study, &first.name).is_empty());
    if gone_first && (study.load_line.is_some() || study.capacity.is_some()) {
        return usage(
            "searches are measured in the first condition, and in that condition the workers of a lost node rest: put a \
             condition without a lost node first",
        );
    }
    let names = &fleet.nodes;
    let mut harmed = study.condition.iter().flat_map(|condition| &condition.actions);
    match harmed.find(|fault| !names.contains(&fault.node)) {
        Some(fault) => {
            usage(&format!("no node of the fleet is called {}, so no worker would rest", fault.node))
        }
        None => Ok(()),
    }
}

/// Whether what a study's conditions do can be done, as far as it can be known before.
pub(crate) fn check(study: &Study, fleet: &ResolvedFleet) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    restful(study, fleet)?;
    if study.condition.is_empty() {
        return Ok(());
    }
    let faults = study.condition.iter().flat_map(|condition| condition.actions.iter().cloned());
    let (nodes, copies) = faults::storage(study, fleet, "[[condition]]", faults)?;
    let waits = study.condition.iter().any(|condition| condition.wait_redundant.is_some());
    if waits && study.target.external.as_ref().is_some_and(|external| !external.tells_redundancy()) {
        return usage(
            "[[condition]] wait_redundant: nothing tells when every copy is in sync; give health in [target.external], or \
             prompt = true"
                .into(),
        );
    }
    if !study.matrix.fill_level.is_empty() || !study.vary.fill_level.is_empty() {
        return usage("fill_level and [[condition]] do not go together: one study for each level".into());
    }
    let mut names = BTreeSet::new();
    let mut harm = Harm::none(&nodes, copies);
    for condition in &study.condition {
        let what = format!("[[condition]] {}", condition.name);
        if !names.insert(&condition.name) {
            return usage(format!("{what} is there twice: give each condition a name of its own"));
        }
        for wait in [condition.wait_redundant, condition.wait].into_iter().flatten() {
            if wait.0.as_secs() > LONGEST_WAIT {
                return usage(format!("{what} waits for {wait}: a day is the most"));
            }
        }
        if let Some(fault) = condition.actions.iter().find(|fault| fault.what.is_of_machines()) {
            return usage(format!(
                "{what}: {fault}: that passes, and is no condition. Do it in a window: faults = [{{ at = \"5s\", do = ... }}]"
            ));
        }
        let mut actions = condition.actions.iter();
        let taken = actions.try_for_each(|fault| harm.take(fault.what, &fault.node, fault.force));
        if let Err(why) = taken.and_then(|()| harm.judge()) {
            return usage(format!("{what}: {why}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::gone_in;
    use crate::plan::Plan;
    use crate::read::parse;

    fn plan(conditions: &str) -> Result<Plan, String> {
        let text = format!(
            "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\", \"B8-T1-O1-W0-PR\"]\n[target]\nsan = {{}}\n[fleet]\nnodes = 3\n\
             disk_size = \"64MiB\"\n[run]\nrepeats = 2\n{conditions}"
        );
        let study = parse("s.toml", &text).map_err(|e| e.message)?;
        Plan::of(&study).map_err(|e| e.message)
    }

    const HEALTHY: &str = "[[condition]]\nname = \"healthy\"\n";
    const DOWN: &str = "[[condition]]\nname = \"one-down\"\ndo = [{ do = \"kill\", node = \"node-3\" }]\n";
    const BACK: &str = "[[condition]]\nname = \"back\"\ndo = [{ do = \"return\", node = \"node-3\" }]\nwait_redundant = \"60s\"\n";

    #[test]
    fn every_load_is_measured_in_each_condition_and_all_of_them_come_again() {
        let plan = plan(&format!("{HEALTHY}{DOWN}{BACK}")).unwrap();
        let order: Vec<(&str, u32)> =
            plan.steps.iter().map(|step| (step.condition.as_ref().unwrap().as_str(), step.repeat)).collect();
        let round = |repeat| ["healthy", "one-down", "back"].map(|name| [(name, repeat); 2]).concat();
        assert_eq!(order, [round(1), round(2)].concat());
        assert_eq!(plan.steps[2].label, "B4-T1-O1-W0-PR-one-down");
        assert_eq!(plan.steps[6].label, "B8-T1-O1-W0-PR-healthy", "every other round goes backwards");
    }

    #[test]
    fn a_node_is_gone_from_when_it_is_harmed_until_it_returns() {
        let text = format!(
            "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\nsan = {{}}\n[fleet]\nnodes = 3\n{HEALTHY}{DOWN}{BACK}"
        );
        let study = parse("s.toml", &text).unwrap();
        let gone = |name: &str| gone_in(&study, &name.parse().unwrap()).into_iter().collect::<Vec<_>>();
        assert_eq!((gone("healthy"), gone("one-down"), gone("back")), (vec![], vec!["node-3"], vec![]));
    }

    #[test]
    fn workers_can_rest_only_where_their_nodes_are_harmed() {
        let rest = |more: &str| {
            let text = format!(
                "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\nsan = {{}}\n[fleet]\nnodes = 3\n\
                 when_node_is_gone = \"rest\"\n{more}"
            );
            Plan::of(&parse("s.toml", &text).unwrap()).map_err(|e| e.message)
        };
        rest(&format!("{HEALTHY}{DOWN}")).unwrap();
        assert!(rest("").unwrap_err().contains("no node is ever lost"));
        let varied = rest(&format!("[vary]\nworkers = [1, 2]\n{HEALTHY}{DOWN}"));
        assert!(varied.unwrap_err().contains("two reasons"));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let slow = "[[condition]]\nname = \"slow\"\ndo = [{ do = { slow-device = { by = \"5ms\" } }, node = \"node-1\" }]\n";
        plan(slow).unwrap();
        for (conditions, part) in [
            (format!("{DOWN}{DOWN}"), "is there twice"),
            (DOWN.replace("node-3", "node-4"), "there is no node node-4"),
            (DOWN.replace("node-3", "x"), "there is no node x"),
            (BACK.into(), "no fault of this node came before"),
            (format!("{DOWN}{}", DOWN.replace("one-down", "again")), "let the node return first"),
            (BACK.replace("60s", "100000s"), "a day is the most"),
            (DOWN.replace("kill", "explode"), "explode"),
            (
                ["1", "2", "3"]
                    .map(|n| {
                        let forced = format!("\"node-{n}\", force = true");
                        DOWN.replace("one-down", n).replace("\"node-3\"", &forced)
                    })
                    .concat(),
                "no node of the cluster without a fault",
            ),
            (
                ["1", "2"]
                    .map(|n| DOWN.replace("one-down", n).replace("node-3", &format!("node-{n}")))
                    .concat(),
                "the 2 nodes that have faults at the same time may hold all copies",
            ),
            (DOWN.replace("node-3", "node-03"), "there is no node node-03"),
            (DOWN.replace("kill", "return"), "no fault of this node came before"),
        ] {
            let message = plan(&conditions).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
        let files = format!("name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{DOWN}");
        let message = Plan::of(&parse("s.toml", &files).unwrap()).unwrap_err().message;
        assert!(message.contains("san = {} in [target]"), "{message}");
    }
}
