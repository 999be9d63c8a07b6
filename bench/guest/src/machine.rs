//! How large a virtual machine is, and how its disks are attached.

use loadline_base::units::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::GuestError;
use crate::libvirt_uri::LibvirtUri;

/// The least memory of a machine: its kernel, its worker, and some I/Os.
const LEAST_MEMORY: ByteSize = ByteSize(96 << 20);
const MOST_CPUS: u32 = 64;
const MOST_QUEUES: u16 = 64;

/// A virtual machine for each worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// Its CPUs.
    #[schemars(range(min = 1, max = 64))]
    pub cpus: u32,
    /// Its memory, a multiple of 1 MiB; at least 96MiB.
    pub memory: ByteSize,
    /// Queues of each of its disks; absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub queues: Option<u16>,
    /// Whether each of its disks has a thread of its own in QEMU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub iothread: bool,
    /// The libvirt that starts it, such as `qemu:///system`, or `qemu+ssh://USER@HOST/system` of a host. Absent: QEMU as a process of
    /// ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<LibvirtUri>,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine { cpus: 1, memory: ByteSize(128 << 20), queues: None, iothread: false, libvirt: None }
    }
}

impl Machine {
    /// Checks what needs no system. The error is of kind `Usage`, and names the option.
    pub fn check(&self) -> Result<(), GuestError> {
        let usage = |message: String| Err(GuestError::usage(message));
        if !(1..=MOST_CPUS).contains(&self.cpus) {
            return usage(format!("cpus = {}: 1 to {MOST_CPUS} are possible", self.cpus));
        }
        if self.memory < LEAST_MEMORY {
            return usage(format!(
                "memory = {}: a machine needs {LEAST_MEMORY} for its kernel, its worker and its I/Os",
                self.memory
            ));
        }
        if !self.memory.0.is_multiple_of(1 << 20) {
            return usage(format!("memory = {}: give whole MiB", self.memory));
        }
        if self.queues.is_some_and(|queues| !(1..=MOST_QUEUES).contains(&queues)) {
            return usage(format!("queues: 1 to {MOST_QUEUES} are possible"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_cannot_be_is_refused_with_the_name_of_its_option() {
        assert_eq!(Machine::default().check(), Ok(()));
        let bad = [
            (Machine { cpus: 0, ..Machine::default() }, "cpus"),
            (Machine { cpus: 65, ..Machine::default() }, "cpus"),
            (Machine { memory: ByteSize(64 << 20), ..Machine::default() }, "96"),
            (Machine { memory: ByteSize((128 << 20) + 5), ..Machine::default() }, "whole MiB"),
            (Machine { queues: Some(0), ..Machine::default() }, "queues"),
        ];
        for (machine, word) in bad {
            let error = machine.check().unwrap_err();
            assert!(error.message.contains(word), "{error}");
        }
    }
}
