//! Clusters and their nodes, before any process of them runs.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;

use crate::config::catalog::{Catalog, Cluster, Node, Reserve, Transport, certificate_s, change};
use crate::config::url::StoreUrl;
use crate::config::{self, Change, ConfigError, ConfigStore, steps};
use crate::identity::access::{self, Proof, Role};
use crate::identity::authority::Authority;
use crate::identity::files::Identity;
use crate::identity::token::{self, Token};
use crate::identity::{IdentityError, OpenToOthers, fingerprint};
use crate::node::security::subject;
use crate::settings::NodeSettings;

/// Default length of leases. A node that is silent for this long is excluded.
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
    /// Its identity, or its token.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The cluster requires a token.
    #[error(
        "connections between the nodes of this cluster are protected, so a node joins with a token: 'loadline san init' printed one for the \
         first node, and 'loadline san token' makes one on a node of the cluster"
    )]
    NoToken,
    /// The cluster has none.
    #[error(
        "connections between the nodes of this cluster are open, so it has neither tokens nor accesses: join without a token"
    )]
    NoTokens,
    /// It would be reached from other machines, in a cluster whose connections are not protected.
    #[error(transparent)]
    Open(#[from] OpenToOthers),
    /// This host does not have an address of the node.
    #[error(
        "the node cannot use the address {address} on this host: {why}. Run 'join' on the host on which the node is to run, with an address \
         of that host by which the other nodes reach it ('ip address' lists them). Nothing was changed, and a token is still valid"
    )]
    NotHere {
        /// The address.
        address: IpAddr,
        /// What the system reported, or what kind of address it is.
        why: String,
    },
    /// Its configuration store is not known to be on this machine, and its connections are not protected.
    #[error(
        "the etcd member {0} is not named by a loopback address (127.0.0.1, [::1]) or localhost, and with --transport open all of a cluster must \
         be on one machine, because its nodes do not prove their identity: leave --transport out (connections are then encrypted), or choose \
         --transport authenticated. If this etcd is on this machine, a loopback address in its URL is possible, too"
    )]
    OpenStore(String),
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
    /// How connections between nodes are protected.
    pub transport: Transport,
    /// How long the certificate of a node is valid.
    pub certificates: Duration,
}

impl Default for Common {
    fn default() -> Common {
        Common {
            lease_ms: LEASE_MS,
            loops: 1,
            overcommit: 100,
            transport: Transport::Open,
            certificates: Duration::from_secs(certificate_s()),
        }
    }
}

/// A cluster that was made.
#[derive(Debug)]
pub struct Made {
    /// Its id.
    pub id: String,
    /// The token by which its first node joins, if it needs one.
    pub token: Option<Token>,
}

/// Makes a cluster without nodes, in a new store. `token_life`: how long its first node has to join.
pub fn init(url: &StoreUrl, common: Common, token_life: Duration) -> Result<Made, JoinError> {
    if common.transport == Transport::Open
        && let Some(member) = url.beyond_this_machine()
    {
        return Err(JoinError::OpenStore(member.into()));
    }
    let id = format!("{:032x}", u128::from_ne_bytes(crate::identity::random_bytes()));
    let Common { lease_ms, loops, overcommit, transport, certificates } = common;
    let certificate_s = certificates.as_secs();
    let cluster = Cluster {
        id: id.clone(),
        next_id: 1,
        lease_ms,
        loops,
        overcommit,
        reserve: Reserve::default(),
        transport,
        certificate_s,
    };
    let mut changes = vec![change("cluster", None, &cluster)];
    let mut token = None;
    if transport != Transport::Open {
        let (made, invited) = Token::make(&id, &Authority::make(&id)?, token_life);
        changes.push(invited);
        token = Some(made);
    }
    let mut store = config::create(url)?;
    store.commit(&changes)?;
    Ok(Made { id, token })
}

/// The configuration of a cluster, as it is now.
pub fn read(url: &StoreUrl) -> Result<Catalog, ConfigError> {
    Catalog::read(&mut *config::open(url)?)
}

/// Adds a node, and writes its `node.toml` and its identity into its folder, which is made. Returns where the `node.toml` is.
///
/// A command that was cut off, or whose answer was lost, can be given again: the identity is in the folder before the node is in the
/// configuration.
pub fn join(settings: NodeSettings, node: Node, token: Option<&Token>) -> Result<PathBuf, JoinError> {
    crate::name::check(&node.name).map_err(JoinError::Name)?;
    let folder = settings.folder.clone();
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |error| JoinError::Folder { path, error }
    };
    let file = folder.join("node.toml");
    if file.exists() {
        return Err(fail(&file)(std::io::Error::other(
            "the folder holds a node already: choose another folder",
        )));
    }
    let own = node.addresses();
    if let Some(address) = own.iter().enumerate().find(|(at, a)| own[..*at].contains(a)).map(|(_, a)| *a) {
        return Err(JoinError::Twice(address));
    }
    check_of_one_host(&own)?;
    let place = Arc::new(Mutex::new(settings.cluster.clone()));
    let moved = Arc::clone(&place);
    let on_move = move |to: &StoreUrl| *moved.lock().unwrap_or_else(PoisonError::into_inner) = to.clone();
    let mut store = config::open_and_follow(&settings.cluster, Box::new(on_move))?;
    let mut joined = false;
    for _ in 0..16 {
        let catalog = Catalog::read(&mut *store)?;
        let (cluster, _) = catalog.cluster.clone().ok_or_else(|| ConfigError::Broken {
            key: "cluster".into(),
            why: "there is none: 'loadline san init' makes one".into(),
        })?;
        if let Some((_, known)) = catalog.node(&node.name) {
            // A command before this one may have added it, and not learned it.
            let before = Identity::read(&folder, &cluster.id).ok();
            let before = before.map(|identity| fingerprint(&identity.own.certificate));
            if before.is_some_and(|before| known.certificates == [before] && known.addresses() == own) {
                joined = true;
                break;
            }
            return Err(JoinError::Taken(node.name));
        }
        for (other, _) in catalog.nodes.values() {
            let theirs = other.addresses();
            if let Some(address) = own.iter().copied().find(|a| theirs.contains(a)) {
                return Err(JoinError::Address { node: other.name.clone(), address });
            }
        }
        let (ids, take) = catalog.take_ids(1);
        let mut changes = vec![take];
        let mut node = node.clone();
        if cluster.transport == Transport::Open && token.is_none() {
            OpenToOthers::check(&own)?;
            config::check_on_this_machine(&place.lock().unwrap_or_else(PoisonError::into_inner))?;
        }
        // Before the token is used: a node that cannot listen would have to be removed and invited again.
        check_host_has(&own)?;
        match (cluster.transport, token) {
            (Transport::Open, None) => {}
            (Transport::Open, Some(_)) => return Err(JoinError::NoTokens),
            (_, None) => return Err(JoinError::NoToken),
            (_, Some(token)) => {
                let (authority, used) = token.open(&mut *store, &cluster.id)??;
                let life = Duration::from_secs(cluster.certificate_s);
                let own = authority.issue(&subject(ids.start as u32, &node, &settings.api_names), life)?;
                node.certificates = vec![fingerprint(&own.certificate)];
                std::fs::create_dir_all(&folder).map_err(fail(&folder))?;
                Identity { authority, own }.write(&folder)?;
                changes.push(used);
            }
        }
        changes.push(change(format!("node/{}", ids.start), None, &node));
        joined = store.commit(&changes)?;
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

/// Fails if one of these addresses is of a kind that no single host has. The system may let a socket have it, and other nodes could not
/// connect to it.
fn check_of_one_host(addresses: &[SocketAddr]) -> Result<(), JoinError> {
    for address in addresses.iter().map(SocketAddr::ip) {
        let why = match address {
            address if address.is_unspecified() => "it stands for all addresses of a host",
            address if address.is_multicast() => "it is a multicast address, which many hosts share",
            IpAddr::V4(address) if address.is_broadcast() => BROADCAST,
            _ => continue,
        };
        return Err(JoinError::NotHere { address, why: why.into() });
    }
    Ok(())
}

/// Why a node does not have a broadcast address.
const BROADCAST: &str = "it is a broadcast address, which reaches all hosts of a network";

/// Fails if a process on this host cannot listen at one of these addresses, whatever the port.
fn check_host_has(addresses: &[SocketAddr]) -> Result<(), JoinError> {
    for address in addresses.iter().map(SocketAddr::ip) {
        let why = match UdpSocket::bind(SocketAddr::new(address, 0)) {
            // A socket that has not asked for permission to broadcast may have the address, and may not send to it.
            Ok(socket) => match socket.connect(SocketAddr::new(address, 9)) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => BROADCAST.into(),
                _ => continue,
            },
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => "this host does not have it".into(),
            Err(error) => error.to_string(),
        };
        return Err(JoinError::NotHere { address, why });
    }
    Ok(())
}

/// What a node's host has of its cluster: the store, the cluster, and the identity of the node.
fn of_host(settings: &NodeSettings) -> Result<(Box<dyn ConfigStore>, Catalog, Identity), JoinError> {
    let mut store = config::open(&settings.cluster)?;
    let catalog = Catalog::read(&mut *store)?;
    let (cluster, _) = catalog
        .cluster
        .clone()
        .ok_or_else(|| ConfigError::Broken { key: "cluster".into(), why: "there is none".into() })?;
    if cluster.transport == Transport::Open {
        return Err(JoinError::NoTokens);
    }
    let identity = Identity::read(&settings.folder, &cluster.id)?;
    let own = fingerprint(&identity.own.certificate);
    let is_known = catalog.node(&settings.name).is_some_and(|(_, node)| node.certificates.contains(&own));
    if !is_known {
        let why =
            format!("node {} was removed from the cluster, or its identity is an old copy", settings.name);
        return Err(IdentityError::Token(why).into());
    }
    Ok((store, catalog, identity))
}

/// Makes a token by which one node joins, on the host of a node of the cluster. Tokens that have expired are removed.
pub fn invite(settings: &NodeSettings, life: Duration) -> Result<Token, JoinError> {
    let (mut store, catalog, identity) = of_host(settings)?;
    let (cluster, _) = catalog.cluster.as_ref().expect("it was looked for");
    let expired = token::expired(&mut *store)?;
    if !expired.is_empty() {
        // Another command may remove them at the same time.
        let _ = steps::each(&mut *store, expired)?;
    }
    let (token, invited) = Token::make(&cluster.id, &identity.authority, life);
    if !store.commit(&[invited])? {
        return Err(ConfigError::Contended.into());
    }
    Ok(token)
}

/// Gives a person or a program access to the API, or to volumes by TLS, on the host of a node. Returns what proves it.
pub fn give_access(
    settings: &NodeSettings,
    name: &str,
    role: Role,
    life: Duration,
    by_token: bool,
) -> Result<Proof, JoinError> {
    crate::name::check(name).map_err(JoinError::Name)?;
    let (mut store, catalog, identity) = of_host(settings)?;
    if catalog.accesses.contains_key(name) {
        let why = format!(
            "there is an access {name} already: revoke it first ('loadline san access remove {name}'), or choose another name"
        );
        return Err(JoinError::Name(why));
    }
    let (access, proof) = match by_token {
        true => access::by_token(role, life),
        false => access::by_certificate(&identity.authority, name, role, life)?,
    };
    if !store.commit(&[change(format!("access/{name}"), None, &access)])? {
        return Err(ConfigError::Contended.into());
    }
    Ok(proof)
}

/// Takes an access to the API back. Whether there was one of this name.
pub fn revoke_access(settings: &NodeSettings, name: &str) -> Result<bool, JoinError> {
    let (mut store, catalog, _) = of_host(settings)?;
    let Some((_, version)) = catalog.accesses.get(name) else { return Ok(false) };
    let gone = Change { key: format!("access/{name}"), expected: Some(*version), value: None };
    if !store.commit(&[gone])? {
        return Err(ConfigError::Contended.into());
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_beyond_one_machine_are_refused_before_anything_is_made() {
        let url: StoreUrl = "etcd://127.0.0.1:1,10.0.0.2".parse().unwrap();
        let made = init(&url, Common::default(), Duration::from_secs(60));
        let why = made.expect_err("an etcd elsewhere").to_string();
        assert!(why.contains("the etcd member 10.0.0.2:2379 is not named by a loopback address"), "{why}");
        // Nor is the configuration moved there later.
        let folder = tempfile::tempdir().unwrap();
        let file = StoreUrl::Sqlite(folder.path().join("cluster.db"));
        init(&file, Common::default(), Duration::from_secs(60)).expect("a new file");
        let why = config::move_store(&file, &url).expect_err("an etcd elsewhere").to_string();
        assert!(why.contains("the etcd member 10.0.0.2:2379 is not named by a loopback address"), "{why}");
    }
    #[test]
    fn addresses_that_no_single_host_has_are_refused() {
        let address = |text: &str| [SocketAddr::new(text.parse().unwrap(), 7400)];
        let check =
            |text: &str| check_of_one_host(&address(text)).and_then(|()| check_host_has(&address(text)));
        check("127.0.0.1").expect("this host has it");
        for (text, named) in [
            ("0.0.0.0", "all addresses of a host"),
            ("::", "all addresses of a host"),
            ("224.0.0.1", "a multicast address"),
            ("ff02::1", "a multicast address"),
            ("255.255.255.255", "a broadcast address"),
            // The broadcast address of the network of 127.0.0.1.
            ("127.255.255.255", "a broadcast address"),
            ("192.0.2.1", "this host does not have it"),
        ] {
            let why = check(text).expect_err(text).to_string();
            assert!(
                why.contains(named) && why.contains(&format!("the address {text} on this host")),
                "{why}"
            );
        }
    }
}
