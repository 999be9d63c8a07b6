//! A cluster's nodes harmed, and brought back.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::api::{Replica, Status};
use crate::cluster::{Cluster, Node, Origin};
use crate::error::TargetError;
use crate::fault::{Fault, FaultKind};
use crate::filler_name::is_filler;
use crate::node_commands::{NodeCommands, Place};
use crate::node_state::NodeState;

impl Cluster {
    /// Takes back whatever was done to any node.
    pub fn heal(&mut self, stop: &AtomicBool) -> Result<(), TargetError> {
        // Those that can come back do, even if others cannot.
        let mut healed = Ok(());
        for index in 0..self.nodes.len() {
            if self.nodes[index].state != NodeState::Up {
                healed = healed.and(self.bring_back(index, stop));
            }
        }
        healed
    }

    /// Whether something can be done to a node now: it is not forced, and a volume would be left without a copy that has
    /// everything; or it does not follow on what was done before. Where this is so, why.
    pub fn refuses(&self, fault: &Fault) -> Result<(), TargetError> {
        self.may(fault).map(drop)
    }

    /// Whether the process of the node that runs is another one afterwards.
    pub(crate) fn restarts(&self, fault: &Fault) -> bool {
        let failed = |node: &Node| node.name == fault.node && node.state == NodeState::Failed;
        fault.what == FaultKind::Return && self.nodes.iter().any(failed)
    }

    /// Whether it cuts the host of the node off, with all that runs there.
    pub(crate) fn cuts_host(&self, fault: &Fault) -> bool {
        fault.what == FaultKind::Cut && self.commands_for(FaultKind::Cut).is_some()
    }

    /// The node to which something can be done now.
    fn may(&self, fault: &Fault) -> Result<usize, TargetError> {
        let known = self.nodes.iter().position(|node| node.name == fault.node);
        let index = known.ok_or_else(|| {
            let are: Vec<&str> = self.nodes().collect();
            TargetError::usage(format!(
                "there is no node {} in the cluster; it has {}",
                fault.node,
                are.join(", ")
            ))
        })?;
        if fault.what == FaultKind::Return {
            return match self.nodes[index].state {
                NodeState::Up => {
                    let name = &self.nodes[index].name;
                    Err(TargetError::usage(format!("{name} cannot return: the node has no fault")))
                }
                _ => Ok(index),
            };
        }
        if let Origin::Running(running) = &self.origin {
            running.commands.can(fault)?;
        }
        if self.nodes[index].state != NodeState::Up {
            return Err(TargetError::usage(format!(
                "{fault}: something was done to it before; let it return first"
            )));
        }
        let costs_nothing = matches!(fault.what, FaultKind::SlowDevice { .. } | FaultKind::Fill);
        if !costs_nothing {
            self.leaves_a_copy(index, fault)?;
        }
        Ok(index)
    }

    /// Does something to a node. Refused, unless it is forced, if a volume would be left without a copy that has everything.
    pub fn inject(&mut self, fault: &Fault, stop: &AtomicBool) -> Result<(), TargetError> {
        let index = self.may(fault)?;
        if fault.what == FaultKind::Return {
            return self.bring_back(index, stop);
        }
        let api = self.nodes[index].api.clone();
        let command = self.commands_for(fault.what);
        let place = command.as_ref().map(|(_, place)| *place);
        // Before it is done: what was done in part is healed too.
        let node = &mut self.nodes[index];
        (node.fault, node.by_command) = (Some(fault.what), place);
        node.state = NodeState::after(fault.what, place.is_some());
        self.note_faults()?;
        if let Some((commands, place)) = command {
            return commands.run(fault, None, place, stop);
        }
        match fault.what {
            FaultKind::Kill => {
                if let Some(mut process) = self.nodes[index].process.take() {
                    process.kill();
                }
            }
            FaultKind::Freeze => {
                if let Some(process) = &self.nodes[index].process {
                    process.signal(Signal::SIGSTOP)?;
                }
            }
            FaultKind::Cut => {
                let others = self.nodes.iter().filter(|node| node.name != fault.node);
                for other in others {
                    let drop = json!({ "fault": "drop_peer", "node": other.name });
                    api.post::<Value>("/v1/test-faults", &drop)?;
                }
            }
            FaultKind::FailDevice => {
                for device in self.devices(index)? {
                    let fail = json!({ "fault": "fail_device", "device": device });
                    api.post::<Value>("/v1/test-faults", &fail)?;
                }
            }
            FaultKind::SlowDevice { by } => {
                let milliseconds = u32::try_from(by.0.as_millis()).unwrap_or(u32::MAX);
                for device in self.devices(index)? {
                    let slow =
                        json!({ "fault": "slow_device", "device": device, "milliseconds": milliseconds });
                    api.post::<Value>("/v1/test-faults", &slow)?;
                }
            }
            FaultKind::Fill => self.fill_device(index, stop)?,
            FaultKind::Return => {}
            FaultKind::KillMachine
            | FaultKind::CrashMachine
            | FaultKind::PauseMachine { .. }
            | FaultKind::Migrate => {
                unreachable!("Storage::inject leaves it to the fleet")
            }
        }
        Ok(())
    }

    /// That each part of each volume has a copy in sync on another node that runs and to which nothing was done. If it is forced, that
    /// is asked only of volumes that are not the run's.
    fn leaves_a_copy(&self, index: usize, fault: &Fault) -> Result<(), TargetError> {
        let status: Status = self.alive()?.status()?;
        let lost = |name: &str| {
            let here = |node: &&Node| node.name == name;
            name == self.nodes[index].name
                || !status.nodes.iter().any(|node| node.name == name && node.alive)
                || self.nodes.iter().find(here).is_none_or(|node| !node.state.serves())
        };
        // What fills a device is no client's data.
        let counts = |name: &str| !(is_filler(name) || fault.force && self.counts(name));
        for volume in status.volumes.iter().filter(|volume| counts(&volume.name)) {
            let groups: BTreeSet<u32> = volume.replicas.iter().map(|replica| replica.group).collect();
            let stays = |replica: &Replica| replica.state == "in sync" && !lost(&replica.node);
            let bare = groups.into_iter().find(|group| {
                !volume.replicas.iter().any(|replica| replica.group == *group && stays(replica))
            });
            if bare.is_some() {
                let advice = match self.counts(&volume.name) {
                    true => "say force = true if that is what is to be seen",
                    false => "the volume is not the run's, so force = true does not help",
                };
                return Err(TargetError::usage(format!(
                    "{fault}: that would leave no copy of volume {} that has everything; {advice}",
                    volume.name
                )));
            }
        }
        Ok(())
    }

    /// The commands that harm nodes, and where one of them causes this fault; `None` if none does.
    fn commands_for(&self, what: FaultKind) -> Option<(NodeCommands, Place)> {
        let Origin::Running(running) = &self.origin else { return None };
        Some((running.commands.clone(), running.commands.place_of(what)?))
    }

    /// Undoes the fault of a node.
    fn bring_back(&mut self, index: usize, stop: &AtomicBool) -> Result<(), TargetError> {
        self.undo(index, stop)?;
        let node = &mut self.nodes[index];
        (node.state, node.fault, node.by_command) = (NodeState::Up, None, None);
        self.note_faults()
    }

    fn undo(&mut self, index: usize, stop: &AtomicBool) -> Result<(), TargetError> {
        let node = &self.nodes[index];
        if let (Some(place), Origin::Running(running)) = (node.by_command, &self.origin) {
            let back = Fault::of(FaultKind::Return, &node.name);
            running.commands.run(&back, node.fault, place, stop)?;
            self.await_answer(index, stop)?;
            self.note_life(index);
            return Ok(());
        }
        match node.state {
            // A command has cut it off, and one has brought it back: see above.
            NodeState::Up | NodeState::HostCut => {}
            NodeState::Killed => {
                self.launch(index)?;
                self.await_answer(index, stop)?;
            }
            NodeState::Frozen => {
                if let Some(process) = &self.nodes[index].process {
                    process.signal(Signal::SIGCONT)?;
                }
            }
            NodeState::Slow | NodeState::Cut => {
                self.nodes[index].api.delete::<Value>("/v1/test-faults")?;
            }
            NodeState::Filled => self.empty_device(index, stop)?,
            NodeState::Failed if matches!(self.origin, Origin::Running(_)) => {
                // Its process replaces itself, and opens the devices anew.
                let restart = format!("/v1/nodes/{}/restart", self.nodes[index].name);
                let old: u64 = self.nodes[index].api.post(&restart, &json!({}))?;
                self.await_other_life(index, old, stop)?;
            }
            NodeState::Failed => {
                if let Some(mut process) = self.nodes[index].process.take() {
                    process.ask_to_stop();
                    process.stop(Instant::now());
                }
                self.launch(index)?;
                self.await_answer(index, stop)?;
            }
        }
        Ok(())
    }
}
