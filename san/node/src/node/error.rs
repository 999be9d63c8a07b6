//! Why a node does not serve.

use std::net::SocketAddr;

use loadline_san_export::front_ends::Protocol;
use thiserror::Error;

use crate::config::ConfigError;
use crate::event_loop::LoopError;
use crate::identity::{IdentityError, OpenToOthers};

/// Why a node does not serve.
#[derive(Debug, Error)]
pub enum NodeError {
    /// The configuration store cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cluster has no node of this name.
    #[error("the cluster has no node {0}: 'loadline san join' adds a node")]
    Unknown(String),
    /// The node was removed from the cluster.
    #[error("node {0} was removed from the cluster")]
    Removed(String),
    /// A limit of the process, such as of open files, is too low.
    #[error("{0}")]
    Limit(String),
    /// The data path failed.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// The files that prove the node's identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// It would be reached from other machines, in a cluster whose connections are not protected.
    #[error(transparent)]
    Open(#[from] OpenToOthers),
    /// Another process runs as this node.
    #[error(
        "another process has started as node {0}: this one ends. Each node has one folder, which is used by one process; a copy of it is no \
         second node"
    )]
    Replaced(String),
    /// An address or a path on which the node cannot listen.
    #[error("the node cannot listen on {what}: {error}{}", remedy(error))]
    Listen {
        /// What was to listen: a name and an address or a path.
        what: String,
        /// What the system reported.
        error: std::io::Error,
    },
    /// The port for clients of a protocol is taken. The node itself does not run already: it listens for other nodes first.
    #[error(
        "the node cannot listen on {address} ({}): another program uses port {}, probably {}. 'ss -ltnp' lists the programs that listen; a \
         target of the kernel is listed without a name. Stop that program, or have it listen elsewhere, and start the node again. Or \
         give the node another port: remove the node at another node ('loadline node remove NAME'), remove this node's folder, and join it again \
         with 'loadline san join --port {}={}'",
        protocol.name(), address.port(), protocol.other_servers(), protocol.name(), address.port().checked_add(1).unwrap_or(1024)
    )]
    PortTaken {
        /// The protocol.
        protocol: Protocol,
        /// Where the node was to listen.
        address: SocketAddr,
    },
    /// The system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// What helps if the system lets a node not listen at an address, as the end of a message.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrNotAvailable => {
            ". This host does not have that address: configure it on this host and start the node again. If the address was given wrongly to \
             'loadline san join', remove the node at another node ('loadline node remove NAME'), remove this node's folder, and join it again"
        }
        std::io::ErrorKind::AddrInUse => {
            ". The node runs already, or another program uses the port: 'ss -ltnp' lists the programs that listen"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node whose address was wrong or has changed is not repaired by starting it again: the message says how it is joined again.
    #[test]
    fn an_address_that_the_host_does_not_have_says_how_the_node_is_joined_again() {
        let error =
            std::net::UdpSocket::bind("192.0.2.1:0").expect_err("no host has an address for documentation");
        let said = NodeError::Listen { what: "192.0.2.1:7401 (other nodes)".into(), error }.to_string();
        for part in
            ["192.0.2.1:7401", "does not have that address", "loadline node remove NAME", "join it again"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
