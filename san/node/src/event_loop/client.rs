//! A client of a volume: its session, and what the loop has to remember of its connection.

use loadline_san_core::ids::VolumeId;
use loadline_san_export::front_ends::AnySession;
use loadline_san_export::session::Session as _;

use super::backlog::ReplyBacklog;
use super::command::SessionId;
use super::confirmed::Confirmed;

/// How log messages name a client, and on what its connection depends: a session between nodes, a certificate, the name of an initiator.
#[derive(Debug)]
pub(super) struct ClientOrigin {
    /// The address of the client.
    pub(super) from: String,
    /// The name of its volume.
    pub(super) name: String,
    /// The session by which another node forwards it.
    pub(super) session: Option<SessionId>,
    /// The fingerprint of the certificate by which this node has let it in.
    pub(super) certificate: Option<String>,
    /// The initiator as which this node has let it in, from beyond its machine, and the number of its naming.
    pub(super) initiator: Option<(String, u64)>,
}

/// What a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its first queue.
    Waits,
    /// An attach at this node.
    Started,
    /// That core carries out the attach.
    Announced,
}

/// A client that stands by: its node does not own the volume, and its session answers whatever needs no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StandsBy {
    /// Until this node serves the volume.
    Waits,
    /// Until core lets it in.
    Announced,
    /// Until this node owns the volume, and its reservations were read since (rule U1).
    LetIn,
}

/// A client that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The number of the attachment that waits, which no other one of this process has.
    pub(super) number: u64,
    pub(super) stage: Stage,
}

/// What has become of a client that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitingNews {
    Started,
    Gone,
}

/// A connected client of one volume: its session and the state of its connection in this loop.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) session: AnySession,
    pub(super) origin: ClientOrigin,
    pub(super) volume: VolumeId,
    /// It waits beside the volume's clients, and may request nothing (rule H1).
    pub(super) waiting: Option<Waiting>,
    /// It stands by, and requests nothing.
    pub(super) standby: Option<StandsBy>,
    /// Whether its host confirms what it is sent.
    pub(super) confirmed: Confirmed,
    /// The ring watches its socket for input.
    pub(super) watched: bool,
    /// The ring watches its socket for room.
    pub(super) watched_for_room: bool,
    /// Its socket has no room.
    pub(super) blocked: bool,
    /// It receives in the next round, whether or not its socket is ready.
    pub(super) next: bool,
    /// It receives at the next tick.
    pub(super) late: bool,
    /// It takes no requests for now.
    pub(super) paused: bool,
    /// It is in the list of those that wait until there is memory.
    pub(super) starved: bool,
    /// Bytes that its requests and answers take, as they were counted last.
    pub(super) taken: usize,
    /// Its queues are polled.
    pub(super) polled: bool,
    /// Something is in its queues, and it is in the list of those that receive.
    pub(super) listed: bool,
    /// How often it was found to have left and closed its direction while requests of it were carried out.
    pub(super) leaves: u32,
    /// Answers that it has not read.
    pub(super) backlog: ReplyBacklog,
    /// The keys by which the ring watches its queues.
    pub(super) queue_keys: Vec<Option<u32>>,
}

impl Client {
    /// Whether it was let in.
    pub(super) fn is_let_in(&self) -> bool {
        self.waiting.is_none() && self.standby.is_none()
    }

    pub(super) fn new(session: AnySession, volume: VolumeId, origin: ClientOrigin) -> Client {
        Client {
            backlog: ReplyBacklog::new(session.socket()),
            session,
            origin,
            volume,
            waiting: None,
            standby: None,
            confirmed: Confirmed::default(),
            watched: false,
            watched_for_room: false,
            blocked: false,
            next: false,
            late: false,
            paused: false,
            taken: 0,
            polled: false,
            listed: false,
            starved: false,
            leaves: 0,
            queue_keys: Vec::new(),
        }
    }
}
