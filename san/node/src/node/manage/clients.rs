//! Clients of a volume at its owner: initiators of iSCSI by their names, others by their number.

use std::collections::BTreeSet;

use loadline_base::figures::{self, counted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::local::{InitiatorAt, LocalView};
use crate::node::Node;

/// Initiators that a text names.
pub(super) const MOST_NAMED: usize = 3;

/// Clients of a volume at its owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientsView {
    /// The names of the initiators of iSCSI, each once.
    pub initiators: Vec<String>,
    /// Connections of other clients.
    pub others: usize,
}

impl ClientsView {
    /// Clients of a volume with so many connections, at a node with these sessions of initiators.
    pub(super) fn of<'a>(
        id: u64,
        sessions: impl Iterator<Item = &'a InitiatorAt>,
        connections: usize,
    ) -> ClientsView {
        let active: Vec<&str> =
            sessions.filter(|of| of.volume == id && of.is_active).map(|of| of.name.as_str()).collect();
        let names: BTreeSet<&str> = active.iter().copied().collect();
        ClientsView {
            initiators: names.into_iter().map(str::to_owned).collect(),
            others: connections.saturating_sub(active.len()),
        }
    }

    /// Clients of a volume that its owner reports.
    pub(super) fn at(id: u64, owner: &LocalView) -> ClientsView {
        let connections = owner.volume(id).map_or(0, |volume| volume.clients);
        ClientsView::of(id, owner.initiators.iter(), connections)
    }

    /// These clients, for people; `None` if there is none.
    pub fn words(&self) -> Option<String> {
        let initiators = match self.initiators.as_slice() {
            [] => None,
            [one] => Some(format!("initiator {one}")),
            all => Some(format!("initiators {}", figures::listed(all, MOST_NAMED))),
        };
        let others = match (self.others, &initiators) {
            (0, _) => None,
            (others, None) => Some(counted(others as u64, "client")),
            (others, Some(_)) => Some(counted(others as u64, "other client")),
        };
        let all: Vec<String> = initiators.into_iter().chain(others).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    }
}

impl Node {
    /// The clients of a volume at this node. Refresh the loops before.
    pub(super) fn clients_here(&self, id: u64) -> ClientsView {
        let state = self.state();
        let volumes = state.loops.iter().flat_map(|of| &of.volumes);
        let connections = volumes.filter(|volume| volume.id.0 == id).map(|volume| volume.clients).sum();
        let sessions: Vec<InitiatorAt> =
            state.loops.iter().flat_map(|of| &of.initiators).map(InitiatorAt::of).collect();
        ClientsView::of(id, sessions.iter(), connections)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(volume: u64, name: &str, is_active: bool) -> InitiatorAt {
        InitiatorAt { volume, name: name.into(), is_active }
    }

    #[test]
    fn clients_are_initiators_by_name_and_others_by_number() {
        let sessions = [
            session(1, "iqn.b", true),
            session(1, "iqn.a", true),
            session(1, "iqn.a", true),
            session(1, "iqn.c", false),
            session(2, "iqn.d", true),
        ];
        let words =
            |sessions: &[InitiatorAt], connections| ClientsView::of(1, sessions.iter(), connections).words();
        assert_eq!(words(&sessions, 3).unwrap(), "initiators iqn.a, iqn.b");
        assert_eq!(words(&sessions, 5).unwrap(), "initiators iqn.a, iqn.b and 2 other clients");
        assert_eq!(words(&sessions[..1], 2).unwrap(), "initiator iqn.b and 1 other client");
        assert_eq!(words(&sessions[3..], 1).unwrap(), "1 client");
        assert_eq!(words(&sessions[3..], 0), None);
    }
}
