//! A node: where workers run, with limits that its workers share, and disks that they measure.

use std::collections::BTreeSet;
use std::path::PathBuf;

use loadline_base::units::ByteSize;
use loadline_cgroup::Limits;
use loadline_guest::{LibvirtUri, Machine};
use loadline_load::Target;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;
use crate::error::FleetError;
use crate::identity::{LONGEST_NAME, is_name};

/// A place for workers: this machine, or a host that `ssh` reaches; with limits that its workers share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The host of the node, as `ssh` takes it: `user@host`, a name of `ssh_config`, or `ssh://user@host:port`. Absent: this
    /// machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh: Option<String>,
    /// The private key with which `ssh` logs in (`ssh -i`). Absent: as `ssh_config` and the agent decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key: Option<PathBuf>,
    /// Existing block devices or files of the node's host, as many as its workers have disks: first those of worker 0. Writing
    /// to them needs `--destroy-data`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Target>,
    /// The CPUs that its workers may run on, such as `0-3,6`. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// How much CPU its workers may use together, in cores (`1.5`). Needs the right to make control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<f64>,
    /// How much memory its workers may use together. Needs the right to make control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<ByteSize>,
    /// Each of its workers is a virtual machine like this one. Absent: a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

impl NodeSpec {
    /// A node without limits.
    pub fn named(name: impl Into<String>) -> NodeSpec {
        NodeSpec { name: name.into(), ..NodeSpec::default() }
    }

    /// What its workers may use together.
    pub(crate) fn limits(&self) -> Limits {
        Limits { cores: self.cpu_limit, memory: self.memory_limit }
    }

    /// If its machines are of the libvirt of another host (`qemu+ssh`), makes the node that host: machines are started where their
    /// libvirt is. `Usage`: the node is another host already.
    pub fn move_to_libvirt(&mut self) -> Result<(), FleetError> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        let Some(elsewhere) = machine.libvirt.as_ref().and_then(LibvirtUri::elsewhere) else { return Ok(()) };
        let (host, local) = elsewhere;
        if let Some(ssh) = self.ssh.as_ref().filter(|ssh| **ssh != host) {
            return Err(FleetError::usage(format!(
                "node {}: ssh = \"{ssh}\", and its libvirt is on {host}: machines are started where their libvirt is. Write libvirt = \
                 \"{local}\" for that of the node",
                self.name
            )));
        }
        self.ssh = Some(host);
        machine.libvirt = Some(local);
        Ok(())
    }

    /// Checks each node, and that their names differ. The error is of kind `Usage`.
    pub fn validate_all(nodes: &[NodeSpec]) -> Result<(), FleetError> {
        let mut names = BTreeSet::new();
        for node in nodes {
            node.validate()?;
            if !names.insert(&node.name) {
                return Err(FleetError::usage(format!("there are two nodes named {}", node.name)));
            }
        }
        Ok(())
    }

    /// Checks the rules that need no system. The error is of kind `Usage`.
    pub fn validate(&self) -> Result<(), FleetError> {
        let NodeSpec { name, ssh, ssh_key, disks: _, cpus, cpu_limit, memory_limit, machine } = self;
        if !is_name(name) {
            return Err(FleetError::usage(format!(
                "\"{name}\" is not a valid name of a node: use letters, digits, '-', '_' and '.', at most {LONGEST_NAME}"
            )));
        }
        if let Some(ssh) = ssh
            && (ssh.is_empty()
                || ssh.starts_with('-')
                || ssh.chars().any(|c| c.is_whitespace() || c.is_control()))
        {
            return Err(FleetError::usage(format!(
                "node {name}: ssh = {ssh:?} is not a host that ssh takes: write \"user@host\", a name of ssh_config, or \
                 \"ssh://user@host:port\""
            )));
        }
        if ssh.is_none() && ssh_key.is_some() {
            return Err(FleetError::usage(format!(
                "node {name}: ssh_key without ssh: write ssh = \"user@host\" too"
            )));
        }
        if let Some(cpus) = cpus {
            cpus.parse::<CpuList>().map_err(|e| FleetError::usage(format!("node {name}: cpus: {e}")))?;
        }
        if let Some(cores) = cpu_limit {
            Limits::check_cores(*cores).map_err(|e| FleetError::usage(format!("node {name}: {e}")))?;
        }
        if let Some(limit) = memory_limit
            && *limit < ByteSize(16 << 20)
        {
            return Err(FleetError::usage(format!(
                "node {name}: a memory_limit of {limit} is less than one worker needs: give 16MiB for each, and \
                 its I/O buffers"
            )));
        }
        if let Some(machine) = machine {
            machine.check().map_err(|e| FleetError::usage(format!("node {name}: machine: {e}")))?;
            let limited = cpus.is_some() || cpu_limit.is_some() || memory_limit.is_some();
            if machine.libvirt.is_some() && limited {
                return Err(FleetError::usage(format!(
                    "node {name}: cpus, cpu_limit and memory_limit do not hold for machines that libvirt starts: leave them out, or                      leave out libvirt"
                )));
            }
        }
        Ok(())
    }
}
