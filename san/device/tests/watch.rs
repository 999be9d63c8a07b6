//! Sockets that are watched by the ring that serves the devices.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use loadline_san_device::pool::{Class, Pool};
use loadline_san_device::uring::{For, Uring, UringOptions};

fn ring() -> Uring {
    let pool = Pool::new(&[Class { blocks: 1, buffers: 4 }]).expect("there is memory");
    let options = UringOptions { spin: Duration::ZERO, ..UringOptions::default() };
    Uring::new(options, pool).expect("io_uring is allowed here")
}

#[test]
fn a_socket_wakes_the_waiting_thread_once_for_each_watch() {
    let mut ring = ring();
    let (mut here, mut there) = UnixStream::pair().expect("it can be");
    ring.watch(here.as_raw_fd(), 7, For::Input).expect("there is room");
    ring.wait(Duration::from_millis(20)).expect("it works");
    assert_eq!(ring.ready(), None, "nothing has come");
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        there.write_all(b"x").expect("it is open");
        there
    });
    let begun = Instant::now();
    ring.wait(Duration::from_secs(10)).expect("it works");
    assert!(begun.elapsed() < Duration::from_secs(5), "it was woken");
    assert_eq!((ring.ready(), ring.ready()), (Some((7, For::Input)), None));
    let there = writer.join().expect("it writes");
    ring.wait(Duration::from_millis(20)).expect("it works");
    assert_eq!(ring.ready(), None, "it is not watched any more");
    // Input that is there already is reported at once.
    ring.watch(here.as_raw_fd(), 8, For::Input).expect("there is room");
    ring.wait(Duration::from_secs(10)).expect("it works");
    assert_eq!(ring.ready(), Some((8, For::Input)));
    here.read_exact(&mut [0]).expect("it is there");
    // So is the other end's end.
    ring.watch(here.as_raw_fd(), 9, For::Input).expect("there is room");
    drop(there);
    ring.wait(Duration::from_secs(10)).expect("it works");
    assert_eq!(ring.ready(), Some((9, For::Input)));
}

#[test]
fn room_is_waited_for_only_if_that_is_watched_for() {
    let mut ring = ring();
    let (here, _there) = UnixStream::pair().expect("it can be");
    ring.watch(here.as_raw_fd(), 1, For::Input).expect("there is room");
    ring.watch(here.as_raw_fd(), 2, For::Room).expect("there is room");
    ring.wait(Duration::from_secs(10)).expect("it works");
    assert_eq!((ring.ready(), ring.ready()), (Some((2, For::Room)), None));
}

#[test]
fn more_can_be_watched_than_the_queue_has_room_for_and_dropping_does_not_wait_for_them() {
    let pool = Pool::new(&[Class { blocks: 1, buffers: 4 }]).expect("there is memory");
    let options = UringOptions { in_flight: 8, stores: 1, spin: Duration::ZERO };
    let mut ring = Uring::new(options, pool).expect("io_uring is allowed here");
    let mut pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().expect("it can be")).collect();
    for (key, (here, _)) in (0..).zip(&pairs) {
        ring.watch(here.as_raw_fd(), key, For::Input).expect("there is room");
    }
    pairs.iter_mut().step_by(2).for_each(|(_, there)| there.write_all(b"x").expect("it is open"));
    let (mut keys, begun) = (Vec::new(), Instant::now());
    while keys.len() < 50 {
        assert!(begun.elapsed() < Duration::from_secs(10), "all are reported: {keys:?}");
        ring.wait(Duration::from_millis(100)).expect("it works");
        while let Some((key, For::Input)) = ring.ready() {
            keys.push(key);
        }
    }
    keys.sort_unstable();
    assert_eq!(keys, (0..100).step_by(2).collect::<Vec<u32>>());
    let begun = Instant::now();
    drop(ring);
    assert!(begun.elapsed() < Duration::from_secs(2), "the drop does not wait for sockets");
}
