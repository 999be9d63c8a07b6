//! The network of each node of a cluster that the run starts, if the study gives it a bandwidth.

use std::collections::BTreeMap;

use loadline_base::units::ByteSize;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_target::{Traffic, network};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::file::{Access, NodeSection, Study};

/// The network of a node counts as what may limit a load if it carried so much of its bandwidth in the window.
const LIMITS_LOAD: f64 = 0.9;

/// What the networks of the nodes carried over a window, with the headers of TCP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkUse {
    /// Bytes a second that each node may send to the others, and receive from them.
    pub limit_bytes_per_s: u64,
    /// Between the two moments at which the bytes were read, seconds: about the window.
    pub seconds: f64,
    /// Each node, by its name.
    pub nodes: BTreeMap<String, NodeTraffic>,
}

/// What the network of one node carried.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeTraffic {
    /// Bytes a second that the node sent to other nodes.
    pub sent_bytes_per_s: f64,
    /// Bytes a second that the node received from other nodes.
    pub received_bytes_per_s: f64,
}

impl NetworkUse {
    /// Of what was carried in so many seconds.
    pub(crate) fn of(limit: ByteSize, carried: &BTreeMap<String, Traffic>, seconds: f64) -> NetworkUse {
        let a_second = |bytes: u64| bytes as f64 / seconds.max(f64::MIN_POSITIVE);
        let of_node = |(node, traffic): (&String, &Traffic)| {
            let traffic = NodeTraffic {
                sent_bytes_per_s: a_second(traffic.sent),
                received_bytes_per_s: a_second(traffic.received),
            };
            (node.clone(), traffic)
        };
        NetworkUse { limit_bytes_per_s: limit.0, seconds, nodes: carried.iter().map(of_node).collect() }
    }

    /// What share of its bandwidth each node used in the direction in which it used more (1 is all of it), with words for it, such as
    /// `node-2 received`. The busiest node is first.
    pub fn shares(&self) -> Vec<(f64, String)> {
        let of_node = |(node, traffic): (&String, &NodeTraffic)| {
            let (sent, received) = (traffic.sent_bytes_per_s, traffic.received_bytes_per_s);
            let (bytes, what) = if sent >= received { (sent, "sent") } else { (received, "received") };
            // What may pass at once makes it a little more than the bandwidth in a short window.
            ((bytes / self.limit_bytes_per_s.max(1) as f64).min(1.0), format!("{node} {what}"))
        };
        let mut shares: Vec<(f64, String)> = self.nodes.iter().map(of_node).collect();
        shares.sort_by(|a, b| b.0.total_cmp(&a.0));
        shares
    }
}

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

/// What a reader of a step should know of the network of the nodes. `used` is what was carried in its window, if that is known.
pub(crate) fn findings(study: &Study, used: Option<&NetworkUse>) -> Vec<Finding> {
    let Some(limit) = per_second(study) else { return Vec::new() };
    let mut findings = vec![Finding::note(
        FindingKind::Modelled,
        "nodes that may use all of this machine's network",
        format!("each node sends and receives at most {limit} a second"),
        "The figures are of nodes with such a network. Workers reach their volumes without it.",
    )];
    let shares = used.map(NetworkUse::shares).unwrap_or_default();
    let busy: Vec<&(f64, String)> = shares.iter().filter(|(share, _)| *share >= LIMITS_LOAD).collect();
    if let Some((share, who)) = busy.first() {
        findings.push(Finding::note(
            FindingKind::Modelled,
            "nodes that do not use up their network",
            format!(
                "{} of {} nodes that sent or received at least {:.0} % of its bandwidth in the window; {who} {:.0} %",
                busy.len(),
                shares.len(),
                100.0 * LIMITS_LOAD,
                100.0 * share
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
        let used = |all: [Traffic; 3]| {
            let carried = names.clone().into_iter().zip(all).collect();
            NetworkUse::of(ByteSize(20 * MIB), &carried, 10.0)
        };
        let idle = used([traffic(179, 2), traffic(1, 179), traffic(0, 0)]);
        let found = findings(&limited, Some(&idle));
        assert!(found.len() == 1 && found[0].severity == Severity::Note, "{found:?}");
        assert_eq!(found[0].found, "each node sends and receives at most 20MiB a second");
        assert_eq!(findings(&limited, None), found, "what was carried is not known");
        let busy = used([traffic(182, 2), traffic(1, 190), traffic(80, 80)]);
        let found = findings(&limited, Some(&busy));
        assert_eq!(
            found[1].found,
            "2 of 3 nodes that sent or received at least 90 % of its bandwidth in the window; node-2 received 95 %"
        );
        let free = parse("s.toml", &study("san = { node = { model = \"intel-s4500\" } }", "")).unwrap();
        assert_eq!(findings(&free, Some(&busy)), []);
        assert_eq!(busy.nodes["node-2"].received_bytes_per_s, 19.0 * MIB as f64);
        assert_eq!(used([traffic(205, 0); 3]).shares()[0], (1.0, "node-1 sent".into()));
    }
}
