//! What an action will do, in sentences, and whether it is possible now: a function of the action and of the cluster's status.
//!
//! A node decides when the action is carried out. What is refused here is what its status already shows.

mod room;

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::figures::listed;
use loadline_base::units::ByteSize;
use loadline_san_node::node::manage::{
    CreateVolume, NodeView, ReplicaView, StatusView, VolumeView, check_name, check_size, volumes_that_wait,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::runs::entry::short_hash;

use crate::action::{
    Action, AttachVolume, DeleteVolume, DetachVolume, DrainNode, LimitOf, MaintainNode, MoveVolume,
    ResizeVolume, ScrubVolume,
};

/// Names that a sentence lists.
const MOST_NAMED: usize = 5;
/// Bytes of the log of a copy, if nothing else is wanted.
pub(crate) const LOG: u64 = 256 << 20;

/// What an action will do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Preview {
    /// What it is.
    pub title: String,
    /// What will happen, a sentence each.
    pub effects: Vec<String>,
    /// What cannot be undone, if anything.
    pub lasting: Option<String>,
    /// Why it is not possible now, if it is not.
    pub refused: Option<String>,
    /// What a person has to type before it is done, if anything.
    pub type_name: Option<String>,
    /// Identifies what is shown here, and the volume that it is about. An action that is sent with this as `shown` in its query is refused
    /// if it would do something else by then, or to another volume of the same name.
    pub shown: String,
}

/// What an action that is possible will do.
#[derive(Debug, Default)]
struct Effects {
    effects: Vec<String>,
    lasting: Option<String>,
}

impl Effects {
    fn of(effects: Vec<String>) -> Effects {
        Effects { effects, lasting: None }
    }
}

/// What an action will do to a cluster with this status.
pub fn preview(status: &StatusView, action: &Action) -> Preview {
    let type_name = match action {
        Action::DeleteVolume(of) => Some(of.volume.clone()),
        _ => None,
    };
    let (effects, refused) = match effects(status, action) {
        Ok(effects) => (effects, None),
        Err(why) => (Effects::default(), Some(why)),
    };
    let store = status.store_fault.as_ref();
    let store = store.map(|why| format!("node {} does not use the configuration store: {why}", status.asked));
    let mut preview = Preview {
        title: action.title(),
        effects: effects.effects,
        lasting: effects.lasting,
        refused: refused.or(store),
        type_name,
        shown: String::new(),
    };
    // The ids of replicas are used once: a volume that was made anew has others.
    let volume = status.volumes.iter().find(|volume| Some(volume.name.as_str()) == action.volume());
    let replicas: BTreeSet<u64> =
        volume.iter().flat_map(|volume| &volume.replicas).map(|replica| replica.id).collect();
    preview.shown = short_hash(format!("{preview:?} {replicas:?}").as_bytes());
    preview
}

/// Why an action is not carried out, if it is not: [`Preview::refused`], or a name that a person had to type is another one, or the preview
/// is not the one that was `shown`.
pub fn refusal(status: &StatusView, action: &Action, shown: Option<&str>) -> Option<String> {
    match action {
        Action::DeleteVolume(of) if of.confirm != of.volume => {
            Some("nothing is deleted: the name that was typed is not that of the volume".into())
        }
        _ => {
            let now = preview(status, action);
            let is_other = shown.is_some_and(|shown| shown != now.shown);
            now.refused.or_else(|| {
                is_other.then(|| "the cluster has changed since this was shown: look at it again".to_owned())
            })
        }
    }
}

fn effects(status: &StatusView, action: &Action) -> Result<Effects, String> {
    match action {
        Action::CreateVolume(of) => create(status, of),
        Action::ResizeVolume(of) => resize(status, of),
        Action::LimitVolume(of) => limit(status, of),
        Action::MoveVolume(of) => move_to(status, of),
        Action::AttachVolume(of) => attach(status, of),
        Action::DetachVolume(of) => detach(status, of),
        Action::DeleteVolume(of) => delete(status, of),
        Action::ScrubVolume(of) => scrub(status, of),
        Action::DrainNode(of) => drain(status, of),
        Action::MaintainNode(of) => maintain(status, of),
    }
}

fn volume<'a>(status: &'a StatusView, name: &str) -> Result<&'a VolumeView, String> {
    let found = status.volumes.iter().find(|volume| volume.name == name);
    let volume = found.ok_or_else(|| format!("there is no volume '{}'", name.escape_debug()))?;
    match (volume.health, &volume.note) {
        (None, Some(why)) => Err(format!("volume {name} cannot be changed now: {why}")),
        (None, None) => Err(format!("volume {name} is being made or removed")),
        _ => Ok(volume),
    }
}

fn node<'a>(status: &'a StatusView, name: &str) -> Result<&'a NodeView, String> {
    let found = status.nodes.iter().find(|node| node.name == name);
    found.ok_or_else(|| format!("there is no node '{}'", name.escape_debug()))
}

/// Nodes that take new copies.
fn takers(status: &StatusView) -> Vec<&str> {
    let takes = |node: &&NodeView| node.alive && !node.draining && !node.maintenance && node.devices > 0;
    status.nodes.iter().filter(takes).map(|node| node.name.as_str()).collect()
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).rounded()
}

/// `1 copy`, `2 copies`.
fn copies(count: usize) -> String {
    if count == 1 { "1 copy".into() } else { format!("{count} copies") }
}

/// The most bytes that these copies of a volume can have. Each copy has the data of one group.
fn most_bytes<'a>(volume: &VolumeView, of: impl Iterator<Item = &'a ReplicaView>) -> u64 {
    let groups: BTreeSet<u32> = volume.replicas.iter().map(|replica| replica.group).collect();
    volume.bytes / groups.len().max(1) as u64 * of.count() as u64
}

fn create(status: &StatusView, of: &CreateVolume) -> Result<Effects, String> {
    check_name(&of.name)?;
    if status.volumes.iter().any(|volume| volume.name == of.name) {
        return Err(format!("there is a volume {} already: choose another name", of.name));
    }
    check_size(of.bytes)?;
    if !(1..=3).contains(&of.copies) {
        return Err("a volume has 1 to 3 copies".into());
    }
    if of.least.is_some_and(|least| !(1..=of.copies).contains(&least)) {
        return Err(
            "the number of copies that must be in sync is at least 1, and at most that of the copies".into(),
        );
    }
    if !(1..=12).contains(&of.stripes) {
        return Err("a volume has 1 to 12 stripes".into());
    }
    let nodes = takers(status);
    if let Some(at) = &of.at {
        let at = node(status, at)?;
        if !nodes.contains(&at.name.as_str()) {
            return Err(format!("node {} takes no new copies now", at.name));
        }
    }
    if nodes.len() < of.copies as usize {
        let (wanted, nodes) = (copies(of.copies as usize), nodes.len());
        return Err(format!("{wanted} need as many nodes that take new copies, and there are {nodes}"));
    }
    room::check(status, of)?;
    let bytes = of.bytes.next_multiple_of(4096);
    let reserved = (bytes + of.log_bytes.unwrap_or(LOG)).saturating_mul(u64::from(of.copies));
    let first = of.at.as_ref().map_or(String::new(), |at| format!(" The first copy is at node {at}."));
    let mut effects = vec![
        match of.copies {
            1 => format!(
                "A volume of {} with 1 copy is made. If the node of the copy is lost, so is the data.{first}",
                size(bytes)
            ),
            copies => format!(
                "A volume of {} with {copies} copies is made, each copy at another node.{first}",
                size(bytes)
            ),
        },
        format!(
            "About {} are reserved on devices, logs included. They are taken only when data is written. If there is no room, nothing is made.",
            size(reserved)
        ),
    ];
    if of.requires_tls {
        effects.push("Clients over the network must connect by TLS, with a certificate.".into());
    }
    effects.push("The volume is not attached: clients can use it once it is.".into());
    Ok(Effects::of(effects))
}

fn resize(status: &StatusView, of: &ResizeVolume) -> Result<Effects, String> {
    let volume = volume(status, &of.volume)?;
    let (name, now) = (&volume.name, volume.bytes);
    if volume.attached.is_none() {
        return Err(format!("no node owns volume {name} now: attach the volume first"));
    }
    if of.bytes <= now {
        return Err(format!(
            "volume {name} has {}, and a volume only grows: give a larger size",
            ByteSize(now)
        ));
    }
    let more = of.bytes - now;
    let effects = vec![
        format!("Volume {name} grows by {}, from {} to {}.", size(more), ByteSize(now), ByteSize(of.bytes)),
        format!(
            "Another {} are reserved on devices. If there is no room, the volume stays as it is.",
            size(more.saturating_mul(u64::from(volume.copies)))
        ),
        "No client is disconnected. Clients see the new size when they connect again.".into(),
    ];
    Ok(Effects { effects, lasting: Some("A volume cannot be made smaller again.".into()) })
}

fn limit(status: &StatusView, of: &LimitOf) -> Result<Effects, String> {
    let volume = volume(status, &of.volume)?;
    if let Some(why) = of.limit.why_not() {
        return Err(why);
    }
    let before = volume.limit.map_or("no limit".into(), |limit| limit.to_string());
    let is_none = of.limit.iops.is_none() && of.limit.bytes_per_s.is_none();
    let first = match is_none {
        true => format!("The clients of volume {} have no limit any more.", volume.name),
        false => format!("The clients of volume {} do at most {}, all together.", volume.name, of.limit),
    };
    Ok(Effects::of(vec![
        first,
        format!("Before, there was {}.", if volume.limit.is_none() { before } else { format!("a limit of {before}") }),
        "It holds within a second, also for clients that are connected. No client is disconnected, and nothing is copied.".into(),
    ]))
}

fn move_to(status: &StatusView, of: &MoveVolume) -> Result<Effects, String> {
    let volume = volume(status, &of.volume)?;
    let [from, to] = [node(status, &of.from)?, node(status, &of.to)?];
    let at = |node: &str| volume.replicas.iter().filter(|of| of.node == node).collect::<Vec<_>>();
    let name = &volume.name;
    let mut moves = at(&from.name);
    if moves.is_empty() {
        let nodes: BTreeSet<&str> = volume.replicas.iter().map(|of| of.node.as_str()).collect();
        let nodes = listed(&Vec::from_iter(nodes), MOST_NAMED);
        return Err(format!("node {} has no copy of volume {name}: its copies are at {nodes}", from.name));
    }
    if from.name == to.name {
        moves.retain(|replica| replica.state != "in sync");
        if moves.is_empty() {
            return Err(format!(
                "the copy at node {} is in sync: choose another node to move it to",
                from.name
            ));
        }
    } else {
        let groups: BTreeSet<u32> = moves.iter().map(|replica| replica.group).collect();
        if at(&to.name).iter().any(|there| groups.contains(&there.group)) {
            return Err(format!(
                "node {} already has a copy of volume {name}, and the copies of the same data must be on different nodes",
                to.name
            ));
        }
        if to.draining {
            return Err(format!("node {} takes no new copies: it is being drained", to.name));
        }
        if to.maintenance {
            return Err(format!("node {} takes no new copies: it is in maintenance", to.name));
        }
    }
    let bytes = size(most_bytes(volume, moves.iter().copied()));
    let (count, are) = (copies(moves.len()), if moves.len() == 1 { "is" } else { "are" });
    let mut effects = vec![
        match from.name == to.name {
            true => format!(
                "At node {}, {count} of volume {name} that {are} not in sync {are} made anew there.",
                from.name
            ),
            false => {
                let beside = if moves.len() == 1 { "that" } else { "those" };
                format!(
                    "{count} of volume {name} {are} made anew at node {}, beside {beside} at node {}.",
                    to.name, from.name
                )
            }
        },
        format!(
            "At most {bytes} are copied: what was written. Clients use the volume meanwhile, and none is disconnected."
        ),
    ];
    if from.name != to.name {
        effects.push("An old copy is removed when the new one has all data, so that the volume never has fewer copies.".into());
    }
    match &volume.owner {
        Some(owner) => effects.push(format!("Node {owner} stays the owner.")),
        None => effects.push("The volume is not attached: nothing is copied before it is.".into()),
    }
    if !to.alive {
        effects.push(format!("Node {} does not answer: the move waits for it.", to.name));
    }
    Ok(Effects::of(effects))
}

/// What becomes of clients whose volume is attached.
const CUT: &str = "All clients of the volume are disconnected. What they sent before and was not answered is not carried out afterwards.";

fn attach(status: &StatusView, of: &AttachVolume) -> Result<Effects, String> {
    let volume = volume(status, &of.volume)?;
    let name = &volume.name;
    let target = of.node.as_ref().map(|of| node(status, of)).transpose()?;
    if let Some(silent) = target.filter(|node| !node.alive) {
        return Err(format!(
            "node {} does not answer, so volume {name} cannot be attached there",
            silent.name
        ));
    }
    if let Some(maintained) = target.filter(|node| node.maintenance) {
        return Err(format!(
            "node {} is in maintenance, so volume {name} is not attached there: choose another node, or end the maintenance",
            maintained.name
        ));
    }
    let mut effects = Vec::new();
    match (target.map(|node| &node.name), &volume.owner) {
        (Some(node), Some(owner)) if node == owner => {
            effects.push(format!("Node {node} stays the owner of volume {name}."))
        }
        (Some(node), Some(owner)) => {
            effects.push(format!(
                "Node {node} becomes the owner of volume {name}, which node {owner} gives up."
            ));
        }
        (Some(node), None) => effects.push(format!("Node {node} becomes the owner of volume {name}.")),
        (None, Some(owner)) => {
            effects.push(format!("Node {owner} stays the owner of volume {name}, if it answers; otherwise another node becomes it."));
        }
        (None, None) => {
            effects.push(format!("The node with the most copies in sync becomes the owner of volume {name}."))
        }
    }
    match volume.attached.is_some() {
        true => effects.push(CUT.into()),
        false => effects.push("Clients can then use the volume by any node.".into()),
    }
    effects.push("No data is copied.".into());
    Ok(Effects::of(effects))
}

fn detach(status: &StatusView, of: &DetachVolume) -> Result<Effects, String> {
    let volume = volume(status, &of.volume)?;
    let name = &volume.name;
    if volume.attached.is_none() {
        return Err(format!("volume {name} is not attached"));
    }
    let clients = match of.force {
        true => CUT.into(),
        false => "If clients are connected, the cluster refuses this, and nothing changes.".into(),
    };
    Ok(Effects::of(vec![
        clients,
        format!("No node serves volume {name} afterwards: clients cannot use it until it is attached again."),
        "All data stays. Copies that are not in sync stay so meanwhile.".into(),
    ]))
}

fn delete(status: &StatusView, of: &DeleteVolume) -> Result<Effects, String> {
    let found = status.volumes.iter().find(|volume| volume.name == of.volume);
    let volume = found.ok_or_else(|| format!("there is no volume '{}'", of.volume.escape_debug()))?;
    let name = &volume.name;
    if volume.attached.is_some() {
        return Err(format!("volume {name} is attached: detach it first"));
    }
    let nodes: BTreeSet<&str> = volume.replicas.iter().map(|replica| replica.node.as_str()).collect();
    let nodes: Vec<&str> = nodes.into_iter().collect();
    Ok(Effects {
        effects: vec![
            format!(
                "Volume {name} of {} is deleted with all its data: {} at {}.",
                size(volume.bytes),
                copies(volume.replicas.len()),
                listed(&nodes, MOST_NAMED)
            ),
            "The room of its copies becomes free.".into(),
        ],
        lasting: Some("Deleted data cannot be restored.".into()),
    })
}

fn scrub(status: &StatusView, of: &ScrubVolume) -> Result<Effects, String> {
    let volume = volume(status, &of.volume)?;
    let name = &volume.name;
    let is_alive = |name: &str| status.nodes.iter().any(|node| node.name == name && node.alive);
    let (checked, skipped): (Vec<_>, Vec<_>) =
        volume.replicas.iter().partition(|replica| replica.state == "in sync" && is_alive(&replica.node));
    if checked.is_empty() {
        return Err(format!(
            "no copy of volume {name} can be checked: none is in sync at a node that answers"
        ));
    }
    let bytes = size(most_bytes(volume, checked.iter().copied()));
    let mut effects = vec![format!(
        "Every block of {} of volume {name} is checked, as fast as the devices allow: at most {bytes} are read.",
        copies(checked.len())
    )];
    if !skipped.is_empty() {
        let are = if skipped.len() == 1 { "is" } else { "are" };
        effects.push(format!(
            "{} {are} skipped: not in sync, or at a node that does not answer.",
            copies(skipped.len())
        ));
    }
    effects.push("Requests of clients can take longer meanwhile. No client is disconnected.".into());
    effects.push(match volume.attached.is_some() {
        true => "A block that does not match its checksum is written anew from another copy.".into(),
        false => {
            "The volume is not attached, so that blocks which do not match their checksums are only counted."
                .into()
        }
    });
    Ok(Effects::of(effects))
}

fn maintain(status: &StatusView, of: &MaintainNode) -> Result<Effects, String> {
    let maintained = node(status, &of.node)?;
    let name = &maintained.name;
    if of.stop {
        if !maintained.maintenance {
            return Err(format!("node {name} is not in maintenance"));
        }
        return Ok(Effects::of(vec![
            format!("Node {name} receives new copies again, and volumes can be attached at it."),
            "Volumes stay where they have gone.".into(),
        ]));
    }
    if maintained.maintenance {
        return Err(format!("node {name} is in maintenance already"));
    }
    let wait = volumes_that_wait(status, name);
    if !wait.is_empty() && !of.force {
        return Err(format!(
            "while node {name} is stopped, clients of these volumes would wait, since too few of their copies are in sync at other nodes: {}",
            listed(&wait, MOST_NAMED)
        ));
    }
    let owned = status.volumes.iter().filter(|volume| {
        volume.attached.is_some() && volume.owner.as_deref() == Some(name) && !wait.contains(&&*volume.name)
    });
    let owned: Vec<&str> = owned.map(|volume| volume.name.as_str()).collect();
    let mut effects = vec![match owned.as_slice() {
        [] => format!("Node {name} owns no volume that another node can take over."),
        [one] => format!("Another node becomes the owner of volume {one}, which node {name} owns now."),
        some => format!(
            "Other nodes become the owners of {} volumes that node {name} owns now: {}.",
            some.len(),
            listed(some, MOST_NAMED)
        ),
    }];
    if !owned.is_empty() {
        effects.push(
            "Their clients over the network are disconnected, and can connect to any node. A volume that virtual machines of the node's host \
             use stays until they are stopped."
                .into(),
        );
    }
    effects.push(format!("Node {name} receives no new copies, and its copies stay. No data is copied."));
    if !wait.is_empty() {
        effects.push(format!(
            "While the node is stopped, clients of these volumes wait: {}.",
            listed(&wait, MOST_NAMED)
        ));
    }
    effects.push("The node can then be stopped. This lasts until the maintenance is ended.".into());
    Ok(Effects::of(effects))
}

fn drain(status: &StatusView, of: &DrainNode) -> Result<Effects, String> {
    let drained = node(status, &of.node)?;
    let name = &drained.name;
    if of.stop {
        if !drained.draining {
            return Err(format!("node {name} is not being drained"));
        }
        return Ok(Effects::of(vec![
            format!(
                "Copies that have not left node {name} stay there. Those that have left stay where they are."
            ),
            format!("Node {name} receives new copies again."),
        ]));
    }
    if drained.draining {
        return Err(format!("node {name} is being drained already"));
    }
    let here: BTreeMap<&str, (usize, u64)> = status
        .volumes
        .iter()
        .map(|volume| {
            let moves: Vec<_> = volume.replicas.iter().filter(|replica| &replica.node == name).collect();
            (volume.name.as_str(), (moves.len(), most_bytes(volume, moves.iter().copied())))
        })
        .filter(|(_, (count, _))| *count > 0)
        .collect();
    let names: Vec<&str> = here.keys().copied().collect();
    let (count, bytes) = here.values().fold((0, 0), |(count, all), (n, bytes)| (count + n, all + bytes));
    let mut effects = vec![match count {
        0 => format!("Node {name} has no copies, so that nothing is copied. It receives no new copies."),
        _ => format!(
            "Node {name} has {} of {} ({}). They move to other nodes, one copy of each volume at a time. The node receives no new copies.",
            copies(count),
            if names.len() == 1 { "1 volume".into() } else { format!("{} volumes", names.len()) },
            listed(&names, MOST_NAMED)
        ),
    }];
    if count > 0 {
        effects.push(format!(
            "At most {} are copied: what was written. Clients use the volumes meanwhile, and none is disconnected.",
            size(bytes)
        ));
    }
    let others = takers(status).iter().filter(|other| *other != name).count();
    let stay: Vec<&str> = status
        .volumes
        .iter()
        .filter(|volume| here.contains_key(volume.name.as_str()) && others < volume.copies as usize)
        .map(|volume| volume.name.as_str())
        .collect();
    if !stay.is_empty() {
        effects.push(format!(
            "There are too few other nodes for the copies of {}: these stay until there is another node.",
            listed(&stay, MOST_NAMED)
        ));
    }
    let attached: Vec<&str> = status
        .volumes
        .iter()
        .filter(|volume| volume.attached.as_ref() == Some(name))
        .map(|volume| volume.name.as_str())
        .collect();
    if !attached.is_empty() {
        effects.push(format!(
            "Volumes that are attached at node {name} stay attached there: {}. Attach them at another node before you remove the node.",
            listed(&attached, MOST_NAMED)
        ));
    }
    if !drained.alive {
        effects
            .push(format!("Node {name} does not answer: its copies are made again from the other copies."));
    }
    Ok(Effects::of(effects))
}

#[cfg(test)]
pub(crate) mod tests;
