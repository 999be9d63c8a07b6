//! The client of a volume: it writes one block now and then, wherever the volume is served.
//!
//! A client connects to the node that owns the volume as soon as the record says so and that node serves it. How a client finds that
//! node, and how long its connection takes to break, is not simulated: what is measured is when the volume serves.

use loadline_san_core::record::RecordState;
use loadline_san_core::volume::{Event, Failure, Request, RequestId, RequestOp, SECTORS, Status};

use super::{BLOCKS, Happening, World};
use crate::store::{Block, Blocks, ZERO};
use crate::time::{MS, Time};

/// From one write of a client to its next one.
pub(in crate::scale) const PERIOD: Time = 1_000 * MS;
/// How often a client without a connection searches for the node that serves its volume.
const LOOKS: Time = 10 * MS;

/// Where a client is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Nowhere,
    /// A client was announced to the node.
    Coming(usize),
    At(usize),
}

/// What a block may hold: what was acknowledged last, and what was written since and not acknowledged.
#[derive(Debug, Clone, Default)]
struct Content {
    acknowledged: u64,
    maybe: Vec<u64>,
}

/// The client of one volume.
#[derive(Debug, Default)]
pub(in crate::scale) struct Client {
    place: Place,
    /// The write that is under way: its id and its block, if a node has it; and since when it waits.
    write: Option<(RequestId, u64)>,
    since: Option<Time>,
    writes: u64,
    contents: Vec<Content>,
    /// The longest time that a write has waited, since the phase began.
    pub(in crate::scale) stall: Time,
}

impl Client {
    /// The client was announced to a node.
    pub(in crate::scale) fn comes_to(&mut self, node: usize) {
        self.place = Place::Coming(node);
    }

    /// It loses its connection to a node, if it has one. What it has asked for may have been done or not.
    pub(in crate::scale) fn lose(&mut self, node: usize) {
        if matches!(self.place, Place::At(at) | Place::Coming(at) if at == node) {
            self.place = Place::Nowhere;
            self.write = None;
        }
    }

    /// Whether it has a connection, and nothing to wait for.
    pub(in crate::scale) fn is_content(&self) -> bool {
        matches!(self.place, Place::At(_)) && self.since.is_none()
    }

    /// The values that a block may hold.
    pub(in crate::scale) fn may_hold(&self, block: u64) -> Vec<u64> {
        let content = self.contents.get(block as usize);
        content.map_or(vec![0], |content| {
            std::iter::once(content.acknowledged).chain(content.maybe.iter().copied()).collect()
        })
    }

    /// How long a write has waited at this moment that still waits.
    pub(in crate::scale) fn waits(&self, now: Time) -> Time {
        self.since.map_or(0, |since| now - since)
    }
}

impl World {
    /// It is time for a client to do something.
    pub(in crate::scale) fn client_acts(&mut self, volume: usize) {
        self.connect_client(volume);
        if self.writes && self.volumes[volume].client.since.is_none() {
            self.begin_write(volume);
        }
        let is_placed = matches!(self.volumes[volume].client.place, Place::At(_));
        let next = if is_placed { PERIOD } else { LOOKS };
        self.after(next, Happening::Client(volume));
    }

    /// A client without a connection connects to the node that serves its volume, if there is one.
    fn connect_client(&mut self, volume: usize) {
        let of = &self.volumes[volume];
        let serves = |node: usize| {
            let process = self.nodes[node].process.as_ref();
            let status = process.and_then(|process| process.volumes.get(&volume)).map(|of| of.status());
            matches!(status, Some(Status::Active | Status::Changing))
        };
        match of.client.place {
            // Another node has taken the volume over meanwhile.
            Place::Coming(node)
                if of.record.state == RecordState::Active && of.record.owner.node.0 as usize != node =>
            {
                self.volumes[volume].client.place = Place::Nowhere;
            }
            Place::Nowhere => {
                let owner = of.record.owner.node.0 as usize;
                if of.record.state == RecordState::Active && serves(owner) {
                    self.volumes[volume].client.comes_to(owner);
                    self.step_volume(owner, volume, Event::Attach);
                }
            }
            Place::Coming(_) | Place::At(_) => {}
        }
    }

    /// A node lets the client of a volume in.
    pub(in crate::scale) fn client_comes(&mut self, volume: usize, node: usize) {
        let client = &mut self.volumes[volume].client;
        if client.place == Place::Coming(node) {
            client.place = Place::At(node);
            if client.since.is_some() {
                self.send_write(volume);
            }
        }
    }

    /// A client begins a write: from now on it waits.
    pub(in crate::scale) fn begin_write(&mut self, volume: usize) {
        let now = self.now;
        let client = &mut self.volumes[volume].client;
        if client.since.is_none() {
            client.since = Some(now);
            self.send_write(volume);
        }
    }

    fn send_write(&mut self, volume: usize) {
        let block = self.rng.below(BLOCKS);
        let client = &mut self.volumes[volume].client;
        let Place::At(node) = client.place else { return };
        client.writes += 1;
        let (id, value) = (RequestId(client.writes), client.writes);
        client.contents.resize(BLOCKS as usize, Content::default());
        client.contents[block as usize].maybe.push(value);
        client.write = Some((id, block));
        let data: Block = [value; ZERO.len()];
        let request = Request {
            id,
            op: RequestOp::Write(Blocks::new(vec![data])),
            sector: block * SECTORS,
            sectors: SECTORS as u32,
        };
        self.step_volume(node, volume, Event::Request(request));
    }

    /// A request has ended.
    pub(in crate::scale) fn completed(
        &mut self,
        volume: usize,
        node: usize,
        id: RequestId,
        result: Result<(), Failure>,
    ) {
        let now = self.now;
        let client = &mut self.volumes[volume].client;
        let Some((_, block)) = client.write.take_if(|(own, _)| *own == id) else { return };
        match result {
            Ok(()) => {
                let content = &mut client.contents[block as usize];
                (content.acknowledged, content.maybe) = (id.0, Vec::new());
                client.stall = client.stall.max(client.waits(now));
                client.since = None;
            }
            Err(Failure::Deposed | Failure::NotAttached) => client.lose(node),
            Err(why) => self.violations.push(format!("a write of volume {volume} failed: {why}")),
        }
    }
}
