//! Connections between nodes, made and accepted. In a cluster on one machine they are open. Otherwise each begins with a handshake in which
//! both nodes authenticate each other. Then the accepting node sends a byte that reports whether it accepts the connection, because the
//! handshake alone does not show that to the other node.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use loadline_san_core::ids::NodeId;
use loadline_san_transport::channel::Channel;
use loadline_san_transport::handshake::{self, HandshakeError};
use loadline_san_transport::stream::Stream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use super::Node;
use crate::event_loop::command::LoopCommand;
use crate::event_loop::peer_sender::{ProvedPeer, Unproved};
use crate::identity::fingerprint;
use crate::identity::trust::Trust;

/// How long a handshake with another node may take.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// The byte of the accepting node after the handshake: the connection is accepted.
const TAKEN: u8 = 1;
/// The configuration that it knows names no node with this certificate.
const UNKNOWN: u8 = 2;

/// A connection between nodes.
#[derive(Debug)]
pub(crate) enum Link {
    /// It is not protected.
    Open(TcpStream),
    /// It is protected.
    Protected(Box<Stream<TcpStream>>),
}

/// The node at the other end of a protected connection, and the fingerprint of its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PeerIdentity {
    pub(super) node: NodeId,
    pub(super) certificate: String,
}

impl Link {
    /// The connection, for an event loop.
    pub(super) fn into_channel(self) -> io::Result<Channel> {
        Ok(match self {
            Link::Open(stream) => {
                stream.set_nodelay(true)?;
                Channel::plain(stream.into_std()?.into())
            }
            Link::Protected(stream) => {
                let (stream, records) = stream.into_parts();
                stream.set_nodelay(true)?;
                Channel::protected(stream.into_std()?.into(), records)
            }
        })
    }

    /// Sends a few bytes, if the connection takes them at once. Whether it did.
    pub(super) fn try_send(&mut self, bytes: &[u8]) -> bool {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let written = Pin::new(&mut *self).poll_write(&mut context, bytes);
        matches!(written, Poll::Ready(Ok(count)) if count == bytes.len())
            && matches!(Pin::new(self).poll_flush(&mut context), Poll::Ready(Ok(())))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Link::Open(stream) => stream.as_fd(),
            Link::Protected(stream) => stream.as_fd(),
        }
    }
}

impl AsyncRead for Link {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Open(stream) => Pin::new(stream).poll_read(cx, into),
            Link::Protected(stream) => Pin::new(&mut **stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Link::Open(stream) => Pin::new(stream).poll_write(cx, bytes),
            Link::Protected(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Open(stream) => Pin::new(stream).poll_flush(cx),
            Link::Protected(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Link::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            Link::Protected(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}

/// Does the handshake with a node that was connected to, which has this id. Returns the fingerprint of its certificate.
async fn prove(
    stream: TcpStream,
    trust: &Trust,
    node: u32,
) -> Result<(Stream<TcpStream>, String), HandshakeError> {
    stream.set_nodelay(true)?;
    let (mut stream, proved) =
        handshake::connect(stream, trust.to_nodes.clone(), trust.name_of(node)).await?;
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

    /// Connects to another node. There is no limit of time but that of the handshake: the caller sets one. The error is for people.
    pub(super) async fn link_to(&self, node: u32, address: SocketAddr) -> Result<Link, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        self.protect(stream, node).await.map(|(link, _)| link)
    }

    /// Does the handshake of a connection that was made to a node.
    async fn protect(&self, stream: TcpStream, node: u32) -> Result<(Link, Option<String>), String> {
        let Some(trust) = self.trust() else {
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            return Ok((Link::Open(stream), None));
        };
        let proved = tokio::time::timeout(HANDSHAKE, prove(stream, &trust, node)).await;
        let late = || format!("the handshake was not done within {} s", HANDSHAKE.as_secs());
        let (stream, certificate) = proved.map_err(|_| late())?.map_err(|error| error.to_string())?;
        if !self.is_of(node, &certificate) {
            // It may be a new one that is not known here yet.
            let _ = self.refresh().await;
            if !self.is_of(node, &certificate) {
                return Err("its certificate is not one that the configuration names for it".into());
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
        let connected = handshake::connect(stream, trust.to_apis.clone(), trust.name_of(node)).await;
        let (stream, proved) = connected.map_err(|error| error.to_string())?;
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
        let (link, certificate) = self.protect(stream, node.0).await?;
        let channel = link.into_channel().map_err(|error| error.to_string())?;
        Ok(ProvedPeer { channel, certificate: certificate.ok_or("the connection is not protected")? })
    }

    /// Takes a connection: does its handshake, if connections are protected. The node at the other end then; `None` if they are not.
    /// The error is for people.
    pub(super) async fn take_link(&self, stream: TcpStream) -> Result<(Link, Option<PeerIdentity>), String> {
        let Some(trust) = self.trust() else { return Ok((Link::Open(stream), None)) };
        let taken = tokio::time::timeout(HANDSHAKE, self.take_protected(stream, &trust)).await;
        taken.map_err(|_| format!("the handshake was not done within {} s", HANDSHAKE.as_secs()))?
    }

    async fn take_protected(
        &self,
        stream: TcpStream,
        trust: &Arc<Trust>,
    ) -> Result<(Link, Option<PeerIdentity>), String> {
        let shaken = async {
            stream.set_nodelay(true)?;
            handshake::accept(stream, trust.from_nodes.clone()).await
        };
        let (mut stream, proved) = shaken.await.map_err(|error| error.to_string())?;
        if proved.protocol.as_deref() != Some(trust.protocol()) {
            return Err(
                "the other side speaks another protocol, or protects its connections in another way".into()
            );
        }
        let certificate = proved.certificate.ok_or("the other side has no certificate")?;
        let certificate = fingerprint(&certificate);
        let mut node = self.node_of(&certificate);
        if node.is_none() {
            // It may have joined a moment ago.
            let _ = self.refresh().await;
            node = self.node_of(&certificate);
        }
        let answer = if node.is_some() { TAKEN } else { UNKNOWN };
        let answered = async {
            stream.write_all(&[answer]).await?;
            stream.flush().await
        };
        answered.await.map_err(|error: io::Error| error.to_string())?;
        let node = node.ok_or(
            "its certificate is of this cluster, but the configuration names no node with it: the node was removed, or its \
             identity is an old copy",
        )?;
        Ok((Link::Protected(Box::new(stream)), Some(PeerIdentity { node: NodeId(node), certificate })))
    }
}

/// Whether an error says that the other side has closed the connection.
pub(super) fn is_end(error: &io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof
}
