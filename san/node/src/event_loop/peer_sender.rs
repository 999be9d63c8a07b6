//! What is sent to another node. What that node sends comes by a connection of its own (`peer_receiver`).
//!
//! Messages may be lost: a connection that breaks loses what it held, and core sends it again.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use loadline_san_core::ids::NodeId;
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{
    Content, Entry, EntryOp, FromOwner, FromReplica, Payload, ToOwner, ToReplica,
};
use loadline_san_device::outbox::Outbox;
use loadline_san_device::pool::{BLOCK_BYTES, Blocks};
use loadline_san_device::uring::For;
use loadline_san_protocol::{ClusterId, encode_to_owner, encode_to_replica};
use loadline_san_transport::channel::Channel;
use loadline_san_transport::socket::{Received, shut_down};
use nix::sys::socket::{setsockopt, sockopt};

use crate::outgoing;

/// The most bytes that wait for a peer which does not receive them: more is dropped.
const MOST_UNSENT: usize = 64 << 20;
/// From one attempt to connect to the next.
const RETRY_NS: u64 = 100_000_000;
/// The same, after a handshake has failed so often in a row that it will fail again: each costs both nodes some computing.
const RETRY_UNPROVED_NS: u64 = 2_000_000_000;
/// Handshakes that fail in a row before attempts become rare.
const UNPROVED: u32 = 5;
/// A node that refuses so many attempts in a row has ended: one may be starting anew, or all be stopped at about the same time, and a
/// replica that is removed for that has to be copied to.
const REFUSALS: u32 = 2;
/// A node that is not reached so often in a row is reported in the log.
const FAILURES: u32 = 10;
/// A connection is given up if what was sent is not confirmed for so long, milliseconds.
const UNCONFIRMED_MS: u32 = 5_000;

/// What a connection begins with: its sender and its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// The cluster of both.
    pub cluster: ClusterId,
    /// The sender.
    pub from: NodeId,
    /// The receiver.
    pub to: NodeId,
    /// Which of its loops.
    pub to_loop: u32,
}

impl Preamble {
    /// Bytes of it.
    pub const BYTES: usize = 40;
    const MAGIC: [u8; 8] = *b"LLpeer\0\x01";

    /// As it goes over the wire.
    pub fn encode(&self) -> [u8; Preamble::BYTES] {
        let mut bytes = [0; Preamble::BYTES];
        bytes[..8].copy_from_slice(&Self::MAGIC);
        bytes[8..24].copy_from_slice(&self.cluster.0.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.to_loop.to_le_bytes());
        bytes
    }

    /// From the wire. `None` if it is something else, or of another version.
    pub fn decode(bytes: &[u8; Preamble::BYTES]) -> Option<Preamble> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        (bytes[..8] == Self::MAGIC).then(|| Preamble {
            cluster: ClusterId(u128::from_le_bytes(bytes[8..24].try_into().expect("sixteen bytes"))),
            from: NodeId(number(24)),
            to: NodeId(number(28)),
            to_loop: number(32),
        })
    }
}

#[derive(Debug)]
enum ConnectionState {
    Down,
    Connecting(OwnedFd),
    /// The handshake is done elsewhere, which has the connection.
    Proving,
    Up(Channel),
}

/// A connection whose handshake is to be done.
#[derive(Debug)]
pub struct Unproved {
    /// The connection.
    pub socket: OwnedFd,
    /// The number of the attempt.
    pub attempt: u64,
}

/// A connection whose handshake is done, and the fingerprint of the other node's certificate.
#[derive(Debug)]
pub struct ProvedPeer {
    /// The connection.
    pub channel: Channel,
    /// The fingerprint.
    pub certificate: String,
}

/// The connection by which this node sends messages to another one.
#[derive(Debug)]
pub(super) struct PeerSender {
    name: String,
    /// The address at which this node listens for other nodes, from which it connects.
    own: SocketAddr,
    address: SocketAddr,
    preamble: Preamble,
    state: ConnectionState,
    out: Outbox,
    /// Checksums of the message that is being written.
    checksums: Vec<u32>,
    /// By which the ring knows the connection. Each has its own.
    pub(super) key: u32,
    watched: bool,
    /// It is watched for room.
    watched_for_room: bool,
    /// Its socket has no room.
    blocked: bool,
    /// How often in a row it was not reached.
    failures: u32,
    /// When the last attempt to connect began.
    last_attempt: Moment,
    /// How often in a row it has refused a connection.
    refusals: u32,
    /// Whether a process runs there: it was reached, and has not ended since. `news` is a change of that which was not reported yet.
    runs: bool,
    news: Option<bool>,
    /// Connections are protected: each begins with a handshake.
    is_protected: bool,
    /// Attempts to connect, the connection of the last if its handshake is to be done, and handshakes that failed in a row.
    attempt: u64,
    unproved: Option<Unproved>,
    unproved_in_a_row: u32,
    /// The fingerprint of the other node's certificate, if the connection is protected.
    certificate: Option<String>,
}

impl PeerSender {
    pub(super) fn new(
        name: String,
        own: SocketAddr,
        address: SocketAddr,
        preamble: Preamble,
        is_protected: bool,
    ) -> PeerSender {
        PeerSender {
            name,
            own,
            address,
            preamble,
            state: ConnectionState::Down,
            out: Outbox::default(),
            checksums: Vec::new(),
            key: 0,
            watched: false,
            watched_for_room: false,
            blocked: false,
            failures: 0,
            last_attempt: Moment(0),
            refusals: 0,
            runs: false,
            news: None,
            is_protected,
            attempt: 0,
            unproved: None,
            unproved_in_a_row: 0,
            certificate: None,
        }
    }

    /// It is there now.
    pub(super) fn moved(&mut self, address: SocketAddr) {
        if address != self.address {
            (self.address, self.refusals) = (address, 0);
            self.down("it has another address now");
        }
    }

    /// The descriptor that is to be watched from now on, and for what, if it is not yet.
    pub(super) fn is_to_be_watched(&mut self) -> Option<(i32, For)> {
        let (fd, input, room) = match &self.state {
            ConnectionState::Down | ConnectionState::Proving => return None,
            ConnectionState::Connecting(socket) => (socket.as_raw_fd(), false, true),
            ConnectionState::Up(channel) => (channel.as_raw_fd(), true, self.blocked),
        };
        if room && !std::mem::replace(&mut self.watched_for_room, true) {
            return Some((fd, For::Room));
        }
        // The other side sends nothing here. The socket is watched only to find its end.
        (input && !std::mem::replace(&mut self.watched, true)).then_some((fd, For::Input))
    }

    /// Begins to connect, if it is time. Whether there is a new connection, which needs a key.
    pub(super) fn connect(&mut self, now: Moment) -> bool {
        let retry = if self.unproved_in_a_row < UNPROVED { RETRY_NS } else { RETRY_UNPROVED_NS };
        if !matches!(self.state, ConnectionState::Down) || now < self.last_attempt.after(retry) {
            return false;
        }
        self.last_attempt = now;
        self.attempt += 1;
        match begin_to_connect(self.own, self.address) {
            Ok(socket) => {
                self.state = ConnectionState::Connecting(socket);
                (self.watched, self.watched_for_room, self.blocked) = (false, false, false);
                true
            }
            Err(why) => {
                self.not_reached(&why);
                false
            }
        }
    }

    /// Something is known of the connection.
    pub(super) fn ready(&mut self, what: For) {
        match what {
            For::Input => self.watched = false,
            For::Room => (self.watched_for_room, self.blocked) = (false, false),
        }
        match &self.state {
            ConnectionState::Connecting(socket) => {
                let failed = nix::sys::socket::getsockopt(socket, sockopt::SocketError).unwrap_or(1);
                if failed != 0 {
                    self.not_reached(&io::Error::from_raw_os_error(failed));
                    return;
                }
                let ConnectionState::Connecting(socket) =
                    std::mem::replace(&mut self.state, ConnectionState::Down)
                else {
                    unreachable!("it was just looked at")
                };
                if self.is_protected {
                    self.state = ConnectionState::Proving;
                    self.unproved = Some(Unproved { socket, attempt: self.attempt });
                } else {
                    self.up(Channel::plain(socket));
                }
            }
            ConnectionState::Up(_) if what == For::Input => {
                let ConnectionState::Up(channel) = &mut self.state else {
                    unreachable!("it was just looked at")
                };
                if channel.receive(&mut [0; 64]) != Received::Nothing {
                    self.down("it has closed the connection");
                }
            }
            ConnectionState::Up(_) | ConnectionState::Proving | ConnectionState::Down => {}
        }
    }

    /// The connection whose handshake is to be done, once.
    pub(super) fn take_unproved(&mut self) -> Option<Unproved> {
        self.unproved.take()
    }

    /// The handshake of an attempt was done, or has failed.
    pub(super) fn proved(&mut self, attempt: u64, proved: Result<ProvedPeer, String>) {
        if attempt != self.attempt || !matches!(self.state, ConnectionState::Proving) {
            return;
        }
        match proved {
            Ok(ProvedPeer { channel, certificate }) => {
                (self.certificate, self.unproved_in_a_row) = (Some(certificate), 0);
                (self.watched, self.watched_for_room, self.blocked) = (false, false, false);
                self.up(channel);
            }
            Err(why) => {
                self.unproved_in_a_row = self.unproved_in_a_row.saturating_add(1);
                self.refusals = 0;
                self.down(&why);
            }
        }
    }

    /// The node has these certificates: a connection that was proved by another one ends.
    pub(super) fn keep_proved(&mut self, certificates: &[String]) {
        if self.certificate.as_ref().is_some_and(|certificate| !certificates.contains(certificate)) {
            self.down("its certificate was replaced");
        }
    }

    fn up(&mut self, channel: Channel) {
        self.state = ConnectionState::Up(channel);
        self.refusals = 0;
        self.runs(true);
        self.out.text(self.preamble.encode().to_vec());
        if std::mem::take(&mut self.failures) >= FAILURES {
            tracing::info!(node = self.name, "node {} is reachable again at {}", self.name, self.address);
        }
    }

    /// Whether a process runs there, if that has changed: it takes connections, or it did and refuses them.
    pub(super) fn news(&mut self) -> Option<bool> {
        self.news.take()
    }

    /// The process there ends by order, soon. What runs there next takes a connection of its own.
    pub(super) fn ends(&mut self) {
        self.runs(false);
    }

    /// Another process runs there since. If the order that it ends came after the connection of that process, it is connected anew, so
    /// that it counts as running.
    pub(super) fn ended_so(&mut self) {
        if !self.runs && matches!(self.state, ConnectionState::Up(_)) {
            self.down("its process has started again");
        }
    }

    fn runs(&mut self, runs: bool) {
        if std::mem::replace(&mut self.runs, runs) != runs {
            self.news = Some(runs);
        }
    }

    fn not_reached(&mut self, why: &io::Error) {
        if why.kind() == io::ErrorKind::ConnectionRefused {
            self.refusals = self.refusals.saturating_add(1);
            if self.refusals >= REFUSALS {
                self.runs(false);
            }
        } else {
            self.refusals = 0;
        }
        self.down(&why.to_string());
    }

    /// The connection is given up, and tried again: at once, unless that was just tried. Whose process has ended refuses it.
    pub(super) fn down(&mut self, why: &str) {
        match &self.state {
            ConnectionState::Connecting(socket) => shut_down(socket),
            ConnectionState::Up(channel) => shut_down(channel),
            ConnectionState::Proving | ConnectionState::Down => {}
        }
        self.state = ConnectionState::Down;
        self.certificate = None;
        self.out = Outbox::default();
        self.failures = self.failures.saturating_add(1);
        if self.failures == FAILURES {
            tracing::warn!(
                node = self.name,
                "node {} is not reachable at {}: {why}; this node keeps trying to connect",
                self.name,
                self.address
            );
        }
    }

    /// Takes a message, if the connection can.
    fn takes(&mut self) -> bool {
        matches!(self.state, ConnectionState::Up(_)) && self.out.bytes() < MOST_UNSENT
    }

    /// Says something to a replica.
    pub(super) fn send_to_replica(&mut self, from: &FromOwner, message: &ToReplica<Blocks>) {
        if !self.takes() {
            return;
        }
        let data = match message {
            ToReplica::Entry { entry, .. } | ToReplica::OutOfBand { entry, .. } => data_of(entry),
            _ => None,
        };
        self.take_checksums(data);
        let (checksums, cluster) = (&self.checksums, self.preamble.cluster);
        let written = self.out.write(|out| encode_to_replica(cluster, from, message, |_| checksums, out));
        self.written(written.map_err(|why| why.to_string()), data);
    }

    /// Says something to an owner.
    pub(super) fn send_to_owner(&mut self, from: &FromReplica, message: &ToOwner<Blocks>) {
        if !self.takes() {
            return;
        }
        let data = match message {
            ToOwner::Data { content: Ok(Content::Data(payload) | Content::Sparse(payload, _)), .. } => {
                Some((payload, payload.data.blocks() - payload.first))
            }
            _ => None,
        };
        self.take_checksums(data);
        let (checksums, cluster) = (&self.checksums, self.preamble.cluster);
        let written = self.out.write(|out| encode_to_owner(cluster, from, message, |_| checksums, out));
        self.written(written.map_err(|why| why.to_string()), data);
    }

    fn take_checksums(&mut self, data: Option<(&Payload<Blocks>, u32)>) {
        self.checksums.clear();
        if let Some((payload, blocks)) = data {
            let (first, blocks) = (payload.first as usize, blocks as usize);
            self.checksums.extend(payload.data.checksums().skip(first).take(blocks));
        }
    }

    fn written(&mut self, written: Result<(), String>, data: Option<(&Payload<Blocks>, u32)>) {
        if let Err(why) = written {
            tracing::error!(node = self.name, "a message to node {} cannot be sent: {why}", self.name);
        } else if let Some((payload, blocks)) = data {
            let first = payload.first as usize * BLOCK_BYTES;
            self.out.data(payload.data.clone(), first..first + blocks as usize * BLOCK_BYTES);
        }
    }

    /// Sends the queued messages.
    pub(super) fn flush(&mut self) {
        if let ConnectionState::Up(channel) = &mut self.state
            && !self.blocked
        {
            match channel.send_all(&mut self.out) {
                Ok(room) => self.blocked = !room,
                Err(why) => self.down(&why.to_string()),
            }
        }
    }
}

/// The data of an entry, and how many blocks.
fn data_of(entry: &Entry<Blocks>) -> Option<(&Payload<Blocks>, u32)> {
    match &entry.op {
        EntryOp::Data(payload) => Some((payload, entry.blocks)),
        _ => None,
    }
}

/// Begins to connect from the address `own`, and does not wait.
fn begin_to_connect(own: SocketAddr, address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = outgoing::begin_to_connect(own, address)?;
    setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    setsockopt(&socket, sockopt::TcpUserTimeout, &UNCONFIRMED_MS)?;
    Ok(socket)
}
