//! The lifecycle of the workers: launched or joined, brought back after a loss, ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use loadline_base::figures::counted;
use tokio::time::Instant;

use crate::controller::{Controller, ControllerEvent};
use crate::error::FleetError;
use crate::identity::WorkerId;
use crate::launcher::{Launcher, OpenPlaces};
use crate::spec::FleetSpec;
use crate::wire::ToWorker;

/// How long a joined worker that was lost is waited for, once for each loss.
const REJOIN_LIMIT: Duration = Duration::from_secs(15);
/// How long workers may take to end when they are dismissed: longer than they wait for their I/O.
const LEAVE_LIMIT: Duration = Duration::from_secs(4);
/// How often it is checked whether a worker has ended that was launched and has not joined yet.
const POLL_EVERY: Duration = Duration::from_millis(50);

impl Controller {
    /// Launches workers and waits for those that join, until all are there.
    pub(crate) async fn gather(&mut self, spec: &FleetSpec) -> Result<(), FleetError> {
        self.prepare_launcher(spec).await?;
        let launched = self.ids();
        self.bring_back(&launched).await?;
        let is_there = self.members.values().any(|m| m.connection.is_some());
        let missing = self.members.values().find(|m| m.connection.is_none());
        if let Some(missing) = missing.filter(|_| !spec.goes_on_without || !is_there) {
            let message = format!("worker {} could not be started: {}", missing.info.id, missing.absent);
            return Err(match missing.misasked {
                true => FleetError::usage(message),
                false => FleetError::failed(message),
            });
        }
        match self.open_places {
            Some(places) => self.fill_places(places).await,
            None => Ok(()),
        }
    }

    /// Waits until workers that are started elsewhere have taken all open places.
    async fn fill_places(&mut self, OpenPlaces { workers, wait }: OpenPlaces) -> Result<(), FleetError> {
        let deadline = Instant::now() + wait.0;
        loop {
            let joined = self.members.values().filter(|m| !m.is_launched && m.connection.is_some()).count();
            if joined == workers as usize {
                return Ok(());
            }
            match self.next(deadline).await {
                ControllerEvent::Cancelled => return Err(FleetError::interrupted()),
                ControllerEvent::Lost(id, _) if self.members.get(&id).is_some_and(|m| !m.is_launched) => {
                    // Nothing was given to it yet, so another may take its place.
                    self.members.remove(&id);
                }
                ControllerEvent::Tick => {
                    return Err(FleetError::failed(format!(
                        "{joined} of {} joined within {wait}; start the others, where the \
                         storage is used, with: loadline worker --join {} --token TOKEN",
                        counted(workers.into(), "worker"),
                        self.dialled()
                    )));
                }
                _ => {}
            }
        }
    }

    /// Brings back those of these workers that are not there: launched ones are launched again, others are waited for.
    /// For those that are still not there, [`Controller::absent`] returns the reason.
    pub(crate) async fn bring_back(&mut self, wanted: &BTreeSet<WorkerId>) -> Result<(), FleetError> {
        let mut waiting = BTreeSet::new();
        let mut limit = Duration::ZERO;
        // What is left of those that were lost.
        let gone = wanted.iter().filter(|id| self.absent(id).is_some()).cloned().collect();
        self.retire(&gone).await;
        for id in wanted {
            let Some(member) = self.members.get_mut(id).filter(|m| m.connection.is_none()) else { continue };
            if member.is_launched {
                match self.launcher.launch(id).await {
                    Ok(joins_within) => {
                        waiting.insert(id.clone());
                        limit = limit.max(joins_within);
                        member.absent = format!("it did not join within {joins_within:?} of its start");
                    }
                    Err(error) => member.absent = error.message,
                }
            } else if !member.waited {
                member.waited = true;
                waiting.insert(id.clone());
                limit = limit.max(REJOIN_LIMIT);
            }
        }
        let deadline = Instant::now() + limit;
        while !waiting.is_empty() && Instant::now() < deadline {
            match self.next(deadline.min(Instant::now() + POLL_EVERY)).await {
                ControllerEvent::Joined(id) => drop(waiting.remove(&id)),
                ControllerEvent::Cancelled => return Err(FleetError::interrupted()),
                ControllerEvent::Tick => {
                    for id in waiting.clone() {
                        if self.note_early_end(&id).await {
                            waiting.remove(&id);
                        }
                    }
                }
                ControllerEvent::Reply { .. } | ControllerEvent::Lost(..) | ControllerEvent::MidStep(_) => {}
            }
        }
        Ok(())
    }

    /// Has workers run on the hosts of these nodes: those that run elsewhere are ended, and brought back there.
    pub(crate) async fn place(&mut self, places: BTreeMap<WorkerId, String>) -> Result<(), FleetError> {
        let is_elsewhere =
            |id: &WorkerId, node: &str| self.launcher.place_of(id).is_some_and(|at| at != node);
        let moved: Vec<_> = places.into_iter().filter(|(id, node)| is_elsewhere(id, node)).collect();
        let ids: BTreeSet<WorkerId> = moved.iter().map(|(id, _)| id.clone()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        self.retire(&ids).await;
        for (id, node) in &moved {
            self.launcher.place(id, node)?;
        }
        self.bring_back(&ids).await
    }

    /// Whether a launched worker has ended before it joined; then its exit becomes the reason of its absence.
    pub(crate) async fn note_early_end(&mut self, id: &WorkerId) -> bool {
        let Some(member) = self.members.get_mut(id) else { return true };
        let Some(exit) = self.launcher.exit_of(id).await else { return false };
        (member.absent, member.misasked) = (exit.message, exit.usage);
        true
    }

    /// The controller's address, as a worker elsewhere dials it.
    fn dialled(&self) -> String {
        match self.address.ip().is_unspecified() {
            true => format!("HOST:{}", self.address.port()),
            false => self.address.to_string(),
        }
    }

    /// Ends workers that are of no more use: their connections, and themselves if they were launched.
    pub(crate) async fn retire(&mut self, workers: &BTreeSet<WorkerId>) {
        for id in workers {
            let Some(member) = self.members.get_mut(id) else { continue };
            if let Some(connection) = member.connection.take() {
                self.connections.remove(&connection.number);
                member.absent = "it was given up".into();
            }
        }
        self.launcher.end(workers).await;
    }

    /// Dismisses all workers, waits, ends those that are left, and removes what was made on their hosts.
    pub(crate) async fn shut_down(&mut self) {
        (self.leaving, self.alive) = (true, None);
        let deadline = Instant::now() + LEAVE_LIMIT;
        for id in self.ids() {
            self.send(&id, ToWorker::Bye);
        }
        // Connections are served until they end: a worker that still has much to send reads the dismissal only after that.
        while !self.connections.is_empty() && Instant::now() < deadline {
            self.next(deadline).await;
        }
        self.end_launcher(deadline).await;
        self.events.flush().await;
    }
}
