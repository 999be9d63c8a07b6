//! Devices that come and go while a machine runs: disks, and files of the host as memory.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bus::{Behind, Bus};
use crate::disk::MachineDisk;
use crate::error::GuestError;
use crate::machine::Machine;
use crate::qmp::QmpError;

/// The places of the machine's bus that devices get; those before are the board's own.
const PLACES: std::ops::Range<u8> = 8..32;
/// How long a machine may take to let a device go.
const DETACH_LIMIT: Duration = Duration::from_secs(30);

/// The devices of one machine.
#[derive(Debug)]
pub struct Devices {
    bus: Box<dyn Bus>,
    machine: Machine,
    used: BTreeMap<u8, Behind>,
}

impl Devices {
    pub(crate) fn new(bus: Box<dyn Bus>, machine: Machine) -> Devices {
        Devices { bus, machine, used: BTreeMap::new() }
    }

    /// Attaches a disk, and returns its PCI address in the machine.
    pub fn attach(&mut self, disk: &MachineDisk, writable: bool) -> Result<String, GuestError> {
        let name = disk.name();
        let place = self.place(&name)?;
        let attached = self.bus.add_disk(place, disk, writable, &self.machine);
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
        let removed = match behind {
            Behind::Memory => self.remove_memory(place),
            Behind::Block | Behind::Socket => {
                self.bus.remove_disk(place, behind, &self.machine, DETACH_LIMIT)
            }
        };
        removed.map_err(|e| match e {
            QmpError::Broken(why) if why.kind() == std::io::ErrorKind::TimedOut => GuestError::failed(
                format!("the virtual machine did not let the device at {address} go within {DETACH_LIMIT:?}"),
            ),
            other => failed(other),
        })?;
        self.used.remove(&place);
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

    fn add_memory(&mut self, place: u8, path: &Path, length: u64) -> Result<Behind, QmpError> {
        let memory = format!("node{place}");
        self.bus.let_in(path)?;
        let object = json!({ "qom-type": "memory-backend-file", "id": memory, "mem-path": path, "size": length, "share": true });
        self.bus.command("object-add", object)?;
        let device = json!({ "driver": "ivshmem-plain", "id": format!("device{place}"), "memdev": memory,
            "addr": format!("{place:#x}") });
        match self.bus.command("device_add", device) {
            Ok(_) => Ok(Behind::Memory),
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
