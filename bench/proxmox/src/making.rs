//! The steps by which one machine is made: cloned, configured, started, reached.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;
use serde_json::Value;

use crate::api::{CallError, encoded, is_taken};
use crate::error::ProxmoxError;
use crate::ledger::Ledger;
use crate::options::{free_slots, wwn};
use crate::ownership::{description, machine_name, tags};
use crate::placement::Place;
use crate::site::Template;
use crate::task::Task;

/// So many VMIDs are tried, one after another, if others take them first.
const ID_ATTEMPTS: u32 = 10;
/// The pause between two attempts to reach a machine that was started.
const PAUSE: Duration = Duration::from_secs(1);
/// The public keys of a machine's SSH server: the first that is there counts.
const HOST_KEYS: [&str; 2] = ["/etc/ssh/ssh_host_ed25519_key.pub", "/etc/ssh/ssh_host_ecdsa_key.pub"];

/// A machine that has an address and an SSH server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachedMachine {
    /// The name of the fleet's node.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The public key of its SSH server, as its agent read it: `ssh-ed25519 AAAA...`.
    pub host_key: String,
}

/// A machine that SSH reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyMachine {
    /// The name of the fleet's node.
    pub name: String,
    /// The node of the cluster on which it is.
    pub node: String,
    /// Its number in the cluster.
    pub vmid: u32,
    /// Its address.
    pub address: IpAddr,
    /// How long it took from the request to start it until SSH reached it.
    pub took: Duration,
}

/// One machine that is being made.
pub(crate) struct Making<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) template: &'a Template,
    pub(crate) place: &'a Place,
    /// The name of the fleet's node.
    pub(crate) name: &'a str,
}

impl Making<'_> {
    /// Makes it, and waits until `reach` reaches it.
    pub(crate) fn make(
        &self,
        reach: &dyn Fn(&ReachedMachine) -> Result<(), String>,
    ) -> Result<ReadyMachine, ProxmoxError> {
        let vmid =
            self.clone_template().map_err(|e| e.of(&format!("{} on {}", self.name, self.place.node)))?;
        let what = format!("{} (VM {vmid} on {})", self.name, self.place.node);
        self.configure(vmid)
            .and_then(|()| self.start(vmid))
            .and_then(|started| self.reached(vmid, started, reach))
            .map_err(|e| e.of(&what))
    }

    fn path(&self, vmid: u32, rest: &str) -> String {
        format!("/nodes/{}/qemu/{vmid}{rest}", encoded(&self.place.node))
    }

    fn clone_template(&self) -> Result<u32, ProxmoxError> {
        let Ledger { api, options, run, .. } = self.ledger;
        let mut last = ProxmoxError::interrupted();
        for _ in 0..ID_ATTEMPTS {
            if api.stop().is_requested() {
                return Err(ProxmoxError::interrupted());
            }
            let vmid = self.ledger.next_id()?;
            let mut form = vec![
                ("newid", vmid.to_string()),
                ("name", machine_name(run, self.name)),
                ("description", description(run)),
                ("full", u32::from(options.full_clone).to_string()),
            ];
            form.extend(options.pool.iter().map(|pool| ("pool", pool.clone())));
            form.extend(options.storage.iter().map(|storage| ("storage", storage.clone())));
            if self.place.node != self.template.node {
                form.push(("target", self.place.node.clone()));
            }
            // Whatever becomes of the call, the end of the run looks for this machine.
            self.ledger.note(vmid, &self.place.node)?;
            let path = format!("/nodes/{}/qemu/{}/clone", encoded(&self.template.node), self.template.vmid);
            let needs = "VM.Clone on the template, VM.Allocate on the pool (or on /vms), Datastore.AllocateSpace on the storage, and SDN.Use \
                         on the network";
            let began = Instant::now();
            let (error, is_taken) = match api.post(&path, &form, needs) {
                Ok(answer) => {
                    let done = match Task::of(&answer)? {
                        None => Ok(()),
                        Some(task) => {
                            self.ledger.note_clone(vmid, &self.place.node, &task)?;
                            let done = task.wait(api, began, options.wait);
                            // What is aborted may end late, and what is lost may go on.
                            if done.is_ok() {
                                self.ledger.clone_ended(vmid);
                            }
                            done
                        }
                    };
                    match done {
                        Ok(()) => return Ok(vmid),
                        Err(error) => {
                            let is_taken = is_taken(&error.message);
                            (error, is_taken)
                        }
                    }
                }
                Err(error) => {
                    if !error.is_unanswered() {
                        self.ledger.clone_ended(vmid);
                    }
                    let is_taken = error.is_taken();
                    (clone_error(error), is_taken)
                }
            };
            if !is_taken {
                return Err(error);
            }
            // Another user has made a machine with this VMID.
            self.ledger.forget(vmid);
            last = error;
        }
        Err(ProxmoxError::failed(format!(
            "{ID_ATTEMPTS} VMIDs in a row were taken by others; the last time: {}",
            last.message
        )))
    }

    fn configure(&self, vmid: u32) -> Result<(), ProxmoxError> {
        let Ledger { api, options, run, public_key, disks, .. } = self.ledger;
        let mut form = vec![
            ("tags".to_string(), tags(run)),
            ("sockets".into(), "1".into()),
            ("cores".into(), options.cores.to_string()),
            ("memory".into(), (options.memory.0 >> 20).to_string()),
            // Memory that the host takes back meanwhile would be in the figures.
            ("balloon".into(), "0".into()),
            ("agent".into(), "1".into()),
            ("onboot".into(), "0".into()),
            ("ciuser".into(), options.user.clone()),
            // Proxmox VE wants it encoded in the value itself.
            ("sshkeys".into(), encoded(public_key.trim())),
        ];
        if !self.template.has("ipconfig0") {
            form.push(("ipconfig0".into(), "ip=dhcp".into()));
        }
        if self.template.has("protection") {
            form.push(("protection".into(), "0".into()));
        }
        if let Some(disk) = &options.disk {
            if !self.template.text("scsihw").is_some_and(|model| model.starts_with("virtio-scsi")) {
                form.push(("scsihw".into(), "virtio-scsi-single".into()));
            }
            let options = disk.options.iter().map(|options| format!(",{options}")).collect::<String>();
            for (number, slot) in (0..*disks).zip(free_slots(|slot| self.template.has(slot))) {
                let drive =
                    format!("{}:{},wwn={},backup=0{options}", disk.storage, gib(disk.size), wwn(number));
                form.push((slot, drive));
            }
        }
        let form: Vec<(&str, String)> =
            form.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let needs = "VM.Config.CPU, VM.Config.Memory, VM.Config.Options, VM.Config.Cloudinit, VM.Config.Network, VM.Config.Disk and \
                     VM.Config.HWType on the machine, and Datastore.AllocateSpace on the storage of its disks";
        let began = Instant::now();
        let answer = api.post(&self.path(vmid, "/config"), &form, needs)?;
        Task::of(&answer)?.map_or(Ok(()), |task| task.wait(api, began, options.wait))
    }

    fn start(&self, vmid: u32) -> Result<Instant, ProxmoxError> {
        let Ledger { api, options, .. } = self.ledger;
        if api.stop().is_requested() {
            return Err(ProxmoxError::interrupted());
        }
        let started = Instant::now();
        let answer = api.post(&self.path(vmid, "/status/start"), &[], "VM.PowerMgmt on the machine")?;
        Task::of(&answer)?.map_or(Ok(()), |task| task.wait(api, started, options.wait))?;
        Ok(started)
    }

    /// Waits until the machine's agent says its address and the keys of its SSH server, and `reach` reaches it by them.
    fn reached(
        &self,
        vmid: u32,
        started: Instant,
        reach: &dyn Fn(&ReachedMachine) -> Result<(), String>,
    ) -> Result<ReadyMachine, ProxmoxError> {
        let Ledger { api, options, .. } = self.ledger;
        let config = api.get(&self.path(vmid, "/config"), &[], "VM.Audit on the machine")?;
        let card = config["net0"].as_str().and_then(hardware_address).map(str::to_ascii_lowercase);
        loop {
            let why = match self.attempt(vmid, card.as_deref())? {
                Ok(machine) => match reach(&machine) {
                    Ok(()) => {
                        let node = self.place.node.clone();
                        return Ok(ReadyMachine {
                            name: machine.name,
                            node,
                            vmid,
                            address: machine.address,
                            took: started.elapsed(),
                        });
                    }
                    Err(why) => why,
                },
                Err(why) => why,
            };
            if started.elapsed() >= options.wait.0 {
                return Err(ProxmoxError::failed(format!(
                    "it was started, and SSH did not reach it within {} (wait in [fleet.proxmox]): {why}",
                    options.wait
                )));
            }
            if api.stop().wait(PAUSE) {
                return Err(ProxmoxError::interrupted());
            }
        }
    }

    /// The outer error ends the attempts; the inner one says what is not there yet.
    fn attempt(&self, vmid: u32, card: Option<&str>) -> Result<Result<ReachedMachine, String>, ProxmoxError> {
        let api = &self.ledger.api;
        let needs = "VM.GuestAgent.Audit on the machine (before Proxmox VE 9: VM.Monitor)";
        let found = match api.get(&self.path(vmid, "/agent/network-get-interfaces"), &[], needs) {
            Ok(found) => found,
            Err(error) => return self.not_yet(vmid, error),
        };
        let Some(address) = address_in(&found["result"], card) else {
            return Ok(
                Err("its agent runs, and it has no address yet: is there DHCP in its network?".into()),
            );
        };
        let needs = "VM.GuestAgent.FileRead on the machine (before Proxmox VE 9: VM.Monitor)";
        for file in HOST_KEYS {
            let question = [("file", file.to_string())];
            match api.get(&self.path(vmid, "/agent/file-read"), &question, needs) {
                Ok(read) => {
                    let words: Vec<&str> =
                        read["content"].as_str().unwrap_or_default().split_whitespace().take(2).collect();
                    if let [kind, key] = words[..] {
                        let host_key = format!("{kind} {key}");
                        return Ok(Ok(ReachedMachine { name: self.name.into(), address, host_key }));
                    }
                }
                Err(error) if error.reason.contains("disabled") => {
                    return Err(ProxmoxError::usage(format!(
                        "its agent does not read files ({}), and the keys of its SSH server are read by it: allow guest-file-open, \
                         guest-file-read and guest-file-close in the template (/etc/sysconfig/qemu-ga or /etc/qemu/qemu-ga.conf)",
                        error.reason
                    )));
                }
                Err(error) if error.status == Some(500) => {}
                Err(error) => return self.not_yet(vmid, error),
            }
        }
        Ok(Err(format!("its SSH server has no key yet ({})", HOST_KEYS.join(" or "))))
    }

    /// Whether an answer of the agent may be another one later.
    fn not_yet(&self, vmid: u32, error: CallError) -> Result<Result<ReachedMachine, String>, ProxmoxError> {
        let is_off = error.reason.contains("No QEMU guest agent configured");
        if matches!(error.status, Some(400..=499)) || is_off {
            return Err(error.into());
        }
        let api = &self.ledger.api;
        let status = api.get(&self.path(vmid, "/status/current"), &[], "VM.Audit on the machine");
        match status {
            Ok(status) if status["status"] == "stopped" => Err(ProxmoxError::failed(
                "it has stopped by itself after its start: look at its console in Proxmox VE with a machine that is kept",
            )),
            _ => Ok(Err(format!("{}: is qemu-guest-agent installed in the template?", error.reason))),
        }
    }
}

fn clone_error(error: CallError) -> ProxmoxError {
    let advice = match error.reason.as_str() {
        reason if reason.contains("non-shared storage") => {
            ". Make a template of the same name on each node and give its name, or name the template's node in nodes"
        }
        reason if reason.contains("inked clone") => ". Say full_clone = true in [fleet.proxmox]",
        _ => "",
    };
    let error = ProxmoxError::from(error);
    ProxmoxError { message: format!("{}{advice}", error.message), ..error }
}

/// A size in GiB, as the API takes it.
fn gib(size: ByteSize) -> String {
    let gib = size.0 as f64 / (1u64 << 30) as f64;
    format!("{gib:.9}").trim_end_matches('0').trim_end_matches('.').to_string()
}

/// The hardware address in a network card's options: `virtio=BC:24:11:00:00:01,bridge=vmbr0`.
fn hardware_address(card: &str) -> Option<&str> {
    card.split(',')
        .filter_map(|part| part.split_once('='))
        .map(|(_, value)| value)
        .find(|value| value.len() == 17 && value.split(':').count() == 6)
}

/// The address by which other machines reach this one: of its first network card, IPv4 before IPv6.
fn address_in(interfaces: &Value, card: Option<&str>) -> Option<IpAddr> {
    let is_it = |interface: &&Value| {
        let hardware = interface["hardware-address"].as_str().unwrap_or_default().to_ascii_lowercase();
        card.is_none_or(|card| card == hardware)
    };
    let interfaces = interfaces.as_array().into_iter().flatten().filter(is_it);
    let entries = interfaces.flat_map(|interface| interface["ip-addresses"].as_array().into_iter().flatten());
    let addresses = entries.filter_map(|entry| entry["ip-address"].as_str()?.parse::<IpAddr>().ok());
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => {
            !address.is_loopback() && !address.is_link_local() && !address.is_unspecified()
        }
        IpAddr::V6(address) => {
            !address.is_loopback() && !address.is_unicast_link_local() && !address.is_unspecified()
        }
    };
    addresses.filter(is_usable).min_by_key(IpAddr::is_ipv6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_address_is_that_of_the_first_card_and_no_local_one() {
        let interfaces = json!([
            {"name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": [{"ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8}]},
            {"name": "docker0", "hardware-address": "02:42:00:00:00:01", "ip-addresses": [{"ip-address": "172.17.0.1", "ip-address-type": "ipv4", "prefix": 16}]},
            {"name": "eth0", "hardware-address": "bc:24:11:00:00:01", "ip-addresses": [
                {"ip-address": "fe80::1", "ip-address-type": "ipv6", "prefix": 64},
                {"ip-address": "fd00::5", "ip-address-type": "ipv6", "prefix": 64},
                {"ip-address": "10.0.0.5", "ip-address-type": "ipv4", "prefix": 24},
            ]},
            {"name": "eth1", "hardware-address": "bc:24:11:00:00:02"},
        ]);
        let card =
            hardware_address("virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1").map(str::to_ascii_lowercase);
        assert_eq!(address_in(&interfaces, card.as_deref()), Some("10.0.0.5".parse().unwrap()));
        assert_eq!(address_in(&interfaces, Some("bc:24:11:00:00:02")), None);
        assert_eq!(address_in(&json!(null), None), None);
    }

    #[test]
    fn a_size_is_written_in_gib() {
        assert_eq!(gib(ByteSize(32 << 30)), "32");
        assert_eq!(gib(ByteSize(1536 << 20)), "1.5");
        assert_eq!(gib(ByteSize(8 << 20)), "0.0078125");
    }
}
