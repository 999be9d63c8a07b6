//! Clients at other nodes than the owner: a forwarding node sends their requests on, over a connection of each client that
//! belongs to a session of the two nodes.
//!
//! ```text
//!  client ─▶ forwarding node ─ queue ─▶ link, in order ─▶ owner: session? fence? ─▶ volume
//!         ◀───────────────────────────────────────────── answers, in order
//! ```
//!
//! The model is of what the kernels do: what is queued stays while the link is cut, and is delivered in order when it heals.
//! A request ends for the history when it can no longer be carried out: it is answered; or it is dropped from the queue; or
//! the owner has received the end of the connection, has given the session up, or has let clients in under a higher fence.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use loadline_san_core::volume::{Event, Failure, Request, RequestId, Status};

use super::tenant::Outstanding;
use super::{Happening, World};
use crate::settings::Settings;
use crate::store::Blocks;
use crate::time::{MS, Time, US};
use crate::violation::Violation;

/// A rule of forwarding that can be left out, to see the simulator find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// What a forwarding node has queued for a client that has gone is dropped.
    F1,
    /// What arrives in a session that the owner has given up is refused.
    F2,
    /// What arrives under a lower fence than the record's is refused.
    F3,
}

impl Rule {
    /// All rules of forwarding.
    pub const ALL: &[Rule] = &[Rule::F1, Rule::F2, Rule::F3];
}

/// A ping is sent once in this time.
const PING: Time = Settings::LEASE / 2;
/// An owner that receives no ping for this time gives the session up.
const OWNER_WAITS: Time = 5 * Settings::LEASE;
/// A forwarding node that receives no answer to a ping for this time ends the session.
const FORWARDER_WAITS: Time = 7 * Settings::LEASE;
/// How often the kernel tries to send what is queued.
const RETRY: Time = 3 * MS;

/// All sessions and connections that there were. Their numbers are places in these lists.
#[derive(Debug, Default)]
pub(crate) struct Forwarders {
    sessions: Vec<Session>,
    connections: Vec<Connection>,
    /// The rule that is left out.
    pub(crate) left_out: Option<Rule>,
}

#[derive(Debug)]
struct Session {
    from: usize,
    from_life: u64,
    to: usize,
    to_life: u64,
    /// When the owner received the last ping, and the forwarding node the last answer.
    last_ping: Time,
    last_pong: Time,
    /// By the owner, and by the forwarding node.
    given_up: bool,
    ended: bool,
}

#[derive(Debug)]
struct Connection {
    session: usize,
    tenant: usize,
    fence: u64,
    /// What is to be sent to the owner, and back.
    queue: VecDeque<Item>,
    back: VecDeque<(RequestId, Result<(), Failure>)>,
    flowing: bool,
    /// When what was sent last arrives.
    arrives: (Time, Time),
    /// The owner has received something of it, and has closed it.
    opened: bool,
    closed: bool,
    /// The client has gone. The forwarding node has ended it.
    left: bool,
    ended: bool,
    /// At the owner's volume.
    at_owner: BTreeSet<RequestId>,
    /// Requests of a client that has gone, which may still be carried out.
    lingering: BTreeMap<RequestId, Outstanding>,
}

/// What is sent over a connection.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Request(Request<Blocks>),
    End,
}

/// What happens between a forwarding node and an owner. The numbers are those of sessions and connections.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// The forwarding node is to send a ping.
    PingDue(usize),
    Ping(usize),
    Pong(usize),
    /// The owner checks when it received the last ping.
    Check(usize),
    /// The kernel sends what is queued.
    Flow(usize),
    Arrives(usize, Item),
    Answered(usize, RequestId, Result<(), Failure>),
}

impl World {
    fn without(&self, rule: Rule) -> bool {
        self.forwarders.left_out == Some(rule)
    }

    fn session_of(&self, connection: usize) -> &Session {
        &self.forwarders.sessions[self.forwarders.connections[connection].session]
    }

    fn connection(&mut self, connection: usize) -> &mut Connection {
        &mut self.forwarders.connections[connection]
    }

    fn life_of(&self, node: usize) -> Option<u64> {
        self.nodes[node].process.as_ref().map(|process| process.life)
    }

    /// The node whose process takes a step: none for what its kernel does.
    pub(crate) fn node_of(&self, step: &Step) -> Option<usize> {
        let session = |number: &usize| &self.forwarders.sessions[*number];
        match step {
            Step::PingDue(number) | Step::Pong(number) => Some(session(number).from),
            Step::Ping(number) | Step::Check(number) => Some(session(number).to),
            Step::Flow(_) => None,
            Step::Arrives(number, _) => Some(self.session_of(*number).to),
            Step::Answered(number, ..) => Some(self.session_of(*number).from),
        }
    }

    fn later(&mut self, delay: Time, step: Step) {
        self.after(delay, Happening::Forwarding(step));
    }

    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to)) || self.lasting.cut.contains(&(from, to))
    }

    fn takes(&mut self, from: usize, to: usize) -> Time {
        let slow = self.slow.get(&(from, to)).copied().unwrap_or(0);
        20 * US + slow + self.rng.below(self.weather.slowest)
    }

    // ---- clients --------------------------------------------------------------------------------------

    /// A client connects through a node that is not the owner, if another node serves the volume. Whether it did.
    pub(crate) fn connect_through(&mut self, index: usize) -> bool {
        let serves = |node: &usize| {
            let process = self.nodes[*node].process.as_ref();
            process
                .is_some_and(|p| p.let_in && matches!(p.volume.status(), Status::Active | Status::Changing))
        };
        let Some(to) = (0..self.nodes.len()).find(serves) else { return false };
        let from = self.rng.index(self.nodes.len());
        from != to && self.nodes[from].paused.is_none() && self.connect(index, from, to)
    }

    /// A client connects to an owner through this node, under the fence of the record that the node knows.
    pub(crate) fn connect(&mut self, index: usize, from: usize, to: usize) -> bool {
        let (Some(from_life), Some(to_life)) = (self.life_of(from), self.life_of(to)) else { return false };
        let record = self.nodes[from].process.as_ref().and_then(|process| process.volume.record());
        // A node that has not asked yet does so now.
        let fence = record.unwrap_or(self.held()).fence;
        self.leave_connection(index);
        let is_this = |session: &Session| {
            (session.from, session.from_life, session.to, session.to_life) == (from, from_life, to, to_life)
                && !session.given_up
                && !session.ended
        };
        let session = self.forwarders.sessions.iter().position(is_this).unwrap_or_else(|| {
            let (last_ping, last_pong) = (self.now, self.now);
            let new =
                Session { from, from_life, to, to_life, last_ping, last_pong, given_up: false, ended: false };
            self.forwarders.sessions.push(new);
            let number = self.forwarders.sessions.len() - 1;
            self.later(0, Step::PingDue(number));
            self.later(PING, Step::Check(number));
            number
        });
        let number = self.forwarders.connections.len();
        self.forwarders.connections.push(Connection {
            session,
            tenant: index,
            fence,
            queue: VecDeque::new(),
            back: VecDeque::new(),
            flowing: false,
            arrives: (self.now, self.now),
            opened: false,
            closed: false,
            left: false,
            ended: false,
            at_owner: BTreeSet::new(),
            lingering: BTreeMap::new(),
        });
        self.trace_event(|| {
            format!("client {index} connects through n{from} to n{to}: connection {number}, fence {fence}")
        });
        self.coverage.count("forwarder", "a client connects");
        self.tenants[index].is_forwarded(to, number);
        true
    }

    /// A client's request is sent on.
    pub(crate) fn forward(&mut self, number: usize, request: Request<Blocks>) {
        self.connection(number).queue.push_back(Item::Request(request));
        self.flow(number);
    }

    /// A client goes, or connects elsewhere. Its forwarding node notices, unless it is stopped.
    pub(crate) fn leave_connection(&mut self, index: usize) {
        let Some(number) = self.tenants[index].through else { return };
        self.coverage.count("forwarder", "a client goes");
        self.linger(number);
        let from = self.session_of(number).from;
        match self.nodes[from].paused {
            Some(_) => self.coverage.count("forwarder", "a client goes, and the forwarding node is stopped"),
            None => self.drop_queue(number),
        }
    }

    /// A connection has no client any more. What it has asked for may still be carried out.
    fn linger(&mut self, number: usize) {
        let index = self.forwarders.connections[number].tenant;
        let asked = self.take_outstanding(number);
        self.connection(number).lingering.extend(asked);
        self.connection(number).left = true;
        let tenant = &mut self.tenants[index];
        if tenant.through == Some(number) {
            (tenant.node, tenant.through) = (None, None);
            tenant.not_before = self.now + self.rng.below(100 * MS);
        }
    }

    /// Whether the forwarding node of a client is stopped: then no request of the client reaches it.
    pub(crate) fn forwarder_is_stopped(&self, number: usize) -> bool {
        self.nodes[self.session_of(number).from].paused.is_some()
    }

    /// Blocks that may be on their way to an owner for clients that have gone.
    pub(crate) fn lingering(&self) -> impl Iterator<Item = &Outstanding> {
        self.forwarders.connections.iter().flat_map(|connection| connection.lingering.values())
    }

    /// What a connection's client waits for.
    fn take_outstanding(&mut self, number: usize) -> BTreeMap<RequestId, Outstanding> {
        let index = self.forwarders.connections[number].tenant;
        let asked = std::mem::take(&mut self.tenants[index].outstanding);
        let (of_it, rest) = asked.into_iter().partition(|(_, asked)| asked.through == Some(number));
        self.tenants[index].outstanding = rest;
        of_it
    }

    /// A request ends without an answer: it is not carried out from now on.
    fn ends_unanswered(&mut self, id: RequestId, asked: &Outstanding) {
        self.done += 1;
        self.ends(asked, false);
        self.gone.insert(id);
    }

    // ---- the forwarding node --------------------------------------------------------------------------

    /// A forwarding node ends a connection: it is reset, so that nothing of the queue is delivered (rule F1).
    fn drop_queue(&mut self, number: usize) {
        if self.forwarders.connections[number].ended {
            return;
        }
        let queued: Vec<RequestId> = self.forwarders.connections[number].requests().collect();
        if !queued.is_empty() {
            self.coverage.count("forwarder", "a queue is dropped");
        }
        for id in queued {
            if let Some(asked) = self.connection(number).lingering.remove(&id) {
                self.ends_unanswered(id, &asked);
            }
        }
        let keeps = self.without(Rule::F1);
        let connection = self.connection(number);
        connection.ended = true;
        if !keeps {
            connection.queue.clear();
        }
        connection.queue.push_back(Item::End);
        self.flow(number);
    }

    /// A forwarding node's process has died: its kernel resets the connections, unless the power is gone too.
    fn forwarder_dies(&mut self, node: usize, power: bool) {
        for number in 0..self.forwarders.connections.len() {
            if self.session_of(number).from != node || self.forwarders.connections[number].ended {
                continue;
            }
            if !self.forwarders.connections[number].left {
                self.linger(number);
            }
            self.drop_queue(number);
            if power {
                self.connection(number).queue.clear();
            }
        }
        for session in self.forwarders.sessions.iter_mut().filter(|session| session.from == node) {
            session.ended = true;
        }
    }

    /// A process has died.
    pub(crate) fn forwarding_dies(&mut self, node: usize, power: bool) {
        for number in 0..self.forwarders.connections.len() {
            let session = self.session_of(number);
            if session.to == node && self.life_of(node) != Some(session.to_life) {
                self.end_connection(number);
                self.connection(number).closed = true;
            }
        }
        self.forwarder_dies(node, power);
    }

    fn ping_due(&mut self, number: usize) {
        let session = &self.forwarders.sessions[number];
        let (from, to) = (session.from, session.to);
        if session.ended || self.life_of(from) != Some(session.from_life) {
            return;
        }
        let silent = self.now - session.last_pong > FORWARDER_WAITS;
        if silent {
            self.trace_event(|| format!("n{from} ends its session {number} with n{to}"));
            self.coverage.count("forwarder", "the forwarding node ends a session");
            self.forwarders.sessions[number].ended = true;
        }
        for one in 0..self.forwarders.connections.len() {
            let connection = &self.forwarders.connections[one];
            if connection.session != number || connection.ended || !(silent || connection.left) {
                continue;
            }
            if !connection.left {
                self.linger(one);
            }
            self.drop_queue(one);
        }
        if silent {
            return;
        }
        if !self.is_cut(from, to) {
            let delay = self.takes(from, to);
            self.later(delay, Step::Ping(number));
        }
        self.later(PING, Step::PingDue(number));
    }

    /// The kernel sends what is queued, in both directions, where the link is whole.
    fn flow(&mut self, number: usize) {
        let (from, to) = (self.session_of(number).from, self.session_of(number).to);
        let old = self.now - self.session_of(number).last_ping.min(self.now) > 100 * Settings::LEASE;
        if old {
            self.connection(number).queue.clear();
            self.connection(number).back.clear();
        }
        if !self.is_cut(from, to) {
            while let Some(item) = self.connection(number).queue.pop_front() {
                let at = self.now + self.takes(from, to);
                let connection = self.connection(number);
                connection.arrives.0 = connection.arrives.0.max(at) + 1;
                let delay = connection.arrives.0 - self.now;
                self.later(delay, Step::Arrives(number, item));
            }
        }
        if !self.is_cut(to, from) {
            while let Some((id, result)) = self.connection(number).back.pop_front() {
                let at = self.now + self.takes(to, from);
                let connection = self.connection(number);
                connection.arrives.1 = connection.arrives.1.max(at) + 1;
                let delay = connection.arrives.1 - self.now;
                self.later(delay, Step::Answered(number, id, result));
            }
        }
        let connection = self.connection(number);
        let idle = connection.queue.is_empty() && connection.back.is_empty();
        if !connection.flowing && !idle {
            connection.flowing = true;
            self.later(RETRY, Step::Flow(number));
        }
    }

    /// What happens between a forwarding node and an owner.
    pub(crate) fn forwarding(&mut self, step: Step) {
        match step {
            Step::PingDue(number) => self.ping_due(number),
            Step::Ping(number) => {
                if self.owner_keeps(number) {
                    let session = &mut self.forwarders.sessions[number];
                    session.last_ping = self.now;
                    let (from, to) = (session.from, session.to);
                    if !self.is_cut(to, from) {
                        let delay = self.takes(to, from);
                        self.later(delay, Step::Pong(number));
                    }
                }
            }
            Step::Pong(number) => self.forwarders.sessions[number].last_pong = self.now,
            Step::Check(number) => {
                if self.owner_keeps(number) {
                    self.later(PING / 2, Step::Check(number));
                }
            }
            Step::Flow(number) => {
                self.connection(number).flowing = false;
                self.flow(number);
            }
            Step::Arrives(number, item) => self.arrives(number, item),
            Step::Answered(number, id, result) => self.client_has_answer(number, id, result),
        }
    }

    // ---- the owner ------------------------------------------------------------------------------------

    /// Whether the owner's process of this session runs, and has not given the session up. It does, if there was no ping for too long.
    fn owner_keeps(&mut self, number: usize) -> bool {
        let session = &self.forwarders.sessions[number];
        let (from, to) = (session.from, session.to);
        if self.life_of(to) != Some(session.to_life) {
            return false;
        }
        if !session.given_up && self.now - session.last_ping > OWNER_WAITS {
            self.trace_event(|| format!("n{to} gives up the session {number} of n{from}"));
            self.coverage.count("forwarder", "the owner gives a session up");
            self.forwarders.sessions[number].given_up = true;
            for one in 0..self.forwarders.connections.len() {
                if self.forwarders.connections[one].session == number
                    && !self.forwarders.connections[one].closed
                {
                    self.end_connection(one);
                    // What has not arrived yet is refused when it does (rule F2).
                    let refused = !self.without(Rule::F2) && self.forwarders.connections[one].opened;
                    self.connection(one).closed = refused;
                }
            }
        }
        !self.forwarders.sessions[number].given_up
    }

    /// What a connection asked for ends, without an answer.
    fn end_connection(&mut self, number: usize) {
        if !self.forwarders.connections[number].left {
            self.linger(number);
        }
        let to = self.session_of(number).to;
        let lingering = std::mem::take(&mut self.connection(number).lingering);
        for (id, asked) in lingering {
            self.ends_unanswered(id, &asked);
            if self.connection(number).at_owner.remove(&id) {
                self.step_volume(to, Event::Cancel(id));
            }
        }
    }

    /// The owner disconnects the clients whose connections have arrived.
    pub(crate) fn disconnect_forwarded(&mut self, node: usize) {
        for number in 0..self.forwarders.connections.len() {
            let connection = &self.forwarders.connections[number];
            if connection.opened && !connection.closed && self.session_of(number).to == node {
                self.connection(number).closed = true;
                self.end_connection(number);
            }
        }
    }

    /// Clients are let in at a node. What comes later under a lower fence is refused (rule F3).
    pub(crate) fn fence_forwarded(&mut self, node: usize) {
        let record = self.nodes[node].process.as_ref().and_then(|process| process.volume.record());
        let Some(fence) = record.map(|record| record.fence) else { return };
        for number in 0..self.forwarders.connections.len() {
            let connection = &self.forwarders.connections[number];
            if !connection.closed && connection.fence < fence && self.session_of(number).to == node {
                let opened = connection.opened;
                self.end_connection(number);
                self.connection(number).closed = opened;
            }
        }
    }

    /// Something arrives at the owner.
    fn arrives(&mut self, number: usize, item: Item) {
        let (session, to) = (self.forwarders.connections[number].session, self.session_of(number).to);
        if self.life_of(to) != Some(self.session_of(number).to_life)
            || self.forwarders.connections[number].closed
        {
            return;
        }
        if !self.owner_keeps(session) && !self.without(Rule::F2) {
            if let Item::Request(_) = item {
                self.coverage.count("forwarder", "refused in a session that was given up");
            }
            return;
        }
        let process = self.nodes[to].process.as_ref().expect("it runs");
        let fence = process.volume.record().map_or(0, |record| record.fence);
        if !self.forwarders.connections[number].opened {
            let lower = self.forwarders.connections[number].fence < fence;
            if lower && process.let_in {
                self.coverage.count("forwarder", "comes under a lower fence");
            }
            if !process.let_in || lower && !self.without(Rule::F3) {
                self.connection(number).closed = true;
                self.end_connection(number);
                return;
            }
            self.connection(number).opened = true;
        }
        match item {
            Item::Request(request) => {
                self.coverage.count("forwarder", "a request arrives");
                self.trace_event(|| format!("n{to} receives {:?} of connection {number}", request.id));
                self.connection(number).at_owner.insert(request.id);
                self.request(to, request);
            }
            Item::End => {
                self.connection(number).closed = true;
                self.end_connection(number);
            }
        }
    }

    /// The owner's volume has completed a request: the answer is sent back, if it is one of a forwarded client.
    pub(crate) fn answers_forwarded(&mut self, id: RequestId, result: Result<(), Failure>) -> bool {
        let has = |connection: &Connection| connection.at_owner.contains(&id);
        // The newest connections are the ones in use.
        let Some(number) = self.forwarders.connections.iter().rposition(has) else { return false };
        self.connection(number).at_owner.remove(&id);
        if let Some(asked) = self.connection(number).lingering.remove(&id) {
            self.check_end(&asked, result);
            self.done += 1;
            self.ends(&asked, false);
            return true;
        }
        let index = self.forwarders.connections[number].tenant;
        let Some(asked) = self.tenants[index].outstanding.remove(&id) else {
            self.fail(Violation::TwiceCompleted(id.0));
            return true;
        };
        self.check_end(&asked, result);
        if result.is_ok() {
            self.check_enough(&asked);
        }
        self.tenants[index].outstanding.insert(id, asked);
        self.connection(number).back.push_back((id, result));
        self.flow(number);
        true
    }

    /// An answer arrives at the forwarding node, and its client has it.
    fn client_has_answer(&mut self, number: usize, id: RequestId, result: Result<(), Failure>) {
        let connection = &self.forwarders.connections[number];
        let index = connection.tenant;
        if let Some(asked) = self.tenants[index].outstanding.remove(&id) {
            self.coverage.count("forwarder", "an answer arrives");
            self.client_has(index, id, &asked, result);
        } else if let Some(asked) = self.connection(number).lingering.remove(&id) {
            self.coverage.count("forwarder", "an answer is lost");
            self.done += 1;
            self.ends(&asked, false);
        }
    }
}

impl Connection {
    /// The requests that are queued.
    fn requests(&self) -> impl Iterator<Item = RequestId> {
        self.queue.iter().filter_map(|item| match item {
            Item::Request(request) => Some(request.id),
            Item::End => None,
        })
    }
}
