//! Takes back what interrupted commands have left: volumes that were not made, and volumes that were not removed.
//!
//! A command that makes a volume writes a [`Plan`](crate::config::catalog::Plan) with its node. If the command does not run there any more,
//! that node takes the volume back. If the node's process has ended, another one does: the node has started again, was removed, or
//! has not shown for [`LEFT`] that it runs. A node shows that in the store ([`Maker`]), so that all nodes that use the store judge alike,
//! whatever they reach of each other. Only a node with such commands does, and only if they last for seconds. Taking back is one commit that expects the volume to
//! be as it was read, without a record, so either the volume was made or it is taken back. Clients have written nothing to a volume without a
//! record, unless the configuration was restored from an older copy. So a node removes the replicas of such a volume only if they were never
//! promised to an owner ([`Replica::unless_used`](crate::config::catalog::Replica::unless_used)).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use loadline_base::figures;

use super::manage::{Left, RemoveLeft, RemoveVolume, has_ended, is_of};
use super::{Node, NodeState};
use crate::config::ConfigError;
use crate::config::catalog::{Maker, Plan, VolumeState, change};

/// Between two checks.
const CHECKED: Duration = Duration::from_millis(300);
/// How often a node shows that it carries out commands.
const SHOWN: Duration = Duration::from_secs(2);
/// How long a volume, and what its maker shows, stay as they are before a node takes back what a command of another node has left.
pub(super) const LEFT: Duration = Duration::from_secs(10);
/// The same, if it is not known which node makes the volume. Such a command ends within this time.
const UNKNOWN: Duration = Duration::from_secs(120);
/// After a volume could not be taken back, it is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Volumes that a node remembers to have taken back.
const MOST_TAKEN_BACK: usize = 1000;
/// Names that a message lists.
const MOST_NAMED: usize = 5;

/// A volume that is not ready.
#[derive(Debug, Clone)]
struct Unfinished {
    id: u64,
    name: String,
    version: u64,
    state: VolumeState,
    /// Of the command that makes it.
    plan: Option<Plan>,
    /// The version of what its maker shows.
    shown: Option<u64>,
}

impl NodeState {
    /// This node has taken back a volume that another node was making: a command that still runs there gets the reason.
    fn remember_taken_back(&mut self, volume: u64) {
        if self.taken_back.len() == MOST_TAKEN_BACK {
            self.taken_back.pop_front();
        }
        self.taken_back.push_back(volume);
    }
}

impl Node {
    /// Goes on until the node ends.
    pub(super) async fn finish_for_ever(&self) {
        tokio::join!(self.show_for_ever(), self.take_back_for_ever());
    }

    /// Shows others that commands run here, as long as they do.
    async fn show_for_ever(&self) {
        loop {
            tokio::time::sleep(SHOWN).await;
            if !self.0.under_way.any() {
                continue;
            }
            let (id, maker) = (self.id(), Maker { incarnation: self.0.me.incarnation.0 });
            let shown = self.config().call(move |store| {
                let key = format!("maker/{id}");
                let version = store.get(&key)?.map(|stored| stored.version);
                store.commit(&[change(key, version, &maker)])
            });
            // Without the store, the command does not go on either.
            let _ = shown.await;
        }
    }

    async fn take_back_for_ever(&self) {
        let mut seen: BTreeMap<u64, ((u64, Option<u64>), Instant)> = BTreeMap::new();
        let mut tried: BTreeMap<u64, Instant> = BTreeMap::new();
        loop {
            tokio::time::sleep(CHECKED).await;
            let volumes = self.unfinished();
            seen.retain(|id, (was, _)| {
                volumes.iter().any(|of| of.id == *id && (of.version, of.shown) == *was)
            });
            tried.retain(|id, when| seen.contains_key(id) && when.elapsed() < AGAIN);
            let mut due = Vec::new();
            for volume in volumes {
                let (_, since) =
                    *seen.entry(volume.id).or_insert(((volume.version, volume.shown), Instant::now()));
                if !tried.contains_key(&volume.id) && self.is_left(&volume, since.elapsed()) {
                    tried.insert(volume.id, Instant::now());
                    due.push(volume);
                }
            }
            if !due.is_empty()
                && let Err(why) = self.take_back(&due).await
            {
                let names: Vec<&String> = due.iter().map(|volume| &volume.name).collect();
                let names = figures::listed(&names, MOST_NAMED);
                tracing::warn!(
                    "what is left of volumes cannot be removed ({names}): {why}; the node tries again"
                );
            }
        }
    }

    /// Removes volumes that are left, until the store fails.
    async fn take_back(&self, due: &[Unfinished]) -> Result<(), ConfigError> {
        let left: Vec<Left> = due.iter().map(|volume| (volume.id, self.silent(volume))).collect();
        let mut remove = RemoveLeft::new(left);
        let removed = self.config().in_steps(move |store| remove.step(store)).await?;
        self.reconcile_soon();
        let gone = |id: &u64| {
            for volume in due.iter().filter(|volume| volume.id == *id) {
                log_removed(volume);
                if self.silent(volume).is_some() {
                    self.state().remember_taken_back(*id);
                }
            }
        };
        removed.gone.iter().for_each(gone);
        for (id, silent) in removed.long {
            if self.remove_unfinished(id, silent).await? {
                gone(&id);
            }
        }
        Ok(())
    }

    fn unfinished(&self) -> Vec<Unfinished> {
        let state = self.state();
        if state.store.went_back() {
            return Vec::new();
        }
        let catalog = &state.catalog;
        let unfinished = catalog.volumes.iter().filter(|(_, (volume, _))| volume.state != VolumeState::Ready);
        let unfinished = unfinished.map(|(id, (volume, version))| Unfinished {
            id: *id,
            name: volume.name.clone(),
            version: *version,
            state: volume.state,
            plan: catalog.plans.get(id).map(|(plan, _)| plan.clone()),
            shown: catalog.plans.get(id).and_then(|(plan, _)| catalog.makers.get(&plan.node)).copied(),
        });
        unfinished.collect()
    }

    /// Whether no command will complete a volume that has been as it is for this time.
    fn is_left(&self, volume: &Unfinished, unchanged: Duration) -> bool {
        match (volume.state, &volume.plan) {
            (VolumeState::Ready, _) => false,
            (VolumeState::Deleting, _) => unchanged >= LEFT,
            (VolumeState::Creating, None) => unchanged >= UNKNOWN,
            (VolumeState::Creating, Some(plan)) if is_of(plan, self.0.me) => !self.0.under_way.has(volume.id),
            (VolumeState::Creating, Some(plan)) => {
                unchanged >= LEFT || has_ended(&self.state().catalog, plan)
            }
        }
    }

    /// The node of another process that makes a volume, and the version of what it has shown.
    fn silent(&self, volume: &Unfinished) -> Option<(u32, Option<u64>)> {
        let plan = volume.plan.as_ref().filter(|plan| !is_of(plan, self.0.me));
        plan.map(|plan| (plan.node, volume.shown)).filter(|_| volume.state == VolumeState::Creating)
    }

    /// Removes a volume that has no record, or that was being removed. Returns whether it is not there any more.
    /// If a node is given, only if what that node shows still has this version.
    pub(super) async fn remove_unfinished(
        &self,
        id: u64,
        silent: Option<(u32, Option<u64>)>,
    ) -> Result<bool, ConfigError> {
        let mut remove = RemoveVolume::left(id, silent);
        let removed = self.config().in_steps(move |store| remove.step(store)).await?;
        self.reconcile_soon();
        Ok(removed)
    }
}

fn log_removed(volume: &Unfinished) {
    let name = &volume.name;
    match volume.state {
        VolumeState::Deleting => {
            tracing::info!(volume = name, "the interrupted deletion of volume {name} was completed");
        }
        _ => tracing::warn!(
            volume = name,
            "volume {name} was not made, since the command that made it was interrupted: what was made of it is removed"
        ),
    }
}
