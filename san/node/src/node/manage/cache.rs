//! The read cache of a volume: how much of their log devices its copies use to answer reads.

use std::collections::BTreeMap;

use loadline_san_core::layout::BLOCK;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ManageError, no_room, room};
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, Volume, change};
use crate::node::{Node, allocation};

/// The smallest cache: fewer blocks would hold nothing for long.
const LEAST_CACHE: u64 = 4 << 20;

/// How large the read cache of each copy of a volume is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheVolume {
    /// Bytes of the log device of each copy whose data is on a capacity device; 0: no cache.
    pub bytes: u64,
}

impl Node {
    /// From now on each copy of a volume whose data is on a capacity device has a read cache of this size on its log device.
    pub async fn cache_volume(&self, name: &str, cache: CacheVolume) -> Result<(), ManageError> {
        let bytes = cache.bytes;
        if (1..LEAST_CACHE).contains(&bytes) {
            return Err(ManageError::Wrong(format!(
                "a read cache of {} is too small: give at least {}, or remove the cache ('loadline volume cache NAME --none')",
                no_room::size(bytes),
                no_room::size(LEAST_CACHE)
            )));
        }
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let name = name.to_owned();
        let set = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let Some((volume, version)) = catalog.volumes.get(&id) else { return Ok(Ok(())) };
                if let Err(why) = check(&catalog, id, &name, volume, bytes) {
                    return Ok(Err(why));
                }
                let next = Volume { cache_bytes: bytes, ..volume.clone() };
                // Of two commands at the same time that count the same free room, the key of the ids lets one commit.
                let changes = [change(format!("volume/{id}"), Some(*version), &next), catalog.take_ids(0).1];
                if store.commit(&changes)? {
                    return Ok(Ok(()));
                }
            }
            Err(ConfigError::Contended)
        });
        set.await??;
        self.reconcile_soon();
        Ok(())
    }
}

/// Whether the copies of a volume can have a cache of this size.
fn check(catalog: &Catalog, id: u64, name: &str, volume: &Volume, bytes: u64) -> Result<(), ManageError> {
    if bytes <= volume.cache_bytes {
        return Ok(());
    }
    let of_volume = catalog.replicas.values().filter(|(replica, _)| replica.volume == id);
    let cached: Vec<u32> =
        of_volume.filter(|(of, _)| of.device != of.log_device).map(|(of, _)| of.log_device).collect();
    if cached.is_empty() {
        return Err(ManageError::Wrong(format!(
            "a read cache is of no use for volume {name}: its copies have their data and their logs on the same devices. A cache is on the log \
             device of a copy whose data is on a capacity device"
        )));
    }
    let mut more: BTreeMap<u32, u64> = BTreeMap::new();
    for id in cached {
        let Some((device, _)) = catalog.devices.get(&id) else { continue };
        let blocks = |bytes| room::cache(bytes, device.bytes);
        *more.entry(id).or_default() += blocks(bytes) - blocks(volume.cache_bytes);
    }
    let devices = allocation::devices(catalog, |_| true);
    match devices.iter().find(|device| more.get(&device.id.0).is_some_and(|more| *more > device.free())) {
        None => Ok(()),
        Some(device) => {
            let node = catalog.nodes.get(&device.node.0).map_or("?", |(node, _)| &node.name);
            Err(ManageError::NoRoom(format!(
                "there is no room for the read cache of volume {name}: log device {} of {node} would have to take {} more, and has {} free: choose a \
                 smaller cache, or add a log device and move copies to it",
                device.id.0,
                no_room::size(more[&device.id.0] * BLOCK),
                no_room::size(device.free() * BLOCK)
            )))
        }
    }
}
