//! Copies of a node that is gone for good are made anew elsewhere, as `san/node/src/node/moving.rs` does it when the node is drained: the
//! owner of a volume chooses a place, the copy is made, becomes a member, receives the data, and the old one is forgotten.

use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::placement::{DeviceId, place_one};
use loadline_san_core::record::RecordState;
use loadline_san_core::volume::{Event, VolumeCommand};

use super::config::Call;
use super::{BLOCKS, Happening, NEED, World};
use crate::store::new_store;
use crate::time::{MS, Time};

/// The time from one search for copies to move to the next.
pub(in crate::scale) const STEP: Time = 300 * MS;

const GROUP: GroupIndex = GroupIndex(0);

/// A copy that is made in the stead of another.
#[derive(Debug, Clone, Copy)]
pub(in crate::scale) struct Successor {
    replica: ReplicaId,
    home: usize,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is in the catalog, and its node makes it.
    Wanted,
    /// It is durable on its device, and the catalog records that.
    Ready,
    /// The volume got the command to add it.
    Added,
    /// It is in sync, and the volume got the command to remove the old one.
    Instead,
    /// The catalog does not name the old one any more.
    Done,
}

impl World {
    /// The volumes that a node owns go on by a step each.
    pub(in crate::scale) fn move_copies(&mut self, node: usize, life: u64) {
        if !self.is_alive(node, life) {
            return;
        }
        self.after(STEP, Happening::Move(node, life));
        let Some(gone) = self.replaced else { return };
        for volume in self.volumes_of(node) {
            let record = &self.volumes[volume].record;
            if record.owner.node.0 as usize != node || record.state != RecordState::Active {
                continue;
            }
            let old = record.homes.iter().find(|(_, home)| home.0 as usize == gone).map(|(old, _)| *old);
            self.move_on(node, volume, old);
        }
    }

    fn move_on(&mut self, node: usize, volume: usize, old: Option<ReplicaId>) {
        let group = &self.volumes[volume].record.groups[0];
        let successor = self.successors.get(&volume).copied();
        match (successor, old) {
            (None, Some(_)) => self.call(node, Call::Plan(volume)),
            (Some(Successor { replica, home, stage: Stage::Ready }), Some(_)) => {
                let home = NodeId(home as u32);
                self.command(node, volume, VolumeCommand::Add { group: GROUP, replica, home });
                self.reaches(volume, Stage::Added);
            }
            (Some(Successor { replica, stage: Stage::Added, .. }), Some(old))
                if group.in_sync.contains(&replica) =>
            {
                let command = match group.in_sync.contains(&old) {
                    true => VolumeCommand::Remove { group: GROUP, replica: old, instead: Some(replica) },
                    false => VolumeCommand::Forget { group: GROUP, replica: old },
                };
                self.command(node, volume, command);
                self.reaches(volume, Stage::Instead);
            }
            (Some(Successor { stage: Stage::Instead, .. }), None) => {
                self.reaches(volume, Stage::Done);
                self.call(node, Call::Note(volume));
            }
            _ => {}
        }
    }

    fn command(&mut self, node: usize, volume: usize, command: VolumeCommand) {
        self.step_volume(node, volume, Event::Command(command));
    }

    fn reaches(&mut self, volume: usize, stage: Stage) {
        if let Some(successor) = self.successors.get_mut(&volume) {
            successor.stage = stage;
        }
    }

    /// A place for a copy was chosen, and is in the catalog. Its node makes it.
    pub(in crate::scale) fn planned(&mut self, _node: usize, volume: usize) {
        let Some(gone) = self.replaced.filter(|_| !self.successors.contains_key(&volume)) else { return };
        self.devices[gone].accepts = false;
        let homes = self.volumes[volume].record.homes.values();
        let kept: Vec<DeviceId> =
            homes.map(|home| DeviceId(home.0)).filter(|d| d.0 as usize != gone).collect();
        let device = match place_one(&self.devices, 0, NEED, &kept) {
            Ok(place) => place.device.0 as usize,
            Err(why) => {
                self.violations.push(format!("there is no place for a copy of volume {volume}: {why}"));
                return;
            }
        };
        self.devices[device].promised += BLOCKS;
        self.replicas_made += 1;
        let replica = ReplicaId(self.replicas_made);
        self.successors.insert(volume, Successor { replica, home: device, stage: Stage::Wanted });
        self.nodes[device].stores.insert(replica, new_store(replica, false));
        self.open(device, volume, replica);
        self.call(device, Call::Note(volume));
    }

    /// The catalog was changed for a copy of a volume.
    pub(in crate::scale) fn noted(&mut self, _node: usize, volume: usize) {
        if self.successors.get(&volume).is_some_and(|successor| successor.stage == Stage::Wanted) {
            self.reaches(volume, Stage::Ready);
        }
    }

    /// Whether no volume names a copy of a node any more.
    pub(in crate::scale) fn is_replaced(&self, node: usize) -> bool {
        self.volumes.iter().all(|of| of.record.homes.values().all(|home| home.0 as usize != node))
    }
}
