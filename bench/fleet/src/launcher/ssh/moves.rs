//! Machines that are migrated between hosts. The keeper of a machine stays on the host where the machine was started.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use loadline_guest::Migrated;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::SshLauncher;
use super::host::HostRequest;
use super::messages::AgentOrder;
use crate::elsewhere::Receiver;
use crate::error::FleetError;
use crate::identity::WorkerId;
use crate::orders::{Answered, KeeperAnswer, Migration, NotMigrated};
use crate::token::random_token;

/// How long the other host may take until it receives the machine.
const RECEIVE_LIMIT: Duration = Duration::from_secs(20);
/// How long the end of a machine on another host is waited for. Workers hear nothing of the controller meanwhile.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Where the machine of a worker may be, beside the host of its keeper.
#[derive(Debug, Clone, Default)]
struct Places {
    /// The node on whose host it runs; `None`: at home.
    at: Option<String>,
    /// The node to which it is being migrated.
    going: Option<String>,
    /// The nodes whose hosts were ordered to receive it.
    receives: BTreeSet<String>,
}

/// The machines that were migrated, or are being migrated.
#[derive(Debug, Clone, Default)]
pub(super) struct Away(Arc<Mutex<BTreeMap<WorkerId, Places>>>);

impl Away {
    /// The workers whose machines run on other hosts than their keepers.
    pub(super) fn workers(&self) -> Vec<WorkerId> {
        self.with(|all| {
            all.iter().filter(|(_, places)| places.at.is_some()).map(|(id, _)| id.clone()).collect()
        })
    }

    /// The worker ends: the nodes on whose hosts its machine may be, beside its keeper's.
    pub(super) fn forget(&self, worker: &WorkerId) -> BTreeSet<String> {
        self.with(|all| all.remove(worker).unwrap_or_default().receives)
    }

    /// A migration to a node begins, to another host or home. The error says why it does not.
    fn begin(&self, worker: &WorkerId, node: &str, home: &str) -> Result<(), String> {
        self.with(|all| {
            let places = all.entry(worker.clone()).or_default();
            if places.at.as_deref().unwrap_or(home) == node {
                return Err(format!("its machine is on {node} already"));
            }
            if let Some(going) = &places.going {
                return Err(format!("its machine is being migrated to {going}"));
            }
            places.going = Some(node.into());
            if node != home {
                places.receives.insert(node.into());
            }
            Ok(())
        })
    }

    /// The migration is over.
    fn done(&self, worker: &WorkerId, node: &str, home: &str, is_there: bool) {
        self.with(|all| {
            // The worker may have been ended meanwhile.
            let Some(places) = all.get_mut(worker).filter(|places| places.going.as_deref() == Some(node))
            else {
                return;
            };
            places.going = None;
            if is_there {
                places.at = (node != home).then(|| node.into());
            }
        });
    }

    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<WorkerId, Places>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SshLauncher {
    /// Has the machine of a worker migrated, in a task.
    pub(super) fn move_machine(&self, id: &WorkerId, migration: Migration) -> Result<Answered, FleetError> {
        let failed = |why: String| FleetError::failed(format!("worker {id}: {why}"));
        let no_host = |node: &str| failed(format!("the fleet has no host of a node {node}"));
        let home = self.workers.get(id).ok_or_else(|| failed("the fleet has no host for it".into()))?.clone();
        let keeper = self.hosts.get(&home).ok_or_else(|| no_host(&home))?.requests.clone();
        let other = match migration.node == home {
            true => None,
            false => Some(self.hosts.get(&migration.node).ok_or_else(|| no_host(&migration.node))?),
        };
        let key = random_token()?;
        self.away.begin(id, &migration.node, &home).map_err(failed)?;
        let receives = other.map(|host| {
            let order = AgentOrder::Receive { worker: id.clone(), key: key.clone() };
            (host.order(order), key)
        });
        let (done, answered) = oneshot::channel();
        let (id, away) = (id.clone(), self.away.clone());
        tokio::spawn(async move {
            let node = migration.node.clone();
            let result = moved(&keeper, &id, migration, receives).await;
            away.done(&id, &node, &home, result.is_ok());
            // Whoever ordered it may not wait any more.
            let _ = done.send(result);
        });
        Ok(answered)
    }

    /// Ends the machine of a worker on all hosts to which it was migrated, or was to be, and waits for that: its keeper has ended. On a host
    /// that cannot be asked it ends by itself, some seconds after its keeper.
    pub(super) async fn end_away(&mut self, id: &WorkerId) {
        let until = Instant::now() + END_LIMIT;
        for node in self.away.forget(id) {
            let (done, ended) = oneshot::channel();
            let Some(host) = self.hosts.get(&node).filter(|host| host.is_connected()) else { continue };
            if host.ask(HostRequest::End([id.clone()].into(), done)) {
                let _ = timeout_at(until, ended).await;
            }
        }
    }
}

/// Migrates a machine, by orders to its keeper, and to another host that receives it.
async fn moved(
    keeper: &mpsc::Sender<HostRequest>,
    id: &WorkerId,
    Migration { node, disks }: Migration,
    receives: Option<(oneshot::Receiver<KeeperAnswer>, String)>,
) -> Result<Migrated, NotMigrated> {
    let begun = Instant::now();
    let lost = |node: &str| NotMigrated::from(format!("the connection to the host of {node} ended"));
    let to = match receives {
        None => None,
        Some((answered, key)) => match timeout(RECEIVE_LIMIT, answered).await {
            Ok(Ok(KeeperAnswer::Receives(address))) => Some(Receiver { address, key }),
            Ok(Ok(KeeperAnswer::Failed(why))) => return Err(format!("the host of {node}: {why}").into()),
            Ok(Ok(other)) => return Err(format!("the host of {node} answers {other:?}").into()),
            Ok(Err(_)) => return Err(lost(&node)),
            Err(_) => return Err(format!("the host of {node} does not answer").into()),
        },
    };
    let prepared = begun.elapsed();
    let (answer, answered) = oneshot::channel();
    let order = AgentOrder::Migrate { worker: id.clone(), node, disks, to };
    if keeper.send(HostRequest::Order(order, answer)).await.is_err() {
        return Err(lost("its keeper"));
    }
    // Whoever ordered it has a limit for it.
    let migrated = answered.await.map_err(|_| lost("its keeper"))?.result()?;
    // The keeper's part began when the other host was ready.
    Ok(Migrated { took: prepared + migrated.took, ..migrated })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_goes_to_one_place_at_a_time_and_is_ended_wherever_it_may_be() {
        let (away, id) = (Away::default(), WorkerId("a/0".into()));
        assert!(away.begin(&id, "a", "a").unwrap_err().contains("is on a already"));
        away.begin(&id, "b", "a").unwrap();
        assert!(away.workers().is_empty(), "it is at home until it has moved");
        assert!(away.begin(&id, "c", "a").unwrap_err().contains("is being migrated to b"));
        away.done(&id, "b", "a", true);
        assert_eq!(away.workers(), std::slice::from_ref(&id));
        assert!(away.begin(&id, "b", "a").unwrap_err().contains("is on b already"));
        away.begin(&id, "c", "a").unwrap();
        away.done(&id, "c", "a", false);
        assert_eq!(away.workers(), std::slice::from_ref(&id), "it is where it was");
        away.begin(&id, "a", "a").unwrap();
        away.done(&id, "a", "a", true);
        assert!(away.workers().is_empty());
        assert_eq!(
            away.forget(&id).into_iter().collect::<Vec<_>>(),
            ["b", "c"],
            "a receiver may be left there"
        );
        away.begin(&id, "b", "a").unwrap();
        away.forget(&id);
        away.done(&id, "b", "a", true);
        assert!(away.workers().is_empty(), "a worker that was ended meanwhile is nowhere");
    }
}
