//! A front end that waits beside the present one until it starts (rule H1), at one loop. What the nodes and the configuration have to do with
//! it is in `tests/moved.rs`.

#[path = "common/client.rs"]
mod client;
mod common;
#[path = "../../export/tests/guest/mod.rs"]
mod guest;

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use client::client;
use common::Serves;
use guest::{
    AVAILABLE, BYTES, DATA, FEATURES, GUEST, HEADERS, IN, Memory, SIZE, STATUS, TABLE, USED, USER, eventfd,
    message, places, region, say, state,
};
use loadline_base::nbd::{Request, command};
use loadline_san_core::ids::VolumeId;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::login::Chosen;
use loadline_san_node::event_loop::LoopSender;
use loadline_san_node::event_loop::command::{LoopCommand, LoopEvent, NewClient};
use loadline_san_transport::channel::Channel;
use nix::sys::eventfd::EventFd;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

const BLOCKS: u64 = 1024;
const VOLUME: VolumeId = VolumeId(1);
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A loop that serves a volume, and what it reports of clients that wait.
struct Scene {
    orders: LoopSender,
    events: Receiver<LoopEvent>,
    serves: Serves,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
        let (waiting, events) = channel();
        let serves = Serves { waiting: Some(waiting), ..Serves::default() };
        let orders = common::serve(folder.path(), BLOCKS, Duration::ZERO, &serves);
        Scene { orders, events, serves, _folder: folder }
    }

    /// A front end of the present attachment, or of one of this number that waits.
    fn connect(&self, waits: Option<u64>) -> FrontEnd {
        let (ours, theirs) = UnixStream::pair().expect("it can be");
        theirs.set_nonblocking(true).expect("it can be");
        let new = Box::new(NewClient {
            channel: Channel::plain(theirs.into()),
            volume: VOLUME,
            name: "vol".into(),
            from: "of a test".into(),
            bytes: BLOCKS * 4096,
            fence: u64::MAX,
            session: None,
            protocol: Protocol::Vhost,
            chosen: Chosen::default(),
            certificate: None,
            initiator: None,
        });
        self.orders.give(match waits {
            None => LoopCommand::Client(new),
            Some(number) => LoopCommand::WaitingClient(new, number),
        });
        ours.set_read_timeout(Some(LIMIT)).expect("it may be so long");
        FrontEnd { socket: ours, memory: Memory::new(), kick: eventfd(), call: eventfd() }
    }

    /// One that is served.
    fn present(&self) -> FrontEnd {
        let begun = Instant::now();
        let mut front_end = loop {
            // It is refused while the volume is not owned here yet.
            let mut front_end = self.connect(None);
            if front_end.is_connected() {
                break front_end;
            }
            assert!(begun.elapsed() < LIMIT, "it is let in");
        };
        front_end.set_up();
        front_end.start();
        front_end.is_served();
        front_end
    }

    fn reported(&self) -> String {
        format!("{:?}", self.events.recv_timeout(LIMIT).expect("it is reported"))
    }

    /// Clients of the volume, and those of them that reach it at this node only.
    fn clients(&self) -> (usize, usize) {
        self.orders.give(LoopCommand::ReportState);
        match self.events.recv_timeout(LIMIT) {
            Ok(LoopEvent::State(state)) => (state.volumes[0].clients, state.volumes[0].bound),
            other => panic!("the state is reported: {other:?}"),
        }
    }

    /// A client of the network comes, and is let in.
    fn let_another_in(&self) {
        let mut client = client(&self.orders, u64::MAX, None);
        let flush = Request { flags: 0, command: command::FLUSH, cookie: 1, offset: 0, length: 0 };
        client.write_all(&flush.encode()).expect("it listens");
        client.read_exact(&mut [0; 16]).expect("it is answered");
    }

    fn nothing_is_reported(&self) {
        assert!(self.events.try_recv().is_err());
    }
}

struct FrontEnd {
    socket: UnixStream,
    memory: Memory,
    kick: EventFd,
    call: EventFd,
}

impl FrontEnd {
    fn send(&self, what: u32, body: &[u8], files: &[RawFd]) {
        let bytes = message(what, body);
        let rights = [ControlMessage::ScmRights(files)];
        let control = if files.is_empty() { &rights[..0] } else { &rights[..] };
        let slices = [std::io::IoSlice::new(&bytes)];
        // If it is closed, there is no answer to what is asked next.
        let _ = sendmsg::<()>(self.socket.as_raw_fd(), &slices, control, MsgFlags::MSG_NOSIGNAL, None);
    }

    /// Everything that was sent before is carried out. Whether the front end is still connected.
    fn is_connected(&mut self) -> bool {
        self.send(say::GET_FEATURES, &[], &[]);
        match self.socket.read_exact(&mut [0; 20]) {
            Ok(()) => true,
            Err(why) => {
                let waits =
                    [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut].contains(&why.kind());
                assert!(!waits, "it is answered, or disconnected");
                false
            }
        }
    }

    /// All that comes before a queue is started, as QEMU does it at a destination.
    fn set_up(&mut self) {
        self.send(say::SET_FEATURES, &FEATURES.to_le_bytes(), &[]);
        let table = [1_u64.to_le_bytes().to_vec(), region(GUEST, BYTES as u64, USER, 0)].concat();
        self.send(say::SET_MEM_TABLE, &table, &[self.memory.file.as_raw_fd()]);
        self.send(say::SET_VRING_NUM, &state(0, SIZE.into()), &[]);
        self.send(say::SET_VRING_BASE, &state(0, 0), &[]);
        let places = places(0, USER + TABLE as u64, USER + USED as u64, USER + AVAILABLE as u64);
        self.send(say::SET_VRING_ADDR, &places, &[]);
        self.send(say::SET_VRING_CALL, &0_u64.to_le_bytes(), &[self.call.as_fd().as_raw_fd()]);
        self.send(say::SET_VRING_KICK, &0_u64.to_le_bytes(), &[self.kick.as_fd().as_raw_fd()]);
        assert!(self.is_connected());
    }

    fn start(&mut self) {
        self.send(say::SET_VRING_ENABLE, &state(0, 1), &[]);
        assert!(self.is_connected());
    }

    /// Puts a read into the queue.
    fn request(&mut self) {
        self.memory.header(HEADERS, IN, 0);
        self.memory.put(STATUS, &[0xff]);
        self.memory.chain(TABLE, 0, &[(HEADERS, 16, false), (DATA, 4096, true), (STATUS, 1, true)]);
        self.memory.offer(0);
        self.kick.write(1).expect("it is not full");
    }

    fn is_answered(&mut self) -> bool {
        !self.memory.answered().is_empty()
    }

    /// What is in the queue is answered soon.
    fn is_answered_soon(&mut self) {
        let begun = Instant::now();
        while !self.is_answered() {
            assert!(begun.elapsed() < LIMIT, "it is answered");
            std::thread::yield_now();
        }
        assert_eq!(self.memory.get(STATUS, 1), [0]);
    }

    fn is_served(&mut self) {
        self.request();
        self.is_answered_soon();
    }

    /// Its connection ends, and what is in its queue is not answered.
    fn must_be_cut_off(mut self) {
        self.request();
        assert_eq!(self.socket.read(&mut [0; 20]).expect("it ends as it should"), 0);
        assert!(!self.is_answered());
    }
}

#[test]
fn a_front_end_that_waits_gets_nothing_before_it_has_taken_over_and_the_present_one_everything() {
    let scene = Scene::new();
    let mut present = scene.present();
    let mut next = scene.connect(Some(5));
    // It asks what it wants, and sets everything up.
    next.set_up();
    next.request();
    assert!(next.is_connected());
    present.is_served();
    scene.nothing_is_reported();
    assert!(!next.is_answered());
    assert_eq!(scene.clients(), (1, 1));
    // It starts: nothing is taken before the attach is carried out, also if others are let in.
    next.start();
    assert_eq!(scene.reported(), "WaitingStarted(VolumeId(1), 5)");
    scene.let_another_in();
    next.kick.write(1).expect("it is not full");
    for _ in 0..50 {
        assert!(next.is_connected());
        present.is_served();
    }
    assert!(!next.is_answered());
    scene.nothing_is_reported();
    scene.orders.give(LoopCommand::Fence(VOLUME));
    next.is_answered_soon();
    assert_eq!(scene.reported(), "WaitingLetIn(VolumeId(1), 5)");
    present.must_be_cut_off();
    next.is_served();
    assert_eq!(scene.clients(), (1, 1));
    // From now on it is the one that the next takes over from.
    let mut third = scene.connect(Some(6));
    third.set_up();
    third.start();
    assert_eq!(scene.reported(), "WaitingStarted(VolumeId(1), 6)");
    next.is_served();
    scene.orders.give(LoopCommand::Fence(VOLUME));
    third.is_served();
    next.must_be_cut_off();
}

#[test]
fn one_that_ends_before_it_has_taken_over_leaves_no_trace() {
    let scene = Scene::new();
    let mut present = scene.present();
    for starts in [false, true] {
        let mut next = scene.connect(Some(7));
        next.set_up();
        if starts {
            next.start();
            assert_eq!(scene.reported(), "WaitingStarted(VolumeId(1), 7)");
        }
        drop(next);
        assert_eq!(scene.reported(), "WaitingGone(VolumeId(1), 7)");
        present.is_served();
    }
    // The control path gives it up, or it sends nonsense.
    let next = scene.connect(Some(8));
    scene.orders.give(LoopCommand::EndWaiting(VOLUME, "of a test"));
    assert_eq!(scene.reported(), "WaitingGone(VolumeId(1), 8)");
    next.must_be_cut_off();
    let mut next = scene.connect(Some(9));
    next.socket.write_all(&[0xff; 64]).expect("it listens");
    assert_eq!(scene.reported(), "WaitingGone(VolumeId(1), 9)");
    present.is_served();
    scene.nothing_is_reported();
}

#[test]
fn an_attach_cuts_off_one_that_waits_unless_it_has_started() {
    let scene = Scene::new();
    let present = scene.present();
    let mut next = scene.connect(Some(1));
    next.set_up();
    scene.orders.give(LoopCommand::Fence(VOLUME));
    assert_eq!(scene.reported(), "WaitingGone(VolumeId(1), 1)");
    next.must_be_cut_off();
    present.must_be_cut_off();
    scene.present().is_served();
}

#[test]
fn one_for_which_an_attach_was_begun_is_not_let_in_by_a_later_one() {
    for gives_way in [false, true] {
        let scene = Scene::new();
        let _present = scene.present();
        let mut next = scene.connect(Some(2));
        next.set_up();
        next.start();
        assert_eq!(scene.reported(), "WaitingStarted(VolumeId(1), 2)");
        // The configuration does not answer, so the attach stays under way.
        scene.serves.away.store(true, Ordering::SeqCst);
        scene.orders.give(LoopCommand::Fence(VOLUME));
        assert!(next.is_connected());
        if gives_way {
            // It was ordered elsewhere since.
            scene.orders.give(LoopCommand::GiveWay(VOLUME));
            assert_eq!(scene.reported(), "WaitingGone(VolumeId(1), 2)");
        }
        scene.orders.give(LoopCommand::Fence(VOLUME));
        if !gives_way {
            assert_eq!(scene.reported(), "WaitingGone(VolumeId(1), 2)");
        }
        scene.serves.away.store(false, Ordering::SeqCst);
        next.must_be_cut_off();
    }
}
