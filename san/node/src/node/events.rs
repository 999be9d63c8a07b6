//! What loops report, and what the node does about it.

use std::time::{Duration, Instant};

use crate::event_loop::command::{LoopEvent, NotOpened};

use super::Node;

impl Node {
    /// Carries out what the loops request.
    pub(super) async fn handle_events(
        &self,
        mut reports: tokio::sync::mpsc::UnboundedReceiver<(u32, LoopEvent)>,
    ) {
        while let Some((number, report)) = reports.recv().await {
            *self.state().events.entry(number).or_default() += 1;
            match report {
                LoopEvent::ReadRecord(volume, asked_at) => {
                    self.0.config.read_record(volume, asked_at, self.loop_of(volume.0).clone());
                }
                LoopEvent::QueryNodes(nodes, within_ns) => {
                    self.ask_whether_they_run(&nodes, Duration::from_nanos(within_ns));
                }
                LoopEvent::Prove(node, connection) => self.prove_for_loop(number, node, connection),
                LoopEvent::Propose(volume, record, replaces) => {
                    self.0.config.propose(volume, record, replaces, self.loop_of(volume.0).clone());
                }
                LoopEvent::Attached(volume) => {
                    self.state().attached.insert(volume.0);
                    self.open_volume_sockets(volume.0, self.socket_here(volume.0));
                }
                LoopEvent::Detached(volume) => {
                    self.state().attached.remove(&volume.0);
                    self.volume_sockets();
                }
                LoopEvent::WaitingStarted(volume, number) => self.waiting_started(volume.0, number),
                LoopEvent::WaitingLetIn(volume, number) => self.waiting_let_in(volume.0, number),
                LoopEvent::WaitingGone(volume, number) => self.waiting_gone(volume.0, number),
                LoopEvent::UnitWanted(volume, number) => self.unit_wanted(volume.0, number),
                LoopEvent::UnitUnserved(volume, some) => self.unserved(volume.0, some),
                LoopEvent::UnitChange(volume, client, ticket, change) => {
                    self.unit_change(volume.0, client, ticket, *change);
                }
                LoopEvent::Blocked(volume, why) => self.log_blocked(volume.0, why.as_deref()),
                LoopEvent::CommandDone(number, result) => {
                    if let Some(waits) = self.state().pending_commands.remove(&number) {
                        let _ = waits.send(result);
                    }
                }
                LoopEvent::Opened(replica, Err(NotOpened { why, failed })) => {
                    let mut state = self.state();
                    // It is tried again, later.
                    state.replicas.remove(&replica.0);
                    let before = state.unopened.insert(replica.0, (Instant::now(), why.clone(), failed));
                    drop(state);
                    if before.is_none_or(|(_, before, _)| before != why) {
                        tracing::warn!(
                            replica = replica.0,
                            "{} is not opened: {why}",
                            self.name_replica(replica.0)
                        );
                    }
                    self.reconcile_soon();
                }
                LoopEvent::Opened(replica, Ok(())) => {
                    {
                        let mut state = self.state();
                        state.unopened.remove(&replica.0);
                        state.opened.insert(replica.0, None);
                    }
                    self.reconcile_soon();
                }
                LoopEvent::Unusable(replica, unusable) => {
                    if let Some(unusable) = &unusable {
                        let (copy, state) = (self.name_replica(replica.0), unusable.state());
                        tracing::warn!(
                            replica = replica.0,
                            "{copy} is {state}, so this node does not use it: {}",
                            unusable.why()
                        );
                    }
                    self.state().opened.insert(replica.0, unusable);
                    self.reconcile_soon();
                }
                LoopEvent::CacheGivenBack(replica) => self.cache_given_back(replica.0),
                LoopEvent::Closed(replica) => {
                    if let Some(waits) = self.state().closing.remove(&replica.0) {
                        let _ = waits.send(());
                    }
                }
                LoopEvent::State(state) => {
                    let mut known = self.state();
                    known.loops[number as usize] = *state;
                    known
                        .state_requests
                        .remove(&number)
                        .into_iter()
                        .flatten()
                        .for_each(|waits| _ = waits.send(()));
                }
                LoopEvent::Ended => return,
            }
            self.0.happened.notify_waiters();
        }
    }

    /// One line when a volume becomes blocked, and one when it is not any more.
    fn log_blocked(&self, id: u64, why: Option<&str>) {
        let name = self.state().catalog.volumes.get(&id).map(|(volume, _)| volume.name.clone());
        let name = name.unwrap_or_else(|| format!("with id {id}"));
        match why {
            Some(why) => tracing::error!(
                volume = name,
                "volume {name} is blocked: {why}. Put the newer configuration back, or choose the copy to continue with: 'loadline volume show {name}' shows the state of each copy"
            ),
            None => tracing::info!(volume = name, "volume {name} is not blocked any more"),
        }
    }
}
