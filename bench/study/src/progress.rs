//! What is to be seen while a study runs.

use std::net::SocketAddr;
use std::time::Duration;

use loadline_fleet::{FleetEvent, LiveSecond};
use loadline_measure::interval::Phase;
use loadline_target::ApiAddress;

use crate::file::Phases;
use crate::folder::result::StepResult;
use crate::plan::Plan;
use crate::planned_step::Step;

/// Something to show.
#[derive(Debug)]
pub enum Update<'a> {
    /// The run begins, or goes on with so many steps complete.
    Begin {
        /// The plan.
        plan: &'a Plan,
        /// How long each part of a step is.
        phases: &'a Phases,
        /// Steps that are complete.
        complete: usize,
    },
    /// Workers must join before anything goes on.
    Waiting {
        /// The address at which the controller accepts workers.
        listen: SocketAddr,
        /// What they show to be let in.
        token: &'a str,
        /// The number of workers that must join.
        workers: u32,
    },
    /// Workers came, were lost, are back.
    Fleet(&'a FleetEvent),
    /// Disks are written once: bytes done, and in all.
    Fill(u64, u64),
    /// Disks are read and checked: bytes done, and in all.
    Scan(u64, u64),
    /// A step is warmed up for until its load is steady.
    WarmingUp {
        /// The step that is warmed up for.
        step: &'a Step,
        /// How long it may last.
        limit: Duration,
    },
    /// A step begins.
    StepBegan {
        /// The step that begins.
        step: &'a Step,
        /// The number of steps that are planned.
        of: usize,
    },
    /// A phase of the step begins.
    Phase(Phase),
    /// A second of the fleet.
    Second(&'a LiveSecond),
    /// A step is complete.
    StepComplete(&'a StepResult),
    /// Something that a person should know, in one sentence.
    Notice(&'a str),
    /// The cluster that the run has started for itself runs. These are the addresses of its nodes' APIs, which need no access.
    ClusterRuns(&'a [ApiAddress]),
    /// The run stops the nodes of that cluster now.
    ClusterEnds,
}

/// Shows it. Called from several threads, one at a time.
pub trait Progress: Send {
    /// Shows what is new.
    fn update(&mut self, update: Update<'_>);
}

/// Shows nothing.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn update(&mut self, _: Update<'_>) {}
}
