//! How initiators of iSCSI reach a volume: their paths, at most one a node, and the volume's persistent reservations. Only functions of the
//! configuration and of what the nodes report: what is not known is named as such.

use std::collections::BTreeMap;

use loadline_san_export::front_ends::Protocol;
use loadline_san_export::iscsi::name::name_of;
use loadline_san_export::scsi::reservations::{Kind, Reservation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::local::{LocalView, Reports};
use crate::config::catalog::Catalog;
use crate::node::units::group_of;

/// Initiators that a note names.
const MOST_LISTED: usize = 3;

/// How initiators of iSCSI reach a volume at this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathsView {
    /// The name of its target. The disk is LUN 0.
    pub target: String,
    /// Initiators that have sessions, by name.
    pub initiators: Vec<InitiatorPaths>,
    /// Nodes whose sessions are not known: initiators may have paths there that are not listed.
    pub unknown: Vec<UnknownPaths>,
}

/// The paths of an initiator to a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InitiatorPaths {
    /// The name of the initiator.
    pub initiator: String,
    /// Its paths: one for each node at which it has sessions.
    pub paths: Vec<PathView>,
}

/// The sessions of an initiator with a volume at one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathView {
    /// The node.
    pub node: String,
    /// The address and the port of the node for iSCSI.
    pub portal: Option<String>,
    /// Whether the initiator reaches the volume by it.
    pub state: PathState,
    /// How many sessions there are.
    pub sessions: usize,
}

/// Whether an initiator reaches a volume by a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathState {
    /// It does: the node owns the volume.
    Active,
    /// It does not: the node answers, and carries nothing out.
    StandsBy,
}

/// A node whose sessions are not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnknownPaths {
    /// The node.
    pub node: String,
    /// Why they are not known.
    pub why: String,
}

/// The persistent reservations of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservationsView {
    /// The registrations, in the order in which they were made.
    pub registrations: Vec<RegistrationView>,
    /// The reservation, if there is one.
    pub reservation: Option<ReservationView>,
    /// How many changes of registrations there were (PRGENERATION).
    pub generation: u32,
}

/// A registration: one of an initiator's session with a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistrationView {
    /// The name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session's identifier (ISID): 12 hexadecimal digits.
    pub isid: String,
    /// The node; `null` if it is in the cluster no more.
    pub node: Option<String>,
    /// The key: `0x` and 16 hexadecimal digits.
    pub key: String,
    /// Whether the reservation is held by this registration.
    pub holds: bool,
}

/// A persistent reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReservationView {
    /// Its type in words.
    pub kind: String,
    /// What it restricts, in words.
    pub restricts: String,
    /// The name of the initiator that holds it; `null` if each registration does.
    pub holder: Option<String>,
}

/// The type of a reservation, and what it restricts.
fn words(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::WriteExclusive => ("write exclusive", "only the holder writes"),
        Kind::ExclusiveAccess => ("exclusive access", "only the holder reads and writes"),
        Kind::WriteExclusiveRegistrantsOnly => {
            ("write exclusive, registrants only", "only registered sessions write")
        }
        Kind::ExclusiveAccessRegistrantsOnly => {
            ("exclusive access, registrants only", "only registered sessions read and write")
        }
        Kind::WriteExclusiveAllRegistrants => (
            "write exclusive, all registrants",
            "only registered sessions write, and each of them is a holder",
        ),
        Kind::ExclusiveAccessAllRegistrants => (
            "exclusive access, all registrants",
            "only registered sessions read and write, and each of them is a holder",
        ),
    }
}

/// Why the sessions with a volume at a node are not known, if they are not.
fn unknown(reports: &Reports, node: u32, id: u64) -> Option<String> {
    match reports.get(&node) {
        None => Some("it was not asked".into()),
        Some(Err(silent)) => Some(format!("it {}", silent.why())),
        Some(Ok(view)) if view.volume(id).is_none() && view.silent_loops > 0 => {
            Some("a thread of its data path does not answer in time".into())
        }
        Some(Ok(_)) => None,
    }
}

/// The paths of all initiators to a volume.
pub(super) fn paths(catalog: &Catalog, reports: &Reports, id: u64) -> PathsView {
    let mut of: BTreeMap<&str, Vec<PathView>> = BTreeMap::new();
    let target = catalog.volumes.get(&id).map(|(volume, _)| name_of(&volume.name)).unwrap_or_default();
    let mut view = PathsView { target, ..PathsView::default() };
    for (node_id, (node, _)) in &catalog.nodes {
        if let Some(why) = unknown(reports, *node_id, id) {
            view.unknown.push(UnknownPaths { node: node.name.clone(), why });
        }
        let Some(Ok(LocalView { initiators, .. })) = reports.get(node_id) else { continue };
        let portal = node.endpoint(Protocol::Iscsi).map(|at| at.to_string());
        for session in initiators.iter().filter(|session| session.volume == id) {
            let paths = of.entry(&session.name).or_default();
            if paths.last().is_none_or(|path| path.node != node.name) {
                let (node, portal) = (node.name.clone(), portal.clone());
                paths.push(PathView { node, portal, state: PathState::StandsBy, sessions: 0 });
            }
            let path = paths.last_mut().expect("it was added if it was missing");
            path.sessions += 1;
            if session.is_active {
                path.state = PathState::Active;
            }
        }
    }
    let all = of.into_iter().map(|(name, paths)| InitiatorPaths { initiator: name.into(), paths });
    view.initiators = all.collect();
    view
}

impl PathsView {
    /// All sessions that are known.
    pub fn sessions(&self) -> usize {
        self.initiators.iter().flat_map(|of| &of.paths).map(|path| path.sessions).sum()
    }

    /// What people should know, in a cluster of so many nodes: initiators that have one path.
    pub(super) fn note(&self, nodes: usize) -> Option<String> {
        let single = self.initiators.iter().filter(|of| of.paths.len() == 1 && nodes > 1);
        let single: Vec<String> =
            single.map(|of| format!("{}, at {}", of.initiator, of.paths[0].node)).collect();
        let known = if self.unknown.is_empty() { "" } else { ", as far as is known" };
        match single.as_slice() {
            [] => None,
            [initiator] => Some(format!(
                "one initiator has only one path{known} ({initiator}): it loses the volume when that node stops"
            )),
            all => Some(format!(
                "{} initiators have only one path each{known} ({}): each loses the volume when its node stops",
                all.len(),
                first(all)
            )),
        }
    }
}

/// The first of these, and how many more there are.
fn first(all: &[String]) -> String {
    let named = all[..all.len().min(MOST_LISTED)].join("; ");
    match all.len().saturating_sub(MOST_LISTED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

/// The persistent reservations of a volume, as the configuration has them.
pub(super) fn reservations(catalog: &Catalog, id: u64) -> ReservationsView {
    let Some((all, _)) = catalog.reservations.get(&id) else { return ReservationsView::default() };
    let node = |group: u16| {
        let found = catalog.nodes.iter().find(|(id, _)| group_of(**id) == group);
        found.map(|(_, (node, _))| node.name.clone())
    };
    let registrations = all.registrations.iter().map(|of| RegistrationView {
        initiator: of.nexus.initiator.clone(),
        isid: of.nexus.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
        node: node(of.nexus.group),
        key: format!("{:#018x}", of.key),
        holds: all.is_held_by(&of.nexus),
    });
    let reservation = all.reservation.as_ref().map(|Reservation { kind, holder }| {
        let (kind, restricts) = words(*kind);
        ReservationView {
            kind: kind.into(),
            restricts: restricts.into(),
            holder: holder.as_ref().map(|nexus| nexus.initiator.clone()),
        }
    });
    ReservationsView { registrations: registrations.collect(), reservation, generation: all.generation }
}

#[cfg(test)]
mod tests {
    use loadline_san_export::scsi::reservations::{Registration, Reservations};
    use loadline_san_export::scsi::unit::NexusName;

    use super::*;
    use crate::node::manage::health::tests::{Cluster, cluster};
    use crate::node::manage::local::{InitiatorAt, Silent};

    const VOLUME: u64 = 10;

    /// Three nodes with these sessions: the node, the initiator, and whether it reaches the volume.
    fn with(sessions: &[(u32, &str, bool)]) -> Cluster {
        let mut cluster = cluster();
        for (node, name, is_active) in sessions {
            let at = InitiatorAt { volume: VOLUME, name: (*name).into(), is_active: *is_active };
            cluster.node(*node).initiators.push(at);
        }
        cluster
    }

    fn seen(cluster: &Cluster) -> PathsView {
        paths(&cluster.catalog, &cluster.reports, VOLUME)
    }

    #[test]
    fn each_node_at_which_an_initiator_has_sessions_is_a_path_of_it() {
        let mut cluster = with(&[
            (1, "iqn.a", true),
            (1, "iqn.a", true),
            (2, "iqn.a", false),
            (3, "iqn.b", false),
            (1, "iqn.b", true),
        ]);
        cluster.node(3).initiators.push(InitiatorAt { volume: 11, name: "iqn.c".into(), is_active: true });
        let (node, _) = cluster.catalog.nodes.get_mut(&1).unwrap();
        node.endpoints.insert("iscsi".into(), "192.0.2.1:3260".parse().unwrap());
        let view = seen(&cluster);
        let path = |of: usize, path: usize| {
            let PathView { node, portal, state, sessions } = &view.initiators[of].paths[path];
            (node.as_str(), portal.as_deref(), *state, *sessions)
        };
        let names: Vec<&str> = view.initiators.iter().map(|of| of.initiator.as_str()).collect();
        assert_eq!(names, ["iqn.a", "iqn.b"], "iqn.c has sessions with another volume");
        assert_eq!(path(0, 0), ("node-1", Some("192.0.2.1:3260"), PathState::Active, 2));
        assert_eq!(path(0, 1), ("node-2", None, PathState::StandsBy, 1));
        assert_eq!(path(1, 0), ("node-1", Some("192.0.2.1:3260"), PathState::Active, 1));
        assert_eq!(path(1, 1), ("node-3", None, PathState::StandsBy, 1));
        assert_eq!((view.sessions(), view.unknown.len(), view.note(3)), (5, 0, None));
    }

    #[test]
    fn an_initiator_with_one_path_is_named_in_a_cluster_of_several_nodes() {
        let view = seen(&with(&[(1, "iqn.a", true), (2, "iqn.a", false), (2, "iqn.b", false)]));
        let note = view.note(3).unwrap();
        assert!(
            note.contains("only one path (iqn.b, at node-2): it loses") && !note.contains("iqn.a"),
            "{note}"
        );
        assert_eq!(view.note(1), None);
        let names: Vec<String> = (1..=5).map(|number| format!("iqn.{number}")).collect();
        let all: Vec<(u32, &str, bool)> = names.iter().map(|name| (1, name.as_str(), true)).collect();
        let note = seen(&with(&all)).note(3).unwrap();
        assert!(note.contains("5 initiators") && note.contains("iqn.3, at node-1; and 2 more)"), "{note}");
    }

    #[test]
    fn sessions_at_a_node_that_does_not_report_are_unknown_and_not_none() {
        let mut cluster = with(&[(1, "iqn.a", true)]);
        cluster.reports.insert(2, Err(Silent::Mute("does not answer in time".into())));
        let here = cluster.node(3);
        (here.silent_loops, here.volumes) = (1, Vec::new());
        let view = seen(&cluster);
        let unknown: Vec<(&str, &str)> =
            view.unknown.iter().map(|of| (of.node.as_str(), of.why.as_str())).collect();
        assert_eq!(
            unknown,
            [
                ("node-2", "it does not answer in time"),
                ("node-3", "a thread of its data path does not answer in time")
            ]
        );
        let note = view.note(3).unwrap();
        assert!(note.contains("only one path, as far as is known (iqn.a, at node-1)"), "{note}");
        // The thread of this volume did answer.
        cluster.node(3).volumes = cluster.node(1).volumes.clone();
        assert_eq!(seen(&cluster).unknown.len(), 1);
    }

    #[test]
    fn reservations_have_their_holder_their_type_and_their_keys() {
        let mut cluster = cluster();
        assert_eq!(reservations(&cluster.catalog, VOLUME), ReservationsView::default());
        let nexus = |initiator: &str, node: u32| NexusName {
            initiator: initiator.into(),
            isid: [0x40, 0, 0, 1, 0x37, 0],
            group: group_of(node),
        };
        let mut set = |kind, holder| {
            let registration = |nexus, key| Registration { nexus, key, since: 1 };
            let of = Reservations {
                generation: 4,
                registrations: vec![
                    registration(nexus("iqn.a", 1), 0xabc),
                    registration(nexus("iqn.b", 9), u64::MAX),
                ],
                reservation: Some(Reservation { kind, holder }),
                persists: true,
                aborted_at: None,
            };
            cluster.catalog.reservations.insert(VOLUME, (of, 1));
            reservations(&cluster.catalog, VOLUME)
        };
        let view = set(Kind::WriteExclusiveRegistrantsOnly, Some(nexus("iqn.a", 1)));
        let [a, b] = view.registrations.as_slice() else { panic!("{view:?}") };
        assert_eq!(
            (a.node.as_deref(), a.key.as_str(), a.holds),
            (Some("node-1"), "0x0000000000000abc", true)
        );
        assert_eq!((b.node.as_deref(), b.key.as_str(), b.holds), (None, "0xffffffffffffffff", false));
        assert_eq!((a.isid.as_str(), view.generation), ("400000013700", 4));
        let of = view.reservation.unwrap();
        assert_eq!(
            (of.kind.as_str(), of.holder.as_deref()),
            ("write exclusive, registrants only", Some("iqn.a"))
        );
        assert_eq!(of.restricts, "only registered sessions write");
        let view = set(Kind::ExclusiveAccessAllRegistrants, None);
        assert!(view.registrations.iter().all(|of| of.holds));
        assert_eq!(view.reservation.unwrap().holder, None);
    }
}
