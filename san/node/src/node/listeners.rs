//! Listeners for clients and other nodes (`welcome`). A client logs in by its protocol, until it has chosen a volume; then its connection goes
//! to the loop that has the volume, or is forwarded to the node that owns it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::record::{Record, RecordState};
use loadline_san_export::front_ends::{Endpoint, Protocol};
use loadline_san_export::login::{Chosen, Export, Login, LoginError, LoginStep, Refusal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use super::admission::{Admission, ends};
use super::connection::{Connection, Socket};
use super::forward::{ForwardedClient, Route};
use super::standing::{Rooms, Standing};
use super::units::{group_of, portals};
use super::unproved::Source;
use super::welcome::MOST_OF_NODES;
use super::{Evicted, Node, NodeError, Refused, sockets};
use crate::config::catalog::{self, Catalog, SocketPlace, VolumeState};
use crate::event_loop::command::LoopCommand;
use crate::event_loop::most_bytes;
use crate::identity::access::Role;
use crate::identity::fingerprint;
use crate::strangers;

/// A client that has not chosen by then is disconnected.
const CHOOSES: Duration = Duration::from_secs(10);
/// How long a client waits until a volume is served. It is refused within 5 s, with one try to reach the owner.
const SERVED: Duration = Duration::from_millis(3500);
/// How long reading the configuration may take at least.
const LEAST_READ: Duration = Duration::from_millis(100);
/// How often a loop is told that a volume is wanted here.
const ASKED: Duration = Duration::from_millis(500);

/// Where a volume is to be reached.
enum Place {
    Here,
    At(Route),
}

/// A client that has chosen a volume.
struct LoggedIn {
    chosen: Chosen,
    volume: RequestedVolume,
    /// The fingerprint of the certificate by which it was let in.
    certificate: Option<String>,
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

/// Where clients connect, for messages.
const CLIENTS_PORT: &str = "the port for clients";
/// Where clients are that come by a unix socket, for messages.
pub(crate) const LOCAL: &str = "at a unix socket";

/// Binds the socket at which a node listens for other nodes.
pub(super) async fn bind_peers(node: &catalog::Node) -> Result<TcpListener, NodeError> {
    let failed = |error| NodeError::Listen { what: format!("{} (other nodes)", node.peer), error };
    TcpListener::bind(node.peer).await.map_err(failed)
}

/// Binds the socket at which a node listens for clients of a protocol over the network.
async fn bind_clients(protocol: Protocol, address: SocketAddr) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => NodeError::PortTaken { protocol, address },
        _ => NodeError::Listen { what: format!("{address} ({})", protocol.name()), error },
    })
}

impl Node {
    /// Listens for clients of each protocol, and at `peers` for other nodes. The future accepts connections.
    pub(super) async fn listen(
        &self,
        node: &catalog::Node,
        peers: TcpListener,
    ) -> Result<impl Future<Output = NodeError> + use<>, NodeError> {
        let failed = |what: String| move |error| NodeError::Listen { what, error };
        let (clients, nodes) = (Rooms::default(), Arc::new(Semaphore::new(MOST_OF_NODES)));
        let mut accepting = tokio::task::JoinSet::new();
        for protocol in Protocol::ALL {
            if !matches!(protocol.endpoint(), Endpoint::Node { .. }) {
                continue;
            }
            if let Some(address) = node.endpoint(protocol) {
                let listener = bind_clients(protocol, address).await?;
                let accepts = self.clone().accept_network(listener, protocol, clients.clone());
                accepting.spawn(self.clone().unless_it_leaves(accepts));
            }
            let socket = self.0.settings.socket(protocol, "", SocketPlace::First);
            // What a dead process has left. A living one has its addresses too, so this one would not have come so far.
            let _ = std::fs::remove_file(&socket);
            let what = format!("{} ({})", socket.display(), protocol.name());
            let listener = UnixListener::bind(&socket).map_err(failed(what))?;
            let accepts = self.clone().accept_local(listener, protocol, clients.clone());
            accepting.spawn(self.clone().unless_it_leaves(accepts));
        }
        let this = self.clone();
        Ok(async move {
            // They end with this future.
            let _accepting = accepting;
            loop {
                match peers.accept().await {
                    Ok((stream, from)) => this.clone().let_in_peer(stream, from, &nodes),
                    Err(error) => this.not_accepted(&error).await,
                }
            }
        })
    }

    /// Accepts clients until the node takes no more.
    async fn unless_it_leaves(self, accepts: impl Future<Output = ()>) {
        tokio::select! {
            () = accepts => {}
            () = self.is_leaving() => {}
        }
    }

    async fn accept_network(self, listener: TcpListener, protocol: Protocol, rooms: Rooms) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    // If it cannot be watched over, it is gone already.
                    let _ = sockets::watch_closely(&stream);
                    let _ = stream.set_nodelay(true);
                    let (entered, evicted) = self.unproved().clients.enter(from.ip().into());
                    let standing = Standing::new(entered, from.ip().into(), &rooms);
                    // No other machine has an address of this one.
                    let own = stream.local_addr().map(|own| own.ip());
                    let is_local = from.ip().is_loopback() || own.is_ok_and(|own| own == from.ip());
                    self.clone().let_in_client(
                        stream,
                        from.to_string(),
                        is_local,
                        protocol,
                        standing,
                        evicted,
                    );
                }
                Err(error) => self.not_accepted(&error).await,
            }
        }
    }

    async fn accept_local(self, listener: UnixListener, protocol: Protocol, rooms: Rooms) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (entered, evicted) = self.unproved().local.enter(Source::Local);
                    let standing = Standing::new(entered, Source::Local, &rooms);
                    self.clone().let_in_client(stream, LOCAL.into(), true, protocol, standing, evicted);
                }
                Err(error) => self.not_accepted(&error).await,
            }
        }
    }

    fn let_in_client<S: Socket>(
        self,
        socket: S,
        from: String,
        is_local: bool,
        protocol: Protocol,
        mut standing: Standing,
        evicted: Evicted,
    ) {
        let Some(mut login) = protocol.login(is_local) else { return };
        if self.trust().is_some() && from != LOCAL {
            login.offer_tls();
        }
        tokio::spawn(async move {
            let mut stream = Connection::Open(socket);
            let logged_in = self.log_in(protocol, &mut *login, &mut stream, &from, &mut standing);
            let logged_in = tokio::select! {
                logged_in = tokio::time::timeout(CHOOSES + SERVED, logged_in) => logged_in,
                () = evicted.wait() => return self.count_displaced(CLIENTS_PORT, address_of(&from)),
            };
            let LoggedIn { chosen, volume, certificate } = match logged_in {
                Ok(Ok(Some(logged_in))) => logged_in,
                Ok(Ok(None)) => return,
                Ok(Err(why)) => return ends(&from, &why.to_string()),
                Err(_) => {
                    return ends(
                        &from,
                        &format!("the client has not chosen a volume within {} s", CHOOSES.as_secs()),
                    );
                }
            };
            let RequestedVolume { id, name, export, fence, place } = volume;
            let initiator = protocol.initiator_of(&chosen).filter(|_| !is_local).map(|name| {
                let known = export.initiators.iter().find(|of| of.name == name);
                (name, known.map_or(0, |of| of.naming))
            });
            match place {
                Place::Here => {
                    drop(standing);
                    let (bytes, session) = (export.bytes, None);
                    #[rustfmt::skip]
                    let admission =
                        Admission { id, name, bytes, fence, session, protocol, chosen, certificate, initiator };
                    self.hand_over(stream, from, admission);
                }
                // This task carries its bytes, and keeps its place.
                Place::At(route) => {
                    let is_stranger = certificate.is_none() && from != LOCAL;
                    let of =
                        ForwardedClient { volume: id, fence, protocol, chosen, from: &from, certificate };
                    let why = self.forward(stream, &route, of).await;
                    if let Some(why) = why {
                        let text = format!("client {from} of volume {name} is disconnected: {why}");
                        strangers::info_of_client(is_stranger, &why, &name, &from, &text);
                    }
                }
            }
        });
    }

    /// Has a client log in, until it has chosen a volume. `None` if it has gone.
    async fn log_in<S: Socket>(
        &self,
        protocol: Protocol,
        login: &mut dyn Login,
        stream: &mut Connection<S>,
        from: &str,
        standing: &mut Standing,
    ) -> Result<Option<LoggedIn>, LoginError> {
        let mut buffer = [0; 4096];
        let (mut found, mut certificate) = (None, None);
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
                LoginStep::StartTls => {
                    let Some(proved) = self.protect_client(stream, from).await? else { return Ok(None) };
                    certificate = Some(proved);
                    standing.admit(true)?;
                }
                LoginStep::Export(name) => match self
                    .find_for(protocol, &name, is_safe || stream.is_protected(), || {
                        standing.admit(certificate.is_some())
                    })
                    .await?
                {
                    Ok(volume) => {
                        login.export(Ok(&volume.export))?;
                        found = Some(volume);
                    }
                    Err(refusal) => {
                        // Some clients show their users a number instead of this.
                        if let Refusal::NotNow(why) = &refusal {
                            strangers::info(
                                "refused clients",
                                "",
                                None,
                                from,
                                &format!("client {from} is refused: {why}"),
                            );
                        }
                        login.export(Err(refusal))?;
                    }
                },
                LoginStep::Gone => return Ok(None),
                LoginStep::Chosen(chosen) => {
                    return Ok(found.map(|volume| LoggedIn { chosen, volume, certificate }));
                }
            }
        }
    }

    /// The volumes that a client may know of.
    fn exports(&self, is_protected: bool) -> Vec<(String, Export)> {
        let state = self.state();
        let attached = state.catalog.volumes.values().filter(|(volume, _)| volume.attached.is_some());
        let attached = attached.filter(|(volume, _)| is_protected || !volume.requires_tls);
        let (portals, group) = (portals(&state.catalog), group_of(self.id()));
        let export = |volume: &catalog::Volume| {
            let initiators = volume.initiators.clone();
            Export { portals: portals.clone(), initiators, group, ..export_of(volume) }
        };
        attached.map(|(volume, _)| (volume.name.clone(), export(volume))).collect()
    }

    /// Begins TLS with a client. Returns the fingerprint of its certificate, by which it may use volumes; `None` if the client is refused,
    /// which is counted and logged here, and disconnects it. An error disconnects it, too.
    async fn protect_client<S: Socket>(
        &self,
        stream: &mut Connection<S>,
        from: &str,
    ) -> Result<Option<String>, LoginError> {
        let address = address_of(from);
        let refused = |why: &str| {
            self.count_refused(CLIENTS_PORT, address, why);
            Ok(None)
        };
        let trust = self.trust().ok_or_else(|| LoginError("TLS was not offered".into()))?;
        let proved =
            tokio::time::timeout(CHOOSES, stream.protect(&self.0.helpers, trust.clients.clone())).await;
        let proved = match proved {
            Ok(Ok(proved)) => proved,
            Ok(Err(why)) => {
                self.refuse(CLIENTS_PORT, address, &Refused::from(why));
                return Ok(None);
            }
            Err(_) => {
                return refused(&format!("the handshake of TLS was not done within {} s", CHOOSES.as_secs()));
            }
        };
        let Some(certificate) = proved.certificate.as_ref().map(fingerprint) else {
            return refused("the client has no certificate");
        };
        if self.role_of(Some(&certificate), None).is_none() {
            // It may have been made a moment ago.
            self.refresh_within(SERVED).await;
        }
        match self.role_of(Some(&certificate), None) {
            Some(Role::Client | Role::Operator) => Ok(Some(certificate)),
            Some(Role::Viewer) => refused("an access of the role viewer may not use volumes"),
            None => refused(
                "the access of the client's certificate was revoked, or has expired: 'loadline san access add' makes one",
            ),
        }
    }

    /// The volume of this name, for a client of this protocol.
    async fn find_for(
        &self,
        protocol: Protocol,
        name: &str,
        is_protected: bool,
        admit: impl FnOnce() -> Result<(), LoginError>,
    ) -> Result<Result<RequestedVolume, Refusal>, LoginError> {
        match protocol.stands_by() {
            // It has only named the volume, and may have to prove its name: until then it can be displaced.
            true => self.find_unit(name, is_protected).await,
            false => self.find(name, is_protected, admit).await,
        }
    }

    /// The volume of this name, whichever node serves it: clients that stand by are let in at each.
    async fn find_unit(
        &self,
        name: &str,
        is_protected: bool,
    ) -> Result<Result<RequestedVolume, Refusal>, LoginError> {
        self.refresh_within(SERVED).await;
        let found = {
            let state = self.state();
            let found = state
                .catalog
                .volume(name)
                .filter(|(_, volume)| volume.state == VolumeState::Ready && volume.attached.is_some());
            found.and_then(|(id, volume)| {
                Some((id, volume.clone(), state.catalog.record(id)?, portals(&state.catalog)))
            })
        };
        let Some((id, volume, record, portals)) = found else {
            return Ok(Err(Refusal::Unknown(format!(
                "there is no volume {name} that is attached: 'loadline volume attach {name}' makes it ready"
            ))));
        };
        if volume.requires_tls && !is_protected {
            return Ok(Err(Refusal::NeedsTls(format!(
                "volume {name} is served only by TLS, which this protocol does not have"
            ))));
        }
        self.tell_unit(id, None);
        let initiators = volume.initiators.clone();
        let (bytes, group) = (record.blocks * BLOCK, group_of(self.id()));
        let export = Export { bytes, portals, initiators, group, ..export_of(&volume) };
        let (name, place) = (name.into(), Place::Here);
        Ok(Ok(RequestedVolume { id, name, export, fence: record.fence, place }))
    }

    /// The volume of this name, where it is served; which is waited for. `admit` is called when it is known that the client may use the
    /// volume; an error of it disconnects the client.
    async fn find(
        &self,
        name: &str,
        is_protected: bool,
        admit: impl FnOnce() -> Result<(), LoginError>,
    ) -> Result<Result<RequestedVolume, Refusal>, LoginError> {
        let unknown = || {
            Refusal::Unknown(format!("there is no volume {name}: 'loadline volume list' shows all volumes"))
        };
        let begun = Instant::now();
        let (mut asked, mut admit) = (None, Some(admit));
        // A client that needs no certificate, as far as is known, is not displaced while the store is slow or away.
        let may_use = lets_in(&self.state().catalog, name, is_protected);
        if let Some(admit) = admit.take_if(|_| may_use) {
            admit()?;
        }
        loop {
            // What was attached a moment ago is known to whoever asks for it, if the configuration answers.
            let left = SERVED.saturating_sub(begun.elapsed()).max(LEAST_READ);
            self.refresh_within(left).await;
            let (id, volume, record, owner) = {
                let state = self.state();
                let Some((id, volume)) = state.catalog.volume(name) else { return Ok(Err(unknown())) };
                let record: Option<Record> = state.catalog.record(id);
                let owner = record.as_ref().and_then(|record| state.catalog.nodes.get(&record.owner.node.0));
                (id, volume.clone(), record, owner.map(|(node, _)| (node.name.clone(), node.peer)))
            };
            if volume.state != VolumeState::Ready {
                return Ok(Err(unknown()));
            }
            if volume.attached.is_none() {
                return Ok(Err(Refusal::Unknown(format!(
                    "volume {name} is not attached: 'loadline volume attach {name}' makes it ready"
                ))));
            }
            if volume.requires_tls && !is_protected {
                return Ok(Err(Refusal::NeedsTls(format!(
                    "volume {name} is served only by TLS, with a certificate: 'loadline san access add --role client' makes one"
                ))));
            }
            let Some(record) = record else { return Ok(Err(unknown())) };
            if let Some(admit) = admit.take() {
                admit()?;
            }
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
                    return Ok(Ok(chosen(Place::Here)));
                }
                // One of a former life of this process takes over anew.
                self.want_attached(id, &mut asked);
            } else if let (RecordState::Active, Some((owner, address))) = (record.state, owner) {
                let node = record.owner.node.0;
                match self.session_with(node, address).await {
                    Ok(session) => {
                        return Ok(Ok(chosen(Place::At(Route { name: owner, node, address, session }))));
                    }
                    Err(error) => {
                        why = format!(
                            "{owner}, which owns the volume, is not reachable from this node: {error}"
                        )
                    }
                }
            }
            if begun.elapsed() > SERVED {
                return Ok(Err(Refusal::NotNow(format!(
                    "volume {name} cannot be used here now: {why}; 'loadline volume show {name}' shows details"
                ))));
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
}

/// Whether a client may use the volume of this name: one that is protected by TLS with a certificate or came by a unix socket, or one that
/// is not.
fn lets_in(catalog: &Catalog, name: &str, is_protected: bool) -> bool {
    catalog.volume(name).is_some_and(|(id, volume)| {
        volume.state == VolumeState::Ready
            && volume.attached.is_some()
            && (is_protected || !volume.requires_tls)
            && catalog.records.contains_key(&id)
    })
}

/// The address of a client; that of no host, if it came by a unix socket.
fn address_of(from: &str) -> IpAddr {
    from.parse::<SocketAddr>().map_or(IpAddr::from([0, 0, 0, 0]), |from| from.ip())
}

fn export_of(volume: &catalog::Volume) -> Export {
    let copies = volume.copies;
    let description = format!("Loadline volume, {copies} {}", if copies == 1 { "copy" } else { "copies" });
    Export {
        description,
        bytes: volume.blocks * BLOCK,
        most: most_bytes(volume.log_bytes),
        ..Export::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Stored;

    #[test]
    fn a_port_that_another_target_has_is_named_with_what_to_do() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let bound = runtime.block_on(bind_clients(Protocol::Iscsi, address));
        let said = bound.expect_err("it is taken").to_string();
        let (port, option) =
            (format!("port {}", address.port()), format!("--port iscsi={}", address.port() + 1));
        for part in
            [port.as_str(), "another iSCSI target", "tgtd", "ss -ltnp", "loadline node remove", &option]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn a_client_is_let_in_by_what_is_known_only_if_it_may_use_the_volume() {
        let known = |attached: Option<u32>, requires_tls: bool, state: &str| {
            let volume = serde_json::json!({
                "name": "d", "copies": 1, "least": 1, "stripes": 1, "unit_blocks": 1, "group_blocks": 1, "blocks": 1, "lease_ms": 600,
                "log_bytes": 1, "attached": attached, "requires_tls": requires_tls, "state": state,
            });
            let mut catalog = Catalog::default();
            catalog.volumes.insert(1, (serde_json::from_value(volume).unwrap(), 1));
            catalog.records.insert(1, Stored { value: Vec::new(), version: 1 });
            catalog
        };
        assert!(lets_in(&known(Some(1), false, "ready"), "d", false));
        assert!(lets_in(&known(Some(1), true, "ready"), "d", true));
        assert!(!lets_in(&known(Some(1), true, "ready"), "d", false), "it has no certificate");
        assert!(!lets_in(&known(None, false, "ready"), "d", false));
        assert!(!lets_in(&known(Some(1), false, "deleting"), "d", false));
        assert!(!lets_in(&known(Some(1), false, "ready"), "other", false));
    }
}
