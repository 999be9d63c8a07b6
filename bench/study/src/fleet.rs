//! The fleet of a study, resolved from its `[fleet]` table: no later code asks which of its options are given.

use std::net::SocketAddr;

use loadline_base::units::ByteSize;
use loadline_fleet::{FleetKind, FleetOptions, FleetSpec, Placement};

use crate::error::StudyError;
use crate::file::{FleetSection, Study};

/// The size of each file or volume that is created, if the study does not say.
const FILE_SIZE: ByteSize = ByteSize::GIB;

/// The fleet that a study asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedFleet {
    /// Where its workers come from.
    pub placement: Placement,
    /// The names of its nodes, in their order; empty if workers bring them along.
    pub nodes: Vec<String>,
    /// How many workers there are in all.
    pub workers: u32,
    /// Disks of each worker.
    pub disks_per_worker: u32,
    /// The size of each file or volume that is created.
    pub file_size: ByteSize,
    /// The address that the controller listens on, if the study names one.
    listen: Option<SocketAddr>,
}

impl ResolvedFleet {
    /// Resolves a `[fleet]` table. The error is of kind `Usage`, and names the options that contradict each other. Numbers
    /// are not checked against their bounds here.
    pub fn of(section: &FleetSection) -> Result<ResolvedFleet, StudyError> {
        let options = FleetOptions {
            nodes: section.nodes,
            node: section.node.clone(),
            workers_per_node: section.workers_per_node,
            machine: section.machine.clone(),
            join: section.join,
            wait: section.wait,
            listen: section.listen,
            proxmox: section.proxmox.clone(),
            disks_per_worker: section.disks_per_worker,
        };
        let placement = Placement::of(&options)?;
        Ok(ResolvedFleet {
            nodes: placement.nodes(),
            workers: placement.workers(),
            disks_per_worker: section.disks_per_worker,
            file_size: section.disk_size.unwrap_or(FILE_SIZE),
            listen: section.listen,
            placement,
        })
    }

    /// How many nodes there are; 0 if workers bring the names of theirs.
    pub fn node_count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// How many disks there are in all. Saturates.
    pub fn disks(&self) -> u32 {
        self.workers.saturating_mul(self.disks_per_worker)
    }

    /// Whether workers have the names that the plan gives them, so that it is known which one gets which disk.
    pub fn has_known_workers(&self) -> bool {
        self.placement.open_places().is_none()
    }

    /// Whether workers of the study are virtual machines that can be migrated.
    pub fn has_own_machines(&self, study: &Study) -> bool {
        let fleet = &study.fleet;
        let machines = fleet.machine.iter().chain(fleet.node.iter().filter_map(|node| node.machine.as_ref()));
        let has_machine = machines.into_iter().any(|machine| machine.libvirt.is_none());
        has_machine && self.has_known_workers()
    }

    /// What the fleet's controller is started with: with a random token, and without a folder for what workers print.
    pub fn spec(&self) -> FleetSpec {
        let mut spec = FleetSpec::new(self.placement.clone());
        match self.listen {
            Some(listen) => spec.listen = listen,
            None => spec.listen.set_port(self.placement.default_port()),
        }
        spec
    }
}
