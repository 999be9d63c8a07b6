//! What the storage counts itself over a window, held against what the workers measured: front-end I/Os are the workers' I/Os,
//! and each write is logged once for each copy.

use loadline_measure::audit::{Finding, FindingKind};
use loadline_profile::Profile;
use loadline_target::Counters;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Both may differ by so much.
const TOLERANCE: f64 = 0.01;
/// Log bytes may be more than writes and headers by so much: a replica's own pages, a few in each 8 MiB of log.
const PAGES: f64 = 0.02;
/// And by so much in a window in which little is written: these pages come several at a time, and of all replicas.
const PAGES_BYTES: f64 = 2.0 * 1024.0 * 1024.0;
/// Nodes are asked one after another, at moments that are the window's only to within so much, seconds.
const EDGE_S: f64 = 0.15;
/// The block in which the log is written.
const LOG_BLOCK: u64 = 4096;
/// The header of a log entry of up to [`LARGEST`] bytes.
const HEADER: u64 = 512;
/// The largest write whose entry has a header of one sector: 99 blocks.
const LARGEST: u64 = 99 * LOG_BLOCK;

/// What the nodes of a cluster counted over a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StorageCounts {
    /// Between the first and the last time that the nodes were asked, seconds: about the window.
    pub seconds: f64,
    /// I/Os that clients asked of volumes where they are owned, a second.
    pub front_iops: f64,
    /// Bytes of them, a second.
    pub front_bytes_per_s: f64,
    /// Bytes that clients wrote, a second.
    #[serde(default)]
    pub front_write_bytes_per_s: f64,
    /// What share of the bytes that were read came from the copy on the node that owns the volume, 1 being all of them, and not
    /// over the network; `null` if nothing was read.
    #[serde(default)]
    pub read_at_owner: Option<f64>,
    /// Bytes written to the logs of all replicas, a second.
    pub log_bytes_per_s: f64,
    /// What they should be: each write once for each copy, with its header; `null` where a copy is missing, or the sizes of
    /// writes do not say.
    pub expected_log_bytes_per_s: Option<f64>,
    /// Bytes that were destaged from logs to where they stay, a second.
    pub destaged_bytes_per_s: f64,
    /// CPU cores that all nodes' processes used together.
    pub cpu_cores: f64,
}

impl StorageCounts {
    /// Of what was counted in so many seconds, of a load on volumes of so many copies, all of which are in sync; `None`
    /// copies if one is missing.
    pub(crate) fn of(nodes: &Counters, seconds: f64, load: &Profile, copies: Option<u32>) -> StorageCounts {
        let counted = nodes.total();
        let a_second = |count: u64| count as f64 / seconds;
        let block = load.block_size.0;
        let tells = block.is_multiple_of(LOG_BLOCK)
            && block <= LARGEST
            && load.base_offset.0.is_multiple_of(LOG_BLOCK);
        let written = counted.front_write_bytes.saturating_add(HEADER.saturating_mul(counted.front_writes));
        StorageCounts {
            seconds,
            front_iops: a_second(counted.front_reads.saturating_add(counted.front_writes)),
            front_bytes_per_s: a_second(counted.front_read_bytes.saturating_add(counted.front_write_bytes)),
            front_write_bytes_per_s: a_second(counted.front_write_bytes),
            read_at_owner: nodes.read_at_owner(),
            log_bytes_per_s: a_second(counted.log_write_bytes),
            expected_log_bytes_per_s: copies
                .filter(|_| tells)
                .map(|copies| f64::from(copies) * a_second(written)),
            destaged_bytes_per_s: a_second(counted.capacity_write_bytes),
            cpu_cores: counted.cpu_s / seconds,
        }
    }

    /// What does not agree: with the workers' I/Os a second, and with itself.
    pub(crate) fn findings(&self, iops: f64) -> Vec<Finding> {
        let edge = TOLERANCE + EDGE_S / self.seconds;
        let mut findings = Vec::new();
        if (self.front_iops / iops - 1.0).abs() > edge && iops > 0.0 {
            findings.push(Finding::doubt(
                FindingKind::Counters,
                format!("the {iops:.0} IOPS of the workers in the storage's own front-end counters, within {:.1} %", 100.0 * edge),
                format!("{:.0} IOPS there", self.front_iops),
                "Another program uses the volumes, or one of the two figures is wrong: report the problem with the run's folder.",
            ));
        }
        if let Some(expected) = self.expected_log_bytes_per_s.filter(|expected| *expected > 0.0) {
            let (least, most) =
                (expected * (1.0 - edge), expected * (1.0 + PAGES + edge) + PAGES_BYTES / self.seconds);
            if !(least..=most).contains(&self.log_bytes_per_s) {
                findings.push(Finding::doubt(
                    FindingKind::Counters,
                    format!(
                        "each write in the log of every copy, with its header: {:.1} to {:.1} MB/s",
                        least / 1e6,
                        most / 1e6
                    ),
                    format!("{:.1} MB/s", self.log_bytes_per_s / 1e6),
                    "If less was written, a copy receives no writes. If more was written, copies are being rebuilt or written twice.",
                ));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use loadline_base::units::ByteSize;
    use loadline_target::NodeCounters;

    use super::*;

    fn of_nodes(nodes: &[NodeCounters]) -> Counters {
        let named = nodes.iter().enumerate().map(|(n, node)| (format!("node-{n}"), node.clone()));
        Counters { nodes: named.collect::<BTreeMap<_, _>>() }
    }

    fn counted(front: u64, log: u64) -> NodeCounters {
        NodeCounters {
            front_reads: front,
            front_writes: front,
            front_read_bytes: front * 4096,
            front_write_bytes: front * 4096,
            log_write_bytes: log,
            ..NodeCounters::default()
        }
    }

    fn found(front: u64, log: u64, copies: Option<u32>, block: u64) -> usize {
        let load = Profile { block_size: ByteSize(block), ..Profile::default() };
        // Thirty seconds at 2,000 IOPS.
        let nodes = of_nodes(&[counted(front, log)]);
        StorageCounts::of(&nodes, 30.0, &load, copies).findings(2_000.0).len()
    }

    #[test]
    fn reads_from_the_owners_copy_and_from_others_are_told_apart() {
        let node = |read_here_bytes: u64, read_elsewhere_bytes: u64| NodeCounters {
            read_here_bytes,
            read_elsewhere_bytes,
            ..NodeCounters::default()
        };
        let share = |nodes: &[NodeCounters]| {
            StorageCounts::of(&of_nodes(nodes), 1.0, &Profile::default(), None).read_at_owner
        };
        assert_eq!(share(&[node(100, 0), node(100, 0)]), Some(1.0));
        assert_eq!(share(&[node(0, 100), node(0, 100)]), Some(0.0), "each reads all from the other");
        assert_eq!(share(&[node(300, 100), node(0, 0)]), Some(0.75));
        assert_eq!(share(&[node(0, 0)]), None);
    }

    #[test]
    fn what_the_storage_counts_is_what_the_workers_did_and_what_each_copy_logs() {
        let log = 2 * 30_000 * (4096 + 512);
        assert_eq!(found(30_000, log, Some(2), 4096), 0);
        assert_eq!(found(30_000, log + log / 100, Some(2), 4096), 0, "pages of its own");
        assert_eq!(found(30_000, log / 2, Some(2), 4096), 1, "a copy is missing");
        let quiet = |log: u64| {
            let load = Profile { block_size: ByteSize(4096), ..Profile::default() };
            StorageCounts::of(&of_nodes(&[counted(300, log)]), 4.0, &load, Some(2)).findings(150.0).len()
        };
        let little = 2 * 300 * (4096 + 512);
        assert_eq!(quiet(little + (1 << 20)), 0, "pages of its own, of many replicas at once");
        assert_eq!((quiet(little / 2), quiet(2 * little)), (1, 1), "a copy is missing, or written twice");
        assert_eq!(found(30_000, log / 2, None, 4096), 0, "and known to be");
        assert_eq!(found(30_000, 2 * log, Some(2), 4096), 1);
        assert_eq!(found(30_600, log * 102 / 100, Some(2), 4096), 1, "2 % more than the workers did");
        assert_eq!(found(30_000, 2 * log, Some(2), 1 << 20), 0, "how large the headers are is not known");
    }
}
