//! A client of the volume that a loop serves.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use loadline_san_core::ids::VolumeId;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::login::Chosen;
use loadline_san_node::event_loop::LoopSender;
use loadline_san_node::event_loop::command::{LoopCommand, NewClient, SessionId};
use loadline_san_transport::channel::Channel;

const VOLUME: VolumeId = VolumeId(1);

/// A client that chose the volume when its record had this fence.
pub(crate) fn client(orders: &LoopSender, fence: u64, session: Option<SessionId>) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().expect("it can be");
    theirs.set_nonblocking(true).expect("it can be");
    let new = NewClient {
        channel: Channel::plain(theirs.into()),
        volume: VOLUME,
        name: "vol".into(),
        from: "of a test".into(),
        bytes: 1 << 40,
        fence,
        session,
        protocol: Protocol::Nbd,
        chosen: Chosen::default(),
        certificate: None,
        initiator: None,
    };
    orders.give(LoopCommand::Client(Box::new(new)));
    ours.set_read_timeout(Some(Duration::from_secs(20))).expect("it may be so long");
    ours
}
