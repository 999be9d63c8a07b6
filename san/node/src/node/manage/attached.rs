//! How a volume is used that was attached, and what its attach has done to clients: the answer to that order.

use std::collections::BTreeMap;

use loadline_base::figures;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ManageError;
use super::clients::{ClientsView, MOST_NAMED};
use super::local::Reports;
use super::paths::{self, InitiatorPaths};
use crate::node::Node;

/// How a volume is used that is attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Use {
    /// Its name.
    pub volume: String,
    /// The node that owns it.
    pub node: String,
    /// How clients reach it, by the name of their protocol (`nbd`, `vhost-user-blk`).
    pub ways: BTreeMap<String, WaysView>,
    /// Whether clients over the network must connect by TLS, with a certificate.
    pub requires_tls: bool,
    /// Whether the attachment waits until its client starts. Until then the node that is named does not own the volume, and the present
    /// attachment continues.
    #[serde(default)]
    pub waits: bool,
    /// Whether the volume names an iSCSI initiator. If it names none, only those on the machine of a node are let in.
    #[serde(default)]
    pub lets_initiators_in: bool,
    /// Clients of the volume that were disconnected, if its owner has reported them.
    #[serde(default)]
    pub disconnected: ClientsView,
    /// Initiators that had sessions with other nodes, and none with this one, as far as nodes have reported. If they have none here for some
    /// seconds, and no other client needs the volume here, it moves to a node where they have one.
    #[serde(default)]
    pub without_path: Vec<InitiatorPaths>,
}

/// How clients of a protocol reach a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaysView {
    /// From anywhere: a URI; `null` if there is no such way.
    pub network: Option<String>,
    /// On the node's own machine: a URI, or the path of a socket.
    pub local: Option<String>,
}

impl Use {
    /// What people should know of clients that used the volume before, each in a sentence without a full stop.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(clients) = self.disconnected.words() {
            notes.push(format!("disconnected: {clients}"));
        }
        if !self.without_path.is_empty() {
            let named = |of: &InitiatorPaths| {
                let nodes: Vec<&str> = of.paths.iter().map(|path| path.node.as_str()).collect();
                format!("{} (at {})", of.initiator, nodes.join(", "))
            };
            let all: Vec<String> = self.without_path.iter().map(named).collect();
            let node = &self.node;
            notes.push(format!(
                "without a session at {node}: {}. If an initiator does not log in there, the volume moves to a node where it has a session within \
                 seconds, unless another client uses the volume at {node}",
                figures::listed(&all, MOST_NAMED)
            ));
        }
        notes
    }
}

impl Node {
    /// As [`attach_volume`](Self::attach_volume), and the answer has the clients that this disconnects, and the initiators that have no session
    /// with this node, as far as nodes report them.
    pub async fn attach_and_report(
        &self,
        name: &str,
        node: Option<&str>,
        key: Option<&str>,
    ) -> Result<Use, ManageError> {
        let found = self.attachable(name, node).await?;
        let (id, volume, catalog) = &found;
        if volume.attached.is_none() {
            // It has no clients.
            return self.attach_here(name, found, key).await;
        }
        let (id, catalog) = (*id, catalog.clone());
        // The sessions with the owner end by the attach: it must have reported before. The others are asked meanwhile.
        let this = self.clone();
        let all = tokio::spawn(async move { this.reports().await });
        let owner = self.record(id).map(|record| record.owner.node.0);
        let at_owner = match owner {
            Some(owner) => self.report_of(owner).await.and_then(Result::ok),
            None => None,
        };
        let mut attached = self.attach_here(name, found, key).await?;
        let mut reports: Reports = all.await.unwrap_or_default();
        if let (Some(owner), Some(report)) = (owner, at_owner) {
            attached.disconnected = ClientsView::at(id, &report);
            reports.insert(owner, Ok(report));
        }
        let mut initiators = paths::paths(&catalog, &reports, id).initiators;
        initiators.retain(|of| of.paths.iter().all(|path| path.node != attached.node));
        attached.without_path = initiators;
        Ok(attached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::manage::{PathState, PathView};

    #[test]
    fn an_attach_says_whom_it_disconnects_and_who_has_no_session_there() {
        let path =
            |node: &str| PathView { node: node.into(), portal: None, state: PathState::Active, sessions: 1 };
        let mut attached = Use {
            volume: "v".into(),
            node: "node-2".into(),
            ways: BTreeMap::new(),
            requires_tls: false,
            waits: false,
            lets_initiators_in: false,
            disconnected: ClientsView::default(),
            without_path: Vec::new(),
        };
        assert_eq!(attached.notes(), [""; 0]);
        attached.disconnected = ClientsView { initiators: vec!["iqn.a".into()], others: 0 };
        let of = |name: &str, nodes: &[&str]| InitiatorPaths {
            initiator: name.into(),
            paths: nodes.iter().map(|node| path(node)).collect(),
        };
        attached.without_path = vec![of("iqn.a", &["node-1"]), of("iqn.b", &["node-1", "node-3"])];
        let notes = attached.notes();
        assert_eq!(notes[0], "disconnected: initiator iqn.a");
        let words = "without a session at node-2: iqn.a (at node-1), iqn.b (at node-1, node-3). If";
        assert!(notes[1].starts_with(words) && notes[1].ends_with("uses the volume at node-2"), "{notes:?}");
    }
}
