//! External storage: the user's commands cause faults in it, or a person who is asked at the terminal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadline_base::units::TimeSpan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::command::{self, Shell};
use crate::error::{ErrorKind, TargetError};
use crate::fault::{Fault, FaultKind};
use crate::prompt::ask_within;
pub use crate::prompt::{Prompt, terminal_prompt};

/// How long a command, or a person, may take by default.
pub(crate) const LIMIT: TimeSpan = TimeSpan::seconds(600);
/// Longer than this no command is waited for, seconds.
const LONGEST: u64 = 24 * 60 * 60;
/// How long is waited before it is asked again whether every copy is in sync.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the command for health may take where its result is only recorded.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// What it has in its environment.
const HEALTH: [(&str, &str); 1] = [("LOADLINE_ACTION", "health")];
/// What can be done, as it stands in `commands`.
pub(crate) const ACTIONS: [&str; 7] =
    ["kill", "freeze", "cut", "fail-device", "slow-device", "fill", "return"];

/// How faults are caused in external storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalSpec {
    /// Its nodes, as the storage calls them.
    pub nodes: Vec<String>,
    /// The command for each action: `kill`, `freeze`, `cut`, `fail-device`, `slow-device`, `fill`, `return`. Each is a line for
    /// `/bin/sh -c`. The environment has the node as `$NODE`, the delay of `slow-device` as `$BY`, the action as
    /// `$LOADLINE_ACTION` and, when a node returns, the fault that is undone as `$LOADLINE_WAS`. Exit code 0 means that the
    /// action is done.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub commands: BTreeMap<String, String>,
    /// A line for `/bin/sh -c` that checks whether every copy is in sync: exit code 0 if so, 1 if not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Ask a person at the terminal to carry out each action that has no command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prompt: bool,
    /// The time limit of each command, and of each action of a person: 10 minutes by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<TimeSpan>,
}

impl ExternalSpec {
    /// That it can be used, and that all of these faults can be done. An error of kind `Usage` states what is missing.
    pub fn check<'a>(&self, faults: impl Iterator<Item = &'a Fault>) -> Result<(), TargetError> {
        self.validate()?;
        for fault in faults {
            self.knows(&fault.node)?;
            self.can(fault)?;
        }
        Ok(())
    }

    /// Whether there is a way to find out that every copy is in sync after something was done.
    pub fn tells_redundancy(&self) -> bool {
        self.prompt || self.health.is_some()
    }

    /// Every line that may be run, each with what it is for.
    pub fn lines(&self) -> impl Iterator<Item = (&str, &str)> {
        let commands = self.commands.iter().map(|(action, line)| (action.as_str(), line.as_str()));
        commands.chain(self.health.iter().map(|line| ("health", line.as_str())))
    }

    fn validate(&self) -> Result<(), TargetError> {
        let usage = |message: String| Err(TargetError::usage(message));
        if self.nodes.is_empty() {
            return usage("the storage has no nodes: name them, nodes = [\"a\", \"b\"]".into());
        }
        let mut names = BTreeSet::new();
        for name in &self.nodes {
            // One that begins with a dash would be an option of whatever command gets it.
            if name.trim().is_empty() || name.starts_with('-') || name.contains(char::is_control) {
                return usage(format!(
                    "{name:?} cannot be a node: a name is not empty, begins with no dash and has no control characters"
                ));
            }
            if !names.insert(name) {
                return usage(format!("the node {name} is there twice: each node has a name of its own"));
            }
        }
        validate_commands(&self.commands)?;
        if self.health.as_ref().is_some_and(|line| line.trim().is_empty() || line.contains('\0')) {
            return usage("the command for health is empty, or no text: give one, or leave it out".into());
        }
        if self.commands.is_empty() && !self.prompt {
            return usage(
                "nothing can be done to the storage: give commands, as kill = \"ssh $NODE …\", or say prompt = true to have \
                 a person asked"
                    .into(),
            );
        }
        validate_limit(self.limit)
    }

    fn knows(&self, node: &str) -> Result<(), TargetError> {
        match self.nodes.iter().any(|known| known == node) {
            true => Ok(()),
            false => Err(TargetError::usage(format!(
                "there is no node {node} in the storage; it has {}",
                self.nodes.join(", ")
            ))),
        }
    }

    fn can(&self, fault: &Fault) -> Result<(), TargetError> {
        let action = action(fault.what);
        match self.prompt || self.commands.contains_key(action) {
            true => Ok(()),
            false => Err(TargetError::usage(format!(
                "{fault}: there is no command for it; give one under commands, as {action} = \"…\", or say prompt = true to have \
                 a person asked"
            ))),
        }
    }

    fn limit(&self) -> TimeSpan {
        self.limit.unwrap_or(LIMIT)
    }
}

/// External storage, and what was done to it.
pub struct External {
    spec: ExternalSpec,
    ask: Option<Prompt>,
    harmed: BTreeMap<String, FaultKind>,
    /// Something was done since every copy was known to be in sync.
    is_unsettled: bool,
}

impl External {
    /// Storage of which nothing is known to be harmed. `ask` is how a person is asked, which is needed with `prompt`. An error
    /// of kind `Usage` if the spec cannot be used.
    pub fn new(spec: ExternalSpec, ask: Option<Prompt>) -> Result<External, TargetError> {
        spec.validate()?;
        if spec.prompt && ask.is_none() {
            return Err(TargetError::usage(
                "a person is to be asked (prompt = true), and there is no way to ask",
            ));
        }
        Ok(External { spec, ask, harmed: BTreeMap::new(), is_unsettled: false })
    }

    /// Its nodes, in their order.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.spec.nodes.iter().map(String::as_str)
    }

    /// The nodes to which something was done, and what.
    pub fn harmed(&self) -> impl Iterator<Item = (&str, FaultKind)> {
        self.harmed.iter().map(|(node, what)| (node.as_str(), *what))
    }

    /// Does something to a node. Whether it leaves a copy of everything is for the user to know. An error of kind `Usage` if
    /// it cannot be done as asked, and nothing was; of kind `Failed` or `Interrupted` if it was begun: then it counts as done,
    /// so that healing takes it back.
    pub fn inject(&mut self, fault: &Fault, stop: &AtomicBool) -> Result<(), TargetError> {
        self.spec.knows(&fault.node)?;
        let was = self.harmed.get(&fault.node).copied();
        let usage = |message: String| Err(TargetError::usage(message));
        match (fault.what, was) {
            (FaultKind::Return, None) => {
                return usage(format!("{} cannot return: the node has no fault", fault.node));
            }
            (FaultKind::Return, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                return usage(format!("{fault}: something was done to it before; let it return first"));
            }
        }
        self.spec.can(fault)?;
        let done = self.perform(fault, was, stop);
        if done.as_ref().is_err_and(|error| error.kind == ErrorKind::Usage) {
            return done;
        }
        self.is_unsettled = true;
        match fault.what {
            // One that has not come back is tried again.
            FaultKind::Return if done.is_ok() => drop(self.harmed.remove(&fault.node)),
            FaultKind::Return => {}
            what => drop(self.harmed.insert(fault.node.clone(), what)),
        }
        done
    }

    fn perform(
        &mut self,
        fault: &Fault,
        was: Option<FaultKind>,
        stop: &AtomicBool,
    ) -> Result<(), TargetError> {
        let limit = self.spec.limit();
        let Some(line) = self.spec.commands.get(action(fault.what)) else {
            let question = format!("Now do this: {}. Then press Enter.", to_do(fault, was));
            return match self.ask(&question, limit, stop)? {
                true => Ok(()),
                false => Err(TargetError::failed(format!(
                    "{fault}: no person has confirmed within {limit} that it is done"
                ))),
            };
        };
        cause(fault, was, line, Shell::Here, limit, stop)
    }

    /// Lets every node return to which something was done. Those that can return do, even if others cannot: the first error
    /// is returned.
    pub fn heal(&mut self, stop: &AtomicBool) -> Result<(), TargetError> {
        let nodes: Vec<String> = self.harmed.keys().cloned().collect();
        let mut healed = Ok(());
        for node in nodes {
            if stop.load(Ordering::Relaxed) {
                return healed.and(Err(TargetError::interrupted()));
            }
            let back = Fault::of(FaultKind::Return, &node);
            healed = healed.and(self.inject(&back, stop));
        }
        healed
    }

    /// Waits until every copy of everything is in sync, at most so long. Whether it is. True at once if there is no command for
    /// health and nothing was done since it was so last; else, without a command, a person is asked, and without `prompt` it
    /// is an error of kind `Usage`. A command with any exit code but those of yes and not yet is an error of kind `Failed`.
    pub fn await_redundancy(&mut self, limit: Duration, stop: &AtomicBool) -> Result<bool, TargetError> {
        let is_so = match self.spec.health.clone() {
            Some(line) => self.await_health(&line, limit, stop)?,
            None if !self.is_unsettled => true,
            None if self.spec.prompt => {
                let question = "Wait until every copy is in sync. Then press Enter.";
                self.ask(question, TimeSpan(limit), stop)?
            }
            None => {
                return Err(TargetError::usage(
                    "nothing tells whether every copy of the storage is in sync: give health, a command that ends with 0 when it \
                     is and with 1 when it is not yet, or say prompt = true to have a person asked",
                ));
            }
        };
        self.is_unsettled &= !is_so;
        Ok(is_so)
    }

    /// Whether a person does it.
    pub fn asks_for(&self, fault: &Fault) -> bool {
        !self.spec.commands.contains_key(action(fault.what))
    }

    /// Whether every copy is in sync at the moment, by the command for health; `None` without one, or if it reports neither.
    pub fn is_in_sync(&self, stop: &AtomicBool) -> Option<bool> {
        let limit = TimeSpan(self.spec.limit().0.min(LOOK_LIMIT));
        let ended = command::run(self.spec.health.as_ref()?, Shell::Here, &HEALTH, limit, stop).ok()?;
        match ended.code {
            Some(0) => Some(true),
            Some(1) => Some(false),
            _ => None,
        }
    }

    /// Asks until two answers in a row are yes: a storage does not know at once what has just happened to it.
    fn await_health(&self, line: &str, limit: Duration, stop: &AtomicBool) -> Result<bool, TargetError> {
        let begun = Instant::now();
        let mut was_so = false;
        loop {
            let ended = command::run(line, Shell::Here, &HEALTH, self.spec.limit(), stop)
                .map_err(|error| TargetError { message: format!("health: {error}"), ..error })?;
            let is_so = match ended.code {
                Some(0) => true,
                Some(1) => false,
                _ => {
                    return Err(TargetError::failed(format!(
                        "health: \"{line}\" reports neither yes (0) nor not yet (1): {}",
                        ended.how
                    )));
                }
            };
            if is_so && was_so {
                return Ok(true);
            }
            if !is_so && begun.elapsed() >= limit {
                return Ok(false);
            }
            was_so = is_so;
            wait(AGAIN, stop)?;
        }
    }

    fn ask(&mut self, question: &str, limit: TimeSpan, stop: &AtomicBool) -> Result<bool, TargetError> {
        let ask = self.ask.as_mut().ok_or_else(|| {
            TargetError::usage(format!("no person can be asked \"{question}\": there is no way to ask"))
        })?;
        ask_within(ask, question, limit, stop)
    }
}

impl fmt::Debug for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("External")
            .field("spec", &self.spec)
            .field("harmed", &self.harmed)
            .finish_non_exhaustive()
    }
}

/// That commands are for actions that there are, and not empty. The error is of kind `Usage`.
pub(crate) fn validate_commands(commands: &BTreeMap<String, String>) -> Result<(), TargetError> {
    for (action, line) in commands {
        if !ACTIONS.contains(&action.as_str()) {
            let meant = nearest(action).map(|meant| format!("; did you mean {meant}?"));
            return Err(TargetError::usage(format!(
                "there is a command for {action:?}, and nothing of that name can be done{} There can be commands for {}",
                meant.unwrap_or(".".into()),
                ACTIONS.join(", ")
            )));
        }
        if line.trim().is_empty() || line.contains('\0') {
            return Err(TargetError::usage(format!(
                "the command for {action} is empty, or no text: give one, or leave it out"
            )));
        }
    }
    Ok(())
}

/// That the time limit of commands is one. The error is of kind `Usage`.
pub(crate) fn validate_limit(limit: Option<TimeSpan>) -> Result<(), TargetError> {
    match limit {
        Some(limit) if limit.0.is_zero() || limit.0.as_secs() > LONGEST => Err(TargetError::usage(format!(
            "a limit of {limit} for commands: more than nothing, and at most a day"
        ))),
        _ => Ok(()),
    }
}

/// Has a command cause a fault, or end the fault `was`. An error unless the command ends with exit code 0.
pub(crate) fn cause(
    fault: &Fault,
    was: Option<FaultKind>,
    line: &str,
    shell: Shell<'_>,
    limit: TimeSpan,
    stop: &AtomicBool,
) -> Result<(), TargetError> {
    let mut variables = vec![("NODE", fault.node.as_str()), ("LOADLINE_ACTION", action(fault.what))];
    let by = match fault.what {
        FaultKind::SlowDevice { by } => Some(by.to_string()),
        _ => None,
    };
    variables.extend(by.as_deref().map(|by| ("BY", by)));
    variables.extend(was.map(|was| ("LOADLINE_WAS", action(was))));
    let ended = command::run(line, shell, &variables, limit, stop)
        .map_err(|error| TargetError { message: format!("{fault}: {error}"), ..error })?;
    match ended.code {
        Some(0) => Ok(()),
        _ => Err(TargetError::failed(format!("{fault}: \"{line}\" failed: {}", ended.how))),
    }
}

/// The name of what is done.
pub(crate) fn action(what: FaultKind) -> &'static str {
    match what {
        FaultKind::Kill => "kill",
        FaultKind::Freeze => "freeze",
        FaultKind::Cut => "cut",
        FaultKind::FailDevice => "fail-device",
        FaultKind::SlowDevice { .. } => "slow-device",
        FaultKind::Fill => "fill",
        FaultKind::Return => "return",
        FaultKind::KillMachine => "kill-machine",
        FaultKind::CrashMachine => "crash-machine",
        FaultKind::PauseMachine { .. } => "pause-machine",
        FaultKind::Migrate => "migrate",
    }
}

/// What a person is to do.
fn to_do(fault: &Fault, was: Option<FaultKind>) -> String {
    let node = &fault.node;
    match fault.what {
        FaultKind::Kill => format!("kill {node}, as by a power cut"),
        FaultKind::Freeze => format!("make {node} stand still, its connections open"),
        FaultKind::Cut => format!("cut {node} off from all other nodes"),
        FaultKind::FailDevice => format!("make the devices of {node} fail"),
        FaultKind::SlowDevice { by } => format!("make each I/O of the devices of {node} take {by} longer"),
        FaultKind::Fill => format!("fill what is free on the devices of {node}"),
        FaultKind::KillMachine
        | FaultKind::CrashMachine
        | FaultKind::PauseMachine { .. }
        | FaultKind::Migrate => {
            unreachable!("the fleet does this itself")
        }
        FaultKind::Return => match was {
            Some(what) => {
                let before = Fault { what, ..fault.clone() };
                format!("undo the faults of {node} ({before})")
            }
            None => format!("undo the faults of {node}"),
        },
    }
}

fn wait(span: Duration, stop: &AtomicBool) -> Result<(), TargetError> {
    let begun = Instant::now();
    while begun.elapsed() < span {
        crate::cluster::pause(stop)?;
    }
    Ok(())
}

/// What was probably meant by this name of something to do.
fn nearest(word: &str) -> Option<&'static str> {
    let word: Vec<char> = word.to_lowercase().replace(['_', ' '], "-").chars().take(32).collect();
    let text: String = word.iter().collect();
    let begins = |action: &&&str| text.len() > 2 && (action.starts_with(&text) || text.starts_with(**action));
    let edits = ACTIONS.iter().map(|action| (distance(&word, action), action));
    let close = edits.filter(|(edits, action)| edits * 3 <= action.len()).min_by_key(|(edits, _)| *edits);
    close.map(|(_, action)| action).or_else(|| ACTIONS.iter().find(begins)).copied()
}

/// Insertions, deletions and replacements of letters that lead from one word to the other.
fn distance(word: &[char], other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in word.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, theirs) in other.iter().enumerate() {
            let replaced = row[j] + usize::from(letter != theirs);
            next.push(replaced.min(row[j + 1] + 1).min(next[j] + 1));
        }
        row = next;
    }
    row[other.len()]
}
