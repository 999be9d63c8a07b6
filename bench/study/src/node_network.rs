//! The network of each node of a cluster that the run starts, if the study gives it a bandwidth.

use std::collections::BTreeMap;
use std::time::Duration;

use loadline_base::units::ByteSize;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_target::{Traffic, network};

use crate::error::StudyError;
use crate::file::{Access, NodeSection, Study};

/// The network of a node counts as what may limit a load if, on average over the step, the node sent or received so much of its bandwidth.
/// A step has moments without load before and after its window.
const LIMITS_LOAD: f64 = 0.8;

/// Bytes a second that the network of each node carries in each direction; `None` if the study does not limit it.
pub(crate) fn per_second(study: &Study) -> Option<ByteSize> {
    Some(study.nodes()?.network?.per_second)
}

/// That nodes can have the network that the study says.
pub(crate) fn check(node: &NodeSection) -> Result<(), StudyError> {
    let wrong = |e| StudyError::usage(format!("[target] san.node.network: {e}"));
    node.network.map_or(Ok(()), |limit| network::check(limit.per_second).map_err(wrong))
}

/// That all that the study measures can be measured with nodes that have a network of their own, which workers are not in.
pub(crate) fn fits(study: &Study) -> Result<(), StudyError> {
    if per_second(study).is_none() {
        return Ok(());
    }
    let usage = |what: &str, why: &str| {
        Err(StudyError::usage(format!("{what} with [target] san.node.network: {why}")))
    };
    let by_nbd = |access: Access| access == Access::Nbd;
    if study.targets().filter_map(|target| target.san).any(|san| by_nbd(san.access)) {
        return usage(
            "access = \"nbd\"",
            "workers are not in the network of the nodes, and NBD over TCP does not reach it. Use access = \"local\", or leave network out",
        );
    }
    let mut apart = study.matrix.unaligned_percent.iter().chain(&study.vary.unaligned_percent);
    if apart.any(|percent| *percent > 0) {
        return usage(
            "unaligned_percent",
            "workers that are apart from their volumes reach them by NBD over TCP, which does not reach the network of the nodes. Leave \
             one of the two out",
        );
    }
    if study.ceilings.network().is_some() {
        return usage(
            "[ceilings] network_writes and network_reads",
            "the ceiling of the network is measured between workers, which are not in the network of the nodes. Leave these keys out: \
             each step says how much of its bandwidth a node has used",
        );
    }
    Ok(())
}

/// What a reader of a step should know of the network of the nodes. `during` is what that of each node carried in the step, which took
/// `took`.
pub(crate) fn findings(study: &Study, during: &BTreeMap<String, Traffic>, took: Duration) -> Vec<Finding> {
    let Some(limit) = per_second(study) else { return Vec::new() };
    let mut findings = vec![Finding::note(
        FindingKind::Modelled,
        "nodes that may use all of this machine's network",
        format!("each node sends and receives at most {limit} a second"),
        "The figures are of nodes with such a network. Workers reach their volumes without it.",
    )];
    let most = (limit.0 as f64 * took.as_secs_f64()).max(1.0);
    let used = |(node, Traffic { sent, received }): (&String, &Traffic)| {
        let (bytes, what) = if sent >= received { (*sent, "sent") } else { (*received, "received") };
        (bytes as f64 / most, format!("{node} {what}"))
    };
    let busy: Vec<(f64, String)> = during.iter().map(used).filter(|(part, _)| *part > LIMITS_LOAD).collect();
    if let Some((part, who)) = busy.iter().max_by(|a, b| a.0.total_cmp(&b.0)) {
        findings.push(Finding::note(
            FindingKind::Modelled,
            "nodes that do not use up their network",
            format!(
                "{} of {} nodes that sent or received more than {:.0} % of its bandwidth over the whole step; {who} {:.0} %",
                busy.len(),
                during.len(),
                100.0 * LIMITS_LOAD,
                100.0 * part
            ),
            "The network of the nodes may be what limits the load. A larger network = { per_second = ... } shows whether it is.",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use loadline_measure::audit::Severity;

    use super::*;
    use crate::plan::Plan;
    use crate::read::parse;

    const MIB: u64 = 1 << 20;

    fn study(target: &str, more: &str) -> String {
        format!(
            "name = \"s\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n{more}\n[target]\n{target}\n[fleet]\nnodes = 3\ndisk_size = \"64MiB\"\n"
        )
    }

    fn refusal(target: &str, more: &str) -> String {
        let planned = parse("s.toml", &study(target, more)).and_then(|study| Plan::of(&study).map(drop));
        planned.err().map(|error| error.message).unwrap_or_default()
    }

    #[test]
    fn a_network_is_a_bandwidth_that_is_possible() {
        let with = |network: &str| refusal(&format!("san = {{ node = {{ network = {network} }} }}"), "");
        assert_eq!(with("{ per_second = \"125MiB\" }"), "");
        for (network, part) in [
            (
                "{ per_second = \"1KiB\" }",
                "san.node.network: a network of 1KiB a second is not possible: give 1MiB to 100GiB",
            ),
            ("{ per_second = \"fast\" }", "per_second"),
            ("{}", "the key \"per_second\" is missing"),
            ("\"125MiB\"", "stands where a table is needed (keys: per_second)"),
            ("{ per_second = \"125MiB\", latency = \"1ms\" }", "there is no key \"latency\" here"),
        ] {
            let found = with(network);
            assert!(found.contains(part), "{network}\n{found}");
        }
    }

    #[test]
    fn what_would_not_go_over_the_network_of_the_nodes_is_refused() {
        let node = "node = { network = { per_second = \"20MiB\" } }";
        let target = format!("san = {{ {node} }}");
        for (target, more, part) in [
            (
                format!("san = {{ {node}, access = \"nbd\" }}"),
                "",
                "access = \"nbd\" with [target] san.node.network",
            ),
            (
                target.clone(),
                "[[policy]]\nname = \"one\"\nsan = { access = \"nbd\" }",
                "access = \"nbd\" with",
            ),
            (target.clone(), "[vary]\nunaligned_percent = [0, 50]", "unaligned_percent with"),
            (
                target.clone(),
                "[ceilings]\nnetwork_writes = 1\n[[ceilings.node]]\nname = \"node-1\"\nfolder = \".\"",
                "[ceilings] network_writes and network_reads with",
            ),
        ] {
            let found = refusal(&target, more);
            assert!(found.contains(part), "{target} {more}\n{found}");
        }
        assert_eq!(refusal(&target, "[vary]\nunaligned_percent = [0]"), "");
    }

    #[test]
    fn each_step_says_the_bandwidth_and_which_nodes_used_it_up() {
        let limited = study("san = { node = { network = { per_second = \"20MiB\" } } }", "");
        let limited = parse("s.toml", &limited).unwrap();
        let traffic = |sent, received| Traffic { sent: sent * MIB, received: received * MIB };
        let names = ["node-1", "node-2", "node-3"].map(String::from);
        let during = |all: [Traffic; 3]| names.clone().into_iter().zip(all).collect::<BTreeMap<_, _>>();
        let took = Duration::from_secs(10);
        let idle = during([traffic(159, 2), traffic(1, 159), traffic(0, 0)]);
        let found = findings(&limited, &idle, took);
        assert!(found.len() == 1 && found[0].severity == Severity::Note, "{found:?}");
        assert_eq!(found[0].found, "each node sends and receives at most 20MiB a second");
        let busy = during([traffic(170, 2), traffic(1, 190), traffic(80, 80)]);
        let found = findings(&limited, &busy, took);
        assert_eq!(
            found[1].found,
            "2 of 3 nodes that sent or received more than 80 % of its bandwidth over the whole step; node-2 received 95 %"
        );
        let free = parse("s.toml", &study("san = { node = { model = \"intel-s4500\" } }", "")).unwrap();
        assert_eq!(findings(&free, &busy, took), []);
    }
}
