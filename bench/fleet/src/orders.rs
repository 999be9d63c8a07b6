//! What a launcher orders of the keeper of a virtual machine, and what the keeper answers: one line of JSON for each, on the keeper's standard
//! input and output.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use loadline_guest::{GuestError, MachineOrder, Migrated};
use loadline_load::Target;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::oneshot;

use crate::elsewhere::Receiver;
use crate::error::FleetError;

/// Where a machine is migrated to, and which of its disks are others there.
#[derive(Debug, Clone, PartialEq)]
pub struct Migration {
    /// The node of the fleet on which it runs from then on.
    pub node: String,
    /// Disks of the worker, each with what it is reached by there.
    pub disks: Vec<(Target, Target)>,
}

/// Why a machine was not migrated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotMigrated {
    /// In words.
    pub why: String,
    /// Whether it should succeed if it is ordered again. Disks at the destination must be made ready again first.
    pub again: bool,
}

impl From<String> for NotMigrated {
    fn from(why: String) -> NotMigrated {
        NotMigrated { why, again: false }
    }
}

impl From<GuestError> for NotMigrated {
    fn from(error: GuestError) -> NotMigrated {
        NotMigrated { why: error.message, again: error.kind == loadline_guest::ErrorKind::Again }
    }
}

/// An order to a keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum KeeperOrder {
    /// Something is done to the machine. If it fails, the keeper says so in its log.
    Machine(MachineOrder),
    /// The machine is migrated: one answer.
    Migrate {
        /// As in [`Migration`].
        disks: Vec<(Target, Target)>,
        /// The CPUs on which it runs from then on, as a node has them; `None`: any.
        cpus: Option<String>,
        /// The control groups that the keeper and the machine belong to from then on.
        cgroups: Vec<PathBuf>,
        /// The receiver of another host to which the machine goes, under the limits of its node there; `None`: it goes to this host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<Receiver>,
    },
}

/// What a process of ours answers that keeps a machine, or waits for one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum KeeperAnswer {
    Migrated {
        downtime_ns: u64,
        took_ns: u64,
    },
    /// It is not done, in words.
    Failed(String),
    /// The same; it should succeed if it is ordered again.
    Again(String),
    /// It is done.
    Done,
    /// A receiver waits for a machine at this address.
    Receives(SocketAddr),
}

impl KeeperAnswer {
    pub(crate) fn of(result: Result<Migrated, NotMigrated>) -> KeeperAnswer {
        let nanoseconds = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        match result {
            Ok(Migrated { downtime, took }) => {
                KeeperAnswer::Migrated { downtime_ns: nanoseconds(downtime), took_ns: nanoseconds(took) }
            }
            Err(NotMigrated { why, again: false }) => KeeperAnswer::Failed(why),
            Err(NotMigrated { why, again: true }) => KeeperAnswer::Again(why),
        }
    }

    /// What a migration was, or why it was not.
    pub(crate) fn result(self) -> Result<Migrated, NotMigrated> {
        match self {
            KeeperAnswer::Migrated { downtime_ns, took_ns } => Ok(Migrated {
                downtime: Duration::from_nanos(downtime_ns),
                took: Duration::from_nanos(took_ns),
            }),
            KeeperAnswer::Failed(why) => Err(why.into()),
            KeeperAnswer::Again(why) => Err(NotMigrated { why, again: true }),
            other => Err(format!("its keeper answers {other:?}").into()),
        }
    }
}

/// Gets the answer to one order. An error if the keeper ends before.
pub(crate) type Answered = oneshot::Receiver<Result<Migrated, NotMigrated>>;
/// Those who wait for an answer, in the order of their orders: each with the node to which the machine goes.
#[derive(Debug, Default)]
struct Waiting {
    orders: VecDeque<(String, oneshot::Sender<Result<Migrated, NotMigrated>>)>,
    /// The node to which the machine was migrated last.
    node: Option<String>,
    /// Who waits for the address of a receiver.
    receives: Option<oneshot::Sender<SocketAddr>>,
}

/// The answers that are awaited of one keeper, in the order of its orders.
#[derive(Debug, Clone, Default)]
pub(crate) struct Awaited(Arc<Mutex<Waiting>>);

impl Awaited {
    /// Hears what a keeper says, in a task that ends with it.
    pub(crate) fn of(output: Option<ChildStdout>) -> Awaited {
        let awaited = Awaited::default();
        if let Some(output) = output {
            tokio::spawn(awaited.clone().hear(output));
        }
        awaited
    }

    /// The answer to one more order is awaited, to migrate the machine to a node.
    pub(crate) fn one(&self, node: &str) -> Answered {
        let (answer, answered) = oneshot::channel();
        self.all(|all| all.orders.push_back((node.into(), answer)));
        answered
    }

    /// The address is awaited at which the process receives a machine.
    pub(crate) fn address(&self) -> oneshot::Receiver<SocketAddr> {
        let (answer, answered) = oneshot::channel();
        self.all(|all| all.receives = Some(answer));
        answered
    }

    /// The node to which the machine was migrated last; `None` if it was not.
    pub(crate) fn node(&self) -> Option<String> {
        self.all(|all| all.node.clone())
    }

    async fn hear(self, output: ChildStdout) {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let answer: Result<KeeperAnswer, _> = serde_json::from_str(&line);
            if let Ok(KeeperAnswer::Receives(address)) = answer {
                // Whoever asked may not wait any more.
                let waits = self.all(|all| all.receives.take());
                let _ = waits.map(|waits| waits.send(address));
                continue;
            }
            let result = answer.map_err(|e| NotMigrated::from(format!("its keeper answers nonsense: {e}")));
            let result = result.and_then(KeeperAnswer::result);
            if let Some((node, waits)) = self.all(|all| all.orders.pop_front()) {
                if result.is_ok() {
                    self.all(|all| all.node = Some(node));
                }
                // Whoever asked may not wait any more.
                let _ = waits.send(result);
            }
        }
        // The keeper has ended. Each receiver gets an error.
        self.all(|all| (all.orders.clear(), all.receives = None));
    }

    fn all<R>(&self, work: impl FnOnce(&mut Waiting) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An order as the keeper reads it.
pub(crate) fn line_of(order: &KeeperOrder) -> String {
    format!("{}\n", serde_json::to_string(order).expect("an order is JSON"))
}

/// The order in a line.
pub(crate) fn order_of(line: &str) -> Result<KeeperOrder, FleetError> {
    serde_json::from_str(line).map_err(|e| FleetError::failed(format!("an order that is unknown: {e}")))
}
