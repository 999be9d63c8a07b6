//! The contract between the data path and a client that was let in to a volume: bytes or queues in, block requests out;
//! completions in, answers out. A session owns its connection, and reads and writes it itself. It never waits.

use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use loadline_san_core::lease::Moment;
use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::direct_read::DirectRead;
use loadline_san_device::pool::{Blocks, Pool};
use nix::errno::Errno;
use thiserror::Error;

use crate::block::BlockRequest;
use crate::scsi::task::{Change, ChangeFailed};

/// Why a session ends.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionEnd {
    /// The client has closed the connection, as it may.
    #[error("the client has closed the connection")]
    Closed,
    /// The system has closed the connection.
    #[error("its connection is broken: {0}")]
    Broken(Errno),
    /// The client violates its protocol, or needs something that this node does not have, such as memory.
    #[error("{0}")]
    Protocol(String),
}

impl SessionEnd {
    /// The end of a session after this error of a send.
    pub fn not_sent(error: &std::io::Error) -> SessionEnd {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EPIPE | Errno::ECONNRESET) => SessionEnd::Closed,
            other => SessionEnd::Broken(other.unwrap_or(Errno::UnknownErrno)),
        }
    }
}

/// What the caller passes to [`Session::receive`].
#[derive(Debug)]
pub struct Receiving<'a> {
    /// The pool into which data of writes is received.
    pub pool: &'a Pool,
    /// The last reading of the clock: no later than now.
    pub now: Moment,
    /// There is memory for more requests. If it is false, the session only handles what needs none.
    pub accepts: bool,
    /// The connection was ready to be read since the session last returned [`Next::Watch`].
    pub is_ready: bool,
    /// Where requests are added.
    pub requests: &'a mut Vec<BlockRequest>,
}

/// When a session is to receive again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When its socket is ready to be read.
    Watch,
    /// At once: there may be more.
    More,
    /// A little later, without a notification.
    Later,
}

/// The result of [`Session::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Added requests whose answers were sent. Requests that were refused do not count.
    pub answers: usize,
    /// Bytes that were handed over to be sent.
    pub bytes: usize,
    /// The socket has no room: the rest is sent when it has.
    pub is_full: bool,
}

/// Identifies the requests that a front-end keeps across a failure of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment {
    /// The cluster's id.
    pub cluster: u128,
    /// The volume's id.
    pub volume: u64,
    /// The number of the attachment.
    pub number: u64,
    /// The attachment since which no other node has owned the volume.
    pub alone_since: u64,
}

/// How a queue in shared memory is to be watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueWatch {
    /// The queue is watched by this eventfd from now on.
    By(RawFd),
    /// The queue is not watched any more.
    No,
}

/// A client that was let in to a volume.
///
/// The caller calls [receive](Session::receive) once when the session is opened, and whenever its socket is ready; after each of these
/// it calls [send](Session::send), also if nothing is to be sent. All parts of a read come before the caller calls
/// [complete](Session::complete). Requests of one client may be carried out in any order and at once: a protocol that promises an
/// order keeps it itself.
///
/// A client that closes its direction of the connection has gone: what it sent and was not begun is dropped, and nothing is answered.
/// So a protocol has a farewell ([`Session::is_leaving`]), or its clients wait for their answers. When another node takes the volume
/// over, the loop ends the session.
pub trait Session {
    /// The connection: it is watched for [input](Next::Watch) and room, and shut down at the end.
    fn socket(&self) -> &OwnedFd;

    /// Takes what the client has sent, and adds the requests that are there. A request that is refused is answered, without
    /// being added. An error ends the session.
    fn receive(&mut self, from: &mut Receiving<'_>) -> Result<Next, SessionEnd>;

    /// A part of what a request reads: so many blocks of 4 KiB. Block 0 is the block that has the request's first sector, so the
    /// first part may begin before the request does. Zeroes are filled in in [`Content::Sparse`]. Parts may come more than once and
    /// overlap; the last one counts.
    fn fill(&mut self, slot: u32, at: u64, blocks: u32, content: Content<Blocks>);

    /// What the blocks of a request for a [map](crate::block::Operation::Map) hold, counted in the same way.
    ///
    /// # Panics
    /// If the session requested none.
    fn map(&mut self, slot: u32, map: Map);

    /// A request is complete, and is to be answered. An error ends the session.
    fn complete(&mut self, slot: u32, result: Result<(), Failure>) -> Result<(), SessionEnd>;

    /// Sends answers, unless the socket has no room (`has_room`), and notifies the client where it has requested that: by one
    /// more in each eventfd that `ring` is called with. An error ends the session.
    fn send(&mut self, has_room: bool, ring: impl FnMut(RawFd)) -> Result<Sent, SessionEnd>;

    /// Bytes that requests, and answers that were not sent, take or may take. Bytes that were received and are no request yet do not
    /// count.
    fn bytes(&self) -> usize;

    /// Whether the session takes requests now. If not, it does once some are complete and sent. When it does again, the caller calls
    /// [receive](Session::receive) although the socket is not ready: requests that were received and not added need nothing else.
    fn wants_requests(&self) -> bool;

    /// Whether the client has announced that it leaves. Its requests are still carried out.
    fn is_leaving(&self) -> bool {
        false
    }

    /// Whether the session is to receive again although its socket was not ready: it waited for what is complete now. It must not stay
    /// so after it has received without [memory](Receiving::accepts).
    fn wants_turn(&self) -> bool {
        false
    }

    /// Whether the socket is watched while the session takes no requests, too.
    fn is_always_watched(&self) -> bool {
        false
    }

    /// So much time has passed since the last call, without the time for which the process was stopped: the caller calls it about every half
    /// second. Whether the session has something to send. An error ends the session.
    fn pass_time(&mut self, _passed: Duration) -> Result<bool, SessionEnd> {
        Ok(false)
    }

    /// How long this request may wait until it begins; `None` if for as long as it takes. The caller completes it with
    /// [`Failure::TooMany`] after that.
    fn longest_wait(&mut self, _slot: u32) -> Option<Duration> {
        None
    }

    /// What the client has sent until now may have waited so long, since the session could not begin earlier.
    fn has_waited(&mut self, _waited: Duration) {}

    /// The volume was attached again, and no other node has owned it meanwhile. A session that stands by carries requests out from now on.
    fn attached(&mut self, _attachment: Attachment) {}

    // ---- what the sessions of a volume share -----------------------------------------------------------

    /// Adds the changes of the configuration that the session needs, each with a number by which it is answered: see
    /// [`changed`](Self::changed). The caller calls it after [receive](Self::receive), [complete](Self::complete) and
    /// [send](Self::send).
    fn take_changes(&mut self, _into: &mut Vec<(u32, Change)>) {}

    /// The configuration was changed as the session needs it by this number, or not.
    ///
    /// # Panics
    /// If the session requested none.
    fn changed(&mut self, _ticket: u32, _result: Result<(), ChangeFailed>) {}

    /// Whether other sessions of the volume may go on by what this one has done: the caller then gives each of them a turn, with
    /// [receive](Self::receive) and [send](Self::send).
    fn take_wakes(&mut self) -> bool {
        false
    }

    // ---- queues in memory that the client shares -------------------------------------------------------

    /// Whether requests come by queues in shared memory, which are polled.
    fn has_queues(&self) -> bool {
        false
    }

    /// Whether the client has begun to use the volume: a queue of it runs. Until then it has only asked what the volume is, and has set up
    /// how it would use it.
    fn has_started(&self) -> bool {
        false
    }

    /// Whether there is a request in a queue that may be taken.
    fn has_queued(&self) -> bool {
        false
    }

    /// From now on the client must notify of requests by eventfds. Returns whether a request is there already.
    fn arm_queues(&mut self) -> bool {
        false
    }

    /// The number of a queue that is to be watched differently from now on, and how. Each is returned once,
    /// until it [notified](Self::queue_notified).
    fn next_queue_watch(&mut self) -> Option<(u16, QueueWatch)> {
        None
    }

    /// The eventfd of a queue was ready.
    fn queue_notified(&mut self, _queue: u16) {}

    /// Memory of the client to which blocks of a request may be read, counted as in [`Self::fill`]; `None` if they must be filled.
    fn direct_read(&self, _slot: u32, _at: u64, _blocks: u32) -> Option<DirectRead> {
        None
    }
}
