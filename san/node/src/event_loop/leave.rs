//! Connections of clients end.

use std::sync::Arc;
use std::time::Duration;

use loadline_san_core::ids::VolumeId;
use loadline_san_core::lease::Moment;
use loadline_san_core::volume::{Event, Failure, Status};
use loadline_san_export::session::Session as _;

use super::EventLoop;
use super::client::{Client, ClientOrigin, Stage};
use super::command::{LoopEvent, NewClient, SessionId};
use super::route::Local;
use super::why::{Why, refuse};
use crate::identity::accesses::Accesses;
use crate::node::sockets::is_closed;

/// How long a client of a protocol whose clients stand by waits to be let in: initiators give up commands after 15 s.
const STANDBY_ADMISSION: Duration = Duration::from_secs(11);

/// Disconnects clients that have gone while they waited to be let in, and those that have waited for too long.
fn end_coming(coming: &mut Vec<(NewClient, Moment)>, now: Moment, limit: Duration) {
    let gone = coming.extract_if(.., |(new, _)| is_closed(&new.channel));
    gone.for_each(|(new, _)| refuse(new, &Why::CLOSED));
    let limit_of = |new: &NewClient| match new.protocol.stands_by() {
        true => limit.min(STANDBY_ADMISSION),
        false => limit,
    };
    let late = coming.extract_if(.., |(new, came)| now.since(*came) >= limit_of(new).as_nanos() as u64);
    late.for_each(|(new, _)| {
        let limit = limit_of(&new).as_secs();
        refuse(new, &Why::NotLetIn(limit));
    });
}

impl EventLoop {
    /// Ends a client's connection. What it requested and has not begun is dropped (rule T13).
    pub(super) fn disconnect(&mut self, key: u32, why: &Why) {
        self.front_ends.disconnect(key, &mut self.uring, why);
        self.drop_gone();
    }

    /// Drops what clients that were disconnected have requested.
    pub(super) fn drop_gone(&mut self) {
        for (volume, key, has_announced) in self.front_ends.take_gone() {
            if let Some(host) = self.volumes.get_mut(volume) {
                // Not from within a step: this may be one.
                let at_work = host.leave(key, has_announced, self.now);
                self.local.extend(at_work.map(|request| Local::Cancel(volume, request)));
            }
        }
        self.report_waiting();
    }

    /// Clients of a volume are not let in any more: those that are here are disconnected. A client that waits (rule H1) or stands by is none
    /// of them.
    pub(super) fn detached(&mut self, id: VolumeId, why: &Why) {
        let Some(host) = self.volumes.get_mut(id) else { return };
        host.attached = false;
        let coming = host.arriving.drain(..).chain(host.announced.drain(..));
        coming.for_each(|(new, _)| refuse(new, why));
        self.disconnect_all(|client| client.volume == id && client.is_let_in(), why);
        self.units_detached(id);
        (self.report)(LoopEvent::Detached(id));
    }

    /// The volume is not owned here any more: its clients are disconnected, what is not answered is dropped, and the leases are released
    /// (rule L5).
    pub(super) fn give_up(&mut self, id: VolumeId, why: &Why) {
        self.end_waiting(id, &[Stage::Announced], why);
        self.detached(id, why);
        if let Some(host) = self.volumes.get_mut(id) {
            host.claims = false;
            // Another node serves it, or none: what is known of its clients here holds no longer.
            host.is_fresh = false;
        }
        self.step_volume(id, Event::Detach);
    }

    /// Disconnects those of these clients whose other side has closed the connection. What they have sent and is not read yet is
    /// dropped.
    pub(super) fn disconnect_closed(&mut self, which: impl Fn(&Client) -> bool) {
        self.disconnect_all(|client| which(client) && is_closed(client.session.socket()), &Why::CLOSED);
    }

    /// Disconnects all of these clients. What they requested and has not begun is dropped.
    pub(super) fn disconnect_all(&mut self, which: impl Fn(&Client) -> bool, why: &Why) {
        self.front_ends.disconnect_all(&mut self.uring, which, why);
        self.drop_gone();
    }

    /// An attach was ordered here: clients that came before it are disconnected, and what they asked for is dropped. A client that waited
    /// and has started is let in by it.
    pub(super) fn fence(&mut self, id: VolumeId) {
        self.announce_waiting(id);
        self.detached(id, &Why::Fenced);
        if let Some(host) = self.volumes.get_mut(id) {
            host.claims = true;
        }
        self.step_volume(id, Event::Fence);
    }

    /// If another node owns the volume, and no attach was ordered here, clients do not make this node claim it.
    pub(super) fn give_way(&mut self, id: VolumeId) {
        let me = self.options.me.node;
        let Some(host) = self.volumes.get(id) else { return };
        let elsewhere = host.volume.record().is_some_and(|record| record.owner.node != me);
        if elsewhere && !host.claims && host.volume.status() == Status::Watching {
            self.detached(id, &Why::Elsewhere);
            self.step_volume(id, Event::Detach);
        }
    }

    /// The configuration names these: clients are disconnected that were let in by a certificate or as an initiator which may not use the
    /// volume any more, before anything more is read from them. Such an initiator does not count as one that may come back.
    pub(super) fn end_revoked(&mut self, accesses: Arc<Accesses>) {
        let is_revoked = |_: VolumeId, of: &ClientOrigin| {
            of.certificate.as_ref().is_some_and(|of| !accesses.may_use_volumes(of))
        };
        self.end_clients(is_revoked, &Why::Revoked);
        let is_not_named = |volume: VolumeId, of: &ClientOrigin| {
            of.initiator.as_ref().is_some_and(|of| !accesses.let_in(volume.0, of))
        };
        self.end_clients(is_not_named, &Why::NotNamed);
        self.units.forget_removed(accesses);
    }

    /// A session has ended: the clients that are forwarded by it are disconnected, before anything more is read from them.
    pub(super) fn end_session(&mut self, session: SessionId) {
        self.end_clients(|_, of| of.session == Some(session), &Why::Session);
    }

    /// Disconnects clients of such origins, those too that were not let in yet.
    fn end_clients(&mut self, is_such: impl Fn(VolumeId, &ClientOrigin) -> bool, why: &Why) {
        let hosts = self.volumes.iter_mut().flat_map(|host| [&mut host.arriving, &mut host.announced]);
        for coming in hosts.chain(self.units.held()) {
            let gone = coming.extract_if(.., |(new, _)| is_such(new.volume, &ClientOrigin::of(new)));
            gone.for_each(|(new, _)| refuse(new, why));
        }
        self.disconnect_all(|client| is_such(client.volume, &client.origin), why);
    }

    /// Refuses requests that have waited to begin for longer than their clients wait: for the limit of the volume, or for room.
    fn refuse_unbegun(&mut self) {
        let (now, mut taken) = (self.now, Vec::new());
        for host in self.volumes.iter_mut() {
            let longest = |key, slot| self.front_ends.get_mut(key)?.session.longest_wait(slot);
            host.take_unbegun(now, longest, &mut taken);
        }
        for (key, slot) in taken {
            let Some(client) = self.front_ends.get_mut(key) else { continue };
            let completed = client.session.complete(slot, Err(Failure::TooMany));
            self.front_ends.has_answers(key);
            if let Err(end) = completed {
                self.disconnect(key, &Why::Ended(end));
            }
        }
    }

    /// Disconnects clients whose requests have waited for too long at volumes that are not served, or that wait to be let in for so
    /// long; clients whose hosts do not confirm what they are sent; and those that have gone while they were not read.
    pub(super) fn end_waits(&mut self) {
        self.report_unserved();
        let (now, limit) = (self.now, self.options.client_wait);
        let limit_ns = limit.as_nanos() as u64;
        let mut late = Vec::new();
        for host in self.volumes.iter_mut() {
            host.find_late(now, limit_ns, &mut late);
            for coming in [&mut host.arriving, &mut host.announced] {
                end_coming(coming, now, limit);
            }
        }
        self.units.held().for_each(|held| end_coming(held, now, limit));
        late.into_iter().for_each(|key| self.disconnect(key, &Why::Waited(limit.as_secs())));
        self.refuse_unbegun();
        self.front_ends.pass_time(&mut self.uring, now);
        self.front_ends.end_silent(&mut self.uring);
        self.drop_gone();
    }
}
