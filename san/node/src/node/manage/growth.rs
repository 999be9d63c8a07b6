//! The room of a volume that grows: promised before its owner makes it larger, and free again if the owner does not.
//!
//! ```text
//! planned ─▶ replicas made by their nodes ─▶ ordered (the plan states it) ─▶ record changed ─▶ plan removed
//!    └───────────────┴── taken back: the plan is removed with the first commit that drops a replica
//! ```
//!
//! No record names a replica that was taken back. A command takes back its own plan only, and only if it has ordered nothing, or its order was
//! refused. The plan of another command is taken back by the volume's owner after a change of the record, by which no earlier order can
//! change the record; and an order is carried out only in the claim of the volume that its node had when the plan stated it. An order that is
//! stated later finds that the plan is gone.

use std::collections::BTreeMap;
use std::ops::Range;

use loadline_san_core::ids::{Epoch, NodeId, Owner, ReplicaId};
use loadline_san_core::layout::{GroupIndex, Layout};
use loadline_san_core::placement::{Device, Need, NoPlace, place};

use super::no_room::{self, Lacks, Wanted};
use super::{ManageError, room};
use crate::config::catalog::{
    Catalog, Growth, Plan, PlannedReplica, Replica, ReplicaState, Volume, VolumeState, change,
};
use crate::config::steps::{self, Each, Extend, Made, Step};
use crate::config::{Change, ConfigError, ConfigStore, MOST_CHANGES};
use crate::node::allocation::{blocks_of, devices, new_replica};
use crate::node::under_way::Claim;

/// The replicas of each new group.
type Added = Vec<Vec<(ReplicaId, NodeId)>>;

/// What a command has planned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PlannedGrowth {
    /// The id of the command, by which its plan is recognised.
    pub(super) command: u64,
    /// The replicas of each new group, with their nodes.
    pub(super) added: Added,
}

/// Promises the room that a volume of more blocks needs, and orders the replicas of its new groups.
pub(super) struct GrowVolume {
    id: u64,
    layout: Layout,
    groups: Range<u32>,
    blocks: u64,
    alive: BTreeMap<u32, bool>,
    me: Owner,
    claim: Claim,
    made: Option<(PlannedGrowth, Extend)>,
    tries: usize,
}

impl GrowVolume {
    /// A volume is to have so many blocks, with these new groups. `me`: this node, and the claim of the command.
    pub(super) fn new(
        id: u64,
        layout: Layout,
        groups: Range<u32>,
        blocks: u64,
        alive: BTreeMap<u32, bool>,
        (me, claim): (Owner, Claim),
    ) -> GrowVolume {
        GrowVolume { id, layout, groups, blocks, alive, me, claim, made: None, tries: 0 }
    }

    /// Makes the next step. The result has the replicas of the new groups.
    pub(super) fn step(
        &mut self,
        store: &mut dyn ConfigStore,
    ) -> Result<Step<Result<PlannedGrowth, ManageError>>, ConfigError> {
        if !self.claim.runs() {
            let why = "the client that requested the size has disconnected, so the volume stays as it is";
            return Ok(Step::Done(Err(ManageError::TimedOut(why.into()))));
        }
        if self.made.is_none() {
            match self.plan(&Catalog::read(store)?) {
                Ok(made) => self.made = Some(made),
                Err(why) => return Ok(Step::Done(Err(why))),
            }
        }
        let Some((planned, extend)) = &mut self.made else { return Ok(Step::More) };
        match extend.step(store)? {
            Step::More => Ok(Step::More),
            Step::Done(Made::All) => Ok(Step::Done(Ok(std::mem::take(planned)))),
            Step::Done(Made::Stopped) => Ok(Step::Done(Err(deleted()))),
            Step::Done(Made::Nothing) => {
                self.made = None;
                self.tries += 1;
                if self.tries == steps::TRIES { Err(ConfigError::Contended) } else { Ok(Step::More) }
            }
        }
    }

    fn plan(&self, catalog: &Catalog) -> Result<(PlannedGrowth, Extend), ManageError> {
        let (id, layout, blocks) = (self.id, self.layout, self.blocks);
        let (volume, version) = catalog.volumes.get(&id).ok_or_else(deleted)?;
        if is_left(catalog, id) || catalog.plans.contains_key(&id) {
            return Err(ManageError::InUse(format!(
                "another command at another node makes volume {} larger: try again when that command has ended",
                volume.name
            )));
        }
        let devices = devices(catalog, |node| self.alive.get(&node) == Some(&true));
        let log = volume.log_bytes;
        let of_groups: Vec<u64> =
            self.groups.clone().map(|index| layout.blocks_in(GroupIndex(index), blocks)).collect();
        let sizes: Vec<Need> =
            of_groups.iter().map(|blocks| room::need_of(catalog, volume, *blocks)).collect();
        let copies = volume.copies as usize;
        let present = GrowthOfPresent::of(catalog, id, layout, blocks);
        let wanted = Wanted { name: &volume.name, copies, groups: &of_groups, log_bytes: log };
        let grown = present.promised(&devices);
        let grown = grown
            .map_err(|lacks| no_room::of_growth(catalog, &devices, wanted, present.of_copy, Some(lacks)))?;
        let placed = place(&grown, &sizes, copies, Some(self.me.node)).map_err(|why| match why {
            NoPlace::Room { .. } => no_room::of_growth(catalog, &devices, wanted, present.of_copy, None),
            why => no_room::of_volume(why, catalog, &devices, wanted),
        })?;
        // Also if no id is needed: of two commands at the same time that count the same free room, the key of the ids lets one commit.
        let (mut ids, take) = catalog.take_ids(1 + placed.iter().map(Vec::len).sum::<usize>() as u64);
        let command = ids.next().expect("as many were taken");
        // From here on the room is promised, and nodes count with it. Not if the volume is deleted at the same time.
        let larger = Volume { blocks: volume.blocks.max(blocks), ..volume.clone() };
        let mut first = vec![take, change(format!("volume/{id}"), Some(*version), &larger)];
        let (mut replicas, mut added, mut later) = (Vec::new(), Vec::new(), Vec::new());
        for (group, places) in self.groups.clone().zip(&placed) {
            let mut of_group = Vec::new();
            for place in places {
                let replica = ids.next().expect("as many were taken");
                replicas.push(new_replica(catalog, id, volume, replica, (group, *place), None));
                let (device, log_device) = (place.device.0, place.log.0);
                later.push(PlannedReplica { id: replica, group, device, log_device });
                of_group.push((ReplicaId(replica), NodeId(catalog.devices[&place.device.0].0.node)));
            }
            added.push(of_group);
        }
        if 1 + first.len() + replicas.len() <= MOST_CHANGES {
            later.clear();
        }
        // Replicas of later commits: their room is promised with the first one.
        let growth = Some(Growth { command, ordered: false });
        first.push(change(
            format!("plan/{id}"),
            None,
            &Plan { node: self.me.node.0, incarnation: self.me.incarnation.0, replicas: later, growth },
        ));
        let extend = Extend::new(first, replicas, format!("volume/{id}"), VolumeState::may_grow);
        Ok((PlannedGrowth { command, added }, extend))
    }
}

fn deleted() -> ManageError {
    ManageError::Wrong("the volume was deleted meanwhile".into())
}

/// States in the plan that the owner is ordered to change the record. Returns the epoch of the owner's present claim of the volume, in which the
/// order may be carried out. `None` if `me` does not own the volume, or the plan of the command was taken back: then the order must not be
/// given.
pub(super) fn order(
    store: &mut dyn ConfigStore,
    id: u64,
    command: u64,
    me: Owner,
) -> Result<Option<Epoch>, ConfigError> {
    for _ in 0..steps::TRIES {
        let catalog = Catalog::read(store)?;
        let record = catalog.record(id).filter(|record| record.owner == me);
        let claim = record.and_then(|record| record.history.claims().last().map(|claim| claim.epoch));
        let plan =
            catalog.plans.get(&id).filter(|(plan, _)| plan.growth.is_some_and(|of| of.command == command));
        let (Some(claim), Some((plan, version))) = (claim, plan) else { return Ok(None) };
        let ordered = Plan { growth: Some(Growth { command, ordered: true }), ..plan.clone() };
        if store.commit(&[change(format!("plan/{id}"), Some(*version), &ordered)])? {
            return Ok(Some(claim));
        }
    }
    Err(ConfigError::Contended)
}

/// Whether a volume was promised more than its record has: a command makes it larger, or was interrupted.
pub(in crate::node) fn is_left(catalog: &Catalog, id: u64) -> bool {
    left(catalog, id).is_some_and(|left| !left.is_empty())
}

/// The changes that take back what a volume was promised and does not have, the one of the volume first; none if there is nothing. `None`
/// if the volume has no record.
fn left(catalog: &Catalog, id: u64) -> Option<Vec<Change>> {
    let (volume, version) =
        catalog.volumes.get(&id).filter(|(volume, _)| volume.state == VolumeState::Ready)?;
    let record = catalog.record(id)?;
    let groups = record.groups.len() as u32;
    let beyond = |(_, (replica, _)): &(&u64, &(Replica, u64))| {
        replica.volume == id && replica.group >= groups && replica.state != ReplicaState::Dropping
    };
    let drops = |(id, (replica, version)): (&u64, &(Replica, u64))| {
        change(format!("replica/{id}"), Some(*version), &replica.taken_back())
    };
    let replicas: Vec<Change> = catalog.replicas.iter().filter(beyond).map(drops).collect();
    let plan = catalog.plans.get(&id);
    if volume.blocks == record.blocks && replicas.is_empty() && plan.is_none() {
        return Some(Vec::new());
    }
    let as_it_is = Volume { blocks: record.blocks, ..volume.clone() };
    let mut changes = vec![change(format!("volume/{id}"), Some(*version), &as_it_is)];
    changes.extend(plan.map(|(_, version)| Change {
        key: format!("plan/{id}"),
        expected: Some(*version),
        value: None,
    }));
    changes.extend(replicas);
    Some(changes)
}

/// Whose growth is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undone {
    /// Of the command with this id: it has ordered nothing, or its order was refused or carried out.
    Own(u64),
    /// Of any command. The volume has had a record of this epoch, which the node has made as its owner, and still has it.
    At(Epoch),
}

/// Takes back what a volume was promised beyond its record. Nothing if the condition of [`Undone`] does not hold any more.
pub(super) struct UndoGrowth {
    id: u64,
    of: Undone,
    rest: Option<Each>,
    tries: usize,
}

impl UndoGrowth {
    pub(super) fn new(id: u64, of: Undone) -> UndoGrowth {
        UndoGrowth { id, of, rest: None, tries: 0 }
    }

    /// Makes the next step. The first one expects the volume and the plan as they were read, so it loses against a command that plans or orders
    /// at the same time. Later ones drop only replicas that were there then.
    pub(super) fn step(&mut self, store: &mut dyn ConfigStore) -> Result<Step<()>, ConfigError> {
        if self.rest.is_none() {
            let catalog = Catalog::read(store)?;
            let growth = catalog.plans.get(&self.id).and_then(|(plan, _)| plan.growth);
            let applies = match self.of {
                Undone::Own(command) => growth.is_some_and(|growth| growth.command == command),
                Undone::At(epoch) => catalog.record(self.id).is_some_and(|record| record.epoch == epoch),
            };
            if !applies {
                return Ok(Step::Done(()));
            }
            let changes = left(&catalog, self.id).unwrap_or_default();
            self.rest = Some(Each::new(changes));
        }
        let Some(rest) = &mut self.rest else { return Ok(Step::More) };
        match rest.step(store)? {
            Step::More => Ok(Step::More),
            Step::Done(true) => Ok(Step::Done(())),
            Step::Done(false) => {
                self.rest = None;
                self.tries += 1;
                if self.tries == steps::TRIES { Err(ConfigError::Contended) } else { Ok(Step::More) }
            }
        }
    }
}

/// By how much the replicas that a volume has grow with it. In blocks.
struct GrowthOfPresent {
    /// On each device.
    on: BTreeMap<u32, u64>,
    /// Of each copy of the volume.
    of_copy: u64,
}

impl GrowthOfPresent {
    /// The volume is to have so many blocks.
    fn of(catalog: &Catalog, id: u64, layout: Layout, blocks: u64) -> GrowthOfPresent {
        let (mut on, mut of_groups) = (BTreeMap::new(), BTreeMap::new());
        let stays = |replica: &Replica| replica.volume == id && replica.state != ReplicaState::Dropping;
        for (replica, _) in catalog.replicas.values().filter(|(replica, _)| stays(replica)) {
            let Some((device, _)) = catalog.devices.get(&replica.device) else { continue };
            let data = |blocks| room::data(blocks, device.bytes);
            let now = data(blocks_of(catalog, replica));
            let more = data(layout.blocks_in(GroupIndex(replica.group), blocks)).saturating_sub(now);
            *on.entry(replica.device).or_insert(0) += more;
            let of_group: &mut u64 = of_groups.entry(replica.group).or_insert(0);
            *of_group = more.max(*of_group);
        }
        GrowthOfPresent { on, of_copy: of_groups.values().sum() }
    }

    /// The devices when that is promised. An error names one that has no room for it.
    fn promised(&self, devices: &[Device]) -> Result<Vec<Device>, Lacks> {
        let mut devices = devices.to_vec();
        for place in &mut devices {
            let more = self.on.get(&place.id.0).copied().unwrap_or(0);
            if more > place.free() {
                return Err(Lacks { device: place.clone(), more });
            }
            place.promised += more;
        }
        Ok(devices)
    }
}

#[cfg(test)]
mod tests;
