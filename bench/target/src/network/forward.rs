//! Connections from outside of the nodes' network, forwarded into it: those of this process, of `loadline` in another terminal, of
//! clients of a volume. A thread has all of them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use loadline_base::limits::STACK;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use super::namespace::Namespace;
use crate::error::TargetError;

/// The most connections at a time. Further ones wait until another one ends.
const MOST: usize = 256;
/// How long a node may take to accept a connection.
const CONNECTS: Duration = Duration::from_secs(3);
/// The pause after a connection could not be accepted, for want of descriptors perhaps.
const NOT_ACCEPTED: Duration = Duration::from_millis(200);

/// What is forwarded, until this is dropped: all connections end then.
#[derive(Debug)]
pub(super) struct Forward {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Forward {
    /// Listens at these addresses outside, and forwards each connection to the same address in the namespace, where it comes from
    /// `source`.
    pub(super) fn start(
        namespace: Arc<Namespace>,
        addresses: Vec<SocketAddr>,
        source: Ipv4Addr,
    ) -> Result<Forward, TargetError> {
        let failed =
            |e: io::Error| TargetError::failed(format!("connections to nodes cannot be forwarded: {e}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let mut listeners = Vec::new();
        for address in addresses {
            let listener = runtime.block_on(TcpListener::bind(address)).map_err(|e| {
                TargetError::failed(format!(
                    "cannot listen at {address}, to forward connections to a node: {e}"
                ))
            })?;
            listeners.push((listener, address));
        }
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("forward".into()).stack_size(STACK);
        let thread =
            thread.spawn(move || serve(&runtime, namespace, listeners, source, stopped)).map_err(failed)?;
        Ok(Forward { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Forwards until it is stopped.
fn serve(
    runtime: &Runtime,
    namespace: Arc<Namespace>,
    listeners: Vec<(TcpListener, SocketAddr)>,
    source: Ipv4Addr,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async move {
        let room = Arc::new(Semaphore::new(MOST));
        let mut accepting = JoinSet::new();
        for (listener, to) in listeners {
            accepting.spawn(accept(namespace.clone(), listener, to, source, room.clone()));
        }
        let _ = stopped.await;
        // What was accepted ends with its listener.
    });
}

/// Accepts connections for ever, and forwards them.
async fn accept(
    namespace: Arc<Namespace>,
    listener: TcpListener,
    to: SocketAddr,
    source: Ipv4Addr,
    room: Arc<Semaphore>,
) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let namespace = namespace.clone();
                connections.spawn(async move {
                    // Whatever ends it ends it for both sides, and each side finds that out by itself.
                    let _ = forward(&namespace, client, to, source).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(NOT_ACCEPTED).await,
        }
    }
}

async fn forward(
    namespace: &Namespace,
    mut client: TcpStream,
    to: SocketAddr,
    source: Ipv4Addr,
) -> io::Result<()> {
    // A socket belongs to the namespace in which it is made.
    let socket = namespace.within(TcpSocket::new_v4).map_err(io::Error::other)??;
    socket.bind((source, 0).into())?;
    let mut node = tokio::time::timeout(CONNECTS, socket.connect(to)).await??;
    client.set_nodelay(true)?;
    node.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut node).await.map(drop)
}
