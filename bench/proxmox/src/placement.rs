//! On which nodes of the cluster machines are made: by turns, where there is room. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use loadline_base::units::ByteSize;

use crate::error::ProxmoxError;
use crate::options::Proxmox;
use crate::site::{Site, Storage, Template};

/// Where one machine is made, and of which template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: String,
    /// The template's place in the list.
    pub(crate) template: usize,
}

/// Room for machines on one node, in machines; `None`: it is not known.
struct Room {
    place: Place,
    memory: Option<u64>,
    storage: Option<u64>,
    /// Whether other nodes use the same storage.
    is_shared: bool,
}

/// Places so many machines with so many disks each. The error is of kind `Usage`, and says how many would fit where.
pub(crate) fn places(
    site: &Site,
    templates: &[Template],
    options: &Proxmox,
    machines: u32,
    disks: u32,
) -> Result<Vec<Place>, ProxmoxError> {
    let usage = |what: String| ProxmoxError::usage(format!("[fleet.proxmox] {what}"));
    let mut rooms = Vec::new();
    let mut excluded = Vec::new();
    let names: Vec<&String> = match options.nodes.is_empty() {
        true => site.nodes.iter().map(|node| &node.name).collect(),
        false => options.nodes.iter().collect(),
    };
    for name in names {
        match room(site, templates, options, name, disks) {
            Ok(room) => rooms.push(room),
            // Without a list of nodes, those that can have no machine are left out.
            Err(why) if options.nodes.is_empty() => excluded.push(format!("{name}: {why}")),
            Err(why) => return Err(usage(format!("node {name}: {why}"))),
        }
    }
    if rooms.is_empty() {
        return Err(usage(format!("no node of the cluster can have a machine. {}", excluded.join("; "))));
    }
    let mut shared = rooms.iter().filter(|room| room.is_shared).filter_map(|room| room.storage).min();
    let mut left: Vec<(Option<u64>, Option<u64>)> =
        rooms.iter().map(|room| (room.memory, room.storage)).collect();
    let mut placed = Vec::new();
    let mut turn = 0;
    while placed.len() < machines as usize {
        let has_room = |index: &usize| {
            let (memory, storage) = left[*index];
            memory != Some(0) && storage != Some(0) && !(rooms[*index].is_shared && shared == Some(0))
        };
        let Some(index) = (0..rooms.len()).map(|step| (turn + step) % rooms.len()).find(has_room) else {
            return Err(usage(lacking(&rooms, options, machines, placed.len(), disks, &excluded)));
        };
        let take = |room: &mut Option<u64>| *room = room.map(|machines| machines - 1);
        take(&mut left[index].0);
        match rooms[index].is_shared {
            true => take(&mut shared),
            false => take(&mut left[index].1),
        }
        placed.push(rooms[index].place.clone());
        turn = index + 1;
    }
    Ok(placed)
}

fn room(
    site: &Site,
    templates: &[Template],
    options: &Proxmox,
    name: &str,
    disks: u32,
) -> Result<Room, String> {
    let node = site.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
        let known: Vec<&str> = site.nodes.iter().map(|node| node.name.as_str()).collect();
        format!("the cluster has no such node; it has {}", known.join(", "))
    })?;
    if !node.is_online {
        return Err("it is offline: bring it back, or leave it out of nodes".into());
    }
    let own = templates.iter().position(|template| template.node == name);
    let template =
        own.or_else(|| templates.iter().position(|template| template.local_storage(site).is_none()));
    let template = template.ok_or_else(|| {
        let local = templates.first().and_then(|template| template.local_storage(site)).unwrap_or_default();
        format!(
            "the template is on the storage {local} of another node, which this node does not see: make a template of the same name on each \
             node and give its name, move the template to shared storage, or say nodes = [\"{}\"]",
            templates[0].node
        )
    })?;
    if let Some(storage) = &options.storage {
        let found = usable(site, storage, name)?;
        if own.is_none() && !found.is_shared {
            return Err(format!(
                "a full clone to storage {storage}, which is not shared, needs the template on this node"
            ));
        }
    }
    let mut room = Room {
        place: Place { node: name.into(), template },
        memory: node.free_memory.map(|free| free / options.memory.0.max(1)),
        storage: None,
        is_shared: false,
    };
    if let Some(disk) = &options.disk {
        let found = usable(site, &disk.storage, name)?;
        let each = disk.size.0.saturating_mul(u64::from(disks)).max(1);
        (room.storage, room.is_shared) = (found.free.map(|free| free / each), found.is_shared);
    }
    Ok(room)
}

fn usable<'a>(site: &'a Site, name: &str, node: &str) -> Result<&'a Storage, String> {
    let storage = site.storage(name, node).ok_or_else(|| {
        let here = site.storages.iter().filter(|storage| storage.node == node && storage.has_images);
        let known: Vec<&str> = here.map(|storage| storage.name.as_str()).collect();
        match known.is_empty() {
            true => {
                format!("the token sees no storage {name} there: it needs Datastore.Audit on /storage/{name}")
            }
            false => format!("there is no storage {name}; disks of machines can be on {}", known.join(", ")),
        }
    })?;
    if !storage.is_available {
        return Err(format!("its storage {name} is not available at the moment"));
    }
    match storage.has_images {
        true => Ok(storage),
        false => Err(format!(
            "its storage {name} takes no disks of machines: allow the content 'Disk image' for it, or name another storage"
        )),
    }
}

fn lacking(
    rooms: &[Room],
    options: &Proxmox,
    machines: u32,
    fit: usize,
    disks: u32,
    excluded: &[String],
) -> String {
    let mut words = format!("of {machines} machines, {fit} fit: each needs {} of memory", options.memory);
    if let Some(disk) = &options.disk {
        let each = ByteSize(disk.size.0.saturating_mul(u64::from(disks)));
        let _ = write!(words, " and {each} on storage {}", disk.storage);
    }
    let by_node: BTreeMap<&str, String> = rooms
        .iter()
        .map(|room| {
            let mut parts = Vec::new();
            parts.extend(room.memory.map(|machines| format!("memory for {machines}")));
            let shared = if room.is_shared { " on all nodes together" } else { "" };
            parts.extend(room.storage.map(|machines| format!("storage for {machines}{shared}")));
            (room.place.node.as_str(), parts.join(" and "))
        })
        .collect();
    for (node, parts) in by_node {
        let _ = write!(words, "; {node} has {parts}");
    }
    for node in excluded {
        let _ = write!(words, "; {node}");
    }
    words + ". Lower nodes, memory or disk.size, or make room"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::DataDisk;
    use crate::options::tests::least;
    use crate::site::ClusterNode;
    use crate::site::tests::template;

    const GIB: u64 = 1 << 30;

    fn site(nodes: &[(&str, u64)], is_shared: bool) -> Site {
        let node = |(name, free): &(&str, u64)| ClusterNode {
            name: (*name).into(),
            is_online: *free > 0,
            free_memory: Some(free * GIB),
        };
        let storage = |(name, _): &(&str, u64)| Storage {
            name: "zfs".into(),
            node: (*name).into(),
            is_shared,
            is_available: true,
            has_images: true,
            free: Some(100 * GIB),
        };
        Site {
            nodes: nodes.iter().map(node).collect(),
            storages: nodes.iter().map(storage).collect(),
            ..Site::default()
        }
    }

    fn on(placed: Result<Vec<Place>, ProxmoxError>) -> Vec<String> {
        placed.unwrap().into_iter().map(|place| place.node).collect()
    }

    #[test]
    fn machines_go_to_nodes_by_turns_where_there_is_memory() {
        let options = least("https://a");
        let site = site(&[("a", 3), ("b", 9), ("c", 0)], true);
        let templates = [template(9000, "a", "zfs")];
        assert_eq!(on(places(&site, &templates, &options, 4, 1)), ["a", "b", "b", "b"]);
        let why = places(&site, &templates, &options, 6, 1).unwrap_err().message;
        assert!(
            why.contains("of 6 machines, 5 fit") && why.contains("a has memory for 1; b has memory for 4"),
            "{why}"
        );
        assert!(why.contains("c: it is offline"), "{why}");
    }

    #[test]
    fn space_of_a_shared_storage_counts_once_and_that_of_others_for_each_node() {
        let disk = DataDisk { storage: "zfs".into(), size: ByteSize(25 * GIB), options: None };
        let options = crate::Proxmox { disk: Some(disk), ..least("https://a") };
        let nodes = [("a", 64), ("b", 64)];
        let shared = places(&site(&nodes, true), &[template(9000, "a", "zfs")], &options, 3, 2);
        assert!(shared.unwrap_err().message.contains("of 3 machines, 2 fit"));
        let each = [template(9000, "a", "zfs"), template(9001, "b", "zfs")];
        assert_eq!(on(places(&site(&nodes, false), &each, &options, 4, 2)), ["a", "b", "a", "b"]);
    }

    #[test]
    fn a_template_on_local_storage_is_cloned_on_its_own_node_only() {
        let site = site(&[("a", 64), ("b", 64)], false);
        let mut options = least("https://a");
        let one = [template(9000, "a", "zfs")];
        assert_eq!(on(places(&site, &one, &options, 2, 1)), ["a", "a"]);
        options.nodes = vec!["b".into()];
        let why = places(&site, &one, &options, 1, 1).unwrap_err().message;
        assert!(why.contains("node b: the template is on the storage zfs of another node"), "{why}");
        options.nodes = vec!["x".into()];
        assert!(places(&site, &one, &options, 1, 1).unwrap_err().message.contains("it has a, b"));
    }
}
