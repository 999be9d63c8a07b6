//! The virtual machines that a run started to be its workers: what ran them, and how long each start took.

use loadline_base::figures::latency;
use loadline_study::folder::result::StepResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One start of a virtual machine, as the first step after it found the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineStart {
    /// The machine's name as a host: that of its worker.
    pub host: String,
    /// The step before which it was started.
    pub step: u32,
    /// What runs its instructions, such as `KVM` or `TCG (software)`.
    pub acceleration: String,
    /// The version of the libvirt that started it; missing: QEMU was started without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<String>,
    /// From its start until its worker was ready, seconds.
    pub start_to_worker_s: f64,
    /// From its start until its first I/O, without the time that its worker waited for an order, seconds.
    pub start_to_first_io_s: Option<f64>,
    /// The most memory that its worker had by then, bytes.
    pub worker_bytes: Option<u64>,
}

/// Adds the machines that were started since the steps before.
pub(crate) fn add(starts: &mut Vec<MachineStart>, result: &StepResult) {
    for (name, host) in &result.hosts {
        let Some(machine) = &host.machine else { continue };
        let seconds = |ns: u64| ns as f64 / 1e9;
        let start = MachineStart {
            host: name.clone(),
            step: result.step.number,
            acceleration: machine.acceleration.clone(),
            libvirt: machine.libvirt.clone(),
            start_to_worker_s: seconds(machine.start_to_worker_ns),
            start_to_first_io_s: machine.start_to_first_io_ns.map(seconds),
            worker_bytes: machine.worker_bytes,
        };
        let last = starts.iter().rev().find(|known| known.host == *name);
        if last.is_none_or(|last| last.start_to_worker_s != start.start_to_worker_s) {
            starts.push(start);
        }
    }
}

/// What a reader of the figures should know of them; `None` if the workers were no machines.
pub(crate) fn sentence(starts: &[MachineStart]) -> Option<String> {
    let mut first_ios: Vec<f64> = starts.iter().filter_map(|start| start.start_to_first_io_s).collect();
    first_ios.sort_by(f64::total_cmp);
    let mut hosts: Vec<&str> = starts.iter().map(|start| start.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let mut kinds: Vec<&str> = starts.iter().map(|start| start.acceleration.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut versions: Vec<&str> = starts.iter().filter_map(|start| start.libvirt.as_deref()).collect();
    versions.sort_unstable();
    versions.dedup();
    let started_by = match versions.as_slice() {
        [] => String::new(),
        versions => format!(", started by libvirt {}", versions.join(" and ")),
    };
    let (least, most) = (first_ios.first()?, first_ios.last()?);
    let time = |seconds: f64| latency(seconds * 1e6);
    let took = match first_ios.len() {
        1 => time(*most),
        starts => format!("{} to {}, median {}", time(*least), time(*most), time(first_ios[starts / 2])),
    };
    let again = match starts.len() - hosts.len() {
        0 => String::new(),
        1 => " (with 1 more start)".into(),
        more => format!(" (with {more} more starts)"),
    };
    let warning = match kinds.iter().any(|kind| kind.starts_with("TCG")) {
        true => ". QEMU runs their instructions in software, so that the figures contain what that takes",
        false => "",
    };
    Some(format!(
        "The workers were {} virtual machine{} run by {}{started_by}; from the start of a machine to its first I/O: {took}{again}{warning}",
        hosts.len(),
        if hosts.len() == 1 { "" } else { "s" },
        kinds.join(" and ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(host: &str, kind: &str, first_io: f64) -> MachineStart {
        MachineStart {
            host: host.into(),
            step: 1,
            acceleration: kind.into(),
            libvirt: None,
            start_to_worker_s: 0.25,
            start_to_first_io_s: Some(first_io),
            worker_bytes: None,
        }
    }

    #[test]
    fn machines_that_started_are_told_with_what_ran_them_and_a_warning_if_that_is_software() {
        assert_eq!(sentence(&[]), None);
        let one = sentence(&[start("a", "KVM", 0.5)]).unwrap();
        assert_eq!(
            one,
            "The workers were 1 virtual machine run by KVM; from the start of a machine to its first I/O: 500.00 ms"
        );
        let by_libvirt = MachineStart { libvirt: Some("9.0.0".into()), ..start("a", "KVM", 0.5) };
        let more = sentence(&[by_libvirt]).unwrap();
        assert!(more.contains("run by KVM, started by libvirt 9.0.0; from"), "{more}");
        let starts = [
            start("a", "TCG (software)", 3.0),
            start("b", "TCG (software)", 4.0),
            start("b", "TCG (software)", 5.0),
        ];
        let more = sentence(&starts).unwrap();
        assert!(more.contains("3.00 s to 5.00 s, median 4.00 s (with 1 more start)"), "{more}");
        assert!(more.contains("2 virtual machines") && more.contains("in software"), "{more}");
    }
}
