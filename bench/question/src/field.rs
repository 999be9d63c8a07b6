//! What is asked: the name of each answer.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Field {
    /// The question.
    Question,
    /// What kind of storage is measured.
    Storage,
    /// How many nodes a cluster has that the run starts.
    Nodes,
    /// The API of a cluster that runs already.
    Api,
    /// The file that proves the access to that API.
    AccessFile,
    /// The nodes of that cluster, and how SSH reaches their hosts.
    Hosts,
    /// The folder in which files are made.
    Folder,
    /// Existing disks.
    Devices,
    /// The nodes of storage that is not a cluster of Loadline.
    Members,
    /// The kind of machine.
    Load,
    /// How many machines each node has.
    Machines,
    /// The latency limit.
    Limit,
    /// How long the study measures, and how sure its answer is.
    Effort,
    /// The size of the disk of each machine.
    DiskSize,
    /// The name of the study.
    Name,
}

impl Field {
    /// Every field, in the order in which a person is asked. A field depends on earlier ones only.
    pub const ALL: [Field; 15] = [
        Field::Question,
        Field::Storage,
        Field::Nodes,
        Field::Api,
        Field::AccessFile,
        Field::Hosts,
        Field::Folder,
        Field::Devices,
        Field::Members,
        Field::Load,
        Field::Machines,
        Field::Limit,
        Field::Effort,
        Field::DiskSize,
        Field::Name,
    ];

    /// The key of the answer, such as `disk_size`.
    pub fn key(self) -> &'static str {
        match self {
            Field::Question => "question",
            Field::Storage => "storage",
            Field::Nodes => "nodes",
            Field::Api => "api",
            Field::AccessFile => "access_file",
            Field::Hosts => "hosts",
            Field::Folder => "folder",
            Field::Devices => "devices",
            Field::Members => "members",
            Field::Load => "load",
            Field::Machines => "machines",
            Field::Limit => "limit",
            Field::Effort => "effort",
            Field::DiskSize => "disk_size",
            Field::Name => "name",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.key())
    }
}
