//! The disks of a machine, by libvirt: it opens them for the user of its QEMU, and lists them (`virsh domblklist`). Files that are memory
//! of the machine it has by a folder of its own only, so that QEMU is ordered to open them (`virsh qemu-monitor-command`).

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::UnixCredentials;
use serde_json::{Value, json};

use super::access::Access;
use super::virsh::{Virsh, VirshError};
use super::xml;
use crate::bus::{Behind, Bus};
use crate::disk::{MachineDisk, NbdServer, OpenFile};
use crate::machine::Machine;
use crate::qmp::QmpError;

const POLL_EVERY: Duration = Duration::from_millis(50);

/// The bus of one domain.
#[derive(Debug)]
pub(super) struct DomainBus {
    virsh: Virsh,
    domain: String,
    machine: Machine,
    access: Access,
    /// The disks that are plugged in, as libvirt was told of them, and the socket of a disk's server.
    disks: BTreeMap<u8, (String, Option<PathBuf>)>,
}

impl DomainBus {
    pub(super) fn new(virsh: Virsh, domain: String, machine: &Machine, qemu: UnixCredentials) -> DomainBus {
        let machine = machine.clone();
        DomainBus { virsh, domain, machine, access: Access::of(qemu), disks: BTreeMap::new() }
    }

    fn run(&self, words: &[&str], input: &str) -> Result<String, QmpError> {
        self.virsh.run(words, input).map_err(|error| match error {
            VirshError::Refused(why) => QmpError::Refused(self.explained(why)),
            other => other.into(),
        })
    }

    /// A refusal, with what to do if it is one of permissions.
    fn explained(&self, why: String) -> String {
        let denied = why.contains("Permission denied") || why.contains("Operation not permitted");
        match self.access.is_other() && denied {
            true => format!(
                "{why}. The QEMU of this libvirt runs as user {}, which must be able to open this, and to enter every folder above \
                 it: use a folder outside of homes, such as below /var/tmp, or qemu:///session. Where AppArmor or SELinux confines \
                 QEMU, its rules must allow the path too",
                self.access.user()
            ),
            false => why,
        }
    }

    fn closed(&self, path: &Path, error: &io::Error) -> QmpError {
        let (path, user) = (path.display(), self.access.user());
        QmpError::Refused(format!(
            "{path} cannot be opened to user {user}, as which libvirt's QEMU runs: {error}"
        ))
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
    fn add_disk(&mut self, place: u8, disk: &MachineDisk, writable: bool) -> Result<Behind, QmpError> {
        let text = xml::disk(place, disk, writable, &self.machine).map_err(QmpError::Refused)?;
        let behind = if matches!(disk, MachineDisk::VhostUser(_)) { Behind::Socket } else { Behind::Block };
        let socket = match disk {
            MachineDisk::VhostUser(path) | MachineDisk::Nbd { server: NbdServer::Unix(path), .. } => {
                Some(path)
            }
            _ => None,
        };
        if let Some(socket) = socket {
            self.access.give_socket(socket).map_err(|e| self.closed(socket, &e))?;
        }
        let has_thread = self.machine.iothread && behind == Behind::Block;
        if has_thread {
            self.run(&["iothreadadd", &self.domain, &place.to_string()], "")?;
        }
        match self.run(&["attach-device", &self.domain, "/dev/stdin"], &text) {
            Ok(_) => {
                self.disks.insert(place, (text, socket.cloned()));
                Ok(behind)
            }
            Err(error) => {
                if has_thread {
                    self.remove_thread(place);
                }
                if let Some(socket) = socket {
                    self.access.take_back(socket);
                }
                Err(error)
            }
        }
    }

    fn remove_disk(&mut self, place: u8, behind: Behind, limit: Duration) -> Result<(), QmpError> {
        let limit = Instant::now() + limit;
        let (text, socket) = self.disks.get(&place).cloned().unwrap_or_default();
        // It returns after some seconds, also if the machine has not let the disk go.
        self.run(&["detach-device", &self.domain, "/dev/stdin"], &text)?;
        while self.has(place)? {
            if Instant::now() >= limit {
                return Err(timed_out());
            }
            thread::sleep(POLL_EVERY);
        }
        self.disks.remove(&place);
        if let Some(socket) = socket {
            self.access.take_back(&socket);
        }
        if self.machine.iothread && behind == Behind::Block {
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

    /// By its own name: `virsh` hands no open file over.
    fn hand_over(&mut self, _place: u8, path: &Path, _file: &OpenFile) -> Result<PathBuf, QmpError> {
        self.access.give(path).map_err(|e| self.closed(path, &e))?;
        Ok(path.into())
    }

    fn take_back(&mut self, _place: u8) {}
}
