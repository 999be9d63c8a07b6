//! What is free on a node's device: taken by a volume that nobody uses, and given back.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;
use loadline_load::{Job, WritePermission, prepare_to_fill};
use serde_json::{Value, json};

use crate::api::Device;
use crate::cluster::{Cluster, VolumeSpec, pause};
use crate::error::TargetError;

/// What the names of such volumes begin with; behind it is the node.
const PREFIX: &str = "loadline-filler-";
/// Bytes of the log that the SAN makes for each replica: they are taken too.
const LOG: u64 = 256 << 20;
/// Bytes of the largest part of a volume that is one replica: a larger volume has several, each with a log.
const GROUP: u64 = 16 << 30;
/// Bytes of an extent, which the SAN keeps data in, and of the slot that says what is in it.
const EXTENT: u64 = 256 << 10;
const SLOT: u64 = 512;
/// Bytes that each replica holds free for what is in flight, or as many as its data has: with less it takes no writes.
const SPARE: u64 = 2048 * EXTENT;
/// Volumes are whole blocks of so many bytes.
const BLOCK: u64 = 4096;
/// How long a node may take to remove the replicas of a volume that was deleted.
const REMOVED: Duration = Duration::from_secs(30);

/// Whether a volume only fills a device: nobody's data is on it, and nobody misses a copy of it.
pub(crate) fn is_filler(volume: &str) -> bool {
    volume.starts_with(PREFIX)
}

impl Cluster {
    /// Takes what is free on a node's device: all that the SAN still promises, written with data that nothing makes smaller.
    /// Nothing is done if there is no room for another volume.
    pub(crate) fn fill_device(&self, index: usize, stop: &AtomicBool) -> Result<(), TargetError> {
        let node = &self.nodes[index];
        let devices = node.api.status()?.devices;
        // A cluster of this machine gives each node one device.
        let room = devices.iter().filter(|device| device.node == node.name).filter_map(fits).max();
        let Some(size) = room else { return Ok(()) };
        self.write_filler(index, size, stop).inspect_err(|_| {
            // As it was before. Why it failed is what is told; if this fails too, a start removes what is left.
            let _ = self.empty_device(index, stop);
        })
    }

    fn write_filler(&self, index: usize, size: u64, stop: &AtomicBool) -> Result<(), TargetError> {
        let node = &self.nodes[index].name;
        let name = format!("{PREFIX}{node}");
        let volume = VolumeSpec {
            name: name.clone(),
            size: ByteSize(size),
            copies: 1,
            stripes: 1,
            node: node.clone(),
        };
        let disk = self.volume(&volume)?;
        // The SAN places a volume elsewhere if somebody else has just taken the room.
        let volumes = self.nodes[index].api.status()?.volumes;
        let made = volumes.iter().find(|made| made.name == name);
        if made.is_none_or(|made| made.replicas.iter().any(|replica| replica.node != *node)) {
            return Err(TargetError::failed(format!(
                "{node} cannot be filled: its room was given to another volume meanwhile. Try again"
            )));
        }
        // By NBD: a path of a socket must be short, and this one would have the long name of the volume in it.
        let disk = loadline_load::Disk { target: disk.nbd, writes: WritePermission::Destroy };
        let job = Job::new(vec![disk], Default::default());
        let filled = prepare_to_fill(&job).and_then(|mut job| job.fill(stop, &mut |_, _| ()));
        filled.map_err(|error| TargetError {
            kind: error.kind,
            message: format!("the devices of {node} cannot be filled: {error}"),
        })
    }

    /// Gives back what filling a node's device took, and waits until it is free.
    pub(crate) fn empty_device(&self, index: usize, stop: &AtomicBool) -> Result<(), TargetError> {
        let node = &self.nodes[index];
        self.remove_filler(&format!("{PREFIX}{}", node.name))?;
        let begun = Instant::now();
        loop {
            // Replicas of a volume that was deleted are no volume's, until they are gone.
            let status = node.api.status()?;
            let here = status.devices.iter().filter(|device| device.node == node.name);
            let all: usize = here.map(|device| device.replicas).sum();
            let replicas = status.volumes.iter().flat_map(|volume| &volume.replicas);
            if replicas.filter(|replica| replica.node == node.name).count() >= all {
                return Ok(());
            }
            if begun.elapsed() > REMOVED {
                return Err(TargetError::failed(format!(
                    "{} has not given back within {} s what its devices were filled with",
                    node.name,
                    REMOVED.as_secs()
                )));
            }
            pause(stop)?;
        }
    }

    /// Removes what fills devices since this folder's cluster ran last.
    pub(crate) fn remove_fillers(&self, stop: &AtomicBool) -> Result<(), TargetError> {
        for (index, node) in self.nodes.iter().enumerate() {
            let name = format!("{PREFIX}{}", node.name);
            if self.alive()?.status()?.volumes.iter().any(|volume| volume.name == name) {
                self.empty_device(index, stop)?;
            }
        }
        Ok(())
    }

    fn remove_filler(&self, name: &str) -> Result<(), TargetError> {
        let api = self.alive()?;
        if !api.status()?.volumes.iter().any(|volume| volume.name == name) {
            return Ok(());
        }
        // Whoever fills it is done, and may still be letting go.
        api.post::<Value>(&format!("/v1/volumes/{name}/detach"), &json!({ "force": true }))?;
        api.delete::<Value>(&format!("/v1/volumes/{name}")).map(drop)
    }
}

/// The largest volume of one copy for which a device has room after all that it has promised, whether that is written yet or
/// not: who was promised room must not be refused it because nobody's data is there.
fn fits(device: &Device) -> Option<u64> {
    // As the SAN makes them: a log has whole chunks, and data has what their slots leave of others.
    let chunk = (device.bytes / 512).clamp(1 << 20, 64 << 20).next_power_of_two();
    let in_chunk = chunk / (EXTENT + SLOT) * EXTENT;
    let of_log = LOG.div_ceil(chunk);
    let replicas = device.replicas as u64;
    let data = device.promised.saturating_sub(replicas * LOG);
    let of_data = (data + data.min(replicas * SPARE)).div_ceil(in_chunk);
    // The last chunk of each replica is not full. One more of each is for what a chunk was when the device was made.
    let used = replicas * of_log + of_data + 2 * replicas + 2;
    let free = (device.bytes / chunk).saturating_sub(used);
    let of_group = of_log + (GROUP + SPARE).div_ceil(in_chunk);
    let rest = (free % of_group).saturating_sub(of_log) * in_chunk;
    // What it holds free is taken too.
    let rest = (rest / 2).max(rest.saturating_sub(SPARE)) / BLOCK * BLOCK;
    let size = free / of_group * GROUP + rest.min(GROUP);
    (size > 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn device(bytes: u64, replicas: usize, data: u64) -> Device {
        let promised = replicas as u64 * LOG + data;
        Device { id: 1, node: "n".into(), bytes, promised, replicas }
    }

    #[test]
    fn what_fills_a_device_leaves_what_was_promised_and_the_slots_of_all() {
        // Chunks of 4 MiB, with 15 extents each: 320, of which 64 are a log. Half of the rest is held free.
        let empty = fits(&device(1280 * MIB, 0, 0)).unwrap();
        assert_eq!(empty, (320 - 2 - 64) * 15 * EXTENT / 2);
        // Two replicas of 32 MiB: 35 chunks for them and what they hold free, two logs, and two for each replica.
        let two = fits(&device(1280 * MIB, 2, 64 * MIB)).unwrap();
        assert_eq!(two, (320 - 2 - 64 - 2 * 64 - 35 - 4) * 15 * EXTENT / 2);
        assert_eq!(fits(&device(1280 * MIB, 4, 128 * MIB)), None, "there is no room for another log");
        assert_eq!(fits(&device(0, 0, 0)), None);
    }

    #[test]
    fn each_part_of_what_fills_a_large_device_has_a_log_and_something_free() {
        // Chunks of 64 MiB, with 255 extents each.
        let chunks = |data: u64| data.div_ceil(255 * EXTENT);
        let large = (1 << 40) / (64 * MIB) - 2;
        let size = fits(&device(1 << 40, 0, 0)).unwrap();
        let (whole, rest) = (size / GROUP, size % GROUP);
        assert!(whole > 50 && rest > 0, "{size}");
        let used = whole * (4 + chunks(GROUP + SPARE)) + 4 + chunks(rest + SPARE.min(rest));
        assert!((large - 2..=large).contains(&used), "{used} of {large}");
    }
}
