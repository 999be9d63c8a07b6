//! Messages from the connections to the controller.

use std::net::SocketAddr;

use tokio::sync::{mpsc, oneshot};

use crate::event::LossReason;
use crate::identity::WorkerId;
use crate::wire::{Hello, Reply, ToWorker};

/// Which connection, counted from the controller's start.
pub(crate) type ConnectionNumber = u64;

/// A message from a connection to the controller.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// A worker that has the token and speaks the protocol asks to join.
    JoinRequest {
        connection: ConnectionNumber,
        hello: Hello,
        outgoing: mpsc::Sender<ToWorker>,
        answer: oneshot::Sender<Result<WorkerId, Refusal>>,
    },
    /// A connection was refused, the `count`th so far. Not every refusal is reported ([`UnauthenticatedConnections::refuse`]).
    Rejected { from: SocketAddr, why: String, count: u64 },
    /// A worker replied to an order.
    Reply { connection: ConnectionNumber, task: u64, reply: Reply },
    /// A connection is over.
    Gone { connection: ConnectionNumber, reason: LossReason, why: String },
}

/// Why a worker is not let in.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    pub(crate) retry: bool,
}
