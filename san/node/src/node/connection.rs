//! What is wanted of a connection of a client, whether it came over the network or on this machine.

use std::os::fd::{AsFd, OwnedFd};

use loadline_san_transport::channel::Channel;
use tokio::net::{TcpStream, UnixStream};

use super::links::Link;

/// A connection of a client.
pub(super) trait Connection:
    tokio::io::AsyncRead + tokio::io::AsyncWrite + AsFd + Unpin + Send + 'static
{
    /// The connection, for the data path.
    fn channel(self) -> std::io::Result<Channel>;

    /// Another descriptor of it, by which its state is looked at.
    fn watched(&self) -> std::io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }
}

impl Connection for TcpStream {
    fn channel(self) -> std::io::Result<Channel> {
        self.set_nodelay(true)?;
        Ok(Channel::plain(self.into_std()?.into()))
    }
}

impl Connection for UnixStream {
    fn channel(self) -> std::io::Result<Channel> {
        Ok(Channel::plain(self.into_std()?.into()))
    }
}

impl Connection for Link {
    fn channel(self) -> std::io::Result<Channel> {
        self.into_channel()
    }
}
