//! The answers, checked: each is used or has a fault.

use loadline_base::units::ByteSize;
use loadline_study::name::Name;

use crate::answers::Answers;
use crate::effort::Effort;
use crate::fault::Fault;
use crate::field::Field;
use crate::form::{self, Input};
use crate::machine::Machine;
use crate::question::Question;
use crate::storage::{self, Storage, can_lose_a_node};
use crate::within::Within;

/// A volume has whole blocks of this size.
const BLOCK: u64 = 4096;
/// The most workers of a fleet.
const MOST_WORKERS: u32 = 1024;

/// What a study is made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resolved {
    pub(crate) question: Question,
    pub(crate) storage: Storage,
    pub(crate) machine: Machine,
    /// Machines on each node, or one for each device.
    pub(crate) machines: u32,
    /// The limit of a question that has one; else the default, which is not used.
    pub(crate) within: Within,
    pub(crate) effort: Effort,
    /// The disk of each machine.
    pub(crate) disk: ByteSize,
    pub(crate) name: Name,
}

impl Resolved {
    /// Checks all answers.
    pub(crate) fn of(answers: &Answers) -> Result<Resolved, Vec<Fault>> {
        let mut reading = Reading { answers, faults: Vec::new() };
        let resolved = reading.all();
        let Reading { faults, .. } = reading;
        match resolved {
            Some(resolved) if faults.is_empty() => Ok(resolved),
            _ => Err(faults),
        }
    }
}

/// The answers that are read, and what is wrong with them so far.
struct Reading<'a> {
    answers: &'a Answers,
    faults: Vec<Fault>,
}

impl Reading<'_> {
    /// Everything; `None` if an answer has a fault, which is noted.
    fn all(&mut self) -> Option<Resolved> {
        let question = self.read(Field::Question, |text| {
            Question::of(text).ok_or_else(|| not_a_value(Field::Question, text))
        });
        let storage = self.storage();
        let machine = self.read(Field::Load, Machine::of);
        let machines = match &storage {
            Some(Storage::Devices { disks, .. }) => Some(disks.len() as u32),
            _ => self.number(Field::Machines),
        };
        let within = match self.answers.needs(Field::Limit) {
            true => self.read(Field::Limit, Within::of),
            false => Within::of(form::question(Field::Limit).default.unwrap_or_default()).ok(),
        };
        let effort =
            self.read(Field::Effort, |text| Effort::of(text).ok_or_else(|| not_a_value(Field::Effort, text)));
        let disk = match self.answers.given(Field::DiskSize) {
            Some(_) => self.read(Field::DiskSize, disk_size),
            None => effort.map(|effort| effort.disk),
        };
        let name = self.read(Field::Name, |text| text.parse::<Name>().map_err(|why| why.to_string()));
        self.unused();
        let resolved = Resolved {
            question: question?,
            storage: storage?,
            machine: machine?,
            machines: machines?,
            within: within?,
            effort: effort?,
            disk: disk?,
            name: name?,
        };
        self.together(&resolved);
        Some(resolved)
    }

    /// What is wrong with answers together.
    fn together(&mut self, resolved: &Resolved) {
        let Resolved { question, storage, machine, machines, .. } = resolved;
        if matches!(question, Question::NodeDown | Question::Accept)
            && let Err(fault) = can_lose_a_node(storage)
        {
            self.faults.push(fault);
        }
        let searches_rates = *question == Question::Accept
            || (*question == Question::Capacity && matches!(storage, Storage::Devices { .. }));
        if searches_rates && machine.has_own_rate {
            self.faults.push(Fault::wrong(
                Field::Load,
                "the study searches the most IOPS, and this profile has a rate of its own: give another profile, such as \
                 B8-T1-O16-W30-PR",
            ));
        }
        if machines.saturating_mul(storage.places()) > MOST_WORKERS {
            let field = match storage {
                Storage::Devices { .. } => Field::Devices,
                _ => Field::Machines,
            };
            self.faults.push(Fault::wrong(
                field,
                format!(
                    "{machines} machines on each of {} nodes are too many: at most {MOST_WORKERS} in all",
                    storage.places()
                ),
            ));
        }
    }

    fn storage(&mut self) -> Option<Storage> {
        let kinds = ["cluster", "running", "folder", "devices"];
        let kind = self.read(Field::Storage, |text| {
            let known = kinds.iter().position(|kind| *kind == text);
            known.ok_or_else(|| not_a_value(Field::Storage, text))
        })?;
        let members = match self.answers.needs(Field::Members) {
            true => self.read(Field::Members, storage::members),
            false => Some(Vec::new()),
        };
        match kinds[kind] {
            "cluster" => Some(Storage::Cluster { nodes: self.number(Field::Nodes)? }),
            "running" => {
                let (api, hosts) =
                    (self.read(Field::Api, storage::api), self.read(Field::Hosts, storage::hosts));
                let api = api?;
                let access_file = self.answers.given(Field::AccessFile).map(String::from);
                if api.starts_with("https:") && access_file.is_none() {
                    self.faults.push(Fault::missing(
                        Field::AccessFile,
                        "an API at https:// needs an access: give the file that loadline san access add has made",
                    ));
                }
                Some(Storage::Running { api, access_file, hosts: hosts? })
            }
            "folder" => {
                let folder = self.read(Field::Folder, |text| Ok(text.to_string()));
                Some(Storage::Folder { folder: folder?, members: members? })
            }
            _ => {
                let disks = self.read(Field::Devices, storage::disks);
                Some(Storage::Devices { disks: disks?, members: members? })
            }
        }
    }

    /// Reads an answer, or its default; `None` if there is a fault, which is noted.
    fn read<T>(&mut self, field: Field, read: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let Some(text) = self.answers.value(field) else {
            // The name of a study without a question is not what is missing.
            if form::question(field).default_from.is_none() {
                self.faults.push(Fault::missing(field, missing(field)));
            }
            return None;
        };
        match read(&text) {
            Ok(value) => Some(value),
            Err(why) => {
                self.faults.push(Fault::wrong(field, why));
                None
            }
        }
    }

    fn number(&mut self, field: Field) -> Option<u32> {
        let Input::Number { least, most } = form::question(field).input else { return None };
        self.read(field, |text| {
            let number = text.parse().ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| format!("{text:?} is not a number from {least} to {most}"))
        })
    }

    /// Answers that were given and that this study does not use.
    fn unused(&mut self) {
        for field in Field::ALL {
            if self.answers.given(field).is_none() || self.answers.needs(field) {
                continue;
            }
            // Wrong earlier answers are reported themselves.
            let conditions = form::question(field).shown_if;
            if conditions.iter().any(|on| self.faults.iter().any(|fault| fault.field == on.field)) {
                continue;
            }
            let on: Vec<String> = conditions
                .iter()
                .map(|on| format!("{} is {}", on.field, on.is_one_of.join(" or ")))
                .collect();
            let message = format!("it is used only if {}: leave it out", on.join(" and "));
            self.faults.push(Fault::wrong(field, message));
        }
    }
}

fn disk_size(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|why| format!("{why}"))?;
    match size.0 > 0 && size.0.is_multiple_of(BLOCK) {
        true => Ok(size),
        false => Err(format!("a disk has whole blocks of 4 KiB, and {text} has not: write 1GiB")),
    }
}

/// What a field without an answer needs.
fn missing(field: Field) -> String {
    match form::question(field).input {
        Input::Choice { choices, .. } => {
            let values: Vec<&str> = choices.iter().map(|choice| choice.value).collect();
            format!("give one of {}", values.join(", "))
        }
        Input::Text { example } => format!("give one, such as {example}"),
        Input::Number { least, most } => format!("give a number from {least} to {most}"),
    }
}

/// An answer that is none of the values of a choice.
fn not_a_value(field: Field, text: &str) -> String {
    format!("{text:?} is unknown: {}", missing(field))
}
