//! Volumes are made: one, or many that differ in their names only.
//!
//! ```text
//! planned, some at a time ─▶ replicas made by their nodes ─▶ records, some at a time ─▶ [attached: taken over by their nodes]
//! ```
//!
//! Until a volume has its record, it is being made, and is removed if anything fails. So all of them are made, or none. Once they
//! have their records they stay, also if the attachment fails.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use loadline_base::figures;
use loadline_san_core::history::History;
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ProposalId, ReplicaId, VolumeId};
use loadline_san_core::layout::{BLOCK, GroupIndex, Layout};
use loadline_san_core::placement::{Device, DeviceId, MOST_COPIES, place};
use loadline_san_core::record::{Group, Record, RecordState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::no_room::{self, Wanted};
use super::volumes::{
    CreateVolume, GROUP, LEAST_LOG, LOG, SERVED, UNIT, deleted_meanwhile, is_at, remove_volume, used_at,
};
use super::{Health, ManageError, VolumeView, room};
use crate::config::catalog::{Catalog, ReplicaState, Volume, VolumeState, change};
use crate::config::service::record_change;
use crate::config::steps::{self, Made};
use crate::config::{ConfigError, ConfigStore, MOST_CHANGES};
use crate::node::Node;
use crate::node::allocation::{devices, new_replica};

/// How long replicas may take to be made.
const MADE: Duration = Duration::from_secs(60);
/// How long nodes have to report of the copies of new volumes.
const SEEN: Duration = Duration::from_secs(3);
/// Volumes that one request can make.
const MOST_VOLUMES: usize = 1_000;
/// Names that a message lists.
const MOST_NAMED: usize = 5;

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
    /// Whether each is attached, to the node with its first copy.
    #[serde(default)]
    pub attach: bool,
}

fn one() -> u32 {
    1
}

/// A volume that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MadeVolume {
    /// Its name.
    pub volume: String,
    /// The node to which it is attached, if it is.
    pub node: Option<String>,
    /// Whether that node serves it. If not, the node serves it as soon as it can: the volume's state has the reason.
    pub served: bool,
}

/// What was checked, and how volumes like this are laid out.
#[derive(Debug, Clone)]
struct Checked {
    wanted: CreateVolumes,
    layout: Layout,
    /// Blocks of each group.
    sizes: Vec<u64>,
    blocks: u64,
    log_bytes: u64,
    least: u32,
}

/// A volume whose replicas are wanted.
#[derive(Debug, Clone, Copy)]
struct Planned {
    id: u64,
    /// The node with its first copy.
    first: u32,
}

impl Node {
    /// Makes a volume. It is not attached.
    pub async fn create_volume(&self, wanted: CreateVolume) -> Result<(), ManageError> {
        let CreateVolume { name, bytes, copies, least, stripes, at, log_bytes } = wanted;
        let names = vec![name];
        let wanted = CreateVolumes { names, bytes, copies, least, stripes, at, log_bytes, attach: false };
        self.create_volumes(wanted).await.map(|_| ())
    }

    /// Makes volumes: all, or none. If they are to be attached, waits until they are served, but not for long.
    pub async fn create_volumes(&self, wanted: CreateVolumes) -> Result<Vec<MadeVolume>, ManageError> {
        let attach = wanted.attach;
        let checked = check(wanted)?;
        self.refresh().await?;
        let alive = self.alive().await;
        let mut planned = Vec::new();
        while planned.len() < checked.wanted.names.len() {
            let (of, alive, from) = (checked.clone(), alive.clone(), planned.len());
            match self.config().call(move |store| plan(store, &of, from, &alive)).await? {
                Ok(some) => planned.extend(some),
                Err(why) => return Err(self.undo(&planned, why).await),
            }
        }
        self.reconcile_soon();
        let ids: BTreeSet<u64> = planned.iter().map(|volume| volume.id).collect();
        let of_volumes = |catalog: &Catalog| {
            let here = catalog.replicas.iter().filter(|(_, (replica, _))| ids.contains(&replica.volume));
            here.map(|(id, _)| *id).collect::<Vec<u64>>()
        };
        if let Err(why) = self.made(of_volumes).await {
            return Err(self.undo(&planned, why).await);
        }
        let (of, layout) = (planned.clone(), checked.layout);
        let gone = self.config().call(move |store| make_records(store, &of, layout, attach)).await?;
        if !gone.is_empty() {
            let names = planned.iter().zip(&checked.wanted.names).filter(|(of, _)| gone.contains(&of.id));
            let names: Vec<&String> = names.map(|(_, name)| name).collect();
            return Err(deleted_meanwhile(&figures::listed(&names, MOST_NAMED)));
        }
        self.reconcile_soon();
        let served = match attach {
            true => self.wait_until_all_served(&planned).await?,
            false => BTreeSet::new(),
        };
        self.wait_until_seen(&checked.wanted.names, attach && served.len() == planned.len()).await;
        let state = self.state();
        let node = |id: u32| state.catalog.nodes.get(&id).map(|(node, _)| node.name.clone());
        let made = planned.iter().zip(&checked.wanted.names).map(|(of, name)| MadeVolume {
            volume: name.clone(),
            node: node(of.first).filter(|_| attach),
            served: served.contains(&of.id),
        });
        Ok(made.collect())
    }

    /// Removes volumes that could not be made. Returns the reason.
    async fn undo(&self, planned: &[Planned], why: ManageError) -> ManageError {
        for Planned { id, .. } in planned.iter().copied() {
            // It was never there, so nothing has attached it.
            if let Err(also) = self.config().call(move |store| remove_volume(store, id)).await {
                return also.into();
            }
        }
        self.reconcile_soon();
        why
    }

    /// Waits until each of these is served by its node, but not for long. Returns those that are.
    async fn wait_until_all_served(&self, planned: &[Planned]) -> Result<BTreeSet<u64>, ManageError> {
        let begun = Instant::now();
        loop {
            self.refresh().await?;
            let served: BTreeSet<u64> = planned
                .iter()
                .filter(|of| {
                    self.record(of.id).is_some_and(|record| {
                        record.owner.node.0 == of.first
                            && record.state == RecordState::Active
                            && record.owner.incarnation != Incarnation(0)
                    })
                })
                .map(|of| of.id)
                .collect();
            if served.len() == planned.len() || begun.elapsed() > SERVED {
                return Ok(served);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until all nodes report of new volumes' copies, and that volumes are `served` if they are, but not for long: then their state
    /// is known to clients of the API, and owners let clients in.
    async fn wait_until_seen(&self, names: &[String], served: bool) {
        let begun = Instant::now();
        self.reconcile_soon();
        let names: BTreeSet<&String> = names.iter().collect();
        let is_seen = |volume: &VolumeView| match volume.health {
            _ if !names.contains(&volume.name) => true,
            Some(Health::Unknown) => false,
            Some(Health::Waiting) => !served,
            _ => true,
        };
        while begun.elapsed() < SEEN {
            if self.status().await.is_ok_and(|status| status.volumes.iter().all(is_seen)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until these replicas are made.
    pub(super) async fn made(&self, which: impl Fn(&Catalog) -> Vec<u64>) -> Result<(), ManageError> {
        let begun = Instant::now();
        loop {
            self.refresh().await?;
            let mut late = BTreeSet::new();
            {
                let state = self.state();
                let catalog = &state.catalog;
                for id in which(catalog) {
                    let there = catalog.replicas.get(&id).filter(|(r, _)| r.state != ReplicaState::Dropping);
                    let Some((replica, _)) = there else {
                        return Err(ManageError::Wrong(
                            "a replica was removed while it was made: try again".into(),
                        ));
                    };
                    let name =
                        catalog.nodes.get(&replica.node).map_or("?".into(), |(node, _)| node.name.clone());
                    if let Some(why) = &replica.refused {
                        return Err(ManageError::Device(format!("{name} cannot make a replica: {why}")));
                    }
                    if replica.state != ReplicaState::Ready {
                        late.insert(name);
                    }
                }
            }
            if late.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > MADE {
                let late: Vec<String> = late.into_iter().collect();
                return Err(ManageError::TimedOut(format!(
                    "not all replicas were made in time, so the request was undone; late nodes: {}",
                    figures::listed(&late, MOST_NAMED)
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Whether volumes can be as they are wanted.
fn check(wanted: CreateVolumes) -> Result<Checked, ManageError> {
    if !(1..=MOST_VOLUMES).contains(&wanted.names.len()) {
        return Err(ManageError::Wrong(format!(
            "{} names: give 1 to {} names at a time",
            wanted.names.len(),
            figures::thousands(MOST_VOLUMES as f64)
        )));
    }
    let mut seen = BTreeSet::new();
    for name in &wanted.names {
        crate::name::check(name).map_err(ManageError::Wrong)?;
        if !seen.insert(name) {
            return Err(ManageError::Wrong(format!("the name {name} is given twice: give each name once")));
        }
    }
    if !(1..=MOST_COPIES).contains(&(wanted.copies as usize)) {
        return Err(no_room::wrong_copies(wanted.copies as usize));
    }
    let least = wanted.least.unwrap_or(wanted.copies.div_ceil(2));
    if !(1..=wanted.copies).contains(&least) {
        return Err(ManageError::Wrong(format!(
            "--least {least} is not possible: for a volume with {} give 1 to {}",
            if wanted.copies == 1 { "1 copy".into() } else { format!("{} copies", wanted.copies) },
            wanted.copies
        )));
    }
    let blocks = wanted.bytes.div_ceil(BLOCK);
    let layout =
        Layout::new(wanted.stripes, UNIT, GROUP).map_err(|why| ManageError::Wrong(why.to_string()))?;
    let groups = layout.groups(blocks).map_err(|why| ManageError::Wrong(why.to_string()))?;
    if blocks == 0 {
        return Err(ManageError::Wrong("a volume of no bytes cannot be made".into()));
    }
    let log_bytes = wanted.log_bytes.unwrap_or(LOG);
    if log_bytes < LEAST_LOG {
        return Err(ManageError::Wrong(format!(
            "a log of {} is too small: a replica needs at least {} for the writes in flight",
            no_room::size(log_bytes),
            no_room::size(LEAST_LOG)
        )));
    }
    let sizes = (0..groups).map(|index| layout.blocks_in(GroupIndex(index), blocks)).collect();
    Ok(Checked { wanted, layout, sizes, blocks, log_bytes, least })
}

/// Writes down what volumes are to have, from this one on: as many as one commit can have, at least one. Each commit counts what was
/// promised before it.
fn plan(
    store: &mut dyn ConfigStore,
    checked: &Checked,
    from: usize,
    alive: &BTreeMap<u32, bool>,
) -> Result<Result<Vec<Planned>, ManageError>, ConfigError> {
    for _ in 0..16 {
        let catalog = Catalog::read(store)?;
        let at = match checked.wanted.at.as_ref().map(|name| used_at(&catalog, name, alive)).transpose() {
            Ok(at) => at,
            Err(why) => return Ok(Err(why)),
        };
        // A volume is its name, itself and its replicas; and one change takes the ids.
        let replicas = checked.sizes.len() * checked.wanted.copies as usize;
        let count = ((MOST_CHANGES - 1) / (replicas + 2)).max(1);
        let names = checked.wanted.names.iter().skip(from).take(count);
        let mut places = devices(&catalog, |node| alive.get(&node) == Some(&true));
        let mut placed = Vec::new();
        for name in names {
            if catalog.volume(name).is_some() {
                return Ok(Err(ManageError::Taken(name.clone())));
            }
            match place_volume(&catalog, checked, name, at, &mut places) {
                Ok(groups) => placed.push((name, groups)),
                Err(why) => return Ok(Err(why)),
            }
        }
        let ids_each = replicas as u64 + 1;
        let (ids, take_ids) = catalog.take_ids(ids_each * placed.len() as u64);
        let (mut first, mut rest, mut planned) = (vec![take_ids], Vec::new(), Vec::new());
        for (id, (name, groups)) in ids.step_by(ids_each as usize).zip(&placed) {
            let volume = new_volume(&catalog, checked, name);
            first.push(change(format!("name/{name}"), None, &id));
            first.push(change(format!("volume/{id}"), None, &volume));
            let copies =
                (0..).zip(groups).flat_map(|(group, devices)| devices.iter().map(move |d| (group, *d)));
            let replica = |(replica, at)| new_replica(&catalog, id, &volume, replica, at, None);
            rest.extend((id + 1..).zip(copies).map(replica));
            planned.push(Planned { id, first: catalog.devices[&groups[0][0].0].0.node });
        }
        // Only those of one volume may be too many for one commit.
        let guard = format!("volume/{}", planned[0].id);
        match steps::extend(store, first, rest, &guard, VolumeState::may_grow)? {
            Made::All => return Ok(Ok(planned)),
            Made::Nothing => {}
            Made::Stopped => return Ok(Err(deleted_meanwhile(placed[0].0))),
        }
    }
    Err(ConfigError::Contended)
}

/// Chooses the devices of a volume's groups. What the volume takes of them is counted as promised.
fn place_volume(
    catalog: &Catalog,
    checked: &Checked,
    name: &str,
    at: Option<NodeId>,
    places: &mut [Device],
) -> Result<Vec<Vec<DeviceId>>, ManageError> {
    let (copies, log_bytes) = (checked.wanted.copies as usize, checked.log_bytes);
    let needed: Vec<u64> =
        checked.sizes.iter().map(|size| room::need_anywhere(catalog, *size, log_bytes)).collect();
    let placed = place(places, &needed, copies, at).map_err(|why| {
        let wanted = Wanted { name, copies, groups: &checked.sizes, log_bytes };
        no_room::of_volume(why, catalog, places, wanted)
    })?;
    if let Some(node) = at
        && let Some(group) = placed.iter().position(|devices| !is_at(catalog, devices, node))
    {
        return Err(no_room::at_node(catalog, places, node, needed[group]));
    }
    for (blocks, devices) in needed.iter().zip(&placed) {
        for place in places.iter_mut().filter(|place| devices.contains(&place.id)) {
            place.promised += blocks;
        }
    }
    Ok(placed)
}

fn new_volume(catalog: &Catalog, checked: &Checked, name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        copies: checked.wanted.copies,
        least: checked.least,
        stripes: checked.layout.stripes(),
        unit_blocks: UNIT,
        group_blocks: GROUP,
        blocks: checked.blocks,
        lease_ms: catalog.cluster.as_ref().expect("ids were taken from it").0.lease_ms,
        log_bytes: checked.log_bytes,
        attached: None,
        requires_tls: false,
        state: VolumeState::Creating,
    }
}

/// All replicas of these volumes are there, so the volumes are. Returns those that were deleted meanwhile.
fn make_records(
    store: &mut dyn ConfigStore,
    planned: &[Planned],
    layout: Layout,
    attach: bool,
) -> Result<BTreeSet<u64>, ConfigError> {
    for _ in 0..16 {
        let catalog = Catalog::read(store)?;
        let (mut changes, mut gone) = (Vec::new(), BTreeSet::new());
        for Planned { id, first } in planned {
            match catalog.volumes.get(id) {
                Some((volume, _)) if volume.state == VolumeState::Ready => {}
                Some((volume, version)) if volume.state == VolumeState::Creating => {
                    let attached = attach.then_some(*first);
                    let ready = Volume { state: VolumeState::Ready, attached, ..volume.clone() };
                    changes.push(change(format!("volume/{id}"), Some(*version), &ready));
                    changes.push(record_change(
                        VolumeId(*id),
                        None,
                        &new_record(&catalog, *id, volume, layout),
                    )?);
                }
                _ => _ = gone.insert(*id),
            }
        }
        // A volume and its record go in one commit.
        if steps::each(store, &changes)? {
            return Ok(gone);
        }
    }
    Err(ConfigError::Contended)
}

/// The record of a volume that no node has owned yet.
fn new_record(catalog: &Catalog, id: u64, volume: &Volume, layout: Layout) -> Record {
    let none = Owner { node: NodeId(0), incarnation: Incarnation(0) };
    let groups = layout.groups(volume.blocks).expect("it was planned so");
    let mut record = Record {
        epoch: Epoch(1),
        made_by: ProposalId { by: none, number: 0 },
        owner: none,
        state: RecordState::Active,
        attachment: 0,
        fence: 0,
        lease_ns: volume.lease_ms * 1_000_000,
        blocks: volume.blocks,
        layout,
        least: volume.least,
        history: History::default(),
        homes: BTreeMap::new(),
        groups: vec![Group::default(); groups as usize],
    };
    for (replica_id, (replica, _)) in catalog.replicas.iter().filter(|(_, (r, _))| r.volume == id) {
        record.homes.insert(ReplicaId(*replica_id), NodeId(replica.node));
        record.groups[replica.group as usize].in_sync.insert(ReplicaId(*replica_id));
    }
    record
}

/// Whether no node has owned the volume of this record yet.
pub(in crate::node) fn is_new(record: &Record) -> bool {
    record.owner.incarnation == Incarnation(0) && record.history.claims().is_empty()
}

/// A volume and its record are two consecutive changes, so no commit parts them.
const _: () = assert!(MOST_CHANGES.is_multiple_of(2));
