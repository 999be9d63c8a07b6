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
    /// The read cache of an open replica becomes as large as its volume's configuration says.
    pub(super) fn follow_cache(&self, id: u64, replica: &Replica, volume: &Volume) {
        let bytes = if replica.device == replica.log_device { 0 } else { volume.cache_bytes };
        let orders = self.loop_of(replica.volume);
        let mut state = self.state();
        // Of one for which there was no room, there may be room for another size.
        let had_none = |lent: &Lent| lent.bytes != bytes && lent.region.starts.is_empty();
        if state.caches.get(&id).is_some_and(had_none) {
            state.caches.remove(&id);
        }
        if let Some(lent) = state.caches.get_mut(&id) {
            if lent.bytes != bytes && !lent.is_wanted_back {
                lent.is_wanted_back = true;
                orders.give(LoopCommand::Cache(ReplicaId(id), Region::default()));
            }
            return;
        }
        if bytes == 0 {
            return;
        }
        let Some(space) = state.devices.get(&replica.log_device).map(|open| open.space.clone()) else {
            return;
        };
        // While a thread writes its table, the device is left alone: this is tried again.
        let Ok(mut space) = space.try_lock() else { return };
        let chunks = bytes.div_ceil(space.superblock().chunk_bytes) as u32;
        let lent = space.lend(chunks);
        drop(space);
        let region = match lent {
            Some(region) => region,
            None => {
                drop(state);
                let (name, device) = (self.name_replica(id), replica.log_device);
                tracing::warn!(
                    replica = id,
                    "{name} has no read cache: log device {device} has no room for it"
                );
                state = self.state();
                Region::default()
            }
        };
        if !region.starts.is_empty() {
            orders.give(LoopCommand::Cache(ReplicaId(id), region.clone()));
        }
        let log_device = replica.log_device;
        state.caches.insert(id, Lent { bytes, region, log_device, is_wanted_back: false });
    }

    /// The loop of a replica does not use this for a cache any more.
    pub(super) fn cache_given_back(&self, id: u64) {
        self.give_back_cache(id);
        self.reconcile_soon();
    }

    /// What was lent to a replica, which is not open any more or does not use it, is free.
    pub(super) fn give_back_cache(&self, id: u64) {
        let mut state = self.state();
        let Some(lent) = state.caches.remove(&id) else { return };
        let space = state.devices.get(&lent.log_device).map(|open| open.space.clone());
        drop(state);
        if let Some(space) = space {
            space.lock().expect("no thread panics with it").give_back(&lent.region);
        }
    }
}
