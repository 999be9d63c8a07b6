//! Why a client's connection ends. Each that this node ends has a reason, which is logged once.

use loadline_san_export::session::SessionEnd;
use loadline_san_transport::socket::throw_away;
use thiserror::Error;

use super::client::ClientOrigin;
use super::command::NewClient;
use crate::node::listeners::LOCAL;
use crate::strangers;

/// Connections of clients at most.
pub(super) const MOST_CLIENTS: usize = 4096;

/// Of these, so many are for clients that have proved who they are, or came by a unix socket.
const NOT_FOR_STRANGERS: usize = 1024;

/// Whether there is room for another client beside so many, of which so many have proved nothing.
pub(super) fn has_room(all: usize, strangers: impl FnOnce() -> usize, is_stranger: bool) -> bool {
    let most_strangers = MOST_CLIENTS - NOT_FOR_STRANGERS;
    let is_full = || is_stranger && all >= most_strangers && strangers() >= most_strangers;
    all < MOST_CLIENTS && !is_full()
}

/// Why a client's connection ends.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Why {
    /// Its session has ended.
    #[error(transparent)]
    Ended(SessionEnd),
    /// There are too many.
    #[error("the node already has {MOST_CLIENTS} client connections, the maximum")]
    TooMany,
    /// The loop cannot watch it.
    #[error("the operating system refuses to poll the connection: {0}")]
    Watch(String),
    /// The volume was detached.
    #[error("the volume was detached from this node")]
    Detached,
    /// The node ends by order, and another one serves the volume.
    #[error("this node stops, and hands the volume over to another node")]
    HandedOver,
    /// The volume was deleted.
    #[error("the volume was deleted")]
    Deleted,
    /// Another node owns the volume.
    #[error("another node owns the volume now")]
    Elsewhere,
    /// Requests were in flight when this node lost the volume.
    #[error("this node no longer serves the volume, and requests of the client are unanswered")]
    NotServed,
    /// An attach was ordered.
    #[error("the volume was attached again")]
    Fenced,
    /// The attachment that waited for it to start has ended.
    #[error("the attachment that waited for its start has ended: {0}")]
    NoLongerWaiting(&'static str),
    /// It chose the volume before an attach.
    #[error("the volume was attached again after the client chose the volume")]
    Old,
    /// The access by which it was let in is revoked.
    #[error("its access was revoked")]
    Revoked,
    /// The volume does not let its initiator in any more.
    #[error("the volume no longer lets the initiator in: 'loadline volume access' shows which it lets in")]
    NotNamed,
    /// No message arrives from the node that forwards the client.
    #[error("the session with the node that forwards the connection has ended")]
    Session,
    /// Its request has waited for too long.
    #[error("a request has waited for {0} s, and no node serves the volume")]
    Waited(u64),
    /// It was not let in for too long.
    #[error("the client has waited for {0} s for admission: the configuration store has not answered")]
    NotLetIn(u64),
    /// Its host does not confirm what it is sent.
    #[error("the client's host has not acknowledged sent data for {} s", super::confirmed::LIMIT.as_secs())]
    Unconfirmed,
    /// A front-end that cannot be host.
    #[error("the connection is refused: {0}")]
    Refused(String),
}

impl Why {
    /// The client has closed the connection.
    pub(super) const CLOSED: Why = Why::Ended(SessionEnd::Closed);
}

impl ClientOrigin {
    /// Of a client that comes.
    pub(super) fn of(new: &NewClient) -> ClientOrigin {
        let NewClient { from, name, session, certificate, initiator, .. } = new;
        ClientOrigin {
            from: from.clone(),
            name: name.clone(),
            session: *session,
            certificate: certificate.clone(),
            initiator: initiator.clone(),
        }
    }

    /// Logs that the connection ends, unless the client itself has ended it.
    pub(super) fn log_end(&self, why: &Why) {
        let ClientOrigin { from, name, .. } = self;
        if *why == Why::CLOSED {
            return;
        }
        // What it has sent has a part in the reason.
        let is_bounded = self.is_stranger() || matches!(why, Why::Ended(_));
        let text = format!("client {from} of volume {name} is disconnected: {why}");
        strangers::info_of_client(is_bounded, &why.to_string(), name, from, &text);
    }

    /// Whether the client has proved nothing: see [`is_stranger`].
    pub(super) fn is_stranger(&self) -> bool {
        is_stranger(self.certificate.as_deref(), &self.from)
    }
}

/// Whether a client has proved nothing: it came by the network without a certificate, to this node or to the one that forwards it.
pub(super) fn is_stranger(certificate: Option<&str>, from: &str) -> bool {
    certificate.is_none() && !from.starts_with(LOCAL)
}

/// Ends the connection of a client that was not let in.
pub(super) fn refuse(new: NewClient, why: &Why) {
    ClientOrigin::of(&new).log_end(why);
    if *why == Why::CLOSED {
        throw_away(&new.channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_clients_that_have_proved_nothing_are_bounded() {
        let of = |from: &str, certificate: Option<&str>| ClientOrigin {
            from: from.into(),
            name: "d".into(),
            session: None,
            certificate: certificate.map(str::to_owned),
            initiator: None,
        };
        assert!(
            of("[2001:db8::1]:7", None).is_stranger() && of("10.0.0.1:7 through node-1", None).is_stranger()
        );
        assert!(!of("10.0.0.1:7", Some("ab")).is_stranger() && !of(LOCAL, None).is_stranger());
        assert!(!of(&format!("{LOCAL} through node-1"), None).is_stranger());
    }

    #[test]
    fn clients_that_have_proved_nothing_leave_room_for_others() {
        assert!(has_room(3071, || 3071, true) && !has_room(3072, || 3072, true));
        assert!(has_room(3072, || 3072, false) && has_room(4095, || 3000, true));
        assert!(!has_room(4096, || 0, false));
    }
}
