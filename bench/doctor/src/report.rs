//! Hosts and the ways between them, as programs read it (`loadline doctor --json`). Its JSON Schema is made from these types.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{Check, Severity};
use crate::{hosts, network};

pub use crate::hosts::HostReport;
pub use crate::network::MeasuredPath;

/// The version of this form. Readers refuse what they do not know.
pub const FORMAT: u32 = 1;

/// What was found, on one host or on many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Loadline doctor report")]
pub struct DoctorReport {
    /// The version of this form.
    pub format: u32,
    /// The program that made the checks, and its version.
    pub version: String,
    /// How bad the worst is that was found.
    pub worst: Severity,
    /// Each host that was examined, in the order of the workers' names.
    pub hosts: Vec<HostReport>,
    /// The ways between hosts; empty of one host.
    pub network: Vec<MeasuredPath>,
    /// What was found of the ways, and of the hosts beside each other; empty of one host.
    pub between: Vec<Check>,
    /// Workers that were lost before they had said what they found.
    pub lost: Vec<Lost>,
}

/// A worker that was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lost {
    /// The name of the worker.
    pub worker: String,
    /// Why the worker was lost.
    pub why: String,
}

impl DoctorReport {
    /// What was found on these hosts, and between them.
    pub fn new(hosts: Vec<HostReport>, network: Vec<MeasuredPath>, lost: Vec<Lost>) -> DoctorReport {
        let mut between: Vec<Check> = network.iter().flat_map(network::check).collect();
        between.extend(hosts::compare(&hosts));
        let all = hosts.iter().flat_map(|host| &host.checks).chain(&between);
        let worst = all.map(|check| check.severity).max().unwrap_or_default();
        let version = concat!("loadline ", env!("CARGO_PKG_VERSION")).into();
        DoctorReport { format: FORMAT, version, worst, hosts, network, between, lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examine::Examination;

    #[test]
    fn the_worst_is_of_all_hosts_and_of_what_is_between_them() {
        let host = |check: Check| {
            let examined = Examination { checks: vec![check], ..Examination::default() };
            HostReport::new(examined, Some("a".into()), None)
        };
        let fine = DoctorReport::new(vec![host(Check::ok("a", "b"))], Vec::new(), Vec::new());
        assert_eq!(fine.worst, Severity::Ok);
        assert_eq!(
            DoctorReport::new(vec![host(Check::slow("a", "b"))], Vec::new(), Vec::new()).worst,
            Severity::Slow
        );
        let (from, to, why) = ("a".into(), "b".into(), Some("no route".into()));
        let path = MeasuredPath { from, to, one_host: false, round_trip_us: None, bytes_per_s: None, why };
        let report = DoctorReport::new(vec![host(Check::note("a", "b"))], vec![path], Vec::new());
        assert_eq!((report.worst, report.between.len()), (Severity::Bad, 1));
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<DoctorReport>(&text).unwrap(), report);
        assert!(text.contains("\"worst\":\"bad\""), "{text}");
    }
}
