//! Which clients a loop lets in, and which it disconnects.

#[path = "common/client.rs"]
mod client;
mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use client::client;
use common::Serves;
use loadline_base::nbd::{Request, command, get_u32};
use loadline_san_core::ids::{Incarnation, NodeId, VolumeId};
use loadline_san_node::event_loop::command::{LoopCommand, SessionId};

const BLOCKS: u64 = 1024;
const VOLUME: VolumeId = VolumeId(1);

/// Whether a client is served: it flushes, and is answered, or its connection ends.
fn is_served(client: &mut UnixStream) -> bool {
    let flush = Request { flags: 0, command: command::FLUSH, cookie: 1, offset: 0, length: 0 };
    // If it is closed already, there is no answer either.
    let _ = client.write_all(&flush.encode());
    let mut answer = [0; 16];
    match client.read_exact(&mut answer) {
        Ok(()) => {
            assert_eq!(get_u32(&answer, 4), 0, "it is done");
            true
        }
        Err(why) => {
            assert!(
                !matches!(why.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
                "{why}"
            );
            false
        }
    }
}

#[test]
fn a_client_that_chose_before_an_attach_is_disconnected_and_one_that_comes_after_is_served() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let orders = common::serve(folder.path(), BLOCKS, Duration::ZERO, &Serves::default());
    // The first owner's claim was the first attachment. A client that comes before it is let in with it, and is served when it is done.
    assert!(is_served(&mut client(&orders, u64::MAX, None)));
    assert!(!is_served(&mut client(&orders, 0, None)), "it chose when another owned the volume");
    let mut first = client(&orders, 1, None);
    assert!(is_served(&mut first));
    for fence in 1..5 {
        orders.give(LoopCommand::Fence(VOLUME));
        assert!(!is_served(&mut first), "it came before");
        let mut late = client(&orders, fence, None);
        assert!(!is_served(&mut late), "it chose before");
        // The numbers of attachments grow also when clients are let in.
        first = loop {
            let mut next = client(&orders, u64::MAX, None);
            if is_served(&mut next) {
                break next;
            }
        };
        assert!(!is_served(&mut client(&orders, fence, None)), "it chose before, and comes after");
    }
    orders.give(LoopCommand::Detach(VOLUME));
    assert!(!is_served(&mut first));
    orders.give(LoopCommand::Admit(VOLUME));
    assert!(!is_served(&mut client(&orders, u64::MAX, None)), "clients do not make a node claim a volume");
    orders.give(LoopCommand::Stop);
}

#[test]
fn the_end_of_a_session_disconnects_its_clients_and_no_others() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("there is memory");
    let orders = common::serve(folder.path(), BLOCKS, Duration::ZERO, &Serves::default());
    let session = |number| SessionId { node: NodeId(2), incarnation: Incarnation(1), number };
    let mut clients: Vec<UnixStream> = [None, Some(session(1)), Some(session(2)), Some(session(1))]
        .into_iter()
        .map(|session| client(&orders, u64::MAX, session))
        .collect();
    assert!(clients.iter_mut().all(is_served));
    orders.give(LoopCommand::EndSession(session(1)));
    let served: Vec<bool> = clients.iter_mut().map(is_served).collect();
    assert_eq!(served, [true, false, true, false]);
    // One that has only just come.
    let mut late = client(&orders, u64::MAX, Some(session(2)));
    orders.give(LoopCommand::EndSession(session(2)));
    assert!(!is_served(&mut late));
    orders.give(LoopCommand::Stop);
}
