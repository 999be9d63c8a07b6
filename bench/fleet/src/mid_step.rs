//! What may be done to workers in the middle of a step: they are killed as if their host were gone, and started again.
//!
//! A worker that is killed so is not lost: what it measured stays, its successor goes on in its place, under its name, and
//! the records of both are one worker's. What the killed process had not sent yet, its last second or so, is in no figure.

use std::collections::{BTreeMap, BTreeSet};

use loadline_load::Job;
use tokio::sync::{mpsc, oneshot};

use crate::identity::WorkerId;

/// What is done to workers that measure. Only processes that the fleet has started can be killed.
#[derive(Debug)]
pub enum MidStepOrder {
    /// The host of these is gone: their processes are killed. It is told when they are.
    Kill(BTreeSet<WorkerId>, oneshot::Sender<()>),
    /// Those that were killed are started again, each with what it is to do now: phases as before, other disks perhaps.
    Start(BTreeMap<WorkerId, Job>),
}

/// What may be done to workers in a step.
#[derive(Debug)]
pub struct MidStepChanges {
    /// Workers that may be killed: nobody else's figures must depend on them.
    pub may_go: BTreeSet<WorkerId>,
    /// What is done, when it comes.
    pub orders: mpsc::Receiver<MidStepOrder>,
}
