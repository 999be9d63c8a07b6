//! What is wanted of a connection of a client, whether it came over the network or on this machine.

use std::os::fd::{AsFd, OwnedFd};

use tokio::net::{TcpStream, UnixStream};

/// A connection of a client.
pub(super) trait Connection:
    tokio::io::AsyncRead + tokio::io::AsyncWrite + AsFd + Unpin + Send + 'static
{
    /// The connection, for the data path.
    fn descriptor(self) -> std::io::Result<OwnedFd>;

    /// Another descriptor of it, by which its state is looked at.
    fn watched(&self) -> std::io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }
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
