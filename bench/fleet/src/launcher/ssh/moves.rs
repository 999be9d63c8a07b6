//! Machines that are migrated between hosts. The keeper of a machine stays on the host where the machine was started.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use loadline_guest::Migrated;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::SshLauncher;
use super::host::{Host, HostRequest};
use super::messages::AgentOrder;
use crate::elsewhere::Receiver;
use crate::error::FleetError;
use crate::identity::WorkerId;
use crate::orders::{Answered, KeeperAnswer, Migration, NotMigrated};
use crate::token::random_token;

/// How long the other host may take until it receives the machine.
const RECEIVE_LIMIT: Duration = Duration::from_secs(20);
/// How long a machine may take to be ended that has lost its keeper: longer than it lives without one.
const END_LIMIT: Duration = Duration::from_secs(8);

/// The nodes on whose hosts machines run that are not on the hosts of their keepers.
#[derive(Debug, Clone, Default)]
pub(super) struct Away(Arc<Mutex<BTreeMap<WorkerId, String>>>);

impl Away {
    pub(super) fn all(&self) -> BTreeMap<WorkerId, String> {
        self.with(|all| all.clone())
    }

    pub(super) fn forget(&self, worker: &WorkerId) -> Option<String> {
        self.with(|all| all.remove(worker))
    }

    fn with<R>(&self, work: impl FnOnce(&mut BTreeMap<WorkerId, String>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SshLauncher {
    /// Has the machine of a worker migrated, in a task.
    pub(super) fn move_machine(&self, id: &WorkerId, migration: Migration) -> Result<Answered, FleetError> {
        let no_host = || FleetError::failed(format!("worker {id}: the fleet has no host for it"));
        let home = self.workers.get(id).ok_or_else(no_host)?.clone();
        let keeper = self.hosts.get(&home).ok_or_else(no_host)?.requests.clone();
        let receives = match migration.node == home {
            true => None,
            false => {
                let key = random_token()?;
                let host = self.hosts.get(&migration.node).ok_or_else(|| {
                    FleetError::failed(format!(
                        "worker {id}: the fleet has no host of a node {}",
                        migration.node
                    ))
                })?;
                let order = AgentOrder::Receive { worker: id.clone(), key: key.clone() };
                Some((host.order(order), key))
            }
        };
        let (done, answered) = oneshot::channel();
        let (id, away) = (id.clone(), self.away.clone());
        tokio::spawn(async move {
            let node = migration.node.clone();
            let result = moved(&keeper, &id, migration, receives).await;
            if result.is_ok() {
                away.with(|all| if node == home { all.remove(&id) } else { all.insert(id, node) });
            }
            // Whoever ordered it may not wait any more.
            let _ = done.send(result);
        });
        Ok(answered)
    }

    /// Ends the machine of a worker on the host to which it was migrated, and waits for that. Its keeper has ended.
    pub(super) async fn end_away(&mut self, id: &WorkerId) {
        let host = self.away.forget(id).and_then(|node| self.hosts.get(&node));
        let Some(host) = host.filter(|host: &&Host| host.is_connected()) else { return };
        let (done, ended) = oneshot::channel();
        if host.ask(HostRequest::End([id.clone()].into(), done)) {
            let _ = timeout(END_LIMIT, ended).await;
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
    let (answer, answered) = oneshot::channel();
    let order = AgentOrder::Migrate { worker: id.clone(), node, disks, to };
    if keeper.send(HostRequest::Order(order, answer)).await.is_err() {
        return Err(lost("its keeper"));
    }
    // Whoever ordered it has a limit for it.
    answered.await.map_err(|_| lost("its keeper"))?.result()
}
