//! The handle that a study holds.
//!
//! Its methods hand an operation to the controller's thread and wait for what it came to. One operation runs at a
//! time. Dropping the future of an operation ends the operation: all workers are told to stop, and the next
//! operation (or [`Fleet::stop`]) begins when they have, within seconds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use loadline_base::units::ByteSize;
use loadline_load::run::VerifyReport;
use loadline_load::{FileIdentity, Job};

use crate::error::FleetError;
use crate::event::EventSink;
use crate::outcome::{PerWorker, StepOutcome};
use crate::spec::{FleetSpec, WorkerId, WorkerInfo};

/// A fleet of workers, and the controller that they have joined.
#[derive(Debug)]
pub struct Fleet {}

impl Fleet {
    /// Listens, starts local workers, and waits until all are there. Dropping the future undoes all of it.
    pub async fn start(_spec: FleetSpec, _events: EventSink) -> Result<Fleet, FleetError> {
        Err(FleetError::failed("being written"))
    }

    /// All workers of the fleet in the order of their names, those included that are lost at the moment.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        Vec::new()
    }

    /// Where the controller listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// What a worker shows to be let in.
    pub fn token(&self) -> &str {
        ""
    }

    /// Brings back workers that were lost: local ones are started anew, joined ones are waited for, up to a limit
    /// and once for each loss. Says who is still missing. Every other operation begins with this for its workers.
    pub async fn ensure_workers(&mut self) -> Result<Vec<WorkerId>, FleetError> {
        Err(FleetError::failed("being written"))
    }

    /// Makes files of these sizes, sparse, on the workers' hosts, and says which files they are, in the order
    /// given. If one cannot be made, those that were made are removed, and it is an error.
    pub async fn make_files(
        &mut self,
        _files: &BTreeMap<WorkerId, Vec<(PathBuf, ByteSize)>>,
    ) -> Result<BTreeMap<WorkerId, Vec<FileIdentity>>, FleetError> {
        Err(FleetError::failed("being written"))
    }

    /// Removes files that [`make_files`](Self::make_files) made, if they are still those files.
    pub async fn remove_files(
        &mut self,
        _files: &BTreeMap<WorkerId, Vec<(PathBuf, FileIdentity)>>,
    ) -> Result<PerWorker<()>, FleetError> {
        Err(FleetError::failed("being written"))
    }

    /// Writes the working set of every disk of every job once. An error only if no worker could.
    pub async fn fill(&mut self, _jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<()>, FleetError> {
        Err(FleetError::failed("being written"))
    }

    /// Runs the jobs, all from one agreed instant. Their warm-up, window and cool-down must be the same. Workers
    /// that are lost on the way are in the outcome; an error only if no worker could begin.
    pub async fn measure(&mut self, _jobs: &BTreeMap<WorkerId, Job>) -> Result<StepOutcome, FleetError> {
        Err(FleetError::failed("being written"))
    }

    /// Reads and checks every block that the jobs' journals know. An error only if no worker could.
    pub async fn scan(&mut self, _jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<VerifyReport>, FleetError> {
        Err(FleetError::failed("being written"))
    }

    /// Says goodbye to the workers, waits for them up to a limit, kills local ones that are left, and removes the
    /// control groups. Dropping the fleet does the same, blocking for as long.
    pub async fn stop(self) {}
}
