//! The description of all fields, which a dialogue and a page render.

use schemars::JsonSchema;
use serde::Serialize;

use crate::effort::Effort;
use crate::field::Field;
use crate::machine;
use crate::question::Question;

/// Everything that is asked, in the order in which a person is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Form {
    /// A description of each field. A field is shown if its conditions hold; they are on earlier fields.
    pub fields: Vec<FormField>,
}

/// One thing that is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FormField {
    /// The key of the answer.
    pub field: Field,
    /// What is asked, in a few words.
    pub label: &'static str,
    /// What the answer means, and what it does to the study.
    pub help: &'static str,
    /// How the answer is entered.
    pub input: Input,
    /// The answer of a person who gives none; `null` if there is none.
    pub default: Option<&'static str>,
    /// If there is no `default`: the field whose answer is the default.
    pub default_from: Option<Field>,
    /// Whether the study can do without an answer.
    pub optional: bool,
    /// Whether a dialogue does not ask, since few people have another answer than the default.
    pub advanced: bool,
    /// The conditions under which the study needs the answer; all of them must hold.
    pub shown_if: Vec<Condition>,
}

/// A condition on an earlier answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Condition {
    /// The earlier field.
    pub field: Field,
    /// Its answer, or its default, is one of these.
    pub is_one_of: Vec<&'static str>,
}

/// How an answer is entered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Input {
    /// One of some values.
    Choice {
        /// The values.
        choices: Vec<Choice>,
        /// What may be entered instead of one of the values; `null` if nothing.
        other: Option<&'static str>,
    },
    /// A whole number.
    Number {
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// A text.
    Text {
        /// An answer as an example.
        example: &'static str,
    },
}

/// A value of a choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Choice {
    /// The answer.
    pub value: &'static str,
    /// What a person sees.
    pub label: &'static str,
    /// What it means.
    pub help: &'static str,
}

/// The most nodes of a cluster that a run starts.
pub(crate) const MOST_NODES: u32 = 32;
/// The most machines on each node: each is a process.
pub(crate) const MOST_MACHINES: u32 = 256;

/// What is asked.
pub fn questions() -> Form {
    Form { fields: Field::ALL.into_iter().map(question).collect() }
}

/// The description of one field.
pub fn question(field: Field) -> FormField {
    let (label, help) = words(field);
    FormField {
        field,
        label,
        help,
        input: input(field),
        default: default(field),
        default_from: (field == Field::Name).then_some(Field::Question),
        optional: matches!(field, Field::AccessFile | Field::DiskSize),
        advanced: field == Field::DiskSize,
        shown_if: shown_if(field),
    }
}

fn words(field: Field) -> (&'static str, &'static str) {
    match field {
        Field::Question => ("The question", "Each question has a study of its own."),
        Field::Storage => (
            "Where is the storage?",
            "A cluster that is started here needs nothing but space, and its nodes share this machine. For real figures measure your own storage.",
        ),
        Field::Nodes => (
            "Nodes of the cluster",
            "All nodes run on this machine. With two or more nodes each block has two copies.",
        ),
        Field::Api => (
            "API of a node",
            "https://HOST:7400, or IP:PORT or the path of api.sock for a node of this machine. The run makes volumes of its own there and removes them at its end.",
        ),
        Field::AccessFile => (
            "Access file",
            "The file that proves the access to an API at https://: loadline san access add NAME --role operator.",
        ),
        Field::Hosts => (
            "Nodes of the cluster",
            "The names that the nodes have in the cluster, each with the host that SSH reaches: node-1=root@10.0.0.11, node-2=root@10.0.0.12. A name alone is a node of this machine.",
        ),
        Field::Folder => (
            "Folder",
            "The run makes files in this folder, which is on the storage to measure, and removes them at its end. Existing files are not touched.",
        ),
        Field::Devices => (
            "Devices",
            "Block devices, existing files, nbd://HOST/EXPORT, vhost-user:SOCKET, rbd:POOL/IMAGE or iscsi://HOST/IQN/LUN, separated by spaces or commas: one for each machine. If the load writes, all data on them is lost, and the run asks for --destroy-data.",
        ),
        Field::Members => (
            "Nodes of the storage",
            "The names by which you know the nodes. The run asks you at the terminal to stop and start a node, because it cannot do that itself.",
        ),
        Field::Load => (
            "What do the machines do?",
            "A kind of machine has a rate: so many I/Os a second, whatever the storage can do. A profile such as B4-T1-O4-W30-PR (4 KiB, 1 thread, 4 outstanding, 30 % writes, random) has none: it loads the storage as much as it can.",
        ),
        Field::Machines => (
            "Machines on each node",
            "Each machine is a worker process with a disk of its own. To find out how many machines fit, give the most to try.",
        ),
        Field::Limit => (
            "Latency limit",
            "10ms: 95 of 100 I/Os must complete within 10 ms. Another percentile: p99 <= 10ms.",
        ),
        Field::Effort => (
            "How long, and how sure?",
            "Longer windows and more repeats make the answer surer. Only six repeats have a confidence interval.",
        ),
        Field::DiskSize => (
            "Disk of each machine",
            "64MiB for quick, 1GiB for normal and 10GiB for thorough studies, unless you give a size.",
        ),
        Field::Name => (
            "Name of the study",
            "Letters, digits, dots, hyphens and underscores. Folders of runs begin with it.",
        ),
    }
}

fn input(field: Field) -> Input {
    let text = |example| Input::Text { example };
    let choice = |choices| Input::Choice { choices, other: None };
    match field {
        Field::Question => choice(Question::ALL.into_iter().map(of_question).collect()),
        Field::Storage => choice(storages()),
        Field::Nodes => Input::Number { least: 1, most: MOST_NODES },
        Field::Machines => Input::Number { least: 1, most: MOST_MACHINES },
        Field::Load => Input::Choice {
            choices: machine::KINDS
                .iter()
                .map(|kind| Choice { value: kind.value, label: kind.label, help: kind.what })
                .collect(),
            other: Some("a profile such as B4-T1-O4-W30-PR"),
        },
        Field::Effort => choice(Effort::ALL.iter().map(of_effort).collect()),
        Field::Api => text("https://10.0.0.11:7400"),
        Field::AccessFile => text("access.pem"),
        Field::Hosts => text("node-1=root@10.0.0.11, node-2=root@10.0.0.12, node-3=root@10.0.0.13"),
        Field::Folder => text("/mnt/storage"),
        Field::Devices => text("/dev/sdb, nbd://10.0.0.11/disk"),
        Field::Members => text("node-1, node-2, node-3"),
        Field::Limit => text("10ms"),
        Field::DiskSize => text("1GiB"),
        Field::Name => text("capacity"),
    }
}

fn of_question(question: Question) -> Choice {
    let described = question.described();
    Choice { value: question.value(), label: described.words, help: described.how }
}

fn of_effort(effort: &Effort) -> Choice {
    Choice { value: effort.value, label: effort.label, help: effort.what }
}

fn storages() -> Vec<Choice> {
    [
        (
            "cluster",
            "A cluster started here",
            "The run starts nodes on this machine, and removes them at its end.",
        ),
        (
            "running",
            "A cluster that runs already",
            "A cluster of Loadline, reached by the API of one of its nodes.",
        ),
        ("folder", "Files in a folder", "Any storage that is mounted. The run makes the files."),
        ("devices", "Existing disks", "Block devices, files, and disks of NBD servers."),
    ]
    .map(|(value, label, help)| Choice { value, label, help })
    .into()
}

fn default(field: Field) -> Option<&'static str> {
    match field {
        Field::Storage => Some("cluster"),
        Field::Nodes => Some("3"),
        Field::Members => Some("node-1, node-2, node-3"),
        Field::Load => Some("database"),
        Field::Machines => Some("4"),
        Field::Limit => Some("10ms"),
        Field::Effort => Some("normal"),
        Field::Question
        | Field::Api
        | Field::AccessFile
        | Field::Hosts
        | Field::Folder
        | Field::Devices
        | Field::DiskSize
        | Field::Name => None,
    }
}

fn shown_if(field: Field) -> Vec<Condition> {
    let on = |field, is_one_of: &[&'static str]| Condition { field, is_one_of: is_one_of.to_vec() };
    let storage = |values: &[&'static str]| vec![on(Field::Storage, values)];
    match field {
        Field::Nodes => storage(&["cluster"]),
        Field::Api | Field::AccessFile | Field::Hosts => storage(&["running"]),
        Field::Folder => storage(&["folder"]),
        Field::Devices => storage(&["devices"]),
        Field::Members => {
            vec![on(Field::Question, &["node-down", "accept"]), on(Field::Storage, &["folder", "devices"])]
        }
        Field::Machines | Field::DiskSize => storage(&["cluster", "running", "folder"]),
        Field::Limit => vec![on(Field::Question, &["capacity", "accept"])],
        Field::Question | Field::Storage | Field::Load | Field::Effort | Field::Name => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_depends_on_earlier_fields_only_and_on_values_that_they_have() {
        for (at, field) in questions().fields.iter().enumerate() {
            assert!(!field.label.is_empty() && !field.help.is_empty(), "{}", field.field);
            for condition in &field.shown_if {
                let place = Field::ALL.iter().position(|known| *known == condition.field).unwrap();
                assert!(place < at, "{} depends on {}", field.field, condition.field);
                let Input::Choice { choices, .. } = question(condition.field).input else {
                    panic!("{} is no choice", condition.field)
                };
                for value in &condition.is_one_of {
                    assert!(choices.iter().any(|choice| choice.value == *value), "{value}");
                }
            }
        }
    }

    #[test]
    fn a_default_of_a_choice_is_one_of_its_values() {
        for field in questions().fields {
            let Input::Choice { choices, .. } = &field.input else { continue };
            let known = |default: &str| choices.iter().any(|choice| choice.value == default);
            assert!(field.default.is_none_or(known), "{}", field.field);
        }
    }
}
