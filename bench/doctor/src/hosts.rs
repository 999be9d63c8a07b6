//! Compares hosts: what differs between them, and their clocks.

use std::collections::BTreeMap;

use loadline_load::host::Inventory;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::examine::Examination;
use crate::sync_write::SyncWrite;

/// Memory that differs by no more than this share is the same: the kernel takes a little for itself.
const SAME_MEMORY: f64 = 0.05;
/// Wall clocks further apart than this, seconds, make logs of several hosts hard to read together.
const SAME_TIME_S: f64 = 0.5;

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
    /// What durable writes took; `null` if that was not requested, or could not be measured.
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

/// A text of a host's inventory.
type Text = fn(&Inventory) -> Option<&String>;

/// What differs between hosts, and how far apart their clocks are. Nothing with one host.
pub fn compare(hosts: &[HostReport]) -> Vec<Check> {
    if hosts.len() < 2 {
        return Vec::new();
    }
    let known = |value: Option<&String>| value.cloned().unwrap_or_else(|| "unknown".into());
    let texts: [(&str, Text, &str); 3] = [
        ("kernel", |host| host.kernel.as_ref(), "install the same one everywhere: uname -r shows it"),
        ("CPU model", |host| host.cpu.as_ref(), "use hosts of one kind, or measure each kind by itself"),
        ("governor", |host| host.governor.as_ref(), "set the same one everywhere"),
    ];
    let mut checks: Vec<Check> = texts
        .iter()
        .map(|(what, of, mend)| judged(what, hosts, |host| known(of(&host.inventory)), mend))
        .collect();
    let mend = "use hosts of one kind, or measure each kind by itself";
    checks.push(judged("number of CPUs", hosts, |host| host.inventory.cpus.to_string(), mend));
    checks.push(memory(hosts));
    checks.push(clocks(hosts));
    checks
}

/// One thing that is to be the same everywhere.
fn judged(what: &str, hosts: &[HostReport], of: impl Fn(&HostReport) -> String, mend: &str) -> Check {
    let name = format!("hosts: {what}");
    let mut by_value: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for host in hosts {
        by_value.entry(of(host)).or_default().push(host.name());
    }
    if by_value.len() < 2 {
        return Check::ok(name, "the same on all");
    }
    let all: Vec<String> =
        by_value.iter().map(|(value, names)| format!("{value} on {}", names.join(", "))).collect();
    different(name, all.join("; "), mend)
}

fn different(name: String, found: String, mend: &str) -> Check {
    Check::slow(name, found)
        .expected("the same on all")
        .costs(
            "the slowest host slows down the others, and its limit looks like a limit of the storage; runs that place workers \
             on different hosts cannot be compared",
        )
        .mend(mend)
}

fn memory(hosts: &[HostReport]) -> Check {
    let name = "hosts: memory".to_string();
    let sizes: Vec<f64> =
        hosts.iter().filter_map(|host| host.inventory.memory).map(|bytes| bytes as f64).collect();
    let (least, most) =
        (sizes.iter().copied().fold(f64::MAX, f64::min), sizes.iter().copied().fold(0.0, f64::max));
    if sizes.len() < 2 || least >= most * (1.0 - SAME_MEMORY) {
        return Check::ok(name, "the same on all");
    }
    let all: Vec<String> = hosts
        .iter()
        .map(|host| match host.inventory.memory {
            Some(bytes) => format!("{:.1} GiB on {}", bytes as f64 / f64::from(1 << 30), host.name()),
            None => format!("unknown on {}", host.name()),
        })
        .collect();
    different(name, all.join("; "), "use hosts of one kind, or measure each kind by itself")
}

/// How far the hosts' wall clocks are apart, to within what a message takes.
fn clocks(hosts: &[HostReport]) -> Check {
    let name = "hosts: clocks";
    let ahead: Vec<(f64, &str)> =
        hosts.iter().filter_map(|host| Some((host.clock_ahead_s?, host.name()))).collect();
    let last = ahead.iter().copied().reduce(|a, b| if b.0 < a.0 { b } else { a });
    let first = ahead.iter().copied().reduce(|a, b| if b.0 > a.0 { b } else { a });
    let (Some((least, behind)), Some((most, before))) = (last, first) else {
        return Check::ok(name, "not known");
    };
    let apart = most - least;
    if apart <= SAME_TIME_S {
        return Check::ok(name, format!("within {SAME_TIME_S} s of each other"));
    }
    Check::note(name, format!("{before} is {apart:.1} s ahead of {behind}"))
        .expected(format!("within {SAME_TIME_S} s of each other"))
        .costs(
            "no figure, since a fleet agrees on a clock of its own; but logs of several hosts cannot be laid side by \
             side",
        )
        .mend("run a time service on each, such as chrony")
        .run("sudo apt-get install -y chrony && chronyc tracking")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Severity::{Note, Ok, Slow};

    fn host(name: &str) -> HostReport {
        let inventory = Inventory {
            host: Some(name.into()),
            kernel: Some("6.1.0".into()),
            cpus: 8,
            memory: Some(64 << 30),
            ..Inventory::default()
        };
        HostReport {
            worker: Some(name.into()),
            clock_ahead_s: Some(0.01),
            inventory,
            checks: Vec::new(),
            sync_write: None,
        }
    }

    fn found(hosts: &[HostReport]) -> Vec<Check> {
        compare(hosts).into_iter().filter(|check| check.severity > Ok).collect()
    }

    #[test]
    fn hosts_that_are_alike_are_fine_and_a_single_host_is_not_compared() {
        assert_eq!(compare(&[host("a")]), []);
        assert_eq!(compare(&[host("a"), host("b")]).len(), 6);
        assert_eq!(found(&[host("a"), host("b")]), []);
        let mut little = host("b");
        little.inventory.memory = Some(63 << 30);
        assert_eq!(found(&[host("a"), little]), []);
    }

    #[test]
    fn each_difference_is_found_with_the_hosts_that_have_each_value() {
        let with = |change: fn(&mut HostReport)| {
            let mut other = host("b");
            change(&mut other);
            let found = found(&[host("a"), other, host("c")]);
            assert_eq!(found.len(), 1, "{found:?}");
            found[0].clone()
        };
        let kernel = with(|host| host.inventory.kernel = Some("5.15.0".into()));
        assert_eq!(kernel.severity, Slow);
        assert_eq!(kernel.found, "5.15.0 on b; 6.1.0 on a, c");
        assert_eq!(with(|host| host.inventory.cpus = 4).found, "4 on b; 8 on a, c");
        assert_eq!(with(|host| host.inventory.governor = Some("powersave".into())).severity, Slow);
        assert_eq!(with(|host| host.inventory.cpu = Some("other".into())).severity, Slow);
        assert!(with(|host| host.inventory.memory = Some(32 << 30)).found.contains("32.0 GiB on b"));
        let clocks = with(|host| host.clock_ahead_s = Some(-7.0));
        assert_eq!((clocks.severity, clocks.found.contains("7.0 s ahead of b")), (Note, true), "{clocks:?}");
    }
}
