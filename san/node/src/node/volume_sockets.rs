//! Volumes that are attached here have unix sockets of their own, for the protocols that need them: virtual machines, and programs of
//! this host.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use loadline_san_core::ids::VolumeId;
use loadline_san_core::layout::BLOCK;
use loadline_san_export::front_ends::{Endpoint, Protocol};
use loadline_san_export::login::Chosen;
use loadline_san_transport::channel::Channel;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use super::Node;
use super::listeners::LOCAL;
use super::manage::is_new;
use super::waiting::Whose;
use crate::config::catalog::{SocketPlace, Volume};
use crate::event_loop::command::{LoopCommand, NewClient};

/// How long a virtual machine waits until its volume is served: longer than others leave it to this node's process, and a takeover takes.
const SERVED: Duration = Duration::from_secs(30);

/// How long one read of the configuration is waited for meanwhile.
const READ: Duration = Duration::from_secs(2);

/// A volume's socket. It is closed, and removed, by dropping this.
#[derive(Debug)]
pub(super) struct VolumeSocket {
    path: PathBuf,
    /// Which one there is this.
    inode: Option<u64>,
    accepts: JoinHandle<()>,
}

impl Drop for VolumeSocket {
    fn drop(&mut self) {
        self.accepts.abort();
        // Another volume of the same name may have one there by now.
        if inode(&self.path) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|metadata| metadata.ino())
}

impl Node {
    /// Volumes that are attached here, or wait here, have their sockets, and others none. Nor has one that another node has taken over: nothing
    /// would be done for a client, and QEMU 7.2 does not connect again after a connection that ends before it was answered.
    pub(super) fn volume_sockets(&self) {
        let wanted: BTreeSet<(u64, SocketPlace)> = {
            let (me, mut state) = (self.0.me.node, self.state());
            let is_owned = |id| {
                state.catalog.record(id).is_some_and(|record| record.owner.node == me || is_new(&record))
            };
            let wanted = state.catalog.volumes.iter().filter(|(id, (volume, _))| {
                // Here, or at a node that is excluded.
                let is_served = volume.attached.is_some() && state.attached.contains(id);
                is_served || volume.attached == Some(self.id()) && is_owned(**id)
            });
            let wanted = wanted.map(|(id, (volume, _))| (*id, socket_of(volume, self.id())));
            let wanted = wanted.chain(state.waiting.sockets()).collect();
            state.sockets.retain(|(id, _, place), _| BTreeSet::contains(&wanted, &(*id, *place)));
            wanted
        };
        wanted.into_iter().for_each(|(id, place)| self.open_volume_sockets(id, place));
    }

    /// Which of its sockets a volume has at this node.
    pub(super) fn socket_here(&self, id: u64) -> SocketPlace {
        let state = self.state();
        state.catalog.volumes.get(&id).map_or(SocketPlace::First, |(volume, _)| socket_of(volume, self.id()))
    }

    /// Opens the sockets of a volume in this place, unless they are open. If one cannot be, the volume is served without it.
    pub(super) fn open_volume_sockets(&self, id: u64, place: SocketPlace) {
        for protocol in Protocol::ALL {
            if matches!(protocol.endpoint(), Endpoint::Volume { .. }) {
                self.open_volume_socket(id, protocol, place);
            }
        }
    }

    fn open_volume_socket(&self, id: u64, protocol: Protocol, place: SocketPlace) {
        let name = {
            let state = self.state();
            if state.sockets.contains_key(&(id, protocol, place)) {
                return;
            }
            state.catalog.volumes.get(&id).map(|(volume, _)| volume.name.clone())
        };
        let Some(name) = name else { return };
        let path = self.0.settings.socket(protocol, &name, place);
        let listener = match listen(&path) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(
                    volume = name,
                    "virtual machines cannot connect to volume {name}: {}: {error}",
                    path.display()
                );
                return;
            }
        };
        let this = self.clone();
        let accepts = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        let (this, name) = (this.clone(), name.clone());
                        let whose = this.state().waiting.connected(id, place);
                        match whose {
                            Whose::Present => {
                                tokio::spawn(
                                    async move { this.let_in_local(stream, id, name, protocol).await },
                                );
                            }
                            Whose::Waiting(number) => {
                                this.let_in_waiting(stream, id, name, protocol, number);
                            }
                            Whose::NoOne => tracing::info!(
                                volume = name,
                                "a virtual machine cannot use volume {name}: another one waits for its start at this socket"
                            ),
                        }
                    }
                    Err(error) => {
                        tracing::warn!("the connection of a virtual machine cannot be accepted: {error}");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        });
        let socket = VolumeSocket { inode: inode(&path), path, accepts };
        self.state().sockets.insert((id, protocol, place), socket);
    }

    /// One that has come waits until the volume is served here.
    async fn let_in_local(&self, stream: tokio::net::UnixStream, id: u64, name: String, protocol: Protocol) {
        let (me, begun) = (self.0.me.node, Instant::now());
        let mut asked = None;
        loop {
            // It may have been detached, or have grown.
            self.refresh_within(READ).await;
            let (wanted, served, owned) = {
                let state = self.state();
                let volume = state.catalog.volumes.get(&id);
                let attached = volume.and_then(|(volume, _)| volume.attached);
                let served = state.attached.contains(&id);
                let owned = state.catalog.record(id).is_some_and(|record| record.owner.node == me);
                (attached.is_some_and(|node| node == self.id() || served), served, owned)
            };
            if wanted && served {
                break;
            }
            if !wanted || begun.elapsed() > SERVED {
                tracing::warn!(
                    volume = name,
                    "a virtual machine cannot use volume {name}: this node does not serve the volume now"
                );
                return;
            }
            if owned {
                // One of a former life of this process takes over anew. From another node that has taken over it is not claimed back.
                self.want_attached(id, &mut asked);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let record = self.state().catalog.record(id);
        if let (Some(record), Ok(socket)) = (record, stream.into_std()) {
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
            self.loop_of(id).give(LoopCommand::Client(Box::new(client)));
        }
    }
}

/// Which of its sockets a volume has at this node. Where it is served without being attached, it has the usual one.
fn socket_of(volume: &Volume, node: u32) -> SocketPlace {
    if volume.attached == Some(node) { volume.socket } else { SocketPlace::First }
}

fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // What a dead process has left.
    let _ = std::fs::remove_file(path);
    UnixListener::bind(path)
}
