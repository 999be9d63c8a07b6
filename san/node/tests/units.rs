//! Which initiators a loop lets in to the logical unit of a volume, and when.

#[path = "common/client.rs"]
mod client;
mod common;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{Answers, Serves};
use loadline_base::iscsi::{
    HEADER, Header, IMMEDIATE, NO_TAG, field, flag, logout, logout_response, opcode, padding,
};
use loadline_base::limits;
use loadline_base::nbd::{Request, command};
use loadline_base::scsi::{Status, operation};
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, VolumeId};
use loadline_san_core::record::Record;
use loadline_san_core::volume::Status as VolumeStatus;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::iscsi::negotiated::Negotiated;
use loadline_san_export::iscsi::parameters::Parameters;
use loadline_san_export::login::Chosen;
use loadline_san_export::scsi::reservations::{Kind, Registration, Reservation, Reservations};
use loadline_san_export::scsi::unit::{About, AccessState, NexusName, Port, Unserved};
use loadline_san_node::config::catalog::Catalog;
use loadline_san_node::event_loop::LoopSender;
use loadline_san_node::event_loop::command::{DeviceFault, LoopCommand, LoopEvent, LoopState, NewClient};
use loadline_san_node::identity::accesses::Accesses;
use loadline_san_transport::channel::Channel;
use nix::sys::resource::Resource;
use serde_json::json;

const BLOCKS: u64 = 1024;
const VOLUME: VolumeId = VolumeId(1);
/// How long anything may take: less than an initiator waits at most to be let in, after which it is disconnected in any case.
const WAIT: Duration = Duration::from_secs(10);

const GOOD: u8 = Status::Good as u8;
const CHECK_CONDITION: u8 = Status::CheckCondition as u8;
const CONFLICT: u8 = Status::ReservationConflict as u8;
/// NOT READY, TARGET PORT IN STANDBY STATE: key and code.
const STANDBY: (u8, u8, u8) = (2, 0x04, 0x0b);
/// UNIT ATTENTION, POWER ON OR RESET.
const BEGAN: (u8, u8, u8) = (6, 0x29, 0x00);

/// A client that has logged in as an initiator of this name; `from_afar`: it was let in by its name.
fn logged_in(theirs: UnixStream, name: &str, from: &str, from_afar: bool) -> NewClient {
    theirs.set_nonblocking(true).expect("it can be");
    let negotiated = Negotiated {
        initiator: name.into(),
        isid: [1; 6],
        connection: 0,
        command_number: 1,
        status_number: 1,
        parameters: Parameters::default(),
    };
    NewClient {
        channel: Channel::plain(theirs.into()),
        volume: VOLUME,
        name: "vol".into(),
        from: from.into(),
        bytes: BLOCKS * 4096,
        fence: u64::MAX,
        session: None,
        protocol: Protocol::Iscsi,
        chosen: Chosen { negotiated: negotiated.encode(), rest: Vec::new() },
        certificate: None,
        initiator: from_afar.then(|| (name.into(), 1)),
    }
}

/// An initiator that has logged in.
struct Initiator {
    stream: UnixStream,
    number: u32,
}

/// What a command was answered: its status, and what its sense says.
type Answered = (u8, Option<(u8, u8, u8)>);

impl Initiator {
    /// One of this name at the volume of a loop; `from_afar`: it was let in by its name.
    fn new(orders: &LoopSender, name: &str, from_afar: bool) -> Initiator {
        let (ours, theirs) = UnixStream::pair().expect("it can be");
        let new = logged_in(theirs, name, "of a test", from_afar);
        orders.give(LoopCommand::Client(Box::new(new)));
        Initiator::at(ours)
    }

    fn at(ours: UnixStream) -> Initiator {
        ours.set_read_timeout(Some(WAIT)).expect("it may be so long");
        Initiator { stream: ours, number: 1 }
    }

    fn send(&mut self, cdb: &[u8], data: &[u8]) {
        let flags = if data.is_empty() { 0 } else { flag::WRITE };
        let mut header = Header::new(opcode::SCSI_COMMAND, flag::FINAL | flags | 1);
        header.set_u32(field::TASK_TAG, self.number);
        header.set_u32(field::COMMAND_NUMBER, self.number);
        header.set_u32(field::EXPECTED_LENGTH, data.len() as u32);
        header.set_data_bytes(data.len());
        header.0[32..32 + cdb.len()].copy_from_slice(cdb);
        self.number += 1;
        self.stream.write_all(&[&header.0[..], data].concat()).expect("it is connected");
    }

    fn send_ready(&mut self) {
        self.send(&[operation::TEST_UNIT_READY, 0, 0, 0, 0, 0], &[]);
    }

    fn send_write(&mut self) {
        self.send(&[operation::WRITE_10, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]);
    }

    /// The next PDU that is no ping; `None` if the connection has ended. Pings are answered, so only the loop ends it.
    fn received(&mut self) -> Option<(Header, Vec<u8>)> {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < WAIT, "only pings come: the session goes on");
            let mut header = Header([0; HEADER]);
            if let Err(why) = self.stream.read_exact(&mut header.0) {
                let waits = matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!waits, "nothing comes, and the connection goes on");
                return None;
            }
            let bytes = header.data_bytes();
            let mut data = vec![0; bytes + padding(bytes)];
            self.stream.read_exact(&mut data).expect("a PDU comes as a whole");
            if header.opcode() != opcode::NOP_IN {
                return Some((header, data));
            }
            let mut pong = Header::new(opcode::NOP_OUT | IMMEDIATE, flag::FINAL);
            pong.set_u32(field::TASK_TAG, NO_TAG);
            pong.set_u32(field::TRANSFER_TAG, header.u32(field::TRANSFER_TAG));
            pong.set_u32(field::COMMAND_NUMBER, self.number);
            // The session may have ended since.
            let _ = self.stream.write_all(&pong.0);
        }
    }

    fn answered(&mut self) -> Answered {
        let (header, sense) = self.received().expect("it is connected");
        assert_eq!(header.opcode(), opcode::SCSI_RESPONSE);
        // Two bytes of length come before the sense.
        (header.0[3], (header.0[3] == CHECK_CONDITION).then(|| (sense[4] & 0x0f, sense[14], sense[15])))
    }

    fn ask_ready(&mut self) -> Answered {
        self.send_ready();
        self.answered()
    }

    /// It leaves, and the target ends the connection.
    fn log_out(mut self) {
        let mut header = Header::new(opcode::LOGOUT | IMMEDIATE, flag::FINAL | logout::CLOSE_SESSION);
        header.set_u32(field::TASK_TAG, self.number);
        header.set_u32(field::COMMAND_NUMBER, self.number);
        self.stream.write_all(&header.0).expect("it is connected");
        let (header, _) = self.received().expect("it is answered");
        assert_eq!((header.opcode(), header.0[2]), (opcode::LOGOUT_RESPONSE, logout_response::CLOSED));
        assert!(self.received().is_none());
    }
}

/// The port of this node.
const HERE: Port = Port { group: 1, state: AccessState::Standby };

/// The logical unit, with what the configuration keeps of reservations.
fn unit(reservations: Reservations, wanted: Option<u64>) -> LoopCommand {
    LoopCommand::Unit(VOLUME, Box::new(about(vec![HERE])), Box::new((reservations, 1)), wanted)
}

fn about(ports: Vec<Port>) -> About {
    let bytes = BLOCKS * 4096;
    About { cluster: 1, volume: VOLUME.0, name: "vol".into(), bytes, most: 4 << 20, ports, here: HERE.group }
}

/// Another node has claimed the volume.
fn owned_elsewhere() -> LoopCommand {
    let owner = Owner { node: NodeId(2), incarnation: Incarnation(1) };
    let record = Record { epoch: Epoch(50), owner, ..common::record(BLOCKS, 1) };
    LoopCommand::Record(VOLUME, Box::new(record))
}

/// Another initiator has the volume for itself.
fn reserved() -> Reservations {
    let nexus = NexusName { initiator: "iqn.other".into(), isid: [2; 6], group: 1 };
    let registrations = vec![Registration { nexus: nexus.clone(), key: 9, since: 1 }];
    let reservation = Some(Reservation { kind: Kind::ExclusiveAccess, holder: Some(nexus) });
    Reservations { generation: 1, registrations, reservation, ..Reservations::default() }
}

fn serve(folder: &std::path::Path) -> (LoopSender, Receiver<LoopEvent>) {
    serve_as(folder, Serves::default())
}

fn serve_as(folder: &std::path::Path, how: Serves) -> (LoopSender, Receiver<LoopEvent>) {
    let (sender, events) = channel();
    let how = Serves { waiting: Some(sender), ..how };
    (common::serve(folder, BLOCKS, Duration::ZERO, &how), events)
}

/// A loop that owns the volume, and has read its reservations.
fn serve_fresh(folder: &std::path::Path, how: Serves) -> (LoopSender, Receiver<LoopEvent>) {
    let (orders, events) = serve_as(folder, how);
    orders.give(unit(Reservations::default(), None));
    let first = Initiator::new(&orders, "iqn.first", false);
    let number = wanted(&events);
    orders.give(unit(Reservations::default(), Some(number)));
    first.log_out();
    (orders, events)
}

/// An initiator that was let in, and is served.
fn served(orders: &LoopSender, name: &str, from_afar: bool) -> Initiator {
    let mut new = Initiator::new(orders, name, from_afar);
    assert_eq!(new.ask_ready(), (CHECK_CONDITION, Some(BEGAN)));
    assert_eq!(new.ask_ready(), (GOOD, None));
    new
}

/// What the loop reports of itself now, if nothing else is to come.
fn state(orders: &LoopSender, events: &Receiver<LoopEvent>) -> Box<LoopState> {
    orders.give(LoopCommand::ReportState);
    match events.recv_timeout(WAIT).expect("the loop runs") {
        LoopEvent::State(state) => state,
        other => panic!("{other:?}"),
    }
}

/// The initiators that the loop reports next as those that may not reach the volume, and whether each has lost its session.
fn reported(unserved: &Receiver<Vec<Unserved>>) -> Vec<(String, bool)> {
    let some = unserved.recv_timeout(WAIT).expect("the loop reports");
    some.into_iter().map(|of| (of.initiator, of.is_lost)).collect()
}

/// The number by which the loop asks for reservations.
fn wanted(events: &Receiver<LoopEvent>) -> u64 {
    match events.recv_timeout(WAIT).expect("the loop asks for the reservations") {
        LoopEvent::UnitWanted(VOLUME, number) => number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_initiator_is_let_in_only_when_reservations_were_read_since_the_volume_is_owned() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (orders, events) = serve(folder.path());
    orders.give(unit(Reservations::default(), None));
    let mut new = Initiator::new(&orders, "iqn.new", false);
    // What is sent at once is carried out when it is let in.
    new.send_ready();
    new.send_write();
    let first = wanted(&events);
    for read_earlier in [None, Some(first - 1)] {
        orders.give(unit(Reservations::default(), read_earlier));
    }
    // Meanwhile it counts as one that has a session here.
    assert_eq!(state(&orders, &events).initiators, [(VOLUME, "iqn.new".to_owned(), false)]);
    orders.give(unit(reserved(), Some(first)));
    assert_eq!(new.answered(), (CHECK_CONDITION, Some(BEGAN)));
    assert_eq!(new.answered(), (CONFLICT, None), "another one has reserved it");
    orders.give(LoopCommand::Stop);
}

#[test]
fn at_a_takeover_those_that_stood_by_stand_by_until_reservations_were_read() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (orders, events) = serve(folder.path());
    let mut before = 0;
    for _ in 0..3 {
        orders.give(LoopCommand::Detach(VOLUME));
        orders.give(unit(Reservations::default(), None));
        let mut stands_by = Initiator::new(&orders, "iqn.stands-by", false);
        assert_eq!(stands_by.ask_ready(), (CHECK_CONDITION, Some(BEGAN)));
        assert_eq!(stands_by.ask_ready(), (CHECK_CONDITION, Some(STANDBY)));
        orders.give(LoopCommand::Attach(VOLUME));
        // Core has let it in by then.
        let now = wanted(&events);
        assert_ne!(now, before, "it asks anew");
        orders.give(unit(Reservations::default(), None));
        orders.give(unit(Reservations::default(), Some(before)));
        assert_eq!(stands_by.ask_ready(), (CHECK_CONDITION, Some(STANDBY)), "they were read before");
        stands_by.send_write();
        assert_eq!(stands_by.answered(), (CHECK_CONDITION, Some(STANDBY)));
        orders.give(unit(reserved(), Some(now)));
        // It is told that the states of ports have changed.
        while stands_by.ask_ready().0 != GOOD {}
        stands_by.send_write();
        assert_eq!(stands_by.answered(), (CONFLICT, None), "another one has reserved it");
        before = now;
    }
    orders.give(LoopCommand::Stop);
}

#[test]
fn when_another_node_has_owned_the_volume_its_initiators_are_disconnected() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (orders, events) = serve(folder.path());
    orders.give(unit(Reservations::default(), None));
    let mut here = Initiator::new(&orders, "iqn.here", false);
    let first = wanted(&events);
    orders.give(unit(Reservations::default(), Some(first)));
    assert_eq!(here.ask_ready(), (CHECK_CONDITION, Some(BEGAN)));
    assert_eq!(here.ask_ready(), (GOOD, None));
    // It may have served others, and have confirmed that their reservations hold.
    orders.give(owned_elsewhere());
    assert!(here.received().is_none());
    orders.give(LoopCommand::Stop);
}

#[test]
fn an_initiator_is_disconnected_if_another_node_claims_the_volume_before_this_one_has_claimed_it_again() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let how = Serves::default();
    let (orders, events) = serve_fresh(folder.path(), how.clone());
    let until = |status| {
        let begun = Instant::now();
        loop {
            let state = state(&orders, &events);
            if state.volumes[0].view.status == status {
                return state;
            }
            assert!(begun.elapsed() < WAIT, "{:?} does not become {status:?}", state.volumes[0].view);
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let mut here = served(&orders, "iqn.here", false);
    let mut writes = served(&orders, "iqn.writes", false);
    // Its device and the configuration do not answer: the node serves the volume no more, and keeps its clients.
    orders.give(LoopCommand::Fault(1, DeviceFault { fails: false, slow_ns: u64::MAX / 2 }));
    writes.send_write();
    *how.answers.lock().expect("none has panicked") = Answers::Reads;
    let _counted = Initiator::new(&orders, "iqn.counted", false);
    until(VolumeStatus::Watching);
    *how.answers.lock().expect("none has panicked") = Answers::NoClaims;
    let state = until(VolumeStatus::Claiming);
    assert!(state.initiators.contains(&(VOLUME, "iqn.here".to_owned(), true)));
    orders.give(owned_elsewhere());
    assert!(here.received().is_none());
    orders.give(LoopCommand::Stop);
}

#[test]
fn a_new_unit_of_a_volume_asks_by_a_number_that_no_earlier_one_had() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (orders, events) = serve(folder.path());
    orders.give(unit(Reservations::default(), None));
    let _first = Initiator::new(&orders, "iqn.a", false);
    let first = wanted(&events);
    orders.give(LoopCommand::NoUnit(VOLUME));
    orders.give(unit(Reservations::default(), None));
    let mut second = Initiator::new(&orders, "iqn.b", false);
    assert!(wanted(&events) > first);
    second.send_ready();
    second.send_write();
    // An answer to the question of the earlier one.
    orders.give(unit(Reservations::default(), Some(first)));
    orders.give(unit(reserved(), Some(first + 1)));
    assert_eq!(second.answered(), (CHECK_CONDITION, Some(BEGAN)));
    assert_eq!(second.answered(), (CONFLICT, None));
    orders.give(LoopCommand::Stop);
}

#[test]
fn an_initiator_that_the_volume_lets_in_no_more_is_disconnected_and_one_of_the_machine_is_not() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (orders, events) = serve(folder.path());
    orders.give(unit(Reservations::default(), None));
    let mut waits = Initiator::new(&orders, "iqn.waits", true);
    let number = wanted(&events);
    orders.give(LoopCommand::Accesses(Arc::default()));
    assert!(waits.received().is_none(), "it was not let in yet");
    orders.give(unit(Reservations::default(), Some(number)));
    let mut far = Initiator::new(&orders, "iqn.a", true);
    assert_eq!(far.ask_ready(), (CHECK_CONDITION, Some(BEGAN)));
    assert_eq!(far.ask_ready(), (GOOD, None));
    let mut near = Initiator::new(&orders, "iqn.c", false);
    assert_eq!(near.ask_ready(), (CHECK_CONDITION, Some(BEGAN)));
    orders.give(LoopCommand::Accesses(Arc::default()));
    assert!(far.received().is_none());
    assert_eq!(near.ask_ready(), (GOOD, None));
    orders.give(LoopCommand::Detach(VOLUME));
    let mut stands_by = Initiator::new(&orders, "iqn.b", true);
    assert_eq!(stands_by.ask_ready(), (CHECK_CONDITION, Some(BEGAN)));
    let mut near = Initiator::new(&orders, "iqn.c", false);
    assert_eq!(near.ask_ready(), (CHECK_CONDITION, Some(BEGAN)));
    orders.give(LoopCommand::Accesses(Arc::default()));
    assert!(stands_by.received().is_none());
    assert_eq!(near.ask_ready(), (CHECK_CONDITION, Some(STANDBY)));
    orders.give(LoopCommand::Stop);
}

#[test]
fn an_initiator_that_leaves_is_reported_and_counts_as_lost_only_if_it_has_not_logged_out() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (sender, unserved) = channel();
    let (orders, events) = serve_fresh(folder.path(), Serves { unserved: Some(sender), ..Serves::default() });
    assert_eq!(reported(&unserved), [("iqn.first".to_owned(), false)], "it has logged out");
    let stays = served(&orders, "iqn.stays", false);
    served(&orders, "iqn.leaves", false).log_out();
    assert_eq!(reported(&unserved), [("iqn.leaves".to_owned(), false)]);
    assert_eq!(state(&orders, &events).lost_initiators, []);
    drop(served(&orders, "iqn.breaks", false));
    assert_eq!(reported(&unserved), [("iqn.breaks".to_owned(), true)]);
    let state = state(&orders, &events);
    assert_eq!(state.lost_initiators, [(VOLUME, "iqn.breaks".to_owned())]);
    assert_eq!(state.initiators, [(VOLUME, "iqn.stays".to_owned(), true)]);
    drop(stays);
    orders.give(LoopCommand::Stop);
}

/// Connections of clients at most, and of those that have proved nothing.
const MOST: usize = 4096;
const MOST_STRANGERS: usize = 3072;
/// From where clients come that need to prove nothing.
const NEAR: &str = "at a unix socket";

#[test]
fn initiators_that_wait_for_reservations_count_for_the_most_clients() {
    // Each has a socket.
    let files = limits::raise(Resource::RLIMIT_NOFILE, 2 * MOST as u64);
    assert!(files > MOST as u64 + 100, "at most {files} files may be open: raise the hard limit of this");
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (orders, events) = serve(folder.path());
    orders.give(unit(Reservations::default(), None));
    let (_ours, theirs) = UnixStream::pair().expect("it can be");
    // They have one socket in common, which stays open.
    let come = |count: usize, from: &str| {
        for number in 0..count {
            let socket = theirs.try_clone().expect("one more may be open");
            let new = logged_in(socket, &format!("iqn.{number}"), from, false);
            orders.give(LoopCommand::Client(Box::new(new)));
        }
    };
    let is_refused = |from: &str| {
        let (ours, theirs) = UnixStream::pair().expect("it can be");
        orders.give(LoopCommand::Client(Box::new(logged_in(theirs, "iqn.last", from, false))));
        Initiator::at(ours).received().is_none()
    };
    come(MOST_STRANGERS - 1, "of a test");
    wanted(&events);
    // A client that is served, the last stranger, was announced after them: core has let them in.
    let mut served = client::client(&orders, u64::MAX, None);
    let flush = Request { flags: 0, command: command::FLUSH, cookie: 1, offset: 0, length: 0 };
    served.write_all(&flush.encode()).expect("it listens");
    served.read_exact(&mut [0; 16]).expect("it is answered");
    assert_eq!(state(&orders, &events).initiators.len(), MOST_STRANGERS - 1);
    assert!(is_refused("of a test"), "there are enough strangers");
    come(MOST - MOST_STRANGERS, NEAR);
    assert!(is_refused(NEAR), "there are enough clients");
    assert_eq!(state(&orders, &events).initiators.len(), MOST - 1);
    orders.give(LoopCommand::Stop);
}

/// A configuration whose volume names these initiators, each with the number of its naming.
fn named(initiators: &[(&str, u64)]) -> LoopCommand {
    let initiators: Vec<_> =
        initiators.iter().map(|(name, naming)| json!({ "name": name, "naming": naming })).collect();
    let volume = json!({
        "name": "vol", "copies": 1, "least": 1, "stripes": 1, "unit_blocks": 1, "group_blocks": 1, "blocks": 1, "lease_ms": 600,
        "log_bytes": 1, "attached": 1, "state": "ready", "initiators": initiators,
    });
    let mut catalog = Catalog::default();
    catalog.volumes.insert(VOLUME.0, (serde_json::from_value(volume).expect("it is a volume"), 1));
    LoopCommand::Accesses(Arc::new(Accesses::of(&catalog)))
}

#[test]
fn the_sessions_of_an_initiator_that_was_removed_end_although_its_name_was_given_again() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (orders, _events) = serve_fresh(folder.path(), Serves::default());
    // By naming 1.
    let mut removed = served(&orders, "iqn.removed", true);
    let mut stays = served(&orders, "iqn.stays", true);
    orders.give(named(&[("iqn.removed", 1), ("iqn.stays", 1)]));
    assert_eq!(removed.ask_ready(), (GOOD, None));
    orders.give(named(&[("iqn.removed", 2), ("iqn.stays", 1)]));
    assert!(removed.received().is_none());
    assert_eq!(stays.ask_ready(), (GOOD, None));
    orders.give(LoopCommand::Stop);
}

#[test]
fn initiators_that_stand_by_are_reported_again_and_again() {
    const SWEEP: Duration = Duration::from_millis(1500);
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (sender, unserved) = channel();
    let how = Serves { sweep: SWEEP, unserved: Some(sender), ..Serves::default() };
    let (orders, _events) = serve_as(folder.path(), how);
    orders.give(LoopCommand::Detach(VOLUME));
    let about = about(vec![HERE, Port { group: 2, state: AccessState::ActiveOptimized }]);
    orders.give(LoopCommand::Unit(VOLUME, Box::new(about), Box::default(), None));
    let begun = Instant::now();
    let mut stands_by = Initiator::new(&orders, "iqn.stands-by", false);
    assert_eq!(stands_by.ask_ready(), (CHECK_CONDITION, Some(BEGAN)));
    // When it has come, by a first sweep, which may be the same report, and by three more.
    let mut some = Vec::new();
    while some.len() < 5 {
        some.extend(reported(&unserved));
    }
    assert!(some.iter().all(|of| *of == ("iqn.stands-by".to_owned(), false)), "{some:?}");
    assert!(begun.elapsed() >= 3 * SWEEP, "not always");
    orders.give(LoopCommand::Stop);
}

#[test]
fn an_initiator_that_was_removed_does_not_count_as_one_that_may_come_back() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let (sender, unserved) = channel();
    let (orders, events) = serve_fresh(folder.path(), Serves { unserved: Some(sender), ..Serves::default() });
    orders.give(named(&[("iqn.gone", 1), ("iqn.removed", 1), ("iqn.stays", 1)]));
    // Two have lost their sessions a moment ago, and one loses it by its removal.
    drop(served(&orders, "iqn.gone", true));
    drop(served(&orders, "iqn.stays", true));
    let mut removed = served(&orders, "iqn.removed", true);
    let mut some = Vec::new();
    while !["iqn.gone", "iqn.stays"].iter().all(|name| some.contains(&((*name).to_owned(), true))) {
        some.extend(reported(&unserved));
    }
    orders.give(named(&[("iqn.stays", 1)]));
    assert!(removed.received().is_none());
    assert_eq!(state(&orders, &events).lost_initiators, [(VOLUME, "iqn.stays".to_owned())]);
    assert_eq!(unserved.try_iter().flatten().count(), 0, "it is not looked for elsewhere");
    orders.give(LoopCommand::Stop);
}
