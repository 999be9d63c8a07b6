//! What a node is told of itself: `node.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use loadline_san_export::front_ends::{Endpoint, Protocol};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::url::StoreUrl;

/// How long a client's request waits while its volume is not served, if `node.toml` does not say. Seconds.
const CLIENT_WAIT_S: u64 = 60;

/// The settings of a node, as `node.toml` in its folder has them. A field that is unknown is an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// Its name in the cluster.
    pub name: String,
    /// Where the configuration of the cluster is.
    pub cluster: StoreUrl,
    /// A folder of its own, for its socket.
    pub folder: PathBuf,
    /// How long a thread of the data path polls before it sleeps, in microseconds. The default is 50, or 0 if there is not a
    /// core for each of these threads and one more. While a device is at work a thread polls four times as long, and yields the
    /// core to other threads first.
    #[serde(default)]
    pub spin_us: Option<u64>,
    /// How long a client's request waits, in seconds, while its volume is not served; then the client is disconnected. 60 if
    /// nothing is said.
    #[serde(default)]
    pub client_wait_s: Option<u64>,
    /// Names of its host by which clients of the API may call it, beside its addresses, `localhost` and the machine's own name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_names: Vec<String>,
    /// It has faults on purpose, if its API is asked for them: never where data matters.
    #[serde(default)]
    pub test_faults: bool,
}

/// Why there are none.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file.
    #[error("{path} cannot be read: {error}; 'loadline san join' writes one")]
    Unreadable {
        /// The path of `node.toml`.
        path: PathBuf,
        /// What the system reported.
        error: std::io::Error,
    },
    /// The file is not valid.
    #[error("{path} is no node.toml: {error}")]
    Wrong {
        /// The path of `node.toml`.
        path: PathBuf,
        /// What is not valid, and where.
        error: String,
    },
}

/// Writes the new URL of the configuration store into the `node.toml` of a folder. If that fails, the old URL stays there: the node finds the
/// new one through the old store, as long as that exists.
pub(crate) fn store_moved(folder: &Path, was: &StoreUrl, is: &StoreUrl) {
    let path = folder.join("node.toml");
    let written = std::fs::read_to_string(&path).and_then(|text| {
        let url = |url: &StoreUrl| toml::Value::from(url.to_string()).to_string();
        let line = |line: &str| match line.strip_prefix("cluster = ") {
            Some(old) if old.trim() == url(was) => format!("cluster = {}", url(is)),
            _ => line.to_owned(),
        };
        let text: String = text.lines().map(|text| line(text) + "\n").collect();
        let new = folder.join("node.toml.new");
        std::fs::write(&new, text)?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &path)
    });
    if let Err(error) = written {
        tracing::warn!(
            "{}: the new place of the configuration ({is}) cannot be written: {error}",
            path.display()
        );
    }
}

impl NodeSettings {
    /// Reads them.
    pub fn read(path: &Path) -> Result<NodeSettings, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable { path: path.to_owned(), error })?;
        let wrong = |error: String| SettingsError::Wrong { path: path.to_owned(), error };
        toml::from_str(&text).map_err(|error| wrong(error.to_string()))
    }

    /// The unix socket at which clients of a protocol connect on this machine: that of the node, or of the volume of this name.
    pub fn socket(&self, protocol: Protocol, volume: &str) -> PathBuf {
        match protocol.endpoint() {
            Endpoint::Node { socket, .. } => self.folder.join(socket),
            Endpoint::Volume { folder } => self.folder.join(folder).join(format!("{volume}.sock")),
        }
    }

    /// How long a client's request waits while its volume is not served.
    pub fn client_wait(&self) -> Duration {
        Duration::from_secs(self.client_wait_s.unwrap_or(CLIENT_WAIT_S))
    }
}
