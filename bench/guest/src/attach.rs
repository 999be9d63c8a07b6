//! Devices that come and go while a machine runs: disks, and files of the host as memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::Flock;
use serde_json::{Value, json};

use crate::bus::{Behind, Bus};
use crate::disk::{MachineDisk, OpenFile};
use crate::error::GuestError;
use crate::qmp::QmpError;
use crate::vhost_server;

/// The places of the machine's bus that devices get; those before are the board's own.
const PLACES: std::ops::Range<u8> = 8..32;
/// How long a machine may take to let a device go.
const DETACH_LIMIT: Duration = Duration::from_secs(30);

/// What is attached.
#[derive(Debug, Clone, PartialEq)]
enum Device {
    Disk { disk: MachineDisk, writable: bool },
    Memory { path: PathBuf, open: OpenFile, length: u64 },
}

impl Device {
    fn behind(&self) -> Behind {
        match self {
            Device::Disk { disk: MachineDisk::VhostUser(_), .. } => Behind::Socket,
            Device::Disk { .. } => Behind::Block,
            Device::Memory { .. } => Behind::Memory,
        }
    }

    /// In words.
    fn name(&self) -> String {
        match self {
            Device::Disk { disk, .. } => disk.name(),
            Device::Memory { path, .. } => path.display().to_string(),
        }
    }
}

/// The devices of one machine.
#[derive(Debug)]
pub struct Devices {
    bus: Box<dyn Bus>,
    used: BTreeMap<u8, Device>,
    /// Locks of files that a migration has made, by place.
    locks: BTreeMap<u8, Flock<File>>,
    stuck: Option<String>,
}

impl Devices {
    pub(crate) fn new(bus: Box<dyn Bus>) -> Devices {
        Devices { bus, used: BTreeMap::new(), locks: BTreeMap::new(), stuck: None }
    }

    /// Attaches a disk, and returns its PCI address in the machine.
    pub fn attach(&mut self, disk: &MachineDisk, writable: bool) -> Result<String, GuestError> {
        let name = disk.name();
        let place = self.place(&name)?;
        self.add(place, Device::Disk { disk: disk.clone(), writable }, &name)
    }

    /// Attaches a file of the host as memory, and returns the PCI address of its device, whose second resource it is. `open` is the file that
    /// was opened at this path. Its length is a power of two, at least 1 MiB.
    pub fn share(&mut self, path: &Path, open: OpenFile, length: u64) -> Result<String, GuestError> {
        let name = path.display().to_string();
        let place = self.place(&name)?;
        self.add(place, Device::Memory { path: path.into(), open, length }, &name)
    }

    /// The same devices at the same places of another machine, which this one is about to become: with other disks in place of those that
    /// are first in `disks`, and with the files of `memory` as memory.
    pub(crate) fn copied_to(
        &self,
        bus: Box<dyn Bus>,
        disks: &[(MachineDisk, MachineDisk)],
        memory: &BTreeMap<PathBuf, (PathBuf, OpenFile)>,
    ) -> Result<Devices, GuestError> {
        let has = |wanted: &MachineDisk| {
            self.used.values().any(|device| matches!(device, Device::Disk { disk, .. } if disk == wanted))
        };
        if let Some((missing, _)) = disks.iter().find(|(before, _)| !has(before)) {
            return Err(GuestError::failed(format!("the virtual machine has no disk {}", missing.name())));
        }
        let mut copied = Devices::new(bus);
        for (place, device) in &self.used {
            let mut device = device.clone();
            match &mut device {
                Device::Disk { disk, .. } => {
                    if let Some((_, other)) = disks.iter().find(|(before, _)| before == disk) {
                        disk.clone_from(other);
                    }
                }
                Device::Memory { path, open, .. } => {
                    if let Some((copy, opened)) = memory.get(path) {
                        path.clone_from(copy);
                        open.clone_from(opened);
                    }
                }
            }
            let name = device.name();
            copied.add(*place, device, &name)?;
        }
        Ok(copied)
    }

    /// Whether the machine can go to another host, with other disks in place of those that are first in `disks`: the error names what only
    /// this host has.
    pub(crate) fn can_leave_the_host(&self, disks: &[(MachineDisk, MachineDisk)]) -> Result<(), GuestError> {
        let stays = |device: &&Device| match device {
            Device::Memory { .. } => true,
            Device::Disk { disk, .. } => {
                disk.is_of_one_host() && disks.iter().all(|(before, _)| before != disk)
            }
        };
        match self.used.values().find(stays) {
            None => Ok(()),
            Some(device) => Err(GuestError::failed(format!(
                "{} is of this host, and does not move with a machine to another one",
                device.name()
            ))),
        }
    }

    /// The files of the host that are memory of the machine, with their lengths.
    pub(crate) fn shared_files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.used.values().filter_map(|device| match device {
            Device::Memory { path, length, .. } => Some((path.as_path(), *length)),
            Device::Disk { .. } => None,
        })
    }

    /// A file that is memory has another name, and is locked as long as it is attached.
    pub(crate) fn rename(&mut self, from: &Path, to: &Path, mut lock: Option<Flock<File>>) {
        for (place, device) in &mut self.used {
            if let Device::Memory { path, .. } = device
                && path == from
            {
                *path = to.into();
                self.locks.extend(lock.take().map(|lock| (*place, lock)));
            }
        }
    }

    /// Takes a device away that is at this address. A device that the machine does not let go within half a minute is an error.
    pub fn detach(&mut self, address: &str) -> Result<(), GuestError> {
        let found = self.used.iter().find(|(place, _)| address_of(**place) == address);
        let Some((place, behind)) = found.map(|(place, device)| (*place, device.behind())) else {
            return Err(GuestError::failed(format!(
                "the virtual machine has no device at {address} to take away"
            )));
        };
        let failed = |e: QmpError| {
            GuestError::failed(format!(
                "the device at {address} cannot be taken from the virtual machine: {e}"
            ))
        };
        let removed = match behind {
            Behind::Memory => self.remove_memory(place),
            Behind::Block | Behind::Socket => self.bus.remove_disk(place, behind, DETACH_LIMIT),
        };
        removed.map_err(|e| match e {
            QmpError::Broken(why) if why.kind() == io::ErrorKind::TimedOut => GuestError::failed(format!(
                "the virtual machine did not let the device at {address} go within {DETACH_LIMIT:?}"
            )),
            other => failed(other),
        })?;
        self.used.remove(&place);
        self.locks.remove(&place);
        Ok(())
    }

    /// QEMU's own answer to a command, for what is not a device.
    pub fn command(&mut self, name: &str, arguments: Value) -> Result<Value, QmpError> {
        self.bus.command(name, arguments)
    }

    fn place(&self, name: &str) -> Result<u8, GuestError> {
        PLACES.into_iter().find(|place| !self.used.contains_key(place)).ok_or_else(|| {
            GuestError::usage(format!(
                "{name} cannot be attached: a virtual machine has {} places for disks and journals; use fewer disks for each worker",
                PLACES.len()
            ))
        })
    }

    fn add(&mut self, place: u8, device: Device, name: &str) -> Result<String, GuestError> {
        let attached = match &device {
            Device::Disk { disk, writable } => self.add_disk(place, disk, *writable),
            Device::Memory { path, open, length } => self.add_memory(place, path, open, *length),
        };
        match attached {
            Ok(()) => {
                self.used.insert(place, device);
                Ok(address_of(place))
            }
            Err(QmpError::Refused(why)) => {
                let advice = match why.contains("nknown driver") || why.contains("does not accept value") {
                    true => {
                        "; QEMU has its drivers for storage of others in a package of its own: apt install qemu-block-extra"
                    }
                    false => "",
                };
                Err(GuestError::usage(format!(
                    "{name} cannot be attached to the virtual machine: {why}{advice}"
                )))
            }
            Err(broken) => Err(GuestError::failed(format!("{name} cannot be attached: {broken}"))),
        }
    }

    fn add_disk(&mut self, place: u8, disk: &MachineDisk, writable: bool) -> Result<(), QmpError> {
        let MachineDisk::VhostUser(socket) = disk else {
            return self.bus.add_disk(place, disk, writable).map(drop);
        };
        // On another host QEMU finds that out.
        if self.bus.is_here() {
            vhost_server::is_there(socket, vhost_server::LIMIT).map_err(QmpError::Refused)?;
        }
        self.bus.add_disk(place, disk, writable).map(drop).map_err(|error| match error {
            QmpError::Broken(why) if why.kind() == io::ErrorKind::TimedOut => {
                let why = "it waits for the server of the disk, which says nothing or has another client, and the virtual machine stands \
                           still: start the server again, or end its other client";
                self.stuck = Some(format!("{}: QEMU does not answer: {why}", disk.name()));
                QmpError::Broken(io::Error::other(why))
            }
            other => other,
        })
    }

    /// Why QEMU answers nothing any more, if it waits for something without end: its machine can only be ended.
    pub(crate) fn stuck(&self) -> Option<&String> {
        self.stuck.as_ref()
    }

    fn add_memory(&mut self, place: u8, path: &Path, open: &OpenFile, length: u64) -> Result<(), QmpError> {
        let handed = self.bus.hand_over(place, path, open)?;
        let added = self.add_memory_of(place, &handed, length);
        // QEMU has it as memory, and needs no name of it any more.
        self.bus.take_back(place);
        added
    }

    fn add_memory_of(&mut self, place: u8, path: &Path, length: u64) -> Result<(), QmpError> {
        let memory = format!("node{place}");
        let object = json!({ "qom-type": "memory-backend-file", "id": memory, "mem-path": path, "size": length, "share": true });
        self.bus.command("object-add", object)?;
        // A machine with the memory of another master is not migrated.
        let device = json!({ "driver": "ivshmem-plain", "id": format!("device{place}"), "memdev": memory,
            "addr": format!("{place:#x}"), "master": "on" });
        match self.bus.command("device_add", device) {
            Ok(_) => Ok(()),
            Err(error) => {
                // The error says more than what follows from it.
                let _ = self.bus.command("object-del", json!({ "id": memory }));
                Err(error)
            }
        }
    }

    fn remove_memory(&mut self, place: u8) -> Result<(), QmpError> {
        let device = format!("device{place}");
        self.bus.command("device_del", json!({ "id": device }))?;
        self.bus.device_is_gone(&device, DETACH_LIMIT)?;
        self.bus.command("object-del", json!({ "id": format!("node{place}") })).map(drop)
    }
}

fn address_of(place: u8) -> String {
    format!("0000:00:{place:02x}.0")
}
