//! Clusters and their nodes, before any process of them runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::config::catalog::{Catalog, Cluster, Node, change};
use crate::config::url::StoreUrl;
use crate::config::{self, ConfigError};
use crate::settings::NodeSettings;

/// Length of leases, if nothing else is said: a node that is killed is excluded after that.
pub const LEASE_MS: u64 = 600;

/// Why a node does not join.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It cannot have this name.
    #[error("{0}")]
    Name(String),
    /// Another node has this name.
    #[error("the cluster has a node {0} already: choose another name, or start that one")]
    Taken(String),
    /// The same address for two purposes.
    #[error(
        "{0} is given twice: the API, other nodes, and clients of each protocol need an address of their own"
    )]
    Twice(SocketAddr),
    /// An address.
    #[error("node {node} has the address {address} already: each node needs addresses of its own")]
    Address {
        /// Which has it.
        node: String,
        /// The address that both nodes name.
        address: SocketAddr,
    },
    /// The folder of the node cannot be made or written.
    #[error("{path}: {error}")]
    Folder {
        /// The path of the folder, or of a file in it.
        path: PathBuf,
        /// What the system reported.
        error: std::io::Error,
    },
}

/// What all nodes of a cluster have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Common {
    /// Length of leases, milliseconds.
    pub lease_ms: u64,
    /// Threads of the data path of each node.
    pub loops: u32,
    /// How much may be promised of a device, per cent of what it has.
    pub overcommit: u32,
}

impl Default for Common {
    fn default() -> Common {
        Common { lease_ms: LEASE_MS, loops: 1, overcommit: 100 }
    }
}

/// Makes a cluster without nodes, in a new store. Returns the cluster's id.
pub fn init(url: &StoreUrl, common: Common) -> Result<String, ConfigError> {
    let mut store = config::create(url)?;
    let id = format!("{:016x}{:016x}", crate::node::random(), crate::node::random());
    let Common { lease_ms, loops, overcommit } = common;
    let cluster = Cluster { id: id.clone(), next_id: 1, lease_ms, loops, overcommit };
    store.commit(&[change("cluster", None, &cluster)])?;
    Ok(id)
}

/// The configuration of a cluster, as it is now.
pub fn read(url: &StoreUrl) -> Result<Catalog, ConfigError> {
    Catalog::read(&mut *config::open(url)?)
}

/// Adds a node, and writes its `node.toml` into its folder, which is made. Returns where that is.
pub fn join(settings: NodeSettings, node: Node) -> Result<PathBuf, JoinError> {
    crate::name::check(&node.name).map_err(JoinError::Name)?;
    let folder = settings.folder.clone();
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |error| JoinError::Folder { path, error }
    };
    let file = folder.join("node.toml");
    if file.exists() {
        return Err(fail(&file)(std::io::Error::other(
            "the folder exists already: choose a folder that does not exist",
        )));
    }
    let own = node.addresses();
    if let Some(address) = own.iter().enumerate().find(|(at, a)| own[..*at].contains(a)).map(|(_, a)| *a) {
        return Err(JoinError::Twice(address));
    }
    let mut store = config::open(&settings.cluster)?;
    let mut joined = false;
    for _ in 0..16 {
        let catalog = Catalog::read(&mut *store)?;
        if catalog.node(&node.name).is_some() {
            return Err(JoinError::Taken(node.name));
        }
        for (other, _) in catalog.nodes.values() {
            let theirs = other.addresses();
            if let Some(address) = own.iter().copied().find(|a| theirs.contains(a)) {
                return Err(JoinError::Address { node: other.name.clone(), address });
            }
        }
        let (ids, take) = catalog.take_ids(1);
        joined = store.commit(&[take, change(format!("node/{}", ids.start), None, &node)])?;
        if joined {
            break;
        }
    }
    if !joined {
        return Err(ConfigError::Contended.into());
    }
    std::fs::create_dir_all(&folder).map_err(fail(&folder))?;
    let text = toml::to_string(&settings).expect("settings can be written as TOML");
    std::fs::write(&file, text).map_err(fail(&file))?;
    Ok(file)
}
