//! Volumes: attached, detached, deleted. How they are made is in `create`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;
use loadline_san_core::ids::{NodeId, VolumeId};
use loadline_san_core::record::{Record, RecordState};
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::ways::Ways;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::attached::{Use, WaysView};
use super::clients::ClientsView;
use super::{ManageError, listed};
use crate::config::catalog::{
    self, Catalog, Replica, ReplicaState, SocketPlace, Volume, VolumeState, change,
};
use crate::config::service::record_key;
use crate::config::steps::{self, Made, Shrink, Step};
use crate::config::{Change, ConfigError, ConfigStore};
use crate::event_loop::command::LoopCommand;
use crate::node::Node;

/// Blocks of a stripe unit: 1 MiB.
pub(super) const UNIT: u64 = 256;
/// Blocks of a group at most: 16 GiB.
pub(super) const GROUP: u64 = 4 << 20;
/// Bytes of a replica's log, if nothing else is said.
pub(super) const LOG: u64 = 256 << 20;
/// And at the least: 4 MiB are in flight at once then.
pub(super) const LEAST_LOG: u64 = 32 << 20;
/// Bytes of the key of an attachment at most.
const LONGEST_KEY: usize = 64;
/// How long a volume may take to be served.
pub(super) const SERVED: Duration = Duration::from_secs(20);

/// A volume that is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name: 1 to 64 letters, digits, `-`, `_` and `.`; it does not begin with `-` or `.`.
    pub name: String,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Copies, 1 to 3, each at another node.
    pub copies: u32,
    /// Copies that must be in sync for a write to begin, 1 to `copies`; otherwise writes wait, and reads continue. If it is
    /// left out: 2 of 3, 1 of 2, 1 of 1.
    #[serde(default)]
    pub least: Option<u32>,
    /// Stripes, 1 to 12.
    #[serde(default = "one")]
    pub stripes: u32,
    /// The node where it is to be used: its first copy is there.
    #[serde(default)]
    pub at: Option<String>,
    /// Bytes of the log of each replica, at least 32 MiB; 256 MiB if it is left out. A seventh of it may be in flight.
    #[serde(default)]
    pub log_bytes: Option<u64>,
    /// Clients over the network are let in only by TLS, with a certificate.
    #[serde(default)]
    pub requires_tls: bool,
}

/// Volumes that are wanted, which differ in their names only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolumes {
    /// Their names, 1 to 1,000, each by the rules for the name of a single volume.
    pub names: Vec<String>,
    /// Size of each volume in bytes.
    pub bytes: u64,
    /// Copies of each volume, 1 to 3, each at another node.
    pub copies: u32,
    /// Copies of a volume that must be in sync for a write to begin, 1 to `copies`; otherwise writes wait, and reads continue. If it
    /// is left out: 2 of 3, 1 of 2, 1 of 1.
    #[serde(default)]
    pub least: Option<u32>,
    /// Stripes of each volume, 1 to 12.
    #[serde(default = "one")]
    pub stripes: u32,
    /// The node at which each volume is to be used: the first copy is there. If it is left out, first copies are spread over the
    /// nodes.
    #[serde(default)]
    pub at: Option<String>,
    /// Bytes of the log of each replica, at least 32 MiB; 256 MiB if it is left out. A seventh of it may be in flight.
    #[serde(default)]
    pub log_bytes: Option<u64>,
    /// Clients of each volume over the network are let in only by TLS, with a certificate.
    #[serde(default)]
    pub requires_tls: bool,
    /// Whether each is attached, to the node with its first copy.
    #[serde(default)]
    pub attach: bool,
}

fn one() -> u32 {
    1
}

/// The least size of a volume for people: a smaller one is a size whose unit was forgotten.
const LEAST_SIZE: ByteSize = ByteSize::MIB;

/// Whether a volume can be meant to have so many bytes. The error is for people.
pub fn check_size(bytes: u64) -> Result<(), String> {
    match bytes >= LEAST_SIZE.bytes() {
        true => Ok(()),
        false => Err(format!("a volume has at least {LEAST_SIZE}, and this is {bytes} bytes")),
    }
}

impl Node {
    /// Deletes a volume that is not attached.
    pub async fn delete_volume(&self, name: &str) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, volume) = self.volume(name)?;
        if volume.attached.is_some() {
            return Err(ManageError::InUse(format!("volume {name} is attached: detach it first")));
        }
        let mut remove = RemoveVolume::any(id);
        if !self.config().in_steps(move |store| remove.step(store)).await? {
            return Err(ManageError::InUse(format!("volume {name} was attached meanwhile: detach it first")));
        }
        self.reconcile_soon();
        Ok(())
    }

    /// Makes this node, or the one that is named, the owner of a volume, and lets clients in. Connections that came before are cut,
    /// also where the volume was attached here already: nothing that came by them is carried out afterwards. With a key, only a volume is
    /// attached that is attached nowhere, and the key is that of the attachment: [`detach_volume`](Self::detach_volume) requires it.
    pub async fn attach_volume(
        &self,
        name: &str,
        node: Option<&str>,
        key: Option<&str>,
    ) -> Result<Use, ManageError> {
        let found = self.attachable(name, node).await?;
        self.attach_here(name, found, key).await
    }

    /// Attaches a volume that was found to be [`attachable`](Self::attachable) at this node.
    pub(super) async fn attach_here(
        &self,
        name: &str,
        (id, volume, catalog): (u64, Volume, Catalog),
        key: Option<&str>,
    ) -> Result<Use, ManageError> {
        if let Some(key) = key {
            check_key(key)?;
        }
        let target = self.id();
        let wanted = key.map(str::to_owned);
        let attach = move |volume: &Volume| {
            let may = wanted.is_none() || volume.attached.is_none() || volume.attach_key == wanted;
            may.then(|| Volume { attach_key: wanted.clone(), ..volume.attached_at(Some(target)) })
        };
        let before = self.change_attached(id, attach).await?.ok_or_else(|| {
            ManageError::InUse(format!(
                "volume {name} is attached already, and with a key only a volume is attached that is not"
            ))
        })?;
        if before.attached.is_none() {
            self.loop_of(id).give(LoopCommand::NoClients(VolumeId(id)));
        }
        self.reconciled().await;
        self.refresh().await?;
        let fence = self.record(id).map_or(0, |record| record.fence);
        self.carry_out_attach(id);
        if !self.wait_until_served(id, fence).await? {
            let why = self.why_not_served(id).await;
            return Err(ManageError::TimedOut(format!(
                "volume {name} is attached to this node, but is not served yet: {why}. The node serves the volume as soon as this cause is gone"
            )));
        }
        let (node, _) = &catalog.nodes[&target];
        let socket = self.socket_here(id);
        Ok(Use {
            volume: name.into(),
            node: node.name.clone(),
            ways: {
                // iSCSI has no TLS.
                let all = Protocol::ALL.into_iter();
                let may = all.filter(|protocol| !(volume.requires_tls && protocol.stands_by()));
                may.map(|protocol| self.ways(protocol, name, node, socket)).collect()
            },
            requires_tls: volume.requires_tls,
            waits: false,
            lets_initiators_in: !volume.initiators.is_empty(),
            disconnected: ClientsView::default(),
            without_path: Vec::new(),
        })
    }

    /// A volume that can be attached at this node, with its id and the configuration. The error says why it cannot be, or that another node
    /// has to do it: the one that is named, or where the volume was last.
    pub(in crate::node) async fn attachable(
        &self,
        name: &str,
        node: Option<&str>,
    ) -> Result<(u64, Volume, Catalog), ManageError> {
        self.refresh().await?;
        let (id, volume) = self.volume(name)?;
        match volume.state {
            VolumeState::Ready => {}
            VolumeState::Creating => {
                let why = format!(
                    "volume {name} is still being made: attach the volume later. If the command that makes it was interrupted, the volume \
                     is removed by itself"
                );
                return Err(ManageError::InUse(why));
            }
            VolumeState::Deleting => {
                let why =
                    format!("volume {name} is being deleted: 'loadline volume delete {name}' continues that");
                return Err(ManageError::InUse(why));
            }
        }
        let catalog = self.state().catalog.clone();
        let target = match node {
            Some(node) => catalog.node(node).ok_or_else(|| unknown_node(&catalog, node))?.0,
            None => self.where_to_attach(&catalog, id, &volume).await,
        };
        if node.is_some() && catalog.in_maintenance(target) {
            let (there, _) = &catalog.nodes[&target];
            return Err(ManageError::InUse(format!(
                "node {0} is in maintenance, so volume {name} is not attached there: attach it at another node, or end the maintenance \
                 ('loadline node maintenance {0} --stop')",
                there.name
            )));
        }
        if target != self.id() {
            let (there, _) =
                &catalog.nodes.get(&target).ok_or_else(|| unknown_node(&catalog, "that has it"))?;
            if node.is_some() && !self.answers(there.peer).await {
                return Err(ManageError::TimedOut(format!(
                    "node {} does not answer, so volume {name} is not attached there: start it, or attach the volume at another \
                     node. Nothing has changed",
                    there.name
                )));
            }
            return Err(ManageError::Elsewhere { name: there.name.clone(), api: there.api });
        }
        Ok((id, volume, catalog))
    }

    /// How clients of a protocol reach a volume at this node, with the protocol's name.
    pub(in crate::node) fn ways(
        &self,
        protocol: Protocol,
        volume: &str,
        node: &catalog::Node,
        socket: SocketPlace,
    ) -> (String, WaysView) {
        let socket = self.0.settings.socket(protocol, volume, socket);
        let Ways { network, local } = protocol.ways(volume, node.endpoint(protocol), &socket);
        (protocol.name().into(), WaysView { network, local })
    }

    pub(in crate::node) fn record(&self, id: u64) -> Option<Record> {
        let state = self.state();
        state.catalog.record(id)
    }

    /// Waits until a volume is served here, and an attach is carried out that was ordered when its record had this fence.
    /// Whether it was in time.
    async fn wait_until_served(&self, id: u64, fence: u64) -> Result<bool, ManageError> {
        let begun = Instant::now();
        loop {
            self.refresh().await?;
            let active = self.record(id).is_some_and(|record| {
                record.owner == self.0.me && record.state == RecordState::Active && record.fence > fence
            });
            let served = active && self.state().attached.contains(&id);
            if served || begun.elapsed() > SERVED {
                return Ok(served);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Where a volume is now, or was last, if that node answers; else the one that answers and has most of it.
    async fn where_to_attach(&self, catalog: &Catalog, id: u64, volume: &Volume) -> u32 {
        let record = catalog.record(id);
        let mut wanted: Vec<u32> = Vec::new();
        if volume.attached.is_some() {
            wanted.extend(record.as_ref().map(|record| record.owner.node.0));
        }
        wanted.extend(volume.attached);
        let mut count: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, node) in record.iter().flat_map(Record::members) {
            *count.entry(node.0).or_default() += 1;
        }
        let mut most: Vec<(u32, usize)> = count.into_iter().collect();
        most.sort_by_key(|(node, count)| (std::cmp::Reverse(*count), *node));
        wanted.extend(most.into_iter().map(|(node, _)| node));
        // One in maintenance would hand it over.
        wanted.sort_by_key(|node| catalog.in_maintenance(*node));
        for node in wanted {
            if let Some((there, _)) = catalog.nodes.get(&node)
                && self.answers(there.peer).await
            {
                return node;
            }
        }
        self.id()
    }

    /// A volume has no owner any more. With a key, only the attachment ends that has this key: if there is none, nothing is done. Returns the
    /// clients that were disconnected.
    pub async fn detach_volume(
        &self,
        name: &str,
        force: bool,
        key: Option<&str>,
    ) -> Result<ClientsView, ManageError> {
        self.refresh().await?;
        let (id, volume) = self.volume(name)?;
        let wanted = key.map(str::to_owned);
        let is_it = move |volume: &Volume| {
            volume.attached.is_some() && (wanted.is_none() || volume.attach_key == wanted)
        };
        if !is_it(&volume) {
            return Ok(ClientsView::default());
        }
        let (owner, address) = {
            let state = self.state();
            let record = state.catalog.record(id);
            let owner = record.map(|record| record.owner.node.0).and_then(|id| state.catalog.nodes.get(&id));
            (owner.map(|(node, _)| node.clone()), owner.map(|(node, _)| node.peer))
        };
        if let (Some(owner), Some(address)) = (owner, address)
            && owner.name != self.name()
            && self.answers(address).await
        {
            return Err(ManageError::Elsewhere { name: owner.name, api: owner.api });
        }
        if !self.refresh_loops().await {
            return Err(ManageError::TimedOut(format!(
                "volume {name} is not detached: the node could not count the volume's clients in time. Try again"
            )));
        }
        let clients = self.clients_here(id);
        if let Some(words) = clients.words().filter(|_| !force) {
            return Err(ManageError::InUse(format!(
                "volume {name} is used by {words}: stop its clients first, or detach the volume with --force, which disconnects the clients"
            )));
        }
        let detach = move |volume: &Volume| is_it(volume).then(|| volume.attached_at(None));
        if self.change_attached(id, detach).await?.is_none() {
            return Ok(ClientsView::default());
        }
        self.loop_of(id).give(LoopCommand::Detach(VolumeId(id)));
        self.reconcile_soon();
        match self.wait_until(SERVED, |state| !state.attached.contains(&id)).await {
            true => Ok(clients),
            false => Err(ManageError::TimedOut(format!(
                "volume {name} is detached, but a data-path thread of this node does not respond and may still serve the \
                 volume. The thread stops serving the volume as soon as it responds"
            ))),
        }
    }

    /// Stores what `change_of` makes of a volume, and returns what the volume was before. `None`: it makes nothing of it.
    async fn change_attached(
        &self,
        id: u64,
        change_of: impl Fn(&Volume) -> Option<Volume> + Send + 'static,
    ) -> Result<Option<Volume>, ManageError> {
        let set = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                // A volume that is being deleted in steps is attached nowhere any more.
                let there = catalog.volumes.get(&id).filter(|(volume, _)| volume.state == VolumeState::Ready);
                let Some((volume, version)) = there else { return Ok(None) };
                let Some(next) = change_of(volume) else { return Ok(Some(None)) };
                if store.commit(&[change(format!("volume/{id}"), Some(*version), &next)])? {
                    return Ok(Some(Some(volume.clone())));
                }
            }
            Err(ConfigError::Contended)
        });
        set.await?.ok_or_else(|| ManageError::Wrong("the volume was deleted meanwhile".into()))
    }

    pub(super) fn volume(&self, name: &str) -> Result<(u64, Volume), ManageError> {
        let state = self.state();
        let found = state.catalog.volume(name).map(|(id, volume)| (id, volume.clone()));
        found.ok_or_else(|| ManageError::Unknown {
            kind: "volume",
            name: name.into(),
            are: listed(state.catalog.volumes.values().map(|(volume, _)| volume.name.clone())),
        })
    }
}

/// Whether an attachment may have this key.
fn check_key(key: &str) -> Result<(), ManageError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    match (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(is_plain) {
        true => Ok(()),
        false => Err(ManageError::Wrong(format!(
            "the key of an attachment has 1 to {LONGEST_KEY} letters, digits and '-', and {key:?} is none"
        ))),
    }
}

/// The node at which a volume is to be used. It answers, and takes copies.
pub(super) fn used_at(
    catalog: &Catalog,
    name: &str,
    alive: &BTreeMap<u32, bool>,
) -> Result<NodeId, ManageError> {
    let (id, node) = catalog.node(name).ok_or_else(|| unknown_node(catalog, name))?;
    if alive.get(&id) != Some(&true) {
        return Err(ManageError::Wrong(format!(
            "node {name} does not answer, so the volume's first copy cannot be placed there: start the node, or leave out --at"
        )));
    }
    if node.draining {
        return Err(ManageError::Wrong(format!(
            "node {name} is draining, so the volume's first copy cannot be placed there: name another node with --at, or leave out --at"
        )));
    }
    if node.maintenance {
        return Err(ManageError::Wrong(format!(
            "node {name} is in maintenance, so the volume's first copy cannot be placed there: name another node with --at, or leave out --at"
        )));
    }
    Ok(NodeId(id))
}

pub(super) fn deleted_meanwhile(name: &str) -> ManageError {
    ManageError::Gone(format!("volume {name} was deleted meanwhile"))
}

pub(super) fn unknown_node(catalog: &Catalog, name: &str) -> ManageError {
    let are = listed(catalog.nodes.values().map(|(node, _)| node.name.clone()));
    ManageError::Unknown { kind: "node", name: name.into(), are }
}

/// A volume, its name and its record go at once; its replicas when their nodes have removed them. Not one that is attached.
pub(in crate::node) struct RemoveVolume {
    id: u64,
    /// Only if no command will complete it.
    unfinished: bool,
    /// Only if this node's [`Maker`](catalog::Maker) still has this version.
    silent: Option<(u32, Option<u64>)>,
    shrink: Option<Shrink>,
    tries: usize,
}

impl RemoveVolume {
    /// Removes a volume, also one that has data.
    pub(super) fn any(id: u64) -> RemoveVolume {
        RemoveVolume { id, unfinished: false, silent: None, shrink: None, tries: 0 }
    }

    /// Removes a volume only if it has no record yet, or was being removed before. One that is ready stays. Replicas of one that has no record
    /// are removed only if they were never used.
    pub(in crate::node) fn unfinished(id: u64) -> RemoveVolume {
        RemoveVolume { unfinished: true, ..RemoveVolume::any(id) }
    }

    /// The same, for a volume of a command of another node. Nothing is removed if that node has shown since that it runs: its
    /// [`Maker`](catalog::Maker) has another version than this one.
    pub(in crate::node) fn left(id: u64, silent: Option<(u32, Option<u64>)>) -> RemoveVolume {
        RemoveVolume { silent, ..RemoveVolume::unfinished(id) }
    }

    /// Makes the next step. The result is whether the volume is not there any more.
    pub(in crate::node) fn step(&mut self, store: &mut dyn ConfigStore) -> Result<Step<bool>, ConfigError> {
        if self.shrink.is_none() {
            let catalog = Catalog::read(store)?;
            let Some((volume, version)) = catalog.volumes.get(&self.id) else { return Ok(Step::Done(true)) };
            if volume.attached.is_some() || self.unfinished && volume.state == VolumeState::Ready {
                return Ok(Step::Done(false));
            }
            if self.silent.is_some_and(|(node, seen)| catalog.makers.get(&node).copied() != seen) {
                return Ok(Step::Done(false));
            }
            // A volume with a record that is being removed is one that a person removes.
            let takes_back = self.unfinished && !catalog.records.contains_key(&self.id);
            self.shrink = Some(removal(&catalog, self.id, volume, *version, takes_back));
        }
        let Some(shrink) = &mut self.shrink else { return Ok(Step::More) };
        match shrink.step(store)? {
            Step::More => Ok(Step::More),
            Step::Done(Made::All) => Ok(Step::Done(true)),
            Step::Done(Made::Nothing | Made::Stopped) => {
                self.shrink = None;
                self.tries += 1;
                if self.tries == steps::TRIES { Err(ConfigError::Contended) } else { Ok(Step::More) }
            }
        }
    }
}

/// The changes that remove a volume. No person has ordered that if an interrupted command is taken back, so no replica with data is removed then.
pub(super) fn removal(catalog: &Catalog, id: u64, volume: &Volume, version: u64, takes_back: bool) -> Shrink {
    let gone = |key: String, version: u64| Change { key, expected: Some(version), value: None };
    let (key, name) = (format!("volume/{id}"), format!("name/{}", volume.name));
    let mut last = vec![gone(key.clone(), version)];
    if let Some(version) = catalog.versions.get(&name).copied() {
        last.push(gone(name, version));
    }
    if let Some(stored) = catalog.records.get(&id) {
        last.push(gone(record_key(VolumeId(id)), stored.version));
    }
    if let Some((_, version)) = catalog.plans.get(&id) {
        last.push(gone(format!("plan/{id}"), *version));
    }
    if let Some((_, version)) = catalog.reservations.get(&id) {
        last.push(gone(format!("reservation/{id}"), *version));
    }
    let deleting = Volume { state: VolumeState::Deleting, ..volume.clone() };
    let here = |(_, (replica, _)): &(&u64, &(Replica, u64))| {
        // One that gives way to another is dropped in the end too.
        replica.volume == id && (replica.state != ReplicaState::Dropping || replica.gives_way)
    };
    let drops = |(id, (replica, version)): (&u64, &(Replica, u64))| {
        // No node would remove it.
        if !catalog.nodes.contains_key(&replica.node) {
            return gone(format!("replica/{id}"), *version);
        }
        let dropping = if takes_back { replica.taken_back() } else { replica.dropped() };
        change(format!("replica/{id}"), Some(*version), &dropping)
    };
    let replicas = catalog.replicas.iter().filter(here).map(drops).collect();
    Shrink::new(change(key, Some(version), &deleting), replicas, last)
}
