//! Devices that come and go while a machine runs: disks, and files of the host as memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
}

/// Where an NBD server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdServer {
    /// A host and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
    /// A socket of this host that is in no folder, by its name: a relay of this process, which connects to a cluster's nodes in turn.
    Relay(String),
}

/// What an attached device is made of in QEMU: what is taken away after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behind {
    Block,
    Socket,
    Memory,
}

/// The devices of one machine.
#[derive(Debug)]
pub struct Devices {
    qmp: Qmp,
    machine: Machine,
    used: BTreeMap<u8, Behind>,
}

impl Devices {
    pub(crate) fn new(qmp: Qmp, machine: Machine) -> Devices {
        Devices { qmp, machine, used: BTreeMap::new() }
    }

    /// Attaches a disk, and returns its PCI address in the machine.
    pub fn attach(&mut self, disk: &MachineDisk, writable: bool) -> Result<String, GuestError> {
        let name = disk.name();
        let place = self.place(&name)?;
        let attached = self.add_disk(place, disk, writable);
        self.keep(place, attached, &name)
    }

    /// Attaches a file of the host as memory, and returns the PCI address of its device, whose second resource it is. Its length is a
    /// power of two, at least 1 MiB.
    pub fn share(&mut self, path: &Path, length: u64) -> Result<String, GuestError> {
        let name = path.display().to_string();
        let place = self.place(&name)?;
        let attached = self.add_memory(place, path, length);
        self.keep(place, attached, &name)
    }

    /// Takes a device away that is at this address. A device that the machine does not let go within half a minute is an error.
    pub fn detach(&mut self, address: &str) -> Result<(), GuestError> {
        let found = self.used.iter().find(|(place, _)| address_of(**place) == address);
        let Some((&place, &behind)) = found else {
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

    fn keep(
        &mut self,
        place: u8,
        attached: Result<Behind, QmpError>,
        name: &str,
    ) -> Result<String, GuestError> {
        match attached {
            Ok(behind) => {
                self.used.insert(place, behind);
                Ok(address_of(place))
            }
            Err(QmpError::Refused(why)) => {
                Err(GuestError::usage(format!("{name} cannot be attached to the virtual machine: {why}")))
            }
            Err(broken) => Err(GuestError::failed(format!("{name} cannot be attached: {broken}"))),
        }
    }

    fn add_disk(&mut self, place: u8, disk: &MachineDisk, writable: bool) -> Result<Behind, QmpError> {
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

    fn add_memory(&mut self, place: u8, path: &Path, length: u64) -> Result<Behind, QmpError> {
        let memory = format!("node{place}");
        let object = json!({ "qom-type": "memory-backend-file", "id": memory, "mem-path": path, "size": length, "share": true });
        self.qmp.command("object-add", object)?;
        let device = json!({ "driver": "ivshmem-plain", "id": format!("device{place}"), "memdev": memory,
            "addr": format!("{place:#x}") });
        let added = self.qmp.command("device_add", device);
        self.or_remove(place, Behind::Memory, added)
    }

    fn or_remove(
        &mut self,
        place: u8,
        behind: Behind,
        added: Result<Value, QmpError>,
    ) -> Result<Behind, QmpError> {
        match added {
            Ok(_) => Ok(behind),
            Err(error) => {
                // The error says more than what follows from it.
                let _ = self.remove(place, behind);
                Err(error)
            }
        }
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
            MachineDisk::Nbd { server: NbdServer::Relay(_), export } => format!("volume {export}"),
            MachineDisk::VhostUser(path) => format!("vhost-user:{}", path.display()),
            MachineDisk::Rbd { pool, image, .. } => format!("rbd:{pool}/{image}"),
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
                // A server that comes again within this time, seconds, is no error for the machine. A cluster takes longer: another node
                // takes the volume over, and the relay waits before it connects to that node.
                let (server, delay) = match server {
                    NbdServer::Tcp(host, port) => {
                        (json!({ "type": "inet", "host": host, "port": port.to_string() }), 30)
                    }
                    NbdServer::Unix(path) => (json!({ "type": "unix", "path": path }), 30),
                    NbdServer::Relay(name) => {
                        (json!({ "type": "unix", "path": name, "abstract": true }), 120)
                    }
                };
                json!({ "driver": "nbd", "server": server, "export": export, "reconnect-delay": delay })
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
            MachineDisk::VhostUser(_) => Value::Null,
        }
    }
}

fn address_of(place: u8) -> String {
    format!("0000:00:{place:02x}.0")
}
