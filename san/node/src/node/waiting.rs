//! Attachments that wait: at this node a client may connect and set up how it will use a volume, while another client uses it by the present
//! attachment. When its first queue runs, the waiting attachment takes over from the present one (rule H1). That is how a hypervisor moves a
//! running machine: the destination has the disk open for as long as the source runs.
//!
//! ```text
//!  ordered ─▶ a socket here ─▶ a client ─ its first queue runs ─▶ in the configuration: attached here ─▶ an attach like others
//!     └─────────────┴─────────────┴─ given up, or the present attachment has ended: nothing has changed
//! ```
//!
//! A waiting attachment is in this process only. The configuration changes when it takes over, so what ends it before leaves no trace.

use std::collections::BTreeMap;
use std::time::Duration;

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::BLOCK;
use loadline_san_export::front_ends::{Endpoint, Protocol};
use loadline_san_export::login::Chosen;
use loadline_san_transport::channel::Channel;

use super::Node;
use super::listeners::LOCAL;
use super::manage::{ClientsView, ManageError, Use};
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, SocketPlace, Volume, VolumeState, change};
use crate::event_loop::command::{LoopCommand, NewClient};

/// How long an attachment waits for a client to connect.
const CONNECTS: Duration = Duration::from_secs(600);
/// How long one read of the configuration may take while a client that has started waits.
const READ: Duration = Duration::from_secs(2);
/// How long after an attempt to change the configuration has failed the next one begins.
const RETRY: Duration = Duration::from_millis(100);

/// The attachment beside which another one waits: it takes over from this one, and from no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Present {
    /// The node of the volume's entry in the configuration.
    node: u32,
    socket: SocketPlace,
    /// The fence of the volume's record. It grows with every attach that is carried out, and with every owner on another node.
    fence: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    present: Present,
    socket: SocketPlace,
    has_client: bool,
    /// The configuration is being changed, or was: the volume may be attached here by now.
    takes_over: bool,
}

/// The waiting attachments of this node: one of a volume at the most.
#[derive(Debug, Default)]
pub(super) struct WaitingAttachments {
    last: u64,
    by_volume: BTreeMap<u64, Waiting>,
}

/// Whose a client is that has connected to a volume's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// One of the present attachment.
    Present,
    /// The first of the waiting attachment of this number.
    Waiting(u64),
    /// The waiting attachment has a client.
    NoOne,
}

impl WaitingAttachments {
    /// Volumes with the sockets of their waiting attachments.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (u64, SocketPlace)> {
        self.by_volume.iter().map(|(id, waiting)| (*id, waiting.socket))
    }

    /// A client has connected to this socket of a volume.
    pub(super) fn connected(&mut self, volume: u64, socket: SocketPlace) -> Whose {
        match self.by_volume.get_mut(&volume).filter(|waiting| waiting.socket == socket) {
            None => Whose::Present,
            Some(waiting) => match std::mem::replace(&mut waiting.has_client, true) {
                true => Whose::NoOne,
                false => Whose::Waiting(waiting.number),
            },
        }
    }

    fn add(&mut self, volume: u64, present: Present, socket: SocketPlace) -> u64 {
        self.last += 1;
        let number = self.last;
        let waiting = Waiting { number, present, socket, has_client: false, takes_over: false };
        self.by_volume.insert(volume, waiting);
        number
    }

    fn get(&mut self, volume: u64, number: u64) -> Option<&mut Waiting> {
        self.by_volume.get_mut(&volume).filter(|waiting| waiting.number == number)
    }

    /// Removes the attachment of this number, if this holds. Whether it was there.
    fn remove(&mut self, volume: u64, number: u64, holds: impl FnOnce(&Waiting) -> bool) -> bool {
        let is_it = self.get(volume, number).is_some_and(|waiting| holds(waiting));
        is_it && self.by_volume.remove(&volume).is_some()
    }
}

impl Node {
    /// Prepares an attachment of a volume at this node, or the one that is named, which waits beside the present one until its client
    /// starts. Returns how that client reaches the volume.
    pub async fn attach_volume_when_started(
        &self,
        name: &str,
        node: Option<&str>,
    ) -> Result<Use, ManageError> {
        let (id, volume, catalog) = self.attachable(name, node).await?;
        // What is known by now must not end what waits.
        self.reconciled().await;
        let present = self.present(id).ok_or_else(|| {
            ManageError::InUse(format!(
                "volume {name} is not attached, so there is no attachment beside which another one can wait: attach the volume without \
                 --when-started"
            ))
        })?;
        self.give_up_waiting(id, "another attachment of the volume waits here now");
        let number = {
            let mut state = self.state();
            // A machine of the present attachment may connect again at its socket, which is not open while another node owns the volume.
            let is_present = present.node == self.id() && present.socket == SocketPlace::First;
            let is_open =
                state.sockets.keys().any(|(of, _, place)| (*of, *place) == (id, SocketPlace::First));
            let socket = if is_present || is_open { SocketPlace::Second } else { SocketPlace::First };
            state.waiting.add(id, present, socket)
        };
        self.volume_sockets();
        let socket = {
            let mut state = self.state();
            let socket = state.waiting.get(id, number).map(|waiting| waiting.socket);
            let is_open =
                |place: &SocketPlace| state.sockets.keys().any(|(of, _, at)| (*of, at) == (id, place));
            socket.filter(is_open)
        };
        let Some(socket) = socket else {
            self.give_up_waiting(id, "its socket cannot be opened");
            return Err(ManageError::Wrong(format!(
                "the socket of volume {name} cannot be opened: the log of this node has the reason"
            )));
        };
        let this = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(CONNECTS).await;
            this.end_waiting(
                id,
                number,
                |waiting| !waiting.has_client,
                "no client has connected to it in time",
            );
        });
        tracing::info!(
            volume = name,
            "an attachment of volume {name} waits at this node: it takes over when its client starts"
        );
        let at_volume = |protocol: &Protocol| matches!(protocol.endpoint(), Endpoint::Volume { .. });
        let (here, _) = &catalog.nodes[&self.id()];
        Ok(Use {
            volume: name.into(),
            node: here.name.clone(),
            ways: Protocol::ALL
                .into_iter()
                .filter(at_volume)
                .map(|protocol| self.ways(protocol, name, here, socket))
                .collect(),
            requires_tls: volume.requires_tls,
            waits: true,
            lets_initiators_in: !volume.initiators.is_empty(),
            disconnected: ClientsView::default(),
            without_path: Vec::new(),
        })
    }

    /// The present attachment of a volume, as far as this node knows; `None` if it is not attached.
    fn present(&self, id: u64) -> Option<Present> {
        let (node, socket) = {
            let state = self.state();
            let (volume, _) = state.catalog.volumes.get(&id)?;
            (volume.attached.filter(|_| volume.state == VolumeState::Ready)?, volume.socket)
        };
        Some(Present { node, socket, fence: self.record(id)?.fence })
    }

    /// A client has connected to the socket of the waiting attachment of this number.
    pub(super) fn let_in_waiting(
        &self,
        stream: tokio::net::UnixStream,
        id: u64,
        name: String,
        protocol: Protocol,
        number: u64,
    ) {
        let (Some(record), Ok(socket)) = (self.record(id), stream.into_std()) else {
            return self.end_waiting(id, number, |_| true, "its client cannot be served");
        };
        let client = NewClient {
            channel: Channel::plain(socket.into()),
            volume: VolumeId(id),
            name,
            from: LOCAL.into(),
            bytes: record.blocks * BLOCK,
            fence: record.fence,
            session: None,
            protocol,
            chosen: Chosen::default(),
            certificate: None,
            initiator: None,
        };
        self.loop_of(id).give(LoopCommand::WaitingClient(Box::new(client), number));
    }

    /// Waiting attachments end whose present attachment has ended: the volume was attached again, or detached, or another node has taken
    /// it over.
    pub(super) fn end_superseded(&self) {
        let known: Vec<(u64, u64, Present)> = {
            let state = self.state();
            let waiting = state.waiting.by_volume.iter().filter(|(_, waiting)| !waiting.takes_over);
            waiting.map(|(id, waiting)| (*id, waiting.number, waiting.present)).collect()
        };
        for (id, number, present) in known {
            if self.present(id) != Some(present) {
                self.end_waiting(id, number, |waiting| !waiting.takes_over, SUPERSEDED);
            }
        }
    }

    fn give_up_waiting(&self, id: u64, why: &'static str) {
        let number = self.state().waiting.by_volume.get(&id).map(|waiting| waiting.number);
        if let Some(number) = number {
            self.end_waiting(id, number, |_| true, why);
        }
    }

    /// The attachment of this number waits no longer, if this holds. Its client is disconnected, and its socket removed.
    fn end_waiting(&self, id: u64, number: u64, holds: impl FnOnce(&Waiting) -> bool, why: &'static str) {
        if self.state().waiting.remove(id, number, holds) {
            self.log_waiting(id, &format!("does not wait at this node any more: {why}"));
            self.loop_of(id).give(LoopCommand::EndWaiting(VolumeId(id), why));
            self.volume_sockets();
        }
    }

    fn log_waiting(&self, id: u64, what: &str) {
        let name = self.state().catalog.volumes.get(&id).map(|(volume, _)| volume.name.clone());
        let name = name.unwrap_or_else(|| format!("with id {id}"));
        tracing::info!(volume = name, "an attachment of volume {name} {what}");
    }

    // ---- what the loop reports -------------------------------------------------------------------------

    /// The client of a waiting attachment is gone.
    pub(super) fn waiting_gone(&self, id: u64, number: u64) {
        if self.state().waiting.remove(id, number, |_| true) {
            self.log_waiting(
                id,
                "does not wait at this node any more: its client has gone before it was let in",
            );
            self.volume_sockets();
        }
    }

    /// The client was let in: the attachment is the present one.
    pub(super) fn waiting_let_in(&self, id: u64, number: u64) {
        if self.state().waiting.remove(id, number, |_| true) {
            self.log_waiting(id, "has taken over: its client has started at this node");
            self.volume_sockets();
        }
    }

    /// The client has started. The attachment takes over, unless it is not the present one's successor any more.
    pub(super) fn waiting_started(&self, id: u64, number: u64) {
        let this = self.clone();
        tokio::spawn(async move {
            if this.take_over(id, number).await {
                this.reconciled().await;
                this.carry_out_attach(id);
            }
        });
    }

    /// Names this node in the configuration, in the place of the present attachment. It is tried for as long as the client waits. Whether it
    /// was done.
    async fn take_over(&self, id: u64, number: u64) -> bool {
        loop {
            let is_known = self.refresh_within(READ).await;
            let Some((present, socket, tried)) = self.state().waiting.get(id, number).map(|waiting| {
                let tried = waiting.takes_over;
                waiting.takes_over |= is_known;
                (waiting.present, waiting.socket, tried)
            }) else {
                return false;
            };
            if is_known {
                let now = self.present(id);
                // An attempt whose outcome was not known has been carried out.
                if tried && now == Some(Present { node: self.id(), socket, ..present }) {
                    return true;
                }
                let taken = if now == Some(present) {
                    self.replace_attached(id, present, socket).await
                } else {
                    Ok(false)
                };
                match taken {
                    Ok(true) => return true,
                    Ok(false) => {
                        self.end_waiting(id, number, |_| true, SUPERSEDED);
                        return false;
                    }
                    Err(why) => self.log_waiting(id, &format!("cannot take over yet: {why}")),
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Attaches a volume here, if the configuration still has this attachment of it.
    async fn replace_attached(
        &self,
        id: u64,
        present: Present,
        socket: SocketPlace,
    ) -> Result<bool, ManageError> {
        let me = self.id();
        let replaced = self.config().call(move |store| {
            for _ in 0..16 {
                let catalog = Catalog::read(store)?;
                let there = catalog.volumes.get(&id).filter(|(volume, _)| {
                    volume.state == VolumeState::Ready
                        && (volume.attached, volume.socket) == (Some(present.node), present.socket)
                });
                let Some((volume, version)) = there else { return Ok(false) };
                let next = Volume { attached: Some(me), socket, attach_key: None, ..volume.clone() };
                if store.commit(&[change(format!("volume/{id}"), Some(*version), &next)])? {
                    return Ok(true);
                }
            }
            Err(ConfigError::Contended)
        });
        Ok(replaced.await?)
    }
}

/// Why an attachment that waits ends with the present one.
const SUPERSEDED: &str = "the attachment beside which it waited has ended";

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENT: Present = Present { node: 1, socket: SocketPlace::First, fence: 3 };

    #[test]
    fn an_attachment_that_waits_has_one_client_and_only_at_its_own_socket() {
        let mut waiting = WaitingAttachments::default();
        assert_eq!(waiting.connected(7, SocketPlace::First), Whose::Present);
        let number = waiting.add(7, PRESENT, SocketPlace::Second);
        assert_eq!(waiting.connected(7, SocketPlace::First), Whose::Present);
        assert_eq!(waiting.connected(8, SocketPlace::Second), Whose::Present);
        assert_eq!(waiting.connected(7, SocketPlace::Second), Whose::Waiting(number));
        assert_eq!(waiting.connected(7, SocketPlace::Second), Whose::NoOne);
    }

    #[test]
    fn what_was_said_of_an_earlier_attachment_does_not_end_a_later_one() {
        let mut waiting = WaitingAttachments::default();
        let first = waiting.add(7, PRESENT, SocketPlace::First);
        assert!(waiting.remove(7, first, |_| true));
        let second = waiting.add(7, PRESENT, SocketPlace::First);
        assert!(!waiting.remove(7, first, |_| true));
        assert!(!waiting.remove(7, second, |waiting| waiting.has_client));
        assert!(waiting.remove(7, second, |_| true));
        assert!(!waiting.remove(7, second, |_| true));
    }
}
