//! Takes back what interrupted commands have left: volumes that were not made, and volumes that were not removed.
//!
//! A command that makes a volume writes a [`Plan`](crate::config::catalog::Plan) with its node. If the command does not run there any more,
//! that node takes the volume back. If the node does not answer, another one does. Taking back is one commit that expects the volume to
//! be as it was read, without a record, so either the volume was made or it is taken back. Clients have written nothing to a volume without a
//! record, unless the configuration was restored from an older copy. So a node removes the replicas of such a volume only if they were never
//! promised to an owner ([`Replica::unless_used`](crate::config::catalog::Replica::unless_used)).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::Node;
use super::manage::RemoveVolume;
use crate::config::ConfigError;
use crate::config::catalog::VolumeState;

/// Between two checks.
const CHECKED: Duration = Duration::from_millis(300);
/// How long a volume stays as it is before a node takes back what a command of another node has left.
pub(super) const LEFT: Duration = Duration::from_secs(10);
/// The same, if it is not known which node makes the volume. Such a command ends within this time.
const UNKNOWN: Duration = Duration::from_secs(120);
/// After a volume could not be taken back, it is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// A volume that is not ready.
#[derive(Debug, Clone)]
struct Unfinished {
    id: u64,
    name: String,
    version: u64,
    state: VolumeState,
    /// The node that makes it.
    maker: Option<u32>,
}

impl Node {
    /// Goes on until the node ends.
    pub(super) async fn finish_for_ever(&self) {
        let mut seen: BTreeMap<u64, (u64, Instant)> = BTreeMap::new();
        let mut tried: BTreeMap<u64, Instant> = BTreeMap::new();
        loop {
            tokio::time::sleep(CHECKED).await;
            let volumes = self.unfinished();
            seen.retain(|id, (version, _)| volumes.iter().any(|of| of.id == *id && of.version == *version));
            tried.retain(|id, when| seen.contains_key(id) && when.elapsed() < AGAIN);
            for volume in volumes {
                let (_, since) = *seen.entry(volume.id).or_insert((volume.version, Instant::now()));
                if tried.contains_key(&volume.id) || !self.is_left(&volume, since.elapsed()).await {
                    continue;
                }
                tried.insert(volume.id, Instant::now());
                let name = &volume.name;
                match (self.remove_unfinished(volume.id).await, volume.state) {
                    (Ok(false), _) => {}
                    (Ok(true), VolumeState::Deleting) => {
                        tracing::info!(
                            volume = name,
                            "the interrupted deletion of volume {name} was completed"
                        );
                    }
                    (Ok(true), _) => tracing::warn!(
                        volume = name,
                        "volume {name} was not made, since the command that made it was interrupted: what was made of it is removed"
                    ),
                    (Err(why), _) => {
                        tracing::warn!(
                            volume = name,
                            "what is left of volume {name} cannot be removed: {why}; the node tries again"
                        );
                    }
                }
            }
        }
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
            maker: catalog.plans.get(id).map(|(plan, _)| plan.node),
        });
        unfinished.collect()
    }

    /// Whether no command will complete a volume that has been as it is for this time.
    async fn is_left(&self, volume: &Unfinished, unchanged: Duration) -> bool {
        match (volume.state, volume.maker) {
            (VolumeState::Ready, _) => false,
            (VolumeState::Deleting, _) => unchanged >= LEFT,
            (VolumeState::Creating, None) => unchanged >= UNKNOWN,
            (VolumeState::Creating, Some(maker)) if maker == self.id() => !self.0.under_way.has(volume.id),
            (VolumeState::Creating, Some(maker)) if unchanged >= LEFT => {
                let there = self.state().catalog.nodes.get(&maker).map(|(node, _)| node.peer);
                match there {
                    Some(address) => !self.answers(address).await,
                    None => true,
                }
            }
            (VolumeState::Creating, Some(_)) => false,
        }
    }

    /// Removes a volume that has no record, or that was being removed. Returns whether it is not there any more.
    pub(super) async fn remove_unfinished(&self, id: u64) -> Result<bool, ConfigError> {
        let mut remove = RemoveVolume::unfinished(id);
        let removed = self.config().in_steps(move |store| remove.step(store)).await?;
        self.reconcile_soon();
        Ok(removed)
    }
}
