//! Whether this node uses the configuration store, and if not, why.

use crate::config::ConfigError;
use crate::config::continuing::StoreHealth;

/// Which kind of fault keeps a node from using its configuration store: what ends it differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreFaultKind {
    /// The store does not answer. Once it does, the node goes on by itself.
    Silent,
    /// An older copy was put back. The node changes nothing until it is restarted.
    WentBack,
    /// The store answers, or something in its place does, and the node cannot use it: the text says why, and what to do.
    Unusable,
}

/// Why a node does not use its configuration store.
#[derive(Debug, Clone)]
pub(crate) struct StoreFault {
    /// Which kind of fault it is.
    pub(crate) kind: StoreFaultKind,
    /// What is wrong, where, and what to do.
    pub(crate) text: String,
}

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
    pub(crate) fn fault(&self) -> Option<StoreFault> {
        self.health.went_back().as_ref().or(self.fault.as_ref()).map(|why| self.shown(why))
    }

    /// An error of a reading, with what it means for clients.
    pub(crate) fn shown(&self, why: &ConfigError) -> StoreFault {
        let kind = match why {
            ConfigError::WentBack { .. } => StoreFaultKind::WentBack,
            why if why.is_silence() => StoreFaultKind::Silent,
            _ => StoreFaultKind::Unusable,
        };
        if !why.stops_all() {
            return StoreFault { kind, text: why.to_string() };
        }
        let since = match kind {
            StoreFaultKind::Silent => format!(" (for {} s)", self.health.silence().as_secs()),
            StoreFaultKind::WentBack | StoreFaultKind::Unusable => String::new(),
        };
        let text = format!(
            "{why}. Nothing in the configuration can be changed{since}. A volume that is served stays usable as long as all its copies in sync \
             answer. The states of volumes are the last that were known"
        );
        StoreFault { kind, text }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fault_means_for_clients_is_said_where_it_is_so() {
        let state = StoreState::default();
        let replaced = ConfigError::Replaced { path: "/x".into(), what: "was deleted" };
        for (why, kind, means, since) in [
            (ConfigError::Unavailable("x".into()), StoreFaultKind::Silent, true, true),
            (ConfigError::Refused("x".into()), StoreFaultKind::Unusable, true, false),
            (replaced, StoreFaultKind::Unusable, true, false),
            (ConfigError::WentBack { was: 2, is: 1 }, StoreFaultKind::WentBack, false, false),
            (
                ConfigError::Broken { key: "a".into(), why: "x".into() },
                StoreFaultKind::Unusable,
                false,
                false,
            ),
        ] {
            let fault = state.shown(&why);
            let has = |words: &str| fault.text.contains(words);
            assert!(fault.text.starts_with(&why.to_string()), "{fault:?}");
            assert_eq!(fault.kind, kind, "{fault:?}");
            assert_eq!(has("Nothing in the configuration can be changed"), means, "{fault:?}");
            assert_eq!(has("(for 0 s)"), since, "{fault:?}");
        }
    }
}
