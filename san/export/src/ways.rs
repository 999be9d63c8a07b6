//! How clients reach a volume, in words that they can be given.

/// How clients of a protocol name a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ways {
    /// From anywhere: a URI.
    pub network: Option<String>,
    /// On the node's own machine: a URI, or the path of a socket.
    pub local: Option<String>,
}
