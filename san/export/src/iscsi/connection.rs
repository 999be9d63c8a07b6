//! An initiator and its connection: a session with the bytes that it receives and sends.

use std::io::Error;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::{Blocks, Pool};
use loadline_san_transport::channel::Channel;
use loadline_san_transport::socket::Received;

use super::error::SessionError;
use super::negotiated::Negotiated;
use super::session::Session;
use crate::login::Chosen;
use crate::scsi::task::{Change, ChangeFailed};
use crate::scsi::unit::SharedUnit;
use crate::session::{self, Attachment, Next, Receiving, Sent, SessionEnd};

/// The connection of an initiator that has logged in: it owns the channel and the session.
#[derive(Debug)]
pub struct Connection {
    channel: Channel,
    session: Session,
    /// The pool of the loop, from the first time that it is passed.
    pool: Option<Pool>,
    /// What has ended the session where nothing could say so.
    failed: Option<SessionError>,
    /// The configuration was changed for it: the caller is to take what comes of that.
    was_changed: bool,
}

impl Connection {
    /// Of an initiator that has chosen this volume. `is_serving`: this node serves the volume, so that commands are carried out; if not, the
    /// session stands by until it is [attached](session::Session::attached). Fails if what was negotiated is none of this protocol.
    pub fn new(
        channel: Channel,
        volume: &str,
        chosen: &Chosen,
        unit: SharedUnit,
        is_serving: bool,
    ) -> std::io::Result<Connection> {
        let negotiated = Negotiated::decode(&chosen.negotiated).ok_or_else(|| {
            Error::other("what its login has agreed on is not known here: it is of another version")
        })?;
        let session = Session::new(negotiated, volume, unit, is_serving, &chosen.rest);
        Ok(Connection { channel, session, pool: None, failed: None, was_changed: false })
    }

    fn receive_bytes(&mut self, pool: &Pool) -> (Received, bool) {
        let Connection { channel, session, .. } = self;
        let mut received = Received::Nothing;
        let more = session.reader().receive(pool, |spaces| {
            received = channel.receive_to(spaces);
            if let Received::Some(bytes) = received { Some(bytes) } else { None }
        });
        if matches!(received, Received::Some(_)) {
            session.liveness().received();
        }
        (received, more)
    }
}

fn ended(why: SessionError) -> SessionEnd {
    SessionEnd::Protocol(why.to_string())
}

impl session::Session for Connection {
    fn socket(&self) -> &OwnedFd {
        self.channel.socket()
    }

    fn receive(&mut self, from: &mut Receiving<'_>) -> Result<Next, SessionEnd> {
        self.was_changed = false;
        if let Some(why) = self.failed.take() {
            return Err(ended(why));
        }
        let pool = self.pool.get_or_insert_with(|| from.pool.clone()).clone();
        let has_entered = self.session.turn(&pool, from.accepts).map_err(ended)?;
        let (mut received, mut more) = (Received::Nothing, false);
        // Without memory for more, only data that was asked for or announced is waited for.
        let reads = from.accepts || self.session.awaits_data();
        if reads && self.session.wants_bytes() && (from.is_ready || self.channel.has_data()) {
            (received, more) = self.receive_bytes(&pool);
        }
        if reads {
            self.session.take_received(&pool).map_err(ended)?;
        }
        self.session.settle(&pool).map_err(ended)?;
        from.requests.append(&mut self.session.tasks().requests);
        match received {
            Received::End => Err(SessionEnd::Closed),
            Received::Broken(error) => Err(SessionEnd::Broken(error)),
            // Data that were opened and did not fit are there, whatever the socket says.
            Received::Some(_) | Received::Nothing => {
                let may = (from.accepts || self.session.awaits_data()) && self.session.wants_bytes();
                Ok(match more || self.channel.has_data() {
                    true if may => Next::More,
                    // A former session of its name leaves soon.
                    _ if !has_entered => Next::Later,
                    _ => Next::Watch,
                })
            }
        }
    }

    fn fill(&mut self, slot: u32, at: u64, blocks: u32, content: Content<Blocks>) {
        self.session.fill(slot, at, blocks, content);
    }

    fn map(&mut self, slot: u32, map: Map) {
        self.session.map(slot, map);
    }

    fn complete(&mut self, slot: u32, result: Result<(), Failure>) -> Result<(), SessionEnd> {
        let pool = self.pool.clone().expect("it was passed with the first request");
        self.session.complete(slot, result, &pool).map_err(ended)
    }

    fn send(&mut self, has_room: bool, _ring: impl FnMut(RawFd)) -> Result<Sent, SessionEnd> {
        let mut sent = Sent { is_full: !has_room, ..Sent::default() };
        if has_room && (self.session.sender().out.bytes() > 0 || self.channel.has_unsent()) {
            sent.answers = std::mem::take(&mut self.session.tasks().answered);
            sent.bytes = self.session.sender().out.bytes();
            let room = self.channel.send_all(&mut self.session.sender().out);
            sent.is_full = !room.map_err(|error| SessionEnd::not_sent(&error))?;
            if self.session.sender().out.bytes() < sent.bytes {
                self.session.liveness().sent();
            }
        }
        if self.session.is_over() && !self.channel.has_unsent() { Err(SessionEnd::Closed) } else { Ok(sent) }
    }

    fn bytes(&self) -> usize {
        self.session.bytes()
    }

    fn wants_requests(&self) -> bool {
        self.session.wants_bytes()
    }

    fn is_leaving(&self) -> bool {
        self.session.is_leaving()
    }

    fn wants_turn(&self) -> bool {
        self.session.wants_turn() || self.was_changed
    }

    fn is_always_watched(&self) -> bool {
        self.session.awaits_data() && self.session.wants_bytes()
    }

    fn pass_time(&mut self, passed: Duration) -> Result<bool, SessionEnd> {
        self.session.pass(passed).map_err(ended)
    }

    fn longest_wait(&mut self, slot: u32) -> Option<Duration> {
        self.session.tasks().longest_wait(slot)
    }

    fn has_waited(&mut self, waited: Duration) {
        self.session.tasks().waited_before = waited;
    }

    fn attached(&mut self, _attachment: Attachment) {
        self.session.serve();
    }

    fn take_changes(&mut self, into: &mut Vec<(u32, Change)>) {
        into.append(&mut self.session.tasks().changes);
    }

    fn changed(&mut self, ticket: u32, result: Result<(), ChangeFailed>) {
        let pool = self.pool.clone().expect("it was passed before the change was requested");
        self.failed = self.session.changed(ticket, result, &pool).err();
        self.was_changed = true;
    }

    fn take_wakes(&mut self) -> bool {
        self.session.take_wakes()
    }
}
