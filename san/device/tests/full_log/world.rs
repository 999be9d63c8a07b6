//! A store in virtual time: the store and its space are real, its devices complete I/Os when their models say, and writers keep so
//! many writes outstanding.
//!
//! ```text
//! writers ─▶ store ─▶ device model: due ─▶ queue by time ─▶ store ─▶ writers
//! ```
//!
//! Nothing takes time but the devices. The same seed gives the same run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use loadline_base::device_model::DeviceModel;
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, Position, ReplicaId, Sequence, VolumeId};
use loadline_san_core::layout::{BLOCK, GroupIndex};
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{Entry, EntryOp, Payload, Promise};
use loadline_san_core::store::{Command, Completion};
use loadline_san_device::model::{ModelledDevice, Work};
use loadline_san_protocol::ClusterId;
use loadline_san_protocol::device::{DeviceId, Superblock};
use loadline_san_protocol::log::SECTOR;
use loadline_san_store::io::{
    Address, Area, Data, Disk, Done, IoFault, IoRequest, Part, Piece, Sector, Token,
};
use loadline_san_store::open::{NewReplica, create, open};
use loadline_san_store::space::Space;
use loadline_san_store::store::{Action, Identity, Settings, Store};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;
/// How often a node lets a store's time pass.
const TICK: u64 = 100 * MS;
/// Blocks of an extent, and bytes of a chunk, as nodes have them on a device of some 100 GB.
pub(crate) const EXTENT: u32 = 64;
pub(crate) const CHUNK: u64 = 64 << 20;
const CLUSTER: ClusterId = ClusterId(1);
const REPLICA: ReplicaId = ReplicaId(1);

/// Data that is none.
#[derive(Debug, Clone)]
pub(crate) struct Nothing;

impl Data for Nothing {
    fn checksum(&self, _: u32, _: Address) -> u32 {
        7
    }

    fn take_checksum(&mut self, _: u32, _: Address) -> u32 {
        7
    }
}

/// Two devices in memory, of which only what is written while the replica is made is kept.
struct Memory {
    bytes: u64,
    two: bool,
    sectors: HashMap<(Area, u64), Sector>,
}

impl Memory {
    fn device(&self, area: Area) -> Area {
        if self.two { area } else { Area::Log }
    }
}

impl Disk for Memory {
    fn bytes(&self, _: Area) -> u64 {
        self.bytes
    }

    fn read(&mut self, area: Area, at: u64, into: &mut [Sector]) -> Result<(), IoFault> {
        let area = self.device(area);
        for (at, sector) in (at / SECTOR as u64..).zip(into) {
            *sector = self.sectors.get(&(area, at)).copied().unwrap_or(Sector::ZERO);
        }
        Ok(())
    }

    fn write(&mut self, area: Area, at: u64, from: &[Sector]) -> Result<(), IoFault> {
        let area = self.device(area);
        for (at, sector) in (at / SECTOR as u64..).zip(from) {
            match *sector == Sector::ZERO {
                true => self.sectors.remove(&(area, at)),
                false => self.sectors.insert((area, at), *sector),
            };
        }
        Ok(())
    }

    fn sync(&mut self, _: Area) -> Result<(), IoFault> {
        Ok(())
    }
}

/// I/Os of one kind, and how long they occupy their device.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ios {
    pub(crate) count: u64,
    pub(crate) busy_ns: u64,
}

/// What the devices were asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(crate) appends: Ios,
    pub(crate) pages: Ios,
    pub(crate) log_reads: Ios,
    pub(crate) data: Ios,
    pub(crate) slots: Ios,
}

impl Asked {
    /// All kinds.
    pub(crate) fn named(&self) -> [(&'static str, Ios); 5] {
        let names = ["appends", "pages", "log reads", "data", "slots"];
        let ios = [self.appends, self.pages, self.log_reads, self.data, self.slots];
        std::array::from_fn(|kind| (names[kind], ios[kind]))
    }

    fn kinds(&mut self) -> [&mut Ios; 5] {
        [&mut self.appends, &mut self.pages, &mut self.log_reads, &mut self.data, &mut self.slots]
    }

    /// What was asked since this.
    pub(crate) fn since(mut self, mut earlier: Asked) -> Asked {
        for (now, then) in self.kinds().into_iter().zip(earlier.kinds()) {
            now.count -= then.count;
            now.busy_ns -= then.busy_ns;
        }
        self
    }
}

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) log: DeviceModel,
    /// None: extents are on the log's device.
    pub(crate) capacity: Option<DeviceModel>,
    pub(crate) log_bytes: u64,
    /// Blocks of the volume, all of whose extents have been written before.
    pub(crate) blocks: u64,
    /// Writes that are outstanding.
    pub(crate) depth: u64,
    pub(crate) settings: Settings,
}

/// What happened in a tenth of a second.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tenth {
    pub(crate) writes: u64,
    pub(crate) log_used: u64,
}

/// What writers saw between two moments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) tenths: Vec<Tenth>,
    /// The longest time without a completion.
    pub(crate) longest_gap_ns: u64,
    /// Of each write, in the order of the completions.
    pub(crate) latencies_ns: Vec<u64>,
    pub(crate) asked: Asked,
    pub(crate) ns: u64,
    /// Log and extents are on one device.
    one_device: bool,
}

impl Seen {
    /// How much of the time the device of the extents was busy.
    pub(crate) fn capacity_busy(&self) -> f64 {
        let of = |kinds: &[(&str, Ios)]| kinds.iter().map(|(_, ios)| ios.busy_ns).sum::<u64>() as f64;
        let kinds = self.asked.named();
        of(if self.one_device { &kinds } else { &kinds[3..] }) / self.ns as f64
    }

    pub(crate) fn rate(&self) -> f64 {
        self.latencies_ns.len() as f64 * 1e9 / self.ns as f64
    }

    pub(crate) fn mean_ns(&self) -> f64 {
        self.latencies_ns.iter().sum::<u64>() as f64 / self.latencies_ns.len() as f64
    }

    /// The latency that this share of all does not exceed.
    pub(crate) fn quantile_ns(&self, share: f64) -> u64 {
        let mut sorted = self.latencies_ns.clone();
        sorted.sort_unstable();
        sorted[((sorted.len() - 1) as f64 * share).ceil() as usize]
    }
}

enum Event {
    Done(Token, Done<Nothing>),
    Tick,
}

/// A store, its devices and its clients, with a clock of their own.
pub(crate) struct World {
    shape: Shape,
    pub(crate) store: Store<Nothing>,
    log: ModelledDevice,
    capacity: Option<ModelledDevice>,
    asked: Asked,
    pub(crate) now: Moment,
    events: BTreeMap<Reverse<(Moment, u64)>, Event>,
    events_made: u64,
    /// Devices take no time.
    instant: bool,
    appended: u64,
    reported: u64,
    /// When each write that is outstanding began.
    began: VecDeque<Moment>,
    last_completion: Moment,
    reported_above: bool,
    seen: Seen,
    random: u64,
    actions: Vec<Action<Nothing>>,
}

fn position(sequence: u64) -> Position {
    Position { ownership: Epoch(1), sequence: Sequence(sequence) }
}

impl World {
    /// A replica of which each extent was written once and nothing is in the log. Its time begins.
    pub(crate) fn new(shape: Shape, seed: u64) -> World {
        let bytes = shape.log_bytes + shape.blocks * BLOCK * 17 / 16 + (256 << 20);
        let two = shape.capacity.is_some();
        let mut disk = Memory { bytes, two, sectors: HashMap::new() };
        let mut format = |area, device| {
            let superblock = Superblock::fit(CLUSTER, device, bytes, CHUNK, EXTENT).expect("it fits");
            Space::format(&mut disk, area, superblock, false).expect("it is empty")
        };
        let mut log_space = format(Area::Log, DeviceId(1));
        let capacity_space = two.then(|| format(Area::Capacity, DeviceId(2)));
        let capacity_id = DeviceId(if two { 2 } else { 1 });
        let owner = Owner { node: NodeId(0), incarnation: Incarnation(1) };
        let new = NewReplica {
            id: Identity { volume: VolumeId(1), group: GroupIndex(0), replica: REPLICA },
            blocks: shape.blocks,
            log_bytes: shape.log_bytes,
            most_in_flight: 1024,
            key: 77,
            promise: Promise { epoch: Epoch(0), owner },
        };
        create(&mut disk, &mut log_space, capacity_id, &new).expect("there is room");
        let log_space = Arc::new(Mutex::new(log_space));
        let capacity_space = capacity_space.map_or(log_space.clone(), |space| Arc::new(Mutex::new(space)));
        let opened = open(&mut disk, &log_space, &capacity_space, REPLICA, shape.settings);
        let store = opened.expect("it is well").0;
        let mut world = World {
            log: ModelledDevice::new(shape.log.clone(), DeviceId(1)),
            capacity: shape.capacity.clone().map(|model| ModelledDevice::new(model, DeviceId(2))),
            shape,
            store,
            asked: Asked::default(),
            now: Moment(0),
            events: BTreeMap::new(),
            events_made: 0,
            instant: true,
            appended: 0,
            reported: 0,
            began: VecDeque::new(),
            last_completion: Moment(0),
            reported_above: false,
            seen: Seen::default(),
            random: 88_172_645_463_325_252 ^ seed,
            actions: Vec::new(),
        };
        world.fill();
        world
    }

    fn fill(&mut self) {
        self.append(0, EntryOp::Open);
        self.settle();
        for extent in 0..self.shape.blocks / u64::from(EXTENT) {
            self.append(extent * u64::from(EXTENT), EntryOp::Data(Payload { data: Nothing, first: 0 }));
            self.settle();
        }
        let commit_point = position(self.reported);
        self.store.submit(Command::CommitPoint { commit_point, acknowledged: commit_point, epoch: Epoch(1) });
        while self.store.fill().log_used > 1 << 20 {
            self.store.destage_soon();
            self.settle();
        }
        self.instant = false;
        self.asked = Asked::default();
        self.event(self.now.after(TICK), Event::Tick);
    }

    /// What was asked of devices that take no time is done.
    fn settle(&mut self) {
        self.run();
        while let Some((_, event)) = self.events.pop_last() {
            self.handle(event);
            self.run();
        }
    }

    fn event(&mut self, at: Moment, event: Event) {
        self.events_made += 1;
        self.events.insert(Reverse((at, self.events_made)), event);
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((u128::from(self.random) * u128::from(below)) >> 64) as u64
    }

    /// Appends an entry: of one block, if it has data.
    fn append(&mut self, block: u64, op: EntryOp<Nothing>) {
        self.appended += 1;
        self.began.push_back(self.now);
        let blocks = u32::from(matches!(op, EntryOp::Data(_)));
        let commit_point = if self.reported == 0 { Position::START } else { position(self.reported) };
        self.store.submit(Command::Append {
            number: self.appended,
            position: position(self.appended),
            sequenced: true,
            entry: Entry { block, blocks, op },
            commit_point,
            acknowledged: commit_point,
            epoch: Epoch(1),
        });
    }

    /// Devices get what the store asks for, and writers what it completes.
    fn run(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        self.store.run(&mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Submit(token, request) => {
                    let due = if self.instant { self.now } else { self.begin(&request) };
                    let done = match request {
                        IoRequest::Read(reading) => Done::Read(reading, Ok(Nothing)),
                        IoRequest::Write(writing) => Done::Wrote(writing, Ok(())),
                        IoRequest::Sync(area) => Done::Synced(area, Ok(())),
                    };
                    self.event(due, Event::Done(token, done));
                }
                Action::Complete(Completion::Appended(through)) => self.appended_through(through),
                Action::Complete(Completion::Above(..)) => self.reported_above = true,
                Action::Complete(Completion::Failed) => panic!("{:?}", self.store.fill()),
                Action::Complete(_) => {}
            }
        }
        self.actions = actions;
    }

    fn appended_through(&mut self, through: u64) {
        let gap = self.now.since(self.last_completion);
        self.seen.longest_gap_ns = self.seen.longest_gap_ns.max(gap);
        self.last_completion = self.now;
        while self.reported < through {
            self.reported += 1;
            let began = self.began.pop_front().expect("it was outstanding");
            self.seen.latencies_ns.push(self.now.since(began));
            if let Some(tenth) = self.seen.tenths.last_mut() {
                tenth.writes += 1;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Done(token, done) => self.store.done(token, done, &mut self.actions),
            Event::Tick => {
                // As a heartbeat of the owner does.
                let commit_point = position(self.reported);
                let acknowledged = commit_point;
                self.store.submit(Command::CommitPoint { commit_point, acknowledged, epoch: Epoch(1) });
                self.store.tick();
                self.event(self.now.after(TICK), Event::Tick);
                let log_used = self.store.fill().log_used;
                self.seen.tenths.push(Tenth { writes: 0, log_used });
            }
        }
    }

    /// As `Devices::begin` does it for real devices.
    fn begin(&mut self, request: &IoRequest<Nothing>) -> Moment {
        match request {
            IoRequest::Read(reading) => {
                let work = |of: &[Piece]| (of[0].area, Work::Read(of[of.len() - 1].end() - of[0].at));
                let begin = |(area, work)| self.work(area, work, |asked| &mut asked.log_reads);
                reading.ios().map(work).map(begin).max().unwrap_or(self.now)
            }
            IoRequest::Write(writing) => {
                let has_data = writing.parts.iter().any(|part| matches!(part, Part::Data { .. }));
                let work = Work::Write { bytes: writing.length(), durable: writing.durable };
                self.work(writing.area, work, |asked| match (writing.area, has_data) {
                    (Area::Log, true) => &mut asked.appends,
                    (Area::Log, false) => &mut asked.pages,
                    (Area::Capacity, true) => &mut asked.data,
                    (Area::Capacity, false) => &mut asked.slots,
                })
            }
            IoRequest::Sync(area) => self.work(*area, Work::Flush, |asked| &mut asked.pages),
        }
    }

    fn work(&mut self, area: Area, work: Work, kind: impl Fn(&mut Asked) -> &mut Ios) -> Moment {
        let device = match (area, &self.capacity) {
            (Area::Capacity, Some(capacity)) => capacity,
            _ => &self.log,
        };
        let model = device.model();
        let cost = match work {
            Work::Read(bytes) => model.read.cost(bytes),
            Work::Write { bytes, .. } => model.write.cost(bytes),
            Work::Flush => std::time::Duration::ZERO,
        };
        let ios = kind(&mut self.asked);
        ios.count += 1;
        ios.busy_ns += cost.as_nanos() as u64;
        device.begin(self.now, work)
    }

    /// Writers write so long, one block each, anywhere in the volume.
    pub(crate) fn write_for(&mut self, ns: u64) -> Seen {
        self.write_until(ns, |_| false)
    }

    /// The same, or until this is so.
    pub(crate) fn write_until(&mut self, ns: u64, is_over: impl Fn(&World) -> bool) -> Seen {
        let (began, asked) = (self.now, self.asked);
        self.seen = Seen { tenths: vec![Tenth::default()], ..Seen::default() };
        self.last_completion = self.now;
        let until = self.now.after(ns);
        loop {
            while self.appended - self.reported < self.shape.depth {
                let block = self.random(self.shape.blocks);
                self.append(block, EntryOp::Data(Payload { data: Nothing, first: 0 }));
            }
            self.run();
            if self.appended - self.reported < self.shape.depth {
                continue;
            }
            let Reverse((at, _)) = *self.events.last_key_value().expect("a tick comes").0;
            if at > until || is_over(self) {
                break;
            }
            self.now = at;
            let (_, event) = self.events.pop_last().expect("it was there");
            self.handle(event);
        }
        self.now = if is_over(self) { self.now } else { until };
        self.seen.asked = self.asked.since(asked);
        self.seen.ns = self.now.since(began);
        self.seen.one_device = self.capacity.is_none();
        std::mem::take(&mut self.seen)
    }

    /// Whether the store reports what it has above the commit point as soon as that is asked.
    pub(crate) fn is_reported_above_at_once(&mut self) -> bool {
        self.store.submit(Command::Above(1));
        self.run();
        self.reported_above
    }
}
