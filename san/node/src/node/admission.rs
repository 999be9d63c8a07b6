//! Clients that have chosen a volume are handed to its loop.

use loadline_san_core::ids::VolumeId;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::login::Chosen;

use super::Node;
use super::connection::{Connection, Socket};
use crate::event_loop::command::{LoopCommand, NewClient, SessionId};
use crate::strangers;

/// What the data path has to know of a client that has chosen.
pub(super) struct Admission {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) fence: u64,
    pub(super) session: Option<SessionId>,
    pub(super) protocol: Protocol,
    pub(super) chosen: Chosen,
    /// The fingerprint of the certificate by which it was let in.
    pub(super) certificate: Option<String>,
    /// The initiator as which it was let in, if it came from beyond this machine, and the number of its naming.
    pub(super) initiator: Option<(String, u64)>,
}

/// Logs why a connection of a client ends before it has a volume.
pub(super) fn ends(from: &str, why: &str) {
    strangers::info("clients", why, None, from, &format!("client {from} is disconnected: {why}"));
}

impl Node {
    /// Hands a client to the loop that has its volume, unless its access was revoked meanwhile.
    pub(super) fn hand_over<S: Socket>(&self, stream: Connection<S>, from: String, admission: Admission) {
        let Admission { id, name, bytes, fence, session, protocol, chosen, certificate, initiator } =
            admission;
        match stream.into_channel() {
            Ok(channel) => {
                // The configuration does not change while the state is locked: the loop receives the client before any later revocation.
                let _state = self.state();
                if certificate.as_ref().is_some_and(|of| !self.accesses().may_use_volumes(of)) {
                    return ends(&from, "its access was revoked");
                }
                if initiator.as_ref().is_some_and(|of| !self.accesses().let_in(id, of)) {
                    return ends(&from, &format!("volume {name} does not let the initiator in any more"));
                }
                let volume = VolumeId(id);
                #[rustfmt::skip]
                let client =
                    NewClient { channel, volume, name, from, bytes, fence, session, protocol, chosen, certificate, initiator };
                self.loop_of(id).give(LoopCommand::Client(Box::new(client)));
            }
            Err(error) => ends(&from, &error.to_string()),
        }
    }
}
