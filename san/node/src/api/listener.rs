//! Where the API is listened for, and what is known of its callers from their connection.
//!
//! | where | protected | who may call |
//! | --- | --- | --- |
//! | `api.sock` in the node's folder | by the mode of the file: its owner alone | everyone who can open it, as operator |
//! | an address of this machine alone | no | everyone on this machine, as operator |
//! | another address | TLS 1.3 | nodes of the cluster; everyone who has an [access](crate::identity::access) |

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use loadline_san_transport::handshake;
use loadline_san_transport::stream::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, mpsc};

use crate::identity::fingerprint;
use crate::node::{Entered, Node, NodeError};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes at a time; more wait.
const MOST_HANDSHAKES: usize = 512;
/// A connection by which nothing was received for so long is closed: longer than any request takes.
const IDLE: Duration = Duration::from_secs(120);
/// The unix socket in a node's folder.
const SOCKET: &str = "api.sock";

/// What is known of a caller from its connection.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    /// It is on this machine.
    Local,
    /// It is elsewhere, and has this certificate, if it has one.
    Remote {
        /// Its address.
        address: IpAddr,
        /// The fingerprint of its certificate, which the cluster's authority has issued.
        certificate: Option<String>,
    },
}

impl Connected<IncomingStream<'_, TcpListener>> for Caller {
    fn connect_info(_: IncomingStream<'_, TcpListener>) -> Caller {
        Caller::Local
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Caller {
    fn connect_info(_: IncomingStream<'_, UnixListener>) -> Caller {
        Caller::Local
    }
}

impl Connected<IncomingStream<'_, ProtectedListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, ProtectedListener>) -> Caller {
        let (address, certificate) = (stream.remote_addr().ip(), stream.io().certificate.clone());
        Caller::Remote { address, certificate }
    }
}

/// A connection of a caller, after its handshake.
pub(super) struct ProtectedStream {
    stream: Stream<TcpStream>,
    certificate: Option<String>,
    /// A caller without a certificate counts among those of its address for as long as it is connected.
    _entered: Option<Entered>,
    /// Ends when nothing was received for so long.
    idle: Pin<Box<tokio::time::Sleep>>,
}

impl AsyncRead for ProtectedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        if read.is_pending() {
            return match self.idle.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => Poll::Pending,
            };
        }
        if into.filled().len() > before {
            self.idle.as_mut().reset(tokio::time::Instant::now() + IDLE);
        }
        read
    }
}

impl AsyncWrite for ProtectedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Listens for callers from elsewhere. A handshake that takes long delays no other caller.
pub(super) struct ProtectedListener {
    address: SocketAddr,
    shaken: mpsc::Receiver<(ProtectedStream, SocketAddr)>,
    accepts: tokio::task::JoinHandle<()>,
}

impl Drop for ProtectedListener {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

impl ProtectedListener {
    fn new(node: Node, listener: TcpListener, address: SocketAddr) -> ProtectedListener {
        let (sender, shaken) = mpsc::channel(MOST_HANDSHAKES);
        let accepts = tokio::spawn(accept(node, listener, sender));
        ProtectedListener { address, shaken, accepts }
    }
}

async fn accept(node: Node, listener: TcpListener, shaken: mpsc::Sender<(ProtectedStream, SocketAddr)>) {
    let room = Arc::new(Semaphore::new(MOST_HANDSHAKES));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // For want of descriptors, perhaps, of which some will be closed.
                tracing::warn!("a connection to the API cannot be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (node, shaken) = (node.clone(), shaken.clone());
        let Some(entered) = node.enter_unproved(from.ip()) else {
            node.count_refused(
                "the API",
                from.ip(),
                "too many connections from there have not proved their identity",
            );
            continue;
        };
        tokio::spawn(async move {
            let _permit = permit;
            let Some(trust) = node.trust() else { return };
            let _ = stream.set_nodelay(true);
            match tokio::time::timeout(HANDSHAKE, handshake::accept(stream, trust.api.clone())).await {
                Ok(Ok((stream, proved))) => {
                    let certificate = proved.certificate.as_ref().map(fingerprint);
                    let entered = Some(entered).filter(|_| certificate.is_none());
                    let idle = Box::pin(tokio::time::sleep(IDLE));
                    let stream = ProtectedStream { stream, certificate, _entered: entered, idle };
                    let _ = shaken.send((stream, from)).await;
                }
                Ok(Err(why)) => node.count_refused("the API", from.ip(), &why.to_string()),
                Err(_) => node.count_refused("the API", from.ip(), "the handshake was not done in time"),
            }
        });
    }
}

impl Listener for ProtectedListener {
    type Io = ProtectedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (ProtectedStream, SocketAddr) {
        match self.shaken.recv().await {
            Some(accepted) => accepted,
            // The task that accepts goes on for as long as this does.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl Node {
    /// Binds the sockets of the API. The future answers requests.
    pub(crate) async fn open_api(
        &self,
        address: SocketAddr,
    ) -> Result<impl Future<Output = NodeError> + use<>, NodeError> {
        let listen = |error| NodeError::Listen { what: format!("{address} (the API)"), error };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let path = self.folder().join(SOCKET);
        // What a dead process has left. A living one has the address too, so this one would not have come so far.
        let _ = std::fs::remove_file(&path);
        let socket = UnixListener::bind(&path)
            .and_then(|socket| {
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
                Ok(socket)
            })
            .map_err(|error| NodeError::Listen { what: format!("{} (the API)", path.display()), error })?;
        let service = super::service(self).into_make_service_with_connect_info::<Caller>();
        let (this, local) = (self.clone(), service.clone());
        Ok(async move {
            let by_network = async {
                match this.trust().is_some() && !address.ip().is_loopback() {
                    true => {
                        axum::serve(ProtectedListener::new(this.clone(), listener, address), service).await
                    }
                    false => axum::serve(listener, service).await,
                }
            };
            let ended = tokio::select! {
                ended = by_network => ended,
                ended = async { axum::serve(socket, local).await } => ended,
            };
            NodeError::Io(ended.err().unwrap_or_else(|| io::Error::other("the API has ended")))
        })
    }
}
