//! How the configuration store is: for people.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::etcd;
use super::url::StoreUrl;

/// A member of a configuration store that has members.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreMember {
    /// Where it is.
    pub address: String,
    /// Why nothing is known of it, if nothing is.
    pub fault: Option<String>,
    /// It leads the others.
    pub leads: bool,
    /// Its version.
    pub version: String,
    /// Bytes of its database.
    pub database_bytes: Option<u64>,
    /// Bytes that its database may have, where it says so. At that size it refuses all changes.
    pub quota_bytes: Option<u64>,
    /// Its alarms: `NOSPACE` (its database is full, and nothing can be changed), `CORRUPT`.
    pub alarms: Vec<String>,
    /// How long 99 of 100 writes to its log took since it started, at most, in milliseconds; where its metrics can be read.
    pub fsync_p99_ms: Option<u64>,
}

/// How the members of a store are; none, if it has none.
pub(crate) async fn members(url: &StoreUrl) -> Vec<StoreMember> {
    match url {
        StoreUrl::Etcd(address) => etcd::health::members(address).await,
        _ => Vec::new(),
    }
}
