//! Which volumes the commands that run at this node make, or make larger.
//!
//! A command ends with its caller: if the client of the API disconnects, the command's future is dropped, and so is its [`Running`]. Jobs of the
//! command that still wait for the configuration store find that out ([`Claim`]), and [`unfinished`](super::unfinished) takes back what was made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The volumes of all commands. Clones are the same list.
#[derive(Debug, Clone, Default)]
pub(super) struct UnderWay(Arc<Mutex<BTreeMap<u64, Weak<()>>>>);

/// A command runs until this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    of: UnderWay,
    token: Arc<()>,
}

/// What a command's jobs name the volumes with.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    of: UnderWay,
    token: Weak<()>,
}

impl UnderWay {
    /// A command begins.
    pub(super) fn begin(&self) -> Running {
        Running { of: self.clone(), token: Arc::new(()) }
    }

    /// Whether a command that makes this volume, or makes it larger, runs at this node. If the command has named the volume before it
    /// committed anything, and its commit is seen, the answer `false` is final.
    pub(super) fn has(&self, volume: u64) -> bool {
        self.list().get(&volume).is_some_and(|token| token.strong_count() > 0)
    }

    /// Whether any command runs at this node that has named a volume.
    pub(super) fn any(&self) -> bool {
        self.list().values().any(|token| token.strong_count() > 0)
    }

    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// The volumes that the command has named.
    pub(super) fn named(&self) -> BTreeSet<u64> {
        let list = self.of.list();
        let mine = list.iter().filter(|(_, token)| std::ptr::eq(token.as_ptr(), Arc::as_ptr(&self.token)));
        mine.map(|(id, _)| *id).collect()
    }

    /// For the command's jobs.
    pub(super) fn claim(&self) -> Claim {
        Claim { of: self.of.clone(), token: Arc::downgrade(&self.token) }
    }
}

impl Claim {
    /// Whether the command still runs.
    pub(super) fn runs(&self) -> bool {
        self.token.strong_count() > 0
    }

    /// Whether a command that makes this volume, or makes it larger, runs at this node.
    pub(super) fn is_claimed(&self, volume: u64) -> bool {
        self.of.has(volume)
    }

    /// Names a volume that the command is about to make or to change. False if another running command has it.
    pub(super) fn add(&self, volume: u64) -> bool {
        let mut list = self.of.list();
        list.retain(|_, token| token.strong_count() > 0);
        let other = list.get(&volume).is_some_and(|token| !token.ptr_eq(&self.token));
        if !other {
            list.insert(volume, self.token.clone());
        }
        !other
    }

    /// Names a new volume that the command is about to make. Another command that has the same id has lost its commit, since ids are never used
    /// again: so the last command has it.
    pub(super) fn add_new(&self, volume: u64) {
        let mut list = self.of.list();
        list.retain(|_, token| token.strong_count() > 0);
        list.insert(volume, self.token.clone());
    }

    /// The command will not make this volume: its commit was lost. Another command that has named the volume keeps it.
    pub(super) fn give_up(&self, volume: u64) {
        let mut list = self.of.list();
        if list.get(&volume).is_some_and(|token| token.ptr_eq(&self.token)) {
            list.remove(&volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_under_way_until_its_command_ends() {
        let all = UnderWay::default();
        let (one, other) = (all.begin(), all.begin());
        let claim = one.claim();
        assert!(claim.add(1) && claim.add(1) && other.claim().add(2));
        assert!(!other.claim().add(1), "one command at a time");
        assert!(all.has(1) && all.has(2));
        assert_eq!(one.named(), BTreeSet::from([1]));
        drop(one);
        assert!(!claim.runs() && !all.has(1) && all.has(2));
        claim.add(3);
        assert!(!all.has(3), "its command has ended");
        assert!(other.claim().add(1));
    }
}
