//! What a creation of volumes writes down: names, volumes, plans and replicas, some volumes at a time; and at the end their records.

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::figures;
use loadline_san_core::history::History;
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ProposalId, ReplicaId, VolumeId};
use loadline_san_core::layout::{BLOCK, GroupIndex, Layout};
use loadline_san_core::placement::{Device, MOST_COPIES, Need, Place, place};
use loadline_san_core::record::{Group, Record, RecordState};

use super::no_room::{self, Wanted};
use super::volumes::{CreateVolumes, GROUP, LEAST_LOG, LOG, RemoveVolume, UNIT, deleted_meanwhile, used_at};
use super::{ManageError, room};
use crate::config::catalog::{Catalog, Plan, PlannedReplica, SocketPlace, Volume, VolumeState, change};
use crate::config::service::record_change;
use crate::config::steps::{self, Extend, Made, Step};
use crate::config::{Change, ConfigError, ConfigStore, MOST_CHANGES};
use crate::node::allocation::{devices, new_replica};
use crate::node::under_way::Claim;

/// Volumes that one request can make.
const MOST_VOLUMES: usize = 1_000;

/// What was checked, and how volumes like this are laid out.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub(super) wanted: CreateVolumes,
    pub(super) layout: Layout,
    /// Blocks of each group.
    pub(super) sizes: Vec<u64>,
    pub(super) blocks: u64,
    pub(super) log_bytes: u64,
    pub(super) least: u32,
}

/// A volume whose replicas are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Planned {
    pub(super) id: u64,
    /// The node with its first copy.
    pub(super) first: u32,
}

/// Whether volumes can be as they are wanted.
pub(super) fn check(wanted: CreateVolumes) -> Result<Checked, ManageError> {
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
            "a log of {} is too small: a copy needs at least {} for the writes in flight",
            no_room::size(log_bytes),
            no_room::size(LEAST_LOG)
        )));
    }
    let sizes = (0..groups).map(|index| layout.blocks_in(GroupIndex(index), blocks)).collect();
    Ok(Checked { wanted, layout, sizes, blocks, log_bytes, least })
}

/// Writes down what volumes are to have, from one on: as many as one commit can have, at least one. Each commit counts what was promised
/// before it.
pub(super) struct PlanVolumes {
    checked: Checked,
    /// The number of the first volume.
    from: usize,
    alive: BTreeMap<u32, bool>,
    me: Owner,
    claim: Claim,
    /// What is being written down.
    made: Option<(Vec<Planned>, Extend)>,
    /// What an interrupted command has left of a volume of the same name is removed first.
    removing: Option<RemoveVolume>,
    tries: usize,
}

impl PlanVolumes {
    pub(super) fn new(
        checked: Checked,
        from: usize,
        alive: BTreeMap<u32, bool>,
        me: Owner,
        claim: Claim,
    ) -> PlanVolumes {
        PlanVolumes { checked, from, alive, me, claim, made: None, removing: None, tries: 0 }
    }

    pub(super) fn step(
        &mut self,
        store: &mut dyn ConfigStore,
    ) -> Result<Step<Result<Vec<Planned>, ManageError>>, ConfigError> {
        if !self.claim.runs() {
            let why = "the client that requested the volumes has disconnected, so they are not made";
            return Ok(Step::Done(Err(ManageError::TimedOut(why.into()))));
        }
        if let Some(removing) = &mut self.removing {
            if let Step::Done(_) = removing.step(store)? {
                self.removing = None;
            }
            return Ok(Step::More);
        }
        if self.made.is_none() {
            let catalog = Catalog::read(store)?;
            match self.plan(&catalog) {
                Ok(Some(made)) => self.made = Some(made),
                Ok(None) => return Ok(Step::More),
                Err(why) => return Ok(Step::Done(Err(why))),
            }
        }
        let Some((planned, extend)) = &mut self.made else { return Ok(Step::More) };
        match extend.step(store)? {
            Step::More => Ok(Step::More),
            Step::Done(Made::All) => Ok(Step::Done(Ok(std::mem::take(planned)))),
            Step::Done(Made::Stopped) => {
                let name = &self.checked.wanted.names[self.from];
                Ok(Step::Done(Err(deleted_meanwhile(name))))
            }
            Step::Done(Made::Nothing) => {
                planned.iter().for_each(|volume| self.claim.give_up(volume.id));
                self.made = None;
                self.tries += 1;
                if self.tries == steps::TRIES { Err(ConfigError::Contended) } else { Ok(Step::More) }
            }
        }
    }

    /// The changes that make volumes. `None` if a part of an older one is to be removed before.
    fn plan(&mut self, catalog: &Catalog) -> Result<Option<(Vec<Planned>, Extend)>, ManageError> {
        let checked = &self.checked;
        let alive = &self.alive;
        let at = checked.wanted.at.as_ref().map(|name| used_at(catalog, name, alive)).transpose()?;
        // A volume is its name, itself, its plan and its replicas; and one change takes the ids.
        let replicas = checked.sizes.len() * checked.wanted.copies as usize;
        let count = ((MOST_CHANGES - 1) / (replicas + 3)).max(1);
        let names = checked.wanted.names.iter().skip(self.from).take(count);
        let mut places = devices(catalog, |node| alive.get(&node) == Some(&true));
        let mut placed = Vec::new();
        let mut firsts = first_copies(catalog);
        for name in names {
            if let Some((id, volume)) = catalog.volume(name) {
                self.check_unfinished(catalog, id, volume)?;
                self.removing = Some(RemoveVolume::unfinished(id));
                return Ok(None);
            }
            let mut groups = place_volume(catalog, checked, name, at, &mut places)?;
            if at.is_none() {
                begin_with_rarest(catalog, &mut groups, &mut firsts);
            }
            placed.push((name, groups));
        }
        let ids_each = replicas as u64 + 1;
        let (ids, take_ids) = catalog.take_ids(ids_each * placed.len() as u64);
        let (mut first, mut rest, mut planned) = (vec![take_ids], Vec::new(), Vec::new());
        let in_steps = 1 + placed.len() * (replicas + 3) > MOST_CHANGES;
        for (id, (name, groups)) in ids.step_by(ids_each as usize).zip(&placed) {
            let volume = new_volume(catalog, checked, name);
            let copies =
                (0..).zip(groups).flat_map(|(group, places)| places.iter().map(move |place| (group, *place)));
            let copies: Vec<_> = (id + 1..).zip(copies).collect();
            // A commit that another creation makes between the steps of this one finds all room promised.
            let later = copies.iter().filter(|_| in_steps);
            let later = later.map(|(id, (group, place))| PlannedReplica {
                id: *id,
                group: *group,
                device: place.device.0,
                log_device: place.log.0,
            });
            let plan = Plan {
                node: self.me.node.0,
                incarnation: self.me.incarnation.0,
                replicas: later.collect(),
                growth: None,
            };
            first.push(change(format!("name/{name}"), None, &id));
            first.push(change(format!("volume/{id}"), None, &volume));
            first.push(change(format!("plan/{id}"), None, &plan));
            rest.extend(
                copies.into_iter().map(|(replica, at)| new_replica(catalog, id, &volume, replica, at, None)),
            );
            planned.push(Planned { id, first: node_of(catalog, groups[0][0]) });
            // Before the commit: from then on, a volume that no command claims is taken back.
            self.claim.add_new(id);
        }
        // Only those of one volume may be too many for one commit.
        let guard = format!("volume/{}", planned[0].id);
        Ok(Some((planned, Extend::new(first, rest, guard, VolumeState::may_grow))))
    }

    /// Whether a volume that has a wanted name is what an interrupted command has left, which can be removed. Otherwise the name is taken.
    fn check_unfinished(&self, catalog: &Catalog, id: u64, volume: &Volume) -> Result<(), ManageError> {
        let plan = catalog.plans.get(&id).map(|(plan, _)| plan);
        let maker = plan.map(|plan| plan.node);
        let runs = match plan {
            Some(plan) if is_of(plan, self.me) => self.claim.is_claimed(id),
            Some(plan) => !has_ended(catalog, plan),
            None => true,
        };
        match volume.state {
            VolumeState::Ready => Err(ManageError::Taken(volume.name.clone())),
            VolumeState::Creating if runs => {
                let node = maker.and_then(|id| catalog.nodes.get(&id)).map(|(node, _)| node.name.as_str());
                let at = node.map_or("a node that is not known".into(), |name| format!("node {name}"));
                Err(ManageError::InUse(format!(
                    "volume {} is being made by a command at {at}: wait until the volume is ready. If that node has stopped, another node \
                     removes what was made after about 10 s. 'loadline volume delete {}' removes it at once",
                    volume.name, volume.name
                )))
            }
            VolumeState::Creating | VolumeState::Deleting => Ok(()),
        }
    }
}

/// Whether a plan is of this process.
pub(in crate::node) fn is_of(plan: &Plan, me: Owner) -> bool {
    plan.node == me.node.0 && [0, me.incarnation.0].contains(&plan.incarnation)
}

/// Whether the process that carries out the command of a plan is known to have ended: its node has started again, or was removed.
pub(in crate::node) fn has_ended(catalog: &Catalog, plan: &Plan) -> bool {
    catalog
        .nodes
        .get(&plan.node)
        .is_none_or(|(node, _)| plan.incarnation != 0 && node.incarnation > plan.incarnation)
}

fn node_of(catalog: &Catalog, place: Place) -> u32 {
    catalog.devices[&place.device.0].0.node
}

/// Chooses the devices of a volume's groups. What the volume takes of them is counted as promised.
fn place_volume(
    catalog: &Catalog,
    checked: &Checked,
    name: &str,
    at: Option<NodeId>,
    places: &mut [Device],
) -> Result<Vec<Vec<Place>>, ManageError> {
    let (copies, log_bytes) = (checked.wanted.copies as usize, checked.log_bytes);
    let needed: Vec<Need> =
        checked.sizes.iter().map(|size| room::need_anywhere(catalog, *size, log_bytes)).collect();
    let placed = place(places, &needed, copies, at).map_err(|why| {
        let wanted = Wanted { name, copies, groups: &checked.sizes, log_bytes };
        no_room::of_volume(why, catalog, places, wanted)
    })?;
    if let Some(node) = at
        && let Some(group) =
            placed.iter().position(|copies| !copies.iter().any(|place| node_of(catalog, *place) == node.0))
    {
        return Err(no_room::at_node(catalog, places, node, needed[group]));
    }
    for (need, copies) in needed.iter().zip(&placed) {
        for place in copies {
            for device in &mut *places {
                let of = [(device.id == place.device, need.data), (device.id == place.log, need.log)];
                device.promised +=
                    of.iter().filter(|(is_it, _)| *is_it).map(|(_, blocks)| blocks).sum::<u64>();
            }
        }
    }
    Ok(placed)
}

/// How many volumes have their first copy at each node.
fn first_copies(catalog: &Catalog) -> BTreeMap<u32, usize> {
    // Ids of a volume's replicas rise in the order of its copies.
    let mut first_of: BTreeMap<u64, u32> = BTreeMap::new();
    for (replica, _) in catalog.replicas.values().filter(|(replica, _)| replica.group == 0) {
        first_of.entry(replica.volume).or_insert(replica.node);
    }
    let mut firsts = BTreeMap::new();
    first_of.into_values().for_each(|node| *firsts.entry(node).or_insert(0) += 1);
    firsts
}

/// A volume is attached to the node of its first copy. So of the nodes with a copy of the first group, the one with the fewest first copies is
/// put first, in all groups.
fn begin_with_rarest(catalog: &Catalog, groups: &mut [Vec<Place>], firsts: &mut BTreeMap<u32, usize>) {
    let node_of = |place: &Place| node_of(catalog, *place);
    let Some(first) = groups.first().and_then(|copies| {
        copies.iter().map(node_of).min_by_key(|node| firsts.get(node).copied().unwrap_or(0))
    }) else {
        return;
    };
    for copies in groups {
        if let Some(at) = copies.iter().position(|place| node_of(place) == first) {
            copies[..=at].rotate_right(1);
        }
    }
    *firsts.entry(first).or_insert(0) += 1;
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
        cache_bytes: 0,
        attached: None,
        attach_key: None,
        handed_at: None,
        socket: SocketPlace::First,
        initiators: Vec::new(),
        requires_tls: checked.wanted.requires_tls,
        limit: None,
        state: VolumeState::Creating,
    }
}

/// All replicas of these volumes are there, so the volumes are. A volume, its record and its plan change in one commit.
pub(super) struct MakeRecords {
    planned: Vec<Planned>,
    layout: Layout,
    attach: bool,
    tries: usize,
}

impl MakeRecords {
    pub(super) fn new(planned: Vec<Planned>, layout: Layout, attach: bool) -> MakeRecords {
        MakeRecords { planned, layout, attach, tries: 0 }
    }

    /// The result are the volumes that were deleted meanwhile.
    pub(super) fn step(&mut self, store: &mut dyn ConfigStore) -> Result<Step<BTreeSet<u64>>, ConfigError> {
        let catalog = Catalog::read(store)?;
        let (mut changes, mut gone, mut all) = (Vec::new(), BTreeSet::new(), true);
        for Planned { id, first } in &self.planned {
            match catalog.volumes.get(id) {
                Some((volume, _)) if volume.state == VolumeState::Ready => {}
                Some(_) if changes.len() + 3 > MOST_CHANGES => all = false,
                Some((volume, version)) if volume.state == VolumeState::Creating => {
                    let attached = self.attach.then_some(*first);
                    let ready = Volume { state: VolumeState::Ready, attached, ..volume.clone() };
                    changes.push(change(format!("volume/{id}"), Some(*version), &ready));
                    let record = new_record(&catalog, *id, volume, self.layout);
                    changes.push(record_change(VolumeId(*id), None, &record)?);
                    if let Some((_, version)) = catalog.plans.get(id) {
                        changes.push(Change {
                            key: format!("plan/{id}"),
                            expected: Some(*version),
                            value: None,
                        });
                    }
                }
                _ => _ = gone.insert(*id),
            }
        }
        if !changes.is_empty() && !store.commit(&changes)? {
            self.tries += 1;
            return if self.tries == steps::TRIES { Err(ConfigError::Contended) } else { Ok(Step::More) };
        }
        Ok(if all { Step::Done(gone) } else { Step::More })
    }
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

#[cfg(test)]
pub(super) mod tests;
