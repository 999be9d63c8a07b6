//! What a node is told of itself: `node.toml`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// Its name in the cluster.
    pub name: String,
    /// The configuration of the cluster: a SQLite file.
    pub cluster: PathBuf,
    /// A folder of its own, for its socket.
    pub folder: PathBuf,
    /// Threads of the data path.
    #[serde(default = "one")]
    pub loops: u32,
    /// How long a thread looks for what comes before it sleeps, microseconds. Only where cores are to spare.
    #[serde(default)]
    pub spin_us: u64,
}

fn one() -> u32 {
    1
}

/// Why there are none.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file.
    #[error("{path} cannot be read: {error}; 'loadline san join' writes one")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Its content.
    #[error("{path} is no node.toml: {error}")]
    Wrong {
        /// Which.
        path: PathBuf,
        /// Why.
        error: String,
    },
}

impl NodeSettings {
    /// Reads them.
    pub fn read(path: &Path) -> Result<NodeSettings, SettingsError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable { path: path.to_owned(), error })?;
        let wrong = |error: String| SettingsError::Wrong { path: path.to_owned(), error };
        let settings: NodeSettings = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if !(1..=256).contains(&settings.loops) {
            return Err(wrong(format!("loops = {}: 1 to 256 are possible", settings.loops)));
        }
        Ok(settings)
    }

    /// Where clients of this machine come.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("nbd.sock")
    }
}
