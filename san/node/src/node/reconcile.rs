//! What the configuration says is made so, again and again: whatever was begun before a crash goes on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ReplicaId, VolumeId};
use loadline_san_core::layout::{GroupIndex, Layout};
use loadline_san_core::message::Promise;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_protocol::device::DeviceId;
use loadline_san_store::io::Area;
use loadline_san_store::open::{NewReplica, create};
use loadline_san_store::space::Space;
use loadline_san_store::store::{Identity, Settings};

use super::{LOOK, Node, OpenDevice};
use crate::config::catalog::{Catalog, Device, Replica, ReplicaState, Volume, VolumeState, change};
use crate::config::{Change, ConfigError};
use crate::event_loop::MOST_BLOCKS_IN_FLIGHT;
use crate::event_loop::order::{OpenReplica, OpenVolume, Order};

/// How long a device that a dead process had is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

impl Node {
    /// Goes on until the node ends.
    pub(super) async fn reconcile_for_ever(&self) {
        let mut last = None;
        let mut complained = false;
        loop {
            let news = self.0.config.call(move |store| {
                let revision = store.revision()?;
                // What was not done is tried again.
                match last == Some(revision) {
                    true => Ok(None),
                    false => Ok(Some((revision, Catalog::read(store)?))),
                }
            });
            match news.await {
                Ok(Some((revision, catalog))) => {
                    self.state().learn(catalog);
                    let done = self.reconcile().await;
                    if done {
                        last = Some(revision);
                    }
                    complained = false;
                    self.0.happened.notify_waiters();
                }
                Ok(None) => complained = false,
                Err(why) => {
                    if !std::mem::replace(&mut complained, true) {
                        eprintln!("loadline: {why}");
                    }
                }
            }
            let _ = tokio::time::timeout(LOOK, self.0.changed.notified()).await;
        }
    }

    /// The configuration is to be looked at now.
    pub(crate) fn look_soon(&self) {
        self.0.changed.notify_one();
    }

    /// What the configuration says, as it was read last, is made so now, as far as it goes.
    pub(crate) async fn reconcile_now(&self) {
        self.reconcile().await;
        self.0.happened.notify_waiters();
    }

    /// Whether all is as it should be.
    async fn reconcile(&self) -> bool {
        let _one = self.0.reconciling.lock().await;
        let catalog = self.state().catalog.clone();
        let me = self.id();
        let mut done = true;
        for (id, (node, _)) in catalog.nodes.iter().filter(|(id, _)| **id != me) {
            self.0.loops.iter().for_each(|orders| _ = orders.give(Order::Peer(NodeId(*id), node.peer)));
        }
        for (id, (device, _)) in catalog.devices.iter().filter(|(_, (device, _))| device.node == me) {
            done &= self.open_device(*id, device).await;
        }
        for (id, (replica, version)) in catalog.replicas.iter().filter(|(_, (r, _))| r.node == me) {
            let volume = catalog.volumes.get(&replica.volume).map(|(volume, _)| volume);
            done &= match replica.state {
                ReplicaState::Wanted => self.make_replica(*id, replica, *version).await,
                ReplicaState::Ready => volume.is_none_or(|volume| self.open_replica(*id, replica, volume)),
                ReplicaState::Dropping => self.drop_replica(*id, replica, *version).await,
            };
        }
        let gone: Vec<u64> =
            self.state().volumes.keys().filter(|id| !catalog.volumes.contains_key(id)).copied().collect();
        for id in gone {
            self.state().volumes.remove(&id);
            self.loop_of(id).give(Order::CloseVolume(VolumeId(id)));
        }
        let mine = |volume: u64| catalog.replicas.values().any(|(r, _)| r.volume == volume && r.node == me);
        for (id, (volume, _)) in &catalog.volumes {
            // It was detached by a node that did not reach this one.
            if volume.attached.is_none() && self.state().attached.contains(id) {
                self.loop_of(*id).give(Order::Detach(VolumeId(*id)));
            }
            if volume.state == VolumeState::Ready && (mine(*id) || volume.attached == Some(me)) {
                self.open_volume(*id, volume);
            }
        }
        done
    }

    async fn open_device(&self, id: u32, device: &Device) -> bool {
        if self.state().devices.contains_key(&id) {
            return true;
        }
        let (path, cluster) = (device.path.clone(), self.0.cluster);
        let opened = tokio::task::spawn_blocking(move || -> Result<OpenDevice, String> {
            let file = DeviceFile::open(&path, PATIENCE).map_err(|why| why.to_string())?;
            let mut devices = Devices { log: file, capacity: None };
            let space = Space::load(&mut devices, Area::Log, Some(cluster)).map_err(|why| why.to_string())?;
            if space.superblock().device != DeviceId(u64::from(id)) {
                let is = space.superblock().device;
                return Err(format!("{} is device {is:?} of the cluster, and not {id}", path.display()));
            }
            Ok(OpenDevice { file: devices.log, space: Arc::new(Mutex::new(space)) })
        });
        let opened = opened.await.unwrap_or_else(|_| Err("it could not be looked at".into()));
        let mut state = self.state();
        match opened {
            Ok(open) => {
                state.broken.remove(&id);
                state.devices.insert(id, open);
                true
            }
            Err(why) => {
                if state.broken.insert(id, why.clone()).as_ref() != Some(&why) {
                    eprintln!("loadline: device {id} is not used: {why}");
                }
                false
            }
        }
    }

    /// A handle of a device, and what it begins with.
    fn device(&self, id: u32) -> Option<(Devices, Arc<Mutex<Space>>)> {
        let state = self.state();
        let open = state.devices.get(&id)?;
        let log = open.file.share().ok()?;
        Some((Devices { log, capacity: None }, open.space.clone()))
    }

    async fn commit(&self, changes: Vec<Change>) -> Result<bool, ConfigError> {
        self.0.config.call(move |store| store.commit(&changes)).await
    }

    /// Makes an empty replica. If that was begun before, it is begun anew.
    ///
    /// # Panics
    /// If it is open: what it has would be lost.
    async fn make_replica(&self, id: u64, replica: &Replica, version: u64) -> bool {
        assert!(!self.state().replicas.contains(&id), "replica {id} is open, and is not made anew");
        let Some((mut devices, space)) = self.device(replica.device) else { return false };
        let identity = identity(id, replica);
        let nobody = Owner { node: NodeId(0), incarnation: Incarnation(0) };
        let new = NewReplica {
            id: identity,
            blocks: replica.blocks,
            log_bytes: replica.log_bytes,
            most_in_flight: MOST_BLOCKS_IN_FLIGHT as u32,
            key: random(),
            promise: Promise { epoch: Epoch(0), owner: nobody },
        };
        let device = DeviceId(u64::from(replica.device));
        let made = tokio::task::spawn_blocking(move || {
            let mut space = space.lock().expect("nobody panics with it");
            if space.replicas().any(|there| there == new.id.replica) {
                space.forget(&mut devices, Area::Log, new.id.replica).map_err(|why| why.to_string())?;
            }
            create(&mut devices, &mut space, device, &new).map_err(|why| why.to_string())
        });
        let made = made.await.unwrap_or_else(|_| Err("it could not be made".into()));
        if let Err(why) = made {
            eprintln!("loadline: replica {id} is not made: {why}");
            return false;
        }
        let ready = Replica { state: ReplicaState::Ready, ..replica.clone() };
        let _ = self.commit(vec![change(format!("replica/{id}"), Some(version), &ready)]).await;
        // It is opened when the configuration says so.
        false
    }

    fn open_replica(&self, id: u64, replica: &Replica, volume: &Volume) -> bool {
        if self.state().replicas.contains(&id) {
            return true;
        }
        let Some((devices, space)) = self.device(replica.device) else { return false };
        // A small volume cannot need more than it has.
        let extent_blocks = space.lock().expect("nobody panics with it").superblock().extent_blocks;
        let layout = Layout::new(volume.stripes, volume.unit_blocks, volume.group_blocks).ok();
        let blocks = layout.map(|layout| layout.blocks_in(GroupIndex(replica.group), volume.blocks));
        let extents = blocks.unwrap_or(u64::MAX).div_ceil(u64::from(extent_blocks));
        let settings = Settings::default();
        let settings = Settings { spare: settings.spare.min(extents), ..settings };
        let open = OpenReplica {
            id: identity(id, replica),
            lease_ns: volume.lease_ms * 1_000_000,
            devices,
            log: space.clone(),
            capacity: space,
            settings,
            process: self.0.me.incarnation,
        };
        self.loop_of(replica.volume).give(Order::OpenReplica(Box::new(open)));
        self.state().replicas.insert(id);
        true
    }

    async fn drop_replica(&self, id: u64, replica: &Replica, version: u64) -> bool {
        let was_open = self.state().replicas.remove(&id);
        if was_open && !self.close_replica(replica.volume, id).await {
            self.state().replicas.insert(id);
            return false;
        }
        let Some((mut devices, space)) = self.device(replica.device) else { return false };
        let forgotten = tokio::task::spawn_blocking(move || {
            let mut space = space.lock().expect("nobody panics with it");
            space.forget(&mut devices, Area::Log, ReplicaId(id)).map_err(|why| why.to_string())
        });
        match forgotten.await.unwrap_or_else(|_| Err("it could not be removed".into())) {
            Ok(()) => {
                let gone = Change { key: format!("replica/{id}"), expected: Some(version), value: None };
                self.commit(vec![gone]).await.unwrap_or(false)
            }
            Err(why) => {
                eprintln!("loadline: replica {id} is not removed: {why}");
                false
            }
        }
    }

    fn open_volume(&self, id: u64, volume: &Volume) {
        let watch = volume.attached.is_some();
        let known = self.state().volumes.insert(id, watch);
        let Ok(layout) = Layout::new(volume.stripes, volume.unit_blocks, volume.group_blocks) else { return };
        let orders = self.loop_of(id);
        match known {
            Some(was) if was == watch => {}
            Some(_) => _ = orders.give(Order::Watch(VolumeId(id), watch)),
            None => {
                let lease_ns = volume.lease_ms * 1_000_000;
                orders.give(Order::OpenVolume(OpenVolume { id: VolumeId(id), layout, lease_ns, watch }));
            }
        }
    }
}

fn identity(id: u64, replica: &Replica) -> Identity {
    Identity { volume: VolumeId(replica.volume), group: GroupIndex(replica.group), replica: ReplicaId(id) }
}

/// Random bits, from the system.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // Its keys come from the system's generator.
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
