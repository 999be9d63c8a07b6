//! How nodes of a cluster that ran before are harmed and brought back: by commands of the user's, on the node's host or on this
//! machine.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use loadline_base::units::TimeSpan;
use serde::{Deserialize, Serialize};

use crate::command::Shell;
use crate::error::TargetError;
use crate::external::{LIMIT, action, cause, validate_commands, validate_limit};
use crate::fault::{Fault, FaultKind};

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On the node's host.
    OnHost,
    /// On this machine.
    Here,
}

/// The commands by which nodes are harmed and brought back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeCommands {
    /// The command of each action, for a shell on the node's host.
    pub on_host: BTreeMap<String, String>,
    /// The command of each action, for a shell on this machine.
    pub here: BTreeMap<String, String>,
    /// What starts a shell on the host of each node: a program and its arguments. A node that is missing is on this machine.
    pub hosts: BTreeMap<String, Vec<String>>,
    /// How long a command may take; 10 minutes if not given.
    pub limit: Option<TimeSpan>,
}

impl NodeCommands {
    /// That the commands can be used, and that all of these faults can be caused. An error of kind `Usage` states what is missing.
    pub fn check<'a>(&self, faults: impl Iterator<Item = &'a Fault>) -> Result<(), TargetError> {
        validate_commands(&self.on_host)?;
        validate_commands(&self.here)?;
        let in_both =
            |name: &&String| self.here.contains_key(*name) && name.as_str() != action(FaultKind::Return);
        if let Some(twice) = self.on_host.keys().find(in_both) {
            return Err(TargetError::usage(format!(
                "{twice} is in commands and in commands_here: leave one of the two out"
            )));
        }
        validate_limit(self.limit)?;
        for fault in faults.filter(|fault| fault.what != FaultKind::Return) {
            self.can(fault)?;
            // What a host was cut off by cannot be undone on that host.
            let Some(place) = self.place_of(fault.what) else { continue };
            if !self.table(place).contains_key(action(FaultKind::Return)) {
                let table = if place == Place::Here { "commands_here" } else { "commands" };
                return Err(TargetError::usage(format!(
                    "{fault} by a command in {table}, and no command there brings the node back: add return = \"…\" to {table}"
                )));
            }
        }
        Ok(())
    }

    fn table(&self, place: Place) -> &BTreeMap<String, String> {
        match place {
            Place::OnHost => &self.on_host,
            Place::Here => &self.here,
        }
    }

    /// Where the command runs that causes this fault; `None` if there is no such command.
    pub fn place_of(&self, what: FaultKind) -> Option<Place> {
        [Place::OnHost, Place::Here].into_iter().find(|place| self.table(*place).contains_key(action(what)))
    }

    /// Every command: what it is for, its line, and where it runs.
    pub fn lines(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let on_host = self.on_host.iter().map(|(a, line)| (a.as_str(), line.as_str(), "on the node's host"));
        on_host.chain(self.here.iter().map(|(a, line)| (a.as_str(), line.as_str(), "on this machine")))
    }

    /// Whether a fault can be caused: by a command, or by the node itself. A node does not kill or stop itself, and what is free on its
    /// devices is not the run's alone.
    pub(crate) fn can(&self, fault: &Fault) -> Result<(), TargetError> {
        let needs_command = matches!(fault.what, FaultKind::Kill | FaultKind::Freeze | FaultKind::Fill);
        match needs_command && self.place_of(fault.what).is_none() {
            false => Ok(()),
            true => {
                let action = action(fault.what);
                Err(TargetError::usage(format!(
                    "{fault}: the cluster ran before, so a command must do this: add {action} = \"…\" to commands (for a shell on \
                     the node's host) or to commands_here"
                )))
            }
        }
    }

    /// How long a command may take.
    pub fn limit(&self) -> TimeSpan {
        self.limit.unwrap_or(LIMIT)
    }

    /// Runs the command of this place that causes a fault or ends it; `was` is the fault that is ended. There must be one. An error
    /// unless it ends with exit code 0.
    pub(crate) fn run(
        &self,
        fault: &Fault,
        was: Option<FaultKind>,
        place: Place,
        stop: &AtomicBool,
    ) -> Result<(), TargetError> {
        let action = action(fault.what);
        let Some(line) = self.table(place).get(action) else {
            return Err(TargetError::failed(format!("{fault}: there is no command for {action}")));
        };
        let shell = match self.hosts.get(&fault.node).filter(|_| place == Place::OnHost) {
            Some(start) => Shell::OnHost(start),
            None => Shell::Here,
        };
        cause(fault, was, line, shell, self.limit(), stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(on_host: &[(&str, &str)], here: &[(&str, &str)]) -> NodeCommands {
        let map = |all: &[(&str, &str)]| all.iter().map(|(a, l)| ((*a).into(), (*l).into())).collect();
        NodeCommands { on_host: map(on_host), here: map(here), ..NodeCommands::default() }
    }

    fn fault(what: FaultKind) -> Fault {
        Fault::of(what, "n1")
    }

    #[test]
    fn a_fault_that_no_node_causes_in_itself_needs_a_command_and_one_that_ends_it() {
        let refused =
            |commands: &NodeCommands, what| commands.check([fault(what)].iter()).unwrap_err().message;
        assert!(refused(&commands(&[], &[]), FaultKind::Kill).contains("add kill"));
        assert!(refused(&commands(&[("kill", "x")], &[]), FaultKind::Kill).contains("add return"));
        assert!(refused(&commands(&[("kil", "x")], &[]), FaultKind::Cut).contains("did you mean kill"));
        let apart = commands(&[("return", "y")], &[("cut", "x")]);
        assert!(refused(&apart, FaultKind::Cut).contains("to commands_here"), "its host is not reached then");
        assert!(refused(&commands(&[], &[]), FaultKind::Fill).contains("add fill"));
        let both = commands(&[("kill", "x"), ("return", "y")], &[("kill", "z")]);
        assert!(refused(&both, FaultKind::Kill).contains("in commands and in commands_here"));
        let two = commands(&[("kill", "x"), ("return", "y")], &[("cut", "x"), ("return", "y")]);
        two.check([fault(FaultKind::Kill), fault(FaultKind::Cut)].iter()).unwrap();
        // By the node itself, which heals itself too.
        commands(&[], &[]).check([fault(FaultKind::Cut), fault(FaultKind::FailDevice)].iter()).unwrap();
    }

    #[test]
    fn a_command_of_a_host_is_read_by_its_shell_with_the_variables() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("said");
        let line =
            format!("printf '%s %s %s' \"$NODE\" \"$LOADLINE_ACTION\" \"it's\" > '{}'; cat", file.display());
        let mut all = commands(&[("kill", &line), ("return", "exit 3")], &[]);
        // A shell that gets its commands as one of another host does.
        all.hosts = BTreeMap::from([("n1".into(), vec!["/bin/sh".into(), "-c".into()])]);
        let stop = AtomicBool::new(false);
        all.run(&fault(FaultKind::Kill), None, Place::OnHost, &stop).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "n1 kill it's");
        let failed =
            all.run(&fault(FaultKind::Return), Some(FaultKind::Kill), Place::OnHost, &stop).unwrap_err();
        assert!(failed.message.contains("exit code 3"), "{failed}");
    }

    #[test]
    fn a_command_of_a_host_ends_with_its_connection() {
        let folder = tempfile::tempdir().unwrap();
        let (begun, done) = (folder.path().join("begun"), folder.path().join("done"));
        let line = format!("touch '{}'; sleep 2; touch '{}'", begun.display(), done.display());
        let mut all = commands(&[("kill", &line), ("return", "true")], &[]);
        // A connection that ends its shell's input when it is killed, and leaves the shell alone: as ssh does.
        let shell = ["/bin/sh", "-c", "cat | setsid /bin/sh -c \"$0\""].map(String::from);
        all.hosts = BTreeMap::from([("n1".into(), shell.into())]);
        all.limit = Some(TimeSpan(std::time::Duration::from_millis(500)));
        let late =
            all.run(&fault(FaultKind::Kill), None, Place::OnHost, &AtomicBool::new(false)).unwrap_err();
        assert!(late.message.contains("has not ended within") && begun.exists(), "{late}");
        std::thread::sleep(std::time::Duration::from_millis(2_500));
        assert!(!done.exists(), "it went on after its connection had ended");
    }
}
