//! What a person decides when no copy of a volume can go on by itself: which copy holds, whatever it has missed.

use std::collections::BTreeMap;

use loadline_san_core::ids::{Epoch, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::record::{Departed, Group, Record};
use loadline_san_core::volume::Order;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ManageError;
use super::health::Judge;
use super::local::Usable;
use super::volumes::unknown_node;
use crate::node::Node;

/// What is left of a volume is to be all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recover {
    /// The node whose replicas are taken: of each group of which no replica in sync is used; of all groups, if the volume is
    /// blocked.
    pub from: String,
    /// What is lost by it is known.
    #[serde(default)]
    pub force: bool,
}

/// A replica that has not reported may have promised a higher epoch than those that have: the record goes so far above these.
/// More than a volume has swaps in years; and if that is not enough, the volume is blocked again.
const ABOVE_UNKNOWN: u64 = 1 << 20;

impl Node {
    /// Goes on with what is left of a volume, whatever it has missed.
    pub async fn recover_volume(&self, name: &str, recover: Recover) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let (catalog, reports, store_fault) = self.collect().await;
        if let Some(fault) = store_fault {
            return Err(ManageError::Wrong(format!("volume {name} cannot be recovered: {fault}")));
        }
        let record = self.record_of(id)?;
        let (from, node) =
            catalog.node(&recover.from).ok_or_else(|| unknown_node(&catalog, &recover.from))?;
        if from != self.id() {
            return Err(ManageError::Elsewhere { name: node.name.clone(), api: node.api });
        }
        let judge = Judge { catalog: &catalog, reports: &reports, store_fault: None };
        let blocked = judge.blocked(id, &record);
        let mut survivors = BTreeMap::new();
        for (index, group) in (0..).zip(&record.groups) {
            let used = |replica: &ReplicaId| judge.fault(replica.0).is_none_or(|fault| fault.unknown);
            if blocked.is_none() && group.in_sync.iter().any(used) {
                continue;
            }
            let survivor = survivor(&judge, &record, group, from, blocked.is_some()).ok_or_else(|| {
                ManageError::Wrong(format!(
                    "node {} has no replica of group {index} that may be taken for it: name another with --from",
                    recover.from
                ))
            })?;
            if let Some(fault) = judge.replica(survivor.0).filter(|copy| copy.state == Usable::NotOpened) {
                let why = fault.why.clone().unwrap_or_default();
                return Err(ManageError::Wrong(format!(
                    "the copy of group {index} at node {} is not used: {why}. Make it usable, or name another node",
                    judge.name(record.homes[&survivor].0)
                )));
            }
            survivors.insert(GroupIndex(index), survivor);
        }
        if survivors.is_empty() {
            return Err(ManageError::Wrong(format!(
                "of each group of volume {name} a copy in sync is used, and the volume is not blocked: nothing is to be recovered, \
                 wait or attach it"
            )));
        }
        let groups = format!("{} of {} groups", survivors.len(), record.groups.len());
        if !recover.force {
            let lost = match &blocked {
                None => format!("what was written to volume {name} since node {} left", recover.from),
                Some(why) => format!(
                    "volume {name}: {why} What was written to it and the copy at node {} has not",
                    recover.from
                ),
            };
            return Err(ManageError::Wrong(format!(
                "{lost} is lost by this, in {groups}, and the other copies are overwritten; if that is what you want, say --force"
            )));
        }
        let promises = judge.promises(&record);
        let known = promises.iter().filter_map(|(_, epoch)| *epoch).max().unwrap_or(0);
        let all_known = promises.iter().all(|(_, epoch)| epoch.is_some());
        let promised = Epoch(if all_known { known } else { known.saturating_add(ABOVE_UNKNOWN) });
        let list: Vec<u32> = survivors.keys().map(|group| group.0).collect();
        eprintln!("loadline: volume {name} is recovered by force from {}: groups {list:?}", recover.from);
        self.ordered(id, Order::Recover { record: Box::new(record), survivors, promised }).await
    }
}

/// The replica that is taken for a group: the one of that node. If a volume is blocked, each group needs one, also those of which
/// that node has none: of these it is the member that follows the highest epoch.
fn survivor(judge: &Judge, record: &Record, group: &Group, from: u32, blocked: bool) -> Option<ReplicaId> {
    let departed = group.departed.iter().filter(|(_, departed)| **departed != Departed::EMPTY);
    let mut all = group.in_sync.iter().chain(departed.map(|(replica, _)| replica));
    let here = all.find(|replica| record.homes[replica].0 == from).copied();
    let epoch = |replica: &&ReplicaId| judge.replica(replica.0).and_then(|copy| copy.epoch);
    here.or_else(|| group.in_sync.iter().filter(|_| blocked).max_by_key(epoch).copied())
}
