//! A client of the volume that a loop serves.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use loadline_san_core::ids::VolumeId;
use loadline_san_export::nbd::handshake::Choice;
use loadline_san_node::event_loop::Orders;
use loadline_san_node::event_loop::order::{NewClient, NewWay, Order, SessionId};

const VOLUME: VolumeId = VolumeId(1);

/// A client that chose the volume when its record had this fence.
pub(crate) fn client(orders: &Orders, fence: u64, session: Option<SessionId>) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().expect("it can be");
    theirs.set_nonblocking(true).expect("it can be");
    let choice = Choice { name: "vol".into(), structured: false, allocation: false };
    let new = NewClient {
        socket: theirs.into(),
        volume: VOLUME,
        name: "vol".into(),
        from: "of a test".into(),
        bytes: 1 << 40,
        fence,
        session,
        way: NewWay::Nbd(choice, Vec::new()),
    };
    orders.give(Order::Client(Box::new(new)));
    ours.set_read_timeout(Some(Duration::from_secs(20))).expect("it may be so long");
    ours
}
