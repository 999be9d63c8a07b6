//! Whether the configuration store answers this node, since when it does not, and whether it is still the one that it was.

use std::time::{Duration, Instant};

use crate::config::ConfigError;

/// What a node knows of its configuration store.
#[derive(Debug, Default)]
pub(crate) struct StoreState {
    /// Why the store does not answer, if the last try failed.
    fault: Option<String>,
    /// When the store answered last.
    answered: Option<Instant>,
    /// The configuration is older than it was: the revision that was seen, and the one that was there.
    went_back: Option<(u64, u64)>,
}

impl StoreState {
    /// The store is at this revision, where it was at that one before it was asked. Fails if it went back, and from then on:
    /// what it holds since may be of another history, whatever its revision is.
    pub(crate) fn goes_on(&mut self, was: u64, is: u64) -> Result<(), ConfigError> {
        if is < was && self.went_back.is_none() {
            self.went_back = Some((was, is));
            tracing::error!("{}", ConfigError::WentBack { was, is });
        }
        match self.went_back {
            Some((was, is)) => Err(ConfigError::WentBack { was, is }),
            None => Ok(()),
        }
    }

    /// Why this node does not use the configuration store, if it does not, and since when.
    pub(crate) fn fault(&self) -> Option<String> {
        let went_back = self.went_back.map(|(was, is)| ConfigError::WentBack { was, is }.to_string());
        went_back.or_else(|| self.fault.as_ref().map(|why| self.silent(why)))
    }

    /// The same, of a store that has not answered just now, with this reason if the node has found none before.
    pub(crate) fn fault_or(&self, why: Option<String>) -> String {
        let late = || ConfigError::Unavailable("it has not answered in time".into()).to_string();
        self.fault().unwrap_or_else(|| self.silent(&why.unwrap_or_else(late)))
    }

    fn silent(&self, why: &str) -> String {
        format!(
            "{why}. Nothing in the configuration can be changed (for {} s). A volume that is served stays usable as long as all its copies in \
             sync answer. The states of volumes are the last that were known",
            self.silence().as_secs()
        )
    }

    /// How long ago the configuration store answered.
    pub(crate) fn silence(&self) -> Duration {
        self.answered.map_or(Duration::ZERO, |when| when.elapsed())
    }

    /// Remembers the outcome of a reading. The store itself may have found that it went back.
    pub(crate) fn learn_outcome(&mut self, why: Option<&ConfigError>) {
        self.learn_fault(why.map(ToString::to_string));
        if let Some(ConfigError::WentBack { was, is }) = why {
            // It is remembered and logged.
            let _ = self.goes_on(*was, *is);
        }
    }

    /// Remembers whether the configuration store answers, and if not, why.
    pub(crate) fn learn_fault(&mut self, why: Option<String>) {
        // Before the first answer it is the beginning.
        if why.is_none() || self.answered.is_none() {
            self.answered = Some(Instant::now());
        }
        self.fault = why;
    }

    /// The configuration is older than it was.
    pub(crate) fn went_back(&self) -> bool {
        self.went_back.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_went_back_is_not_believed_whatever_comes_after() {
        let mut state = StoreState::default();
        for (was, is, believed) in [(0, 5, true), (5, 5, true), (5, 4, false), (5, 9, false), (9, 10, false)]
        {
            assert_eq!(state.goes_on(was, is).is_ok(), believed, "{was} {is}");
        }
    }

    #[test]
    fn what_the_store_has_found_is_known_to_all() {
        let mut state = StoreState::default();
        state.learn_outcome(Some(&ConfigError::Unavailable("it is away".into())));
        assert!(!state.went_back());
        state.learn_outcome(Some(&ConfigError::WentBack { was: 5, is: 4 }));
        state.learn_outcome(None);
        assert!(state.went_back() && state.goes_on(5, 9).is_err());
    }
}
