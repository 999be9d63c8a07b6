//! One event loop with one volume of one copy, whose record is kept in memory.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadline_san_core::history::History;
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, ProposalId, ReplicaId, VolumeId};
use loadline_san_core::layout::{GroupIndex, Layout};
use loadline_san_core::message::Promise;
use loadline_san_core::record::{Group, Record, RecordState};
use loadline_san_core::swap::Answer;
use loadline_san_device::file::{DeviceFile, Devices};
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::login::{Export, LoginStep, Refusal};
use loadline_san_export::scsi::unit::Unserved;
use loadline_san_node::event_loop::command::{LoopCommand, LoopEvent, NewClient, OpenReplica, OpenVolume};
use loadline_san_node::event_loop::{EventLoop, LoopOptions, LoopSender, most_in_flight};
use loadline_san_protocol::ClusterId;
use loadline_san_protocol::device::{DeviceId, Superblock};
use loadline_san_store::io::{Area, Disk};
use loadline_san_store::open::{NewReplica, create};
use loadline_san_store::space::Space;
use loadline_san_store::store::{Identity, Settings};
use loadline_san_transport::channel::Channel;

const VOLUME: VolumeId = VolumeId(1);
const REPLICA: ReplicaId = ReplicaId(1);
const ME: Owner = Owner { node: NodeId(1), incarnation: Incarnation(1) };
const WAIT: Duration = Duration::from_secs(60);
const LEASE_NS: u64 = 600_000_000;

/// What the configuration answers.
#[allow(dead_code, reason = "one test uses the rest")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Answers {
    #[default]
    All,
    /// No proposal.
    Reads,
    /// No proposal by which a node claims the volume.
    NoClaims,
}

impl Answers {
    fn has(self, proposal: &Record) -> bool {
        match self {
            Answers::All => true,
            Answers::Reads => false,
            Answers::NoClaims => proposal.state != RecordState::TakingOver,
        }
    }
}

/// How a loop serves.
#[derive(Debug, Clone)]
pub(crate) struct Serves {
    /// Copies that writes need.
    pub(crate) least: u32,
    /// How long clients wait.
    pub(crate) client_wait: Duration,
    /// How often all initiators that stand by are reported.
    pub(crate) sweep: Duration,
    /// Whether the configuration does not answer.
    pub(crate) away: Arc<AtomicBool>,
    /// What it answers otherwise.
    pub(crate) answers: Arc<Mutex<Answers>>,
    /// Where the loop's reports of clients that wait go, of its state, and of logical units.
    pub(crate) waiting: Option<Sender<LoopEvent>>,
    /// Where its reports of initiators go that may not reach the volume by any path.
    pub(crate) unserved: Option<Sender<Vec<Unserved>>>,
}

impl Default for Serves {
    fn default() -> Serves {
        Serves {
            least: 1,
            client_wait: WAIT,
            sweep: WAIT,
            away: Arc::default(),
            answers: Arc::default(),
            waiting: None,
            unserved: None,
        }
    }
}

/// The record of the volume before any node owns it.
pub(crate) fn record(blocks: u64, least: u32) -> Record {
    let no_owner = Owner { node: NodeId(0), incarnation: Incarnation(0) };
    Record {
        epoch: Epoch(1),
        made_by: ProposalId { by: no_owner, number: 0 },
        owner: no_owner,
        state: RecordState::Active,
        attachment: 0,
        fence: 0,
        lease_ns: LEASE_NS,
        blocks,
        layout: Layout::new(1, 256, 1 << 30).expect("it can be"),
        least,
        history: History::default(),
        homes: [(REPLICA, ME.node)].into(),
        groups: vec![Group { in_sync: [REPLICA].into(), ..Group::default() }],
    }
}

/// A loop that serves a volume of so many blocks on a new file, by a socket in the same folder.
pub(crate) fn serve(folder: &Path, blocks: u64, spin: Duration, how: &Serves) -> LoopSender {
    let Serves { least, client_wait, sweep, away, answers, waiting, unserved } = how.clone();
    let path = folder.join("device");
    let file = DeviceFile::create(&path, blocks * 4096 * 9 / 8 + (600 << 20)).expect("there is room");
    let mut devices = Devices { log: file, capacity: None };
    let bytes = devices.bytes(Area::Log);
    let superblock = Superblock::fit(ClusterId(1), DeviceId(1), bytes, 16 << 20, 16).expect("it fits");
    let mut space = Space::format(&mut devices, Area::Log, superblock, false).expect("it is empty");
    let id = Identity { volume: VOLUME, group: GroupIndex(0), replica: REPLICA };
    let no_owner = Owner { node: NodeId(0), incarnation: Incarnation(0) };
    let new = NewReplica {
        id,
        blocks,
        log_bytes: 256 << 20,
        most_in_flight: most_in_flight(256 << 20) as u32,
        key: 7,
        promise: Promise { epoch: Epoch(0), owner: no_owner },
    };
    create(&mut devices, &mut space, DeviceId(1), &new).expect("there is room");
    let record = record(blocks, least);
    let layout = record.layout;
    let (orders, receiver) = EventLoop::commands().expect("it can be woken");
    let (event_sender, events) = channel();
    let for_loop = (orders.clone(), receiver);
    std::thread::spawn(move || {
        let options = LoopOptions {
            me: ME,
            own: (std::net::Ipv4Addr::LOCALHOST, 0).into(),
            cluster: ClusterId(1),
            number: 0,
            spin,
            seed: 1,
            client_wait,
            sweep,
            is_protected: false,
        };
        let sender = Box::new(move |event| _ = event_sender.send(event));
        EventLoop::new(options, for_loop, sender).expect("io_uring is allowed here").run().expect("it runs");
    });
    let space = Arc::new(Mutex::new(space));
    let open = OpenReplica {
        id,
        key: 7,
        lease_ns: LEASE_NS,
        devices,
        log: space.clone(),
        capacity: space,
        settings: Settings::default(),
        is_new: true,
        process: ME.incarnation,
    };
    orders.give(LoopCommand::OpenReplica(Box::new(open)));
    let most_in_flight = most_in_flight(256 << 20);
    let open = OpenVolume { id: VOLUME, layout, lease_ns: LEASE_NS, watch: true, most_in_flight };
    orders.give(LoopCommand::OpenVolume(open));
    orders.give(LoopCommand::Attach(VOLUME));
    let (attached, is_attached) = channel();
    let of_store = orders.clone();
    std::thread::spawn(move || {
        let mut record = record;
        for event in events {
            match event {
                LoopEvent::Opened(_, result) => result.expect("it opens"),
                LoopEvent::ReadRecord(..) | LoopEvent::Propose(..) if away.load(Ordering::SeqCst) => {}
                LoopEvent::Propose(_, next, _) if !answers.lock().expect("none has panicked").has(&next) => {}
                LoopEvent::ReadRecord(volume, asked_at) => {
                    of_store.give(LoopCommand::Seen(volume, Box::new(record.clone()), asked_at));
                }
                LoopEvent::Propose(volume, next, replaces) => {
                    let id = next.made_by;
                    let answer = match record.epoch == replaces {
                        true => {
                            record = *next;
                            Answer::Committed
                        }
                        false => Answer::Refused(record.clone()),
                    };
                    of_store.give(LoopCommand::Swapped(volume, id, answer, replaces));
                }
                LoopEvent::Attached(_) => _ = attached.send(()),
                LoopEvent::WaitingStarted(..)
                | LoopEvent::WaitingLetIn(..)
                | LoopEvent::WaitingGone(..)
                | LoopEvent::UnitWanted(..)
                | LoopEvent::State(_) => {
                    let _ = waiting.as_ref().map(|waiting| waiting.send(event));
                }
                LoopEvent::UnitUnserved(_, some) => {
                    let _ = unserved.as_ref().map(|unserved| unserved.send(some));
                }
                _ => {}
            }
        }
    });
    is_attached.recv_timeout(Duration::from_secs(20)).expect("it is attached");
    let listener = UnixListener::bind(folder.join("nbd.sock")).expect("the folder is new");
    let of_clients = orders.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let orders = of_clients.clone();
            std::thread::spawn(move || greet(stream.expect("it comes"), &orders, blocks * 4096));
        }
    });
    orders
}

fn greet(mut stream: UnixStream, orders: &LoopSender, bytes: u64) {
    let mut login = Protocol::Nbd.login(true).expect("clients choose a volume");
    let export = Export { description: "a test".into(), bytes, most: 32 << 20, ..Export::default() };
    loop {
        let Ok(step) = login.step() else { return };
        stream.write_all(&login.take_output()).expect("it listens");
        match step {
            LoginStep::Bytes => {
                let mut buffer = [0; 4096];
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(read) => login.feed(&buffer[..read]),
                }
            }
            LoginStep::List => login.list(&[("vol".into(), export.clone())]),
            LoginStep::Export(name) if name == "vol" => {
                login.export(Ok(&export)).expect("the client asked for it")
            }
            LoginStep::Export(name) => {
                if login.export(Err(Refusal::Unknown(name))).is_err() {
                    return;
                }
            }
            LoginStep::Gone | LoginStep::StartTls => return,
            LoginStep::Chosen(chosen) => {
                stream.set_nonblocking(true).expect("it can be");
                let new = NewClient {
                    channel: Channel::plain(stream.into()),
                    volume: VOLUME,
                    name: "vol".into(),
                    from: "of a test".into(),
                    bytes,
                    fence: u64::MAX,
                    session: None,
                    protocol: Protocol::Nbd,
                    chosen,
                    certificate: None,
                    initiator: None,
                };
                orders.give(LoopCommand::Client(Box::new(new)));
                return;
            }
        }
    }
}
