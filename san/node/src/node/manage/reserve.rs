//! What resyncs and scrubs get at the least in this cluster, whatever clients do.

use super::{ManageError, no_room};
use crate::config::ConfigError;
use crate::config::catalog::{Catalog, Cluster, Reserve, change};
use crate::event_loop::command::LoopCommand;
use crate::node::Node;

/// The largest share of resyncs: clients get the rest.
const MOST_PERCENT: u32 = 90;
/// The least that a node scrubs in a second: a TiB in twelve days.
const LEAST_SCRUB: u64 = 1 << 20;
/// Ticks of a store in a second.
const TICKS: u64 = 10;

impl Node {
    /// From now on resyncs and scrubs get this.
    pub async fn reserve(&self, reserve: Reserve) -> Result<(), ManageError> {
        if reserve.resync_percent > MOST_PERCENT {
            return Err(ManageError::Wrong(format!(
                "{} per cent for resyncs are too much: clients need a part too. Give at most {MOST_PERCENT}",
                reserve.resync_percent
            )));
        }
        if reserve.scrub_bytes_per_s.is_some_and(|bytes| bytes < LEAST_SCRUB) {
            return Err(ManageError::Wrong(format!(
                "a scrub finds corrupt blocks before a client reads them, so it cannot be slower than this: give at least {} a second",
                no_room::size(LEAST_SCRUB)
            )));
        }
        let set = self.config().call(move |store| {
            for _ in 0..16 {
                let Some((cluster, version)) = Catalog::read(store)?.cluster else { return Ok(()) };
                let next = Cluster { reserve, ..cluster };
                if store.commit(&[change("cluster", Some(version), &next)])? {
                    return Ok(());
                }
            }
            Err(ConfigError::Contended)
        });
        set.await?;
        self.reconcile_soon();
        Ok(())
    }

    /// The loops of this node reserve what the configuration says.
    pub(in crate::node) fn follow_reserve(&self, catalog: &Catalog) {
        let Some((cluster, _)) = &catalog.cluster else { return };
        if self.state().reserve.replace(cluster.reserve) == Some(cluster.reserve) {
            return;
        }
        let loops = self.0.loops.len().max(1) as u64;
        let in_tick = |bytes: u64| bytes.div_ceil(TICKS * loops);
        let Reserve { resync_percent, scrub_bytes_per_s } = cluster.reserve;
        for orders in &self.0.loops {
            orders.give(LoopCommand::Reserve(resync_percent, scrub_bytes_per_s.map(in_tick)));
        }
    }
}
