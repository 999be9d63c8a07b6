//! What the connections tell the controller.

use std::net::SocketAddr;

use tokio::sync::{mpsc, oneshot};

use crate::event::LossReason;
use crate::identity::WorkerId;
use crate::wire::{Hello, Reply, ToWorker};

/// Which connection, counted from the controller's start.
pub(crate) type LinkNumber = u64;

/// What connections tell the controller.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// Somebody who has the token and speaks the protocol wants to join.
    Knock {
        link: LinkNumber,
        hello: Hello,
        words: mpsc::Sender<ToWorker>,
        answer: oneshot::Sender<Result<WorkerId, Refusal>>,
    },
    /// Somebody was turned away, as the `count`th. Not all of them are told ([`Strangers::turn_away`]).
    Rejected { from: SocketAddr, why: String, count: u64 },
    /// A worker replied to an order.
    Reply { link: LinkNumber, task: u64, reply: Reply },
    /// A connection is over.
    Gone { link: LinkNumber, reason: LossReason, why: String },
}

/// Why a worker is not let in.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    pub(crate) retry: bool,
}
