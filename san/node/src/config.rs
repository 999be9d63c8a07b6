//! The configuration of a cluster: who is in it, what it has, and each volume's record.
//!
//! All of it is in one store of keys and values that all nodes reach, and changes by compare-and-swap. The store is the only
//! thing that a node believes of what others have decided; everything else is found out by talking.
//!
//! | module | idea |
//! | --- | --- |
//! | [`catalog`] | what is kept under which key |
//! | `identity` | whether a file is still the one that was opened |
//! | [`service`] | the store on a thread of its own |
//! | [`sqlite`] | the store as a file, for clusters whose nodes share a machine |

pub mod catalog;
mod identity;
pub mod service;
pub mod sqlite;

use thiserror::Error;

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
    /// Which.
    pub key: String,
    /// The version that it must have; none: it must not be there.
    pub expected: Option<u64>,
    /// What it is to be; nothing: it is removed.
    pub value: Option<Vec<u8>>,
}

/// Why the configuration is not to be had.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// There is none.
    #[error("there is no cluster at {0}: make one with 'loadline san init'")]
    Missing(String),
    /// Something is there already.
    #[error("{0} exists already: a cluster is made only where nothing is")]
    Exists(String),
    /// It is something else.
    #[error("{0} is no configuration of a cluster")]
    NotOurs(String),
    /// A later version of this program made it.
    #[error("{path} has format {said}, and this program knows {ours}: upgrade the program")]
    Format {
        /// Where it is.
        path: String,
        /// Its format.
        said: u32,
        /// What this program knows.
        ours: u32,
    },
    /// It did not answer in time, or failed. Whether a change was made is not known.
    #[error("the configuration store does not answer: {0}")]
    Unavailable(String),
    /// What is kept cannot be read.
    #[error("the configuration store holds something under {key} that cannot be: {why}")]
    Broken {
        /// Under which key.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// It is older than it was: nobody knows any more what was decided since.
    #[error(
        "the configuration was at revision {was}, and is at {is}: it is an older copy. Nothing of it is carried out by this node \
         until it is started again; put the newer one in its place if there is one"
    )]
    WentBack {
        /// What was seen.
        was: u64,
        /// What is there.
        is: u64,
    },
    /// Its file is not the one that was opened.
    #[error(
        "the file of the configuration store, {path}, {what} while this node had it open. What is done in the file that was opened \
         would be lost, so this node uses neither: put the file back that was there (with its -wal and -shm), or start every node \
         again with the one that is there"
    )]
    Replaced {
        /// Where it was opened.
        path: String,
        /// Deleted, or replaced.
        what: &'static str,
    },
    /// Others have changed the same again and again.
    #[error("the configuration changes too often: try again")]
    Contended,
}

/// A store of keys and values. Every call waits a few seconds at most.
pub trait ConfigStore: Send {
    /// What is kept under a key.
    fn get(&mut self, key: &str) -> Result<Option<Stored>, ConfigError>;

    /// What is kept under all keys that begin so, in their order, and the [revision](Self::revision): all as it was at one
    /// moment.
    fn list(&mut self, prefix: &str) -> Result<(u64, Vec<(String, Stored)>), ConfigError>;

    /// Makes all of these changes if every key is as expected, durably; otherwise none. Whether it did.
    fn commit(&mut self, changes: &[Change]) -> Result<bool, ConfigError>;

    /// A number that is higher after every commit.
    fn revision(&mut self) -> Result<u64, ConfigError>;
}
