//! Listeners for clients and other nodes. A client logs in by its protocol, until it has chosen a volume; then its connection goes
//! to the loop that has the volume, or is forwarded to the node that owns it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_san_core::ids::{NodeId, VolumeId};
use loadline_san_core::layout::BLOCK;
use loadline_san_core::record::{Record, RecordState};
use loadline_san_export::front_ends::{Endpoint, Protocol};
use loadline_san_export::login::{Chosen, Export, Login, LoginError, LoginStep, Refusal};
use loadline_san_protocol::record;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;

use super::connection::{ClientStream, Connection};
use super::forward::{Forward, Route, TAKES};
use super::links::{Link, PeerIdentity};
use super::{Node, NodeError, sessions, sockets};
use crate::config::catalog;
use crate::config::catalog::VolumeState;
use crate::event_loop::command::{LoopCommand, NewClient, SessionId};
use crate::event_loop::most_in_flight;
use crate::event_loop::peer_sender::Preamble;
use crate::identity::access::Role;
use crate::identity::fingerprint;

/// A client that has not chosen by then is disconnected.
const CHOOSES: Duration = Duration::from_secs(10);
/// How long a client waits until a volume is served. It is refused within 5 s, with one try to reach the owner.
const SERVED: Duration = Duration::from_millis(3500);
/// How long reading the configuration may take at least.
const LEAST_READ: Duration = Duration::from_millis(100);
/// How often a loop is told that a volume is wanted here.
const ASKED: Duration = Duration::from_millis(500);
/// Clients that have not chosen yet, and those that are forwarded; and connections of nodes that have not said what they are. More
/// are disconnected.
const MOST_NEW: usize = 2048;

/// Where a volume is to be reached.
enum Place {
    Here,
    At(Route),
}

/// What the data path has to know of a client that has chosen.
struct Admission {
    id: u64,
    name: String,
    bytes: u64,
    fence: u64,
    session: Option<SessionId>,
    protocol: Protocol,
    chosen: Chosen,
}

/// The volume that a client requests by name.
struct RequestedVolume {
    id: u64,
    name: String,
    export: Export,
    /// The fence of its record.
    fence: u64,
    place: Place,
}

/// Where clients are that come by a unix socket, for messages.
pub(super) const LOCAL: &str = "at a unix socket";

/// Why a forwarded client is not let in, or ends.
const SESSION_ENDED: &str = "the session with the node that forwards the connection has ended";

/// Logs why a connection of a client ends before it has a volume.
fn ends(from: &str, why: &str) {
    tracing::info!(client = from, "client {from} is disconnected: {why}");
}

/// Binds the socket at which a node listens for other nodes.
pub(super) async fn bind_peers(node: &catalog::Node) -> Result<TcpListener, NodeError> {
    let failed = |error| NodeError::Listen { what: format!("{} (other nodes)", node.peer), error };
    TcpListener::bind(node.peer).await.map_err(failed)
}

impl Node {
    /// Listens for clients of each protocol, and at `peers` for and for clients of each protocol. The future accepts connections.
    pub(super) async fn listen(
        &self,
        node: &catalog::Node,
        peers: TcpListener,
    ) -> Result<impl Future<Output = NodeError> + use<>, NodeError> {
        let failed = |what: String| move |error| NodeError::Listen { what, error };
        // Apart: neither shuts the other out.
        let (clients, nodes) = (Arc::new(Semaphore::new(MOST_NEW)), Arc::new(Semaphore::new(MOST_NEW)));
        let mut accepting = tokio::task::JoinSet::new();
        for protocol in Protocol::ALL {
            if !matches!(protocol.endpoint(), Endpoint::Node { .. }) {
                continue;
            }
            if let Some(address) = node.endpoint(protocol) {
                let what = format!("{address} ({})", protocol.name());
                let listener = TcpListener::bind(address).await.map_err(failed(what))?;
                accepting.spawn(self.clone().accept_network(listener, protocol, clients.clone()));
            }
            let socket = self.0.settings.socket(protocol, "");
            // What a dead process has left. A living one has its addresses too, so this one would not have come so far.
            let _ = std::fs::remove_file(&socket);
            let what = format!("{} ({})", socket.display(), protocol.name());
            let listener = UnixListener::bind(&socket).map_err(failed(what))?;
            accepting.spawn(self.clone().accept_local(listener, protocol, clients.clone()));
        }
        let this = self.clone();
        Ok(async move {
            // They end with this future.
            let _accepting = accepting;
            loop {
                match peers.accept().await {
                    Ok((stream, from)) => this.clone().let_in_peer(stream, from, &nodes),
                    Err(error) => not_accepted(&error).await,
                }
            }
        })
    }

    async fn accept_network(self, listener: TcpListener, protocol: Protocol, room: Arc<Semaphore>) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    // If it cannot be watched over, it is gone already.
                    let _ = sockets::watch_client(&stream);
                    let _ = stream.set_nodelay(true);
                    self.clone().let_in_client(stream, from.to_string(), protocol, &room);
                }
                Err(error) => not_accepted(&error).await,
            }
        }
    }

    async fn accept_local(self, listener: UnixListener, protocol: Protocol, room: Arc<Semaphore>) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.clone().let_in_client(stream, LOCAL.into(), protocol, &room),
                Err(error) => not_accepted(&error).await,
            }
        }
    }

    fn let_in_peer(self, stream: TcpStream, from: SocketAddr, room: &Arc<Semaphore>) {
        let Ok(permit) = room.clone().try_acquire_owned() else {
            tracing::warn!(client = %from, "{from} is disconnected: this node already has {MOST_NEW} new connections from nodes");
            return;
        };
        let Some(entered) = self.enter_unproved(from.ip()) else {
            return self.count_refused(
                "the port for nodes",
                from.ip(),
                "too many connections from there have not proved their identity",
            );
        };
        tokio::spawn(async move {
            // A node that looks whether it reaches this one closes the connection at once.
            let mut first = [0];
            let peeked = tokio::time::timeout(CHOOSES, stream.peek(&mut first)).await;
            if !matches!(peeked, Ok(Ok(1..))) {
                return;
            }
            let (mut stream, peer) = match self.take_link(stream).await {
                Ok(taken) => taken,
                Err(why) => return self.count_refused("the port for nodes", from.ip(), &why),
            };
            drop(entered);
            let mut bytes = [0; Preamble::BYTES];
            let read = tokio::time::timeout(CHOOSES, stream.read_exact(&mut bytes)).await;
            if !matches!(read, Ok(Ok(_))) {
                return;
            }
            // It may have been removed while it said nothing. From here on nothing is waited for before it is taken.
            if let Some(PeerIdentity { node, certificate }) = &peer
                && !self.is_of(node.0, certificate)
            {
                let why = "its certificate was replaced, or it was removed, while it said nothing";
                return self.count_refused("the port for nodes", from.ip(), why);
            }
            let is_other = |claimed: NodeId| is_other(peer.as_ref(), claimed, &from);
            if let Some((cluster, session)) = sessions::decode(&bytes) {
                if !is_other(session.node) {
                    self.take_session(cluster, session, stream).await;
                }
                return;
            }
            if Forward::begins_with(&bytes) {
                let read = tokio::time::timeout(CHOOSES, read_forward(&bytes, &mut stream)).await;
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
                tracing::warn!(client = %from, "{from} is disconnected: the sender is not a node, or is a node of another version");
                return;
            };
            let (ours, theirs) = (self.0.cluster, preamble.cluster);
            if theirs != ours || preamble.to.0 != self.id() {
                tracing::warn!(
                    client = %from,
                    cluster = %theirs,
                    "a node of cluster {theirs} connects to node {}, but this is node {} of cluster {ours}",
                    preamble.to.0,
                    self.id()
                );
                return;
            }
            let Some(orders) = self.0.loops.get(preamble.to_loop as usize) else {
                tracing::error!(
                    node = preamble.from.0,
                    "node {} has more loops than this node: all nodes need the same number of loops",
                    preamble.from.0
                );
                return;
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
        });
    }

    /// A connection is refused, and counted: it may come from a stranger, or from a node with a wrong clock or an old identity.
    pub(crate) fn count_refused(&self, to: &str, from: IpAddr, why: &str) {
        self.state().refused_connections += 1;
        // Without the port, which is another one each time: the log would not see that it repeats itself.
        tracing::warn!(client = %from, "a connection from {from} to {to} is refused: {why}");
    }

    fn let_in_client<C: Connection>(
        self,
        stream: C,
        from: String,
        protocol: Protocol,
        room: &Arc<Semaphore>,
    ) {
        let Ok(permit) = room.clone().try_acquire_owned() else {
            ends(
                &from,
                &format!("{MOST_NEW} other connections have not chosen a volume yet, or are being forwarded"),
            );
            return;
        };
        let Some(mut login) = protocol.login() else { return };
        if self.trust().is_some() && from != LOCAL {
            login.offer_tls();
        }
        tokio::spawn(async move {
            let mut stream = ClientStream::Open(stream);
            let logged_in = self.log_in(&mut *login, &mut stream, &from);
            let (chosen, found) = match tokio::time::timeout(CHOOSES + SERVED, logged_in).await {
                Ok(Ok(Some(chosen))) => chosen,
                Ok(Ok(None)) => return,
                Ok(Err(why)) => return ends(&from, &why.to_string()),
                Err(_) => {
                    return ends(
                        &from,
                        &format!("the client has not chosen a volume within {} s", CHOOSES.as_secs()),
                    );
                }
            };
            let RequestedVolume { id, name, export, fence, place } = found;
            match place {
                Place::Here => {
                    drop(permit);
                    let (bytes, session) = (export.bytes, None);
                    self.hand_over(
                        stream,
                        from,
                        Admission { id, name, bytes, fence, session, protocol, chosen },
                    );
                }
                // This task carries its bytes.
                Place::At(route) => {
                    let why = self.forward(stream, &route, (id, fence), (protocol, &chosen), &from).await;
                    if let Some(why) = why {
                        tracing::info!(
                            volume = name,
                            client = from,
                            "client {from} of volume {name} is disconnected: {why}"
                        );
                    }
                }
            }
        });
    }

    fn hand_over<C: Connection>(&self, stream: C, from: String, admission: Admission) {
        let Admission { id, name, bytes, fence, session, protocol, chosen } = admission;
        match stream.channel() {
            Ok(channel) => {
                let volume = VolumeId(id);
                let client =
                    NewClient { channel, volume, name, from, bytes, fence, session, protocol, chosen };
                self.loop_of(id).give(LoopCommand::Client(Box::new(client)));
            }
            Err(error) => ends(&from, &error.to_string()),
        }
    }

    /// Has a client log in, until it has chosen a volume. `None` if it has gone.
    async fn log_in<C: Connection>(
        &self,
        login: &mut dyn Login,
        stream: &mut ClientStream<C>,
        from: &str,
    ) -> Result<Option<(Chosen, RequestedVolume)>, LoginError> {
        let mut buffer = [0; 4096];
        let mut found = None;
        // The mode of the socket says who may use it.
        let is_safe = from == LOCAL;
        loop {
            let step = login.step();
            let sent = async {
                stream.write_all(&login.take_output()).await?;
                stream.flush().await
            };
            if sent.await.is_err() {
                return Ok(None);
            }
            match step? {
                LoginStep::Bytes => match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => return Ok(None),
                    Ok(read) => login.feed(&buffer[..read]),
                },
                LoginStep::List => login.list(&self.exports(is_safe || stream.is_protected())),
                LoginStep::StartTls => self.protect_client(stream, from).await?,
                LoginStep::Export(name) => match self.find(&name, is_safe || stream.is_protected()).await {
                    Ok(volume) => {
                        login.export(Ok(&volume.export))?;
                        found = Some(volume);
                    }
                    Err(refusal) => {
                        // Some clients show their users a number instead of this.
                        if let Refusal::NotNow(why) = &refusal {
                            tracing::info!(client = from, "client {from} is refused: {why}");
                        }
                        login.export(Err(refusal))?;
                    }
                },
                LoginStep::Gone => return Ok(None),
                LoginStep::Chosen(chosen) => return Ok(found.map(|found| (chosen, found))),
            }
        }
    }

    /// The volumes that a client may know of.
    fn exports(&self, is_protected: bool) -> Vec<(String, Export)> {
        let state = self.state();
        let attached = state.catalog.volumes.values().filter(|(volume, _)| volume.attached.is_some());
        let attached = attached.filter(|(volume, _)| is_protected || !volume.requires_tls);
        attached.map(|(volume, _)| (volume.name.clone(), export_of(volume))).collect()
    }

    /// Begins TLS with a client. An error disconnects it.
    async fn protect_client<C: Connection>(
        &self,
        stream: &mut ClientStream<C>,
        from: &str,
    ) -> Result<(), LoginError> {
        let address = from.parse::<SocketAddr>().map_or(IpAddr::from([0, 0, 0, 0]), |from| from.ip());
        let refused = |why: String| {
            self.count_refused("the port for clients", address, &why);
            LoginError(why)
        };
        let trust = self.trust().ok_or_else(|| LoginError("TLS was not offered".into()))?;
        let proved = tokio::time::timeout(CHOOSES, stream.protect(trust.clients.clone())).await;
        let late = |_| refused(format!("the handshake of TLS was not done within {} s", CHOOSES.as_secs()));
        let proved = proved.map_err(late)?.map_err(|why| refused(why.to_string()))?;
        let certificate = proved.certificate.as_ref().map(fingerprint);
        match self.role_of(certificate.as_deref(), None) {
            Some(Role::Client | Role::Operator) => Ok(()),
            Some(Role::Viewer) => Err(refused("an access of the role viewer may not use volumes".into())),
            None => Err(refused(
                "the access of the client's certificate was revoked, or has expired: 'loadline san access add' makes one".into(),
            )),
        }
    }

    /// The volume of this name, where it is served; which is waited for.
    async fn find(&self, name: &str, is_protected: bool) -> Result<RequestedVolume, Refusal> {
        let unknown = || {
            Refusal::Unknown(format!("there is no volume {name}: 'loadline volume list' shows all volumes"))
        };
        let begun = Instant::now();
        let mut asked = None;
        loop {
            // What was attached a moment ago is known to whoever asks for it, if the configuration answers.
            let left = SERVED.saturating_sub(begun.elapsed()).max(LEAST_READ);
            let _ = tokio::time::timeout(left, self.refresh()).await;
            let (id, volume, record, owner) = {
                let state = self.state();
                let (id, volume) = state.catalog.volume(name).ok_or_else(unknown)?;
                let record: Option<Record> =
                    state.catalog.records.get(&id).and_then(|stored| record::decode(&stored.value).ok());
                let owner = record.as_ref().and_then(|record| state.catalog.nodes.get(&record.owner.node.0));
                (id, volume.clone(), record, owner.map(|(node, _)| (node.name.clone(), node.peer)))
            };
            if volume.state != VolumeState::Ready {
                return Err(unknown());
            }
            if volume.attached.is_none() {
                return Err(Refusal::Unknown(format!(
                    "volume {name} is not attached: 'loadline volume attach {name}' makes it ready"
                )));
            }
            if volume.requires_tls && !is_protected {
                return Err(Refusal::NeedsTls(format!(
                    "volume {name} is served only by TLS, with a certificate: 'loadline san access add --role client' makes one"
                )));
            }
            let Some(record) = record else { return Err(unknown()) };
            let export = Export { bytes: record.blocks * BLOCK, ..export_of(&volume) };
            let chosen = |place| RequestedVolume {
                id,
                name: name.into(),
                export: export.clone(),
                fence: record.fence,
                place,
            };
            let mut why = "no node serves it now".into();
            if record.owner.node == self.0.me.node {
                if self.state().attached.contains(&id) {
                    return Ok(chosen(Place::Here));
                }
                // One of a former life of this process takes over anew.
                self.want_attached(id, &mut asked);
            } else if let (RecordState::Active, Some((owner, address))) = (record.state, owner) {
                let node = record.owner.node.0;
                match self.session_with(node, address).await {
                    Ok(session) => {
                        return Ok(chosen(Place::At(Route { name: owner, node, address, session })));
                    }
                    Err(error) => {
                        why = format!(
                            "{owner}, which owns the volume, is not reachable from this node: {error}"
                        )
                    }
                }
            }
            if begun.elapsed() > SERVED {
                return Err(Refusal::NotNow(format!(
                    "volume {name} cannot be used here now: {why}; 'loadline volume show {name}' shows details"
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The loop is told now and then that a volume is wanted here: it may not know it yet. A volume that is attached at
    /// another node is not claimed for that.
    pub(super) fn want_attached(&self, id: u64, asked: &mut Option<Instant>) {
        if asked.is_none_or(|asked| asked.elapsed() > ASKED) {
            *asked = Some(Instant::now());
            let attached = self.state().catalog.volumes.get(&id).and_then(|(volume, _)| volume.attached);
            let order = if attached == Some(self.id()) { LoopCommand::Attach } else { LoopCommand::Admit };
            self.loop_of(id).give(order(VolumeId(id)));
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
        let _ = sockets::watch_client(&stream);
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
            self.refresh().await.map_err(|error| error.to_string())?;
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
                let admission = Admission { id, name, bytes, fence, session, protocol, chosen };
                // It may have been given up meanwhile. If it is from now on, the loop is told so after this.
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
    tracing::warn!(
        client = %from,
        "{from} is disconnected: it has proved that it is node {}, and claims to be node {}",
        node.0,
        claimed.0
    );
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

/// A connection was not accepted: for want of descriptors, perhaps, of which some will be closed.
async fn not_accepted(error: &std::io::Error) {
    tracing::warn!("a connection cannot be accepted: {error}");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn export_of(volume: &catalog::Volume) -> Export {
    let copies = volume.copies;
    let description = format!("Loadline volume, {copies} {}", if copies == 1 { "copy" } else { "copies" });
    // A power of two, as clients expect it.
    let most = most_in_flight(volume.log_bytes).ilog2();
    Export { description, bytes: volume.blocks * BLOCK, most: (BLOCK as u32) << most }
}
