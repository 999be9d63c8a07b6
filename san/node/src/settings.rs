//! The settings of a node: `node.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use loadline_san_export::front_ends::{Endpoint, Protocol};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::catalog::SocketPlace;
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
pub(crate) fn store_moved(folder: &Path, is: &StoreUrl) {
    let path = folder.join("node.toml");
    let written = std::fs::read_to_string(&path).and_then(|text| {
        let none = || std::io::Error::other("it has no line \"cluster = ...\"");
        let text = with_store(&text, is).ok_or_else(none)?;
        let new = folder.join("node.toml.new");
        std::fs::write(&new, text)?;
        std::fs::set_permissions(&new, std::fs::metadata(&path)?.permissions())?;
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

/// The text of a `node.toml` with this URL of the configuration store. `None` if no line has the key.
fn with_store(text: &str, store: &StoreUrl) -> Option<String> {
    let is_key = |line: &&str| line.split_once('=').is_some_and(|(key, _)| key.trim() == "cluster");
    let old = text.lines().find(is_key)?;
    Some(text.replacen(old, &format!("cluster = {}", toml::Value::from(store.to_string())), 1))
}

impl NodeSettings {
    /// Reads them.
    pub fn read(path: &Path) -> Result<NodeSettings, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable { path: path.to_owned(), error })?;
        let wrong = |error: String| SettingsError::Wrong { path: path.to_owned(), error };
        toml::from_str(&text).map_err(|error| wrong(error.to_string()))
    }

    /// The unix socket at which clients of a protocol connect on this machine: that of the node, or of the volume of this name, in this place.
    pub fn socket(&self, protocol: Protocol, volume: &str, place: SocketPlace) -> PathBuf {
        let in_place = |folder: &str| match place {
            SocketPlace::First => self.folder.join(folder),
            SocketPlace::Second => self.folder.join(format!("{folder}-2")),
        };
        match protocol.endpoint() {
            Endpoint::Node { socket, .. } => self.folder.join(socket),
            Endpoint::Volume { folder } => in_place(folder).join(format!("{volume}.sock")),
        }
    }

    /// How long a client's request waits while its volume is not served.
    pub fn client_wait(&self) -> Duration {
        Duration::from_secs(self.client_wait_s.unwrap_or(CLIENT_WAIT_S))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_moved_is_written_however_the_line_was() {
        let store: StoreUrl = "etcd://a:2379/x".parse().unwrap();
        for line in ["cluster = \"/srv/a.db\"", "cluster='sqlite:/srv/a.db'", "  cluster   = \"a.db\" # old"]
        {
            let text = format!("name = \"n\"\n{line}\nfolder = \"/f\"\n");
            let settings: NodeSettings = toml::from_str(&with_store(&text, &store).unwrap()).unwrap();
            assert_eq!((settings.cluster, settings.name.as_str()), (store.clone(), "n"));
        }
        assert_eq!(with_store("name = \"n\"\n", &store), None);
    }
}
