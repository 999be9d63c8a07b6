//! The disks of a machine, by libvirt: it opens them for the user of its QEMU, and lists them (`virsh domblklist`). Files that are memory
//! of the machine it has by a folder of its own only, so that QEMU is ordered to open them (`virsh qemu-monitor-command`).

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::UnixCredentials;
use serde_json::{Value, json};

use super::virsh::{Virsh, VirshError};
use super::xml;
use crate::attach::MachineDisk;
use crate::bus::{Behind, Bus};
use crate::machine::Machine;
use crate::qmp::QmpError;

const POLL_EVERY: Duration = Duration::from_millis(50);

/// The bus of one domain.
#[derive(Debug)]
pub(super) struct DomainBus {
    virsh: Virsh,
    domain: String,
    /// Whose process its QEMU is.
    qemu: UnixCredentials,
    /// The disks that are plugged in, as libvirt was told of them.
    disks: BTreeMap<u8, String>,
}

impl DomainBus {
    pub(super) fn new(virsh: Virsh, domain: String, qemu: UnixCredentials) -> DomainBus {
        DomainBus { virsh, domain, qemu, disks: BTreeMap::new() }
    }

    fn run(&self, words: &[&str], input: &str) -> Result<String, QmpError> {
        self.virsh.run(words, input).map_err(|error| match error {
            VirshError::Refused(why) => QmpError::Refused(self.explained(why)),
            other => other.into(),
        })
    }

    /// A refusal, with what to do if it is one of permissions.
    fn explained(&self, why: String) -> String {
        let is_other = self.qemu.uid() != nix::unistd::geteuid().as_raw();
        let denied = why.contains("Permission denied") || why.contains("Operation not permitted");
        match is_other && denied {
            true => format!(
                "{why}. The QEMU of this libvirt runs as user {}, which must be able to open this, and to enter every folder above \
                 it: use a folder outside of homes, such as below /var/tmp, or qemu:///session. Where AppArmor or SELinux confines \
                 QEMU, its rules must allow the path too",
                self.qemu.uid()
            ),
            false => why,
        }
    }

    fn has(&self, place: u8) -> Result<bool, QmpError> {
        let listed = self.run(&["domblklist", &self.domain], "")?;
        let target = xml::target(place);
        Ok(listed.lines().any(|line| line.split_whitespace().next() == Some(&target)))
    }

    fn remove_thread(&self, place: u8) {
        // It is not there if the disk failed before.
        let _ = self.virsh.run(&["iothreaddel", &self.domain, &place.to_string()], "");
    }
}

fn timed_out() -> QmpError {
    QmpError::Broken(io::ErrorKind::TimedOut.into())
}

impl Bus for DomainBus {
    fn add_disk(
        &mut self,
        place: u8,
        disk: &MachineDisk,
        writable: bool,
        machine: &Machine,
    ) -> Result<Behind, QmpError> {
        let text = xml::disk(place, disk, writable, machine).map_err(QmpError::Refused)?;
        let behind = if matches!(disk, MachineDisk::VhostUser(_)) { Behind::Socket } else { Behind::Block };
        let has_thread = machine.iothread && behind == Behind::Block;
        if has_thread {
            self.run(&["iothreadadd", &self.domain, &place.to_string()], "")?;
        }
        match self.run(&["attach-device", &self.domain, "/dev/stdin"], &text) {
            Ok(_) => {
                self.disks.insert(place, text);
                Ok(behind)
            }
            Err(error) => {
                if has_thread {
                    self.remove_thread(place);
                }
                Err(error)
            }
        }
    }

    fn remove_disk(
        &mut self,
        place: u8,
        behind: Behind,
        machine: &Machine,
        limit: Duration,
    ) -> Result<(), QmpError> {
        let limit = Instant::now() + limit;
        let text = self.disks.get(&place).cloned().unwrap_or_default();
        // It returns after some seconds, also if the machine has not let the disk go.
        self.run(&["detach-device", &self.domain, "/dev/stdin"], &text)?;
        while self.has(place)? {
            if Instant::now() >= limit {
                return Err(timed_out());
            }
            thread::sleep(POLL_EVERY);
        }
        self.disks.remove(&place);
        if machine.iothread && behind == Behind::Block {
            self.remove_thread(place);
        }
        Ok(())
    }

    fn command(&mut self, name: &str, arguments: Value) -> Result<Value, QmpError> {
        let order = json!({ "execute": name, "arguments": arguments }).to_string();
        let said = self.run(&["qemu-monitor-command", &self.domain, &order], "")?;
        let half = |why: &str| QmpError::Broken(io::Error::other(format!("virsh answers half: {why}")));
        let mut answer: Value = serde_json::from_str(said.trim()).map_err(|e| half(&e.to_string()))?;
        if let Some(error) = answer.get("error") {
            let why = error["desc"].as_str().unwrap_or("it says no reason");
            return Err(QmpError::Refused(self.explained(format!("{name}: {why}"))));
        }
        answer
            .get_mut("return")
            .map(Value::take)
            .ok_or_else(|| half("there is neither a result nor an error"))
    }

    fn device_is_gone(&mut self, device: &str, limit: Duration) -> Result<(), QmpError> {
        let limit = Instant::now() + limit;
        loop {
            let listed = self.command("qom-list", json!({ "path": "/machine/peripheral" }))?;
            let is_there =
                listed.as_array().is_some_and(|all| all.iter().any(|found| found["name"] == device));
            if !is_there {
                return Ok(());
            }
            if Instant::now() >= limit {
                return Err(timed_out());
            }
            thread::sleep(POLL_EVERY);
        }
    }

    fn let_in(&mut self, path: &Path) -> Result<(), QmpError> {
        let refused = |e: io::Error| {
            QmpError::Refused(format!(
                "the user of libvirt's QEMU, {}, cannot be let in: {e}",
                self.qemu.uid()
            ))
        };
        let found = fs::metadata(path).map_err(refused)?;
        if [0, found.uid()].contains(&self.qemu.uid()) {
            return Ok(());
        }
        // Its group, if we may give the file away; else everybody.
        let allowed = match chown(path, None, Some(self.qemu.gid())) {
            Ok(()) => 0o660,
            Err(_) => 0o666,
        };
        fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o777 | allowed)).map_err(refused)
    }
}
