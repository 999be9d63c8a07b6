//! A fleet of workers that a person or another program starts elsewhere, with `loadline worker --join HOST:PORT --token TOKEN`.

use std::net::SocketAddr;

use loadline_base::units::TimeSpan;

use super::{CpuShare, FleetKind, FleetOptions, Launcher, OpenPlaces};
use crate::error::FleetError;
use crate::identity::WorkerInfo;

/// The longest time that a fleet waits for its workers to join.
pub const LONGEST_WAIT: TimeSpan = TimeSpan::seconds(7 * 86_400);
/// How long a fleet waits for its workers to join if the study does not say.
pub const DEFAULT_WAIT: TimeSpan = TimeSpan::seconds(300);
/// Where workers join if the study does not say: the person who starts them must know the port beforehand.
const DEFAULT_PORT: u16 = 7400;

/// Workers that join. They bring their own names and those of their nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct JoiningWorkers {
    /// How many. At least 1.
    pub workers: u32,
    /// How long the controller waits at its start until all have joined; at most [`LONGEST_WAIT`].
    pub wait: TimeSpan,
}

impl FleetKind for JoiningWorkers {
    fn from_options(options: &FleetOptions) -> Result<Option<JoiningWorkers>, FleetError> {
        let Some(workers) = options.join else { return Ok(None) };
        if options.nodes.is_some() || !options.node.is_empty() {
            return Err(FleetError::usage(
                "[fleet] says both nodes and join: workers are either started here, or join",
            ));
        }
        if options.machine.is_some() {
            return Err(FleetError::usage(
                "[fleet] says both machine and join: workers that join are started elsewhere, as what they are",
            ));
        }
        if options.wait == Some(TimeSpan::ZERO) {
            return Err(FleetError::usage(
                "[fleet] wait = \"0s\": no worker can join within 0 s; give a time such as \"5m\"",
            ));
        }
        Ok(Some(JoiningWorkers { workers, wait: options.wait.unwrap_or(DEFAULT_WAIT) }))
    }

    fn validate(&self) -> Result<(), FleetError> {
        if self.wait > LONGEST_WAIT {
            return Err(FleetError::usage(format!(
                "waiting {} for workers is too long: at most {LONGEST_WAIT} is possible",
                self.wait
            )));
        }
        Ok(())
    }

    fn workers(&self) -> u32 {
        self.workers
    }

    fn nodes(&self) -> Vec<String> {
        Vec::new()
    }

    fn summary(&self) -> String {
        match self.workers {
            1 => "1 worker that joins".into(),
            more => format!("{more} workers that join"),
        }
    }

    fn runs_here(&self) -> bool {
        false
    }

    fn cpu_share<'a>(&'a self, worker: &'a WorkerInfo) -> CpuShare<'a> {
        // Each worker was bound to CPUs, or not, by the person who started it; equal names of nodes mean nothing.
        CpuShare { name: &worker.id.0, limit: None }
    }

    fn listen_on(&self, wanted: SocketAddr) -> SocketAddr {
        wanted
    }

    fn default_port(&self) -> u16 {
        DEFAULT_PORT
    }

    fn open_places(&self) -> Option<OpenPlaces> {
        Some(OpenPlaces { workers: self.workers, wait: self.wait })
    }
}

/// Launches nothing.
pub(crate) struct JoiningLauncher;

impl JoiningLauncher {
    pub(crate) fn new(_fleet: &JoiningWorkers) -> JoiningLauncher {
        JoiningLauncher
    }
}

impl Launcher for JoiningLauncher {}
