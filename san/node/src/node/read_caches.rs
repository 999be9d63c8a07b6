//! Read caches of replicas whose data is on capacity devices: chunks of their log devices, which are lent to the loops that serve the replicas.
//!
//! ```text
//!   volume's size of cache ─▶ chunks lent ─▶ the loop uses them
//!   another size           ─▶ the loop writes nothing there any more ─▶ chunks given back ─▶ others lent
//! ```

use loadline_san_core::ids::ReplicaId;
use loadline_san_store::cache::Region;

use super::Node;
use crate::config::catalog::{Replica, Volume};
use crate::event_loop::command::LoopCommand;

/// What was lent to a replica.
#[derive(Debug)]
pub(super) struct Lent {
    /// The size of the cache that it is for, in bytes.
    bytes: u64,
    region: Region,
    log_device: u32,
    /// It is to be given back.
    is_wanted_back: bool,
}

impl Node {
    /// The read cache of an open replica becomes as large as its volume's configuration says. Returns whether that is done, or goes on by itself.
    pub(super) fn follow_cache(&self, id: u64, replica: &Replica, volume: &Volume) -> bool {
        let bytes = if replica.device == replica.log_device { 0 } else { volume.cache_bytes };
        let orders = self.loop_of(replica.volume);
        let mut state = self.state();
        // Of one for which there was no room, there may be room now.
        let had_none = state.caches.get(&id).is_some_and(|lent| lent.region.starts.is_empty());
        let was_refused = had_none && state.caches.remove(&id).is_some_and(|lent| lent.bytes == bytes);
        if let Some(lent) = state.caches.get_mut(&id) {
            if lent.bytes != bytes && !lent.is_wanted_back {
                lent.is_wanted_back = true;
                orders.give(LoopCommand::Cache(ReplicaId(id), Region::default()));
            }
            return true;
        }
        if bytes == 0 {
            return true;
        }
        let log_device = replica.log_device;
        let Some(space) = state.devices.get(&log_device).map(|open| open.space.clone()) else { return true };
        // While a thread writes its table, the device is left alone: this is tried again.
        let Ok(mut space) = space.try_lock() else { return false };
        let chunks = bytes.div_ceil(space.superblock().chunk_bytes) as u32;
        let region = space.lend(chunks);
        drop(space);
        let refused = region.is_none();
        let region = region.unwrap_or_default();
        if !refused {
            orders.give(LoopCommand::Cache(ReplicaId(id), region.clone()));
        }
        state.caches.insert(id, Lent { bytes, region, log_device, is_wanted_back: false });
        drop(state);
        if refused && !was_refused {
            let name = self.name_replica(id);
            tracing::warn!(
                replica = id,
                "{name} has no read cache: log device {log_device} has no room for it now"
            );
        }
        true
    }

    /// The loop of a replica does not use this for a cache any more. Others may wait for the room.
    pub(super) fn cache_given_back(&self, id: u64) {
        self.give_back_cache(id);
        let catalog = self.state().catalog.clone();
        let open = self.state().replicas.clone();
        for (id, (replica, _)) in catalog.replicas.iter().filter(|(id, _)| open.contains(id)) {
            if let Some((volume, _)) = catalog.volumes.get(&replica.volume) {
                self.follow_cache(*id, replica, volume);
            }
        }
    }

    /// What was lent to a replica, which is not open any more or does not use it, is free.
    pub(super) fn give_back_cache(&self, id: u64) {
        let mut state = self.state();
        let Some(lent) = state.caches.remove(&id) else { return };
        let Some(space) = state.devices.get(&lent.log_device).map(|open| open.space.clone()) else { return };
        drop(state);
        if let Ok(mut space) = space.try_lock() {
            space.give_back(&lent.region);
            return;
        }
        // Another thread writes the device's table, perhaps for long: nothing here waits for that.
        let give_back = move || space.lock().expect("no thread panics with it").give_back(&lent.region);
        tokio::task::spawn_blocking(give_back);
    }
}
