//! Devices that come and go while a machine runs: disks, and files of the host as memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::Flock;
use serde_json::{Value, json};

use crate::error::GuestError;
use crate::machine::Machine;
use crate::qmp::{Qmp, QmpError};

/// The places of the machine's bus that devices get; those before are the board's own.
const PLACES: std::ops::Range<u8> = 8..32;
/// How long a machine may take to let a device go.
const DETACH_LIMIT: Duration = Duration::from_secs(30);

/// A disk for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineDisk {
    /// A file of the host.
    File {
        /// Where.
        path: PathBuf,
        /// Whether I/O bypasses the host's page cache.
        direct: bool,
    },
    /// A block device of the host.
    Block {
        /// Where.
        path: PathBuf,
        /// Whether I/O bypasses the host's page cache.
        direct: bool,
    },
    /// A disk of an NBD server.
    Nbd {
        /// Where the server listens.
        server: NbdServer,
        /// Which of its disks.
        export: String,
    },
    /// A disk of a vhost-user-blk server, by its socket.
    VhostUser(PathBuf),
    /// An image of a Ceph cluster.
    Rbd {
        /// The image's pool.
        pool: String,
        /// Its namespace in the pool; empty: none.
        namespace: String,
        /// Its name.
        image: String,
        /// The user of the cluster; empty: the default one.
        user: String,
        /// The cluster's configuration.
        conf: Option<PathBuf>,
    },
    /// A logical unit of an iSCSI target. QEMU is the initiator.
    Iscsi {
        /// The portal, `HOST:PORT`.
        portal: String,
        /// The target's name.
        target: String,
        /// The number of the unit.
        lun: u16,
    },
}

/// Where an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdServer {
    /// A host and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// What an attached device is made of in QEMU: what is taken away after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Block,
    Socket,
    Memory,
}

/// What is attached.
#[derive(Debug, Clone, PartialEq)]
enum Device {
    Disk { disk: MachineDisk, writable: bool },
    Memory { path: PathBuf, length: u64 },
}

impl Device {
    fn behind(&self) -> Behind {
        match self {
            Device::Disk { disk: MachineDisk::VhostUser(_), .. } => Behind::Socket,
            Device::Disk { .. } => Behind::Block,
            Device::Memory { .. } => Behind::Memory,
        }
    }
}

/// The devices of one machine.
#[derive(Debug)]
pub struct Devices {
    qmp: Qmp,
    machine: Machine,
    used: BTreeMap<u8, Device>,
    /// Locks of files that a migration has made, by place.
    locks: BTreeMap<u8, Flock<File>>,
}

impl Devices {
    pub(crate) fn new(qmp: Qmp, machine: Machine) -> Devices {
        Devices { qmp, machine, used: BTreeMap::new(), locks: BTreeMap::new() }
    }

    /// Attaches a disk, and returns its PCI address in the machine.
    pub fn attach(&mut self, disk: &MachineDisk, writable: bool) -> Result<String, GuestError> {
        let name = disk.name();
        let place = self.place(&name)?;
        self.add(place, Device::Disk { disk: disk.clone(), writable }, &name)
    }

    /// Attaches a file of the host as memory, and returns the PCI address of its device, whose second resource it is. Its length is a
    /// power of two, at least 1 MiB.
    pub fn share(&mut self, path: &Path, length: u64) -> Result<String, GuestError> {
        let name = path.display().to_string();
        let place = self.place(&name)?;
        self.add(place, Device::Memory { path: path.into(), length }, &name)
    }

    /// The same devices at the same places of another machine, which this one is about to become: with other disks in place of those that
    /// are first in `disks`, and with the files of `memory` as memory.
    pub(crate) fn copied_to(
        &self,
        qmp: Qmp,
        disks: &[(MachineDisk, MachineDisk)],
        memory: &BTreeMap<PathBuf, PathBuf>,
    ) -> Result<Devices, GuestError> {
        let mut copied = Devices::new(qmp, self.machine.clone());
        for (place, device) in &self.used {
            let mut device = device.clone();
            match &mut device {
                Device::Disk { disk, .. } => {
                    if let Some((_, other)) = disks.iter().find(|(before, _)| before == disk) {
                        disk.clone_from(other);
                    }
                }
                Device::Memory { path, .. } => {
                    if let Some(copy) = memory.get(path) {
                        path.clone_from(copy);
                    }
                }
            }
            let name = device.name();
            copied.add(*place, device, &name)?;
        }
        Ok(copied)
    }

    /// The files of the host that are memory of the machine, with their lengths.
    pub(crate) fn shared_files(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.used.values().filter_map(|device| match device {
            Device::Memory { path, length } => Some((path.as_path(), *length)),
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
        let device = format!("device{place}");
        self.qmp.command("device_del", json!({ "id": device })).map_err(failed)?;
        self.qmp.event("DEVICE_DELETED", "device", &device, DETACH_LIMIT).map_err(|e| match e {
            QmpError::Broken(why) if why.kind() == std::io::ErrorKind::TimedOut => GuestError::failed(
                format!("the virtual machine did not let the device at {address} go within {DETACH_LIMIT:?}"),
            ),
            other => failed(other),
        })?;
        self.used.remove(&place);
        self.locks.remove(&place);
        self.remove(place, behind).map_err(failed)
    }

    /// QEMU's own answer to a command, for what is not a device.
    pub fn command(&mut self, name: &str, arguments: Value) -> Result<Value, QmpError> {
        self.qmp.command(name, arguments)
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
            Device::Memory { path, length } => self.add_memory(place, path, *length),
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
        let node = format!("node{place}");
        let mut device = json!({ "id": format!("device{place}"), "addr": format!("{place:#x}") });
        let behind = if let MachineDisk::VhostUser(path) = disk {
            let socket = json!({ "id": node, "backend": { "type": "socket", "data": {
                "addr": { "type": "unix", "data": { "path": path } }, "server": false, "reconnect": 1 } } });
            self.qmp.command("chardev-add", socket)?;
            device["driver"] = "vhost-user-blk-pci".into();
            device["chardev"] = node.into();
            device["num-queues"] = self.machine.queues.unwrap_or(1).into();
            Behind::Socket
        } else {
            let mut block = disk.block();
            (block["node-name"], block["read-only"]) = (node.clone().into(), (!writable).into());
            self.qmp.command("blockdev-add", block)?;
            device["driver"] = "virtio-blk-pci".into();
            device["drive"] = node.into();
            device["num-queues"] = self.machine.queues.unwrap_or(1).into();
            Behind::Block
        };
        let added = self.with_thread(place, behind, &mut device);
        let added = added.and_then(|()| self.qmp.command("device_add", device));
        self.or_remove(place, behind, added)
    }

    /// A disk with a thread of its own has one for as long as it is there.
    fn with_thread(&mut self, place: u8, behind: Behind, device: &mut Value) -> Result<(), QmpError> {
        if !self.machine.iothread || behind != Behind::Block {
            return Ok(());
        }
        let id = format!("thread{place}");
        device["iothread"] = id.clone().into();
        self.qmp.command("object-add", json!({ "qom-type": "iothread", "id": id })).map(drop)
    }

    fn add_memory(&mut self, place: u8, path: &Path, length: u64) -> Result<(), QmpError> {
        let memory = format!("node{place}");
        let object = json!({ "qom-type": "memory-backend-file", "id": memory, "mem-path": path, "size": length, "share": true });
        self.qmp.command("object-add", object)?;
        // A machine with the memory of another master is not migrated.
        let device = json!({ "driver": "ivshmem-plain", "id": format!("device{place}"), "memdev": memory,
            "addr": format!("{place:#x}"), "master": "on" });
        let added = self.qmp.command("device_add", device);
        self.or_remove(place, Behind::Memory, added)
    }

    fn or_remove(
        &mut self,
        place: u8,
        behind: Behind,
        added: Result<Value, QmpError>,
    ) -> Result<(), QmpError> {
        added.map(drop).inspect_err(|_| {
            // The error says more than what follows from it.
            let _ = self.remove(place, behind);
        })
    }

    fn remove(&mut self, place: u8, behind: Behind) -> Result<(), QmpError> {
        let node = format!("node{place}");
        if self.machine.iothread && behind == Behind::Block {
            // It is not there if the disk failed before.
            let _ = self.qmp.command("object-del", json!({ "id": format!("thread{place}") }));
        }
        match behind {
            Behind::Block => self.qmp.command("blockdev-del", json!({ "node-name": node })),
            Behind::Socket => self.qmp.command("chardev-remove", json!({ "id": node })),
            Behind::Memory => self.qmp.command("object-del", json!({ "id": node })),
        }
        .map(drop)
    }
}

impl Device {
    /// In words.
    fn name(&self) -> String {
        match self {
            Device::Disk { disk, .. } => disk.name(),
            Device::Memory { path, .. } => path.display().to_string(),
        }
    }
}

impl MachineDisk {
    /// In words.
    fn name(&self) -> String {
        match self {
            MachineDisk::File { path, .. } | MachineDisk::Block { path, .. } => path.display().to_string(),
            MachineDisk::Nbd { server: NbdServer::Tcp(host, port), export } => {
                format!("nbd://{host}:{port}/{export}")
            }
            MachineDisk::Nbd { server: NbdServer::Unix(path), export } => {
                format!("the export \"{export}\" of {}", path.display())
            }
            MachineDisk::VhostUser(path) => format!("vhost-user:{}", path.display()),
            MachineDisk::Rbd { pool, image, .. } => format!("rbd:{pool}/{image}"),
            MachineDisk::Iscsi { portal, target, lun } => format!("iscsi://{portal}/{target}/{lun}"),
        }
    }

    /// As QEMU opens it.
    fn block(&self) -> Value {
        let local = |driver: &str, path: &Path, direct: bool| {
            json!({ "driver": "raw", "file": { "driver": driver, "filename": path, "locking": "off", "aio": "threads",
                "cache": { "direct": direct } } })
        };
        match self {
            MachineDisk::File { path, direct } => local("file", path, *direct),
            MachineDisk::Block { path, direct } => local("host_device", path, *direct),
            MachineDisk::Nbd { server, export } => {
                let server = match server {
                    NbdServer::Tcp(host, port) => {
                        json!({ "type": "inet", "host": host, "port": port.to_string() })
                    }
                    NbdServer::Unix(path) => json!({ "type": "unix", "path": path }),
                };
                // A server that comes again within this time is no error for the machine.
                json!({ "driver": "nbd", "server": server, "export": export, "reconnect-delay": 30 })
            }
            MachineDisk::Rbd { pool, namespace, image, user, conf } => {
                let mut block = json!({ "driver": "rbd", "pool": pool, "image": image });
                let given = [
                    ("namespace", Some(namespace.clone())),
                    ("user", Some(user.clone())),
                    ("conf", conf.as_ref().map(|path| path.display().to_string())),
                ];
                for (key, value) in given {
                    if let Some(value) = value.filter(|value| !value.is_empty()) {
                        block[key] = value.into();
                    }
                }
                block
            }
            MachineDisk::Iscsi { portal, target, lun } => {
                json!({ "driver": "iscsi", "transport": "tcp", "portal": portal, "target": target, "lun": lun })
            }
            MachineDisk::VhostUser(_) => Value::Null,
        }
    }
}

fn address_of(place: u8) -> String {
    format!("0000:00:{place:02x}.0")
}
