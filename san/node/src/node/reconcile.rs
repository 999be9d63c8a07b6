//! Applies the configuration again and again, so that work which a crash interrupted continues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ReplicaId, VolumeId};
use loadline_san_core::layout::{GroupIndex, Layout};
use loadline_san_core::message::Promise;
use loadline_san_core::record::Record;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_device::model::ModelledDevice;
use loadline_san_protocol::device::DeviceId;
use loadline_san_protocol::record;
use loadline_san_store::io::Area;
use loadline_san_store::open::NewReplica;
use loadline_san_store::space::Space;
use loadline_san_store::store::{Identity, Settings};
use tokio::sync::watch;

use super::home::Home;
use super::manage::{is_new, room};
use super::{CONFIG_POLL, Node, NodeError, OpenDevice, UNNOTICED};
use crate::config::catalog::{Catalog, Device, Replica, ReplicaState, Volume, VolumeState, change};
use crate::config::{Change, ConfigError};
use crate::event_loop::command::{LoopCommand, OpenReplica, OpenVolume};
use crate::event_loop::most_in_flight;

/// Nodes without a copy that watch a volume whose parts are apart.
const FEW: usize = 3;
/// How long to wait until the configuration was applied once.
const RECONCILED: Duration = Duration::from_secs(10);
/// How long to wait for devices before the rest continues.
const DEVICES: Duration = Duration::from_secs(5);
/// How long after a replica could not be opened it is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a node that was removed goes on at most, to answer what it was asked before.
const ANSWERS: Duration = Duration::from_secs(2);
/// How long a device that a dead process had is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

impl Node {
    /// Goes on until the node ends.
    pub(super) async fn reconcile_for_ever(&self) -> NodeError {
        let (mut last, mut complained) = (None, false);
        let mut reported = BTreeMap::new();
        let mut changes = self.0.config.changes();
        let (mut is_due, mut read) = (true, Instant::now());
        loop {
            self.state().begun += 1;
            // Without a notice the store is asked too, now and then; what was not done is tried again.
            let news = if is_due || last.is_none() || read.elapsed() >= UNNOTICED {
                read = Instant::now();
                let news = self.0.config.call(move |store| {
                    let revision = store.revision()?;
                    match last == Some(revision) {
                        true => Ok(None),
                        false => Ok(Some((revision, Catalog::read(store)?))),
                    }
                });
                let news = news.await;
                self.state().store.learn_outcome(news.as_ref().err());
                Some(news)
            } else {
                None
            };
            let fails = matches!(news, Some(Err(_)));
            match news {
                Some(Ok(Some((revision, catalog)))) => {
                    let own = catalog.nodes.get(&self.id()).map(|(node, _)| node.incarnation);
                    self.learn(catalog);
                    complained = false;
                    match own {
                        None => {
                            // Whoever removed it by its own API is answered.
                            self.api_connections().end(ANSWERS).await;
                            return NodeError::Removed(self.name().into());
                        }
                        Some(own) if own > self.0.me.incarnation.0 => {
                            return NodeError::Replaced(self.name().into());
                        }
                        Some(_) => {}
                    }
                    self.report_records(&mut reported);
                    // Before: what a node that stops owned is waited for. And after: it takes volumes that are open here.
                    self.follow_stopping();
                    let done = self.reconcile().await;
                    self.follow_stopping();
                    self.state().applied = true;
                    last = done.then_some(revision);
                }
                Some(Ok(None)) => complained = false,
                // It is logged where it is found.
                Some(Err(ConfigError::WentBack { .. })) => {}
                Some(Err(why)) if !std::mem::replace(&mut complained, true) => {
                    tracing::error!("{why}");
                }
                Some(Err(_)) | None => {}
            }
            self.tell_unusable().await;
            {
                let mut state = self.state();
                state.ended = state.begun;
            }
            self.0.happened.notify_waiters();
            is_due = tokio::select! {
                () = self.0.changed.notified() => true,
                () = changes.next() => true,
                () = tokio::time::sleep(CONFIG_POLL) => fails,
            };
        }
    }

    /// Reports the records that have changed to the loops whose volumes they are of. `reported`: the version of each that was
    /// reported last.
    fn report_records(&self, reported: &mut BTreeMap<u64, u64>) {
        let state = self.state();
        for (id, stored) in &state.catalog.records {
            if state.volumes.contains_key(id)
                && reported.insert(*id, stored.version) != Some(stored.version)
                && let Ok(record) = record::decode(&stored.value)
            {
                self.loop_of(*id).give(LoopCommand::Record(VolumeId(*id), Box::new(record)));
            }
        }
        reported.retain(|id, _| state.catalog.records.contains_key(id));
    }

    /// Makes the node read the configuration and reconcile with it at once.
    pub(crate) fn reconcile_soon(&self) {
        self.0.changed.notify_one();
    }

    /// Carries out an attach that was ordered here, and that the configuration has. The volume is open by then, also if the last pass could
    /// not read the configuration: a loop that does not have the volume forgets the order.
    pub(super) fn carry_out_attach(&self, id: u64) {
        self.reopen_volume(id);
        self.state().fenced.insert(id);
        self.loop_of(id).give(LoopCommand::Fence(VolumeId(id)));
    }

    /// Opens a volume again, so that its loop begins or stops watching it, as the configuration now orders.
    pub(super) fn reopen_volume(&self, id: u64) {
        let volume = self.state().catalog.volumes.get(&id).map(|(volume, _)| volume.clone());
        if let Some(volume) = volume {
            self.open_volume(id, &volume, true);
        }
    }

    /// Waits until the present configuration was applied, as far as is possible at once.
    pub(crate) async fn reconciled(&self) {
        let pass = self.state().begun + 1;
        self.reconcile_soon();
        self.wait_until(RECONCILED, |state| state.ended >= pass).await;
    }

    /// Whether all is as it should be.
    async fn reconcile(&self) -> bool {
        let catalog = self.state().catalog.clone();
        let me = self.id();
        for (id, (node, _)) in catalog.nodes.iter().filter(|(id, _)| **id != me) {
            for orders in &self.0.loops {
                let (name, certificates) = (node.name.clone(), node.certificates.clone());
                orders.give(LoopCommand::Peer { node: NodeId(*id), name, address: node.peer, certificates });
            }
            self.state().peers.insert(*id);
        }
        let gone: Vec<u32> =
            self.state().peers.iter().filter(|id| !catalog.nodes.contains_key(id)).copied().collect();
        for id in gone {
            self.state().peers.remove(&id);
            self.end_sessions_of(id);
            self.0.loops.iter().for_each(|orders| _ = orders.give(LoopCommand::NoPeer(NodeId(id))));
        }
        self.end_sessions_of_former_lives();
        self.follow_reserve(&catalog);
        let mut done = self.reconcile_devices(&catalog).await;
        let gone: Vec<u64> =
            self.state().volumes.keys().filter(|id| !catalog.volumes.contains_key(id)).copied().collect();
        for id in gone {
            {
                let mut state = self.state();
                state.volumes.remove(&id);
                state.limits.remove(&id);
            }
            self.loop_of(id).give(LoopCommand::CloseVolume(VolumeId(id)));
        }
        let here = catalog.replicas.values().filter(|(replica, _)| replica.node == me);
        let mine: BTreeSet<u64> = here.map(|(replica, _)| replica.volume).collect();
        for (id, (volume, _)) in &catalog.volumes {
            // It was detached by a node that did not reach this one.
            if volume.attached.is_none() && self.state().attached.contains(id) {
                self.loop_of(*id).give(LoopCommand::Detach(VolumeId(*id)));
            }
            // An attach was ordered here, and another elsewhere since. If this node owns the volume, it serves it until then.
            if volume.attached != Some(me) && self.state().fenced.remove(id) {
                self.loop_of(*id).give(LoopCommand::GiveWay(VolumeId(*id)));
            }
            // It is opened where it may have to be served, and stays open.
            let known = self.state().volumes.contains_key(id);
            let here = mine.contains(id)
                || volume.attached == Some(me)
                || volume.attached.is_some() && is_spread(&catalog, *id, me);
            if volume.state == VolumeState::Ready && (here || known) {
                let kept = self.is_kept_for_owner(*id);
                // It is looked at again soon.
                done &= !kept;
                self.open_volume(*id, volume, here && !kept);
            }
            // It was made to be attached here, and no node has owned it: that is an attach that was ordered.
            if volume.state == VolumeState::Ready
                && volume.attached == Some(me)
                && self.record(*id).is_some_and(|record| is_new(&record))
                && self.state().fenced.insert(*id)
            {
                self.loop_of(*id).give(LoopCommand::NoClients(VolumeId(*id)));
                self.loop_of(*id).give(LoopCommand::Fence(VolumeId(*id)));
            }
        }
        self.end_superseded();
        self.volume_sockets();
        self.follow_units();
        done
    }

    /// Devices are opened, and replicas made, opened and removed. Replicas of the same devices are handled one after the other, and a device
    /// that hangs delays no replica of others: its work continues by itself, and is checked again when it is done. Returns whether
    /// everything is as configured.
    async fn reconcile_devices(&self, catalog: &Catalog) -> bool {
        {
            let mut state = self.state();
            let busy: BTreeSet<u32> = state.busy.iter().flat_map(|(data, log)| [*data, *log]).collect();
            state.devices.retain(|id, _| catalog.devices.contains_key(id) || busy.contains(id));
            state.broken.retain(|id, _| catalog.devices.contains_key(id));
        }
        let mine = |id: &u32| catalog.devices.get(id).is_some_and(|(device, _)| device.node == self.id());
        let devices = catalog.devices.keys().filter(|id| mine(id)).map(|id| (*id, *id));
        let here = catalog.replicas.values().map(|(replica, _)| (replica.device, replica.log_device));
        let here = here.filter(|(data, log)| mine(data) && mine(log) && data != log);
        let two: BTreeSet<(u32, u32)> = here.collect();
        let mut opened: BTreeMap<u32, watch::Receiver<Option<bool>>> = BTreeMap::new();
        let mut tasks = Vec::new();
        let mut done = true;
        for (data, log) in devices.chain(two) {
            let waits_for: Vec<_> = match data == log {
                true => Vec::new(),
                false => [data, log].iter().filter_map(|id| opened.get(id).cloned()).collect(),
            };
            // A device whose task of an earlier pass is not done yet may hang.
            let hangs = data != log && waits_for.len() < 2;
            if hangs || !self.state().busy.insert((data, log)) {
                done = false;
                continue;
            }
            let (tell, told) = watch::channel(None);
            if data == log {
                opened.insert(data, told);
            }
            let replicas = catalog.replicas.iter();
            let replicas = replicas.filter(|(_, (of, _))| (of.device, of.log_device) == (data, log));
            let replicas: Vec<_> = replicas
                .map(|(id, (replica, version))| {
                    let volume = catalog.volumes.get(&replica.volume).map(|(volume, _)| volume.clone());
                    (*id, replica.clone(), *version, volume)
                })
                .collect();
            let (this, device) = (self.clone(), catalog.devices[&data].0.clone());
            tasks.push(tokio::spawn(async move {
                let mut done = match waits_for.is_empty() {
                    true => this.open_device(data, &device).await,
                    false => all_open(waits_for).await,
                };
                tell.send_replace(Some(done));
                done &= this.reconcile_replicas(replicas).await;
                this.state().busy.remove(&(data, log));
                done
            }));
        }
        let until = tokio::time::Instant::now() + DEVICES;
        for task in tasks {
            done &= matches!(tokio::time::timeout_at(until, task).await, Ok(Ok(true)));
        }
        done
    }

    /// Replicas of the same devices are made, opened and removed. Returns whether all are as configured.
    async fn reconcile_replicas(&self, replicas: Vec<(u64, Replica, u64, Option<Volume>)>) -> bool {
        let (mut done, mut made) = (true, Vec::new());
        for (id, replica, version, volume) in replicas {
            done &= match (replica.state, volume) {
                (ReplicaState::Wanted, Some(_)) => {
                    let (change, as_wanted) = self.make_replica(id, &replica, version).await;
                    made.extend(change);
                    as_wanted
                }
                (ReplicaState::Ready, Some(volume)) => self.open_replica(id, &replica, &volume),
                (ReplicaState::Dropping, _) => self.drop_replica(id, &replica, version).await,
                // Of a volume that was deleted while it got this one.
                (ReplicaState::Wanted | ReplicaState::Ready, None) => {
                    self.drop_replica(id, &replica.taken_back(), version).await
                }
            };
        }
        // Replicas are opened when the configuration states that they exist. A replica whose commit is not known is made again.
        let _ = self.0.config.each(made).await;
        done
    }

    async fn open_device(&self, id: u32, device: &Device) -> bool {
        if self.state().devices.contains_key(&id) {
            return true;
        }
        let (path, cluster, shown) = (device.path.clone(), self.0.cluster, device.path.display());
        let model = device.model.clone();
        let opened = tokio::task::spawn_blocking(move || -> Result<OpenDevice, String> {
            let file = DeviceFile::open(&path, PATIENCE).map_err(|why| why.to_string())?;
            let mut devices = Devices { log: file, capacity: None };
            let space = Space::load(&mut devices, Area::Log, Some(cluster)).map_err(|why| why.to_string())?;
            if space.superblock().device != DeviceId(u64::from(id)) {
                let is = space.superblock().device.0;
                return Err(format!("{} is device {is} of the cluster, and not {id}", path.display()));
            }
            let model = model.map(|model| Arc::new(ModelledDevice::new(model, DeviceId(u64::from(id)))));
            Ok(OpenDevice { file: devices.log.modelled(model), space: Arc::new(Mutex::new(space)) })
        });
        let opened = opened.await.unwrap_or_else(|_| Err("the thread that opens the device failed".into()));
        let mut state = self.state();
        match opened {
            Ok(open) => {
                state.broken.remove(&id);
                state.devices.insert(id, open);
                true
            }
            Err(why) => {
                if state.broken.insert(id, why.clone()).as_ref() != Some(&why) {
                    tracing::error!(device = id, "device {id} ({shown}) is not used: {why}");
                }
                false
            }
        }
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<bool, ConfigError> {
        self.0.config.call(move |store| store.commit(&changes)).await
    }

    /// Makes an empty replica. Returns the change that records it, or why it was not made; and whether nothing is left to do. If making it
    /// was begun before, it begins again. No replica is made in the place of one with the same id that may have been used, from before the
    /// configuration was restored from an older copy.
    async fn make_replica(&self, id: u64, replica: &Replica, version: u64) -> (Option<Change>, bool) {
        if self.state().replicas.contains(&id) {
            self.complain(id, "the configuration orders this replica to be made, but the replica is already open here: the configuration is an older copy");
            return (None, false);
        }
        // The command that ordered the replica gets the reason, and decides.
        if replica.refused.is_some() {
            return (None, true);
        }
        let Some(mut home) = self.state().home(replica) else { return (None, false) };
        if self.waits_for_room(replica) {
            return (None, false);
        }
        let no_owner = Owner { node: NodeId(0), incarnation: Incarnation(0) };
        let new = NewReplica {
            id: identity(id, replica),
            blocks: replica.blocks,
            log_bytes: replica.log_bytes,
            most_in_flight: most_in_flight(replica.log_bytes) as u32,
            key: replica.key,
            promise: Promise { epoch: Epoch(0), owner: no_owner },
        };
        let made = tokio::task::spawn_blocking(move || home.make(&new));
        let made = made.await.unwrap_or_else(|_| Err("it could not be made".into()));
        let next = match made {
            Ok(()) => {
                self.state().made.insert(id);
                Replica { state: ReplicaState::Ready, refused: None, ..replica.clone() }
            }
            Err(why) => {
                self.complain(id, &why);
                Replica { refused: Some(why), ..replica.clone() }
            }
        };
        (Some(change(format!("replica/{id}"), Some(version), &next)), false)
    }

    /// Whether a replica gets the room that another gives up, and that one has not done so yet.
    fn waits_for_room(&self, replica: &Replica) -> bool {
        let state = self.state();
        let old = replica.instead_of.and_then(|id| Some((id, &state.catalog.replicas.get(&id)?.0)));
        old.filter(|(_, old)| old.gives_way && old.node == replica.node).is_some_and(|(id, old)| {
            [replica.device, replica.log_device].iter().any(|device| state.may_hold(*device, id, old.key))
        })
    }

    fn open_replica(&self, id: u64, replica: &Replica, volume: &Volume) -> bool {
        let extents = extents_of(replica, volume);
        let not_now = {
            let mut state = self.state();
            if state.replicas.contains(&id) {
                if state.sizes.insert(id, extents) != Some(extents) {
                    self.loop_of(replica.volume).give(LoopCommand::Resize(ReplicaId(id), extents));
                }
                drop(state);
                return self.follow_cache(id, replica, volume);
            }
            state.unopened.get(&id).is_some_and(|(when, ..)| when.elapsed() < AGAIN)
        };
        if not_now {
            return false;
        }
        let Some(Home { devices, log, capacity }) = self.state().home(replica) else { return false };
        // While another thread writes the device's table, this is tried again.
        let Ok(there) = capacity.try_lock().map(|space| space.residents()) else { return false };
        let promises_once = {
            let catalog = &self.state().catalog;
            catalog.promises_once() && !has_unknown(catalog, &there, replica.device)
        };
        let settings =
            Settings { spare: room::SPARE, is_promised: promises_once, extents, ..Settings::default() };
        let is_new = self.state().made.remove(&id);
        let open = OpenReplica {
            id: identity(id, replica),
            key: replica.key,
            lease_ns: volume.lease_ms * 1_000_000,
            devices,
            log,
            capacity,
            settings,
            is_new,
            process: self.0.me.incarnation,
        };
        {
            let mut state = self.state();
            state.replicas.insert(id);
            state.sizes.insert(id, extents);
        }
        self.loop_of(replica.volume).give(LoopCommand::OpenReplica(Box::new(open)));
        self.follow_cache(id, replica, volume)
    }

    /// Says what is wrong with a replica, once.
    fn complain(&self, id: u64, why: &str) {
        let before = self.state().unopened.insert(id, (Instant::now(), why.to_owned(), None));
        if before.is_none_or(|(_, before, _)| before != why) {
            tracing::warn!(replica = id, "{}: {why}", self.name_replica(id));
        }
    }

    /// Removes a replica from its device and from the configuration. One that was promised to an owner stays on its device if it is to be
    /// removed [`unless_used`](Replica::unless_used); the configuration gets the reason. Returns whether nothing is left to do.
    async fn drop_replica(&self, id: u64, replica: &Replica, version: u64) -> bool {
        if replica.kept().is_some() {
            return true;
        }
        // Its chunks are others' as soon as it is forgotten: its store must be gone.
        let is_open = self.state().replicas.contains(&id);
        if is_open && !self.close_replica(replica.volume, id).await {
            return false;
        }
        {
            let mut state = self.state();
            state.replicas.remove(&id);
            state.unopened.remove(&id);
            state.opened.remove(&id);
        }
        self.give_back_cache(id);
        let (key, unless_used) = (replica.key, replica.unless_used);
        if replica.gives_way {
            return self.give_up_half(id, replica).await;
        }
        let Some(mut home) = self.state().home(replica) else {
            // Whether one that may have been used has data, is in its log.
            if !unless_used {
                self.give_up_half(id, replica).await;
            }
            return false;
        };
        let forgotten = tokio::task::spawn_blocking(move || home.forget(ReplicaId(id), key, unless_used));
        match forgotten.await.unwrap_or_else(|_| Err("it could not be removed".into())) {
            Ok(None) => {
                let gone = Change { key: format!("replica/{id}"), expected: Some(version), value: None };
                self.commit(vec![gone]).await.unwrap_or(false)
            }
            Ok(Some(why)) => {
                let (device, name) = (replica.device, self.name_replica(id));
                tracing::error!(replica = id, device, "{name} on device {device} is not removed: {why}");
                let kept = Replica { refused: Some(why), ..replica.clone() };
                self.commit(vec![change(format!("replica/{id}"), Some(version), &kept)])
                    .await
                    .unwrap_or(false)
            }
            Err(why) => {
                self.complain(id, &format!("the replica cannot be removed: {why}"));
                false
            }
        }
    }

    /// What a replica has on a device that is well is given back. Its other device has failed, is to be replaced, and is left alone: all
    /// that is there goes with it. Returns whether nothing is left to do.
    async fn give_up_half(&self, id: u64, replica: &Replica) -> bool {
        let Some(mut half) = self.state().usable_half(replica) else { return false };
        let key = replica.key;
        let forgotten = tokio::task::spawn_blocking(move || half.forget(ReplicaId(id), key)).await;
        match forgotten.unwrap_or_else(|_| Err("it could not be removed".into())) {
            Ok(()) => true,
            Err(why) => {
                self.complain(id, &format!("the replica cannot be removed: {why}"));
                false
            }
        }
    }

    /// A volume is watched here, if it is attached, and it may have to be served `here`.
    fn open_volume(&self, id: u64, volume: &Volume, here: bool) {
        let watch = here && volume.attached.is_some() || self.state().claimed.contains(&id);
        let known = self.state().volumes.insert(id, watch);
        let Ok(layout) = Layout::new(volume.stripes, volume.unit_blocks, volume.group_blocks) else { return };
        let orders = self.loop_of(id);
        match known {
            Some(was) if was == watch => {}
            Some(_) => _ = orders.give(LoopCommand::Watch(VolumeId(id), watch)),
            None => {
                let lease_ns = volume.lease_ms * 1_000_000;
                let most_in_flight = most_in_flight(volume.log_bytes);
                let open = OpenVolume { id: VolumeId(id), layout, lease_ns, watch, most_in_flight };
                orders.give(LoopCommand::OpenVolume(open));
            }
        }
        let known = self.state().limits.insert(id, volume.limit).flatten();
        if known != volume.limit {
            orders.give(LoopCommand::Limit(VolumeId(id), volume.limit));
        }
    }
}

/// Whether a node without a copy of a volume is one of the few that watch it all the same, since such a node may be the only one that
/// can serve it: see [`Record::is_spread`].
fn is_spread(catalog: &Catalog, volume: u64, me: u32) -> bool {
    let record = catalog.record(volume);
    let Some(record) = record.filter(Record::is_spread) else { return false };
    let with_copies: BTreeSet<u32> = record.homes.values().map(|node| node.0).collect();
    let others: Vec<u32> = catalog.nodes.keys().filter(|node| !with_copies.contains(node)).copied().collect();
    // Not the same few for each volume.
    let first = volume as usize % others.len().max(1);
    others.iter().cycle().skip(first).take(FEW.min(others.len())).any(|node| *node == me)
}

/// Whether a device, which has something of these replicas, by their ids and keys, has one that the configuration does not have there: it was made before an older copy of it was
/// put back, and nothing removes it. Then the device may have less room than was promised, and no replica counts on room that it has not taken.
fn has_unknown(catalog: &Catalog, there: &BTreeMap<ReplicaId, u64>, device: u32) -> bool {
    let is_known = |(id, key): (&ReplicaId, &u64)| {
        catalog.replicas.get(&id.0).is_some_and(|(of, _)| of.is_on(device) && of.key == *key)
    };
    !there.iter().all(is_known)
}

/// Waits until it is known of all these devices whether they are open. Whether they are.
async fn all_open(devices: Vec<watch::Receiver<Option<bool>>>) -> bool {
    let mut all = true;
    for mut device in devices {
        // If the task that opens it is gone, nothing is known.
        let opened = device.wait_for(Option::is_some).await;
        all &= opened.is_ok_and(|opened| *opened == Some(true));
    }
    all
}

/// Extents that a volume has in the group of one of its replicas. The device was added with extents of
/// [`room::EXTENT_BLOCKS`].
fn extents_of(replica: &Replica, volume: &Volume) -> u64 {
    let layout = Layout::new(volume.stripes, volume.unit_blocks, volume.group_blocks).ok();
    let blocks = layout.map(|layout| layout.blocks_in(GroupIndex(replica.group), volume.blocks));
    blocks.map_or(u64::MAX, |blocks| blocks.div_ceil(u64::from(room::EXTENT_BLOCKS)))
}

fn identity(id: u64, replica: &Replica) -> Identity {
    Identity { volume: VolumeId(replica.volume), group: GroupIndex(replica.group), replica: ReplicaId(id) }
}
