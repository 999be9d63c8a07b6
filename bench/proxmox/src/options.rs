//! The `[fleet.proxmox]` table of a study: where the API is, and what machines are made by it.

use std::path::PathBuf;

use loadline_base::units::{ByteSize, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ProxmoxError;
use crate::http::Endpoint;
use crate::tls::Fingerprint;

/// The most machines that are made at the same time.
const MOST_AT_ONCE: u32 = 64;
/// The first slot for the disks that are added: slot 0 is the template's own.
const FIRST_SLOT: usize = 1;
/// Slots of a SCSI controller of Proxmox VE.
const SLOTS: usize = 31;

/// Virtual machines of a Proxmox VE cluster, made for the run by the cluster's API and deleted when it ends: each is a node of the fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Proxmox {
    /// The API of any node of the cluster: `https://HOST:8006`.
    pub api: String,
    /// A file that only its owner can read, relative to the study file, with a token of the API: `USER@REALM!TOKENID=UUID`. Absent: the
    /// token is in the environment variable LOADLINE_PROXMOX_TOKEN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// The SHA-256 of the API's certificate, which Proxmox VE signs itself. Absent: the certificate must be signed by an authority that
    /// this system trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The template that is cloned, by its VMID or its name. If several nodes have a template of this name, each machine is cloned from
    /// that of its own node.
    pub template: String,
    /// The nodes of the cluster on which machines are made, by turns. Absent: all that are online and can have a clone of the template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// The resource pool to which the machines belong, so that a token needs rights on the pool only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Whether the template's own disks are copied. Absent: clones share what they do not change (linked clones).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full_clone: bool,
    /// The storage for the copies of a full clone. Absent: that of the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<String>,
    /// CPU cores of each machine.
    #[serde(default = "default_cores")]
    #[schemars(range(min = 1, max = 512))]
    pub cores: u32,
    /// The memory of each machine, whole MiB.
    #[serde(default = "default_memory")]
    pub memory: ByteSize,
    /// The disks that are made for each machine, one for each disk of its workers, and that its workers measure. Absent: the workers
    /// measure files (`folder` in `[target]`) or disks of the template (`disks` in `[fleet]`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DataDisk>,
    /// The user whom SSH logs in, made by cloud-init. Another one than root must have the right to open disks.
    #[serde(default = "default_user")]
    pub user: String,
    /// How many machines are made, or deleted, at the same time.
    #[serde(default = "default_at_once")]
    #[schemars(range(min = 1, max = 64))]
    pub at_once: u32,
    /// How long each step of making a machine may take: the clone, its configuration with its disks, and from its start until SSH reaches
    /// it.
    #[serde(default = "default_wait")]
    pub wait: TimeSpan,
}

/// A disk that is made for a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DataDisk {
    /// The storage on which it is made.
    pub storage: String,
    /// Its size.
    pub size: ByteSize,
    /// Options of the disk, as Proxmox VE writes them: `iothread=1,cache=none,aio=native`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<String>,
}

fn default_cores() -> u32 {
    2
}

fn default_memory() -> ByteSize {
    ByteSize(2 << 30)
}

fn default_user() -> String {
    "root".into()
}

fn default_at_once() -> u32 {
    4
}

fn default_wait() -> TimeSpan {
    TimeSpan::seconds(600)
}

/// Whether a text can be a part of a path of the API, and of an option.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 128
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

impl Proxmox {
    /// Checks what needs no system. The error is of kind `Usage`, and names the option.
    pub fn check(&self) -> Result<(), ProxmoxError> {
        let usage = |message: String| Err(ProxmoxError::usage(format!("[fleet.proxmox] {message}")));
        if let Err(why) = Endpoint::parse(&self.api) {
            return usage(format!("api: {why}"));
        }
        if let Some(Err(why)) = self.fingerprint.as_deref().map(Fingerprint::parse) {
            return usage(format!("fingerprint: {why}"));
        }
        let mut names = vec![("template", &self.template), ("user", &self.user)];
        names.extend(self.nodes.iter().map(|node| ("nodes", node)));
        names.extend(self.pool.iter().map(|pool| ("pool", pool)));
        names.extend(self.storage.iter().map(|storage| ("storage", storage)));
        names.extend(self.disk.iter().map(|disk| ("disk.storage", &disk.storage)));
        if let Some((option, name)) = names.into_iter().find(|(_, name)| !is_plain(name)) {
            return usage(format!("{option} = {name:?} is no name: use letters, digits, '-', '_' and '.'"));
        }
        if self.user.starts_with('-') {
            return usage(format!("user = {:?} is no name of a user", self.user));
        }
        if self.storage.is_some() && !self.full_clone {
            return usage(
                "storage without full_clone: a linked clone is where its template is. Say full_clone = true, or leave storage out; the \
                 storage of the disks that are measured is disk.storage"
                    .into(),
            );
        }
        if !(1..=512).contains(&self.cores) {
            return usage(format!("cores = {}: 1 to 512 are possible", self.cores));
        }
        if self.memory < ByteSize(256 << 20) || !self.memory.0.is_multiple_of(1 << 20) {
            return usage(format!("memory = {}: give whole MiB, 256MiB at least", self.memory));
        }
        if !(1..=MOST_AT_ONCE).contains(&self.at_once) {
            return usage(format!("at_once = {}: 1 to {MOST_AT_ONCE} are possible", self.at_once));
        }
        if !(10..=24 * 3600).contains(&self.wait.0.as_secs()) {
            return usage(format!("wait = {}: 10s to 24h are possible", self.wait));
        }
        if let Some(disk) = &self.disk {
            if disk.size < ByteSize(1 << 20) {
                return usage(format!("disk.size = {}: give 1MiB at least", disk.size));
            }
            let is_option = |c: char| c.is_ascii_alphanumeric() || "=,._-".contains(c);
            let own = ["serial", "wwn", "size", "file", "media", "backup"];
            for option in disk.options.iter().flat_map(|options| options.split(',')) {
                let name = option.split('=').next().unwrap_or_default();
                if !option.contains('=') || !option.chars().all(is_option) || own.contains(&name) {
                    return usage(format!(
                        "disk.options: {option:?} is not possible here: write NAME=VALUE,..., without {}, which Loadline sets",
                        own.join(", ")
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that a machine can have so many disks. The error is of kind `Usage`.
    pub fn check_disks(&self, disks: u32) -> Result<(), ProxmoxError> {
        let most = SLOTS - FIRST_SLOT;
        match self.disk.is_some() && disks as usize > most {
            true => Err(ProxmoxError::usage(format!(
                "[fleet.proxmox] disk: each machine would need {disks} disks, and can have {most}: use more nodes with fewer workers each"
            ))),
            false => Ok(()),
        }
    }

    /// The names under which a machine's system finds the disks that are made for it, as many as asked for.
    pub fn disk_paths(&self, disks: u32) -> Vec<PathBuf> {
        let path = |disk| format!("/dev/disk/by-id/wwn-{}", wwn(disk)).into();
        (0..if self.disk.is_some() { disks } else { 0 }).map(path).collect()
    }
}

/// The world wide name of a machine's disk that was made for it: its system names the disk by it. A serial number does not do: since version
/// 9, Proxmox VE gives disks an identity of their own beside it, and the system prefers that. NAA 5 (IEEE registered), with the
/// organisation that QEMU uses for its addresses.
pub(crate) fn wwn(disk: u32) -> String {
    format!("0x5525400{disk:09x}")
}

/// The slots of a machine's SCSI controller that disks can be added to, given which ones the template uses.
pub(crate) fn free_slots(is_used: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
    (FIRST_SLOT..SLOTS).map(|slot| format!("scsi{slot}")).filter(move |slot| !is_used(slot))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Options that say only what has to be said.
    pub(crate) fn least(api: &str) -> Proxmox {
        Proxmox {
            api: api.into(),
            token_file: None,
            fingerprint: None,
            template: "debian-12".into(),
            nodes: Vec::new(),
            pool: None,
            full_clone: false,
            storage: None,
            cores: default_cores(),
            memory: default_memory(),
            disk: None,
            user: default_user(),
            at_once: default_at_once(),
            wait: default_wait(),
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_name_of_its_option() {
        let good = least("https://pve1:8006");
        assert_eq!(good.check(), Ok(()));
        let disk = |options: &str| {
            Some(DataDisk { storage: "a".into(), size: ByteSize(1 << 30), options: Some(options.into()) })
        };
        type Change = fn(&mut Proxmox);
        let changes: [(Change, &str); 9] = [
            (|p| p.api = "pve1".into(), "api: "),
            (|p| p.fingerprint = Some("AB".into()), "fingerprint: "),
            (|p| p.template = "a b".into(), "template = \"a b\""),
            (|p| p.nodes = vec!["../x".into()], "nodes = \"../x\""),
            (|p| p.storage = Some("a".into()), "storage without full_clone"),
            (|p| p.memory = ByteSize(1), "memory"),
            (|p| p.at_once = 0, "at_once"),
            (|p| p.wait = TimeSpan::seconds(1), "wait"),
            (|p| p.user = "-o".into(), "user"),
        ];
        for (change, part) in changes {
            let mut bad = good.clone();
            change(&mut bad);
            let error = bad.check().unwrap_err();
            assert!(error.message.contains(part), "{error}");
        }
        for options in ["serial=x", "iothread", "a=b c", "iothread=1,,"] {
            let bad = Proxmox { disk: disk(options), ..good.clone() };
            assert!(bad.check().unwrap_err().message.contains("disk.options"), "{options}");
        }
        assert_eq!(Proxmox { disk: disk("iothread=1,cache=none"), ..good }.check(), Ok(()));
    }
}
