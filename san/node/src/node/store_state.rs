//! Whether this node uses the configuration store, and if not, why.

use crate::config::ConfigError;
use crate::config::continuing::StoreHealth;

/// What a node knows of its configuration store.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    /// What the thread of the store has found.
    health: StoreHealth,
    /// Why the configuration was not read, if the last try failed.
    fault: Option<ConfigError>,
}

impl StoreState {
    /// Of a store whose thread has this health.
    pub(crate) fn new(health: StoreHealth) -> StoreState {
        StoreState { health, fault: None }
    }

    /// Why this node does not use the configuration store, if it does not, and since when.
    pub(crate) fn fault(&self) -> Option<String> {
        self.health.went_back().as_ref().or(self.fault.as_ref()).map(|why| self.shown(why))
    }

    /// An error of a reading, with what it means for clients.
    pub(crate) fn shown(&self, why: &ConfigError) -> String {
        if !why.is_silence() {
            return why.to_string();
        }
        format!(
            "{why}. Nothing in the configuration can be changed (for {} s). A volume that is served stays usable as long as all its copies in \
             sync answer. The states of volumes are the last that were known",
            self.health.silence().as_secs()
        )
    }

    /// Remembers the outcome of a reading of the configuration.
    pub(crate) fn learn_outcome(&mut self, why: Option<&ConfigError>) {
        self.fault = why.cloned();
    }

    /// An older copy of the configuration was put back.
    pub(crate) fn went_back(&self) -> bool {
        self.health.went_back().is_some()
    }
}
