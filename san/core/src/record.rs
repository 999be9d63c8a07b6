//! The record of a volume in the configuration store: its owner, and which replicas hold every acknowledged write.
//!
//! A record is changed only by a swap, to the next epoch. The functions here make the record of each kind of swap from the
//! one before; [`crate::swap`] carries it out.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::history::History;
use crate::ids::{Epoch, NodeId, Owner, Position, Promise, ProposalId, ReplicaId};
use crate::layout::{GroupIndex, Layout};
use crate::rule::{Rule, left_out};

/// A volume's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Raised by every swap.
    pub epoch: Epoch,
    /// The swap that made it.
    pub made_by: ProposalId,
    /// The owner, which orders its I/O.
    pub owner: Owner,
    /// Whether the owner serves I/O, or is still taking over.
    pub state: RecordState,
    /// How often the volume was attached: a request is carried out only within one attachment (rule T12).
    pub attachment: u64,
    /// The attachment since which no other node has owned the volume and no attach was ordered. Requests of clients
    /// under a lower number are never carried out again (rules T4 and T13).
    pub fence: u64,
    /// Length of a lease, nanoseconds. It never changes.
    pub lease_ns: u64,
    /// Its size, in blocks. It only grows.
    pub blocks: u64,
    /// Where its blocks are. It never changes.
    pub layout: Layout,
    /// Replicas in sync that a group needs for new writes to be accepted.
    pub least: u32,
    /// The last claims of the volume: a promise to an owner that is none of them was made in another history (rule R11).
    pub history: History,
    /// The node of each replica that it names.
    pub homes: BTreeMap<ReplicaId, NodeId>,
    /// The groups of the volume, by their index.
    pub groups: Vec<Group>,
}

/// What the owner of a volume does, by its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordState {
    /// It makes the members equal.
    TakingOver,
    /// It serves I/O.
    Active,
}

/// The entry of a group in the record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    /// The replicas that hold every acknowledged write. Never empty.
    pub in_sync: BTreeSet<ReplicaId>,
    /// What each of them had durably promised when it was last made a member, or equal to the others. A member with a lower
    /// promise has a device that went back in time (rule R9). Epoch 0, which is not listed: nothing is known.
    pub since: BTreeMap<ReplicaId, Epoch>,
    /// The replicas that have left. An entry stays as it is until its replica is a member again (rule T2).
    pub departed: BTreeMap<ReplicaId, Departed>,
    /// The epoch of the last recovery by force, in which a person chose the survivors of the group; 0 if there was none. Promises
    /// of its replicas below that epoch may be of a history that was given up, and are not compared (rule R11).
    pub recovered: Epoch,
}

impl Group {
    /// What a member had durably promised when it became one (rule R9). 0 of one that is no member, or of which nothing is
    /// known.
    pub fn member_since(&self, replica: ReplicaId) -> Epoch {
        self.since.get(&replica).copied().unwrap_or(Epoch(0))
    }

    fn note_promise(&mut self, replica: ReplicaId, promised: Epoch) {
        if promised > Epoch(0) {
            self.since.insert(replica, promised);
        }
    }
}

/// A replica that is not in sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departed {
    /// The epoch of the swap that removed it: what was changed since then is copied to it. 0: everything is.
    pub epoch: Epoch,
    /// It had everything up to here. If it has less, it has lost something (rule C9).
    pub had: Position,
}

impl Departed {
    /// One that is to be copied in full.
    pub const EMPTY: Departed = Departed { epoch: Epoch(0), had: Position::START };
}

/// Why a change of a record is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The volume has no such group.
    #[error("there is no group {0}: the volume has {1}")]
    NoGroup(u32, usize),
    /// Without it no replica would hold what was acknowledged.
    #[error("{0} is the last replica in sync of group {1}: it is never removed")]
    LastMember(ReplicaId, u32),
    /// The replica is not in the set.
    #[error("{0} is not in sync in group {1}")]
    NotMember(ReplicaId, u32),
    /// The record does not name the replica, or it is in the set already.
    #[error("{0} has not departed from group {1}")]
    NotDeparted(ReplicaId, u32),
    /// The record names the replica already, or the command names it twice.
    #[error("{0} is a replica of this volume already: a new one has an id of its own")]
    Known(ReplicaId),
    /// The replica is to be copied in full.
    #[error("{0} of group {1} may be empty: it is being copied in full. Name another that is left")]
    MayBeEmpty(ReplicaId, u32),
    /// A volume only grows.
    #[error(
        "the volume has {now} blocks, and cannot have {asked}: a volume only grows, and its layout has a limit"
    )]
    Size {
        /// Blocks that it has.
        now: u64,
        /// Blocks that it was to have.
        asked: u64,
    },
    /// A group that is added has replicas, and only that.
    #[error("{given} new groups with replicas, and a volume of that size has {needed} more than now")]
    Groups {
        /// Groups that were given.
        given: usize,
        /// Groups that are missing.
        needed: usize,
    },
}

impl Record {
    fn next(&self, made_by: ProposalId) -> Record {
        Record { epoch: self.epoch.next(), made_by, ..self.clone() }
    }

    /// Without these replicas, which did not answer: those of a dead node go in one swap. Each had everything up to the
    /// position beside it.
    pub fn without(
        &self,
        made_by: ProposalId,
        gone: &[(GroupIndex, ReplicaId, Position)],
    ) -> Result<Record, RecordError> {
        let mut next = self.next(made_by);
        for (index, replica, had) in gone {
            let group = next.group_mut(*index)?;
            if !group.in_sync.contains(replica) {
                return Err(RecordError::NotMember(*replica, index.0));
            }
            if group.in_sync.len() == 1 {
                return Err(RecordError::LastMember(*replica, index.0));
            }
            group.in_sync.remove(replica);
            group.since.remove(replica);
            group.departed.insert(*replica, Departed { epoch: self.epoch.next(), had: *had });
        }
        Ok(next)
    }

    /// The same change, of which is known besides that these have lost something that they had: what is stamped since they
    /// left is not all that they miss, and they are copied in full (rule C9).
    pub fn copied_in_full(mut self, lost: &BTreeSet<ReplicaId>) -> Record {
        for group in &mut self.groups {
            let departed = group.departed.iter_mut().filter(|(replica, _)| lost.contains(replica));
            departed.for_each(|(_, departed)| *departed = Departed::EMPTY);
        }
        self
    }

    /// Without a replica that leaves for good.
    pub fn removed(
        &self,
        made_by: ProposalId,
        index: GroupIndex,
        replica: ReplicaId,
    ) -> Result<Record, RecordError> {
        let mut next = self.without(made_by, &[(index, replica, Position::START)])?;
        next.group_mut(index)?.departed.remove(&replica);
        next.homes.remove(&replica);
        Ok(next)
    }

    /// These have departed, and are to be copied in full.
    pub fn emptied(&self, made_by: ProposalId, lost: &BTreeSet<ReplicaId>) -> Record {
        self.next(made_by).copied_in_full(lost)
    }

    /// With a replica that has returned, holds everything, and has durably promised this epoch.
    pub fn with(
        &self,
        made_by: ProposalId,
        index: GroupIndex,
        replica: ReplicaId,
        promised: Epoch,
    ) -> Result<Record, RecordError> {
        let mut next = self.next(made_by);
        let group = next.group_mut(index)?;
        if group.departed.remove(&replica).is_none() {
            return Err(RecordError::NotDeparted(replica, index.0));
        }
        group.in_sync.insert(replica);
        group.note_promise(replica, promised);
        Ok(next)
    }

    /// With a new, empty replica, which is to be copied in full before it becomes a member.
    pub fn with_new(
        &self,
        made_by: ProposalId,
        index: GroupIndex,
        replica: ReplicaId,
        home: NodeId,
    ) -> Result<Record, RecordError> {
        let mut next = self.next(made_by);
        next.settle(replica, home)?;
        next.group_mut(index)?.departed.insert(replica, Departed::EMPTY);
        Ok(next)
    }

    /// Without a replica that has departed and will not return: it is replaced, or its device is gone.
    pub fn forgotten(
        &self,
        made_by: ProposalId,
        index: GroupIndex,
        replica: ReplicaId,
    ) -> Result<Record, RecordError> {
        let mut next = self.next(made_by);
        if next.group_mut(index)?.departed.remove(&replica).is_none() {
            return Err(RecordError::NotDeparted(replica, index.0));
        }
        next.homes.remove(&replica);
        Ok(next)
    }

    /// Larger, with the replicas of the groups that are new, which must be durable on their devices already.
    pub fn grown(
        &self,
        made_by: ProposalId,
        blocks: u64,
        added: &[Vec<(ReplicaId, NodeId)>],
    ) -> Result<Record, RecordError> {
        let size = RecordError::Size { now: self.blocks, asked: blocks };
        if blocks < self.blocks {
            return Err(size);
        }
        let needed = self.layout.groups(blocks).map_err(|_| size)? as usize - self.groups.len();
        if added.len() != needed || added.iter().any(Vec::is_empty) {
            return Err(RecordError::Groups { given: added.len(), needed });
        }
        let mut next = Record { blocks, ..self.next(made_by) };
        for replicas in added {
            let in_sync = replicas.iter().map(|(replica, _)| *replica).collect();
            next.groups.push(Group { in_sync, ..Group::default() });
            for (replica, home) in replicas {
                next.settle(*replica, *home)?;
            }
        }
        Ok(next)
    }

    /// A person chooses these replicas as the survivors of their groups, whatever they may have missed. All others are copied in
    /// full. If none is named, the members of all groups are the survivors, and are compared. The owner must still take over. If the
    /// store went back in time, replicas have promised epochs that it does not know any more: the highest of these is passed, and
    /// what the replicas of these groups promised before is not compared any more (rule R11).
    pub fn recovered(
        &self,
        made_by: ProposalId,
        survivors: &BTreeMap<GroupIndex, ReplicaId>,
        promised: Epoch,
    ) -> Result<Record, RecordError> {
        let mut next = self.taken_over(made_by, true, true);
        next.epoch = next.epoch.max(promised.next());
        next.history = self.history.clone();
        next.history.recovered(next.epoch, made_by.by);
        // The store may have forgotten attachments. There are never more of them than epochs.
        next.attachment = next.attachment.max(next.epoch.0);
        next.fence = next.attachment;
        let epoch = next.epoch;
        for (index, survivor) in survivors {
            let group = next.group_mut(*index)?;
            if !group.in_sync.contains(survivor) && !group.departed.contains_key(survivor) {
                return Err(RecordError::NotMember(*survivor, index.0));
            }
            if group.departed.get(survivor).is_some_and(|departed| departed.epoch == Epoch(0)) {
                return Err(RecordError::MayBeEmpty(*survivor, index.0));
            }
            let mut others = std::mem::take(&mut group.in_sync);
            others.extend(group.departed.keys().copied());
            others.remove(survivor);
            group.departed = others.into_iter().map(|replica| (replica, Departed::EMPTY)).collect();
            group.in_sync = BTreeSet::from([*survivor]);
            group.since.clear();
            group.recovered = epoch;
        }
        for group in next.groups.iter_mut().filter(|_| survivors.is_empty()) {
            group.departed.values_mut().for_each(|departed| *departed = Departed::EMPTY);
            group.recovered = epoch;
        }
        Ok(next)
    }

    /// Attached once more, at the node that owns it.
    pub fn attached(&self, made_by: ProposalId) -> Record {
        Record { attachment: (self.attachment + 1).max(self.fence), ..self.next(made_by) }
    }

    /// First swap of a takeover: another owner, the same sets. `attached`: clients are at the new owner. `fences`: an attach was
    /// ordered. The fence rises with that, and whenever the owner is another node than before.
    pub fn taken_over(&self, made_by: ProposalId, attached: bool, fences: bool) -> Record {
        let fences = fences || self.owner.node != made_by.by.node;
        // Above every attachment, and every fence, that there was. The next attachment has this number at the least.
        let fence = if fences { self.attachment.max(self.fence) + 1 } else { self.fence };
        let attachment = if attached { (self.attachment + 1).max(fence) } else { self.attachment };
        let mut next = self.next(made_by);
        next.history.claim(next.epoch, made_by.by);
        Record { owner: made_by.by, state: RecordState::TakingOver, attachment, fence, ..next }
    }

    /// Second swap of a takeover: it serves, with those that were made equal. The others depart now, and had everything up
    /// to the highest commit point of their group, if they have lost nothing; those that had departed before keep their epoch
    /// (rule T2).
    pub fn activated(
        &self,
        made_by: ProposalId,
        equal: &[BTreeSet<ReplicaId>],
        commit_points: &[Position],
    ) -> Result<Record, RecordError> {
        let mut next = Record { state: RecordState::Active, ..self.next(made_by) };
        let count = next.groups.len();
        if equal.len() != count || commit_points.len() != count {
            return Err(RecordError::NoGroup(equal.len().min(commit_points.len()) as u32, count));
        }
        for (((index, group), equal), had) in (0..).zip(&mut next.groups).zip(equal).zip(commit_points) {
            if let Some(stranger) = equal.difference(&group.in_sync).next() {
                return Err(RecordError::NotMember(*stranger, index));
            }
            let gone: Vec<ReplicaId> = group.in_sync.difference(equal).copied().collect();
            if let (Some(last), true) = (gone.first(), equal.is_empty()) {
                return Err(RecordError::LastMember(*last, index));
            }
            if left_out(Rule::T2) {
                group.departed.values_mut().for_each(|departed| departed.epoch = self.epoch.next());
            }
            let departed = Departed { epoch: self.epoch.next(), had: *had };
            group.departed.extend(gone.into_iter().map(|replica| (replica, departed)));
            group.in_sync.clone_from(equal);
            // Each was sealed at the epoch of the first swap.
            group.since.clear();
            equal.iter().for_each(|replica| group.note_promise(*replica, self.epoch));
        }
        Ok(next)
    }

    /// No replica of this group that is not to be emptied has departed at a lower epoch, nor ever will: what was freed
    /// before needs no tombstone (rule R3).
    pub fn keep(&self, group: GroupIndex) -> Epoch {
        let departed = self.groups[group.0 as usize].departed.values().filter(|d| **d != Departed::EMPTY);
        let first = departed.map(|departed| departed.epoch).min();
        if left_out(Rule::R3Keep) { self.epoch.next() } else { first.unwrap_or(self.epoch.next()) }
    }

    /// The owner of the volume at the epoch that a replica has promised, if that is not the owner that it promised it to. Then the
    /// promise was made in another history than this record: the configuration store went back in time, and the volume is blocked
    /// (rule R11). `None` for a promise above the record's epoch, for one below the oldest claim that is known, and for one that a
    /// recovery by force has passed.
    pub fn contradicts(&self, replica: ReplicaId, promise: &Promise) -> Option<Owner> {
        if promise.epoch > self.epoch || left_out(Rule::R11) {
            return None;
        }
        self.history.contradicts(promise)?;
        // This is rare, so the group is searched for only now.
        let has = |group: &&Group| group.in_sync.contains(&replica) || group.departed.contains_key(&replica);
        self.groups.iter().find(has).and_then(|group| self.history_of(group).contradicts(promise))
    }

    /// What the promises of a group's replicas are compared with.
    pub fn history_of(&self, group: &Group) -> History {
        self.history.since(group.recovered)
    }

    /// Whether no node has a member of every group. Then two nodes with members that do not reach each other cannot serve the volume,
    /// while a node without any may reach both.
    pub fn is_spread(&self) -> bool {
        let homes = |group: &Group| -> BTreeSet<NodeId> {
            group.in_sync.iter().filter_map(|replica| self.homes.get(replica)).copied().collect()
        };
        let mut groups = self.groups.iter();
        let Some(first) = groups.next() else { return false };
        let mut everywhere = homes(first);
        groups.for_each(|group| everywhere = &everywhere & &homes(group));
        everywhere.is_empty()
    }

    /// All replicas in sync, with their nodes.
    pub fn members(&self) -> impl Iterator<Item = (ReplicaId, NodeId)> {
        self.groups.iter().flat_map(|group| &group.in_sync).map(|replica| (*replica, self.homes[replica]))
    }

    /// A replica that is new has a home.
    fn settle(&mut self, replica: ReplicaId, home: NodeId) -> Result<(), RecordError> {
        match self.homes.insert(replica, home) {
            None => Ok(()),
            Some(_) => Err(RecordError::Known(replica)),
        }
    }

    fn group_mut(&mut self, index: GroupIndex) -> Result<&mut Group, RecordError> {
        let count = self.groups.len();
        self.groups.get_mut(index.0 as usize).ok_or(RecordError::NoGroup(index.0, count))
    }

    /// Checks the rules that every record keeps, and returns the one that is violated. A record that was read from a store is checked with
    /// it.
    pub fn broken(&self) -> Option<String> {
        if self.layout.groups(self.blocks).ok() != u32::try_from(self.groups.len()).ok() {
            return Some(format!("{} blocks do not make {} groups", self.blocks, self.groups.len()));
        }
        if let Some(claim) = self.history.claims().last().filter(|claim| claim.epoch > self.epoch) {
            return Some(format!(
                "it was claimed at epoch {}, and the record's is {}",
                claim.epoch.0, self.epoch.0
            ));
        }
        let mut seen = BTreeSet::new();
        for (index, group) in self.groups.iter().enumerate() {
            let all =
                group.in_sync.iter().chain(group.departed.keys().filter(|r| !group.in_sync.contains(r)));
            if let Some(twice) = all.copied().find(|replica| !seen.insert(*replica)) {
                return Some(format!("{twice} of group {index} is one of another group too"));
            }
            let named = group.in_sync.iter().chain(group.departed.keys());
            if let Some(homeless) = named.clone().find(|r| !self.homes.contains_key(r)) {
                return Some(format!("{homeless} of group {index} is at no node"));
            }
            if group.in_sync.is_empty() {
                return Some(format!("group {index} has no replica in sync"));
            }
            if let Some(both) = group.in_sync.iter().find(|r| group.departed.contains_key(r)) {
                return Some(format!("{both} is in sync in group {index}, and has departed from it"));
            }
            if group.recovered > self.epoch {
                return Some(format!(
                    "group {index} was recovered at epoch {}, and the record's is {}",
                    group.recovered.0, self.epoch.0
                ));
            }
            if let Some(replica) = group.since.keys().find(|replica| !group.in_sync.contains(replica)) {
                return Some(format!(
                    "{replica} is not in sync in group {index}, and has been since an epoch"
                ));
            }
            if let Some((replica, since)) = group.since.iter().find(|(_, since)| **since > self.epoch) {
                return Some(format!(
                    "{replica} is in sync in group {index} since epoch {}, and the record's is {}",
                    since.0, self.epoch.0
                ));
            }
            if let Some((replica, departed)) = group.departed.iter().find(|(_, d)| d.epoch > self.epoch) {
                return Some(format!(
                    "{replica} departed from group {index} at epoch {}, and the record's is {}",
                    departed.epoch.0, self.epoch.0
                ));
            }
        }
        None
    }
}
