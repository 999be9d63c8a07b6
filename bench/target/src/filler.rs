//! What is free on a node's device: taken by a volume without clients, and given back.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;
use loadline_load::{Job, WritePermission, prepare_to_fill};
use serde_json::{Value, json};

use crate::api::Device;
use crate::cluster::{Cluster, VolumeSpec, pause};
use crate::error::TargetError;
use crate::filler_name::{PREFIX, filled_node};

/// Bytes of the largest part of a volume that is one replica: a larger volume has several, each with a log.
const GROUP: u64 = 16 << 30;
/// The log of each: the least, with which the SAN says what there is room for.
const LOG: ByteSize = ByteSize(32 << 20);
/// Volumes are whole blocks of so many bytes.
const BLOCK: u64 = 4096;
/// How long a node may take to remove the replicas of a volume that was deleted.
const REMOVED: Duration = Duration::from_secs(30);

impl Cluster {
    /// Takes what is free on a node's device: all that the SAN still promises, written with data that nothing makes smaller.
    /// An error if there is no room for another volume: then there is nothing to be done.
    pub(crate) fn fill_device(&self, index: usize, stop: &AtomicBool) -> Result<(), TargetError> {
        let filled = self.take_room(index, stop);
        filled.inspect_err(|_| {
            // As it was before. The error of the failure is reported; if this fails too, the next start removes what is left.
            let _ = self.empty_device(index, stop);
        })
    }

    fn take_room(&self, index: usize, stop: &AtomicBool) -> Result<(), TargetError> {
        for number in 0.. {
            let node = &self.nodes[index];
            let devices = node.api.status()?.devices;
            // A cluster of this machine gives each node one device with data.
            let here = devices.iter().filter(|device| device.node == node.name && device.role != "log");
            let size = here.map(|device| device.room).max().unwrap_or(0).min(GROUP) / BLOCK * BLOCK;
            match (size, number) {
                (0, 0) => {
                    let node = &node.name;
                    return Err(TargetError::failed(format!(
                        "nothing is free on the devices of {node}: they are as full as they get"
                    )));
                }
                (0, _) => break,
                _ => {}
            }
            self.write_filler(index, number, size, stop)?;
        }
        Ok(())
    }

    fn write_filler(
        &self,
        index: usize,
        number: u32,
        size: u64,
        stop: &AtomicBool,
    ) -> Result<(), TargetError> {
        let node = &self.nodes[index].name;
        let name = format!("{PREFIX}{number}-{node}");
        let volume = VolumeSpec {
            name: name.clone(),
            size: ByteSize(size),
            copies: 1,
            least: None,
            stripes: 1,
            log: Some(LOG),
            node: node.clone(),
        };
        let disk = self.volume(&volume)?;
        // The SAN places a volume elsewhere if another volume has just taken the room.
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
        for volume in self.alive()?.status()?.volumes {
            if filled_node(&volume.name) == Some(&node.name) {
                self.remove_filler(&volume.name)?;
            }
        }
        let begun = Instant::now();
        loop {
            // Replicas of a volume that was deleted are no volume's, until they are gone.
            let status = node.api.status()?;
            // Those whose logs are on another device count once.
            let with_data = |device: &&Device| device.node == node.name && device.role != "log";
            let here = status.devices.iter().filter(with_data);
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
            let volumes = self.alive()?.status()?.volumes;
            if volumes.iter().any(|volume| filled_node(&volume.name) == Some(&node.name)) {
                self.empty_device(index, stop)?;
            }
        }
        Ok(())
    }

    fn remove_filler(&self, name: &str) -> Result<(), TargetError> {
        let api = self.alive()?;
        // The load that fills it is done, and may still be disconnecting.
        api.post::<Value>(&format!("/v1/volumes/{name}/detach"), &json!({ "force": true }))?;
        api.delete::<Value>(&format!("/v1/volumes/{name}")).map(drop)
    }
}
