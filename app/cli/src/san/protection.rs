//! How connections between nodes are protected, as an option of commands.

use loadline_san_node::config::catalog::Transport;

/// A kind of protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Protection {
    /// No protection. All nodes, and the etcd if there is one, must be on this machine.
    Open,
    /// Both nodes authenticate each other by certificates, and everything is encrypted (TLS 1.3).
    Encrypted,
    /// Both nodes authenticate each other by certificates, and changed data are refused, but nothing is encrypted: for a network that
    /// only the nodes use.
    Authenticated,
}

impl Protection {
    /// The same, as the configuration has it.
    pub(super) fn transport(self) -> Transport {
        match self {
            Protection::Open => Transport::Open,
            Protection::Encrypted => Transport::Encrypted,
            Protection::Authenticated => Transport::Authenticated,
        }
    }
}
