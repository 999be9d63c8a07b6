//! Why a client's connection ends. Each that this node ends has a reason, which is logged once.

use loadline_san_export::session::SessionEnd;
use loadline_san_export::socket::throw_away;
use thiserror::Error;

use super::client::Who;
use super::command::NewClient;

/// Connections of clients at most.
pub(super) const MOST_CLIENTS: usize = 4096;

/// Why a client's connection ends.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Why {
    /// Its session has ended.
    #[error(transparent)]
    Ended(SessionEnd),
    /// There are too many.
    #[error("the node has {MOST_CLIENTS} connections of clients already")]
    TooMany,
    /// The loop cannot watch it.
    #[error("the system refuses to watch its connection: {0}")]
    Watch(String),
    /// The volume was detached.
    #[error("the volume is detached at this node")]
    Detached,
    /// The volume was deleted.
    #[error("the volume is deleted")]
    Deleted,
    /// Another node owns the volume.
    #[error("another node owns the volume now")]
    Elsewhere,
    /// Requests were in flight when this node lost the volume.
    #[error(
        "this node does not serve the volume any more, and has requests of the client that are not answered"
    )]
    NotServed,
    /// An attach was ordered.
    #[error("the volume was attached anew")]
    Fenced,
    /// It chose the volume before an attach.
    #[error("the volume was attached anew after the client chose it")]
    Old,
    /// The node that forwards it is not heard.
    #[error("the session with the node that forwards it has ended")]
    Session,
    /// Its request has waited for too long.
    #[error("a request has waited for {0} s, and the volume is not served")]
    Waited(u64),
    /// It was not let in for too long.
    #[error("it has waited for {0} s to be let in: the configuration has not answered")]
    NotLetIn(u64),
    /// Its host does not confirm what it is sent.
    #[error("its host has not confirmed for {} s what it was sent", super::confirmed::LIMIT.as_secs())]
    Unconfirmed,
    /// A front-end that cannot be host.
    #[error("it is not served: {0}")]
    Refused(String),
}

impl Why {
    /// The client has closed the connection.
    pub(super) const CLOSED: Why = Why::Ended(SessionEnd::Closed);
}

impl Who {
    fn of(new: &NewClient) -> Who {
        Who { from: new.from.clone(), name: new.name.clone(), session: new.session }
    }

    /// Logs that the connection ends, unless the client itself has ended it.
    pub(super) fn leaves(&self, why: &Why) {
        if *why != Why::CLOSED {
            tracing::info!(
                volume = self.name,
                client = self.from,
                "client {} of volume {} is disconnected: {why}",
                self.from,
                self.name
            );
        }
    }
}

/// Ends the connection of a client that was not let in.
pub(super) fn refuse(new: NewClient, why: &Why) {
    Who::of(&new).leaves(why);
    if *why == Why::CLOSED {
        throw_away(&new.socket);
    }
}
