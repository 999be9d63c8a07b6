//! Connections between nodes, made and accepted. In a cluster on one machine they are open. Otherwise each begins with a handshake in which
//! both nodes authenticate each other. Then the accepting node sends a byte that reports whether it accepts the connection, because the
//! handshake alone does not show that to the other node.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use loadline_san_core::ids::NodeId;
use loadline_san_transport::handshake::{self, HandshakeError};
use loadline_san_transport::helpers::{Helpers, Precedence};
use loadline_san_transport::stream::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connection::Link;
use super::{Node, Refused};
use crate::event_loop::command::LoopCommand;
use crate::event_loop::peer_sender::{ProvedPeer, Unproved};
use crate::identity::fingerprint;
use crate::identity::trust::Trust;
use crate::outgoing;

/// How long a handshake with another node may take.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// How long the configuration is read, of the time for a handshake, if it names nothing with a certificate.
const READ: Duration = Duration::from_millis(1500);
/// The byte of the accepting node after the handshake: the connection is accepted.
const TAKEN: u8 = 1;
/// The configuration that it knows names no node with this certificate.
const UNKNOWN: u8 = 2;

/// The node at the other end of a protected connection, and the fingerprint of its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerIdentity {
    pub(super) node: NodeId,
    pub(super) certificate: String,
}

fn late() -> Refused {
    Refused::new(format!("the handshake was not done within {} s", HANDSHAKE.as_secs()))
}

/// Does the handshake with a node that was connected to, which has this id. Returns the fingerprint of its certificate.
async fn prove(
    helpers: &Helpers,
    stream: TcpStream,
    trust: &Trust,
    node: u32,
) -> Result<(Stream<TcpStream>, String), HandshakeError> {
    stream.set_nodelay(true)?;
    let (mut stream, proved) =
        handshake::connect_with(helpers, stream, trust.to_nodes.clone(), trust.name_of(node)).await?;
    if proved.protocol.as_deref() != Some(trust.protocol()) {
        return Err(HandshakeError::Tls(rustls::Error::NoApplicationProtocol));
    }
    let mut answer = [0];
    stream.read_exact(&mut answer).await?;
    let certificate =
        proved.certificate.ok_or(HandshakeError::Tls(rustls::Error::NoCertificatesPresented))?;
    match answer[0] {
        TAKEN => Ok((stream, fingerprint(&certificate))),
        _ => Err(HandshakeError::Io(io::Error::other(
            "it does not know this node's certificate: the node was removed, or its identity is an old copy, or that node's \
             configuration store does not answer",
        ))),
    }
}

impl Node {
    /// The threads that compute handshakes.
    pub(crate) fn helpers(&self) -> &Helpers {
        &self.0.helpers
    }

    /// Whether a certificate is one of this node, as far as is known.
    pub(super) fn is_of(&self, node: u32, certificate: &str) -> bool {
        let state = self.state();
        state
            .catalog
            .nodes
            .get(&node)
            .is_some_and(|(node, _)| node.certificates.iter().any(|of| of == certificate))
    }

    /// The node whose certificate this is, as far as is known.
    fn node_of(&self, certificate: &str) -> Option<u32> {
        let state = self.state();
        let mut nodes = state.catalog.nodes.iter();
        nodes.find(|(_, (node, _))| node.certificates.iter().any(|of| of == certificate)).map(|(id, _)| *id)
    }

    /// Connects to another node, at either of its ports. There is no limit of time: the caller sets one.
    pub(super) async fn connect_to(&self, address: SocketAddr) -> io::Result<TcpStream> {
        outgoing::connect_to(self.0.own, address).await
    }

    /// Connects to another node, and does the handshake. There is no limit of time but that of the handshake: the caller sets one. The
    /// error is for people.
    pub(super) async fn link_to(&self, node: u32, address: SocketAddr) -> Result<Link, String> {
        let stream = self.connect_to(address).await.map_err(|error| error.to_string())?;
        let protected = self.protect(stream, node).await;
        protected.map(|(link, _)| link).map_err(|why| self.failed(address, &why))
    }

    /// A connection that was made to another node has failed: why, for people.
    fn failed(&self, address: SocketAddr, why: &Refused) -> String {
        self.note_clocks(address.ip(), why);
        why.to_string()
    }

    /// Does the handshake of a connection that was made to a node.
    pub(super) async fn protect(
        &self,
        stream: TcpStream,
        node: u32,
    ) -> Result<(Link, Option<String>), Refused> {
        let Some(trust) = self.trust() else {
            stream.set_nodelay(true)?;
            return Ok((Link::Open(stream), None));
        };
        let proved = tokio::time::timeout(HANDSHAKE, prove(&self.0.helpers, stream, &trust, node)).await;
        let (stream, certificate) = proved.map_err(|_| late())??;
        if !self.is_of(node, &certificate) {
            // It may be a new one that is not known here yet.
            self.refresh_within(READ).await;
            if !self.is_of(node, &certificate) {
                return Err(Refused::new("its certificate is not one that the configuration names for it"));
            }
        }
        Ok((Link::Protected(Box::new(stream)), Some(certificate)))
    }

    /// Does the handshake of a connection that was made to the API of another node. There is no limit of time: the caller sets one.
    /// The error is for people.
    pub(crate) async fn protect_api(
        &self,
        stream: TcpStream,
        node: u32,
        api: SocketAddr,
    ) -> Result<Link, String> {
        let Some(trust) = self.trust().filter(|_| !api.ip().is_loopback()) else {
            return Ok(Link::Open(stream));
        };
        let (helpers, name) = (&self.0.helpers, trust.name_of(node));
        let connected = handshake::connect_with(helpers, stream, trust.to_apis.clone(), name).await;
        let (stream, proved) = connected.map_err(|error| self.failed(api, &error.into()))?;
        match proved.certificate {
            Some(certificate) if self.is_of(node, &fingerprint(&certificate)) => {
                Ok(Link::Protected(Box::new(stream)))
            }
            _ => Err("its certificate is not one that the configuration names for it".into()),
        }
    }

    /// Does the handshake of a connection that a loop has made to a node.
    pub(super) fn prove_for_loop(&self, number: u32, node: NodeId, Unproved { socket, attempt }: Unproved) {
        let this = self.clone();
        tokio::spawn(async move {
            let proved = this.prove_socket(socket, node).await;
            this.0.loops[number as usize].give(LoopCommand::Proved(node, attempt, proved));
        });
    }

    async fn prove_socket(&self, socket: OwnedFd, node: NodeId) -> Result<ProvedPeer, String> {
        let stream = TcpStream::from_std(socket.into()).map_err(|error| error.to_string())?;
        let address = stream.peer_addr().map_err(|error| error.to_string())?;
        let protected = self.protect(stream, node.0).await;
        let (link, certificate) = protected.map_err(|why| self.failed(address, &why))?;
        let channel = link.into_channel().map_err(|error| error.to_string())?;
        Ok(ProvedPeer { channel, certificate: certificate.ok_or("the connection is not protected")? })
    }

    /// Takes a connection: does its handshake, if connections are protected. The node at the other end then; `None` if they are not.
    /// The error is for people.
    pub(super) async fn take_link(
        &self,
        stream: TcpStream,
        precedence: Precedence,
    ) -> Result<(Link, Option<PeerIdentity>), Refused> {
        let Some(trust) = self.trust() else { return Ok((Link::Open(stream), None)) };
        let taken = tokio::time::timeout(HANDSHAKE, self.take_protected(stream, &trust, precedence)).await;
        taken.map_err(|_| late())?
    }

    async fn take_protected(
        &self,
        stream: TcpStream,
        trust: &Arc<Trust>,
        precedence: Precedence,
    ) -> Result<(Link, Option<PeerIdentity>), Refused> {
        stream.set_nodelay(true)?;
        let by = (&self.0.helpers, precedence);
        let (mut stream, proved) = handshake::accept_with(by, stream, trust.from_nodes.clone()).await?;
        if proved.protocol.as_deref() != Some(trust.protocol()) {
            return Err(Refused::new(
                "the other side speaks another protocol, or protects its connections in another way",
            ));
        }
        let certificate =
            proved.certificate.ok_or_else(|| Refused::new("the other side has no certificate"))?;
        let certificate = fingerprint(&certificate);
        let mut node = self.node_of(&certificate);
        if node.is_none() {
            // It may have joined a moment ago.
            self.refresh_within(READ).await;
            node = self.node_of(&certificate);
        }
        let answer = if node.is_some() { TAKEN } else { UNKNOWN };
        stream.write_all(&[answer]).await?;
        stream.flush().await?;
        let node = node.ok_or_else(|| Refused::new(
            "its certificate is of this cluster, but the configuration names no node with it: the node was removed, or its \
             identity is an old copy",
        ))?;
        Ok((Link::Protected(Box::new(stream)), Some(PeerIdentity { node: NodeId(node), certificate })))
    }
}

/// Whether an error says that the other side has closed the connection.
pub(super) fn is_end(error: &io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof
}
