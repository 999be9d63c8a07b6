//! What a run asks of its workers. A fleet does it; so does a stand-in, in tests of crashes and resumes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use loadline_base::units::ByteSize;
use loadline_fleet::{
    Fleet, FleetError, MidStepChanges, NetworkPath, NetworkPathSpeed, PerWorker, StepOutcome, WorkerId,
    WorkerInfo,
};
use loadline_load::VerifyReport;
use loadline_load::{FileIdentity, Job};

use crate::error::StudyError;

/// The operations of a fleet that a run uses. Each method does what the method of [`Fleet`] with the same name does, with the same errors;
/// `measure` does what [`Fleet::measure_through`] does.
pub(crate) trait Workers {
    fn workers(&self) -> Vec<WorkerInfo>;
    async fn place(&mut self, places: &BTreeMap<WorkerId, String>) -> Result<(), FleetError>;
    async fn make_files(
        &mut self,
        files: &BTreeMap<WorkerId, Vec<(PathBuf, ByteSize)>>,
    ) -> Result<BTreeMap<WorkerId, Vec<FileIdentity>>, FleetError>;
    async fn remove_files(
        &mut self,
        files: &BTreeMap<WorkerId, Vec<(PathBuf, FileIdentity)>>,
    ) -> Result<PerWorker<()>, FleetError>;
    async fn fill(&mut self, jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<()>, FleetError>;
    async fn measure(
        &mut self,
        jobs: &BTreeMap<WorkerId, Job>,
        changes: Option<MidStepChanges>,
    ) -> Result<StepOutcome, FleetError>;
    async fn scan(&mut self, jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<VerifyReport>, FleetError>;
    async fn measure_path(
        &mut self,
        link: &NetworkPath,
    ) -> Result<Result<NetworkPathSpeed, String>, FleetError>;
}

impl Workers for Fleet {
    fn workers(&self) -> Vec<WorkerInfo> {
        Fleet::workers(self)
    }

    async fn place(&mut self, places: &BTreeMap<WorkerId, String>) -> Result<(), FleetError> {
        Fleet::place(self, places).await
    }

    async fn make_files(
        &mut self,
        files: &BTreeMap<WorkerId, Vec<(PathBuf, ByteSize)>>,
    ) -> Result<BTreeMap<WorkerId, Vec<FileIdentity>>, FleetError> {
        Fleet::make_files(self, files).await
    }

    async fn remove_files(
        &mut self,
        files: &BTreeMap<WorkerId, Vec<(PathBuf, FileIdentity)>>,
    ) -> Result<PerWorker<()>, FleetError> {
        Fleet::remove_files(self, files).await
    }

    async fn fill(&mut self, jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<()>, FleetError> {
        Fleet::fill(self, jobs).await
    }

    async fn measure(
        &mut self,
        jobs: &BTreeMap<WorkerId, Job>,
        changes: Option<MidStepChanges>,
    ) -> Result<StepOutcome, FleetError> {
        Fleet::measure_through(self, jobs, changes).await
    }

    async fn scan(&mut self, jobs: &BTreeMap<WorkerId, Job>) -> Result<PerWorker<VerifyReport>, FleetError> {
        Fleet::scan(self, jobs).await
    }

    async fn measure_path(
        &mut self,
        link: &NetworkPath,
    ) -> Result<Result<NetworkPathSpeed, String>, FleetError> {
        Fleet::measure_path(self, link).await
    }
}

impl From<FleetError> for StudyError {
    fn from(error: FleetError) -> StudyError {
        StudyError { kind: error.kind, message: error.message }
    }
}
