//! What may be done to workers in the middle of a step: they are killed as if their host were gone, and started again.
//!
//! A worker that is killed so is not lost: what it measured stays, its successor goes on in its place, under its name, and
//! the records of both are one worker's. What the killed process had not sent yet, its last second or so, is in no figure.

use std::collections::{BTreeMap, BTreeSet};

use loadline_load::Job;
use tokio::sync::{mpsc, oneshot};

use crate::identity::WorkerId;

/// An order about workers that measure. It affects only workers that the fleet launches.
#[derive(Debug)]
pub enum MidStepOrder {
    /// The host of these workers is gone: their processes are killed. The channel gets a message when they have ended.
    Kill(BTreeSet<WorkerId>, oneshot::Sender<()>),
    /// Killed workers are started again, each with this job: the same phases, perhaps other disks.
    Start(BTreeMap<WorkerId, Job>),
}

/// What may be done to workers in a step.
#[derive(Debug)]
pub struct MidStepChanges {
    /// Workers that may be killed: no other worker watches its host for the others while these can.
    pub may_go: BTreeSet<WorkerId>,
    /// The orders, each carried out when it arrives.
    pub orders: mpsc::Receiver<MidStepOrder>,
}
