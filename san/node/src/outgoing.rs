//! Connections that a node makes to other nodes. They come from the address at which the node listens for other nodes, if that is a
//! specific address: the other node then recognizes the connection as one of a node, also on a host with several addresses, and a
//! network can tell the traffic of several nodes of one host apart.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use tokio::net::{TcpSocket, TcpStream};

/// The address from which a connection to `to` comes, with any port; `None` if the kernel is to choose it, because the node listens at
/// every address, or only at one of the other family.
fn source(own: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
    let mut source = own;
    source.set_port(0);
    (!own.ip().is_unspecified() && own.is_ipv4() == to.is_ipv4()).then_some(source)
}

/// A socket that does not block, bound for a connection to this address.
fn socket_to(own: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(family, SockType::Stream, flags, None)?;
    if let Some(source) = source(own, to) {
        // Without it each connection takes a port that no other connection from this address can have, whatever it leads to.
        setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(source))?;
    }
    Ok(socket)
}

/// Begins to connect to another node, and does not wait. `own` is the address at which this node listens for other nodes.
pub(crate) fn begin_to_connect(own: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket_to(own, to)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Connects to another node. There is no limit of time: the caller sets one. `own` is the address at which this node listens for other
/// nodes.
pub(crate) async fn connect_to(own: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    TcpSocket::from_std_stream(socket_to(own, to)?.into()).connect(to).await
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().expect("it is one")
    }

    #[test]
    fn a_connection_to_a_node_comes_from_the_address_of_the_other() {
        let listener = TcpListener::bind("127.0.0.2:0").expect("there is a port");
        let to = listener.local_addr().expect("it is bound");
        let begun = begin_to_connect(at("127.0.0.3:7401"), to).expect("the address is of this machine");
        assert_eq!(listener.accept().expect("it came").1.ip(), at("127.0.0.3:1").ip());
        drop(begun);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("it can be");
        let stream = runtime.block_on(connect_to(at("127.0.0.4:7401"), to)).expect("it is reached");
        assert_eq!(stream.local_addr().expect("it is bound").ip(), at("127.0.0.4:1").ip());
    }

    #[test]
    fn the_kernel_chooses_for_a_node_that_listens_everywhere_or_at_another_family() {
        let to = at("192.0.2.1:7401");
        assert_eq!(source(at("0.0.0.0:7401"), to), None);
        assert_eq!(source(at("[::1]:7401"), to), None);
        assert_eq!(source(at("[::]:7401"), at("[2001:db8::1]:7401")), None);
        assert_eq!(source(at("192.0.2.2:7401"), to), Some(at("192.0.2.2:0")));
        let six = TcpListener::bind("[::1]:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
        // Not every machine has IPv6.
        if let Ok((to, listener)) = six {
            let begun = begin_to_connect(at("[::1]:7401"), to).expect("the option is for both families");
            assert_eq!(listener.accept().expect("it came").1.ip(), to.ip());
            drop(begun);
        }
    }
}
