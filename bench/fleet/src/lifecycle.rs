//! How the workers of a fleet come, come back, and go.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::cgroup::NodeGroups;
use crate::controller::{Controller, Happening, Local};
use crate::error::FleetError;
use crate::process::{Launch, LocalWorker};
use crate::spec::{FleetSpec, Placement, WorkerId};
use crate::token::random_token;
use crate::wire::ToWorker;

/// How long a process that was started may take to join: 64 at once on two cores take a second or two.
pub(crate) const LOCAL_JOIN_LIMIT: Duration = Duration::from_secs(30);
/// How long a joined worker that was lost is waited for, once for each loss.
const REJOIN_LIMIT: Duration = Duration::from_secs(15);
/// How long workers may take to leave when told to: longer than they wait for their I/O.
const LEAVE_LIMIT: Duration = Duration::from_secs(4);
/// How long killed processes may take to be gone, all together.
const REAP_LIMIT: Duration = Duration::from_secs(2);
/// How often processes that have not joined yet are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Controller {
    /// Starts local workers or waits for others, until all are there.
    pub(crate) async fn gather(&mut self, spec: &FleetSpec) -> Result<(), FleetError> {
        match &spec.placement {
            Placement::Processes { nodes, workers_per_node } => {
                let prefix = format!("loadline-{}-{}", std::process::id(), &random_token()?[..8]);
                for node in nodes {
                    let groups = NodeGroups::make(node, &prefix)?;
                    for i in 0..*workers_per_node {
                        let id = WorkerId(format!("{}/{i}", node.name));
                        let launch = Launch {
                            program: spec.program.clone(),
                            id: id.clone(),
                            node: node.clone(),
                            cgroups: groups.folders().to_vec(),
                            controller: self.address,
                            token: self.token.clone(),
                            log_dir: spec.worker_log_dir.clone(),
                        };
                        let local = Some(Local { launch, process: None });
                        self.add_member(id, node.name.clone(), local);
                    }
                    self.groups.push(groups);
                }
                let all: BTreeSet<WorkerId> = self.members.keys().cloned().collect();
                self.bring_back(&all).await?;
                match self.members.values().find(|m| m.link.is_none()) {
                    None => Ok(()),
                    Some(missing) => {
                        let id = &missing.info.id;
                        let message = format!("worker {id} could not be started: {}", missing.absent);
                        Err(match missing.misasked {
                            true => FleetError::usage(message),
                            false => FleetError::failed(message),
                        })
                    }
                }
            }
            Placement::Joined { workers, wait } => {
                let deadline = Instant::now() + wait.0;
                loop {
                    let here = self.members.values().filter(|m| m.link.is_some()).count();
                    if here == *workers as usize {
                        return Ok(());
                    }
                    match self.next(deadline).await {
                        Happening::Cancelled => return Err(FleetError::interrupted()),
                        // Nothing was given to it yet, so another may take its place.
                        Happening::Lost(id, _) => drop(self.members.remove(&id)),
                        Happening::Tick => {
                            return Err(FleetError::failed(format!(
                                "{here} of {workers} workers joined within {wait}; start the others, where the \
                                 storage is used, with: loadline worker --join {} --token TOKEN",
                                self.dialled()
                            )));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Brings back those of these workers that are not there: local ones are started anew, others are waited for.
    /// Who is still not there has a reason in [`Controller::absent`].
    pub(crate) async fn bring_back(&mut self, wanted: &BTreeSet<WorkerId>) -> Result<(), FleetError> {
        let mut waiting = BTreeSet::new();
        let mut limit = Duration::ZERO;
        // What is left of those that were lost.
        let gone = wanted.iter().filter(|id| self.absent(id).is_some()).cloned().collect();
        self.retire(&gone).await;
        for id in wanted {
            let Some(member) = self.members.get_mut(id).filter(|m| m.link.is_none()) else { continue };
            match &mut member.local {
                Some(local) => match local.launch.start() {
                    Ok(process) => {
                        local.process = Some(process);
                        waiting.insert(id.clone());
                        limit = limit.max(LOCAL_JOIN_LIMIT);
                    }
                    Err(error) => member.absent = error.message,
                },
                None if !member.waited => {
                    member.waited = true;
                    waiting.insert(id.clone());
                    limit = limit.max(REJOIN_LIMIT);
                }
                None => {}
            }
        }
        let deadline = Instant::now() + limit;
        while !waiting.is_empty() && Instant::now() < deadline {
            match self.next(deadline.min(Instant::now() + LOOK_EVERY)).await {
                Happening::Joined(id) => drop(waiting.remove(&id)),
                Happening::Cancelled => return Err(FleetError::interrupted()),
                Happening::Tick => {
                    for id in waiting.clone() {
                        if self.note_early_end(&id).await {
                            waiting.remove(&id);
                        }
                    }
                }
                Happening::Reply { .. } | Happening::Lost(..) | Happening::Midway(_) => {}
            }
        }
        for id in waiting {
            if let Some(member) = self.members.get_mut(&id).filter(|m| m.local.is_some()) {
                member.absent = format!("it did not join within {LOCAL_JOIN_LIMIT:?} of its start");
            }
        }
        Ok(())
    }

    /// Whether a process has ended before it joined; then that is why it is not there.
    pub(crate) async fn note_early_end(&mut self, id: &WorkerId) -> bool {
        let Some(member) = self.members.get_mut(id) else { return true };
        let Some(process) = member.local.as_mut().and_then(|l| l.process.as_mut()) else { return false };
        let Some(obituary) = process.ended().await else { return false };
        (member.absent, member.misasked) = (obituary.message, obituary.usage);
        true
    }

    /// The controller's address, as a worker elsewhere dials it.
    fn dialled(&self) -> String {
        match self.address.ip().is_unspecified() {
            true => format!("HOST:{}", self.address.port()),
            false => self.address.to_string(),
        }
    }

    /// Ends workers that are of no more use: their connections, and their processes if they are ours.
    pub(crate) async fn retire(&mut self, workers: &BTreeSet<WorkerId>) {
        let mut processes = Vec::new();
        for id in workers {
            let Some(member) = self.members.get_mut(id) else { continue };
            if let Some(link) = member.link.take() {
                self.links.remove(&link.number);
                member.absent = "it was given up".into();
            }
            processes.extend(member.local.as_mut().and_then(|local| local.process.take()));
        }
        bury(processes).await;
    }

    /// Says goodbye, waits, kills what is left, removes the control groups.
    pub(crate) async fn shut_down(&mut self) {
        (self.leaving, self.alive) = (true, None);
        let deadline = Instant::now() + LEAVE_LIMIT;
        for id in self.ids() {
            self.say(&id, ToWorker::Bye);
        }
        // Connections are served until they end: a worker that still has much to say must be heard to hear us.
        while !self.links.is_empty() && Instant::now() < deadline {
            self.next(deadline).await;
        }
        let members = self.members.values_mut();
        let mut processes: Vec<LocalWorker> =
            members.filter_map(|m| m.local.as_mut().and_then(|l| l.process.take())).collect();
        for process in &mut processes {
            process.wait(deadline.duration_since(Instant::now())).await;
        }
        bury(processes).await;
        for groups in self.groups.drain(..) {
            groups.remove().await;
        }
        self.events.flush().await;
    }
}

/// Kills processes and waits until they are gone, up to a limit for all together: one whose I/O hangs in the kernel
/// is left to the kernel.
async fn bury(mut processes: Vec<LocalWorker>) {
    processes.iter_mut().for_each(LocalWorker::kill);
    let deadline = Instant::now() + REAP_LIMIT;
    for process in &mut processes {
        process.wait(deadline.duration_since(Instant::now())).await;
    }
}
