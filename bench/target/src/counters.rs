//! What the SAN's nodes count themselves, to be held against what workers measured.
//!
//! A node counts from when it opened a volume or a replica. A volume that is taken over, or a replica that is opened anew,
//! begins at nothing, so only figures between which nothing of the kind happened can be subtracted.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::error::TargetError;

/// What each node that answers has counted, by its name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// The nodes.
    pub nodes: BTreeMap<String, NodeCounters>,
}

/// What one node has counted. What fills a device on purpose is in none of it but the CPU time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeCounters {
    /// Reads that clients asked of the volumes that it owns, and that succeeded. A client that comes to another node is
    /// counted here, and not there.
    pub front_reads: u64,
    /// Writes, likewise.
    pub front_writes: u64,
    /// Bytes of those reads.
    pub front_read_bytes: u64,
    /// Bytes of those writes.
    pub front_write_bytes: u64,
    /// Requests of clients of any kind that failed.
    pub front_errors: u64,
    /// Writes to the logs of its replicas, each of one write of a client or of several.
    pub log_writes: u64,
    /// Bytes of them: data, headers, and the metadata of a replica.
    pub log_write_bytes: u64,
    /// Bytes that its replicas wrote to where data stays: what was destaged, and the slots that say what is where.
    pub capacity_write_bytes: u64,
    /// Bytes that its replicas read from there.
    pub capacity_read_bytes: u64,
    /// Bytes that the volumes that it owns asked of the copy that it has itself.
    pub read_here_bytes: u64,
    /// Bytes that they asked of copies on other nodes.
    pub read_elsewhere_bytes: u64,
    /// CPU time of its process, seconds.
    pub cpu_s: f64,
}

impl Counters {
    /// What was counted since an earlier look. `None` if a node is not in both, or if one of its counters went backwards: it
    /// was started anew, or a volume left it.
    pub fn since(&self, earlier: &Counters) -> Option<Counters> {
        if self.nodes.len() != earlier.nodes.len() {
            return None;
        }
        let since = |(name, now): (&String, &NodeCounters)| {
            let before = earlier.nodes.get(name)?;
            Some((name.clone(), now.with(before, u64::checked_sub, |now, before| now - before)?))
        };
        let nodes: Option<BTreeMap<String, NodeCounters>> = self.nodes.iter().map(since).collect();
        // Seconds are whole ticks of the kernel's clock, by part: what is rounded is no way back.
        nodes.filter(|nodes| nodes.values().all(|node| node.cpu_s > -0.1)).map(|mut nodes| {
            nodes.values_mut().for_each(|node| node.cpu_s = node.cpu_s.max(0.0));
            Counters { nodes }
        })
    }

    /// What share of the bytes that volumes read came from the copy on the node that owns them, 1 being all of them, and not over
    /// the network. `None` if nothing was read.
    pub fn read_at_owner(&self) -> Option<f64> {
        let total = self.total();
        let all = total.read_here_bytes.saturating_add(total.read_elsewhere_bytes);
        (all > 0).then(|| total.read_here_bytes as f64 / all as f64)
    }

    /// All nodes together.
    pub fn total(&self) -> NodeCounters {
        self.nodes.values().fold(NodeCounters::default(), |sum, node| {
            let add = |one: u64, other: u64| Some(one.saturating_add(other));
            sum.with(node, add, |one, other| one + other).unwrap_or_default()
        })
    }
}

impl NodeCounters {
    /// Both, field by field; `None` if one of the fields has no result.
    fn with(
        &self,
        other: &NodeCounters,
        count: impl Fn(u64, u64) -> Option<u64>,
        seconds: impl Fn(f64, f64) -> f64,
    ) -> Option<NodeCounters> {
        Some(NodeCounters {
            front_reads: count(self.front_reads, other.front_reads)?,
            front_writes: count(self.front_writes, other.front_writes)?,
            front_read_bytes: count(self.front_read_bytes, other.front_read_bytes)?,
            front_write_bytes: count(self.front_write_bytes, other.front_write_bytes)?,
            front_errors: count(self.front_errors, other.front_errors)?,
            log_writes: count(self.log_writes, other.log_writes)?,
            log_write_bytes: count(self.log_write_bytes, other.log_write_bytes)?,
            capacity_write_bytes: count(self.capacity_write_bytes, other.capacity_write_bytes)?,
            capacity_read_bytes: count(self.capacity_read_bytes, other.capacity_read_bytes)?,
            read_here_bytes: count(self.read_here_bytes, other.read_here_bytes)?,
            read_elsewhere_bytes: count(self.read_elsewhere_bytes, other.read_elsewhere_bytes)?,
            cpu_s: seconds(self.cpu_s, other.cpu_s),
        })
    }

    /// Reads a node's page: the text format of Prometheus, version 0.0.4, as far as the SAN uses it.
    fn parse(page: &str, counts: impl Fn(&str) -> bool) -> Result<NodeCounters, String> {
        let mut node = NodeCounters::default();
        let mut any_cpu = false;
        for line in page.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            // Classes of histograms are most of the page, and nothing of them is needed.
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let is_wanted =
                [FRONT_COUNT, FRONT_BYTES, FRONT_ERRORS, BACK_COUNT, BACK_BYTES, READ, CPU].contains(&name);
            if !is_wanted {
                continue;
            }
            let sample = Sample::parse(line).ok_or_else(|| format!("\"{line}\" is no sample"))?;
            if sample.label("volume").is_some_and(|volume| !counts(volume)) {
                continue;
            }
            // Where from, of what volumes read.
            let op = sample.label("op").or(sample.label("from")).unwrap_or_default();
            let of = (sample.label("area").unwrap_or_default(), op);
            let field = match (name, of.0, of.1) {
                (CPU, _, _) => {
                    any_cpu = true;
                    node.cpu_s += sample.value;
                    continue;
                }
                (FRONT_COUNT, _, "read") => &mut node.front_reads,
                (FRONT_COUNT, _, "write") => &mut node.front_writes,
                (FRONT_BYTES, _, "read") => &mut node.front_read_bytes,
                (FRONT_BYTES, _, "write") => &mut node.front_write_bytes,
                (FRONT_ERRORS, _, _) => &mut node.front_errors,
                (BACK_COUNT, "log", "write") => &mut node.log_writes,
                (BACK_BYTES, "log", "write") => &mut node.log_write_bytes,
                (BACK_BYTES, "capacity", "write") => &mut node.capacity_write_bytes,
                (BACK_BYTES, "capacity", "read") => &mut node.capacity_read_bytes,
                (READ, _, "here") => &mut node.read_here_bytes,
                (READ, _, "elsewhere") => &mut node.read_elsewhere_bytes,
                _ => continue,
            };
            let more = sample.count().ok_or_else(|| format!("\"{line}\" counts nothing whole"))?;
            *field = field.saturating_add(more);
        }
        // A page without them is another program's: none of its volumes would have been no volumes.
        any_cpu.then_some(node).ok_or_else(|| format!("there is no {CPU}"))
    }
}

const FRONT_COUNT: &str = "loadline_frontend_seconds_count";
const FRONT_BYTES: &str = "loadline_frontend_bytes_total";
const FRONT_ERRORS: &str = "loadline_frontend_errors_total";
const BACK_COUNT: &str = "loadline_backend_seconds_count";
const BACK_BYTES: &str = "loadline_backend_bytes_total";
const READ: &str = "loadline_volume_read_bytes_total";
const CPU: &str = "loadline_cpu_seconds_total";

/// Counters travel as floating point: beyond this not every whole number is one.
const MOST_EXACT: f64 = 9_007_199_254_740_992.0;

/// A line of the page that is no comment.
#[derive(Debug, PartialEq)]
struct Sample {
    labels: Vec<(String, String)>,
    value: f64,
}

impl Sample {
    /// `name{label="value",…} number`, or `name number`. The moment that may follow elsewhere the SAN never writes.
    fn parse(line: &str) -> Option<Sample> {
        let labels_at = line.find(['{', ' '])?;
        let mut rest = &line[labels_at..];
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                if let Some(behind) = rest.strip_prefix('}') {
                    rest = behind;
                    break;
                }
                let (name, behind) = rest.split_once("=\"")?;
                let (value, behind) = unquoted(behind)?;
                labels.push((name.trim().to_string(), value));
                rest = behind.strip_prefix(',').unwrap_or(behind);
            }
        }
        let value = rest.trim().parse().ok()?;
        Some(Sample { labels, value })
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Its value, if it is a whole number that was not rounded on its way.
    fn count(&self) -> Option<u64> {
        let is_whole = self.value.fract() == 0.0 && (0.0..MOST_EXACT).contains(&self.value);
        is_whole.then_some(self.value as u64)
    }
}

/// A label's value up to its closing quote, and what is behind that.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                escaped @ ('\\' | '"') => value.push(escaped),
                _ => return None,
            },
            other => value.push(other),
        }
    }
    None
}

impl Cluster {
    /// What its nodes have counted since they opened what they have. Nodes that were killed or stand still are not in it. An
    /// error if one of the others does not answer, or says what is not understood.
    pub fn counters(&self) -> Result<Counters, TargetError> {
        let mut nodes = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| !node.state.is_gone()) {
            let counted =
                NodeCounters::parse(&node.api.metrics()?, |volume| self.counts(volume)).map_err(|why| {
                    TargetError::failed(format!("the counters of {} are not understood: {why}", node.name))
                })?;
            nodes.insert(node.name.clone(), counted);
        }
        Ok(Counters { nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = r#"# HELP loadline_frontend_bytes_total Bytes of what clients asked.
# TYPE loadline_frontend_bytes_total counter
loadline_frontend_bytes_total{volume="a",op="read"} 8192
loadline_frontend_bytes_total{volume="a",op="write"} 4096
loadline_frontend_bytes_total{volume="b\"},\\",op="write"} 12288
loadline_frontend_bytes_total{volume="loadline-filler-node-1",op="write"} 1048576
loadline_frontend_errors_total{volume="a",op="flush"} 1
loadline_frontend_seconds_bucket{volume="a",op="read",le="0.000025"} 2
loadline_frontend_seconds_sum{volume="a",op="read"} 0.5
loadline_frontend_seconds_count{volume="a",op="read"} 2
loadline_frontend_seconds_count{volume="a",op="write"} 1
loadline_frontend_seconds_count{volume="b\"},\\",op="write"} 3
loadline_frontend_seconds_count{volume="a",op="flush"} 9
loadline_backend_bytes_total{volume="a",replica="1",device="1",area="log",op="write"} 18432
loadline_backend_bytes_total{volume="a",replica="1",device="1",area="log",op="read"} 7
loadline_backend_bytes_total{volume="a",replica="1",device="1",area="capacity",op="write"} 4608
loadline_backend_bytes_total{volume="a",replica="1",device="1",area="capacity",op="read"} 8192
loadline_backend_seconds_count{volume="a",replica="1",device="1",area="log",op="write"} 2
loadline_volume_read_bytes_total{volume="a",from="here"} 4096
loadline_volume_read_bytes_total{volume="a",from="elsewhere"} 12288
loadline_clients 3
loadline_cpu_seconds_total{part="loop-0"} 1.25
loadline_cpu_seconds_total{part="other"} 0.5
"#;

    fn node() -> NodeCounters {
        NodeCounters {
            front_reads: 2,
            front_writes: 4,
            front_read_bytes: 8192,
            front_write_bytes: 16384,
            front_errors: 1,
            log_writes: 2,
            log_write_bytes: 18432,
            capacity_write_bytes: 4608,
            capacity_read_bytes: 8192,
            read_here_bytes: 4096,
            read_elsewhere_bytes: 12288,
            cpu_s: 1.75,
        }
    }

    fn counters(of: &[(&str, NodeCounters)]) -> Counters {
        Counters { nodes: of.iter().map(|(name, node)| (name.to_string(), node.clone())).collect() }
    }

    #[test]
    fn a_page_is_summed_over_volumes_and_replicas_without_what_only_fills() {
        assert_eq!(NodeCounters::parse(PAGE, |volume| volume != "loadline-filler-node-1"), Ok(node()));
    }

    #[test]
    fn a_page_that_is_not_understood_is_not_guessed_at() {
        for (from, to) in [
            ("op=\"read\"} 8192", "op=\"read\"} 8192.5"),
            ("op=\"read\"} 8192", "op=\"read\"} NaN"),
            ("op=\"read\"} 8192", "op=\"read\"} -1"),
            ("op=\"read\"} 8192", "op=\"read} 8192"),
            ("op=\"read\"} 8192", "op=\"read\"}"),
            ("loadline_cpu_seconds_total", "other_cpu_seconds_total"),
        ] {
            assert!(NodeCounters::parse(&PAGE.replace(from, to), |_| true).is_err(), "{to}");
        }
        assert!(NodeCounters::parse("<html></html>", |_| true).is_err());
    }

    #[test]
    fn what_was_counted_since_is_known_only_if_nothing_began_anew() {
        let twice = counters(&[("n", node())])
            .nodes
            .values()
            .fold(node(), |sum, node| sum.with(node, u64::checked_add, |one, other| one + other).unwrap());
        let (before, after) = (counters(&[("n", node())]), counters(&[("n", twice.clone())]));
        assert_eq!(after.since(&before), Some(before.clone()));
        assert_eq!(before.since(&after), None, "it was started anew");
        let other = NodeCounters { log_writes: 1, ..twice.clone() };
        assert_eq!(counters(&[("n", other)]).since(&before), None, "one counter went backwards");
        let more = counters(&[("n", twice), ("m", node())]);
        assert_eq!((more.since(&before), before.since(&more)), (None, None), "a node came, or went");
        assert_eq!(more.total().front_writes, 12);
        assert_eq!(more.total().cpu_s, 5.25);
        assert_eq!(Counters::default().total(), NodeCounters::default());
    }
}
