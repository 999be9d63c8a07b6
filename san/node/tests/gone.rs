//! Clients that have gone while they were not read, and clients that wait.

#[path = "common/client.rs"]
mod client;
mod common;

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use client::client;
use common::{Serves, serve};
use loadline_base::nbd::{Request, command, get_u32};
use loadline_san_node::event_loop::LoopSender;
use loadline_san_node::event_loop::command::{DeviceFault, LoopCommand};

const BLOCK: u64 = 4096;
/// The device that the server of the tests has.
const DEVICE: u32 = 1;

fn come(orders: &LoopSender) -> UnixStream {
    client(orders, u64::MAX, None)
}

fn send(client: &mut UnixStream, command: u16, offset: u64, length: u64, data: &[u8]) -> io::Result<()> {
    let request = Request { flags: 0, command, cookie: offset, offset, length: length as u32 };
    client.write_all(&[&request.encode()[..], data].concat())
}

/// Has a block written, and does not wait for the answer.
fn ask_to_write(client: &mut UnixStream, block: u64, value: u8) {
    send(client, command::WRITE, block * BLOCK, BLOCK, &[value; BLOCK as usize]).expect("there is room");
}

fn answer(client: &mut UnixStream) -> io::Result<()> {
    let mut answer = [0; 16];
    client.read_exact(&mut answer)?;
    assert_eq!(get_u32(&answer, 4), 0, "it is done");
    Ok(())
}

/// The first byte of a block.
fn read(client: &mut UnixStream, block: u64) -> io::Result<u8> {
    send(client, command::READ, block * BLOCK, BLOCK, &[])?;
    answer(client)?;
    let mut data = [0; BLOCK as usize];
    client.read_exact(&mut data)?;
    assert!(data.iter().all(|byte| *byte == data[0]), "it is of one write");
    Ok(data[0])
}

#[test]
fn what_a_client_sent_before_it_was_let_in_and_went_is_not_carried_out() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let how = Serves::default();
    let orders = serve(folder.path(), 1024, Duration::ZERO, &how);
    let mut there = come(&orders);
    assert_eq!(read(&mut there, 0).unwrap(), 0);
    // A client comes while the configuration does not answer, so that it cannot be let in; it writes, and goes.
    how.away.store(true, Ordering::SeqCst);
    let mut gone = come(&orders);
    ask_to_write(&mut gone, 0, 5);
    drop(gone);
    ask_to_write(&mut there, 0, 9);
    answer(&mut there).unwrap();
    how.away.store(false, Ordering::SeqCst);
    // One that comes later is let in after it.
    let mut later = come(&orders);
    assert_eq!(read(&mut later, 0).unwrap(), 9);
    assert_eq!(read(&mut there, 0).unwrap(), 9);
    orders.give(LoopCommand::Stop);
}

#[test]
fn a_client_that_is_not_let_in_waits_for_as_long_as_clients_may() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let how = Serves { client_wait: Duration::from_secs(1), ..Serves::default() };
    let orders = serve(folder.path(), 1024, Duration::ZERO, &how);
    let mut there = come(&orders);
    assert_eq!(read(&mut there, 0).unwrap(), 0);
    how.away.store(true, Ordering::SeqCst);
    let (mut late, begun) = (come(&orders), Instant::now());
    let _ = send(&mut late, command::READ, 0, BLOCK, &[]);
    let ended = answer(&mut late).expect_err("it is disconnected");
    assert!(!matches!(ended.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{ended}");
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(read(&mut there, 0).unwrap(), 0, "a client that was let in is served");
    orders.give(LoopCommand::Stop);
}

/// A client with as many requests outstanding as it may have is not listened to, and ends. What it sends beyond those fits into its
/// socket: it is not to wait for the device.
#[test]
fn what_a_client_that_was_not_listened_to_has_left_is_not_carried_out() {
    for count in [200u64, 256, 272] {
        let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
        let orders = serve(folder.path(), 1024, Duration::ZERO, &Serves::default());
        let (mut other, mut one) = (come(&orders), come(&orders));
        assert_eq!((read(&mut other, 0).unwrap(), read(&mut one, 0).unwrap()), (0, 0));
        let slow = DeviceFault { slow_ns: 1_500_000_000, ..DeviceFault::default() };
        orders.give(LoopCommand::Fault(DEVICE, slow));
        std::thread::sleep(Duration::from_millis(100));
        // Each waits for the one before, and the first for the device.
        for number in 0..count {
            ask_to_write(&mut one, 0, if number == 0 { 1 } else { 2 });
        }
        std::thread::sleep(Duration::from_millis(100));
        drop(one);
        std::thread::sleep(Duration::from_secs(1));
        orders.give(LoopCommand::NoFaults);
        // What comes now waits for all that came before, and is there: nothing that comes later may change it.
        ask_to_write(&mut other, 1, 3);
        answer(&mut other).unwrap();
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            let found = read(&mut other, 0).unwrap();
            assert!(found < 2, "{count} writes: one of a client that had gone for long was carried out");
            std::thread::sleep(Duration::from_millis(20));
        }
        orders.give(LoopCommand::Stop);
    }
}

#[test]
fn reads_go_on_beside_any_number_of_writes_that_are_held() {
    const MIB: u64 = 1 << 20;
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    // One copy is in sync, and the policy asks for two: writes are held.
    let how = Serves { least: 2, ..Serves::default() };
    let orders = serve(folder.path(), 64 << 10, Duration::ZERO, &how);
    let (mut reader, mut writer) = (come(&orders), come(&orders));
    assert_eq!(read(&mut reader, 60_000).unwrap(), 0);
    writer.set_write_timeout(Some(Duration::from_secs(1))).expect("it may be so long");
    let data = vec![7; MIB as usize];
    let sent =
        (0..60).take_while(|number| send(&mut writer, command::WRITE, number * MIB, MIB, &data).is_ok());
    assert!(sent.count() > 40, "more than the volume may have in flight");
    for _ in 0..100 {
        assert_eq!(read(&mut reader, 60_000).unwrap(), 0);
        send(&mut reader, command::FLUSH, 0, 0, &[]).unwrap();
        answer(&mut reader).unwrap();
    }
    orders.give(LoopCommand::Stop);
}

/// As libnbd does it: the farewell, and then the end of its own direction.
fn take_leave(client: &mut UnixStream) {
    send(client, command::DISC, 0, 0, &[]).expect("there is room");
    client.shutdown(std::net::Shutdown::Write).expect("it is open");
}

#[test]
fn a_client_that_takes_its_leave_is_not_reset_and_what_it_asked_for_before_is_done() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let how = Serves::default();
    let orders = serve(folder.path(), 1024, Duration::ZERO, &how);
    let mut one = come(&orders);
    assert_eq!(read(&mut one, 0).unwrap(), 0);
    // One that is not let in yet.
    how.away.store(true, Ordering::SeqCst);
    let mut other = come(&orders);
    take_leave(&mut other);
    std::thread::sleep(Duration::from_millis(700));
    how.away.store(false, Ordering::SeqCst);
    assert_eq!(other.read(&mut [0; 16]).expect("it is not reset"), 0);
    // One with requests that are not answered, of which the first waits for a device.
    let slow = DeviceFault { slow_ns: 1_500_000_000, ..DeviceFault::default() };
    orders.give(LoopCommand::Fault(DEVICE, slow));
    std::thread::sleep(Duration::from_millis(100));
    for number in 0..200u64 {
        ask_to_write(&mut one, 0, if number == 199 { 7 } else { 1 });
    }
    take_leave(&mut one);
    std::thread::sleep(Duration::from_secs(1));
    orders.give(LoopCommand::NoFaults);
    for _ in 0..200 {
        answer(&mut one).expect("it is answered");
    }
    assert_eq!(one.read(&mut [0; 16]).expect("it is not reset"), 0);
    assert_eq!(read(&mut come(&orders), 0).unwrap(), 7);
    orders.give(LoopCommand::Stop);
}
