//! A client of the volume: a virtual machine that attaches it at its own node, and moves.

use std::collections::BTreeMap;

use loadline_san_core::map::{Held, Map};
use loadline_san_core::message::Content;
use loadline_san_core::record::Record;
use loadline_san_core::volume::{Event, Failure, Request, RequestId, RequestOp, Status};

use super::{Happening, World};
use crate::history::{Instant, WriteId};
use crate::store::{Block, Blocks, MOST_IN_FLIGHT, SPARE, ZERO};
use crate::time::{MS, Time, US};
use crate::violation::Violation;

/// A client of the volume, which is attached at one node or at none.
#[derive(Debug, Default)]
pub(crate) struct Tenant {
    /// Where it is.
    pub(crate) node: Option<usize>,
    /// And may ask.
    let_in: bool,
    pub(crate) outstanding: BTreeMap<RequestId, Outstanding>,
    /// It sends no more requests.
    pub(crate) done: bool,
    /// Not before this does it go anywhere.
    pub(crate) not_before: Time,
    /// The connection over which another node forwards its requests.
    pub(crate) through: Option<usize>,
}

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(crate) node: usize,
    pub(crate) since: Time,
    pub(crate) through: Option<usize>,
    kind: Kind,
    /// What of it can be judged.
    pub(crate) sector: u64,
    pub(crate) sectors: u64,
    /// The end of the range of its requests.
    pub(crate) end: u64,
}

/// A client's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Map,
    Write,
    WriteZeroes,
    Trim,
    Flush,
}

#[derive(Debug)]
enum Kind {
    Read {
        began: Instant,
        values: Vec<u64>,
    },
    /// The answer states, without a read, which sectors the client can take for zeroes.
    Map {
        began: Instant,
        zeroes: Vec<bool>,
    },
    /// What it writes; nothing is zeroes.
    Write(WriteId),
    /// It changes nothing: a flush, or a trim that fills no block.
    Nothing,
}

impl Outstanding {
    fn is_read(&self) -> bool {
        matches!(self.kind, Kind::Read { .. } | Kind::Map { .. })
    }

    /// What it is, for people.
    pub(crate) fn describe(&self) -> String {
        let what = match self.kind {
            Kind::Read { .. } => "a read",
            Kind::Map { .. } => "a map",
            Kind::Write(_) => "a write",
            Kind::Nothing => "what changes nothing",
        };
        format!("{what} of sectors {}..{} at n{}", self.sector, self.end, self.node)
    }

    /// Whether it writes to a group that has fewer replicas in sync than the policy requires: then the write waits, as it should.
    pub(crate) fn is_held(&self, record: &Record) -> bool {
        let short = |block: u64| {
            let (group, _) = record.layout.locate(block);
            record.groups.get(group.0 as usize).is_some_and(|g| g.in_sync.len() < record.least as usize)
        };
        let mut blocks = self.sector / 8..(self.sector + self.sectors).div_ceil(8);
        matches!(self.kind, Kind::Write(_)) && blocks.any(short)
    }
}

impl Tenant {
    pub(crate) fn new() -> Tenant {
        Tenant::default()
    }

    /// Its requests go over this connection to the owner, at this node.
    pub(crate) fn is_forwarded(&mut self, owner: usize, connection: usize) {
        (self.node, self.let_in, self.through) = (Some(owner), true, Some(connection));
    }
}

/// No volume is ever so large: some requests begin here, to be refused.
pub(crate) const BEYOND: u64 = 1 << 40;

/// Requests of different tenants have different names.
const APART: u64 = 1 << 48;

impl World {
    pub(crate) fn tenant_acts(&mut self, index: usize) {
        let think = self.rng.below(if self.quiet { 100 * MS } else { 2 * MS }) + 50 * US;
        self.after(think, Happening::Tenant(index));
        if self.now < self.tenants[index].not_before {
            return;
        }
        let tenant = &self.tenants[index];
        let Some(node) = tenant.node else {
            if !tenant.done || index == 0 {
                self.attach(index);
            }
            return;
        };
        if self.nodes[node].process.is_none() {
            self.tenants[index].node = None;
            self.tenants[index].not_before = self.now + self.rng.below(300 * MS);
            return;
        }
        if tenant.done || !tenant.let_in {
            return;
        }
        let waits = tenant.outstanding.values().any(|asked| self.now - asked.since > 300 * MS);
        let (restless, forced) = (self.rng.chance(500), waits && !self.calm && self.rng.chance(100));
        if (restless || forced) && tenant.through.is_some() {
            self.client_goes(index);
            return;
        }
        if restless || forced {
            self.tenants[index].node = None;
            self.coverage.count("client", if restless { "moves" } else { "is moved by force" });
            if restless && self.nodes[node].paused.is_none() {
                self.detach(node);
            }
            return;
        }
        if self.settings.crashes && self.rng.chance(300) {
            self.client_goes(index);
            return;
        }
        if self.tenants[index].through.is_some_and(|number| self.forwarder_is_stopped(number)) {
            return;
        }
        let (depth, operations) = (self.settings.depth, self.settings.operations);
        while self.tenants[index].outstanding.len() < depth
            && self.requests < operations
            && self.tenants[index].node == Some(node)
            && self.rng.below(4) > 0
        {
            self.ask_something(index, node, false);
        }
        // Where writes wait, reads go on: an owner that is alone may still answer them, or must not.
        let reads = self.tenants[index].outstanding.values().filter(|asked| asked.is_read()).count();
        let full = self.tenants[index].outstanding.len() >= depth && self.tenants[index].node == Some(node);
        if full && reads < 2 && self.requests < operations && self.rng.chance(3) {
            self.ask_something(index, node, true);
        }
        if self.requests >= operations {
            self.tenants[index].done = true;
        }
    }

    fn attach(&mut self, index: usize) {
        let whole_links = |node: &usize| !self.lasting.cut.iter().any(|(from, _)| from == node);
        let alive: Vec<usize> = (0..self.nodes.len())
            .filter(|node| self.nodes[*node].process.is_some() && self.nodes[*node].paused.is_none())
            .filter(|node| !self.is_out(*node) && (self.lasting.out.is_some() || whole_links(node)))
            .collect();
        if alive.is_empty() {
            return;
        }
        let whole = self.lasting.out.is_none() && self.lasting.cut.is_empty();
        if self.settings.forwards && whole && !self.tenants[index].done && !self.rng.chance(3) {
            let connected = self.connect_through(index);
            if connected {
                return;
            }
        }
        let node = alive[self.rng.index(alive.len())];
        if self.settings.crashes && self.rng.chance(8) {
            self.order_attach(node);
        }
        self.attach_at(index, node);
    }

    /// A client disconnects, and its requests are dropped. Its node reports that to the owner.
    pub(crate) fn client_goes(&mut self, index: usize) {
        self.trace_event(|| format!("client {index} goes"));
        self.coverage.count("client", "goes");
        self.leave_connection(index);
        let asked = std::mem::take(&mut self.tenants[index].outstanding);
        self.tenants[index].node = None;
        self.tenants[index].not_before = self.now + self.rng.below(100 * MS);
        for (id, asked) in asked {
            self.done += 1;
            self.ends(&asked, false);
            self.gone.insert(id);
            self.step_volume(asked.node, Event::Cancel(id));
        }
    }

    /// An attach is ordered at a node: all clients there are disconnected.
    pub(crate) fn order_attach(&mut self, node: usize) {
        self.trace_event(|| format!("an attach is ordered at n{node}"));
        self.coverage.count("client", "an attach is ordered");
        self.disconnect_forwarded(node);
        let here = |tenant: &Tenant| tenant.outstanding.values().any(|asked| asked.node == node);
        for index in 0..self.tenants.len() {
            let tenant = &self.tenants[index];
            if tenant.through.is_none() && (tenant.node == Some(node) || here(tenant)) {
                self.client_goes(index);
            }
        }
        self.step_volume(node, Event::Fence);
    }

    pub(crate) fn attach_at(&mut self, index: usize, node: usize) {
        self.leave_connection(index);
        (self.tenants[index].node, self.tenants[index].let_in) = (Some(node), false);
        self.trace_event(|| format!("client {index} attaches at n{node}"));
        self.coverage.count("client", "attaches");
        self.step_volume(node, Event::Attach);
    }

    /// The clients at a node may ask from now on.
    pub(crate) fn let_in(&mut self, node: usize) {
        self.coverage.count("client", "let in");
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.node == Some(node)) {
            tenant.let_in = true;
        }
        self.fence_forwarded(node);
    }

    fn ask_something(&mut self, index: usize, node: usize, read: bool) {
        let sectors = self.history.sectors();
        let hot = self.rng.below(2) == 0;
        let mut sector = self.rng.below(if hot { 64.min(sectors) } else { sectors });
        let mut count = match self.rng.below(10) {
            0..=3 => 8,
            4..=5 => 1 + self.rng.below(12),
            6..=8 => 8 * (1 + self.rng.below(4)),
            _ => 8 * (1 + self.rng.below(24)),
        };
        if self.rng.below(10) < 6 {
            sector -= sector % 8;
        }
        count = count.min(sectors - sector);
        if self.settings.tight {
            // It touches three extents at most.
            count = count.min(8 * 6);
        }
        // Owners have only so much in flight, and the driver of a volume keeps that limit.
        let write =
            |asked: &Outstanding| if let Kind::Write(_) = asked.kind { asked.sectors / 8 + 2 } else { 0 };
        let asked = self.tenants.iter().flat_map(|tenant| tenant.outstanding.values());
        let in_flight: u64 = asked.chain(self.lingering()).map(write).sum();
        let most = if self.settings.tight { SPARE + 3 } else { u64::from(MOST_IN_FLIGHT) };
        let read = read || in_flight > 0 && in_flight + count / 8 + 2 > most;
        let what = match if read { 0 } else { self.rng.below(100) } {
            0..=39 => Operation::Read,
            // What does not fit is given back.
            40..=59 if self.settings.tight => Operation::Trim,
            40..=84 => Operation::Write,
            85..=90 => Operation::WriteZeroes,
            91..=95 => Operation::Trim,
            96..=98 => Operation::Map,
            _ => Operation::Flush,
        };
        if what == Operation::Map || self.settings.tight && what == Operation::Trim {
            count = (4 * count).min(sectors - sector);
        }
        match self.rng.chance(400) {
            true => self.ask_for(index, node, Operation::Read, BEYOND + sector, count),
            false => self.ask_for(index, node, what, sector, count),
        }
    }

    /// A client sends this request.
    pub(crate) fn ask_for(&mut self, index: usize, node: usize, what: Operation, sector: u64, count: u64) {
        self.requests += 1;
        let id = RequestId(index as u64 * APART + self.requests);
        let mut judged = sector..sector + count;
        let (op, kind) = match what {
            Operation::Read if sector >= BEYOND => (RequestOp::Read, Kind::Nothing),
            Operation::Read => {
                let began = self.history.read_begins();
                (RequestOp::Read, Kind::Read { began, values: vec![u64::MAX; count as usize] })
            }
            Operation::Map => {
                let began = self.history.read_begins();
                (RequestOp::Map, Kind::Map { began, zeroes: vec![false; count as usize] })
            }
            Operation::Write => {
                self.writes += 1;
                let write = self.writes;
                let value = |at: u64| (write << 12) + at + 1;
                self.history.write_begins(write, sector, (0..count).map(value));
                let mut blocks: Vec<Block> = vec![ZERO; count.div_ceil(8) as usize];
                (0..count).for_each(|at| blocks[(at / 8) as usize][(at % 8) as usize] = value(at));
                (RequestOp::Write(Blocks::new(blocks)), Kind::Write(write))
            }
            Operation::WriteZeroes => {
                self.writes += 1;
                self.history.write_begins(self.writes, sector, (0..count).map(|_| 0));
                (RequestOp::WriteZeroes, Kind::Write(self.writes))
            }
            Operation::Trim => {
                // What does not fill a block is left as it is.
                judged = sector.next_multiple_of(8)..(sector + count) / 8 * 8;
                if !judged.is_empty() {
                    self.writes += 1;
                    self.history.write_begins(self.writes, judged.start, judged.clone().map(|_| 0));
                    (RequestOp::Trim, Kind::Write(self.writes))
                } else {
                    (RequestOp::Trim, Kind::Nothing)
                }
            }
            Operation::Flush => (RequestOp::Flush, Kind::Nothing),
        };
        let name = match &op {
            RequestOp::Read => "read",
            RequestOp::Map => "map",
            RequestOp::Write(_) => "write",
            RequestOp::WriteZeroes => "write zeroes",
            RequestOp::Trim => "trim",
            RequestOp::Flush => "flush",
        };
        self.coverage.count("client", name);
        self.trace_event(|| {
            format!("client {index} at n{node} asks #{} {name} {sector}+{count}", id.0 % APART)
        });
        let (first, sectors) = (judged.start, judged.end.saturating_sub(judged.start));
        let through = self.tenants[index].through;
        let asked =
            Outstanding { node, since: self.now, through, kind, sector: first, sectors, end: sector + count };
        self.tenants[index].outstanding.insert(id, asked);
        let request = Request { id, op, sector, sectors: count as u32 };
        match through {
            Some(connection) => self.forward(connection, request),
            None => self.request(node, request),
        }
    }

    /// A part of what a client reads has come.
    pub(crate) fn fill(&mut self, id: RequestId, at: u64, blocks: u32, content: &Content<Blocks>) {
        let Some(tenant) = self.tenants.get_mut((id.0 / APART) as usize) else { return };
        let Some(Outstanding { kind: Kind::Read { values, .. }, sector, sectors, .. }) =
            tenant.outstanding.get_mut(&id)
        else {
            return;
        };
        let first = (*sector / 8 + at) * 8;
        for sector_at in first..first + u64::from(blocks) * 8 {
            let Some(place) = sector_at.checked_sub(*sector).filter(|place| place < sectors) else {
                continue;
            };
            let within = sector_at - first;
            values[place as usize] = match content {
                Content::Data(payload) | Content::Sparse(payload, _) => {
                    payload.data[payload.first as usize + (within / 8) as usize][(within % 8) as usize]
                }
                Content::Nothing => 0,
            };
        }
    }

    /// A client receives the answer to a map: what blocks hold.
    pub(crate) fn map(&mut self, id: RequestId, map: &Map) {
        let Some(tenant) = self.tenants.get_mut((id.0 / APART) as usize) else { return };
        let Some(Outstanding { kind: Kind::Map { zeroes, .. }, sector, .. }) =
            tenant.outstanding.get_mut(&id)
        else {
            return;
        };
        zeroes.fill(false);
        let first = *sector / 8 * 8;
        let mut from = *sector;
        for (until, held) in map.runs(0..map.until, &mut 0) {
            let until = (first + until * 8).min(*sector + zeroes.len() as u64);
            let places = (from - *sector) as usize..(until - *sector) as usize;
            zeroes[places].fill(held != Held::Data);
            from = until;
        }
        self.coverage.count("situation", if map.ranges.is_empty() { "a map of holes" } else { "a map" });
    }

    /// A request has ended.
    pub(crate) fn completed(&mut self, id: RequestId, result: Result<(), Failure>) {
        if id.0 == u64::MAX {
            // Issued again though no client requested it (rule T4 left out).
            return;
        }
        let index = (id.0 / APART) as usize;
        if self.gone.remove(&id) || self.answers_forwarded(id, result) {
            return;
        }
        let Some(asked) = self.tenants[index].outstanding.remove(&id) else {
            self.fail(Violation::TwiceCompleted(id.0 % APART));
            return;
        };
        if result.is_ok() {
            self.check_enough(&asked);
        }
        self.client_has(index, id, &asked, result);
        self.check_end(&asked, result);
    }

    /// A client has an answer.
    pub(crate) fn client_has(
        &mut self,
        index: usize,
        id: RequestId,
        asked: &Outstanding,
        result: Result<(), Failure>,
    ) {
        self.done += 1;
        self.trace_event(|| format!("client {index} has #{}: {result:?}", id.0 % APART));
        self.ends(asked, result.is_ok());
        match result {
            Ok(()) => self.coverage.count("client", "acknowledged"),
            Err(Failure::Corrupt) => self.coverage.count("client", "every copy is corrupt"),
            Err(Failure::OutOfRange) => self.coverage.count("client", "beyond the end"),
            Err(Failure::NoSpace) => self.coverage.count("client", "a device is full"),
            Err(_) => self.coverage.count("client", "refused"),
        }
    }

    /// The clients at a node give the volume up.
    pub(crate) fn detach(&mut self, node: usize) {
        self.step_volume(node, Event::Detach);
        self.detached(node);
    }

    /// The volume is attached elsewhere. Clients here try again, some time.
    pub(crate) fn detached(&mut self, node: usize) {
        self.coverage.count("client", "detached");
        self.disconnect_forwarded(node);
        let here = |tenant: &&mut Tenant| tenant.node == Some(node) && tenant.through.is_none();
        for tenant in self.tenants.iter_mut().filter(here) {
            tenant.node = None;
            tenant.not_before = self.now + self.rng.below(400 * MS);
        }
    }

    /// A write is acknowledged by its owner: on enough copies.
    pub(crate) fn check_enough(&mut self, asked: &Outstanding) {
        if let Kind::Write(_) = asked.kind {
            self.check_least(asked.node, asked.sector, asked.sectors);
        }
    }

    pub(crate) fn ends(&mut self, asked: &Outstanding, well: bool) {
        if well {
            self.see_deposed(asked.node, asked.is_read());
        }
        // A stale copy that started alone cannot know that what it holds is old.
        let old = self.is_on_branch(asked.node);
        match &asked.kind {
            Kind::Read { began, .. } | Kind::Map { began, .. } if old => self.history.read_fails(*began),
            Kind::Read { began, values } if well => {
                self.trace_event(|| {
                    format!("  read {:?}", values.iter().map(|v| v >> 12).collect::<Vec<_>>())
                });
                if let Err(impossible) = self.history.read_ends(*began, asked.sector, values) {
                    self.fail(Violation::Read(impossible));
                }
            }
            Kind::Map { began, zeroes } if well => {
                let count = zeroes.iter().filter(|zeroes| **zeroes).count();
                self.trace_event(|| format!("  {count} of {} sectors are zeroes", zeroes.len()));
                if let Err(impossible) = self.history.map_ends(*began, asked.sector, zeroes) {
                    self.fail(Violation::Map(impossible));
                }
            }
            Kind::Read { began, .. } | Kind::Map { began, .. } => self.history.read_fails(*began),
            Kind::Write(write) => {
                self.history.write_ends(*write, asked.sector, asked.sectors, well);
                if well {
                    self.check_written(asked.sector, asked.sectors);
                }
            }
            Kind::Nothing => {}
        }
    }

    /// Counts what is answered by an owner that is none any more and does not know it.
    fn see_deposed(&mut self, node: usize, read: bool) {
        let epoch_of = |node: &crate::world::Node| {
            let volume = &node.process.as_ref()?.volume;
            let serves = matches!(volume.status(), Status::Active | Status::Changing);
            volume.record().filter(|_| serves).map(|record| record.epoch)
        };
        let mine = epoch_of(&self.nodes[node]);
        if self.nodes.iter().filter_map(epoch_of).any(|other| Some(other) > mine) {
            let what = if read {
                "read answered by a deposed owner"
            } else {
                "write acknowledged by a deposed owner"
            };
            self.coverage.count("situation", what);
        }
    }

    /// A process has died, and with it the clients at its node.
    pub(crate) fn clients_die(&mut self, node: usize) {
        for index in 0..self.tenants.len() {
            let tenant = &mut self.tenants[index];
            if tenant.node == Some(node) {
                tenant.node = None;
            }
            let (gone, stay): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut tenant.outstanding)
                .into_iter()
                .partition(|(_, asked)| asked.node == node);
            tenant.outstanding = stay;
            for asked in gone.into_values() {
                self.done += 1;
                self.ends(&asked, false);
            }
        }
    }
}

/// Whole blocks of what a client writes, and of what is around it.
pub(crate) fn merge(
    request: &Request<Blocks>,
    head: Option<&Content<Blocks>>,
    tail: Option<&Content<Blocks>>,
) -> Blocks {
    let (first, end) = (request.sector, request.sector + u64::from(request.sectors));
    let (first_block, last_block) = (first / 8, (end - 1) / 8);
    let old = |content: Option<&Content<Blocks>>| match content {
        Some(Content::Data(payload)) => payload.data[payload.first as usize],
        _ => ZERO,
    };
    let block = |number: u64| {
        let mut block = match number {
            _ if number == first_block && head.is_some() => old(head),
            _ if number == last_block && tail.is_some() => old(tail),
            _ => ZERO,
        };
        for sector in (number * 8).max(first)..(number * 8 + 8).min(end) {
            let at = sector - first;
            block[(sector % 8) as usize] = match &request.op {
                RequestOp::Write(data) => data[(at / 8) as usize][(at % 8) as usize],
                _ => 0,
            };
        }
        block
    };
    Blocks::new(match &request.op {
        RequestOp::Write(_) => (first_block..=last_block).map(block).collect(),
        _ => {
            let wanted = [(head, first_block), (tail, last_block)];
            wanted.iter().filter(|(content, _)| content.is_some()).map(|(_, number)| block(*number)).collect()
        }
    })
}
