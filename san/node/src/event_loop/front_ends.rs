//! The clients of all volumes of a loop: their sessions receive requests, and send answers.
//!
//! Nothing here knows a protocol. A session reports when it is to receive again, and whether its requests come by queues in shared
//! memory. Such queues are polled as long as requests arrive now and then. Before the loop sleeps, it asks the client to notify, and
//! polls the queues once more.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::AsRawFd;
use std::time::Duration;

use foldhash::fast::RandomState;
use loadline_san_core::ids::VolumeId;
use loadline_san_core::lease::Moment;
use loadline_san_device::pool::Pool;
use loadline_san_device::uring::{For, Uring};
use loadline_san_export::block::BlockRequest;
use loadline_san_export::front_ends::{Endpoint, Protocol};
use loadline_san_export::scsi::task::Change;
use loadline_san_export::session::{Attachment, Next, QueueWatch, Receiving, Session as _, SessionEnd};
use loadline_san_transport::socket;

use super::backlog::Answered;
use super::client::{Client, WaitingNews};
use super::keys::Keys;
use super::why::Why;
use crate::node::sockets::is_closed;

/// Bytes that the requests and answers of all clients may take. Beyond that only clients that take none receive.
const MOST_TAKEN: usize = 512 << 20;

/// Time passes for sessions in steps that are no longer.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// What the sessions use of the loop.
pub(super) struct Ring<'a> {
    pub(super) uring: &'a mut Uring,
    pub(super) pool: &'a Pool,
    pub(super) keys: &'a mut Keys,
    pub(super) now: Moment,
}

/// All clients of the volumes of one loop. It owns their sessions.
#[derive(Default)]
pub(super) struct FrontEnds {
    clients: HashMap<u32, Client, RandomState>,
    /// Clients whose sessions are to receive.
    readable: VecDeque<u32>,
    /// Clients whose sessions may have something to send.
    answered: Vec<u32>,
    /// Clients that wait until there is memory for what they request.
    starved: Vec<u32>,
    /// Clients that are to be disconnected, and why.
    broken: Vec<(u32, Why)>,
    /// Clients that were disconnected, whose requests are to be dropped.
    gone: Vec<(VolumeId, u32, bool)>,
    /// What has become of clients that wait, by their volume and the number of their attachment.
    waiting_news: Vec<(VolumeId, u64, WaitingNews)>,
    /// Clients whose queues are polled.
    polled: Vec<u32>,
    /// The client and the queue that each key watches.
    queue_keys: HashMap<u32, (u32, u16), RandomState>,
    /// How many clients of each volume stand by.
    standing_by: BTreeMap<VolumeId, usize>,
    /// What sessions want to be changed, until the loop takes it: the volume, the client, its number of the change, and what.
    changes: Vec<(VolumeId, u32, u32, Change)>,
    /// Clients that receive at the next tick.
    late: Vec<u32>,
    /// Clients that were sent answers since the loop has waited.
    sent_to: Answered,
    /// Bytes that the requests and answers of all clients take.
    taken: usize,
    /// Until when time was passed on to the sessions.
    passed: Option<Moment>,
}

impl FrontEnds {
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    /// How many clients reach a volume at this node only.
    pub(super) fn bound(&self, volume: VolumeId) -> usize {
        let is_bound = |client: &&Client| {
            client.volume == volume
                && client.waiting.is_none()
                && matches!(client.session.protocol().endpoint(), Endpoint::Volume { .. })
        };
        self.clients.values().filter(is_bound).count()
    }

    /// How many clients have proved nothing.
    pub(super) fn strangers(&self) -> usize {
        self.clients.values().filter(|client| client.origin.is_stranger()).count()
    }

    pub(super) fn get(&self, key: u32) -> Option<&Client> {
        self.clients.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: u32) -> Option<&mut Client> {
        self.clients.get_mut(&key)
    }

    /// Whether a volume has a client of this protocol.
    pub(super) fn has(&self, volume: VolumeId, protocol: Protocol) -> bool {
        let is_so = |client: &Client| client.volume == volume && client.session.protocol() == protocol;
        self.clients.values().any(|client| client.is_let_in() && is_so(client))
    }

    /// A client was let in, or stands by.
    pub(super) fn add(&mut self, key: u32, client: Client) {
        if client.standby.is_some() {
            *self.standing_by.entry(client.volume).or_default() += 1;
        }
        self.clients.insert(key, client);
        self.readable.push_back(key);
    }

    /// All clients of a volume, those that wait included.
    pub(super) fn of_volume(&mut self, volume: VolumeId) -> impl Iterator<Item = &mut Client> {
        self.clients.values_mut().filter(move |client| client.volume == volume)
    }

    /// Whether clients of a volume stand by.
    pub(super) fn stand_by(&self, volume: VolumeId) -> bool {
        self.standing_by.contains_key(&volume)
    }

    /// One less client of a volume stands by.
    pub(super) fn stands_by_no_more(&mut self, volume: VolumeId) {
        if let Some(count) = self.standing_by.get_mut(&volume) {
            *count -= 1;
            if *count == 0 {
                self.standing_by.remove(&volume);
            }
        }
    }

    /// The changes that sessions want, since this was last called.
    pub(super) fn take_changes(&mut self) -> Vec<(VolumeId, u32, u32, Change)> {
        std::mem::take(&mut self.changes)
    }

    /// The key of a client for which this holds.
    pub(super) fn find(&self, is_it: impl Fn(&Client) -> bool) -> Option<u32> {
        self.clients.iter().find(|(_, client)| is_it(client)).map(|(key, _)| *key)
    }

    /// The keys of those clients of a volume for which this holds.
    pub(super) fn keys_of(&self, volume: VolumeId, holds: impl Fn(&Client) -> bool) -> Vec<u32> {
        let is_it = |client: &Client| client.volume == volume && holds(client);
        self.clients.iter().filter(|(_, client)| is_it(client)).map(|(key, _)| *key).collect()
    }

    /// A client's session is to receive in the next round.
    pub(super) fn receive_soon(&mut self, key: u32) {
        self.readable.push_back(key);
    }

    /// Something has become of a client that waits.
    pub(super) fn add_waiting_news(&mut self, news: (VolumeId, u64, WaitingNews)) {
        self.waiting_news.push(news);
    }

    /// What has become of clients that wait since this was last called.
    pub(super) fn take_waiting_news(&mut self) -> Vec<(VolumeId, u64, WaitingNews)> {
        std::mem::take(&mut self.waiting_news)
    }

    /// Others were let in to a volume, by this attachment. Those that wait or stand by are let in later, each by its own rule (U1).
    pub(super) fn attached(&mut self, volume: VolumeId, attachment: Attachment) {
        for client in self.of_volume(volume).filter(|client| client.is_let_in()) {
            client.session.attached(attachment);
        }
    }

    /// Clients that were disconnected since this was last called: what they requested is to be dropped. And whether each has announced its
    /// end.
    pub(super) fn take_gone(&mut self) -> impl Iterator<Item = (VolumeId, u32, bool)> {
        std::mem::take(&mut self.gone).into_iter()
    }

    // ---- receiving -------------------------------------------------------------------------------------

    /// Something that the ring watches by this key is ready. False if it is nothing of a client.
    pub(super) fn ready(&mut self, key: u32, what: For) -> bool {
        if let Some(client) = self.clients.get_mut(&key) {
            match what {
                For::Input => {
                    client.watched = false;
                    self.readable.push_back(key);
                }
                For::Room => {
                    (client.watched_for_room, client.blocked) = (false, false);
                    self.answered.push(key);
                }
            }
            return true;
        }
        let Some((client, queue)) = self.queue_keys.get(&key).copied() else { return false };
        if let Some(of) = self.clients.get_mut(&client) {
            of.session.queue_notified(queue);
            self.readable.push_back(client);
        }
        true
    }

    /// Whether a session is to receive.
    pub(super) fn have_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// How many sessions are to receive now.
    pub(super) fn count_readable(&self) -> usize {
        self.readable.len()
    }

    /// The next client whose session is to receive.
    pub(super) fn next_readable(&mut self) -> Option<u32> {
        self.readable.pop_front()
    }

    /// A session receives. Its requests are added; the volume that they are of is returned, if the client is still there.
    pub(super) fn receive(
        &mut self,
        key: u32,
        ring: &mut Ring<'_>,
        requests: &mut Vec<BlockRequest>,
    ) -> Option<VolumeId> {
        let client = self.clients.get_mut(&key)?;
        let volume = client.volume;
        (client.next, client.listed) = (false, false);
        let accepts = client.waiting.is_none() && (self.taken < MOST_TAKEN || client.taken == 0);
        let mut from =
            Receiving { pool: ring.pool, now: ring.now, accepts, is_ready: !client.watched, requests };
        let next = client.session.receive(&mut from);
        client.paused = !accepts || !client.session.wants_requests();
        match next {
            Err(end) => {
                self.disconnect(key, ring.uring, &Why::Ended(end));
                return Some(volume);
            }
            Ok(Next::More) if !client.paused || client.session.is_always_watched() => {
                client.next = true;
                self.readable.push_back(key);
            }
            Ok(Next::Later) if !std::mem::replace(&mut client.late, true) => self.late.push(key),
            Ok(Next::More | Next::Later | Next::Watch) => {}
        }
        self.poll(key);
        // What is refused is answered at once.
        self.answered.push(key);
        self.watch_queues(key, ring);
        Some(volume)
    }

    /// Sessions that have waited for a tick are to receive.
    pub(super) fn take_late(&mut self) {
        for key in self.late.drain(..) {
            if let Some(client) = self.clients.get_mut(&key) {
                (client.late, client.next) = (false, true);
                self.readable.push_back(key);
            }
        }
    }

    // ---- queues in shared memory -----------------------------------------------------------------------

    /// The queues of a client are polled, if it has some.
    fn poll(&mut self, key: u32) {
        if let Some(client) = self.clients.get_mut(&key)
            && client.waiting.is_none()
            && client.session.has_queues()
            && !std::mem::replace(&mut client.polled, true)
        {
            self.polled.push(key);
        }
    }

    /// Whether queues are polled.
    pub(super) fn polls(&self) -> bool {
        !self.polled.is_empty()
    }

    /// Watches queues by what notifies of requests in them, each by a key that stays its own.
    fn watch_queues(&mut self, key: u32, ring: &mut Ring<'_>) {
        while let Some(client) = self.clients.get_mut(&key)
            && let Some((queue, watch)) = client.session.next_queue_watch()
        {
            let place = usize::from(queue);
            let own = match client.queue_keys.get(place).copied().flatten() {
                Some(own) => own,
                None => {
                    let own = ring.keys.take();
                    client.queue_keys.resize(client.queue_keys.len().max(place + 1), None);
                    client.queue_keys[place] = Some(own);
                    self.queue_keys.insert(own, (key, queue));
                    own
                }
            };
            let watched = match watch {
                QueueWatch::By(fd) => ring.uring.watch(fd, own, For::Input),
                QueueWatch::No => ring.uring.unwatch(own),
            };
            if let Err(why) = watched {
                self.disconnect(key, ring.uring, &Why::Watch(why.to_string()));
            }
        }
    }

    /// Sessions with something in their queues are to receive; and clients that are to be disconnected are.
    pub(super) fn poll_queues(&mut self, uring: &mut Uring) {
        for (key, why) in std::mem::take(&mut self.broken) {
            self.disconnect(key, uring, &why);
        }
        for key in &self.polled {
            if let Some(client) = self.clients.get_mut(key)
                && (self.taken < MOST_TAKEN || client.taken == 0)
                && client.session.has_queued()
                && !std::mem::replace(&mut client.listed, true)
            {
                self.readable.push_back(*key);
            }
        }
    }

    /// Clients whose queues are polled, by their place; and their volume, if there is something and memory for it.
    pub(super) fn queued(&self, place: usize) -> Option<(u32, Option<VolumeId>)> {
        let key = *self.polled.get(place)?;
        let client = self.clients.get(&key);
        let some = client
            .filter(|client| (self.taken < MOST_TAKEN || client.taken == 0) && client.session.has_queued());
        Some((key, some.map(|client| client.volume)))
    }

    /// Returns a function that polls the queues and returns whether one has a request. Called with `true` before the loop
    /// sleeps, it asks clients to notify, and their queues are not polled any more.
    pub(super) fn queue_poller(&mut self) -> impl FnMut(bool) -> bool {
        let FrontEnds { polled, clients, taken, .. } = self;
        |sleeps| {
            let mut found = false;
            polled.retain(|key| {
                let Some(client) = clients.get_mut(key) else { return false };
                // A client that waits for memory is polled again when something is complete.
                if *taken >= MOST_TAKEN && client.taken > 0 {
                    return true;
                }
                let some = if sleeps { client.session.arm_queues() } else { client.session.has_queued() };
                found |= some;
                // Otherwise it notifies.
                client.polled = some || !sleeps;
                client.polled
            });
            found
        }
    }

    // ---- answering -------------------------------------------------------------------------------------

    /// A session has something to send.
    pub(super) fn has_answers(&mut self, key: u32) {
        if self.answered.last() != Some(&key) {
            self.answered.push(key);
        }
    }

    /// Whether sessions may have something to send.
    pub(super) fn have_answers(&self) -> bool {
        !self.answered.is_empty()
    }

    /// A client is to be disconnected, but not from within a step of its volume.
    pub(super) fn break_off(&mut self, key: u32, why: Why) {
        self.broken.push((key, why));
    }

    /// Sends what sessions have to send, and watches for what their clients send next.
    pub(super) fn answer(&mut self, ring: &mut Ring<'_>) {
        let mut answered = std::mem::take(&mut self.answered);
        for key in answered.drain(..) {
            if let Err(why) = self.answer_one(key, ring) {
                self.disconnect(key, ring.uring, &why);
            }
        }
        self.answered = answered;
        if self.taken < MOST_TAKEN {
            for key in self.starved.drain(..) {
                let Some(client) = self.clients.get_mut(&key) else { continue };
                client.starved = false;
                if client.paused {
                    (client.paused, client.next) = (false, true);
                    self.readable.push_back(key);
                }
            }
        }
    }

    /// The error is why the client is to be disconnected.
    fn answer_one(&mut self, key: u32, ring: &mut Ring<'_>) -> Result<(), Why> {
        let Some(client) = self.clients.get_mut(&key) else { return Ok(()) };
        let (mut some, mut failed) = (false, false);
        let sent = client.session.send(!client.blocked, |fd| {
            some = true;
            failed |= ring.uring.ring_bell(fd, key).is_err();
        });
        // At once: the descriptor may be closed soon.
        if failed || some && ring.uring.submit().is_err() {
            let why = "the eventfd that signals completed requests to the client cannot be written".into();
            return Err(Why::Ended(SessionEnd::Protocol(why)));
        }
        let sent = sent.map_err(Why::Ended)?;
        let mut wanted = Vec::new();
        client.session.take_changes(&mut wanted);
        let of = client.volume;
        self.changes.extend(wanted.into_iter().map(|(ticket, change)| (of, key, ticket, change)));
        let wakes = client.session.take_wakes().then_some(of);
        if sent.bytes > 0 {
            client.backlog.sent(sent.answers, sent.bytes);
            self.sent_to.note(key);
        }
        client.blocked = sent.is_full;
        if client.session.wants_turn() && !std::mem::replace(&mut client.listed, true) {
            self.readable.push_back(key);
        }
        let taken = client.session.bytes();
        self.taken = self.taken - client.taken + taken;
        client.taken = taken;
        // A client that requests more than it may, or does not read, receives nothing until it is answered.
        if client.paused && client.waiting.is_none() && client.session.wants_requests() {
            if is_closed(client.session.socket()) {
                // It was not watched meanwhile.
                return Err(Why::CLOSED);
            }
            if self.taken < MOST_TAKEN || taken == 0 {
                (client.paused, client.next) = (false, true);
                self.readable.push_back(key);
            } else if !std::mem::replace(&mut client.starved, true) {
                self.starved.push(key);
            }
        }
        let fd = client.session.socket().as_raw_fd();
        let receives = !client.paused || client.session.is_always_watched();
        let mut watched = Ok(());
        if receives && !client.next && !client.late && !std::mem::replace(&mut client.watched, true) {
            watched = ring.uring.watch(fd, key, For::Input);
        }
        if client.blocked && !std::mem::replace(&mut client.watched_for_room, true) {
            watched = watched.and_then(|()| ring.uring.watch(fd, key, For::Room));
        }
        watched.map_err(|why| Why::Watch(why.to_string()))?;
        self.poll(key);
        if let Some(volume) = wakes {
            self.wake_others(volume, key);
        }
        Ok(())
    }

    /// Other sessions of a volume may go on: each gets a turn.
    fn wake_others(&mut self, volume: VolumeId, key: u32) {
        for (other, client) in &mut self.clients {
            if *other != key && client.volume == volume && !std::mem::replace(&mut client.listed, true) {
                self.readable.push_back(*other);
            }
        }
    }

    /// Whether each client that was sent answers since the last call has many of them to read.
    pub(super) fn all_have_backlogs(&mut self) -> bool {
        let clients = &self.clients;
        self.sent_to.all_have_backlogs(|key| {
            let client = clients.get(&key)?;
            Some((&client.backlog, client.session.socket()))
        })
    }

    // ---- leaving ---------------------------------------------------------------------------------------

    /// Ends a client's connection. What it requested and has not begun is to be dropped (rule T13): see [`Self::take_gone`].
    pub(super) fn disconnect(&mut self, key: u32, uring: &mut Uring, why: &Why) {
        let Some(client) = self.clients.remove(&key) else { return };
        client.origin.log_end(why);
        if *why == Why::CLOSED {
            socket::throw_away(client.session.socket());
        }
        socket::shut_down(client.session.socket());
        // Nothing of it is watched any more. If the ring's queue is full for good, so is everything else.
        let _ = uring.forget_bells(key);
        for own in client.queue_keys.iter().flatten() {
            self.queue_keys.remove(own);
            let _ = uring.unwatch(*own);
        }
        self.taken -= client.taken;
        match (client.waiting, client.standby) {
            (Some(waiting), _) => {
                self.add_waiting_news((client.volume, waiting.number, WaitingNews::Gone));
            }
            (None, Some(_)) => self.stands_by_no_more(client.volume),
            (None, None) => self.gone.push((client.volume, key, client.session.is_leaving())),
        }
        // A session that it has displaced may wait for its end.
        if client.session.protocol().stands_by() {
            self.wake_others(client.volume, key);
        }
    }

    /// Disconnects all of these clients.
    pub(super) fn disconnect_all(&mut self, uring: &mut Uring, which: impl Fn(&Client) -> bool, why: &Why) {
        let gone: Vec<u32> =
            self.clients.iter().filter(|(_, client)| which(client)).map(|(key, _)| *key).collect();
        gone.into_iter().for_each(|key| self.disconnect(key, uring, why));
    }

    /// Passes time on to the sessions: some have something to send then, and some end.
    pub(super) fn pass_time(&mut self, uring: &mut Uring, now: Moment) {
        let before = self.passed.replace(now).unwrap_or(now);
        // A loop that was stopped does not know what its clients have sent meanwhile.
        let passed = Duration::from_nanos(now.since(before)).min(LONGEST_STEP);
        let mut ended = Vec::new();
        for (key, client) in &mut self.clients {
            match client.session.pass_time(passed) {
                Ok(false) => {}
                Ok(true) => self.answered.push(*key),
                Err(end) => ended.push((*key, Why::Ended(end))),
            }
        }
        ended.into_iter().for_each(|(key, why)| self.disconnect(key, uring, &why));
    }

    /// Disconnects clients that have closed their connection and take no requests, whose sockets are not watched; and clients whose
    /// hosts do not confirm what they are sent.
    pub(super) fn end_silent(&mut self, uring: &mut Uring) {
        let (mut gone, mut unconfirmed) = (Vec::new(), Vec::new());
        for (key, client) in &mut self.clients {
            let socket = client.session.socket();
            if client.paused && is_closed(socket) {
                // A client that has announced its end may close its direction at once, and is promised that its earlier requests
                // are carried out.
                client.leaves += 1;
                if !client.session.is_leaving() || client.leaves > MOST_LEAVES {
                    gone.push(*key);
                }
            }
            if !client.backlog.is_local() && !client.confirmed.is_so(client.session.socket()) {
                unconfirmed.push(*key);
            }
        }
        gone.into_iter().for_each(|key| self.disconnect(key, uring, &Why::CLOSED));
        unconfirmed.into_iter().for_each(|key| self.disconnect(key, uring, &Why::Unconfirmed));
    }
}

/// How often a client that leaves is found to have closed its connection, until it is disconnected: 5 s.
const MOST_LEAVES: u32 = 10;
