//! Connections at the port for nodes: each proves that it is a node's, says what it is for, and goes to what is to have it: a loop, a
//! session, or a volume of which it forwards a client.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_san_core::ids::NodeId;
use loadline_san_core::layout::BLOCK;
use loadline_san_export::front_ends::Protocol;
use loadline_san_export::login::Chosen;
use loadline_san_protocol::record;
use loadline_san_transport::helpers::Precedence;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::admission::{Admission, ends};
use super::connection::Link;
use super::forward::{Forward, REVOKED, TAKES};
use super::links::PeerIdentity;
use super::{Entered, Evicted, Node, sessions, sockets};
use crate::event_loop::command::LoopCommand;
use crate::event_loop::peer_sender::Preamble;
use crate::strangers;

/// A connection that has not said what it is for by then is disconnected.
const SAYS: Duration = Duration::from_secs(10);
/// How long a forwarded client waits for the configuration, of the time within which it is let in.
const READ: Duration = Duration::from_secs(2);
/// Connections of nodes that have proved who they are, and have not said what they are for, or are for sessions or forwarded clients
/// that are not let in yet. More are disconnected.
pub(super) const MOST_OF_NODES: usize = 2048;
/// The port at which other nodes connect, for messages.
const NODES_PORT: &str = "the port for nodes";
/// The kind of lines about what connections at that port say they are for.
const SENDERS: &str = "what nodes are";
/// Why a forwarded client is not let in, or ends.
const SESSION_ENDED: &str = "the session with the node that forwards the connection has ended";

impl Node {
    /// A connection is refused, and counted: it may come from a stranger, or from a node with a wrong clock or an old identity.
    pub(crate) fn count_refused(&self, to: &'static str, from: IpAddr, why: &str) {
        self.state().refused_connections += 1;
        // Without the port, which is another one each time: the log would not see that it repeats itself.
        strangers::warn(to, why, &from, &format!("a connection from {from} to {to} is refused: {why}"));
    }

    /// A connection has lost its place to a newer one. It is counted as refused, and logged apart: a stranger can cause any number of such
    /// lines, and must not hide why others are refused.
    pub(crate) fn count_displaced(&self, to: &'static str, from: IpAddr) {
        self.state().refused_connections += 1;
        let text = format!("a connection from {from} to {to} is closed: {}", Evicted::WHY);
        strangers::warn("displaced connections", "", &from, &text);
    }

    pub(super) fn let_in_peer(self, stream: TcpStream, from: SocketAddr, room: &Arc<Semaphore>) {
        let pools = self.unproved();
        let (pool, precedence) = match self.is_address_of_node(from.ip()) {
            true => (&pools.nodes, Precedence::Node(from.ip().to_canonical())),
            false => (&pools.strangers, Precedence::Stranger),
        };
        let (entered, evicted) = pool.enter(from.ip().into());
        let (this, room) = (self.clone(), room.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = this.welcome_peer((stream, from), precedence, entered, room) => {}
                () = evicted.wait() => this.count_displaced(NODES_PORT, from.ip()),
            }
        });
    }

    /// A place for a connection of a node; none, if there are too many.
    fn permit_of_node(&self, room: &Arc<Semaphore>, from: &SocketAddr) -> Option<OwnedSemaphorePermit> {
        let permit = room.clone().try_acquire_owned().ok();
        if permit.is_none() {
            let text = format!(
                "{from} is disconnected: this node already has {MOST_OF_NODES} new connections of nodes"
            );
            strangers::warn(SENDERS, "", &from.ip(), &text);
        }
        permit
    }

    /// Finds out what a connection at the port for nodes is for, and hands it to what is to have it. The connection has this place until
    /// it has proved that it is a node's; if it need not prove that, until it has said what it is for.
    async fn welcome_peer(
        &self,
        (stream, from): (TcpStream, SocketAddr),
        precedence: Precedence,
        entered: Entered,
        room: Arc<Semaphore>,
    ) {
        // A node that looks whether it reaches this one closes the connection at once.
        let mut first = [0];
        let peeked = tokio::time::timeout(SAYS, stream.peek(&mut first)).await;
        if !matches!(peeked, Ok(Ok(1..))) {
            return;
        }
        let (mut stream, peer) = match self.take_link(stream, precedence).await {
            Ok(taken) => taken,
            Err(why) => return self.refuse(NODES_PORT, from.ip(), &why),
        };
        let mut entered = Some(entered);
        let mut permit = None;
        if peer.is_some() {
            entered = None;
            permit = self.permit_of_node(&room, &from);
            if permit.is_none() {
                return;
            }
        }
        let mut bytes = [0; Preamble::BYTES];
        let read = tokio::time::timeout(SAYS, stream.read_exact(&mut bytes)).await;
        if !matches!(read, Ok(Ok(_))) {
            return;
        }
        drop(entered);
        if permit.is_none() {
            permit = self.permit_of_node(&room, &from);
        }
        let Some(permit) = permit else { return };
        let is_other = |claimed: NodeId| is_other(peer.as_ref(), claimed, &from);
        if let Some((_, session)) = sessions::decode(&bytes)
            && !is_other(session.node)
            && let Err(why) = self.check_life(session).await
        {
            self.count_refused(NODES_PORT, from.ip(), &why);
            return Node::refuse_session(stream).await;
        }
        // It may have been removed while it said nothing. From here on nothing is waited for before it is taken.
        if let Some(PeerIdentity { node, certificate }) = &peer
            && !self.is_of(node.0, certificate)
        {
            let why = "its certificate was replaced, or it was removed, while it said nothing";
            return self.count_refused(NODES_PORT, from.ip(), why);
        }
        if let Some((cluster, session)) = sessions::decode(&bytes) {
            if !is_other(session.node) {
                self.take_session(cluster, session, stream).await;
            }
            return;
        }
        if Forward::begins_with(&bytes) {
            let read = tokio::time::timeout(SAYS, read_forward(&bytes, &mut stream)).await;
            if let Ok(Some(forward)) = read
                && !is_other(forward.session.node)
            {
                let client = self.name_forwarded(&forward);
                if let Err(why) = self.take_forwarded(forward, stream).await {
                    ends(&client, &why);
                }
            }
            return;
        }
        drop(permit);
        let Some(preamble) = Preamble::decode(&bytes) else {
            return strangers::warn(
                SENDERS,
                "",
                &from.ip(),
                &format!("{from} is disconnected: the sender is not a node, or is a node of another version"),
            );
        };
        let (ours, theirs) = (self.0.cluster, preamble.cluster);
        if theirs != ours || preamble.to.0 != self.id() {
            let text = format!(
                "a node of cluster {theirs} connects to node {}, but this is node {} of cluster {ours}",
                preamble.to.0,
                self.id()
            );
            return strangers::warn(SENDERS, "", &from.ip(), &text);
        }
        let Some(orders) = self.0.loops.get(preamble.to_loop as usize) else {
            let text = format!(
                "node {} has more loops than this node: all nodes need the same number of loops",
                preamble.from.0
            );
            return strangers::warn(SENDERS, "", &from.ip(), &text);
        };
        if is_other(preamble.from) {
            return;
        }
        if sockets::watch_node(&stream).is_ok()
            && let Ok(channel) = stream.into_channel()
        {
            let certificate = peer.map(|peer| peer.certificate);
            orders.give(LoopCommand::AcceptPeer { channel, from: preamble.from, certificate });
        }
    }

    /// A forwarded client, for messages: where it is, the node that forwards it, and its volume.
    fn name_forwarded(&self, forward: &Forward) -> String {
        let state = self.state();
        let through = state.catalog.nodes.get(&forward.session.node.0);
        let through = through.map_or("an unknown node", |(node, _)| &node.name);
        let volume = state.catalog.volumes.get(&forward.volume);
        let volume = volume.map_or("that is unknown", |(volume, _)| &volume.name);
        format!("{} through {through} of volume {volume}", forward.from)
    }

    /// A client that came to another node, for a volume that is owned here. If it is not, it is not claimed: the node that has sent
    /// the client may have known less than this node does now. Why the client is not let in, if it is not.
    async fn take_forwarded(&self, forward: Forward, mut stream: Link) -> Result<(), String> {
        let begun = Instant::now();
        let mut asked = None;
        let _ = sockets::watch_closely(&stream);
        if forward.cluster != self.0.cluster {
            return Err(format!("the connection is forwarded by a node of cluster {}", forward.cluster));
        }
        let Some(protocol) = Protocol::of_number(forward.protocol) else {
            return Err(format!(
                "this node does not know the connection's protocol, number {}",
                forward.protocol
            ));
        };
        while begun.elapsed() < TAKES {
            // Without the store no client is let in (rule T12). Another node, or a later try, may do better than a client that waits here.
            if !self.refresh_within(READ).await {
                return Err("this node cannot read the configuration store in time".into());
            }
            let (mine, here, through) = {
                let state = self.state();
                let volume = state.catalog.volumes.get(&forward.volume);
                let wanted = volume.filter(|(volume, _)| volume.attached.is_some());
                let record = state.catalog.records.get(&forward.volume);
                let record = record.and_then(|stored| record::decode(&stored.value).ok());
                let mine = record.filter(|record| record.owner.node == self.0.me.node);
                let mine = mine.zip(wanted).map(|(r, (volume, _))| (r.blocks * BLOCK, volume.name.clone()));
                let through = state.catalog.nodes.get(&forward.session.node.0);
                let through = through.map(|(node, _)| node.name.clone());
                (mine, state.attached.contains(&forward.volume), through)
            };
            let is_known = |of: &String| self.accesses().may_use_volumes(of);
            let certificate = forward.certificate.clone();
            if certificate.as_ref().is_some_and(|of| !is_known(of)) {
                return Err(REVOKED.into());
            }
            let Some(through) = through else { return Err("this cluster has no such node".into()) };
            let Some((bytes, name)) = mine else {
                return Err("this node does not own the volume, or the volume is not attached".into());
            };
            if !self.state().sessions.is_open(forward.session) {
                let _ = stream.write_all(&Forward::NO_SESSION).await;
                let _ = stream.flush().await;
                return Err(SESSION_ENDED.into());
            }
            if here {
                let taken = async {
                    stream.write_all(&Forward::TAKEN).await?;
                    stream.flush().await
                };
                if taken.await.is_err() {
                    return Err("the node that forwards the connection has closed it".into());
                }
                let (id, fence, session) = (forward.volume, forward.fence, Some(forward.session));
                let from = format!("{} through {through}", forward.from);
                let chosen = Chosen { negotiated: forward.negotiated, rest: Vec::new() };
                #[rustfmt::skip]
                let admission = Admission {
                    id, name, bytes, fence, session, protocol, chosen, certificate, initiator: None,
                };
                // The session may have ended meanwhile. If it ends after this check, the loop receives that after the client.
                if !self.state().sessions.is_open(forward.session) {
                    return Err(SESSION_ENDED.into());
                }
                self.hand_over(stream, from, admission);
                return Ok(());
            }
            self.want_attached(forward.volume, &mut asked);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("the volume was not served within {} s", TAKES.as_secs()))
    }
}

/// Whether a connection claims to be of another node than the one that its handshake has proved.
fn is_other(peer: Option<&PeerIdentity>, claimed: NodeId, from: &SocketAddr) -> bool {
    let Some(PeerIdentity { node, .. }) = peer.filter(|peer| peer.node != claimed) else { return false };
    let text = format!(
        "{from} is disconnected: it has proved that it is node {}, and claims to be node {}",
        node.0, claimed.0
    );
    strangers::warn(SENDERS, "", &from.ip(), &text);
    true
}

/// The rest of what a forwarded connection begins with; `None` if it does not come, or is none.
async fn read_forward(head: &[u8; Preamble::BYTES], stream: &mut Link) -> Option<Forward> {
    let mut more = [0; Forward::MORE];
    stream.read_exact(&mut more).await.ok()?;
    let (mut forward, length) = Forward::decode(head, &more)?;
    forward.negotiated = vec![0; length];
    stream.read_exact(&mut forward.negotiated).await.ok()?;
    Some(forward)
}
