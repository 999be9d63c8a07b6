//! The record of a volume, for tests.

use loadline_san_core::history::History;
use loadline_san_core::ids::{Epoch, NodeId, Owner, ProposalId, ReplicaId};
use loadline_san_core::layout::Layout;
use loadline_san_core::record::{Group, Record, RecordState};

/// The record of a volume of one group with copies at these nodes, all in sync. A write needs one of the copies. The owner has
/// proposed the record, as its proposal number `epoch`.
pub(crate) fn record(epoch: u64, owner: Owner, copies: &[(u64, u32)]) -> Record {
    let homes = copies.iter().map(|(replica, node)| (ReplicaId(*replica), NodeId(*node)));
    let in_sync = copies.iter().map(|(replica, _)| ReplicaId(*replica));
    Record {
        epoch: Epoch(epoch),
        made_by: ProposalId { by: owner, number: epoch },
        owner,
        state: RecordState::Active,
        attachment: 1,
        fence: 0,
        lease_ns: 600_000_000,
        blocks: 64,
        layout: Layout::new(1, 64, 64).expect("it can be"),
        least: 1,
        history: History::default(),
        homes: homes.collect(),
        groups: vec![Group { in_sync: in_sync.collect(), ..Group::default() }],
    }
}
