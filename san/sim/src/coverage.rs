//! What of the protocol a run has been through: states, transitions, messages, situations, counted.

use std::collections::BTreeMap;
use std::fmt;

use loadline_san_core::message::{ToOwner, ToReplica};
use loadline_san_core::volume::{Status, VolumeCommand};

/// Counts of what a run, or several, went through. Each count has a kind and a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<(&'static str, String), u64>,
}

impl Coverage {
    pub(crate) fn count(&mut self, kind: &'static str, what: &str) {
        if let Some(count) = self.counts.get_mut(&(kind, what.to_owned())) {
            *count += 1;
        } else {
            self.counts.insert((kind, what.to_owned()), 1);
        }
    }

    pub(crate) fn transition(&mut self, from: Status, to: Status) {
        self.count("volume", &format!("{} → {}", name_of_status(from), name_of_status(to)));
    }

    /// Adds what another run has been through.
    pub fn add(&mut self, other: &Coverage) {
        for (key, count) in &other.counts {
            *self.counts.entry(key.clone()).or_default() += count;
        }
    }

    /// How often something was seen.
    pub fn of(&self, kind: &'static str, what: &str) -> u64 {
        self.counts.get(&(kind, what.to_owned())).copied().unwrap_or(0)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = "";
        for ((kind, what), count) in &self.counts {
            let shown = if *kind == last { "" } else { kind };
            last = kind;
            writeln!(f, "{shown:<10} {what:<44} {count:>12}")?;
        }
        Ok(())
    }
}

pub(crate) fn name_of_status(status: Status) -> &'static str {
    match status {
        Status::Watching => "watching",
        Status::Claiming => "claiming",
        Status::Sealing => "sealing",
        Status::Equalizing => "equalizing",
        Status::Activating => "activating",
        Status::Active => "active",
        Status::Changing => "changing",
        Status::Blocked => "blocked",
    }
}

pub(crate) fn name_of_message<D>(message: &ToReplica<D>) -> &'static str {
    match message {
        ToReplica::Hello { .. } => "hello",
        ToReplica::Seal { .. } => "seal",
        ToReplica::Entry { sequence, entry, .. } if sequence.0 > 1 && entry.blocks == 0 => {
            "entry, its data put off"
        }
        ToReplica::Entry { .. } => "entry",
        ToReplica::OutOfBand { .. } => "out_of_band",
        ToReplica::Heartbeat { .. } => "heartbeat",
        ToReplica::Read { .. } => "read",
        ToReplica::Map { .. } => "map",
        ToReplica::Fetch { .. } => "fetch",
        ToReplica::Return { .. } => "return",
        ToReplica::Changed { .. } => "changed",
        ToReplica::Joined => "joined",
        ToReplica::Remember => "remember",
        ToReplica::Release => "release",
        ToReplica::Probe => "probe",
    }
}

pub(crate) fn name_of_answer<D>(answer: &ToOwner<D>) -> &'static str {
    match answer {
        ToOwner::Welcome(_) => "welcome",
        ToOwner::Sealed(report) if report.above.is_empty() => "sealed, nothing above the commit point",
        ToOwner::Sealed(_) => "sealed",
        ToOwner::Durable(progress) if progress.gap => "durable, with a gap",
        ToOwner::Durable(_) => "durable",
        ToOwner::Alive { granted: true, .. } => "alive, lease granted",
        ToOwner::Alive { .. } => "alive, no lease",
        ToOwner::Data { content: Ok(_), .. } => "data",
        ToOwner::Data { .. } => "data, corrupt",
        ToOwner::Mapped { .. } => "mapped",
        ToOwner::Listed { ranges, .. } if ranges.is_empty() => "listed nothing",
        ToOwner::Listed { .. } => "listed",
        ToOwner::Changed { next: Some(_), .. } => "changed, and more",
        ToOwner::Changed { .. } => "changed",
        ToOwner::Refused(_) => "refused",
        ToOwner::Stranger => "stranger",
        ToOwner::Failed => "failed",
        ToOwner::Damaged => "damaged",
        ToOwner::Probed { .. } => "probed",
        ToOwner::Corrupt { .. } => "corrupt",
    }
}

pub(crate) fn name_of_command(command: &VolumeCommand) -> &'static str {
    match command {
        VolumeCommand::Add { .. } => "add",
        VolumeCommand::Forget { .. } => "forget",
        VolumeCommand::Remove { .. } => "remove",
        VolumeCommand::Grow { .. } => "grow",
        VolumeCommand::Recover { .. } => "recover",
    }
}
