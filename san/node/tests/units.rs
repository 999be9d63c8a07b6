//! Which initiators a loop lets in to the logical unit of a volume, and when.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::Serves;
use loadline_base::iscsi::{HEADER, Header, field, flag, opcode, padding};
use loadline_base::scsi::{Status, operation};
use loadline_san_core::ids::{Epoch, Incarnation, NodeId, Owner, VolumeId};
use loadline_san_core::record::Record;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::iscsi::negotiated::Negotiated;
use loadline_san_export::iscsi::parameters::Parameters;
use loadline_san_export::login::Chosen;
use loadline_san_export::scsi::reservations::{Kind, Registration, Reservation, Reservations};
use loadline_san_export::scsi::unit::{About, AccessState, NexusName, Port};
use loadline_san_node::event_loop::LoopSender;
use loadline_san_node::event_loop::command::{LoopCommand, LoopEvent, NewClient};
use loadline_san_transport::channel::Channel;

const BLOCKS: u64 = 1024;
const VOLUME: VolumeId = VolumeId(1);
const WAIT: Duration = Duration::from_secs(20);

const GOOD: u8 = Status::Good as u8;
const CHECK_CONDITION: u8 = Status::CheckCondition as u8;
const CONFLICT: u8 = Status::ReservationConflict as u8;
/// NOT READY, TARGET PORT IN STANDBY STATE: key and code.
const STANDBY: (u8, u8, u8) = (2, 0x04, 0x0b);
/// UNIT ATTENTION, POWER ON OR RESET.
const BEGAN: (u8, u8, u8) = (6, 0x29, 0x00);

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
        theirs.set_nonblocking(true).expect("it can be");
        ours.set_read_timeout(Some(WAIT)).expect("it may be so long");
        let negotiated = Negotiated {
            initiator: name.into(),
            isid: [1; 6],
            connection: 0,
            command_number: 1,
            status_number: 1,
            parameters: Parameters::default(),
        };
        let new = NewClient {
            channel: Channel::plain(theirs.into()),
            volume: VOLUME,
            name: "vol".into(),
            from: "of a test".into(),
            bytes: BLOCKS * 4096,
            fence: u64::MAX,
            session: None,
            protocol: Protocol::Iscsi,
            chosen: Chosen { negotiated: negotiated.encode(), rest: Vec::new() },
            certificate: None,
            initiator: from_afar.then(|| (name.into(), 1)),
        };
        orders.give(LoopCommand::Client(Box::new(new)));
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

    /// The next PDU that is no ping; `None` if the connection has ended.
    fn received(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            let mut header = Header([0; HEADER]);
            self.stream.read_exact(&mut header.0).ok()?;
            let bytes = header.data_bytes();
            let mut data = vec![0; bytes + padding(bytes)];
            self.stream.read_exact(&mut data).ok()?;
            if header.opcode() != opcode::NOP_IN {
                return Some((header, data));
            }
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
}

/// The logical unit, with what the configuration keeps of reservations.
fn unit(reservations: Reservations, wanted: Option<u64>) -> LoopCommand {
    let about = About {
        cluster: 1,
        volume: VOLUME.0,
        name: "vol".into(),
        bytes: BLOCKS * 4096,
        most: 4 << 20,
        ports: vec![Port { group: 1, state: AccessState::Standby }],
        here: 1,
    };
    LoopCommand::Unit(VOLUME, Box::new(about), Box::new((reservations, 1)), wanted)
}

/// Another initiator has the volume for itself.
fn reserved() -> Reservations {
    let nexus = NexusName { initiator: "iqn.other".into(), isid: [2; 6], group: 1 };
    let registrations = vec![Registration { nexus: nexus.clone(), key: 9, since: 1 }];
    let reservation = Some(Reservation { kind: Kind::ExclusiveAccess, holder: Some(nexus) });
    Reservations { generation: 1, registrations, reservation, ..Reservations::default() }
}

fn serve(folder: &std::path::Path) -> (LoopSender, Receiver<LoopEvent>) {
    let (sender, events) = channel();
    let how = Serves { waiting: Some(sender), ..Serves::default() };
    (common::serve(folder, BLOCKS, Duration::ZERO, &how), events)
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
    orders.give(LoopCommand::ReportState);
    let LoopEvent::State(state) = events.recv_timeout(WAIT).expect("the loop runs") else {
        panic!("nothing else is to come")
    };
    assert_eq!(state.initiators, [(VOLUME, "iqn.new".to_owned(), false)]);
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
    let owner = Owner { node: NodeId(2), incarnation: Incarnation(1) };
    let record = Record { epoch: Epoch(50), owner, ..common::record(BLOCKS, 1) };
    orders.give(LoopCommand::Record(VOLUME, Box::new(record)));
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
