//! What may be done to workers in the middle of a step: they are killed as if their host were gone, and started again.
//!
//! A worker that is killed so is not lost: what it measured stays, its successor goes on in its place, under its name, and
//! the records of both are one worker's. What the killed process had not sent yet, its last second or so, is in no figure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use loadline_guest::Migrated;
use loadline_load::Job;
use tokio::sync::{mpsc, oneshot};

use crate::identity::WorkerId;
use crate::orders::{Migration, NotMigrated};

/// An order about workers that measure. It affects only workers that the fleet launches.
#[derive(Debug)]
pub enum MidStepOrder {
    /// The host of these workers is gone: their processes are killed. The channel gets a message when they have ended: an error
    /// if they did not end in this manner, and were killed.
    Kill(BTreeSet<WorkerId>, Manner, oneshot::Sender<Result<(), String>>),
    /// The machines that these workers are stand still for so long, and go on. The channel gets a message when that is ordered, or why it
    /// cannot be.
    Pause(BTreeSet<WorkerId>, Duration, oneshot::Sender<Result<(), String>>),
    /// The machine that a worker is is migrated. The channel gets what that was, or why it was not.
    Migrate(WorkerId, Migration, oneshot::Sender<Result<Migrated, NotMigrated>>),
    /// Killed workers are started again, each as its restart says.
    Start(BTreeMap<WorkerId, Restart>),
}

/// How a worker is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Its process ends at once.
    Kill,
    /// The kernel of the machine that it is crashes. If that does not end it, its process is killed.
    Crash,
}

/// How a killed worker is started again.
#[derive(Debug, Clone)]
pub struct Restart {
    /// What it does: the same phases as before, perhaps other disks.
    pub job: Job,
    /// The node on whose host it runs from now on; `None`: where it ran before.
    pub node: Option<String>,
}

/// What may be done to workers in a step.
#[derive(Debug)]
pub struct MidStepChanges {
    /// Workers that may be killed: no other worker watches its host for the others while these can.
    pub may_go: BTreeSet<WorkerId>,
    /// The orders, each carried out when it arrives.
    pub orders: mpsc::Receiver<MidStepOrder>,
}
