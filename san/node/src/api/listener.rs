//! Where the API is listened for, and what is known of its callers from their connection.
//!
//! | where | protected | who may call |
//! | --- | --- | --- |
//! | `api.sock` in the node's folder | by the mode of the file: its owner alone | everyone who can open it, as operator |
//! | an address of this machine alone | no | everyone on this machine, as operator |
//! | another address | TLS 1.3 | nodes of the cluster; everyone who has an [access](crate::identity::access) |

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use axum::Router;
use loadline_san_transport::handshake;
use loadline_san_transport::helpers::Precedence;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::caller::{Caller, Proofs};
use super::connection;
use crate::identity::fingerprint;
use crate::node::{Entered, Node, NodeError};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The unix socket in a node's folder.
const SOCKET: &str = "api.sock";

/// Listens for callers on this machine, and answers their requests.
async fn answer_local<L: Accepts>(node: Node, listener: L, api: Router) -> Infallible {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                let connected = node.api_connections().enter();
                tokio::spawn(connection::serve(connected, stream, api.clone(), Caller::Local));
            }
            Err(error) => node.not_accepted(&error).await,
        }
    }
}

/// A listener on this machine.
trait Accepts {
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    async fn accept(&self) -> io::Result<Self::Io>;
}

impl Accepts for TcpListener {
    type Io = TcpStream;
    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Accepts for UnixListener {
    type Io = UnixStream;
    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(UnixListener::accept(self).await?.0)
    }
}

/// Listens for callers from elsewhere, and answers their requests. A handshake that takes long delays no other caller.
async fn answer_protected(node: Node, listener: TcpListener, api: Router) -> Infallible {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                node.not_accepted(&error).await;
                continue;
            }
        };
        let pools = node.unproved();
        let (pool, precedence) = match node.is_address_of_node(from.ip()) {
            true => (&pools.api_of_nodes, Precedence::Node(from.ip().to_canonical())),
            false => (&pools.api, Precedence::Stranger),
        };
        let (entered, evicted) = pool.enter(from.ip().into());
        let (node, api) = (node.clone(), api.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = answer(&node, (stream, from), api, (entered, precedence)) => {}
                () = evicted.wait() => node.count_displaced("the API", from.ip()),
            }
        });
    }
}

/// Does the handshake with a caller from elsewhere, and answers its requests. It has this place until it has proved something.
async fn answer(
    node: &Node,
    (stream, from): (TcpStream, SocketAddr),
    api: Router,
    (entered, precedence): (Entered, Precedence),
) {
    let Some(trust) = node.trust() else { return };
    let _ = stream.set_nodelay(true);
    let shaken = handshake::accept_with((node.helpers(), precedence), stream, trust.api.clone());
    let shaken = tokio::time::timeout(HANDSHAKE, shaken).await;
    let (stream, proved) = match shaken {
        Ok(Ok(shaken)) => shaken,
        Ok(Err(why)) => return node.refuse("the API", from.ip(), &why.into()),
        Err(_) => return node.count_refused("the API", from.ip(), "the handshake was not done in time"),
    };
    let certificate = proved.certificate.as_ref().map(fingerprint);
    // One that is not known is answered why.
    let known = certificate.clone().filter(|of| node.accesses().has(of));
    // A caller with a token has proved nothing before its first request.
    let proofs = Proofs::new(known, entered);
    let caller = Caller::Remote { address: from.ip(), certificate, proofs: proofs.clone() };
    tokio::select! {
        () = connection::serve(node.api_connections().enter(), stream, api, caller) => {}
        () = node.until_revoked(|accesses| proofs.all(|proof| accesses.has(proof))) => {
            tracing::info!(client = %from, "the API disconnects {from}: its access was revoked");
        }
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
        let (this, api) = (self.clone(), super::service(self));
        Ok(async move {
            let local = answer_local(this.clone(), socket, api.clone());
            match this.trust().is_some() && !address.ip().is_loopback() {
                true => tokio::select! {
                    never = answer_protected(this.clone(), listener, api) => match never {},
                    never = local => match never {},
                },
                false => tokio::select! {
                    never = answer_local(this.clone(), listener, api) => match never {},
                    never = local => match never {},
                },
            }
        })
    }
}
