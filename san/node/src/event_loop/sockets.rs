//! Reads from clients and other nodes, and writes to them.

use std::os::fd::AsRawFd;

use loadline_san_core::ids::VolumeId;
use loadline_san_core::volume::{Event, Failure};
use loadline_san_device::uring::For;
use loadline_san_export::nbd::session::Session;

use super::client::{self, Client, Received, Way, Who};
use super::heard::Heard;
use super::kept::Kept;
use super::leave::{Why, refuse};
use super::order::{NewClient, NewWay};
use super::served::{Begun, Served};
use super::{EventLoop, Local};
use crate::log::log;
use crate::node::sockets::is_closed;

/// Connections of clients at most.
pub(super) const MOST_CLIENTS: usize = 4096;
/// Bytes that the requests and answers of all clients may take. Beyond that only who takes none is listened to.
pub(super) const MOST_TAKEN: usize = 512 << 20;

impl EventLoop {
    /// A client has come. It may ask when the record of the volume says that it has: who came to another node before may
    /// still have something waiting there (rule T12). One that chose the volume before an attach is disconnected.
    pub(super) fn new_client(&mut self, new: NewClient) {
        let id = new.volume;
        let count = self.clients.len();
        let Some(served) = self.volumes.get_mut(&id) else { return refuse(new, &Why::Deleted) };
        // It has moved since, or was detached.
        if !served.attached {
            return refuse(new, &Why::Detached);
        }
        if served.is_old(&new) {
            return refuse(new, &Why::Old);
        }
        if count + served.arriving.len() + served.announced.len() >= MOST_CLIENTS {
            return refuse(new, &Why::TooMany);
        }
        served.arriving.push((new, self.now));
        if served.announced.is_empty() {
            served.announced.append(&mut served.arriving);
            self.step_volume(id, Event::Attach);
        }
    }

    /// Those that were announced may ask. Whether others have come since, who are announced now.
    pub(super) fn let_in(&mut self, id: VolumeId) -> bool {
        let Some(served) = self.volumes.get_mut(&id) else { return false };
        let coming = std::mem::take(&mut served.arriving);
        let come = std::mem::replace(&mut served.announced, coming);
        let more = !served.announced.is_empty();
        for (new, _) in come {
            let Some(served) = self.volumes.get_mut(&id) else { return false };
            if served.is_old(&new) {
                refuse(new, &Why::Old);
                continue;
            }
            // What it sent before it went is not carried out (rule T13).
            if is_closed(&new.socket) {
                refuse(new, &Why::Closed);
                continue;
            }
            served.clients += 1;
            let key = self.key();
            let NewClient { socket, volume, name, from, bytes, session, way, .. } = new;
            let who = Who { from, name, session };
            let way = match way {
                NewWay::Nbd(choice, rest) => Way::Nbd(socket, Box::new(Session::new(choice, bytes, &rest))),
                NewWay::Vhost => match self.guest(socket, volume, bytes, &who.name) {
                    Ok(session) => Way::Vhost(Box::new(session)),
                    Err(why) => {
                        who.leaves(&Why::Refused(why.to_string()));
                        if let Some(served) = self.volumes.get_mut(&id) {
                            served.clients -= 1;
                        }
                        continue;
                    }
                },
            };
            self.clients.insert(key, Client::new(way, volume, who));
            self.readable.push_back(key);
        }
        more
    }

    /// A key that no connection has had.
    pub(super) fn key(&mut self) -> u32 {
        let key = self.next_key;
        self.next_key =
            self.next_key.checked_add(1).expect("fewer than 2^32 connections in a process's life");
        key
    }

    /// Takes what a client has sent, or a node.
    pub(super) fn read(&mut self, key: u32) {
        if self.hearings.contains_key(&key) {
            self.hear(key);
            return;
        }
        let Some(client) = self.clients.get_mut(&key) else { return };
        let Some(served) = self.volumes.get_mut(&client.volume) else { return };
        client.next = false;
        let (mut received, mut more) = (Received::Nothing, false);
        let fits = self.taken < MOST_TAKEN || client.taken == 0;
        let Way::Nbd(socket, session) = &mut client.way else {
            self.read_guest(key, fits);
            return;
        };
        if fits && session.wants_bytes() {
            more = session.receive(&self.pool, |spaces| {
                received = client::receive_to(socket, spaces);
                if let Received::Some(bytes) = received { Some(bytes) } else { None }
            });
        }
        let mut ends = match received {
            Received::End => Some(Why::Closed),
            Received::Broken(error) => Some(Why::Broken(error)),
            Received::Some(_) | Received::Nothing => None,
        };
        loop {
            match session.next(&self.pool) {
                Ok(Some(asked)) => served.ask(key, asked, self.now),
                Ok(None) => break,
                Err(why) => {
                    ends = Some(Why::Protocol(why.to_string()));
                    break;
                }
            }
        }
        let volume = client.volume;
        client.paused = !fits || !session.wants_bytes();
        if more && !client.paused {
            client.next = true;
            self.readable.push_back(key);
        }
        match ends {
            Some(why) => self.disconnect(key, &why),
            // What is refused is answered at once.
            None => self.answered.push(key),
        }
        self.begin_soon(volume);
    }

    /// Requests of clients are begun when the clock was looked at: nothing is carried out that came later than `now`.
    pub(super) fn begin_soon(&mut self, id: VolumeId) {
        if !self.to_begin.contains(&id) {
            self.to_begin.push_back(id);
        }
    }

    /// Begins requests of clients, as many as may be at work.
    pub(super) fn begin(&mut self, id: VolumeId) {
        while let Some(begun) = self.volumes.get_mut(&id).and_then(Served::begin) {
            match begun {
                Begun::Request(request) => {
                    self.begun += 1;
                    self.step_volume(id, Event::Request(request));
                }
                Begun::TooLong(key, slot) => {
                    let Some(client) = self.clients.get_mut(&key) else { continue };
                    let told = client.complete(slot, Err(Failure::TooLong));
                    self.answered.push(key);
                    if let Err(why) = told {
                        self.disconnect(key, &Why::Protocol(why.to_string()));
                    }
                }
            }
        }
    }

    /// Sends what clients are to be told, and waits for what they say next.
    pub(super) fn answer(&mut self) {
        let mut answered = std::mem::take(&mut self.answered);
        for key in answered.drain(..) {
            self.tell_guest(key);
            let Some(client) = self.clients.get_mut(&key) else { continue };
            let ends = match &mut client.way {
                Way::Nbd(socket, session) => {
                    let sent = match session.out.bytes() > 0 && !client.blocked {
                        true => {
                            client.unread.told(session.take_answered(), session.out.bytes());
                            self.told_something.note(key);
                            client::send_all(socket, &mut session.out).map(|room| client.blocked = !room)
                        }
                        false => Ok(()),
                    };
                    match sent {
                        Err(error) => Some(Why::not_sent(&error)),
                        Ok(()) => session.is_over().then_some(Why::Closed),
                    }
                }
                Way::Vhost(session) => {
                    // It may have waited for what was in flight; or had no room for more.
                    if session.ends_queues() && session.in_flight() == 0 && !client.listed {
                        client.listed = true;
                        self.readable.push_back(key);
                    }
                    if !std::mem::replace(&mut client.looked_at, true) {
                        self.guests.push(key);
                    }
                    None
                }
            };
            if let Some(why) = ends {
                self.disconnect(key, &why);
                continue;
            }
            let taken = client.takes();
            self.taken = self.taken - client.taken + taken;
            client.taken = taken;
            // One that asks for more than it may, or does not read, is not listened to until it is answered.
            if client.paused && client.wants_more() {
                if is_closed(client.socket()) {
                    // It was not watched meanwhile.
                    self.disconnect(key, &Why::Closed);
                    continue;
                }
                if self.taken < MOST_TAKEN || taken == 0 {
                    (client.paused, client.next) = (false, true);
                    self.readable.push_back(key);
                } else {
                    self.starved.push(key);
                }
            }
            let fd = client.socket().as_raw_fd();
            let mut watched = Ok(());
            if matches!(client.way, Way::Vhost(_)) {
                // What it says is heard whatever it asks for.
            } else if !client.paused && !client.next && !std::mem::replace(&mut client.watched, true) {
                watched = self.uring.watch(fd, key, For::Input);
            }
            if client.blocked && !std::mem::replace(&mut client.watched_for_room, true) {
                watched = watched.and_then(|()| self.uring.watch(fd, key, For::Room));
            }
            if let Err(why) = watched {
                self.disconnect(key, &Why::Watch(why.to_string()));
            }
        }
        self.answered = answered;
        if self.taken < MOST_TAKEN {
            for key in self.starved.drain(..) {
                if let Some(client) = self.clients.get_mut(&key).filter(|client| client.paused) {
                    (client.paused, client.next) = (false, true);
                    self.readable.push_back(key);
                }
            }
        }
    }

    pub(super) fn hear(&mut self, key: u32) {
        let Some(hearing) = self.hearings.get_mut(&key) else { return };
        self.talked = true;
        let mut over = matches!(hearing.receive(&self.pool), Received::End | Received::Broken(_));
        loop {
            let group_of = |id| self.replicas.get(&id).map(|kept: &Kept| kept.store.identity().group);
            match hearing.next(&self.pool, group_of) {
                Ok(Some(_)) if self.dropped.contains(&hearing.from) => {}
                Ok(Some(Heard::ToReplica(from, message))) => {
                    self.begun += 1;
                    self.local.push_back(Local::ToReplica(from, message));
                }
                Ok(Some(Heard::ToOwner(from, message))) => {
                    self.local.push_back(Local::ToOwner(from, message));
                }
                Ok(None) => break,
                Err(why) => {
                    log!("what node {} says is not taken: {why}", hearing.from.0);
                    over = true;
                    break;
                }
            }
        }
        let fd = hearing.socket.as_raw_fd();
        if over || self.uring.watch(fd, key, For::Input).is_err() {
            client::shut_down(&hearing.socket);
            self.hearings.remove(&key);
        }
    }

    /// Sends what other nodes are to be told.
    pub(super) fn speak(&mut self) {
        let now = self.now;
        for (node, peer) in &mut self.peers {
            peer.send();
            if peer.connect(now) {
                self.to_peers.remove(&peer.key);
                peer.key = self.next_key;
                self.next_key += 1;
                self.to_peers.insert(peer.key, *node);
            }
            while let Some((fd, what)) = peer.is_to_be_watched() {
                if self.uring.watch(fd, peer.key, what).is_err() {
                    peer.down("it cannot be watched");
                }
            }
            if let Some(runs) = peer.news() {
                self.local.push_back(Local::Node(*node, runs));
            }
        }
    }
}
