//! A node that ends by order leaves the cluster in order: clients and writes do not wait until its leases have run out.
//!
//! ```text
//!  no more clients ─▶ in the configuration: each volume that it owns is attached at another node, and it is stopping
//!                        │                                        │
//!       owners elsewhere exclude its replicas       it stops serving and releases its leases (rule L5); the other node takes over
//!                        └───────────────────┬────────────────────┘
//!                                            ▼
//!                                  its process ends
//! ```
//!
//! Nothing depends on it: a node that ends before this is done has ended like one that is killed. A volume whose clients share memory with
//! this node stays: they cannot go elsewhere, and what they have asked and was not answered is carried out by the next process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use loadline_san_core::ids::{NodeId, Owner, VolumeId};
use loadline_san_core::record::{Record, RecordState};
use loadline_san_protocol::record;

use super::Node;
use crate::config::catalog::{self, Catalog, VolumeState, change};
use crate::config::{Change, ConfigError};
use crate::event_loop::command::LoopCommand;

/// How long the configuration is waited for.
const READ: Duration = Duration::from_secs(1);
/// How long a node that stops waits until its volumes are served elsewhere, and its replicas are excluded.
const LEAVES: Duration = Duration::from_secs(3);
/// How long requests of the API have to be answered.
const ANSWERS: Duration = Duration::from_secs(1);
/// How long a volume is left to the next process of a node that has stopped.
const KEPT: Duration = Duration::from_secs(20);
/// Volumes that are handed over by one change: a transaction of etcd has 128 operations at most.
pub(super) const AT_ONCE: usize = 100;

impl Node {
    /// Leaves the cluster in order: takes no more clients, hands over the volumes that this node owns, and waits until the others do not need
    /// it, for a few seconds at most. Afterwards the process is to end. The future that [`Node::start`] has returned must be polled meanwhile.
    pub async fn leave(&self) {
        let begun = Instant::now();
        self.0.leaving.send_replace(true);
        match tokio::time::timeout(READ, self.give_volumes_away()).await {
            Ok(Ok(Some(volumes))) => {
                let is_left = tokio::time::timeout(LEAVES, self.until_not_needed(&volumes)).await.is_ok();
                let ms = begun.elapsed().as_millis();
                let what = match volumes.len() {
                    1 => "1 volume was".into(),
                    count => format!("{count} volumes were"),
                };
                match is_left {
                    true => tracing::info!("the node stops: {what} handed over in {ms} ms"),
                    false => tracing::warn!(
                        "the node stops, although, after {} s, {}",
                        LEAVES.as_secs(),
                        self.needed(&volumes)
                            .unwrap_or_else(|| "the configuration store does not answer".into())
                    ),
                }
            }
            Ok(Ok(None)) => tracing::warn!(
                "the node stops without handing its volumes over: a data-path thread does not respond"
            ),
            Ok(Err(why)) => tracing::warn!("the node stops without handing its volumes over: {why}"),
            Err(_) => tracing::warn!(
                "the node stops without waiting for others: handing its volumes over took more than {} s",
                READ.as_secs()
            ),
        }
        self.api_connections().end(ANSWERS).await;
    }

    /// Clients are taken no more.
    pub(super) async fn is_leaving(&self) {
        let mut leaving = self.0.leaving.subscribe();
        let _ = leaving.wait_for(|leaving| *leaving).await;
    }

    /// Attaches each volume that this node owns at another node, and stops serving it. Returns these volumes, or `None`, with nothing
    /// changed, if a thread of the data path does not respond.
    async fn give_volumes_away(&self) -> Result<Option<BTreeSet<u64>>, ConfigError> {
        self.refresh().await?;
        if !self.refresh_loops().await {
            // Which volumes have clients that cannot leave is not known.
            return Ok(None);
        }
        let alive = self.alive().await;
        let bound = self.bound();
        let me = self.0.me;
        let ordered = self.config().call(move |store| {
            'tries: for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let heirs = heirs(&catalog, me, &bound, &alive);
                let mut moves: Vec<Change> = Vec::new();
                for (id, heir) in &heirs {
                    let (volume, version) = &catalog.volumes[id];
                    let next = volume.attached_at(Some(*heir));
                    moves.push(change(format!("volume/{id}"), Some(*version), &next));
                }
                let Some((node, version)) = catalog.nodes.get(&me.node.0) else { return Ok(BTreeSet::new()) };
                if node.incarnation != me.incarnation.0 {
                    return Ok(BTreeSet::new());
                }
                // Last, because a volume that is not attached elsewhere by then would be taken over by any node.
                let stops = catalog::Node { stopping: true, keeps: bound.clone(), ..node.clone() };
                let stops = change(format!("node/{}", me.node.0), Some(*version), &stops);
                let first = moves.len().saturating_sub(AT_ONCE - 1);
                let last: Vec<Change> = moves.drain(first..).chain([stops]).collect();
                for some in moves.chunks(AT_ONCE).chain([&last[..]]) {
                    if !store.commit(some)? {
                        continue 'tries;
                    }
                }
                return Ok(heirs.into_keys().collect());
            }
            Err(ConfigError::Contended)
        });
        let volumes: BTreeSet<u64> = ordered.await?;
        for id in &volumes {
            self.loop_of(*id).give(LoopCommand::HandOver(VolumeId(*id)));
        }
        Ok(Some(volumes))
    }

    /// Volumes with clients that share memory with this node, and so cannot leave it. Refresh the loops before.
    pub(super) fn bound(&self) -> BTreeSet<u64> {
        let state = self.state();
        let volumes = state.loops.iter().flat_map(|of| &of.volumes);
        let bound = volumes.filter(|volume| volume.bound > 0).map(|volume| volume.id.0);
        // Clients of the life before may not have connected again yet.
        let kept = self.0.kept.iter().copied().filter(|_| self.0.since.elapsed() < KEPT);
        bound.chain(kept).collect()
    }

    /// Until these volumes are served elsewhere, and no owner elsewhere needs a replica of this node.
    async fn until_not_needed(&self, volumes: &BTreeSet<u64>) {
        let mut changes = self.config().changes();
        while self.refresh().await.is_err() || self.needed(volumes).is_some() {
            changes.within(Duration::from_millis(50)).await;
        }
    }

    /// Why this node is needed still, in words.
    fn needed(&self, volumes: &BTreeSet<u64>) -> Option<String> {
        let me = self.0.me;
        let state = self.state();
        let records = state.catalog.records.iter();
        let mut records = records.filter_map(|(id, stored)| Some((*id, record::decode(&stored.value).ok()?)));
        records.find_map(|(id, record)| {
            let (volume, _) = state.catalog.volumes.get(&id)?;
            let is_here = record.owner == me;
            // The node that was to have it may be stopping by now, as when a whole cluster is stopped.
            let heir = volume.attached.and_then(|heir| state.catalog.nodes.get(&heir));
            let is_awaited = volumes.contains(&id) && heir.is_some_and(|(heir, _)| !heir.stopping);
            if is_awaited && (is_here || record.state != RecordState::Active) {
                return Some(format!("volume {} is not served by another node yet", volume.name));
            }
            let owner = state.catalog.nodes.get(&record.owner.node.0);
            let (owner, _) =
                owner.filter(|(node, _)| node.incarnation == record.owner.incarnation.0 && !node.stopping)?;
            let counts = !is_here && volume.attached.is_some() && can_be_spared(&record, me.node);
            let name = &volume.name;
            counts.then(|| {
                format!("{}, which owns volume {name}, counts on this node's copy still", owner.name)
            })
        })
    }

    /// Tells the loops which nodes stop, and takes over the volumes that such a node, or one in maintenance, has handed over to this one.
    pub(super) fn follow_stopping(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        let catalog = &state.catalog;
        let stopping =
            |node: u32| catalog.nodes.get(&node).filter(|(of, _)| of.stopping).map(|(of, _)| of.incarnation);
        let over: Vec<u32> = state
            .stopping
            .iter()
            .filter(|(node, life)| stopping(**node) != Some(**life))
            .map(|(node, _)| *node)
            .collect();
        for node in over {
            state.stopping.remove(&node);
            self.0.loops.iter().for_each(|orders| _ = orders.give(LoopCommand::EndedSo(NodeId(node))));
        }
        for (node, life) in catalog.nodes.keys().filter_map(|node| Some((*node, stopping(*node)?))) {
            if node != self.id() && state.stopping.insert(node, life) != Some(life) {
                self.0.loops.iter().for_each(|orders| _ = orders.give(LoopCommand::Ends(NodeId(node))));
            }
        }
        if *self.0.leaving.borrow() {
            return;
        }
        for (id, stored) in &catalog.records {
            let Some((volume, version)) = catalog.volumes.get(id) else { continue };
            let is_mine = volume.state == VolumeState::Ready && volume.attached == Some(self.id());
            let Some(record) = record::decode(&stored.value).ok().filter(|_| is_mine) else { continue };
            let Owner { node, incarnation } = record.owner;
            if node == self.0.me.node {
                // It was taken over. If the other node has it again later, it is handed over again, by the same order.
                state.handed.remove(id);
            }
            let gives = stopping(node.0) == Some(incarnation.0)
                || catalog.in_maintenance(node.0)
                || volume.handed_at == Some(record.fence);
            if gives
                && node != self.0.me.node
                && state.volumes.contains_key(id)
                && state.handed.insert(*id, *version) != Some(*version)
            {
                state.fenced.insert(*id);
                self.loop_of(*id).give(LoopCommand::Fence(VolumeId(*id)));
            }
        }
    }

    /// Whether this node leaves a volume to the next process of its owner for now: the owner was stopped by order, and clients of the volume
    /// share memory with it. If another node took the volume over, what these clients have asked would fail.
    pub(super) fn is_kept_for_owner(&self, id: u64) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        let is_kept = kept_by(&state.catalog, id).is_some_and(|node| node != self.id());
        if !is_kept {
            state.kept.remove(&id);
            return false;
        }
        state.kept.entry(id).or_insert_with(Instant::now).elapsed() < KEPT
    }
}

/// The node that keeps a volume for itself, if one does: the life of its process that owns the volume stops, or a later one has begun and
/// does not own it yet.
pub(super) fn kept_by(catalog: &Catalog, id: u64) -> Option<u32> {
    let Owner { node, incarnation } = catalog.record(id)?.owner;
    let (of, _) = catalog.nodes.get(&node.0)?;
    (of.keeps.contains(&id) && (of.stopping || of.incarnation != incarnation.0)).then_some(node.0)
}

/// Which node is to have each volume that a node owns, and that is attached: one that runs and has most of its replicas in sync; of several such
/// nodes the one that gets fewest. One in maintenance gets what no other node can serve. A volume that no other node has a part of stays.
pub(super) fn heirs(
    catalog: &Catalog,
    me: Owner,
    bound: &BTreeSet<u64>,
    alive: &BTreeMap<u32, bool>,
) -> BTreeMap<u64, u32> {
    let runs = |node: u32| {
        alive.get(&node) == Some(&true) && catalog.nodes.get(&node).is_some_and(|(of, _)| !of.stopping)
    };
    let mut given: BTreeMap<u32, usize> = BTreeMap::new();
    let mut heirs = BTreeMap::new();
    for (id, stored) in &catalog.records {
        let Some((volume, _)) = catalog.volumes.get(id) else { continue };
        let Ok(record) = record::decode(&stored.value) else { continue };
        let is_served = volume.state == VolumeState::Ready && volume.attached.is_some();
        if !is_served || record.owner != me || bound.contains(id) {
            continue;
        }
        let mut parts: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, node) in record.members().filter(|(_, node)| node.0 != me.node.0 && runs(node.0)) {
            *parts.entry(node.0).or_default() += 1;
        }
        // An attach was ordered there.
        let ordered = volume.attached.filter(|node| *node != me.node.0 && runs(*node));
        let ordered = ordered.filter(|node| !catalog.in_maintenance(*node));
        let few = |node: &u32| given.get(node).copied().unwrap_or(0);
        let heir = parts.iter().min_by_key(|(node, count)| {
            (catalog.in_maintenance(**node), std::cmp::Reverse(**count), few(node), **node)
        });
        if let Some(heir) = ordered.or(heir.map(|(node, _)| *node)) {
            *given.entry(heir).or_default() += 1;
            heirs.insert(*id, heir);
        }
    }
    heirs
}

/// Whether an owner still counts on replicas of a node that others could do without: some group has one in sync beside others.
fn can_be_spared(record: &Record, node: NodeId) -> bool {
    record.groups.iter().any(|group| {
        let here = group.in_sync.iter().filter(|replica| record.homes.get(replica) == Some(&node)).count();
        here > 0 && here < group.in_sync.len()
    })
}

#[cfg(test)]
pub(super) mod tests;
