//! Clients and other nodes come.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::BLOCK;
use loadline_san_core::record::{Record, State as RecordState};
use loadline_san_export::nbd::handshake::{Choice, Export, Handshake, Next, Refusal};
use loadline_san_protocol::record;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::forward::Forward;
use super::{Node, NodeError};
use crate::config::catalog;
use crate::config::catalog::VolumeState;
use crate::event_loop::order::{NewClient, Order};
use crate::event_loop::peer::Preamble;

/// Who has not chosen by then is hung up on.
const CHOOSES: Duration = Duration::from_secs(10);
/// How long a client waits until a volume is served.
const SERVED: Duration = Duration::from_secs(8);
/// Clients that have not chosen yet, and those that are forwarded. Others are hung up on.
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
        Ok(self.into_std()?.into())
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
        let (this, room) = (self.clone(), Arc::new(Semaphore::new(MOST_AT_THE_DOOR)));
        Ok(async move {
            loop {
                let came: Result<(), std::io::Error> = tokio::select! {
                    came = peers.accept() => came.map(|(stream, _)| this.clone().let_in_peer(stream, &room)),
                    came = nbd.accept() => came.map(|(stream, _)| this.clone().let_in_client(stream, &room)),
                    came = local.accept() => came.map(|(stream, _)| this.clone().let_in_client(stream, &room)),
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
            let client = NewClient { socket, volume: VolumeId(volume), bytes, choice, rest };
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
        let begun = std::time::Instant::now();
        let mut asked = false;
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
                if !std::mem::replace(&mut asked, true) {
                    self.loop_of(id).give(Order::Attach(VolumeId(id)));
                }
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

    /// A client that came to another node, for a volume that is owned here.
    async fn take_forwarded(&self, forward: Forward, mut stream: TcpStream) {
        let _ = self.refresh().await;
        let bytes = {
            let state = self.state();
            let volume = state.catalog.volumes.get(&forward.volume);
            let attached = volume.is_some_and(|(volume, _)| volume.attached.is_some());
            let record = state.catalog.records.get(&forward.volume).filter(|_| attached);
            record.and_then(|stored| record::decode(&stored.value).ok()).map(|record| record.blocks * BLOCK)
        };
        let Some(bytes) = bytes.filter(|_| forward.cluster == self.0.cluster) else { return };
        if !self.state().attached.contains(&forward.volume) {
            self.loop_of(forward.volume).give(Order::Attach(VolumeId(forward.volume)));
            let volume = forward.volume;
            if !self.wait_until(SERVED, |state| state.attached.contains(&volume)).await {
                return;
            }
        }
        if stream.write_all(&Forward::TAKEN).await.is_ok() {
            self.hand_over(stream, forward.volume, bytes, forward.choice(), Vec::new());
        }
    }
}

fn export_of(volume: &catalog::Volume) -> Export {
    let copies = volume.copies;
    let description = format!("Loadline volume, {copies} {}", if copies == 1 { "copy" } else { "copies" });
    Export { description, bytes: volume.blocks * BLOCK }
}
