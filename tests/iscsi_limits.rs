//! How many initiators and half logins a node bears, and how long it waits for each: nodes are real processes.

mod nodes;
#[path = "iscsi/raw.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod raw;

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use loadline_base::iscsi::{flag, opcode};
use loadline_base::scsi::operation;
use nodes::Cluster;
use raw::Raw;

/// Half logins of each kind: more than one source may have.
const HALF: usize = 1100;
/// How long a command, or an end that is due, may take: the limit is 12 s, and machines of tests are slow.
const LIMIT: Duration = Duration::from_secs(18);

/// The name of the target of a volume.
fn target(volume: &str) -> String {
    format!("iqn.2026-01.org.loadline:{volume}")
}

fn cdb16(code: u8, sector: u64, sectors: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = code;
    cdb[2..10].copy_from_slice(&sector.to_be_bytes());
    cdb[10..14].copy_from_slice(&sectors.to_be_bytes());
    cdb
}

/// A session that is ready, at the node that owns the volume.
fn ready(address: Ipv4Addr, isid: u16, volume: &str) -> Raw {
    let mut session = Raw::log_in(address, isid, Some(&target(volume))).expect("it is let in");
    session.get_ready();
    session
}

fn write(session: &mut Raw, byte: u8) -> u32 {
    session.send_command(&cdb16(operation::WRITE_16, 0, 8), flag::WRITE, 4096, &[byte; 4096])
}

fn read(session: &mut Raw) -> Vec<u8> {
    let number = session.send_command(&cdb16(operation::READ_16, 0, 8), flag::READ, 4096, &[]);
    let (status, data) = session.answer(number).expect("it is answered");
    assert_eq!((status, data.len()), (0, 4096));
    data
}

#[test]
fn an_initiator_that_answers_pings_stays_and_one_that_does_not_is_ended_on_standby_too() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let mut alive = ready(cluster.address(1), 1, "disk");
    let mut silent = ready(cluster.address(1), 2, "disk");
    let mut standing_by = Raw::log_in(cluster.address(2), 3, Some(&target("disk"))).expect("it is let in");
    let living = thread::spawn(move || {
        let (begun, mut pings) = (Instant::now(), 0);
        // For longer than one that says nothing.
        while begun.elapsed() < LIMIT {
            let (ping, _) = alive.receive().expect("the session goes on");
            assert_eq!(ping.opcode(), opcode::NOP_IN);
            alive.pong(&ping).expect("the session goes on");
            pings += 1;
        }
        assert!(alive.is_ready().expect("the session goes on"));
        pings
    });
    assert_eq!(silent.await_end(), [opcode::NOP_IN], "one ping");
    assert_eq!(standing_by.await_end(), [opcode::NOP_IN], "one ping");
    for node in [1, 2] {
        let log = cluster.log(node);
        assert!(log.contains("has not answered a ping"), "node {node} says why: {log}");
    }
    let pings = living.join().expect("it stays");
    assert!(pings >= 2, "{pings}");
}

#[test]
fn two_hundred_and_fifty_six_sessions_are_there_at_once() {
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "disk"]);
    let mut sessions: Vec<Raw> = (0..256).map(|isid| ready(cluster.address(1), isid, "disk")).collect();
    // Those that came first have heard of nothing meanwhile, and are answered.
    for session in &mut sessions {
        assert!(session.is_ready().expect("the session goes on"));
    }
    let number = write(&mut sessions[0], 7);
    assert_eq!(sessions[0].answer(number).expect("it is answered").0, 0);
    assert_eq!(read(&mut sessions[255]), [7; 4096]);
}

/// What a half login does, and how one is begun.
type Kind = (&'static str, fn(Ipv4Addr) -> Raw);

/// Of each stage of a login more than there is room for: the oldest go, and a client that is real is let in at once.
#[test]
fn half_logins_keep_nobody_out() {
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "disk"]);
    let address = cluster.address(1);
    // Tests run beside others, with the usual limit of 1024 descriptors.
    drop(nodes::client::silent(&[address], 1));
    let mut before = ready(address, 1, "disk");
    let kinds: [Kind; 4] = [
        ("says nothing", Raw::connect),
        ("stops in a header", |address| {
            let mut half = Raw::connect(address);
            half.begin_header();
            half
        }),
        ("stops in the stage of security", |address| {
            let mut half = Raw::connect(address);
            half.begin_login(&target("disk"));
            half.receive().expect("it is answered");
            half
        }),
        ("is there to look for targets", |address| Raw::log_in(address, 1, None).expect("it is let in")),
    ];
    for (what, open) in kinds {
        let mut half: Vec<Raw> = (0..HALF).map(|_| open(address)).collect();
        let mut real = ready(address, 2, "disk");
        let number = write(&mut real, 9);
        assert_eq!(real.answer(number).expect("it is answered").0, 0, "beside one that {what}");
        half[0].await_end();
        assert!(before.is_ready().expect("the session goes on"), "one that {what} displaces none that is in");
    }
}

#[test]
fn no_login_takes_longer_than_its_limit_and_none_goes_on_for_ever() {
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "disk"]);
    let address = cluster.address(1);
    let mut slow = Raw::connect(address);
    slow.begin_header();
    let mut half = Raw::connect(address);
    half.begin_login(&target("disk"));
    let asking = thread::spawn(move || {
        let mut looking = Raw::log_in(address, 1, None).expect("it is let in");
        let begun = Instant::now();
        while looking.ask_for_targets().is_ok() {
            assert!(begun.elapsed() < LIMIT, "it asks for ever");
            thread::sleep(Duration::from_millis(50));
        }
    });
    // One that negotiates for ever has a limit of its own.
    let mut looping = Raw::connect(address);
    looping.begin_login(&target("disk"));
    let mut rounds = 0;
    while looping.receive().is_ok() && looping.repeat_login().is_ok() {
        rounds += 1;
        assert!(rounds < 1000, "it logs in for ever");
    }
    slow.await_end();
    half.await_end();
    asking.join().expect("it has ended");
}

/// A volume may do so little a second that commands would wait for too long: those that have not begun are refused, and nothing else is
/// disturbed.
#[test]
fn commands_that_wait_for_the_limit_of_a_volume_are_answered_in_time() {
    let cluster = Cluster::start(1);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "1"]);
    cluster.loadline(&["volume", "attach", "disk"]);
    let mut session = ready(cluster.address(1), 1, "disk");
    cluster.loadline(&["volume", "limit", "disk", "--iops", "1"]);
    // It holds when the node has read it.
    let ordered = Instant::now();
    loop {
        let begun = Instant::now();
        let number = write(&mut session, 1);
        session.answer(number).expect("it is answered");
        if begun.elapsed() > Duration::from_millis(500) {
            break;
        }
        assert!(ordered.elapsed() < LIMIT, "the limit does not hold");
    }
    let begun = Instant::now();
    let numbers: Vec<u32> = (0..40).map(|byte| write(&mut session, byte)).collect();
    let mut statuses = Vec::new();
    for _ in numbers {
        let (_, status) = session.any_answer().expect("the session goes on");
        assert!(begun.elapsed() < LIMIT, "{statuses:?}");
        statuses.push(status);
    }
    let [good, full] = [0, 0x28].map(|wanted| statuses.iter().filter(|status| **status == wanted).count());
    assert!(good > 0 && full > 0 && good + full == statuses.len(), "{statuses:?}");
    cluster.loadline(&["volume", "limit", "disk", "--none"]);
    let number = write(&mut session, 77);
    assert_eq!(session.answer(number).expect("it is answered").0, 0);
    assert_eq!(read(&mut session), [77; 4096]);
}

/// Writes wait for a second copy, which is away. They are not answered, the session ends, and what has begun does not come over what is newer.
#[test]
fn what_a_volume_cannot_carry_out_ends_the_session_and_never_comes_late() {
    let mut cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "16MiB", "--copies", "2", "--least", "2"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let address = cluster.address(1);
    let mut session = ready(address, 1, "disk");
    let number = write(&mut session, 1);
    assert_eq!(session.answer(number).expect("it is answered").0, 0);
    cluster.kill(2);
    cluster.wait_until_not("disk", "healthy", Duration::from_secs(10));
    let begun = Instant::now();
    let number = write(&mut session, 2);
    let ended = session.answer(number);
    let took = begun.elapsed();
    // Refused, because it has not begun; or the session has ended.
    assert!(ended.as_ref().map_or(true, |(status, _)| *status != 0), "it is not known to be done: {ended:?}");
    assert!(took < LIMIT, "{took:?}");
    println!("{ended:?} after {took:?}");
    // Reads go on, and the same write is sent again, with another one behind it.
    let mut session = ready(address, 2, "disk");
    let was = read(&mut session);
    assert!(was == [1; 4096] || was == [2; 4096]);
    write(&mut session, 2);
    let last = write(&mut session, 3);
    cluster.start_node(2);
    let is_done = matches!(session.answer(last), Ok((0, _)));
    // If the copy came too late, the initiator sends it once more.
    let mut session = ready(address, 3, "disk");
    if !is_done {
        let last = write(&mut session, 3);
        assert_eq!(session.answer(last).expect("the copy is there").0, 0);
    }
    cluster.wait_until("disk", "healthy", Duration::from_secs(30));
    for _ in 0..20 {
        assert_eq!(read(&mut session), [3; 4096], "an older write comes late");
        thread::sleep(Duration::from_millis(50));
    }
}
