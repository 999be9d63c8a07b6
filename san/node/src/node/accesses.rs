//! Which certificates and tokens the configuration names at this moment. Whatever was let in by one that it does not name any more ends
//! at once: clients of volumes, those that this node forwards, and connections to the API.
//!
//! That an access has expired ends no connection of a client: a clock that is wrong must not take disks away.

use std::sync::Arc;

use super::Node;
use crate::config::catalog::Catalog;
use crate::event_loop::command::LoopCommand;
use crate::identity::accesses::Accesses;

impl Node {
    /// This is the configuration, as far as is known: see [`NodeState::learn`](super::NodeState::learn). What it revokes
    /// ends. If it is older than what is known, it changes nothing.
    pub(super) fn learn(&self, catalog: Catalog) {
        let mut state = self.state();
        state.learn(catalog);
        let accesses = Accesses::of(&state.catalog);
        // While the state is locked: a client that is handed to a loop later was checked against these.
        let changed = self.0.accesses.send_if_modified(|known| {
            let is_new = **known != accesses;
            if is_new {
                *known = Arc::new(accesses);
            }
            is_new
        });
        if changed {
            let accesses = self.0.accesses.borrow().clone();
            self.0.loops.iter().for_each(|orders| _ = orders.give(LoopCommand::Accesses(accesses.clone())));
        }
    }

    /// What the configuration names, as far as is known.
    pub(crate) fn accesses(&self) -> Arc<Accesses> {
        self.0.accesses.borrow().clone()
    }

    /// Waits until this does not hold of what the configuration names.
    pub(crate) async fn until_revoked(&self, holds: impl Fn(&Accesses) -> bool) {
        let mut accesses = self.0.accesses.subscribe();
        // The sender is here, as long as this is waited for.
        let _ = accesses.wait_for(|accesses| !holds(accesses)).await;
    }
}
