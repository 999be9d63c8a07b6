//! What a cluster has: its nodes, its storages, its machines, and the template that is cloned.

use serde_json::{Map, Value};

use crate::api::{Api, encoded};
use crate::error::ProxmoxError;
use crate::options::Proxmox;

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClusterNode {
    pub(crate) name: String,
    pub(crate) is_online: bool,
    /// Bytes; `None` if the token may not see it.
    pub(crate) free_memory: Option<u64>,
}

/// A storage as one node sees it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Storage {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) is_shared: bool,
    pub(crate) is_available: bool,
    /// Whether it takes disks of machines.
    pub(crate) has_images: bool,
    /// Bytes; `None` if it is not known.
    pub(crate) free: Option<u64>,
}

/// A machine of the cluster, a template or not.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ListedMachine {
    pub(crate) vmid: u32,
    pub(crate) node: String,
    pub(crate) name: String,
    pub(crate) is_template: bool,
}

/// What a cluster has.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Site {
    /// The version of Proxmox VE on the node that answers.
    pub(crate) version: String,
    pub(crate) nodes: Vec<ClusterNode>,
    pub(crate) storages: Vec<Storage>,
    pub(crate) machines: Vec<ListedMachine>,
}

impl Site {
    /// Asks the API.
    pub(crate) fn look(api: &Api) -> Result<Site, ProxmoxError> {
        let version = api.get("/version", &[], "a token that is valid")?;
        let mut site = Site { version: version["version"].as_str().unwrap_or("?").into(), ..Site::default() };
        let resources = api.get("/cluster/resources", &[], "VM.Audit, Sys.Audit and Datastore.Audit")?;
        for entry in resources.as_array().into_iter().flatten() {
            site.add(entry);
        }
        site.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(site)
    }

    fn add(&mut self, entry: &Value) {
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_string();
        let free = |most: &str, used: &str| Some(entry[most].as_u64()?.saturating_sub(entry[used].as_u64()?));
        match entry["type"].as_str() {
            Some("node") => self.nodes.push(ClusterNode {
                name: text("node"),
                is_online: text("status") == "online",
                free_memory: free("maxmem", "mem"),
            }),
            Some("storage") => self.storages.push(Storage {
                name: text("storage"),
                node: text("node"),
                is_shared: is_set(&entry["shared"]),
                is_available: text("status") == "available",
                has_images: text("content").split(',').any(|content| content == "images"),
                free: free("maxdisk", "disk"),
            }),
            Some("qemu") => {
                if let Some(vmid) = number(&entry["vmid"]) {
                    let is_template = is_set(&entry["template"]);
                    self.machines.push(ListedMachine {
                        vmid,
                        node: text("node"),
                        name: text("name"),
                        is_template,
                    });
                }
            }
            _ => {}
        }
    }

    /// The storage of this name as a node sees it.
    pub(crate) fn storage(&self, name: &str, node: &str) -> Option<&Storage> {
        self.storages.iter().find(|storage| storage.name == name && storage.node == node)
    }
}

/// A number that Proxmox VE writes as a number or as a text.
pub(crate) fn number(value: &Value) -> Option<u32> {
    match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64()?.try_into().ok(),
    }
}

/// A yes that Proxmox VE writes as 1, "1" or true.
pub(crate) fn is_set(value: &Value) -> bool {
    *value == Value::Bool(true) || number(value) == Some(1)
}

/// A template that can be cloned.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Template {
    pub(crate) vmid: u32,
    pub(crate) node: String,
    pub(crate) config: Map<String, Value>,
}

impl Template {
    /// The templates that the options name: one, or one of this name on each of several nodes. At least one. The error says what is wrong
    /// with a template.
    pub(crate) fn find(api: &Api, site: &Site, options: &Proxmox) -> Result<Vec<Template>, ProxmoxError> {
        let wanted = &options.template;
        let vmid: Option<u32> = wanted.parse().ok();
        let is_it = |machine: &&ListedMachine| match vmid {
            Some(vmid) => machine.vmid == vmid,
            None => machine.is_template && machine.name == *wanted,
        };
        let mut templates = Vec::new();
        for machine in site.machines.iter().filter(is_it) {
            let path = format!("/nodes/{}/qemu/{}/config", encoded(&machine.node), machine.vmid);
            let config = api.get(&path, &[], "VM.Audit on the template")?;
            let config = config.as_object().cloned().unwrap_or_default();
            let template = Template { vmid: machine.vmid, node: machine.node.clone(), config };
            template.check().map_err(|why| {
                ProxmoxError::usage(format!(
                    "[fleet.proxmox] template {wanted} (VM {} on node {}): {why}",
                    template.vmid, template.node
                ))
            })?;
            templates.push(template);
        }
        if templates.is_empty() {
            let known: Vec<String> = site
                .machines
                .iter()
                .filter(|machine| machine.is_template)
                .map(|machine| format!("{} ({})", machine.vmid, machine.name))
                .collect();
            let known = match known.is_empty() {
                true => "the token sees no template: it needs VM.Audit on it".into(),
                false => format!("the token sees {}", known.join(", ")),
            };
            return Err(ProxmoxError::usage(format!(
                "[fleet.proxmox] there is no template {wanted}: {known}"
            )));
        }
        Ok(templates)
    }

    fn check(&self) -> Result<(), String> {
        if !is_set(self.config.get("template").unwrap_or(&Value::Null)) {
            return Err("it is no template: convert it with 'qm template'".into());
        }
        if !self.drives().any(|(_, drive)| drive.contains("cloudinit")) {
            return Err("it has no drive for cloud-init, by which machines get the key of the run: add one with 'qm set VMID --ide2 \
                        STORAGE:cloudinit'"
                .into());
        }
        match self.text("ipconfig0") {
            Some(network) if network.split(',').any(|part| part.starts_with("ip=") && part != "ip=dhcp") => {
                Err(format!(
                    "its ipconfig0 is {network}: all machines would have this address. Use DHCP: 'qm set VMID --ipconfig0 ip=dhcp'"
                ))
            }
            _ if self.text("net0").is_none() => {
                Err("it has no network (net0), and SSH reaches a machine by it".into())
            }
            _ => Ok(()),
        }
    }

    /// The text of an option.
    pub(crate) fn text(&self, option: &str) -> Option<&str> {
        self.config.get(option)?.as_str()
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.config.contains_key(option)
    }

    /// Its drives, by their slots.
    fn drives(&self) -> impl Iterator<Item = (&String, &str)> {
        let is_drive = |slot: &str| {
            let name = slot.trim_end_matches(|c: char| c.is_ascii_digit());
            name != slot && matches!(name, "scsi" | "virtio" | "sata" | "ide" | "efidisk" | "tpmstate")
        };
        self.config
            .iter()
            .filter(move |(slot, _)| is_drive(slot))
            .filter_map(|(slot, drive)| Some((slot, drive.as_str()?)))
    }

    /// A storage of its disks that other nodes do not see; `None` if they can have clones of it.
    pub(crate) fn local_storage<'a>(&'a self, site: &Site) -> Option<&'a str> {
        let storages = self.drives().filter_map(|(_, drive)| Some(drive.split_once(':')?.0));
        storages
            .into_iter()
            .find(|name| site.storage(name, &self.node).is_some_and(|storage| !storage.is_shared))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn template(vmid: u32, node: &str, storage: &str) -> Template {
        let config = json!({
            "template": 1,
            "scsi0": format!("{storage}:base-{vmid}-disk-0,size=3G"),
            "ide2": format!("{storage}:vm-{vmid}-cloudinit,media=cdrom"),
            "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
        });
        Template { vmid, node: node.into(), config: config.as_object().unwrap().clone() }
    }

    #[test]
    fn a_template_that_cannot_be_used_says_what_to_do() {
        let good = template(9000, "pve1", "local-zfs");
        assert_eq!(good.check(), Ok(()));
        let without = |option: &str| {
            let mut template = good.clone();
            template.config.remove(option);
            template.check().unwrap_err()
        };
        assert!(without("template").contains("qm template"));
        assert!(without("ide2").contains("cloudinit"));
        assert!(without("net0").contains("net0"));
        let mut fixed = good.clone();
        fixed.config.insert("ipconfig0".into(), json!("ip=10.0.0.5/24,gw=10.0.0.1"));
        assert!(fixed.check().unwrap_err().contains("ip=dhcp"));
    }
}
