//! Hosts and the ways between them, as programs read it (`loadline doctor --json`). Its JSON Schema is made from these types.

use loadline_load::host::Inventory;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{Check, Severity};
use crate::examine::Examination;
use crate::sync_write::SyncWrite;
use crate::{hosts, network};

/// The version of this form. Readers refuse what they do not know.
pub const FORMAT: u32 = 1;

/// What was found, on one host or on many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Loadline doctor report")]
pub struct Report {
    /// The version of this form.
    pub format: u32,
    /// The program that looked, and its version.
    pub version: String,
    /// How bad the worst is that was found.
    pub worst: Severity,
    /// Each host that was examined, in the order of the workers' names.
    pub hosts: Vec<HostReport>,
    /// The ways between hosts; empty of one host.
    pub network: Vec<Way>,
    /// What was found of the ways, and of the hosts beside each other; empty of one host.
    pub between: Vec<Check>,
    /// Workers that were lost before they had said what they found.
    pub lost: Vec<Lost>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostReport {
    /// The worker that examined it; `null` without a fleet.
    pub worker: Option<String>,
    /// How far its wall clock is ahead of the controller's, seconds, to within what a message takes; `null` without a fleet.
    pub clock_ahead_s: Option<f64>,
    /// What the host is.
    pub inventory: Inventory,
    /// Every check, in the order in which they were made.
    pub checks: Vec<Check>,
    /// What durable writes took; `null` if that was not asked for, or could not be measured.
    pub sync_write: Option<SyncWrite>,
}

impl HostReport {
    /// What an examination found, by which worker.
    pub fn new(examined: Examination, worker: Option<String>, clock_ahead_s: Option<f64>) -> HostReport {
        let Examination { inventory, checks, sync_write } = examined;
        HostReport { worker, clock_ahead_s, inventory, checks, sync_write }
    }

    /// The worker's name, or the host's.
    pub fn name(&self) -> &str {
        let host = self.inventory.host.as_deref().unwrap_or("this host");
        self.worker.as_deref().unwrap_or(host)
    }
}

/// The way from one worker's host to the next one's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// The worker that sent.
    pub from: String,
    /// The worker that received.
    pub to: String,
    /// Whether both are on one host: then it is that host's own loopback.
    pub one_host: bool,
    /// Median time of a message of 64 bytes there and one back, over TCP, microseconds; `null` if it could not be measured.
    pub round_trip_us: Option<f64>,
    /// Bytes that arrived in a second, one way, over four TCP connections; `null` if it could not be measured.
    pub bytes_per_s: Option<f64>,
    /// Why it could not be.
    pub why: Option<String>,
}

/// A worker that was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lost {
    /// Which.
    pub worker: String,
    /// Why.
    pub why: String,
}

impl Report {
    /// What was found on these hosts, and between them.
    pub fn new(hosts: Vec<HostReport>, network: Vec<Way>, lost: Vec<Lost>) -> Report {
        let mut between: Vec<Check> = network.iter().flat_map(network::check).collect();
        between.extend(hosts::compare(&hosts));
        let all = hosts.iter().flat_map(|host| &host.checks).chain(&between);
        let worst = all.map(|check| check.severity).max().unwrap_or_default();
        let version = concat!("loadline ", env!("CARGO_PKG_VERSION")).into();
        Report { format: FORMAT, version, worst, hosts, network, between, lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_of_all_hosts_and_of_what_is_between_them() {
        let host = |check: Check| {
            let examined = Examination { checks: vec![check], ..Examination::default() };
            HostReport::new(examined, Some("a".into()), None)
        };
        let fine = Report::new(vec![host(Check::ok("a", "b"))], Vec::new(), Vec::new());
        assert_eq!(fine.worst, Severity::Ok);
        assert_eq!(
            Report::new(vec![host(Check::slow("a", "b"))], Vec::new(), Vec::new()).worst,
            Severity::Slow
        );
        let (from, to, why) = ("a".into(), "b".into(), Some("no route".into()));
        let way = Way { from, to, one_host: false, round_trip_us: None, bytes_per_s: None, why };
        let report = Report::new(vec![host(Check::note("a", "b"))], vec![way], Vec::new());
        assert_eq!((report.worst, report.between.len()), (Severity::Bad, 1));
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert!(text.contains("\"worst\":\"bad\""), "{text}");
    }
}
