//! What a person decides when no copy of a volume can go on by itself: which copy holds, whatever it has missed.

use std::collections::BTreeMap;

use loadline_base::figures::listed;
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
        if !recover.force {
            let why = blocked.map_or(String::new(), |why| format!("{why} "));
            return Err(ManageError::Wrong(format!(
                "volume {name}: {why}By this, {} of {} groups would go on with one copy each, and the other copies are overwritten. \
                 What was written to the volume and that copy does not have is lost: {}. If that is what you want, say --force",
                survivors.len(),
                record.groups.len(),
                what_is_taken(&judge, &record, &survivors)
            )));
        }
        let promises = judge.promises(&record);
        let known = promises.iter().filter_map(|(_, epoch)| *epoch).max().unwrap_or(0);
        let all_known = promises.iter().all(|(_, epoch)| epoch.is_some());
        let promised = Epoch(if all_known { known } else { known.saturating_add(ABOVE_UNKNOWN) });
        let taken = what_is_taken(&judge, &record, &survivors);
        eprintln!("loadline: volume {name} is recovered by force from {}: {taken}", recover.from);
        self.ordered(id, Order::Recover { record: Box::new(record), survivors, promised }).await
    }
}

/// The replica that is taken for a group: the one of that node. If a volume is blocked, each group needs one, also those of which
/// that node has none: of these it is the member that follows the highest epoch. If copies are of different histories (rule R11), the
/// record knows the members of one only; then it is one that follows the same owner as that node's copies of other groups, if
/// there is one.
fn survivor(judge: &Judge, record: &Record, group: &Group, from: u32, blocked: bool) -> Option<ReplicaId> {
    let whole = |group: &'_ Group| -> Vec<ReplicaId> {
        let departed = group.departed.iter().filter(|(_, departed)| **departed != Departed::EMPTY);
        group.in_sync.iter().chain(departed.map(|(replica, _)| replica)).copied().collect()
    };
    let is_here = |replica: &ReplicaId| record.homes[replica].0 == from;
    if let Some(here) = whole(group).into_iter().find(is_here) {
        return Some(here);
    }
    let follows = |replica: ReplicaId| judge.replica(replica.0).and_then(|copy| copy.owner);
    let epoch = |replica: ReplicaId| judge.replica(replica.0).and_then(|copy| copy.epoch);
    if judge.forked(record).is_some() {
        let here: Vec<_> = record.groups.iter().flat_map(whole).filter(is_here).map(follows).collect();
        return whole(group)
            .into_iter()
            .max_by_key(|replica| (here.contains(&follows(*replica)), epoch(*replica)));
    }
    group.in_sync.iter().copied().filter(|_| blocked).max_by_key(|replica| epoch(*replica))
}

/// Groups that a message lists.
const MOST_LISTED: usize = 4;

/// Which copy would be taken for each group, and what is known of what it has missed.
fn what_is_taken(judge: &Judge, record: &Record, survivors: &BTreeMap<GroupIndex, ReplicaId>) -> String {
    let taken: Vec<String> = survivors
        .iter()
        .map(|(index, replica)| {
            let group = &record.groups[index.0 as usize];
            let node = judge.name(record.homes[replica].0);
            let follows = judge.replica(replica.0).and_then(|copy| Some((copy.epoch?, copy.owner?.node)));
            let missed = match (group.departed.get(replica), judge.replica(replica.0), follows) {
                (Some(departed), ..) => format!(
                    "has nothing that was written since epoch {}, when it left the copies in sync; the volume is at epoch {}",
                    departed.epoch.0, record.epoch.0
                ),
                (None, Some(copy), _) if copy.state != Usable::Open => {
                    format!("was found damaged or failed: {}", copy.why.as_deref().unwrap_or("what it has lost is not known"))
                }
                (None, _, Some((epoch, owner))) => format!("follows {} at epoch {epoch}", judge.name(owner)),
                (None, ..) => "may have missed anything: its node does not report of it".into(),
            };
            format!("the copy of group {} at {node} {missed}", index.0)
        })
        .collect();
    listed(&taken, MOST_LISTED)
}
