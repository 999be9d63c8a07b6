//! A client of NBD and its connection: a [session](Session) with the bytes that it receives and sends.

use std::os::fd::{OwnedFd, RawFd};

use loadline_san_core::map::Map;
use loadline_san_core::message::Content;
use loadline_san_core::volume::Failure;
use loadline_san_device::pool::Blocks;
use loadline_san_transport::channel::Channel;
use loadline_san_transport::socket::Received;

use super::handshake::Choice;
use super::session::Session;
use crate::login::Chosen;
use crate::session::{self, Next, Receiving, Sent, SessionEnd};

/// A client's NBD connection after the handshake: it owns the channel and the session.
#[derive(Debug)]
pub struct Connection {
    channel: Channel,
    session: Session,
}

impl Connection {
    /// Of a client that has chosen a volume of so many bytes.
    pub fn new(channel: Channel, bytes: u64, chosen: &Chosen) -> Connection {
        let choice = Choice::decode(&chosen.negotiated);
        Connection { channel, session: Session::new(choice, bytes, &chosen.rest) }
    }
}

impl session::Session for Connection {
    fn socket(&self) -> &OwnedFd {
        self.channel.socket()
    }

    fn receive(&mut self, from: &mut Receiving<'_>) -> Result<Next, SessionEnd> {
        let (mut received, mut more) = (Received::Nothing, false);
        if from.accepts && self.session.wants_bytes() {
            let Connection { channel, session } = self;
            more = session.receive(from.pool, |spaces| {
                received = channel.receive_to(spaces);
                if let Received::Some(bytes) = received { Some(bytes) } else { None }
            });
        }
        loop {
            match self.session.next(from.pool) {
                Ok(Some(request)) => from.requests.push(request),
                Ok(None) => break,
                Err(why) => return Err(SessionEnd::Protocol(why.to_string())),
            }
        }
        match received {
            Received::End => Err(SessionEnd::Closed),
            Received::Broken(error) => Err(SessionEnd::Broken(error)),
            // Data that were opened and did not fit are there, whatever the socket says.
            Received::Some(_) | Received::Nothing => {
                let waits = self.channel.has_data() && from.accepts && self.session.wants_bytes();
                Ok(if more || waits { Next::More } else { Next::Watch })
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
        self.session.complete(slot, result);
        Ok(())
    }

    fn send(&mut self, has_room: bool, _ring: impl FnMut(RawFd)) -> Result<Sent, SessionEnd> {
        let mut sent = Sent { is_full: !has_room, ..Sent::default() };
        if has_room && (self.session.out.bytes() > 0 || self.channel.has_unsent()) {
            (sent.answers, sent.bytes) = (self.session.take_answered(), self.session.out.bytes());
            let room = self.channel.send_all(&mut self.session.out);
            sent.is_full = !room.map_err(|error| SessionEnd::not_sent(&error))?;
        }
        if self.session.is_over() && !self.channel.has_unsent() { Err(SessionEnd::Closed) } else { Ok(sent) }
    }

    fn bytes(&self) -> usize {
        self.session.taken()
    }

    fn wants_requests(&self) -> bool {
        self.session.wants_bytes()
    }

    fn is_leaving(&self) -> bool {
        self.session.is_leaving()
    }
}
