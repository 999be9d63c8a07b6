//! Where volumes are served whose node is gone.

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::api::NOT_SERVED;
use crate::cluster::{Cluster, Disk, VolumeSpec, pause};
use crate::error::TargetError;
use crate::node_state::NodeState;

/// How long the volumes of a node that is gone may take to be served by another.
const TAKEN_OVER: Duration = Duration::from_secs(30);

impl Cluster {
    /// Which node owns a volume now, and how it is used, as [`taken_over`](Self::taken_over) says it, which is waited for.
    pub fn placed(&self, volume: &VolumeSpec, stop: &AtomicBool) -> Result<(String, Disk), TargetError> {
        let begun = Instant::now();
        loop {
            if let Some(placed) = self.taken_over(volume)? {
                return Ok(placed);
            }
            if begun.elapsed() > TAKEN_OVER {
                return Err(TargetError::failed(format!(
                    "volume {} of {} was not taken over by another node within {} s",
                    volume.name,
                    volume.node,
                    TAKEN_OVER.as_secs()
                )));
            }
            pause(stop)?;
        }
    }

    /// The same of a volume whose machine is apart from it: owned by another node that has a copy, and reached through its own
    /// node, over the network. Where no such node is unharmed it is as [`placed`](Self::placed) says.
    pub fn placed_away(&self, volume: &VolumeSpec, stop: &AtomicBool) -> Result<(String, Disk), TargetError> {
        let is_whole =
            |name: &str| self.nodes.iter().any(|node| node.name == name && node.state == NodeState::Up);
        // Made first, if it is not there.
        let (owner, disk) = self.placed(volume, stop)?;
        let known = self.alive()?.status()?.volumes.into_iter().find(|known| known.name == volume.name);
        let replicas = known.map(|known| known.replicas).unwrap_or_default();
        let in_sync = replicas.iter().filter(|replica| replica.state == "in sync");
        let other = in_sync.map(|replica| &replica.node).find(|node| **node != volume.node && is_whole(node));
        let (Some(other), true) = (other, is_whole(&volume.node)) else { return Ok((owner, disk)) };
        let there = self.volume(&VolumeSpec { node: other.clone(), ..volume.clone() })?;
        let (own, owners) = (self.address_of(&volume.node), self.address_of(other));
        // Every node serves every volume, those of others by asking them.
        let through = own
            .zip(owners)
            .map(|(own, owners)| there.nbd.to_string().replacen(&owners.to_string(), &own.to_string(), 1));
        let nbd = through.and_then(|text| text.parse().ok()).ok_or_else(|| {
            TargetError::failed(format!("volume {}: {} names no address of a node", volume.name, there.nbd))
        })?;
        Ok((other.clone(), Disk { nbd, is_new: disk.is_new, ..there }))
    }

    /// A node's address.
    pub(crate) fn address_of(&self, name: &str) -> Option<IpAddr> {
        self.nodes.iter().find(|node| node.name == name).map(|node| node.address.ip())
    }

    /// How a volume is used now, if it is served: at its own node if nothing was done to that, else at whichever has taken it
    /// over, with that node's name. `None` while no node has.
    pub fn taken_over(&self, volume: &VolumeSpec) -> Result<Option<(String, Disk)>, TargetError> {
        // A node that is slow, cut off or without a device keeps its volumes; a node that is gone is excluded.
        let is_gone = |name: &str| {
            let node = self.nodes.iter().find(|node| node.name == name);
            node.is_none_or(|node| node.state.is_gone())
        };
        if !is_gone(&volume.node) {
            return Ok(Some((volume.node.clone(), self.volume(volume)?)));
        }
        let seen = self.alive()?.status()?.volumes.into_iter().find(|known| known.name == volume.name);
        let served =
            seen.filter(|seen| seen.health.as_deref().is_some_and(|health| !NOT_SERVED.contains(&health)));
        let Some(owner) = served.and_then(|seen| seen.owner).filter(|owner| !is_gone(owner)) else {
            return Ok(None);
        };
        let disk = self.volume(&VolumeSpec { node: owner.clone(), ..volume.clone() })?;
        Ok(Some((owner, disk)))
    }
}
