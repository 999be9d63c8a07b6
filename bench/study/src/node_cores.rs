//! How much CPU each node has of a cluster that the run starts, if the study gives it a share of this machine.

use std::collections::BTreeMap;

use loadline_base::figures::counted;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_target::{CpuPeriods, Limits};

use crate::error::StudyError;
use crate::file::{NodeSection, Study};

/// The CPU of a node counts as what may limit a load if the node used up its cores in this part of the periods with work.
const LIMITS_LOAD: f64 = 0.1;

/// Less than the kernel distinguishes of all nodes together: 0.1 cores for each of three nodes are more than 0.3 as binary fractions.
const ROUNDING: f64 = 1e-3;

/// The cores that this process may use.
pub(crate) fn of_machine() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

/// That a node can have the share that the study says.
pub(crate) fn check(node: &NodeSection) -> Result<(), StudyError> {
    let wrong = |e| StudyError::usage(format!("[target] san.node: {e}"));
    node.cpu_limit.map_or(Ok(()), |cores| Limits::check_cores(cores).map_err(wrong))
}

/// An error if one node has more cores than this machine: the limit would have no effect.
pub(crate) fn too_many(study: &Study, machine: f64) -> Option<StudyError> {
    let cores = study.nodes()?.cpu_limit.filter(|cores| *cores > machine)?;
    Some(StudyError::usage(format!(
        "[target] san.node: a cpu_limit of {cores} cores has no effect on this machine, which has {machine}: give each node less"
    )))
}

/// In which part of the periods with work a node used up its cores.
fn part(periods: &CpuPeriods) -> f64 {
    periods.used_up as f64 / periods.with_work.max(1) as f64
}

/// Whether the CPU of a node may have limited a step.
pub(crate) fn are_used_up(during: &BTreeMap<String, CpuPeriods>) -> bool {
    during.values().any(|periods| part(periods) > LIMITS_LOAD)
}

/// What a reader of a step should know of the cores of the nodes. `during` is how often each node used up its cores in the step.
pub(crate) fn findings(
    study: &Study,
    nodes: u32,
    machine: f64,
    during: &BTreeMap<String, CpuPeriods>,
) -> Vec<Finding> {
    let Some(cores) = study.nodes().and_then(|node| node.cpu_limit) else { return Vec::new() };
    let each = if cores == 1.0 { "1 core".into() } else { format!("{cores} cores") };
    let mut findings = vec![Finding::note(
        FindingKind::Modelled,
        "nodes that may use all of this machine's cores",
        format!("each node has {each}"),
        "The figures are of nodes with so much CPU. The workers are not limited.",
    )];
    if cores * f64::from(nodes) > machine + ROUNDING {
        findings.push(Finding::doubt(
            FindingKind::Modelled,
            "a machine with the cores of all nodes",
            format!("{} with {each} each, on a machine with {machine}", counted(nodes.into(), "node")),
            "While all nodes are busy each gets less than its cores, and more when one is gone. Lower cpu_limit, or use fewer nodes.",
        ));
    }
    let busy = during.iter().map(|(node, periods)| (part(periods), node));
    let busy: Vec<(f64, &String)> = busy.filter(|(part, _)| *part > LIMITS_LOAD).collect();
    if let Some((most, node)) = busy.iter().max_by(|a, b| a.0.total_cmp(&b.0)) {
        findings.push(Finding::note(
            FindingKind::Modelled,
            "nodes that do not use up their cores",
            format!(
                "{} of {nodes} nodes that used them up in more than {:.0} % of the tenths of a second with work; {node} in {:.0} %",
                busy.len(),
                100.0 * LIMITS_LOAD,
                100.0 * most
            ),
            "The CPU of the nodes may be what limits the load. A larger cpu_limit shows whether it is.",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use loadline_measure::audit::Severity;

    use super::*;
    use crate::read::parse;

    fn study(node: &str) -> Study {
        let text = format!(
            "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\nsan = {{ node = {{ {node} }} }}\n"
        );
        parse("s.toml", &text).unwrap()
    }

    #[test]
    fn each_step_says_how_many_cores_a_node_has_and_whether_the_machine_has_them() {
        let idle = BTreeMap::from([("node-1".to_string(), CpuPeriods { with_work: 100, used_up: 10 })]);
        assert_eq!(findings(&study("model = \"intel-s4500\""), 4, 2.0, &idle), []);
        let fits = findings(&study("cpu_limit = 0.5"), 4, 2.0, &idle);
        assert!(fits.len() == 1 && fits[0].severity == Severity::Note, "{fits:?}");
        assert_eq!(fits[0].found, "each node has 0.5 cores");
        assert_eq!(
            findings(&study("cpu_limit = 0.1"), 3, 0.3, &idle).len(),
            1,
            "no more than the machine has"
        );
        let tight = findings(&study("cpu_limit = 1"), 4, 2.0, &BTreeMap::new());
        assert_eq!(tight[0].found, "each node has 1 core");
        assert_eq!(tight[1].severity, Severity::Doubt);
        assert_eq!(tight[1].found, "4 nodes with 1 core each, on a machine with 2");
    }

    #[test]
    fn nodes_that_use_up_their_cores_are_named() {
        let periods = |used_up| CpuPeriods { with_work: 40, used_up };
        let names = ["node-1", "node-2", "node-3"].map(String::from);
        let during = names.into_iter().zip([periods(20), periods(30), periods(0)]).collect();
        let found = findings(&study("cpu_limit = 0.5"), 3, 2.0, &during);
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[1].severity, Severity::Note);
        assert!(
            found[1].found.starts_with("2 of 3 nodes") && found[1].found.ends_with("node-2 in 75 %"),
            "{found:?}"
        );
    }

    #[test]
    fn a_share_that_is_more_than_the_machine_is_refused() {
        assert_eq!(too_many(&study("cpu_limit = 2"), 2.0), None);
        assert_eq!(too_many(&study("model = \"intel-s4500\""), 2.0), None);
        let error = too_many(&study("cpu_limit = 2.5"), 2.0).unwrap();
        assert!(error.message.contains("2.5 cores has no effect on this machine, which has 2"), "{error}");
    }
}
