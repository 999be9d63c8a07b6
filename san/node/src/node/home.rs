//! The devices that a replica of this node has its log and its extents on: the same one twice, or two.
//!
//! What a replica has on a device bears its key. So another replica with the same id, from before the configuration was restored from
//! an older copy, is never taken for it, removed or overwritten, also if only one of the two devices can be used.

use std::sync::{Arc, Mutex, MutexGuard};

use loadline_san_core::ids::ReplicaId;
use loadline_san_device::file::Devices;
use loadline_san_protocol::device::DeviceId;
use loadline_san_store::io::Area;
use loadline_san_store::open::{NewReplica, create, was_promised, was_used};
use loadline_san_store::space::Space;

use super::NodeState;
use crate::config::catalog::Replica;
use crate::unusable::Unusable;

/// Why a copy is not removed that an interrupted command has left.
const USED: &str = "an interrupted command has left it according to the configuration, but it was used, so an older configuration was put back. \
                    Put the newest configuration back while no node runs: then the volume is served again, or, if it was served with the \
                    older one meanwhile, 'loadline volume recover' decides. If the newest configuration is lost, 'loadline device replace' \
                    moves all other copies away and leaves the device as it is";

/// The devices of a replica, open, and what they begin with.
pub(super) struct Home {
    pub(super) devices: Devices,
    pub(super) log: Arc<Mutex<Space>>,
    /// The same as `log` if one device has both.
    pub(super) capacity: Arc<Mutex<Space>>,
}

fn lock(space: &Mutex<Space>) -> MutexGuard<'_, Space> {
    space.lock().expect("no thread panics with it")
}

/// Gives back all that a replica has on a device. That may be much: others get at the device's table in between.
fn forget(
    space: &Mutex<Space>,
    devices: &mut Devices,
    area: Area,
    id: ReplicaId,
    key: u64,
) -> Result<(), String> {
    while lock(space).forget_one(devices, area, id, key).map_err(|why| why.to_string())? {}
    Ok(())
}

impl NodeState {
    /// The devices of a replica. `None` while one of them cannot be used.
    pub(super) fn home(&self, replica: &Replica) -> Option<Home> {
        let log = self.devices.get(&replica.log_device)?;
        let capacity = self.devices.get(&replica.device)?;
        let is_one = replica.device == replica.log_device;
        let devices = Devices {
            log: log.file.share().ok()?,
            capacity: (!is_one).then(|| capacity.file.share()).transpose().ok()?,
        };
        Some(Home { devices, log: log.space.clone(), capacity: capacity.space.clone() })
    }

    /// A device alone, with what it begins with. `None` while it cannot be used.
    fn alone(&self, device: u32) -> Option<(Devices, Arc<Mutex<Space>>)> {
        let open = self.devices.get(&device)?;
        Some((Devices { log: open.file.share().ok()?, capacity: None }, open.space.clone()))
    }

    /// Of the devices of a replica, of which one cannot be used or has failed, the other: what it has of it can be given back.
    pub(super) fn usable_half(&self, replica: &Replica) -> Option<HalfHome> {
        let failed = match &replica.unusable {
            Some(Unusable::Failed { device, .. }) => Some(*device),
            _ => None,
        };
        let devices = [replica.device, replica.log_device].into_iter();
        devices.filter(|device| Some(*device) != failed).find_map(|device| {
            let (devices, space) = self.alone(device)?;
            Some(HalfHome { devices, space })
        })
    }

    /// Whether a device may have something of a replica. It has nothing if it cannot be used: then it has to be replaced.
    pub(super) fn may_hold(&self, device: u32, id: u64, key: u64) -> bool {
        match self.devices.get(&device) {
            // A thread that has the lock writes there.
            Some(open) => {
                open.space.try_lock().map_or(true, |space| space.key_of(ReplicaId(id)) == Some(key))
            }
            None => !self.broken.contains_key(&device),
        }
    }
}

/// The one device of a replica that can be used.
pub(super) struct HalfHome {
    devices: Devices,
    space: Arc<Mutex<Space>>,
}

impl HalfHome {
    /// Gives back what it has of the replica with this id and key.
    pub(super) fn forget(&mut self, id: ReplicaId, key: u64) -> Result<(), String> {
        forget(&self.space, &mut self.devices, Area::Log, id, key)
    }
}

impl Home {
    fn spaces(&self) -> Vec<(Area, &Arc<Mutex<Space>>)> {
        match Arc::ptr_eq(&self.log, &self.capacity) {
            true => vec![(Area::Log, &self.log)],
            // The log goes first: without it the replica is gone.
            false => vec![(Area::Log, &self.log), (Area::Capacity, &self.capacity)],
        }
    }

    /// The keys of replicas with this id on these devices.
    fn keys(&self, id: ReplicaId) -> Vec<u64> {
        self.spaces().into_iter().filter_map(|(_, space)| lock(space).key_of(id)).collect()
    }

    /// Whether a device has another replica with this id: one that was made with another key.
    fn has_another(&self, id: ReplicaId, key: u64) -> bool {
        self.keys(id).iter().any(|there| *there != key)
    }

    fn give_back(&mut self, id: ReplicaId, key: u64) -> Result<(), String> {
        let Home { devices, log, capacity } = self;
        // What one device cannot give back is no reason to keep what is on the other.
        let of_log = forget(log, devices, Area::Log, id, key);
        let of_capacity = match Arc::ptr_eq(log, capacity) {
            true => Ok(()),
            false => forget(capacity, devices, Area::Capacity, id, key),
        };
        of_log.and(of_capacity)
    }

    /// Makes an empty replica. If making it was begun before, it begins again. The error says why it is not made: none is made in the place of
    /// one with the same id that may have been used.
    pub(super) fn make(&mut self, new: &NewReplica) -> Result<(), String> {
        let id = new.id.replica;
        if self.has_another(id, new.key) {
            return Err("its device already holds another replica with the same id, which was made before an older copy of \
                 the configuration was put back. Put the newer configuration back, or blank the device and add it again"
                .into());
        }
        if !self.keys(id).is_empty() {
            let used = was_used(&mut self.devices, &lock(&self.log), id).map_err(|why| why.to_string())?;
            if used {
                return Err(Replica::USED_BEFORE.into());
            }
            self.give_back(id, new.key)?;
        }
        let device: DeviceId = lock(&self.capacity).superblock().device;
        create(&mut self.devices, &mut lock(&self.log), device, new).map_err(|why| why.to_string())
    }

    /// Removes the replica with this id and key, if it is there. Returns why it stays: with `unless_used`, one that may have data
    /// of clients does.
    pub(super) fn forget(
        &mut self,
        id: ReplicaId,
        key: u64,
        unless_used: bool,
    ) -> Result<Option<String>, String> {
        let has_log = lock(&self.log).key_of(id) == Some(key);
        if unless_used && has_log {
            match was_promised(&mut self.devices, &lock(&self.log), id) {
                Ok(false) => {}
                Ok(true) => return Ok(Some(USED.into())),
                Err(why) => {
                    return Ok(Some(format!("it cannot be read whether the copy has data: {why}")));
                }
            }
        }
        self.give_back(id, key)?;
        Ok(None)
    }
}
