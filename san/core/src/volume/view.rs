//! What a volume at one node reports of itself at this moment, for a status. Nothing here changes it.

use std::collections::BTreeSet;

use super::replica_session::SessionState;
use super::{Role, Status, Volume};
use crate::ids::{Epoch, NodeId, Owner, ReplicaId};
use crate::layout::GroupIndex;
use crate::lease::Moment;

/// A volume at one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// What this node does with it.
    pub status: Status,
    /// Why nothing is done, if it is blocked.
    pub blocked: Option<String>,
    /// The epoch of the record that this node knows; 0 before it knows one.
    pub epoch: Epoch,
    /// The owner that this record names.
    pub owner: Option<Owner>,
    /// The highest epoch that a replica has reported to this node.
    pub promised: Epoch,
    /// Its groups. Empty unless this node owns the volume and serves it.
    pub groups: Vec<GroupView>,
    /// The replicas with which this node has, or requests, a session.
    pub members: Vec<MemberView>,
}

/// A group, as the owner that serves it sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupView {
    /// Replicas in sync, without those that an undecided swap may remove.
    pub in_sync: usize,
    /// Replicas in sync that new writes need.
    pub least: usize,
    /// Reads are answered: all leases are held.
    pub reads: bool,
    /// No device of a replica that must have a write is full.
    pub room: bool,
}

/// A replica, as an owner sees it, or a node that takes the volume over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberView {
    /// The id of the replica.
    pub replica: ReplicaId,
    /// The node that has the replica.
    pub node: NodeId,
    /// The group of the replica.
    pub group: GroupIndex,
    /// It must have every write. Otherwise it is returning.
    pub required: bool,
    /// The state of the session with the replica.
    pub session: Session,
}

/// The state of the session with a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// It is open, and the replica answers.
    Answers,
    /// It is open, and the replica has not answered for as long as a lease lasts, or does not carry out its requests.
    Silent,
    /// The session was requested, and there is no answer yet.
    Asked,
    /// The replica reports that it has failed or is damaged.
    Failed,
}

impl<D: Clone> Volume<D> {
    /// What this node reports of the volume at this moment.
    pub fn view(&self, now: Moment) -> View {
        let record = self.c.record();
        let mut view = View {
            status: self.status(),
            blocked: self.c.blocked.as_ref().map(ToString::to_string),
            epoch: self.c.epoch(),
            owner: record.map(|record| record.owner),
            promised: self.c.promised,
            groups: Vec::new(),
            members: Vec::new(),
        };
        match &self.role {
            Role::Watch(_) => {}
            Role::Takeover(takeover) => {
                let reported: BTreeSet<ReplicaId> = takeover.reports.keys().copied().collect();
                view.members.extend(takeover.sessions.iter().map(|session| MemberView {
                    replica: session.replica,
                    node: session.node,
                    group: session.group,
                    required: true,
                    session: match session.state {
                        SessionState::Failed => Session::Failed,
                        SessionState::Open if reported.contains(&session.replica) => Session::Answers,
                        _ => Session::Asked,
                    },
                }));
            }
            Role::Active(active) => {
                let least = record.map_or(1, |record| record.least as usize);
                for (index, group) in (0..).zip(&active.groups) {
                    let index = GroupIndex(index);
                    let (reads, room) = (active.may_read(index, now), active.has_room(index));
                    view.groups.push(GroupView { in_sync: group.in_sync, least, reads, room });
                }
                view.members.extend(active.sessions.iter().map(|session| MemberView {
                    replica: session.replica,
                    node: session.node,
                    group: session.group,
                    required: !active.returning.contains_key(&session.replica),
                    session: match session.state {
                        SessionState::Failed => Session::Failed,
                        _ if active.answers(&self.c, now, session) => Session::Answers,
                        SessionState::Open => Session::Silent,
                        SessionState::Greeting | SessionState::Sealing => Session::Asked,
                    },
                }));
            }
        }
        view
    }
}
