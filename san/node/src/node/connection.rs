//! Connections of clients and of other nodes, over the network or on this machine, each open or protected by TLS.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use loadline_san_transport::channel::Channel;
use loadline_san_transport::handshake::{self, HandshakeError, Proved};
use loadline_san_transport::helpers::{Helpers, Precedence};
use loadline_san_transport::stream::Stream;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A socket of a connection.
pub(crate) trait Socket: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static {
    /// The socket, for the data path.
    fn into_socket(self) -> io::Result<OwnedFd>;
}

impl Socket for TcpStream {
    fn into_socket(self) -> io::Result<OwnedFd> {
        self.set_nodelay(true)?;
        Ok(self.into_std()?.into())
    }
}

impl Socket for UnixStream {
    fn into_socket(self) -> io::Result<OwnedFd> {
        Ok(self.into_std()?.into())
    }
}

/// A connection, which is open or protected by TLS.
#[derive(Debug)]
pub(crate) enum Connection<S> {
    /// It is not protected.
    Open(S),
    /// It is protected.
    Protected(Box<Stream<S>>),
    /// Its handshake has failed: nothing can be done with it.
    Failed,
}

/// A connection with another node.
pub(crate) type Link = Connection<TcpStream>;

impl<S: Socket> Connection<S> {
    /// Does the handshake of TLS with a client, which the helpers compute. It can be done once.
    pub(super) async fn protect(
        &mut self,
        helpers: &Helpers,
        config: Arc<ServerConfig>,
    ) -> Result<Proved, HandshakeError> {
        match std::mem::replace(self, Connection::Failed) {
            Connection::Open(socket) => {
                let by = (helpers, Precedence::Stranger);
                let (stream, proved) = handshake::accept_with(by, socket, config).await?;
                *self = Connection::Protected(Box::new(stream));
                Ok(proved)
            }
            Connection::Protected(_) | Connection::Failed => Err(HandshakeError::Closed),
        }
    }

    /// Whether it is protected.
    pub(super) fn is_protected(&self) -> bool {
        matches!(self, Connection::Protected(_))
    }

    /// The connection, for the data path. Fails if its handshake has.
    pub(super) fn into_channel(self) -> io::Result<Channel> {
        match self {
            Connection::Open(socket) => Ok(Channel::plain(socket.into_socket()?)),
            Connection::Protected(stream) => {
                let (socket, records) = stream.into_parts();
                Ok(Channel::protected(socket.into_socket()?, records))
            }
            Connection::Failed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Another descriptor of the socket, by which its state is read. Fails if there are no more descriptors, or if the handshake has failed.
    pub(super) fn watched(&self) -> io::Result<OwnedFd> {
        match self {
            Connection::Open(socket) => socket.as_fd().try_clone_to_owned(),
            Connection::Protected(stream) => stream.as_fd().try_clone_to_owned(),
            Connection::Failed => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends a few bytes, if the connection takes them at once. Whether it did.
    pub(super) fn try_send(&mut self, bytes: &[u8]) -> bool {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let written = Pin::new(&mut *self).poll_write(&mut context, bytes);
        matches!(written, Poll::Ready(Ok(count)) if count == bytes.len())
            && matches!(Pin::new(self).poll_flush(&mut context), Poll::Ready(Ok(())))
    }
}

impl<S: AsFd> AsFd for Connection<S> {
    /// # Panics
    /// If its handshake has failed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Connection::Open(socket) => socket.as_fd(),
            Connection::Protected(stream) => stream.as_fd(),
            Connection::Failed => panic!("a connection whose handshake has failed is not used"),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Open(socket) => Pin::new(socket).poll_read(cx, into),
            Connection::Protected(stream) => Pin::new(&mut **stream).poll_read(cx, into),
            Connection::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Open(socket) => Pin::new(socket).poll_write(cx, bytes),
            Connection::Protected(stream) => Pin::new(&mut **stream).poll_write(cx, bytes),
            Connection::Failed => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Open(socket) => Pin::new(socket).poll_flush(cx),
            Connection::Protected(stream) => Pin::new(&mut **stream).poll_flush(cx),
            Connection::Failed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Open(socket) => Pin::new(socket).poll_shutdown(cx),
            Connection::Protected(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            Connection::Failed => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::trust::provider;

    /// What is behind a handshake that failed is used by nobody: not as an open connection, either.
    #[test]
    fn a_connection_whose_handshake_has_failed_carries_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(b"no TLS at all, but a request").await.unwrap();
            theirs.shutdown().await.unwrap();
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new()));
            let helpers = Helpers::start(1, 1 << 20).unwrap();
            let mut connection = Connection::Open(ours);
            assert!(connection.protect(&helpers, Arc::new(config.clone())).await.is_err());
            assert!(!connection.is_protected());
            assert!(connection.read_u8().await.is_err() && connection.write_all(b"x").await.is_err());
            assert!(connection.protect(&helpers, Arc::new(config)).await.is_err());
            assert!(connection.watched().is_err() && connection.into_channel().is_err());
        });
    }
}
