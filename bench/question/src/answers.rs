//! The answers, as texts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field::Field;
use crate::form::question;

/// The answers to the questions of [`crate::questions`], each as the text that a person enters. An answer that is absent or empty takes
/// the default of its question.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Answers {
    /// The question: `capacity`, `node-down`, `slower` or `accept`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// What is measured: `cluster`, `running`, `folder` or `devices`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// Of a cluster that the run starts: how many nodes it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Of a cluster that runs already: the API of one of its nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// The file that proves the access to an API at an https address; a relative path begins at the folder of the study file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_file: Option<String>,
    /// Of a cluster that runs already: its nodes, each with the host that SSH reaches: `node-1=root@10.0.0.11, node-2=root@10.0.0.12`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hosts: Option<String>,
    /// The folder in which files are made; a relative path begins at the folder of the study file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Existing disks, separated by spaces or commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<String>,
    /// The names of the nodes of storage that is not a cluster of Loadline, separated by spaces or commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<String>,
    /// The kind of machine, or a profile such as `B4-T1-O4-W30-PR`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// How many machines each node has; for `capacity` the most that are tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<String>,
    /// The latency limit, such as `10ms` or `p99 <= 10ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// How long the study measures: `quick`, `normal` or `thorough`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The size of the disk of each machine, such as `1GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_size: Option<String>,
    /// The name of the study.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Answers {
    /// Sets an answer, or removes it.
    pub fn set(&mut self, field: Field, answer: Option<String>) {
        *self.place(field) = answer;
    }

    /// The answer that was given; `None` of one that is absent or empty.
    pub fn given(&self, field: Field) -> Option<&str> {
        self.at(field).map(str::trim).filter(|text| !text.is_empty())
    }

    /// The answer that was given, or its default.
    pub fn value(&self, field: Field) -> Option<String> {
        if let Some(given) = self.given(field) {
            return Some(given.to_owned());
        }
        let asked = question(field);
        asked.default.map(str::to_owned).or_else(|| self.value(asked.default_from?))
    }

    /// Whether the study that is asked for needs this answer, as far as earlier answers say.
    pub fn needs(&self, field: Field) -> bool {
        question(field).shown_if.iter().all(|condition| {
            self.value(condition.field).is_some_and(|value| condition.is_one_of.contains(&value.as_str()))
        })
    }

    fn at(&self, field: Field) -> Option<&str> {
        match field {
            Field::Question => self.question.as_deref(),
            Field::Storage => self.storage.as_deref(),
            Field::Nodes => self.nodes.as_deref(),
            Field::Api => self.api.as_deref(),
            Field::AccessFile => self.access_file.as_deref(),
            Field::Hosts => self.hosts.as_deref(),
            Field::Folder => self.folder.as_deref(),
            Field::Devices => self.devices.as_deref(),
            Field::Members => self.members.as_deref(),
            Field::Load => self.load.as_deref(),
            Field::Machines => self.machines.as_deref(),
            Field::Limit => self.limit.as_deref(),
            Field::Effort => self.effort.as_deref(),
            Field::DiskSize => self.disk_size.as_deref(),
            Field::Name => self.name.as_deref(),
        }
    }

    fn place(&mut self, field: Field) -> &mut Option<String> {
        match field {
            Field::Question => &mut self.question,
            Field::Storage => &mut self.storage,
            Field::Nodes => &mut self.nodes,
            Field::Api => &mut self.api,
            Field::AccessFile => &mut self.access_file,
            Field::Hosts => &mut self.hosts,
            Field::Folder => &mut self.folder,
            Field::Devices => &mut self.devices,
            Field::Members => &mut self.members,
            Field::Load => &mut self.load,
            Field::Machines => &mut self.machines,
            Field::Limit => &mut self.limit,
            Field::Effort => &mut self.effort,
            Field::DiskSize => &mut self.disk_size,
            Field::Name => &mut self.name,
        }
    }
}
