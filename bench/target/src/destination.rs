//! How a machine that is migrated reaches its volumes at its destination.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_load::Target;
use loadline_load::nbd::uri::Server;
use serde_json::json;

use crate::api::{Use, Volume};
use crate::cluster::{Cluster, VolumeSpec, pause};
use crate::error::TargetError;

/// How long a volume may take to be owned by the node to which its machine has gone.
const FOLLOWS: Duration = Duration::from_secs(10);
/// How long it may take by itself. An attachment that waits ends, although its machine has started, if another node has owned the volume
/// since it was ordered: as after a lease that was lost on a busy host.
const BY_ITSELF: Duration = Duration::from_secs(2);

impl Cluster {
    /// How a machine reaches a volume once it has been migrated to a node, if it reaches it by `disk` now. A local disk is attached at that
    /// node too, and waits there until the machine starts; then the volume goes with it. By NBD the volume stays where it is, and is reached
    /// through that node. What is no volume stays as it is.
    pub fn at_destination(
        &self,
        volume: &VolumeSpec,
        disk: &Target,
        node: &str,
    ) -> Result<Target, TargetError> {
        match disk {
            Target::Vhost(_) => {
                let body = json!({ "node": node, "when_started": true });
                let used: Use = self.alive()?.post(&format!("/v1/volumes/{}/attach", volume.name), &body)?;
                let local = used.vhost_user().ok_or_else(|| {
                    TargetError::failed(format!("volume {}: node {node} serves no local disk", volume.name))
                })?;
                Ok(Target::Vhost(local.into()))
            }
            Target::Nbd(uri) => {
                let address = self
                    .address_of(node)
                    .ok_or_else(|| TargetError::failed(format!("there is no node {node} in the cluster")))?;
                let mut uri = uri.clone();
                if let Server::Tcp(host, _) = &mut uri.server {
                    *host = address.to_string();
                }
                Ok(Target::Nbd(uri))
            }
            other => Ok(other.clone()),
        }
    }

    /// Waits until a node owns a volume whose machine has been migrated there, and reaches it by `disk`. A volume that is still attached at
    /// another node after a while is attached there: whoever calls this knows where the machine runs.
    pub fn await_owner(
        &self,
        volume: &VolumeSpec,
        disk: &Target,
        node: &str,
        stop: &AtomicBool,
    ) -> Result<(), TargetError> {
        let begun = Instant::now();
        let mut is_attached = false;
        loop {
            // A node that does not answer now is asked again.
            let status = self.alive().and_then(|api| api.status());
            let known = status
                .ok()
                .and_then(|status| status.volumes.into_iter().find(|known| known.name == volume.name));
            if known.as_ref().and_then(|known| known.owner.as_deref()) == Some(node) {
                return Ok(());
            }
            let is_late = begun.elapsed() > BY_ITSELF && known.is_some_and(|known| has_stayed(&known, node));
            if is_late && !std::mem::replace(&mut is_attached, true) {
                self.attach_there(volume, disk, node)?;
                continue;
            }
            if begun.elapsed() > FOLLOWS {
                return Err(TargetError::failed(format!(
                    "volume {} did not follow its machine to {node} within {} s",
                    volume.name,
                    FOLLOWS.as_secs()
                )));
            }
            pause(stop)?;
        }
    }

    /// Attaches a volume at the node to which its machine has gone.
    fn attach_there(&self, volume: &VolumeSpec, disk: &Target, node: &str) -> Result<(), TargetError> {
        let (name, body) = (&volume.name, json!({ "node": node }));
        let used: Use = self
            .alive()
            .and_then(|api| api.post(&format!("/v1/volumes/{name}/attach"), &body))
            .map_err(|error| {
            TargetError::failed(format!(
                "volume {name} did not follow its machine to {node}: {}",
                error.message
            ))
        })?;
        match used.vhost_user() {
            Some(local) if Target::Vhost(local.into()) == *disk => Ok(()),
            local => Err(TargetError::failed(format!(
                "volume {name} did not follow its machine to {node}, and was attached there at {}, but the machine reaches it by {disk}",
                local.map_or_else(|| "no local disk".into(), |local| local.to_string())
            ))),
        }
    }
}

/// Whether a volume is known to be attached at another node than this one. Only then may it be attached there: an attach fails the writes
/// that are in flight by an attachment which has taken over already.
fn has_stayed(known: &Volume, node: &str) -> bool {
    known.attached.as_deref().is_some_and(|at| at != node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_is_about_to_follow_or_was_detached_is_not_attached_again() {
        let at = |attached: Option<&str>| Volume {
            name: "v".into(),
            health: None,
            attached: attached.map(str::to_owned),
            owner: None,
            replicas: Vec::new(),
            limit: None,
        };
        assert!(has_stayed(&at(Some("node-1")), "node-2"));
        assert!(!has_stayed(&at(Some("node-2")), "node-2"));
        assert!(!has_stayed(&at(None), "node-2"));
    }
}
