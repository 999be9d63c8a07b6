//! All front ends: the one place that names each protocol. What else has to do with a protocol is in its own folder.

use std::io::Error;
use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::direct_read::DirectRead;
use loadline_san_device::pool::Blocks;
use loadline_san_transport::channel::Channel;

use crate::login::{Chosen, Login};
use crate::scsi::task::{Change, ChangeFailed};
use crate::scsi::unit::SharedUnit;
use crate::session::{Attachment, Next, QueueWatch, Receiving, Sent, Session, SessionEnd};
use crate::ways::Ways;
use crate::{iscsi, nbd, vhost};

/// Makes the enum, and `ALL` with every variant of it: no listener would serve a protocol that is missing there.
macro_rules! protocols {
    ($(#[$about:meta])* pub enum Protocol { $($(#[$of:meta])* $variant:ident,)* }) => {
        $(#[$about])*
        pub enum Protocol {
            $($(#[$of])* $variant,)*
        }

        impl Protocol {
            /// All protocols, in the order in which they are listed.
            pub const ALL: [Protocol; [$(stringify!($variant)),*].len()] = [$(Protocol::$variant),*];
        }
    };
}

protocols! {
    /// A protocol by which clients reach volumes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Protocol {
        /// The network block device.
        Nbd,
        /// vhost-user-blk: virtual machines and programs on the same host, by memory that both see.
        Vhost,
        /// iSCSI: any hypervisor, by several paths.
        Iscsi,
    }
}

/// Where a node listens for clients of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// At an address of the node, on this TCP port if no other is chosen, and at a unix socket of this name in the node's folder.
    /// Clients name their volume there.
    Node {
        /// The port.
        port: u16,
        /// The name of the unix socket.
        socket: &'static str,
    },
    /// At a unix socket of each volume that is attached at the node, in this folder below the node's. There is no login.
    Volume {
        /// The name of the folder.
        folder: &'static str,
    },
}

impl Protocol {
    /// The name in configuration, in the API and in messages. No other protocol ever has it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Nbd => "nbd",
            Protocol::Vhost => "vhost-user-blk",
            Protocol::Iscsi => "iscsi",
        }
    }

    /// The protocol of this name.
    pub fn of_name(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.name() == name)
    }

    /// The number between nodes. No other protocol ever has it.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Nbd => 1,
            Protocol::Vhost => 2,
            Protocol::Iscsi => 3,
        }
    }

    /// The protocol of this number.
    pub fn of_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
    }

    /// Where a node listens for it.
    pub fn endpoint(self) -> Endpoint {
        match self {
            Protocol::Nbd => Endpoint::Node { port: 10809, socket: "nbd.sock" },
            Protocol::Vhost => Endpoint::Volume { folder: "vhost" },
            Protocol::Iscsi => Endpoint::Node { port: loadline_base::iscsi::PORT, socket: "iscsi.sock" },
        }
    }

    /// Which other programs listen at its port on some hosts, for messages.
    pub fn other_servers(self) -> &'static str {
        match self {
            Protocol::Nbd => "another NBD server, such as nbd-server or qemu-nbd",
            Protocol::Vhost => "another process",
            Protocol::Iscsi => "another iSCSI target, such as tgtd or that of the kernel (LIO)",
        }
    }

    /// How clients name a volume at a node that listens at this address of the network, if at any, and at this unix socket.
    pub fn ways(self, volume: &str, address: Option<SocketAddr>, socket: &Path) -> Ways {
        match self {
            Protocol::Nbd => nbd::ways(volume, address, socket),
            Protocol::Vhost => Ways { network: None, local: Some(socket.display().to_string()) },
            Protocol::Iscsi => iscsi::ways(volume, address),
        }
    }

    /// A client that has connected to a node's endpoint; `None` if the protocol has no login. `is_local`: it came by a unix socket or from an
    /// address of the machine itself.
    pub fn login(self, is_local: bool) -> Option<Box<dyn Login>> {
        match self {
            Protocol::Nbd => Some(Box::new(nbd::handshake::Handshake::default())),
            Protocol::Vhost => None,
            Protocol::Iscsi => Some(Box::new(iscsi::login::TargetLogin::new(is_local))),
        }
    }

    /// Whether a volume has one client of the protocol at a time.
    pub fn is_exclusive(self) -> bool {
        match self {
            Protocol::Nbd | Protocol::Iscsi => false,
            Protocol::Vhost => true,
        }
    }

    /// The initiator as which a client of this protocol has logged in, if it is one of iSCSI.
    pub fn initiator_of(self, chosen: &Chosen) -> Option<String> {
        let decoded =
            (self == Protocol::Iscsi).then(|| iscsi::negotiated::Negotiated::decode(&chosen.negotiated));
        decoded?.map(|of| of.initiator)
    }

    /// Whether clients have paths to several nodes: those at a node that does not own the volume are let in, and stand by.
    pub fn stands_by(self) -> bool {
        match self {
            Protocol::Nbd | Protocol::Vhost => false,
            Protocol::Iscsi => true,
        }
    }
}

/// What a session begins with.
#[derive(Debug)]
pub struct Opening<'a> {
    /// The connection, which does not block.
    pub channel: Channel,
    /// The size of the volume that the client knows, in bytes.
    pub bytes: u64,
    /// The name of the volume.
    pub name: &'a str,
    /// What the client has chosen.
    pub chosen: &'a Chosen,
    /// What requests that are kept across a failure are found by; `None` if this node does not own the volume.
    pub attachment: Option<Attachment>,
    /// The logical unit that the sessions of the volume in this loop share, if the volume has one.
    pub unit: Option<SharedUnit>,
}

/// A session of any protocol.
#[derive(Debug)]
pub enum AnySession {
    /// A session of NBD.
    Nbd(Box<nbd::connection::Connection>),
    /// A session of vhost-user-blk.
    Vhost(Box<vhost::session::Session>),
    /// A session of iSCSI.
    Iscsi(Box<iscsi::connection::Connection>),
}

impl AnySession {
    /// Begins a session. The error states why that cannot be.
    pub fn open(protocol: Protocol, opening: Opening<'_>) -> std::io::Result<AnySession> {
        let Opening { channel, bytes, name, chosen, attachment, unit } = opening;
        Ok(match protocol {
            Protocol::Nbd => {
                AnySession::Nbd(Box::new(nbd::connection::Connection::new(channel, bytes, chosen)))
            }
            Protocol::Vhost => {
                let attachment = attachment.ok_or_else(|| Error::other("it is not owned here"))?;
                let socket = channel.into_socket();
                AnySession::Vhost(Box::new(vhost::session::Session::new(socket, bytes, name, attachment)?))
            }
            Protocol::Iscsi => {
                let unit = unit.ok_or_else(|| Error::other("it has no logical unit here"))?;
                let is_serving = attachment.is_some();
                let connection = iscsi::connection::Connection::new(channel, name, chosen, unit, is_serving)?;
                AnySession::Iscsi(Box::new(connection))
            }
        })
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            AnySession::Nbd(_) => Protocol::Nbd,
            AnySession::Vhost(_) => Protocol::Vhost,
            AnySession::Iscsi(_) => Protocol::Iscsi,
        }
    }
}

/// The same call on whichever session it is.
macro_rules! each {
    ($any:ident.$call:ident($($argument:expr),*)) => {
        match $any {
            AnySession::Nbd(session) => session.$call($($argument),*),
            AnySession::Vhost(session) => session.$call($($argument),*),
            AnySession::Iscsi(session) => session.$call($($argument),*),
        }
    };
}

impl Session for AnySession {
    fn socket(&self) -> &OwnedFd {
        each!(self.socket())
    }

    fn receive(&mut self, from: &mut Receiving<'_>) -> Result<Next, SessionEnd> {
        each!(self.receive(from))
    }

    fn fill(&mut self, slot: u32, at: u64, blocks: u32, content: Content<Blocks>) {
        each!(self.fill(slot, at, blocks, content));
    }

    fn map(&mut self, slot: u32, map: Map) {
        each!(self.map(slot, map));
    }

    fn complete(&mut self, slot: u32, result: Result<(), Failure>) -> Result<(), SessionEnd> {
        each!(self.complete(slot, result))
    }

    fn send(&mut self, has_room: bool, ring: impl FnMut(RawFd)) -> Result<Sent, SessionEnd> {
        each!(self.send(has_room, ring))
    }

    fn bytes(&self) -> usize {
        each!(self.bytes())
    }

    fn wants_requests(&self) -> bool {
        each!(self.wants_requests())
    }

    fn is_leaving(&self) -> bool {
        each!(self.is_leaving())
    }

    fn wants_turn(&self) -> bool {
        each!(self.wants_turn())
    }

    fn is_always_watched(&self) -> bool {
        each!(self.is_always_watched())
    }

    fn pass_time(&mut self, passed: Duration) -> Result<bool, SessionEnd> {
        each!(self.pass_time(passed))
    }

    fn longest_wait(&mut self, slot: u32) -> Option<Duration> {
        each!(self.longest_wait(slot))
    }

    fn has_waited(&mut self, waited: Duration) {
        each!(self.has_waited(waited))
    }

    fn attached(&mut self, attachment: Attachment) {
        each!(self.attached(attachment));
    }

    fn take_changes(&mut self, into: &mut Vec<(u32, Change)>) {
        each!(self.take_changes(into));
    }

    fn changed(&mut self, ticket: u32, result: Result<(), ChangeFailed>) {
        each!(self.changed(ticket, result));
    }

    fn take_wakes(&mut self) -> bool {
        each!(self.take_wakes())
    }

    fn has_queues(&self) -> bool {
        each!(self.has_queues())
    }

    fn has_started(&self) -> bool {
        each!(self.has_started())
    }

    fn has_queued(&self) -> bool {
        each!(self.has_queued())
    }

    fn arm_queues(&mut self) -> bool {
        each!(self.arm_queues())
    }

    fn next_queue_watch(&mut self) -> Option<(u16, QueueWatch)> {
        each!(self.next_queue_watch())
    }

    fn queue_notified(&mut self, queue: u16) {
        each!(self.queue_notified(queue));
    }

    fn direct_read(&self, slot: u32, at: u64, blocks: u32) -> Option<DirectRead> {
        each!(self.direct_read(slot, at, blocks))
    }
}
