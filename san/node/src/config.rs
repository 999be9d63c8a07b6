//! The configuration of a cluster: its nodes, devices and volumes, and each volume's record.
//!
//! All of it is in one store of keys and values that all nodes reach, and changes by compare-and-swap. A node takes what others have
//! decided from the store alone.
//!
//! | module | idea |
//! | --- | --- |
//! | [`catalog`] | what is kept under which key |
//! | [`continuing`] | whether the store answers, and continues what was read of it |
//! | [`etcd`] | the store in an etcd, for clusters whose nodes are hosts of their own |
//! | `following` | a store that moves to another place while nodes use it |
//! | `identity` | whether a file is still the one that was opened |
//! | [`service`] | the store on a thread of its own |
//! | [`sqlite`] | the store as a file, for clusters whose nodes share a machine |
//! | [`steps`] | changes that are too many for one commit |
//! | [`url`] | where a store is |
//! | [`watch`] | notices that something may have changed |
//! | `memory`, `conformance`, `example` | for tests: a store in memory, the suite that every store must pass, and a record |
//!
//! A kind of store is a file that implements [`ConfigStore`], a variant of [`StoreUrl`], and a line each in [`open`] and [`create`].

pub mod catalog;
#[cfg(test)]
pub(crate) mod conformance;
pub mod continuing;
pub mod etcd;
#[cfg(test)]
pub(crate) mod example;
mod following;
pub mod health;
mod identity;
#[cfg(test)]
pub(crate) mod memory;
pub mod service;
pub mod sqlite;
pub mod steps;
pub mod url;
pub mod watch;

use std::time::Duration;

use thiserror::Error;

use catalog::{Catalog, Transport};
use etcd::EtcdStore;
use following::{Following, OnMove};
use sqlite::SqliteStore;
use url::StoreUrl;
use watch::Watch;

/// Opens the store of a cluster that was made, or the one that it has moved to.
pub fn open(url: &StoreUrl) -> Result<Box<dyn ConfigStore>, ConfigError> {
    open_and_follow(url, Box::new(|_| {}))
}

/// The same. `on_move` is called with the new URL whenever the store has moved.
pub(crate) fn open_and_follow(url: &StoreUrl, on_move: OnMove) -> Result<Box<dyn ConfigStore>, ConfigError> {
    Ok(Box::new(Following::open(url, open_here, on_move)?))
}

/// Moves the configuration of a cluster to a new store, while nodes use it: they follow. A move that was cut short continues. Returns how
/// many keys the configuration has. Fails if connections of the cluster are open and the new store is on other machines.
pub fn move_store(from: &StoreUrl, to: &StoreUrl) -> Result<usize, ConfigError> {
    let mut old = open_here(from)?;
    if Catalog::read(&mut *old)?.cluster.is_some_and(|(cluster, _)| cluster.transport == Transport::Open) {
        check_on_this_machine(to)?;
    }
    following::move_store(&mut *old, to, create, open_here)
}

/// Fails if the store at a URL is not known to be on this machine, where that of a cluster with open connections must be.
pub(crate) fn check_on_this_machine(url: &StoreUrl) -> Result<(), ConfigError> {
    match url.beyond_this_machine() {
        Some(member) => Err(ConfigError::OpenStore(member.into())),
        None => Ok(()),
    }
}

/// Opens the store at a URL, also if it has moved.
fn open_here(url: &StoreUrl) -> Result<Box<dyn ConfigStore>, ConfigError> {
    Ok(match url {
        StoreUrl::Etcd(address) => Box::new(EtcdStore::open(address)?),
        StoreUrl::Sqlite(path) => Box::new(SqliteStore::open(path)?),
    })
}

/// Makes an empty store, for a new cluster. The error is [`ConfigError::Exists`] if something is there.
pub fn create(url: &StoreUrl) -> Result<Box<dyn ConfigStore>, ConfigError> {
    Ok(match url {
        StoreUrl::Etcd(address) => Box::new(EtcdStore::create(address)?),
        StoreUrl::Sqlite(path) => Box::new(SqliteStore::create(path)?),
    })
}

/// A value, and its version: no value of its key has it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What is kept.
    pub value: Vec<u8>,
    /// Raised whenever it changes.
    pub version: u64,
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The version that the key must have; `None` if the key must not exist.
    pub expected: Option<u64>,
    /// The new value; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

/// Why the configuration is not to be had.
#[derive(Debug, Clone, Error)]
pub enum ConfigError {
    /// There is none.
    #[error("there is no cluster at {0}: make one with 'loadline san init'")]
    Missing(String),
    /// Something is there already.
    #[error("there is a cluster at {0} already: choose another path or prefix")]
    Exists(String),
    /// It is something else.
    #[error("{0} is not the configuration store of a cluster")]
    NotOurs(String),
    /// A later version of this program made it.
    #[error("{path} has format {found}, and this program knows {ours}: upgrade the program")]
    Format {
        /// Where it is.
        path: String,
        /// The format that the configuration has.
        found: u32,
        /// What this program knows.
        ours: u32,
    },
    /// It did not answer in time, or failed. Whether a change was made is not known.
    #[error("the configuration store does not answer: {0}")]
    Unavailable(String),
    /// It answered, and refused what was asked of it: a person must mend that. Another try may have made the change before this answer.
    #[error("the configuration store refuses a request of this node: {0}")]
    Refused(String),
    /// More keys than one commit can change: nothing was sent to the store.
    #[error(
        "a change of {0} keys of the configuration at once is too large, at most {MOST_CHANGES} are possible: nothing was changed. This is a \
         fault of the program: report it"
    )]
    TooLarge(usize),
    /// What is kept cannot be read.
    #[error("the configuration store holds an invalid value under {key}: {why}")]
    Broken {
        /// Under which key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// It is older than it was: what was decided since is lost.
    #[error(
        "the configuration store went back from revision {was} to revision {is}: an older copy was put back. This node ignores \
         the older copy and refuses every command until the node is restarted. If the newer copy still exists, put it back \
         first"
    )]
    WentBack {
        /// What was seen.
        was: u64,
        /// What is there.
        is: u64,
    },
    /// Its file is not the one that was opened.
    #[error(
        "the file of the configuration store, {path}, {what} while this node had it open. Changes to the opened file would be \
         lost, so this node uses neither the opened file nor the present one. Put the opened file back (with its -wal and \
         -shm), or restart all nodes to continue with the file that is now at this path"
    )]
    Replaced {
        /// Where it was opened.
        path: String,
        /// Deleted, or replaced.
        what: &'static str,
    },
    /// A member belongs to another etcd than the one that was used so far.
    #[error(
        "the member {member} belongs to another etcd (id {is:016x}) than the one that this node has used so far (id {was:016x}): etcd was \
         restored from a backup, or was set up anew. This node does not use it. To continue with that etcd, restart all nodes"
    )]
    OtherEtcd {
        /// The member, as host and port.
        member: String,
        /// The id of the etcd that was used.
        was: u64,
        /// The id of the one that the member belongs to.
        is: u64,
    },
    /// The store answers, and the request did not get its turn. Whether a change was made is not known.
    #[error(
        "the configuration store answers slowly: a request of this node has waited {} s behind other requests. Try again; \
         'loadline san status' shows how long the members of an etcd take", .0.as_secs()
    )]
    Busy(Duration),
    /// The store is not known to be on this machine, and the connections of the cluster are not protected.
    #[error(
        "the etcd member {0} is not named by a loopback address (127.0.0.1, [::1]) or localhost, and the connections of this cluster are open, \
         so all of it must be on one machine, because its nodes do not prove their identity. Nothing was changed. If this etcd is on this \
         machine, name it by a loopback address. For nodes on several hosts make a new cluster with --transport encrypted"
    )]
    OpenStore(String),
    /// Others have changed the same again and again.
    #[error("the configuration changes too often: try again")]
    Contended,
}

impl ConfigError {
    /// Whether the store has not answered. Otherwise the store has, or something in its place, and the answer cannot be used.
    pub fn is_silence(&self) -> bool {
        matches!(self, ConfigError::Unavailable(_))
    }

    /// Whether the configuration can be neither read nor changed until the store answers otherwise.
    pub(crate) fn stops_all(&self) -> bool {
        matches!(
            self,
            ConfigError::Unavailable(_)
                | ConfigError::Refused(_)
                | ConfigError::Replaced { .. }
                | ConfigError::OtherEtcd { .. }
        )
    }
}

/// Changes that one commit may have. Etcd refuses a transaction of more than 128 operations; one is for the key `moved`, and one for the
/// number of the commit.
pub const MOST_CHANGES: usize = 120;

/// A store of keys and values. Every call waits a few seconds at most.
pub trait ConfigStore: Send {
    /// What is kept under a key.
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError>;

    /// What is kept under all keys that begin so, in their order, and the [revision](Self::revision): all as it was at one
    /// moment.
    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError>;

    /// Makes all of these changes, [`MOST_CHANGES`] at most, if every key is as expected, durably; otherwise none. Whether it did.
    ///
    /// After an error they may have been made or not, also after [`ConfigError::Refused`]: what is read later shows it.
    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError>;

    /// A number that is higher after every commit that has changed something, and stays the same while everything does. It is comparable with
    /// numbers of the same connection only. The version of each value is this number at most.
    fn revision(&mut self) -> Result<u64, ConfigError>;

    /// A connection of its own by which another thread waits for changes. It is closed before the store.
    fn watch(&self) -> Result<Box<dyn Watch>, ConfigError>;
}
