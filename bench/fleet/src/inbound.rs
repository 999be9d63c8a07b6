//! What the connections tell the controller.

use std::net::SocketAddr;

use tokio::sync::{mpsc, oneshot};

use crate::event::LossReason;
use crate::identity::WorkerId;
use crate::wire::{Hello, Reply, ToWorker};

/// Which connection, counted from the controller's start.
pub(crate) type ConnectionNumber = u64;

/// What connections tell the controller.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// Somebody who has the token and speaks the protocol wants to join.
    JoinRequest {
        connection: ConnectionNumber,
        hello: Hello,
        outgoing: mpsc::Sender<ToWorker>,
        answer: oneshot::Sender<Result<WorkerId, Refusal>>,
    },
    /// Somebody was turned away, as the `count`th. Not all of them are told ([`Strangers::turn_away`]).
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
