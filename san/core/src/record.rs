//! What the store knows of a volume: its owner, and which replicas hold every acknowledged write.
//!
//! A record is changed only by a swap, to the next epoch. The functions here make the record of each kind of swap from the
//! one before; [`crate::swap`] carries it out.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::ids::{Epoch, Owner, ProposalId, ReplicaId};
use crate::layout::GroupIndex;

/// A volume's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Raised by every swap.
    pub epoch: Epoch,
    /// The swap that made it.
    pub made_by: ProposalId,
    /// Who orders its I/O.
    pub owner: Owner,
    /// Whether the owner serves I/O, or is still taking over.
    pub state: State,
    /// How often the volume was attached: requests in flight are issued again only within one attachment.
    pub attachment: u64,
    /// Length of a lease, nanoseconds.
    pub lease_ns: u64,
    /// Its groups.
    pub groups: Vec<Group>,
}

/// What an owner does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It makes the members equal.
    TakingOver,
    /// It serves I/O.
    Active,
}

/// What the record knows of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    /// The replicas that hold every acknowledged write. Never empty.
    pub in_sync: BTreeSet<ReplicaId>,
    /// The others, with the epoch of the swap that removed them; 0 if they must be copied in full. It stays as it is
    /// until the replica is a member again (rule T2).
    pub departed: BTreeMap<ReplicaId, Epoch>,
}

/// Why a record cannot be changed so.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The volume has no such group.
    #[error("there is no group {0}: the volume has {1}")]
    NoGroup(u32, usize),
    /// Without it nobody would hold what was acknowledged.
    #[error("{0} is the last replica in sync of group {1}: it is never removed")]
    LastMember(ReplicaId, u32),
    /// It is not in the set.
    #[error("{0} is not in sync in group {1}")]
    NotMember(ReplicaId, u32),
    /// It is not known, or in the set already.
    #[error("{0} has not departed from group {1}")]
    NotDeparted(ReplicaId, u32),
}

impl Record {
    fn next(&self, made_by: ProposalId) -> Record {
        Record { epoch: self.epoch.next(), made_by, ..self.clone() }
    }

    /// Without these replicas, which did not answer: those of a dead node go in one swap.
    pub fn without(
        &self,
        made_by: ProposalId,
        gone: &[(GroupIndex, ReplicaId)],
    ) -> Result<Record, RecordError> {
        let mut next = self.next(made_by);
        for (index, replica) in gone {
            let group = next.group_mut(*index)?;
            if !group.in_sync.contains(replica) {
                return Err(RecordError::NotMember(*replica, index.0));
            }
            if group.in_sync.len() == 1 {
                return Err(RecordError::LastMember(*replica, index.0));
            }
            group.in_sync.remove(replica);
            group.departed.insert(*replica, self.epoch.next());
        }
        Ok(next)
    }

    /// With a replica that has come back and holds everything.
    pub fn with(
        &self,
        made_by: ProposalId,
        index: GroupIndex,
        replica: ReplicaId,
    ) -> Result<Record, RecordError> {
        let mut next = self.next(made_by);
        let group = next.group_mut(index)?;
        if group.departed.remove(&replica).is_none() {
            return Err(RecordError::NotDeparted(replica, index.0));
        }
        group.in_sync.insert(replica);
        Ok(next)
    }

    /// With a new, empty replica, which is to be copied in full before it becomes a member.
    pub fn with_new(
        &self,
        made_by: ProposalId,
        index: GroupIndex,
        replica: ReplicaId,
    ) -> Result<Record, RecordError> {
        let mut next = self.next(made_by);
        let group = next.group_mut(index)?;
        if !group.in_sync.contains(&replica) {
            group.departed.entry(replica).or_insert(Epoch(0));
        }
        Ok(next)
    }

    /// First swap of a takeover: another owner, the same sets.
    pub fn taken_over(&self, made_by: ProposalId, attached: bool) -> Record {
        let attachment = self.attachment + u64::from(attached);
        Record { owner: made_by.by, state: State::TakingOver, attachment, ..self.next(made_by) }
    }

    /// Second swap of a takeover: it serves, with those that were made equal. The others depart now; those that had
    /// departed before keep their epoch (rule T2).
    pub fn activated(
        &self,
        made_by: ProposalId,
        equal: &[BTreeSet<ReplicaId>],
    ) -> Result<Record, RecordError> {
        let mut next = Record { state: State::Active, ..self.next(made_by) };
        let count = next.groups.len();
        if equal.len() != count {
            return Err(RecordError::NoGroup(equal.len() as u32, count));
        }
        for ((index, group), equal) in (0..).zip(&mut next.groups).zip(equal) {
            if let Some(stranger) = equal.difference(&group.in_sync).next() {
                return Err(RecordError::NotMember(*stranger, index));
            }
            let left_out: Vec<ReplicaId> = group.in_sync.difference(equal).copied().collect();
            if let (Some(last), true) = (left_out.first(), equal.is_empty()) {
                return Err(RecordError::LastMember(*last, index));
            }
            group.departed.extend(left_out.into_iter().map(|replica| (replica, self.epoch.next())));
            group.in_sync.clone_from(equal);
        }
        Ok(next)
    }

    fn group_mut(&mut self, index: GroupIndex) -> Result<&mut Group, RecordError> {
        let count = self.groups.len();
        self.groups.get_mut(index.0 as usize).ok_or(RecordError::NoGroup(index.0, count))
    }

    /// What every record keeps. Says what it breaks; a record that was read from a store is checked with it.
    pub fn broken(&self) -> Option<String> {
        for (index, group) in self.groups.iter().enumerate() {
            if group.in_sync.is_empty() {
                return Some(format!("group {index} has no replica in sync"));
            }
            if let Some(both) = group.in_sync.iter().find(|r| group.departed.contains_key(r)) {
                return Some(format!("{both} is in sync in group {index}, and has departed from it"));
            }
            if let Some((replica, epoch)) = group.departed.iter().find(|(_, e)| **e > self.epoch) {
                return Some(format!(
                    "{replica} departed from group {index} at epoch {}, and the record's is {}",
                    epoch.0, self.epoch.0
                ));
            }
        }
        None
    }
}
