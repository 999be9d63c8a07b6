//! Limits of what the clients of volumes do a second, set in a cluster and read back.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::Volume;
use crate::cluster::{Cluster, pause};
use crate::error::TargetError;

/// How long a limit that was set may take until the cluster reports it.
const IN_FORCE: Duration = Duration::from_secs(10);
/// What a cluster takes for a burst if none is given, milliseconds.
const BURST_MS: u64 = 100;

/// How much the clients of one volume may do a second, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitOfVolume {
    /// Requests a second; `None`: any number.
    pub iops: Option<u64>,
    /// Bytes a second of reads and writes together; `None`: any number.
    pub bytes_per_s: Option<u64>,
    /// How much of the time before they may catch up, milliseconds; `None`: what the cluster thinks right, 100 ms.
    pub burst_ms: Option<u64>,
}

impl LimitOfVolume {
    /// A volume without a limit, as the API has it.
    const NONE: LimitOfVolume = LimitOfVolume { iops: None, bytes_per_s: None, burst_ms: None };

    fn is_same(self, other: LimitOfVolume) -> bool {
        let burst = |limit: LimitOfVolume| limit.burst_ms.unwrap_or(BURST_MS);
        (self.iops, self.bytes_per_s, burst(self)) == (other.iops, other.bytes_per_s, burst(other))
    }
}

impl Cluster {
    /// Gives each of these volumes this limit, or removes its limit, and waits until the cluster reports all of them so. Volumes that
    /// have it already are not changed; names of volumes that are not there are ignored. The error names the first volume that does
    /// not get its limit.
    pub fn limit_volumes(
        &self,
        names: &BTreeSet<String>,
        limit: Option<LimitOfVolume>,
        stop: &AtomicBool,
    ) -> Result<(), TargetError> {
        let api = self.alive()?;
        let begun = Instant::now();
        let mut is_set = false;
        loop {
            let volumes = api.status()?.volumes;
            let others =
                || volumes.iter().filter(|volume| names.contains(&volume.name) && !has(volume, limit));
            let Some(first) = others().next() else { return Ok(()) };
            if begun.elapsed() > IN_FORCE {
                return Err(TargetError::failed(format!(
                    "volume {}: {} s after its limit was changed the cluster reports another one",
                    first.name,
                    IN_FORCE.as_secs()
                )));
            }
            if !is_set {
                for volume in others() {
                    let path = format!("/v1/volumes/{}/limit", volume.name);
                    api.post::<Value>(&path, &limit.unwrap_or(LimitOfVolume::NONE))?;
                }
                is_set = true;
            }
            pause(stop)?;
        }
    }
}

/// Whether a volume has this limit, or none.
fn has(volume: &Volume, limit: Option<LimitOfVolume>) -> bool {
    match (volume.limit, limit) {
        (None, None) => true,
        (Some(has), Some(wanted)) => has.is_same(wanted),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_a_limit_whatever_the_burst_is_called() {
        let limit = |iops, burst_ms| LimitOfVolume { iops, bytes_per_s: None, burst_ms };
        let volume = |limit| Volume {
            name: "v".into(),
            health: None,
            attached: None,
            owner: None,
            replicas: Vec::new(),
            limit,
        };
        assert!(has(&volume(None), None));
        assert!(!has(&volume(Some(limit(Some(5), None))), None));
        assert!(!has(&volume(None), Some(limit(Some(5), None))));
        assert!(has(&volume(Some(limit(Some(5), Some(100)))), Some(limit(Some(5), None))), "the default");
        assert!(!has(&volume(Some(limit(Some(5), Some(100)))), Some(limit(Some(5), Some(200)))));
        assert!(!has(&volume(Some(limit(Some(6), None))), Some(limit(Some(5), None))));
    }
}
