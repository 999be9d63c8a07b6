//! Connections of clients end. Each that this node ends has a reason, which is logged once.

use std::io;

use loadline_san_core::ids::VolumeId;
use loadline_san_core::volume::{Event, Status};
use nix::errno::Errno;
use thiserror::Error;

use super::client::{self, Who};
use super::order::{NewClient, Report, SessionId};
use super::{EventLoop, Local, sockets};
use crate::log::log;
use crate::node::sockets::is_closed;

/// Looks at clients that wait after which one that has taken its leave is gone: 5 s.
const MOST_LEAVES: u32 = 10;

/// Why a client's connection ends.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Why {
    /// The client has closed it.
    #[error("the client has closed the connection")]
    Closed,
    /// The system has closed it.
    #[error("its connection is broken: {0}")]
    Broken(Errno),
    /// The client does not follow its protocol.
    #[error("{0}")]
    Protocol(String),
    /// There are too many.
    #[error("the node has {max} connections of clients already", max = sockets::MOST_CLIENTS)]
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
    /// A front-end that cannot be served.
    #[error("it is not served: {0}")]
    Refused(String),
}

impl Why {
    /// Something could not be sent.
    pub(super) fn not_sent(error: &io::Error) -> Why {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EPIPE | Errno::ECONNRESET) => Why::Closed,
            other => Why::Broken(other.unwrap_or(Errno::UnknownErrno)),
        }
    }
}

impl Who {
    fn of(new: &NewClient) -> Who {
        Who { from: new.from.clone(), name: new.name.clone(), session: new.session }
    }

    /// Logs that the connection ends, unless the client itself has ended it.
    pub(super) fn leaves(&self, why: &Why) {
        if *why != Why::Closed {
            log!("client {} of volume {} is disconnected: {why}", self.from, self.name);
        }
    }
}

/// Ends the connection of a client that was not let in.
pub(super) fn refuse(new: NewClient, why: &Why) {
    Who::of(&new).leaves(why);
    if *why == Why::Closed {
        client::throw_away(&new.socket);
    }
}

impl EventLoop {
    /// Ends a client's connection. What it asked for and has not begun is dropped (rule T13).
    pub(super) fn disconnect(&mut self, key: u32, why: &Why) {
        let Some(client) = self.clients.remove(&key) else { return };
        client.who.leaves(why);
        if *why == Why::Closed && matches!(client.way, client::Way::Nbd(..)) {
            client::throw_away(client.socket());
        }
        client::shut_down(client.socket());
        self.forget_bells(key, &client);
        self.taken -= client.taken;
        if let Some(served) = self.volumes.get_mut(&client.volume) {
            let begun = served.leave(key);
            // Not from within a step: this may be one.
            self.local.extend(begun.map(|request| Local::Cancel(client.volume, request)));
        }
    }

    /// Clients of a volume are not let in any more: those that are here are disconnected.
    pub(super) fn detached(&mut self, id: VolumeId, why: &Why) {
        let Some(served) = self.volumes.get_mut(&id) else { return };
        served.attached = false;
        let coming = served.arriving.drain(..).chain(served.announced.drain(..));
        coming.for_each(|(new, _)| refuse(new, why));
        self.disconnect_all(|client| client.volume == id, why);
        (self.tell)(Report::Detached(id));
    }

    /// Disconnects those of these clients whose other side has closed the connection. What they have sent and is not read yet is
    /// dropped.
    pub(super) fn disconnect_closed(&mut self, which: impl Fn(&client::Client) -> bool) {
        self.disconnect_all(|client| which(client) && is_closed(client.socket()), &Why::Closed);
    }

    fn disconnect_all(&mut self, which: impl Fn(&client::Client) -> bool, why: &Why) {
        let gone: Vec<u32> =
            self.clients.iter().filter(|(_, client)| which(client)).map(|(key, _)| *key).collect();
        gone.into_iter().for_each(|key| self.disconnect(key, why));
    }

    /// An attach was ordered here: clients that came before it are disconnected, and what they asked for is dropped.
    pub(super) fn fence(&mut self, id: VolumeId) {
        self.detached(id, &Why::Fenced);
        if let Some(served) = self.volumes.get_mut(&id) {
            served.claims = true;
        }
        self.step_volume(id, Event::Fence);
    }

    /// Clients have come to a volume. They do not make this node take it from another.
    pub(super) fn admit(&mut self, id: VolumeId) {
        let owned = |status| !matches!(status, Status::Watching | Status::Blocked);
        if self.volumes.get(&id).is_some_and(|served| owned(served.volume.status())) {
            self.step_volume(id, Event::Attach);
        }
    }

    /// If another node owns the volume, and no attach was ordered here, clients do not make this node claim it.
    pub(super) fn give_way(&mut self, id: VolumeId) {
        let me = self.options.me.node;
        let Some(served) = self.volumes.get(&id) else { return };
        let elsewhere = served.volume.record().is_some_and(|record| record.owner.node != me);
        if elsewhere && !served.claims && served.volume.status() == Status::Watching {
            self.detached(id, &Why::Elsewhere);
            self.step_volume(id, Event::Detach);
        }
    }

    /// A session has ended: the clients that are forwarded by it are disconnected, before anything more is read from them.
    pub(super) fn end_session(&mut self, session: SessionId) {
        for served in self.volumes.values_mut() {
            for coming in [&mut served.arriving, &mut served.announced] {
                let gone = coming.extract_if(.., |(new, _)| new.session == Some(session));
                gone.for_each(|(new, _)| refuse(new, &Why::Session));
            }
        }
        self.disconnect_all(|client| client.who.session == Some(session), &Why::Session);
    }

    /// Disconnects clients whose requests have waited for too long at volumes that are not served, or that wait to be let in for so
    /// long; clients whose hosts do not confirm what they are sent; and those that have gone while nobody listened to them.
    pub(super) fn end_waits(&mut self) {
        let (now, limit) = (self.now, self.options.client_wait);
        let limit_ns = limit.as_nanos() as u64;
        let mut late = Vec::new();
        for served in self.volumes.values_mut() {
            served.find_late(now, limit_ns, &mut late);
            for coming in [&mut served.arriving, &mut served.announced] {
                let gone = coming.extract_if(.., |(new, _)| is_closed(&new.socket));
                gone.for_each(|(new, _)| refuse(new, &Why::Closed));
                let late = coming.extract_if(.., |(_, came)| now.since(*came) >= limit_ns);
                late.for_each(|(new, _)| refuse(new, &Why::NotLetIn(limit.as_secs())));
            }
        }
        let mut gone = Vec::new();
        for (key, client) in self.clients.iter_mut().filter(|(_, client)| client.paused) {
            let client::Way::Nbd(socket, session) = &client.way else { continue };
            if is_closed(socket) {
                // One that has taken its leave is promised that what it asked for before is done, and closes its direction already.
                client.leaves += 1;
                if !session.is_leaving() || client.leaves > MOST_LEAVES {
                    gone.push(*key);
                }
            }
        }
        gone.into_iter().for_each(|key| self.disconnect(key, &Why::Closed));
        late.into_iter().for_each(|key| self.disconnect(key, &Why::Waited(limit.as_secs())));
        let mut late = Vec::new();
        for (key, client) in &mut self.clients {
            if !client.unread.is_local()
                && let client::Way::Nbd(socket, _) = &client.way
                && !client.confirmed.is_so(socket)
            {
                late.push(*key);
            }
        }
        late.into_iter().for_each(|key| self.disconnect(key, &Why::Unconfirmed));
    }
}
