//! Initiators that do not reach the owner of their volume, and have sessions with other nodes, which stand by.
//!
//! Linux and others send no command by a path on standby, so only sessions that begin and end show that an initiator has lost its path
//! to an owner which runs, or never had one.
//!
//! - **U2. If an initiator has had no session with the owner of a volume for a while, the volume moves to a node where that initiator, and
//!   each client of the owner, has a session; an initiator that has lost its session with the owner a moment ago is such a client.** Any node may order it, by the volume's entry; the node that gets the volume takes it over
//!   as by an attach. So no client loses the volume for another one, and two initiators that share no node do not take it from each other.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use loadline_san_export::scsi::unit::Unserved;
use tokio::time::Instant;

use super::Node;
use super::leaving::kept_by;
use super::manage::local::{InitiatorAt, LocalView};
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, Volume, VolumeState, change};

/// How long an initiator may take to come back that has lost its session.
const COMES_BACK: Duration = Duration::from_secs(2);
/// How long an initiator may take to log in at the owner after it has logged in elsewhere.
const LOGS_IN: Duration = Duration::from_secs(6);
/// How long after an attempt that has changed nothing the next one follows.
const AGAIN: Duration = Duration::from_secs(6);
/// How often loops report all initiators that stand by: what was reported before may have been lost.
pub(super) const SWEEP: Duration = Duration::from_secs(30);

/// Initiators that are looked at, at most. Any program on a node's machine may take a new name for each login.
const MOST: usize = 1024;

/// An initiator of a volume.
type Key = (u64, String);

/// Initiators that may not reach their volumes, and when that is looked at.
#[derive(Debug, Default)]
pub(super) struct UnservedInitiators(Mutex<Due>);

#[derive(Debug, Default)]
struct Due {
    at: BTreeMap<Key, Instant>,
    /// A task looks at them.
    is_watched: bool,
}

impl UnservedInitiators {
    fn due(&self) -> MutexGuard<'_, Due> {
        self.0.lock().expect("no holder panics")
    }

    /// These are looked at then, or earlier if that was to be. Whether no task does it yet: then [`watch`](Self::watch) is to be called.
    #[must_use]
    fn add(&self, some: impl Iterator<Item = (Key, Instant)>) -> bool {
        let mut due = self.due();
        for (of, at) in some {
            if due.at.len() < MOST || due.at.contains_key(&of) {
                let due = due.at.entry(of).or_insert(at);
                *due = at.min(*due);
            }
        }
        !std::mem::replace(&mut due.is_watched, true)
    }

    /// Looks at each when it is time, until there is none. `look` returns those that are to be looked at again.
    async fn watch<F: Future<Output = Vec<Key>>>(&self, look: impl Fn(Vec<Key>) -> F) {
        loop {
            let next = {
                let mut due = self.due();
                let next = due.at.values().min().copied();
                due.is_watched = next.is_some();
                next
            };
            let Some(next) = next else { return };
            // A shorter wait may begin meanwhile.
            tokio::time::sleep_until(next.min(Instant::now() + COMES_BACK)).await;
            let now = Instant::now();
            // What is reported from now on is looked at once more.
            let due: BTreeMap<Key, Instant> = {
                let mut all = self.due();
                let (due, rest) = std::mem::take(&mut all.at).into_iter().partition(|(_, at)| *at <= now);
                all.at = rest;
                due
            };
            if !due.is_empty() {
                let again = look(due.into_keys().collect()).await;
                let again = again.into_iter().map(|of| (of, Instant::now() + AGAIN));
                let _ = self.add(again);
            }
        }
    }
}

/// What becomes of an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It reaches the owner, or has gone.
    Over,
    /// Nothing can be done for it now.
    Waits,
    /// The volume is to be moved to this node.
    Moves(u32),
}

impl Node {
    /// These initiators may not reach a volume by any path.
    pub(super) fn unserved(&self, id: u64, some: Vec<Unserved>) {
        let now = Instant::now();
        let some = some.into_iter().map(|Unserved { initiator, is_lost }| {
            let after = if is_lost { COMES_BACK } else { LOGS_IN };
            ((id, initiator), now + after)
        });
        if self.0.unserved.add(some) {
            let this = self.clone();
            tokio::spawn(async move { this.0.unserved.watch(|due| this.look_at_unserved(due)).await });
        }
    }

    /// Moves volumes to where these reach them. Returns those that are to be looked at again.
    async fn look_at_unserved(&self, due: Vec<Key>) -> Vec<Key> {
        let reports = self.reports().await;
        // What belongs to threads that are silent is missing.
        let whole = |local: &LocalView| local.silent_loops == 0;
        let at: BTreeMap<u32, &LocalView> = {
            let answered = reports.iter().filter_map(|(node, local)| Some((*node, local.as_ref().ok()?)));
            answered.filter(|(_, local)| whole(local)).collect()
        };
        let is_read = self.refresh().await.is_ok();
        let mut again = Vec::new();
        for (id, initiator) in due {
            let catalog = self.state().catalog.clone();
            let outcome = match is_read {
                true => outcome(&catalog, id, &initiator, &at),
                false => Outcome::Waits,
            };
            if let Outcome::Moves(node) = outcome {
                self.move_volume_to(&catalog, id, node, &initiator).await;
            }
            if outcome != Outcome::Over {
                again.push((id, initiator));
            }
        }
        again
    }

    /// Whether each client of a volume at its owner has a session with this node, too: an initiator may move the volume here. If the owner
    /// does not answer, it has no clients that could say so.
    pub(super) async fn all_clients_follow(&self, id: u64) -> bool {
        if kept_by(&self.state().catalog, id).is_some() {
            return false;
        }
        let Some(owner) = self.record(id).map(|record| record.owner.node.0) else { return true };
        let Some(Ok(there)) = self.report_of(owner).await else { return true };
        let here = self.local().await;
        // What belongs to threads that are silent is missing.
        there.silent_loops == 0 && here.silent_loops == 0 && all_follow(id, &there, &here)
    }

    /// Orders a node to take a volume over, unless the volume's entry was changed after this catalog was read.
    async fn move_volume_to(&self, catalog: &Catalog, id: u64, node: u32, initiator: &str) {
        let (Some((volume, version)), Some(record)) = (catalog.volumes.get(&id), catalog.record(id)) else {
            return;
        };
        let next = Volume { handed_at: Some(record.fence), ..volume.attached_at(Some(node)) };
        let order = change(format!("volume/{id}"), Some(*version), &next);
        let ordered = self.config().call(move |store| store.commit(&[order])).await;
        let (volume, node) = (&volume.name, &catalog.nodes[&node].0.name);
        match ordered {
            Ok(true) => tracing::info!(
                volume,
                "initiator {initiator} has no session with the owner of volume {volume}, and has one with node {node}: the volume moves there"
            ),
            // Another node was first.
            Ok(false) => {}
            Err(why) => {
                let why: ConfigError = why;
                tracing::warn!(
                    volume,
                    "initiator {initiator} has no session with the owner of volume {volume}, and the volume does not move to node {node}, \
                     where the initiator has one: {why}"
                );
            }
        }
    }
}

/// What is to be done for an initiator of a volume, by what the nodes report that answer (rule U2).
fn outcome(catalog: &Catalog, id: u64, initiator: &str, at: &BTreeMap<u32, &LocalView>) -> Outcome {
    let (Some((volume, _)), Some(record)) = (catalog.volumes.get(&id), catalog.record(id)) else {
        return Outcome::Over;
    };
    let owner = record.owner.node.0;
    let has = |node: u32, is_so: &dyn Fn(&InitiatorAt) -> bool| {
        let is_its = |of: &InitiatorAt| of.volume == id && of.name == initiator && is_so(of);
        at.get(&node).is_some_and(|of| of.initiators.iter().any(is_its))
    };
    let is_served = has(owner, &|of| of.is_active);
    if volume.attached.is_none() || volume.state != VolumeState::Ready || is_served {
        return Outcome::Over;
    }
    if has(owner, &|_| true) {
        // The owner may be taking over, and the path to it may break before it is let in.
        return Outcome::Waits;
    }
    if kept_by(catalog, id).is_some() {
        // Clients that share memory with the owner are to connect to its next process.
        return Outcome::Waits;
    }
    let stands_by: Vec<u32> =
        at.keys().copied().filter(|node| *node != owner && has(*node, &|_| true)).collect();
    if stands_by.is_empty() {
        // It may have a session with a node that has not reported.
        let all_report = catalog.nodes.iter().all(|(id, (of, _))| of.stopping || at.contains_key(id));
        return if all_report { Outcome::Over } else { Outcome::Waits };
    }
    // One that does not report may have other clients. If it has died, others take the volume over anyway.
    let Some(there) = at.get(&owner) else { return Outcome::Waits };
    let may = |node: &u32| {
        let runs = catalog.nodes.get(node).is_some_and(|(of, _)| !of.stopping);
        runs && !catalog.in_maintenance(*node) && all_follow(id, there, at[node])
    };
    let parts = |node: u32| record.members().filter(|(_, home)| home.0 == node).count();
    let best = stands_by.into_iter().filter(may).min_by_key(|node| (std::cmp::Reverse(parts(*node)), *node));
    best.map_or(Outcome::Waits, Outcome::Moves)
}

/// Whether each client of a volume at its owner has a session with another node, too. Clients of other protocols have none.
fn all_follow(id: u64, owner: &LocalView, other: &LocalView) -> bool {
    let sessions = owner.initiators.iter().filter(|of| of.volume == id);
    if owner.volume(id).map_or(0, |volume| volume.clients)
        > sessions.clone().filter(|of| of.is_active).count()
    {
        return false;
    }
    let lost = owner.lost_initiators.iter().filter(|of| of.volume == id).map(|of| &of.name);
    let mut names = sessions.map(|of| &of.name).chain(lost);
    names.all(|name| other.initiators.iter().any(|of| of.volume == id && of.name == *name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::leaving::tests::{VOLUME, catalog};
    use crate::node::manage::health::tests::cluster;
    use crate::node::manage::local::LostInitiator;

    /// What a node reports that has these sessions, with how many clients of the volume.
    fn node(sessions: &[(&str, bool)], clients: usize) -> LocalView {
        let at = |(name, is_active): &(&str, bool)| InitiatorAt {
            volume: VOLUME,
            name: (*name).into(),
            is_active: *is_active,
        };
        let mut view = cluster().reports.remove(&1).unwrap().unwrap();
        view.initiators = sessions.iter().map(at).collect();
        view.volumes[0].clients = clients;
        view
    }

    /// The same, of a node with which an initiator had a session a moment ago.
    fn lost(name: &str, of: LocalView) -> LocalView {
        LocalView { lost_initiators: vec![LostInitiator { volume: VOLUME, name: name.into() }], ..of }
    }

    fn becomes(catalog: &Catalog, nodes: &[(u32, LocalView)]) -> Outcome {
        let at = nodes.iter().map(|(node, view)| (*node, view)).collect();
        outcome(catalog, VOLUME, "a", &at)
    }

    #[test]
    fn a_volume_moves_to_where_an_initiator_has_a_session_and_not_if_it_reaches_the_owner() {
        let catalog = catalog(&[1, 2, 3]);
        let none = node(&[], 0);
        let stands_by = node(&[("a", false)], 0);
        let by = |owner: &LocalView, two: &LocalView, three: &LocalView| {
            becomes(&catalog, &[(1, owner.clone()), (2, two.clone()), (3, three.clone())])
        };
        assert_eq!(by(&none, &none, &stands_by), Outcome::Moves(3));
        assert_eq!(by(&none, &stands_by, &stands_by), Outcome::Moves(2));
        assert_eq!(by(&none, &none, &none), Outcome::Over, "it has gone");
        assert_eq!(by(&node(&[("a", true)], 1), &stands_by, &stands_by), Outcome::Over);
        assert_eq!(by(&stands_by, &stands_by, &stands_by), Outcome::Waits, "the owner is just taking over");
        assert_eq!(becomes(&catalog, &[(3, stands_by)]), Outcome::Waits, "the owner does not report");
        let two = [(1, none.clone()), (2, none.clone())];
        assert_eq!(becomes(&catalog, &two), Outcome::Waits, "it may have a session with node 3");
    }

    #[test]
    fn no_client_of_the_owner_loses_the_volume_for_another_one() {
        let catalog = catalog(&[1, 2, 3]);
        let (a, both) = (node(&[("a", false)], 0), node(&[("a", false), ("b", false)], 0));
        let of_b = |clients| node(&[("b", true)], clients);
        assert_eq!(becomes(&catalog, &[(1, of_b(1)), (2, a.clone()), (3, both.clone())]), Outcome::Moves(3));
        assert_eq!(becomes(&catalog, &[(1, of_b(1)), (2, a.clone()), (3, a)]), Outcome::Waits);
        let comes = node(&[("b", false)], 0);
        assert_eq!(
            becomes(&catalog, &[(1, comes), (3, node(&[("a", false)], 0))]),
            Outcome::Waits,
            "b is to be let in"
        );
        assert_eq!(
            becomes(&catalog, &[(1, of_b(2)), (3, both.clone())]),
            Outcome::Waits,
            "one of another protocol"
        );
        // One that has lost its session may come back at once.
        let (a, none) = (node(&[("a", false)], 0), node(&[], 0));
        assert_eq!(becomes(&catalog, &[(1, lost("b", none.clone())), (2, a.clone())]), Outcome::Waits);
        let nodes = [(1, lost("b", none.clone())), (2, a.clone()), (3, both)];
        assert_eq!(becomes(&catalog, &nodes), Outcome::Moves(3));
        assert_eq!(becomes(&catalog, &[(1, lost("a", none)), (2, a)]), Outcome::Moves(2), "it is this one");
    }

    #[test]
    fn a_volume_stays_that_the_next_process_of_its_owner_is_to_have() {
        let mut catalog = catalog(&[1, 2, 3]);
        let nodes = [(1, node(&[], 0)), (3, node(&[("a", false)], 0))];
        let (owner, _) = catalog.nodes.get_mut(&1).unwrap();
        (owner.stopping, owner.keeps) = (true, [VOLUME].into());
        assert_eq!(becomes(&catalog, &nodes), Outcome::Waits);
        catalog.nodes.get_mut(&1).unwrap().0.keeps.clear();
        assert_eq!(becomes(&catalog, &nodes), Outcome::Moves(3));
    }

    #[test]
    fn a_volume_moves_from_where_it_is_whatever_was_ordered_before_and_not_to_a_node_in_maintenance() {
        let mut catalog = catalog(&[1, 2, 3]);
        let nodes = [(1, node(&[], 0)), (3, node(&[("a", false)], 0))];
        // Node 1 has taken it over from node 2, where it was attached.
        catalog.volumes.get_mut(&VOLUME).unwrap().0.attached = Some(2);
        assert_eq!(becomes(&catalog, &nodes), Outcome::Moves(3));
        catalog.nodes.get_mut(&3).unwrap().0.maintenance = true;
        assert_eq!(becomes(&catalog, &nodes), Outcome::Waits);
        catalog.volumes.get_mut(&VOLUME).unwrap().0.attached = None;
        assert_eq!(becomes(&catalog, &nodes), Outcome::Over);
    }

    #[test]
    fn an_initiator_that_is_reported_while_it_is_looked_at_is_looked_at_once_more() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let unserved = UnservedInitiators::default();
            let of = |name: &str| (VOLUME, name.to_owned());
            let report = |name: &str| unserved.add([(of(name), Instant::now())].into_iter());
            assert!(report("a"));
            let looks = Mutex::new(Vec::new());
            let look = |due: Vec<Key>| {
                let mut looks = looks.lock().unwrap();
                looks.push(due.clone());
                if looks.len() > 1 {
                    return std::future::ready(Vec::new());
                }
                assert!(!report("a") && !report("b"), "they are watched already");
                // What is to be looked at again later is looked at now if it was reported since.
                std::future::ready(due)
            };
            tokio::time::timeout(2 * AGAIN, unserved.watch(look)).await.expect("there is none in the end");
            assert_eq!(looks.into_inner().unwrap(), [vec![of("a")], vec![of("a"), of("b")]]);
            assert!(report("a"), "it is watched no more");
        });
    }
}
