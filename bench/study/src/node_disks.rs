//! Disks that a study names for each node, and what a fleet of hosts must say of its disks.

use std::collections::BTreeSet;
use std::path::Path;

use loadline_base::figures::counted;
use loadline_fleet::{FleetKind, NodeSpec};
use loadline_load::Target;

use crate::error::StudyError;
use crate::file::Study;
use crate::fleet::ResolvedFleet;

impl Study {
    /// Whether the study names the disks of each node, and not of the fleet as a whole.
    pub fn names_node_disks(&self) -> bool {
        !self.fleet.disks.is_empty()
            || self.fleet.node.iter().any(|node| !node.disks.is_empty())
            || self.makes_disks()
    }

    /// Whether the disks that are measured are made for the run, with the machines that have them.
    pub fn makes_disks(&self) -> bool {
        self.fleet.proxmox.as_ref().is_some_and(|cluster| cluster.disk.is_some())
    }

    /// The disks of a node: its own, those of every host, or those that are made with it; none if the study names none.
    pub fn disks_of_node(&self, name: &str) -> Vec<Target> {
        if let Some(cluster) = self.fleet.proxmox.as_ref().filter(|cluster| cluster.disk.is_some()) {
            let count = self.fleet.workers_per_node.saturating_mul(self.fleet.disks_per_worker);
            return cluster.disk_paths(count).into_iter().map(Target::Path).collect();
        }
        match self.fleet.node.iter().find(|node| node.name == name) {
            Some(node) => self.named_for(node).to_vec(),
            None => self.fleet.disks.clone(),
        }
    }

    fn named_for<'a>(&'a self, node: &'a NodeSpec) -> &'a [Target] {
        if node.disks.is_empty() { &self.fleet.disks } else { &node.disks }
    }

    /// Every existing disk that the study measures, ceilings apart: of targets, or of nodes.
    pub fn named_disks(&self) -> impl Iterator<Item = &Target> {
        let of_nodes = self.fleet.node.iter().flat_map(|node| self.named_for(node));
        self.targets().flat_map(|target| target.devices).chain(of_nodes)
    }
}

/// Whether a disk is of the host on which it is named, and has a name there.
fn is_a_hosts_own(target: &Target) -> bool {
    matches!(target, Target::Path(_) | Target::Vhost(_))
}

/// That each node has as many disks as its workers use, each once, and that a study of hosts says on which host each disk is.
pub(crate) fn check(study: &Study, fleet: &ResolvedFleet) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    let section = &study.fleet;
    let are_hosts = !fleet.placement.runs_here() && fleet.has_known_workers();
    if !section.disks.is_empty() && !are_hosts {
        return usage(
            "[fleet] disks are disks of hosts: give each node its disks in its [[fleet.node]] table, or name hosts with ssh".into(),
        );
    }
    if section.group.is_some() && section.inventory.is_none() {
        return usage("[fleet] group without inventory: name the inventory whose group it is".into());
    }
    if !section.disks.is_empty() && study.makes_disks() {
        return usage("[fleet] disks and [fleet.proxmox] disk both say which disks the machines have: leave one of them out".into());
    }
    if study.names_node_disks() {
        let names_others = study
            .targets()
            .any(|target| target.folder.is_some() || !target.devices.is_empty() || target.san.is_some());
        if names_others || !study.policy.is_empty() {
            return usage(
                "[fleet] names the disks of nodes, and [target] or [[policy]] names disks too: leave one of them out".into(),
            );
        }
        if section.disk_size.is_some() {
            return usage(
                "[fleet] says disk_size, but existing disks have the size they have: remove it".into(),
            );
        }
        let each = u64::from(section.workers_per_node) * u64::from(section.disks_per_worker);
        for name in &fleet.nodes {
            let disks = study.disks_of_node(name);
            if disks.len() as u64 != each {
                return usage(format!(
                    "[[fleet.node]] {name} names {}, and {} with {} each need {each}: name as many",
                    counted(disks.len() as u64, "disk"),
                    counted(section.workers_per_node.into(), "worker"),
                    counted(section.disks_per_worker.into(), "disk")
                ));
            }
            let mut seen = BTreeSet::new();
            let mut own = disks.iter().filter(|disk| is_a_hosts_own(disk)).map(ToString::to_string);
            if let Some(twice) = own.find(|disk| !seen.insert(disk.clone())) {
                return usage(format!(
                    "[[fleet.node]] {name}: {twice} is named twice: two workers would disturb each other; name each disk once"
                ));
            }
        }
    }
    if !are_hosts {
        return Ok(());
    }
    let whole = |what: &str, path: &Path| match path.is_absolute() {
        true => Ok(()),
        false => Err(StudyError::usage(format!(
            "{what} {}: it is looked for on each host, so give the whole path, such as /data",
            path.display()
        ))),
    };
    for target in fleet.nodes.iter().flat_map(|name| study.disks_of_node(name)) {
        target.path().map_or(Ok(()), |path| whole("[[fleet.node]] disks:", path))?;
    }
    for target in study.targets() {
        if let Some(device) = target.devices.iter().find(|device| is_a_hosts_own(device)) {
            return usage(format!(
                "[target] devices: {device} does not say on which host it is: name the disks of each host in its \
                 [[fleet.node]] table (disks = [...]), or those of every host in [fleet] disks"
            ));
        }
        match target.folder {
            Some(folder) => whole("[target] folder", folder)?,
            None if study.makes_files() && target.san.is_none() => {
                return usage(
                    "the workers are on hosts, and the study does not say where their disks are: name a folder there ([target] \
                     folder = \"/data\"), existing disks (disks = [...] in [[fleet.node]] or [fleet]), or disks that are made (disk = {...} in \
                     [fleet.proxmox])"
                        .into(),
                );
            }
            None => {}
        }
    }
    for node in &study.ceilings.node {
        let what = format!("[[ceilings.node]] {}:", node.name);
        node.folder.as_ref().map_or(Ok(()), |folder| whole(&what, folder))?;
        node.devices.iter().filter_map(Target::path).try_for_each(|path| whole(&what, path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::read::parse;

    fn refusal(fleet: &str) -> String {
        let study = parse("s.toml", &format!("name = \"s\"\nprofiles = [\"oltp\"]\n{fleet}\n")).unwrap();
        Plan::of(&study).err().map(|error| error.message).unwrap_or_default()
    }

    #[test]
    fn each_node_names_its_disks_once_and_as_many_as_its_workers_use() {
        let node =
            |disks: &str| format!("[[fleet.node]]\nname = \"a\"\nssh = \"root@a\"\ndisks = [{disks}]\n");
        assert_eq!(refusal(&node("\"/dev/sdb\"")), "");
        assert_eq!(refusal(&format!("[fleet]\ndisks = [\"/dev/sdb\"]\n{}", node(""))), "");
        for (study, part) in [
            (node("\"/dev/sdb\", \"/dev/sdc\""), "[[fleet.node]] a names 2 disks"),
            (
                format!("[fleet]\nworkers_per_node = 2\n{}", node("\"/dev/x\", \"/dev/x\"")),
                "/dev/x is named twice",
            ),
            (node("\"sdb\""), "whole path"),
            (format!("{}[target]\nfolder = \"/x\"", node("\"/dev/x\"")), "names disks too"),
            (format!("{}[target]\ndevices = [\"/dev/x\"]", node("")), "on which host"),
            (node(""), "does not say where their disks are"),
            (format!("{}[target]\nfolder = \"x\"", node("")), "whole path"),
            ("[fleet]\ndisks = [\"/dev/x\"]".into(), "disks of hosts"),
            ("[fleet]\ngroup = \"x\"".into(), "group without inventory"),
        ] {
            let found = refusal(&study);
            assert!(found.contains(part), "{study}\n{found}");
        }
    }
}
