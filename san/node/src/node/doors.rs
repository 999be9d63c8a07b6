//! Clients and other nodes come.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::record::{Record, State as RecordState};
use loadline_san_export::nbd::handshake::{Choice, Export, Handshake, Next, Refusal};
use loadline_san_protocol::record;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::forward::Forward;
use super::{Node, NodeError};
use crate::config::catalog;
use crate::config::catalog::VolumeState;
use crate::event_loop::most_in_flight;
use crate::event_loop::order::{NewClient, NewWay, Order};
use crate::event_loop::peer::Preamble;

/// Who has not chosen by then is hung up on.
const CHOOSES: Duration = Duration::from_secs(10);
/// How long a client waits until a volume is served.
pub(super) const SERVED: Duration = Duration::from_secs(8);
/// How often a loop is told that a volume is wanted here.
const ASKED: Duration = Duration::from_millis(500);
/// After so long without a word, and four times as long without an answer, a connection is given up. Seconds.
const QUIET_S: u32 = 10;
/// Clients that have not chosen yet, and those that are forwarded; and nodes. Others are hung up on.
const MOST_AT_THE_DOOR: usize = 2048;

/// Where a volume is to be reached.
enum Place {
    Here,
    At(SocketAddr),
}

/// A connection of a client.
trait Connection: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static {
    fn descriptor(self) -> std::io::Result<OwnedFd>;
}

impl Connection for TcpStream {
    fn descriptor(self) -> std::io::Result<OwnedFd> {
        self.set_nodelay(true)?;
        let socket = OwnedFd::from(self.into_std()?);
        // Who is gone without a word is found out.
        setsockopt(&socket, sockopt::KeepAlive, &true)?;
        setsockopt(&socket, sockopt::TcpKeepIdle, &QUIET_S)?;
        setsockopt(&socket, sockopt::TcpKeepInterval, &QUIET_S)?;
        setsockopt(&socket, sockopt::TcpKeepCount, &3)?;
        setsockopt(&socket, sockopt::TcpUserTimeout, &(4000 * QUIET_S))?;
        Ok(socket)
    }
}

impl Connection for UnixStream {
    fn descriptor(self) -> std::io::Result<OwnedFd> {
        Ok(self.into_std()?.into())
    }
}

impl Node {
    /// Opens the doors. The future lets in who comes.
    pub(super) async fn open_doors(
        &self,
        node: &catalog::Node,
    ) -> Result<impl Future<Output = NodeError> + use<>, NodeError> {
        let listen = |what: String| move |error| NodeError::Listen { what, error };
        let peers =
            TcpListener::bind(node.peer).await.map_err(listen(format!("{} (other nodes)", node.peer)))?;
        let nbd = TcpListener::bind(node.nbd).await.map_err(listen(format!("{} (NBD)", node.nbd)))?;
        let socket = self.0.settings.socket();
        // What a dead process has left. A living one has its addresses too, so this one would not have come so far.
        let _ = std::fs::remove_file(&socket);
        let local = UnixListener::bind(&socket).map_err(listen(format!("{} (NBD)", socket.display())))?;
        // Apart: neither shuts the other out.
        let (clients, nodes) = (MOST_AT_THE_DOOR, MOST_AT_THE_DOOR);
        let (clients, nodes) = (Arc::new(Semaphore::new(clients)), Arc::new(Semaphore::new(nodes)));
        let this = self.clone();
        Ok(async move {
            loop {
                let came: Result<(), std::io::Error> = tokio::select! {
                    came = peers.accept() => came.map(|(stream, _)| this.clone().let_in_peer(stream, &nodes)),
                    came = nbd.accept() => came.map(|(stream, _)| this.clone().let_in_client(stream, &clients)),
                    came = local.accept() => came.map(|(stream, _)| this.clone().let_in_client(stream, &clients)),
                };
                if let Err(error) = came {
                    // Out of descriptors, perhaps: some will be closed.
                    eprintln!("loadline: a connection is not taken: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        })
    }

    fn let_in_peer(self, mut stream: TcpStream, room: &Arc<Semaphore>) {
        let Ok(permit) = room.clone().try_acquire_owned() else { return };
        tokio::spawn(async move {
            let mut bytes = [0; Preamble::BYTES];
            let read = tokio::time::timeout(CHOOSES, stream.read_exact(&mut bytes)).await;
            if !matches!(read, Ok(Ok(_))) {
                return;
            }
            if let Some(forward) = Forward::decode(&bytes) {
                self.take_forwarded(forward, stream).await;
                return;
            }
            drop(permit);
            let Some(preamble) = Preamble::decode(&bytes) else {
                eprintln!("loadline: what is no node, or one of another version, came to the door of nodes");
                return;
            };
            let (ours, theirs) = (self.0.cluster, preamble.cluster);
            if theirs != ours || preamble.to.0 != self.id() {
                eprintln!(
                    "loadline: a node of cluster {theirs} wants node {}, and this is {} of {ours}",
                    preamble.to.0,
                    self.id()
                );
                return;
            }
            let Some(orders) = self.0.loops.get(preamble.to_loop as usize) else {
                eprintln!(
                    "loadline: node {} has more loops than this one: all need the same number",
                    preamble.from.0
                );
                return;
            };
            if let Ok(socket) = stream.descriptor() {
                orders.give(Order::Hear(socket, preamble.from));
            }
        });
    }

    fn let_in_client<C: Connection>(self, mut stream: C, room: &Arc<Semaphore>) {
        let Ok(permit) = room.clone().try_acquire_owned() else { return };
        tokio::spawn(async move {
            let mut handshake = Handshake::default();
            let chosen =
                tokio::time::timeout(CHOOSES + SERVED, self.greet(&mut handshake, &mut stream)).await;
            let Ok(Some((choice, volume, bytes, place))) = chosen else { return };
            let rest = handshake.rest();
            match place {
                Place::Here => {
                    drop(permit);
                    self.hand_over(stream, volume, bytes, choice, rest);
                }
                // It stays at the door.
                Place::At(address) => self.forward(stream, address, volume, &choice, &rest).await,
            }
        });
    }

    fn hand_over<C: Connection>(&self, stream: C, volume: u64, bytes: u64, choice: Choice, rest: Vec<u8>) {
        if let Ok(socket) = stream.descriptor() {
            let way = NewWay::Nbd(choice, rest);
            let client = NewClient { socket, volume: VolumeId(volume), bytes, way };
            self.loop_of(volume).give(Order::Client(Box::new(client)));
        }
    }

    /// Talks with a client until it has chosen.
    async fn greet<C: Connection>(
        &self,
        handshake: &mut Handshake,
        stream: &mut C,
    ) -> Option<(Choice, u64, u64, Place)> {
        let mut buffer = [0; 4096];
        let mut found = None;
        loop {
            let next = handshake.step();
            stream.write_all(&std::mem::take(&mut handshake.out)).await.ok()?;
            match next.ok()? {
                Next::Bytes => match stream.read(&mut buffer).await {
                    Ok(0) | Err(_) => return None,
                    Ok(read) => handshake.feed(&buffer[..read]),
                },
                Next::List => {
                    let exports = self.exports();
                    handshake.list(&exports);
                }
                Next::Export(name) => match self.find(&name).await {
                    Ok((volume, export, place)) => {
                        handshake.export(Ok(&export)).ok()?;
                        found = Some((volume, export.bytes, place));
                    }
                    Err(refusal) => handshake.export(Err(refusal)).ok()?,
                },
                Next::Gone => return None,
                Next::Chosen(choice) => {
                    let (volume, bytes, place) = found?;
                    return Some((choice, volume, bytes, place));
                }
            }
        }
    }

    fn exports(&self) -> Vec<(String, Export)> {
        let state = self.state();
        let attached = state.catalog.volumes.values().filter(|(volume, _)| volume.attached.is_some());
        attached.map(|(volume, _)| (volume.name.clone(), export_of(volume))).collect()
    }

    /// The volume of this name, where it is served; which is waited for.
    async fn find(&self, name: &str) -> Result<(u64, Export, Place), Refusal> {
        let unknown =
            || Refusal::Unknown(format!("there is no volume {name}: 'loadline volume list' shows them"));
        let begun = Instant::now();
        let mut asked = None;
        loop {
            // What was attached a moment ago is known to whoever asks for it.
            let _ = self.refresh().await;
            let (id, volume, record, address) = {
                let state = self.state();
                let (id, volume) = state.catalog.volume(name).ok_or_else(unknown)?;
                let record: Option<Record> =
                    state.catalog.records.get(&id).and_then(|stored| record::decode(&stored.value).ok());
                let owner = record.as_ref().and_then(|record| state.catalog.nodes.get(&record.owner.node.0));
                (id, volume.clone(), record, owner.map(|(node, _)| node.peer))
            };
            if volume.state != VolumeState::Ready {
                return Err(unknown());
            }
            if volume.attached.is_none() {
                return Err(Refusal::Unknown(format!(
                    "volume {name} is not attached: 'loadline volume attach {name}' makes it ready"
                )));
            }
            let Some(record) = record else { return Err(unknown()) };
            let export = Export { bytes: record.blocks * BLOCK, ..export_of(&volume) };
            // One of a former life of this process takes over anew.
            if record.owner.node == self.0.me.node {
                if self.state().attached.contains(&id) {
                    return Ok((id, export, Place::Here));
                }
                self.want_attached(id, &mut asked);
            } else if let (RecordState::Active, Some(address)) = (record.state, address)
                && self.answers(address).await
            {
                return Ok((id, export, Place::At(address)));
            }
            if begun.elapsed() > SERVED {
                return Err(Refusal::NotNow(format!(
                    "volume {name} is not served by any node now: 'loadline volume show {name}' says why"
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The loop is told now and then that a volume is wanted here: it may not know it yet.
    pub(super) fn want_attached(&self, id: u64, asked: &mut Option<Instant>) {
        if asked.is_none_or(|asked| asked.elapsed() > ASKED) {
            *asked = Some(Instant::now());
            self.loop_of(id).give(Order::Attach(VolumeId(id)));
        }
    }

    /// A client that came to another node, for a volume that is owned here. If it is not, it is not claimed: who has sent the
    /// client may have known less than this node does now.
    async fn take_forwarded(&self, forward: Forward, mut stream: TcpStream) {
        let begun = Instant::now();
        let mut asked = None;
        while begun.elapsed() < SERVED {
            if self.refresh().await.is_err() || forward.cluster != self.0.cluster {
                return;
            }
            let (mine, here) = {
                let state = self.state();
                let volume = state.catalog.volumes.get(&forward.volume);
                let wanted = volume.is_some_and(|(volume, _)| volume.attached.is_some());
                let record = state.catalog.records.get(&forward.volume).filter(|_| wanted);
                let record = record.and_then(|stored| record::decode(&stored.value).ok());
                let mine = record.filter(|record| record.owner.node == self.0.me.node);
                (mine.map(|record| record.blocks * BLOCK), state.attached.contains(&forward.volume))
            };
            let Some(bytes) = mine else { return };
            if here {
                if stream.write_all(&Forward::TAKEN).await.is_ok() {
                    self.hand_over(stream, forward.volume, bytes, forward.choice(), Vec::new());
                }
                return;
            }
            self.want_attached(forward.volume, &mut asked);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn export_of(volume: &catalog::Volume) -> Export {
    let copies = volume.copies;
    let description = format!("Loadline volume, {copies} {}", if copies == 1 { "copy" } else { "copies" });
    // A power of two, as clients expect it.
    let most = most_in_flight(volume.log_bytes).ilog2();
    Export { description, bytes: volume.blocks * BLOCK, most: (BLOCK as u32) << most }
}
