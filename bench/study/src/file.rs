//! The study file: what is measured, by which workers, how, how long and how often. Its comments are the descriptions that
//! an editor shows (`loadline schema study`).

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use loadline_base::device_model::DeviceModel;
use loadline_base::units::{ByteSize, TimeSpan};
use loadline_fleet::{Machine, NodeSpec, Proxmox};
use loadline_load::{Engine, StopIf, Target};
use loadline_target::{ExternalSpec, Fault, FaultKind};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::axes::Axes;
use crate::criterion::Criterion;
use crate::goals::{CapacityGoal, Ceilings, LoadLineGoal, SteadyGoal};
use crate::limit::Limit;
use crate::name::{Name, ProfileName};
use crate::profiles::ProfileEntry;
use crate::published::PublishedFigure;
use crate::volume_limit::VolumeLimit;

/// A study: loads on disks, measured by a fleet of workers. Write profiles as a list of names, as `[[profile]]`
/// tables, or both; a `[matrix]` then measures each of them in every combination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// The name of the study: letters, digits, dots, hyphens and underscores. Run folders begin with this name.
    pub name: Name,
    /// The purpose of the study, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The question that the study answers. The report prints the question before the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks: Option<String>,
    /// Loads by name, such as `B4-T2-O32-W0-PR`: block size in KiB, threads on each disk, outstanding I/Os of each
    /// thread, percent of writes, pattern (R random, S sequential, SI sequential interleaved); or by a well-known
    /// name, such as `oltp` or `8k-70-30` (`loadline profile list`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileName>,
    /// The most IOPS within a latency limit, for each profile: `load_line = { percentile = 99, limit = "3ms" }`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_line: Option<LoadLineGoal>,
    /// The most workers on each node within a latency limit: `capacity = { percentile = 99, limit = "3ms" }`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityGoal>,
    /// Criteria that the study decides: `each node >= 50000 IOPS of 8K 70/30 random under 3 ms at p95`. A run that
    /// misses a criterion exits with 99.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub success: Vec<Criterion>,
    /// Faults of the storage in the window of each load, at stated times: `faults = [{ at = "60s", do = "kill", node =
    /// "node-4" }]`. All faults are undone after the window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<TimedFault>,
    /// What is measured.
    #[serde(default)]
    pub target: TargetSection,
    /// The workers that measure.
    #[serde(default)]
    pub fleet: FleetSection,
    /// How long each part of a step is.
    #[serde(default)]
    pub phases: Phases,
    /// Loads as tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profile: Vec<ProfileEntry>,
    /// Values that each profile is measured with, in every combination.
    #[serde(default, skip_serializing_if = "Axes::is_empty")]
    pub matrix: Axes,
    /// Values that are varied one at a time: each profile is measured unchanged, and then with each of these values
    /// while all other values stay unchanged.
    #[serde(default, skip_serializing_if = "Axes::is_empty")]
    pub vary: Axes,
    /// Storage policies to compare. Every load is measured on the disks of each policy. A study with policies has no
    /// `[target]` disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policy: Vec<PolicySection>,
    /// Conditions of the storage, such as a node that is down. Every load is measured in each condition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub condition: Vec<Condition>,
    /// Figures that someone has published of such loads. The report shows them next to what is predicted and measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<PublishedFigure>,
    /// The ceilings of the devices and the network below the storage, measured before the fleet starts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ceilings: Ceilings,
    /// How the study is run: repeats, engine, limits.
    #[serde(default)]
    pub run: RunSection,
}

/// The disks of one policy, or of the study if it compares none.
#[derive(Debug, Clone, Copy)]
pub struct Disks<'a> {
    /// The policy.
    pub name: Option<&'a Name>,
    /// Where files are created; `None` with no devices: in the run's own folder.
    pub folder: Option<&'a PathBuf>,
    /// Existing devices.
    pub devices: &'a [Target],
    /// How the volumes are that a cluster of the run's own makes.
    pub san: Option<&'a SanSection>,
}

impl Study {
    /// Whether files are created, and not existing devices measured. Policies are all of one kind.
    pub fn makes_files(&self) -> bool {
        match self.policy.first() {
            Some(policy) => policy.devices.is_empty(),
            None => self.target.devices.is_empty() && !self.names_node_disks(),
        }
    }

    /// How the volumes of a policy are, or those of the study if it compares none; `None` if the run makes no volumes.
    pub fn san(&self, policy: Option<&Name>) -> Option<&SanSection> {
        self.targets().find(|target| target.name == policy)?.san
    }

    /// How the nodes are of the cluster that the run starts, if the study says.
    pub fn nodes(&self) -> Option<&NodeSection> {
        self.target.san.as_ref()?.node.as_ref()
    }

    /// How workers reach the volumes of a policy; `Local` if the run makes none.
    pub fn access(&self, policy: Option<&Name>) -> Access {
        self.san(policy).map_or(Access::Local, |san| san.access)
    }

    /// The fewest copies that any volume of the run has; `None` if it makes none.
    pub fn fewest_copies(&self) -> Option<u32> {
        self.targets().filter_map(|target| target.san).map(SanSection::copies).min()
    }

    /// The disks of each policy, or those of `[target]`.
    pub fn targets(&self) -> impl Iterator<Item = Disks<'_>> {
        let alone = Disks {
            name: None,
            folder: self.target.folder.as_ref(),
            devices: &self.target.devices,
            san: self.target.san.as_ref(),
        };
        let policies = self.policy.iter().map(|policy| Disks {
            name: Some(&policy.name),
            folder: policy.folder.as_ref(),
            devices: &policy.devices,
            san: policy.san.as_ref(),
        });
        self.policy.is_empty().then_some(alone).into_iter().chain(policies)
    }
}

/// What is measured: files that are created for the run, or devices that exist.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TargetSection {
    /// Files are created in this folder, which must exist, one for each disk of each worker; relative to the
    /// study file. Not given, they are created in the run's own folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Existing block devices or files (or `null:1GiB`, which measures the generator itself), as many as there are disks.
    /// Workers get them in the order of the workers' names: `a/0`, `a/1`, `b/0`, or the names of workers that join. A study
    /// cannot say on which host a device is, so workers that join only read devices, except images of a Ceph cluster
    /// (`rbd:POOL/IMAGE`) and logical units of iSCSI targets (`iscsi://HOST/IQN/LUN`), which are the same from every host. Writing to
    /// them needs `--destroy-data`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Target>,
    /// A cluster of the virtual SAN: each disk is a volume, owned by its worker's node. Without `api` the run starts a cluster of as
    /// many nodes as the fleet has on this machine; its data are in the run's folder, and removed at the end. With `api` it is a
    /// cluster that runs already: the run makes volumes of its own there, and removes them at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub san: Option<SanSection>,
    /// How faults are caused in external storage, which holds the folder or the devices: by commands, or by a person at the
    /// terminal. `faults` and `[[condition]]` name its nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalSpec>,
}

/// The log of each replica, by default.
const LOG: ByteSize = ByteSize(256 << 20);
/// The least that it can be.
pub(crate) const LEAST_LOG: ByteSize = ByteSize(32 << 20);

/// A cluster of the virtual SAN, which the run starts or which runs already, and how the run's volumes in it are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SanSection {
    /// Copies of every block, each on another node; 2 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3))]
    pub copies: Option<u32>,
    /// Copies that must be in sync for a write to begin, 1 to `copies`; with fewer, writes wait. By default 2 of 3, 1 of 2
    /// and 1 of 1: a study of three copies in which two nodes are gone at once needs 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3))]
    pub least: Option<u32>,
    /// Stripes that each volume is cut into; 1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 12))]
    pub stripes: Option<u32>,
    /// The log of each replica, of which a seventh may be in flight at once; 256MiB by default, 32MiB at the least.
    /// With smaller logs a study of many volumes fits a small disk, but the logs fill and are destaged sooner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<ByteSize>,
    /// How much the clients of each volume may do a second while it is measured: `limit = { iops = 500 }`. Filling is not limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<VolumeLimit>,
    /// How the nodes are that the run starts; in `[target] san` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeSection>,
    /// How workers reach their volumes.
    pub access: Access,
    /// The API of any node of a cluster that runs already: `https://HOST:PORT`, IP:PORT for a node of this machine, or the path of
    /// a node's `api.sock`. The nodes of the fleet have the names of the cluster's nodes, and run on their hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// The file that proves the access to an API at an https address (`loadline san access add --role operator`), relative to the
    /// study file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_file: Option<PathBuf>,
    /// How faults are caused in a cluster that runs already: a line for `/bin/sh` on the node's host, by SSH, for each of `kill`,
    /// `freeze`, `cut`, `fail-device`, `slow-device` and `fill`; and `return`, which undoes what these have caused. The environment
    /// has the node as `$NODE`, the delay of `slow-device` as `$BY`, the action as `$LOADLINE_ACTION`, and when a node returns, the
    /// fault that is undone as `$LOADLINE_WAS`. Exit code 0 means that the action is done. Without a command, nodes cause `cut`,
    /// `fail-device` and `slow-device` in themselves, if their `node.toml` says `test_faults = true`. Needs `--run-commands`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub commands: BTreeMap<String, String>,
    /// As `commands`, with a `return` of its own, for `/bin/sh` on this machine: for what cuts the host off from SSH too, such as its
    /// power or its link.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub commands_here: BTreeMap<String, String>,
    /// The time limit of each command, and of a node that returns: 10 minutes by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_limit: Option<TimeSpan>,
}

impl SanSection {
    /// The log of each replica.
    pub fn log(&self) -> ByteSize {
        self.log.unwrap_or(LOG)
    }

    /// Copies of every block.
    pub fn copies(&self) -> u32 {
        self.copies.unwrap_or(2)
    }

    /// Stripes that each volume is cut into.
    pub fn stripes(&self) -> u32 {
        self.stripes.unwrap_or(1)
    }
}

/// How the nodes are of a cluster that the run starts on this machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSection {
    /// What the device of each node behaves as. Without it the device is as fast as the file that it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<NodeModel>,
    /// What a log device of each node behaves as. With it `model` is of the capacity device, which has the data, and the log device has the
    /// logs: a write waits for the log device alone until the logs are full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_model: Option<NodeModel>,
    /// I/Os a second of all clients that this machine carries for the cluster without models, if you know it: no step is predicted to do
    /// more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub machine_iops: Option<u64>,
    /// How much CPU the process of each node may use, in cores (`0.5`), at most those of this machine. So a node that is lost takes its CPU
    /// with it. Workers are not limited. Every result says so. Needs root, or a control group given to this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.01))]
    pub cpu_limit: Option<f64>,
    /// The network between the nodes, over which they send each other copies, what they bring in sync, and requests of clients:
    /// `network = { per_second = "125MiB" }`. Workers reach their volumes without it. Every result says so. Needs root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NodeNetworkSection>,
}

/// The network of each node of a cluster that the run starts on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeNetworkSection {
    /// Bytes that each node sends to other nodes a second at the most, and receives from them at the most, with the headers of TCP:
    /// 1MiB to 100GiB; `"119MiB"` is about 1 Gbit/s.
    pub per_second: ByteSize,
}

/// What the device of a node behaves as: whatever is behind it, it is as slow as a drive's data sheet says. So a node that is lost takes
/// its share of the performance with it, on one machine too. Every result says so.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum NodeModel {
    /// A published drive: `intel-p3700`, `intel-p4800x`, `intel-s3500`, `intel-s4500` or `micron-5100-max`.
    Published(String),
    /// Figures of one's own.
    Own(DeviceModel),
}

impl<'de> Deserialize<'de> for NodeModel {
    /// The error names the key that is wrong, where a derived one would say that no variant matches.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = NodeModel;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a published drive, or a table with name, read and write")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<NodeModel, E> {
                Ok(NodeModel::Published(name.into()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<NodeModel, A::Error> {
                DeviceModel::deserialize(de::value::MapAccessDeserializer::new(map)).map(NodeModel::Own)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// How workers reach their volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// By shared memory with the node that owns the volume (vhost-user), as a virtual machine there.
    #[default]
    Local,
    /// By NBD over TCP.
    Nbd,
}

/// The disks of one storage policy, such as a number of stripes or of copies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicySection {
    /// The name in the report.
    pub name: Name,
    /// As `folder` of `[target]`: files of this policy are created here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// As `devices` of `[target]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Target>,
    /// As `san` of `[target]`: volumes of this policy, such as `{ stripes = 4 }`, in the one cluster that the run starts, or whose
    /// `api` is in `[target] san`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub san: Option<SanSection>,
}

/// A condition of the storage. Every load is measured in each condition, in the order of the tables. Each repeat
/// measures all conditions again, after all faults are undone and every copy is in sync.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The name in the report.
    pub name: Name,
    /// The faults that begin with this condition: `[{ do = "kill", node = "node-4" }]`. Faults of earlier conditions
    /// stay.
    #[serde(default, rename = "do", skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Fault>,
    /// The longest time to wait until every copy is in sync, before the loads are measured. Without this key the run
    /// does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_redundant: Option<TimeSpan>,
    /// How long to wait after the faults, before the loads are measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<TimeSpan>,
}

impl Condition {
    /// Whether a node comes back in it.
    pub(crate) fn returns(&self) -> bool {
        self.actions.iter().any(|fault| fault.what == FaultKind::Return)
    }
}

/// A fault in each measured window, at a stated time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimedFault {
    /// When the fault begins, counted from the beginning of the window.
    pub at: TimeSpan,
    /// The fault.
    #[serde(rename = "do")]
    pub what: FaultKind,
    /// The name of the node.
    pub node: String,
    /// Of `migrate`: the node to which its machines go; absent: the node after it, in the order of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Cause the fault even if it leaves a volume without a copy that has all data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl TimedFault {
    /// The fault without its time.
    pub fn fault(&self) -> Fault {
        Fault { what: self.what, node: self.node.clone(), to: self.to.clone(), force: self.force }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The workers that measure: processes on nodes of this machine, on hosts that `ssh` reaches or in virtual machines that are made for the
/// run, or workers that join from other machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FleetSection {
    /// How many nodes; 1 by default. For nodes with names and limits write `[[fleet.node]]` instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub nodes: Option<u32>,
    /// The nodes, one table for each: of this machine, or each a host (`ssh = "user@host"`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node: Vec<NodeSpec>,
    /// An inventory of Ansible (INI or YAML), relative to the study file: its hosts are the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inventory: Option<PathBuf>,
    /// The group of the inventory whose hosts are the nodes; all of its hosts by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The disks of each host whose table names none: existing block devices or files, by their names there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Target>,
    /// Worker processes on each node.
    #[schemars(range(min = 1, max = 1024))]
    pub workers_per_node: u32,
    /// Each worker is a virtual machine like this one (`machine = {}`: 1 CPU, 128MiB). Absent: a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Virtual machines of a Proxmox VE cluster, made for the run: as many as `nodes` says, each is a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxmox: Option<Proxmox>,
    /// Disks of each worker. Each disk gets the profile's threads.
    #[schemars(range(min = 1, max = 256))]
    pub disks_per_worker: u32,
    /// Size of each file that is created; 1GiB by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_size: Option<ByteSize>,
    /// What workers do in a condition in which their node is gone (killed or frozen).
    #[serde(skip_serializing_if = "is_default")]
    pub when_node_is_gone: WhenNodeIsGone,
    /// Start no workers, but wait until this many have joined from other machines (`loadline worker`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub join: Option<u32>,
    /// Where workers join: an address and port of this machine, such as `0.0.0.0:7400`. With hosts (`ssh`): workers connect
    /// directly to this address; not given, SSH forwards a port of each host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// How long to wait for workers that join; 5m by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<TimeSpan>,
}

/// What workers do in a condition in which their node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenNodeIsGone {
    /// Workers continue on the node that serves their volume then, like virtual machines that are started again there:
    /// each remaining node carries more of them.
    #[default]
    Move,
    /// Workers take no part in the loads, so each remaining node carries as many as before: only the number of nodes
    /// changes, and not the load of each.
    Rest,
}

impl Default for FleetSection {
    fn default() -> FleetSection {
        FleetSection {
            nodes: None,
            node: Vec::new(),
            inventory: None,
            group: None,
            disks: Vec::new(),
            workers_per_node: 1,
            machine: None,
            proxmox: None,
            disks_per_worker: 1,
            disk_size: None,
            when_node_is_gone: WhenNodeIsGone::Move,
            join: None,
            listen: None,
            wait: None,
        }
    }
}

/// How long each part of a step is. Whole seconds, because a series has one entry for each second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Phases {
    /// Write all that the profiles use once, before the first step, with data that cannot be compressed: a block
    /// that was never written costs nothing to read. Not given: yes for files that are created, no for devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<bool>,
    /// How long the load runs before the measured window.
    pub warm_up: TimeSpan,
    /// A phase before `warm_up`, in which the load runs until the IOPS are steady (SNIA PTS: over the last five
    /// rounds, IOPS within 20 %, and their trend within 10 % of their mean). Loads that follow each other and differ
    /// only in depth, rate or number of workers share one such phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steady: Option<SteadyGoal>,
    /// The measured window of each step.
    pub measure: TimeSpan,
    /// How long the load continues after the measured window, so that workers which end a little later are measured under the whole load.
    pub cool_down: TimeSpan,
    /// The longest time to wait for I/Os of the window that have not completed.
    pub drain: TimeSpan,
}

impl Default for Phases {
    fn default() -> Phases {
        Phases {
            fill: None,
            steady: None,
            warm_up: TimeSpan::seconds(5),
            measure: TimeSpan::seconds(30),
            cool_down: TimeSpan::seconds(1),
            drain: TimeSpan::seconds(30),
        }
    }
}

/// How the study is run: repeats, engine, limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunSection {
    /// How often each point is measured. All points are measured once before any is measured again, so that a
    /// drift of the storage reaches all of them. With six or more the report states a confidence level.
    #[schemars(range(min = 1, max = 1000))]
    pub repeats: u32,
    /// The seed of the random numbers. Every worker of every step gets a seed of its own, derived from this one.
    pub seed: u64,
    /// What submits I/Os to the kernel.
    pub engine: Engine,
    /// Spin on the completion queue instead of sleeping: the lowest latency, at the cost of a whole core for each thread.
    pub poll: bool,
    /// Write blocks that identify their writer, check every block read, and scan the disks after each step that
    /// writes: acknowledged writes that are lost are found.
    pub verify: bool,
    /// Limits that every step must keep; a run that misses one exits with 99.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Stop conditions for storage in production: if one second of one worker exceeds a limit, the load of all workers
    /// ends, and the run exits with 99. The step does not count; `--resume` measures it again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_if: Vec<StopIf>,
}

impl Default for RunSection {
    fn default() -> RunSection {
        RunSection {
            repeats: 6,
            seed: 1,
            engine: Engine::Auto,
            poll: false,
            verify: false,
            limits: Vec::new(),
            stop_if: Vec::new(),
        }
    }
}
