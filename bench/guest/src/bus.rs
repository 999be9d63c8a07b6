//! The bus of a machine, where devices are plugged in and out; and that of a QEMU whose orders we have.

use std::fmt::Debug;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::disk::{MachineDisk, OpenFile};
use crate::machine::Machine;
use crate::qmp::{Qmp, QmpError};

/// How long QEMU may wait for the server of a vhost-user disk: the machine stands still meanwhile, and its worker is given up after 5 s.
const SERVER_LIMIT: Duration = Duration::from_secs(4);

/// What an attached device is made of: what is taken away after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    Block,
    Socket,
    Memory,
}

/// Where the devices of one machine are plugged in. A place is the number of a slot of its PCI bus.
pub(crate) trait Bus: Debug + Send {
    /// Plugs a disk in. After an error nothing of it is left.
    fn add_disk(&mut self, place: u8, disk: &MachineDisk, writable: bool) -> Result<Behind, QmpError>;

    /// Takes a disk out, and what is behind it, within `limit`: after that the error is [`QmpError::Broken`], of kind `TimedOut`.
    fn remove_disk(&mut self, place: u8, behind: Behind, limit: Duration) -> Result<(), QmpError>;

    /// QEMU's own answer to a command.
    fn command(&mut self, name: &str, arguments: Value) -> Result<Value, QmpError>;

    /// Waits until QEMU has taken a device out that `device_del` named.
    fn device_is_gone(&mut self, device: &str, limit: Duration) -> Result<(), QmpError>;

    /// Sees to it that QEMU may open this file, which is ours, for reading and writing, and returns the name by which it does: until
    /// [`Bus::take_back`].
    fn hand_over(&mut self, place: u8, path: &Path, file: &OpenFile) -> Result<PathBuf, QmpError>;

    /// Whether it is of this host, and sees the same sockets.
    fn is_here(&self) -> bool {
        true
    }

    /// The device at this place needs no file any more.
    fn take_back(&mut self, place: u8);
}

/// The bus of a QEMU that is a process of ours.
#[derive(Debug)]
pub(crate) struct QemuBus {
    qmp: Qmp,
    machine: Machine,
    is_here: bool,
}

impl QemuBus {
    pub(crate) fn new(qmp: Qmp, machine: Machine) -> QemuBus {
        QemuBus { qmp, machine, is_here: true }
    }

    /// The bus of a QEMU on another host.
    pub(crate) fn elsewhere(qmp: Qmp, machine: Machine) -> QemuBus {
        QemuBus { qmp, machine, is_here: false }
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

    fn remove(&mut self, place: u8, behind: Behind) -> Result<(), QmpError> {
        let node = format!("node{place}");
        if self.machine.iothread && behind == Behind::Block {
            // It is not there if the disk failed before.
            let _ = self.qmp.command("object-del", json!({ "id": format!("thread{place}") }));
        }
        let removed = match behind {
            Behind::Block => self.qmp.command("blockdev-del", json!({ "node-name": node })),
            Behind::Socket => self.qmp.command("chardev-remove", json!({ "id": node })),
            Behind::Memory => self.qmp.command("object-del", json!({ "id": node })),
        };
        self.take_back(place);
        removed.map(drop)
    }
}

impl Bus for QemuBus {
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
            let handed = match disk.opened() {
                Some(file) => self.hand_over(place, Path::new(""), file)?,
                None => PathBuf::new(),
            };
            let mut block = disk.block(&handed);
            (block["node-name"], block["read-only"]) = (node.clone().into(), (!writable).into());
            if let Err(error) = self.qmp.command("blockdev-add", block) {
                self.take_back(place);
                return Err(error);
            }
            device["driver"] = "virtio-blk-pci".into();
            device["drive"] = node.into();
            device["num-queues"] = self.machine.queues.unwrap_or(1).into();
            Behind::Block
        };
        let added = self.with_thread(place, behind, &mut device);
        let added = added.and_then(|()| match behind {
            Behind::Socket => self.qmp.command_within("device_add", device, SERVER_LIMIT),
            Behind::Block | Behind::Memory => self.qmp.command("device_add", device),
        });
        match added {
            Ok(_) => Ok(behind),
            // It would not carry out what follows from it either.
            Err(error @ QmpError::Broken(_)) => Err(error),
            Err(error) => {
                // The error says more than what follows from it.
                let _ = self.remove(place, behind);
                Err(error)
            }
        }
    }

    fn remove_disk(&mut self, place: u8, behind: Behind, limit: Duration) -> Result<(), QmpError> {
        let device = format!("device{place}");
        self.qmp.command("device_del", json!({ "id": device }))?;
        self.device_is_gone(&device, limit)?;
        self.remove(place, behind)
    }

    fn command(&mut self, name: &str, arguments: Value) -> Result<Value, QmpError> {
        self.qmp.command(name, arguments)
    }

    fn device_is_gone(&mut self, device: &str, limit: Duration) -> Result<(), QmpError> {
        self.qmp.event("DEVICE_DELETED", "device", device, limit).map(drop)
    }

    fn hand_over(&mut self, place: u8, _path: &Path, file: &OpenFile) -> Result<PathBuf, QmpError> {
        if !self.is_here {
            return Err(QmpError::Refused(
                "the virtual machine is on another host now, where this is not".into(),
            ));
        }
        let added = self.qmp.command_with("add-fd", json!({ "fdset-id": place }), file.as_fd())?;
        // QEMU opens by this name what it was given, with flags of its own.
        Ok(format!("/proc/self/fd/{}", added["fd"]).into())
    }

    fn is_here(&self) -> bool {
        self.is_here
    }

    fn take_back(&mut self, place: u8) {
        // There is none of a disk that a server has.
        let _ = self.qmp.command("remove-fd", json!({ "fdset-id": place }));
    }
}
