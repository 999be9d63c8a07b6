//! What is wanted of a connection of a client, whether it came over the network or on this machine, and whether it is protected.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use loadline_san_transport::channel::Channel;
use loadline_san_transport::handshake::{self, HandshakeError, Proved};
use loadline_san_transport::stream::Stream;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::links::Link;

/// A connection of a client.
pub(super) trait Connection: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static {
    /// The connection, for the data path.
    fn channel(self) -> io::Result<Channel>;

    /// Another descriptor of the socket, by which its state is read.
    fn watched(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }
}

impl Connection for TcpStream {
    fn channel(self) -> io::Result<Channel> {
        self.set_nodelay(true)?;
        Ok(Channel::plain(self.into_std()?.into()))
    }
}

impl Connection for UnixStream {
    fn channel(self) -> io::Result<Channel> {
        Ok(Channel::plain(self.into_std()?.into()))
    }
}

impl Connection for Link {
    fn channel(self) -> io::Result<Channel> {
        self.into_channel()
    }
}

/// A connection of a client, before or after its handshake of TLS.
#[derive(Debug)]
pub(super) enum ClientStream<C> {
    /// The connection is not encrypted.
    Open(C),
    /// The connection is encrypted by TLS.
    Protected(Box<Stream<C>>),
    /// Its handshake has failed.
    Failed,
}

impl<C: Connection> ClientStream<C> {
    /// Does the handshake of TLS. It can be done once.
    pub(super) async fn protect(&mut self, config: Arc<ServerConfig>) -> Result<Proved, HandshakeError> {
        match std::mem::replace(self, ClientStream::Failed) {
            ClientStream::Open(stream) => {
                let (stream, proved) = handshake::accept(stream, config).await?;
                *self = ClientStream::Protected(Box::new(stream));
                Ok(proved)
            }
            ClientStream::Protected(_) | ClientStream::Failed => Err(HandshakeError::Closed),
        }
    }

    /// Whether it is protected.
    pub(super) fn is_protected(&self) -> bool {
        matches!(self, ClientStream::Protected(_))
    }
}

impl<C: AsFd> AsFd for ClientStream<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ClientStream::Open(stream) => stream.as_fd(),
            ClientStream::Protected(stream) => stream.as_fd(),
            ClientStream::Failed => panic!("a connection whose handshake has failed is not used"),
        }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for ClientStream<C> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Open(stream) => Pin::new(stream).poll_read(cx, into),
            ClientStream::Protected(stream) => Pin::new(&mut **stream).poll_read(cx, into),
            ClientStream::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for ClientStream<C> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientStream::Open(stream) => Pin::new(stream).poll_write(cx, bytes),
            ClientStream::Protected(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
            ClientStream::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Open(stream) => Pin::new(stream).poll_flush(cx),
            ClientStream::Protected(stream) => Pin::new(&mut **stream).poll_flush(cx),
            ClientStream::Failed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Open(stream) => Pin::new(stream).poll_shutdown(cx),
            ClientStream::Protected(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            ClientStream::Failed => Poll::Ready(Ok(())),
        }
    }
}

impl<C: Connection> Connection for ClientStream<C> {
    fn channel(self) -> io::Result<Channel> {
        match self {
            ClientStream::Open(stream) => stream.channel(),
            ClientStream::Protected(stream) => {
                let (stream, records) = stream.into_parts();
                Ok(Channel::protected(stream.channel()?.into_socket(), records))
            }
            ClientStream::Failed => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}
