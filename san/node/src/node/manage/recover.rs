//! What a person decides when no copy of a volume can go on by itself: which copy holds, whatever it has missed.

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::figures::listed;
use loadline_san_core::ids::{Epoch, NodeId, Promise, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::record::{Departed, Group, Record};
use loadline_san_core::volume::VolumeCommand;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ManageError;
use super::health::{Judge, part};
use super::local::{OwnerView, Usable};
use super::volumes::unknown_node;
use crate::node::Node;

/// What is left of a volume is to be all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recover {
    /// The node whose replicas are taken: of each group of which no replica in sync is used; of all groups, if the volume is
    /// blocked. Or several with commas between them: of groups of which the first has none, those of the next are taken. If a
    /// volume is blocked by copies that are not in sync, and the first node has copies in sync, all copies in sync are kept.
    pub from: String,
    /// What is lost by it is known.
    #[serde(default)]
    pub force: bool,
}

/// A replica that has not reported may have promised a higher epoch than those that have: the record goes so far above these.
/// More than a volume has swaps in years; and if that is not enough, the volume is blocked again.
const ABOVE_UNKNOWN: u64 = 1 << 20;
/// Groups, or copies, that a message lists.
const MOST_LISTED: usize = 4;

/// What is kept.
enum KeptCopies {
    /// One replica of each of these groups.
    One(BTreeMap<GroupIndex, ReplicaId>),
    /// All members of all groups. They agree with the record; others do not, and are copied in full.
    Members,
}

impl Node {
    /// Goes on with what is left of a volume, whatever it has missed.
    pub async fn recover_volume(&self, name: &str, recover: Recover) -> Result<(), ManageError> {
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let (catalog, reports, store_fault) = self.collect().await;
        if let Some(fault) = store_fault {
            let why = format!("volume {name} cannot be recovered: {}", fault.text);
            return Err(ManageError::Wrong(why));
        }
        let record = self.record_of(id)?;
        let judge = Judge { catalog: &catalog, reports: &reports, store_fault: None };
        let mut from = Vec::new();
        for node in recover.from.split(',') {
            let (node, of) = catalog.node(node).ok_or_else(|| unknown_node(&catalog, node))?;
            if from.is_empty() && node != self.id() {
                return Err(match reports.get(&node) {
                    Some(Ok(_)) => ManageError::Elsewhere { name: of.name.clone(), api: of.api },
                    _ => ManageError::Wrong(dead(&judge, &record, name, node)),
                });
            }
            from.push(node);
        }
        let choice = Choice { judge: &judge, record: &record, from: &from };
        let blocked = judge.blocked(id, &record);
        let kept = if blocked.is_some() && choice.keeps_members() {
            KeptCopies::Members
        } else {
            KeptCopies::One(choice.survivors(blocked.is_some()).map_err(ManageError::Wrong)?)
        };
        if matches!(&kept, KeptCopies::One(survivors) if survivors.is_empty()) {
            return Err(ManageError::Wrong(format!(
                "volume {name} needs no recovery: all of it has a copy in sync that is in use, and the volume is not blocked. Wait, or attach the volume"
            )));
        }
        let what = choice.describe(&kept);
        if !recover.force {
            let why = blocked.map_or(String::new(), |why| format!("{why} "));
            return Err(ManageError::Wrong(format!(
                "volume {name}: {why}With --force, {what}. Writes that these copies lack are then lost, and all other copies \
                 are overwritten. Nothing is changed yet: add --force to accept the loss"
            )));
        }
        let promises = judge.promises(&record);
        // What running nodes know counts too: the record goes above that.
        let views = reports.values().flatten().filter_map(|view| view.volume(id)).map(|volume| volume.epoch);
        let known = promises.iter().filter_map(|(_, epoch)| *epoch).chain(views).max().unwrap_or(0);
        let all_known = promises.iter().all(|(_, epoch)| epoch.is_some());
        let promised = Epoch(if all_known { known } else { known.saturating_add(ABOVE_UNKNOWN) });
        tracing::warn!(volume = name, "volume {name} is recovered by force: {what}");
        let survivors = match kept {
            KeptCopies::One(survivors) => survivors,
            KeptCopies::Members => BTreeMap::new(),
        };
        self.carry_out_command(id, VolumeCommand::Recover { record: Box::new(record), survivors, promised })
            .await
    }
}

/// What to do if a volume is to continue with the copies of a node that does not answer: the node itself makes its copies the volume.
fn dead(judge: &Judge<'_>, record: &Record, volume: &str, node: u32) -> String {
    let node = judge.name(node);
    let answers = |home: &NodeId| matches!(judge.reports.get(&home.0), Some(Ok(_)));
    let others: BTreeSet<String> =
        record.homes.values().filter(|home| answers(home)).map(|home| judge.name(home.0)).collect();
    let others: Vec<String> = others.into_iter().collect();
    let or = match others.is_empty() {
        true => "No other node that has copies of the volume answers".to_owned(),
        false => format!(
            "Otherwise name another node with --from. These nodes answer and have copies of the volume: {}",
            listed(&others, MOST_LISTED)
        ),
    };
    format!(
        "node {node} does not answer, so volume {volume} cannot continue with its copies, and nothing has changed. Start {node} if that is \
         possible. {or}"
    )
}

/// What is chosen from.
struct Choice<'a> {
    judge: &'a Judge<'a>,
    record: &'a Record,
    /// The nodes that a person has named.
    from: &'a [u32],
}

impl Choice<'_> {
    fn follows(&self, replica: ReplicaId) -> Option<(u64, OwnerView)> {
        self.judge.replica(replica.0).and_then(|copy| Some((copy.epoch?, copy.owner?)))
    }

    /// Whether a replica is used, and has promised nothing that the record does not know.
    fn agrees(&self, replica: ReplicaId) -> bool {
        let agrees = |(epoch, owner): (u64, OwnerView)| {
            let promise = Promise { epoch: Epoch(epoch), owner: owner.into() };
            epoch <= self.record.epoch.0 && self.record.contradicts(replica, &promise).is_none()
        };
        self.judge.fault(replica.0).is_none() && self.follows(replica).is_some_and(agrees)
    }

    /// Whether all members are kept: each reports and agrees with the record, and the node that was named first has one. Then the
    /// replica that blocks the volume is no member. A replica of which nothing is known may be of another history, and would not be
    /// compared any more.
    fn keeps_members(&self) -> bool {
        let of_group = |group: &Group| group.in_sync.iter().all(|member| self.agrees(*member));
        let here = |(_, node): (ReplicaId, NodeId)| self.from.first() == Some(&node.0);
        self.record.members().any(here) && self.record.groups.iter().all(of_group)
    }

    /// The replica that is kept of each group that needs one; why there is none, if so.
    fn survivors(&self, blocked: bool) -> Result<BTreeMap<GroupIndex, ReplicaId>, String> {
        let mut survivors = BTreeMap::new();
        for (index, group) in (0..).zip(&self.record.groups) {
            let used = |replica: &ReplicaId| self.judge.fault(replica.0).is_none_or(|fault| fault.unknown);
            if !blocked && group.in_sync.iter().any(used) {
                continue;
            }
            let survivor = self.survivor(index, group, blocked)?;
            if let Some(copy) = self.judge.replica(survivor.0).filter(|copy| copy.state == Usable::NotOpened)
            {
                let why = copy.why.clone().unwrap_or_default();
                return Err(format!(
                    "the copy of {} at node {} is not usable: {why}. Make the copy usable, or name another node",
                    self.part(GroupIndex(index)),
                    self.name_home(survivor)
                ));
            }
            survivors.insert(GroupIndex(index), survivor);
        }
        Ok(survivors)
    }

    /// The replica that is taken for a group: one of the nodes that were named. If a volume is blocked, each group needs one, also those
    /// of which these nodes have none: of these it is the member that follows the highest epoch. If copies are of different
    /// histories (rule R11), the record knows the members of one only; then it is the one that follows the same owner as those nodes'
    /// copies of other groups, if only one does.
    fn survivor(&self, index: u32, group: &Group, blocked: bool) -> Result<ReplicaId, String> {
        let at = |node: &u32| whole(group).find(|replica| self.record.homes[replica].0 == *node);
        if let Some(here) = self.from.iter().find_map(at) {
            return Ok(here);
        }
        let named: Vec<String> = self.from.iter().map(|node| self.judge.name(*node)).collect();
        let named = named.join(", ");
        if self.judge.forked(self.record).is_some() {
            let is_named = |replica: &ReplicaId| self.from.contains(&self.record.homes[replica].0);
            let theirs = self.record.groups.iter().flat_map(whole).filter(is_named);
            let owners: Vec<OwnerView> =
                theirs.filter_map(|replica| self.follows(replica)).map(|(_, owner)| owner).collect();
            let same = |replica: &ReplicaId| {
                self.follows(*replica).is_some_and(|(_, owner)| owners.contains(&owner))
            };
            let all_known = whole(group).all(|replica| self.follows(replica).is_some());
            let same: Vec<ReplicaId> = whole(group).filter(same).collect();
            if let ([one], true) = (&same[..], all_known) {
                return Ok(*one);
            }
            let homes: Vec<String> = whole(group).map(|replica| self.name_home(replica)).collect();
            return Err(format!(
                "{named} has no copy of {}, and no other copy is known to be complete: also name the node of one of the other copies \
                 (--from {},NODE), of {}",
                self.part(GroupIndex(index)),
                named.replace(", ", ","),
                listed(&homes, MOST_LISTED)
            ));
        }
        let epoch = |replica: &ReplicaId| self.judge.replica(replica.0).and_then(|copy| copy.epoch);
        let members = group.in_sync.iter().copied().filter(|_| blocked);
        members.max_by_key(epoch).ok_or_else(|| {
            format!(
                "{named} has no copy of {} that the volume can continue with: name another node with --from",
                self.part(GroupIndex(index))
            )
        })
    }

    fn name_home(&self, replica: ReplicaId) -> String {
        self.judge.name(self.record.homes[&replica].0)
    }

    /// What is kept, in words, what is known of what it has missed, and which copies are not known.
    fn describe(&self, kept: &KeptCopies) -> String {
        let what = match kept {
            KeptCopies::Members => {
                let homes: BTreeSet<String> =
                    self.record.members().map(|(replica, _)| self.name_home(replica)).collect();
                let homes: Vec<String> = homes.into_iter().collect();
                format!(
                    "the volume would continue with the copies that the record names as in sync, at {}",
                    listed(&homes, MOST_LISTED)
                )
            }
            KeptCopies::One(survivors) => {
                let taken: Vec<String> =
                    survivors.iter().map(|(index, replica)| self.describe_one(*index, *replica)).collect();
                let (count, all) = (survivors.len(), self.record.groups.len());
                let taken = listed(&taken, MOST_LISTED);
                match all {
                    0 | 1 => format!("the volume would continue with one copy: {taken}"),
                    _ => format!(
                        "{count} of {all} parts of the volume would continue with one copy each: {taken}"
                    ),
                }
            }
        };
        let unknown = self.record.homes.keys().filter(|replica| self.follows(**replica).is_none());
        let unknown: BTreeSet<String> = unknown.map(|replica| self.name_home(*replica)).collect();
        let unknown: Vec<String> = unknown.into_iter().collect();
        match unknown.is_empty() {
            true => what,
            false => {
                format!("{what} (the state of the copies at {} is not known)", listed(&unknown, MOST_LISTED))
            }
        }
    }

    fn describe_one(&self, index: GroupIndex, replica: ReplicaId) -> String {
        let group = &self.record.groups[index.0 as usize];
        let copy = self.judge.replica(replica.0);
        let follows = self
            .follows(replica)
            .map(|(epoch, owner)| format!("follows {} at epoch {epoch}", self.judge.name(owner.node)));
        let missed = match (group.departed.get(&replica), copy, follows) {
            // What the record has of a copy of another history does not count.
            (_, _, Some(follows)) if !self.agrees(replica) => follows,
            (Some(departed), ..) => format!(
                "lacks all writes since epoch {}, when the copy was removed from the in-sync set; the volume is at epoch {}",
                departed.epoch.0, self.record.epoch.0
            ),
            (None, Some(copy), _) if copy.state != Usable::Open => format!(
                "was found damaged or failed: {}",
                copy.why.as_deref().unwrap_or("the extent of its loss is not known")
            ),
            (None, _, Some(follows)) => follows,
            (None, ..) => "may lack any write: the copy's node does not report its state".into(),
        };
        format!("the copy of {} at {} {missed}", self.part(index), self.name_home(replica))
    }

    fn part(&self, group: GroupIndex) -> String {
        part(self.record, group.0 as usize)
    }
}

/// The replicas of a group that once had everything, by the record.
fn whole(group: &Group) -> impl Iterator<Item = ReplicaId> + '_ {
    let departed = group.departed.iter().filter(|(_, departed)| **departed != Departed::EMPTY);
    group.in_sync.iter().chain(departed.map(|(replica, _)| replica)).copied()
}

#[cfg(test)]
mod tests {
    use loadline_san_core::ids::Position;

    use super::super::health::tests::{Cluster, cluster};
    use super::super::local::Silent;
    use super::*;

    const FOLLOWS: OwnerView = OwnerView { node: 1, incarnation: 5 };
    const OTHER: OwnerView = OwnerView { node: 3, incarnation: 99 };

    fn chosen(
        cluster: &Cluster,
        from: &[u32],
    ) -> (bool, Result<BTreeMap<GroupIndex, ReplicaId>, String>, String) {
        let judge = Judge { catalog: &cluster.catalog, reports: &cluster.reports, store_fault: None };
        let choice = Choice { judge: &judge, record: &cluster.record, from };
        let survivors = choice.survivors(true);
        let what =
            survivors.clone().map_or(String::new(), |survivors| choice.describe(&KeptCopies::One(survivors)));
        (choice.keeps_members(), survivors, what)
    }

    /// Node 3 left at epoch 6, and follows another owner since.
    fn forked() -> Cluster {
        let mut cluster = cluster();
        let owner = cluster.record.owner;
        cluster.record.history.claim(Epoch(5), owner);
        let departed = Departed { epoch: Epoch(6), had: Position::START };
        cluster.record.groups[0].in_sync.remove(&ReplicaId(13));
        cluster.record.groups[0].departed.insert(ReplicaId(13), departed);
        let copy = &mut cluster.node(3).replicas[0];
        (copy.epoch, copy.owner) = (Some(7), Some(OTHER));
        cluster
    }

    #[test]
    fn members_that_agree_with_the_record_are_all_kept_if_one_of_them_is_named() {
        let mut cluster = forked();
        assert!(chosen(&cluster, &[1]).0 && chosen(&cluster, &[2]).0);
        let (keeps, survivors, what) = chosen(&cluster, &[3]);
        assert!(!keeps);
        assert_eq!(survivors.unwrap(), BTreeMap::from([(GroupIndex(0), ReplicaId(13))]));
        assert!(
            what.contains("at node-3 follows node-3 at epoch 7"),
            "not what the record has of it: {what}"
        );
        // One of which nothing is known may be of another history.
        cluster.reports.insert(2, Err(Silent::Mute("is mute".into())));
        assert!(!chosen(&cluster, &[1]).0);
        let mut cluster = forked();
        cluster.node(2).replicas[0].epoch = Some(9);
        assert!(!chosen(&cluster, &[1]).0);
    }

    #[test]
    fn of_a_group_of_which_the_named_node_has_no_copy_another_is_taken_only_if_it_is_known_to_be_complete() {
        // Another group, of which only nodes 2 and 3 have copies.
        let mut cluster = forked();
        let copy = |replica: &ReplicaId| ReplicaId(replica.0 + 100);
        let mut second = cluster.record.groups[0].clone();
        second.in_sync = second.in_sync.iter().map(copy).collect();
        second.departed =
            second.departed.iter().map(|(replica, departed)| (copy(replica), *departed)).collect();
        second.in_sync.remove(&ReplicaId(111));
        cluster.record.groups.push(second);
        for node in [2u32, 3] {
            let (id, more) = (10 + u64::from(node), 110 + u64::from(node));
            let replica = cluster.catalog.replicas[&id].clone();
            cluster.catalog.replicas.insert(more, replica);
            cluster.record.homes.insert(ReplicaId(more), NodeId(node));
            let mut copy = cluster.node(node).replicas[0].clone();
            copy.id = more;
            cluster.node(node).replicas.push(copy);
        }
        let survivors = |cluster: &Cluster, from: &[u32]| chosen(cluster, from).1;
        let of = |group, replica| (GroupIndex(group), ReplicaId(replica));
        assert_eq!(
            survivors(&cluster, &[1]).unwrap(),
            BTreeMap::from([of(0, 11), of(1, 112)]),
            "it follows the same"
        );
        cluster.node(3).replicas[1].owner = Some(FOLLOWS);
        let refused = survivors(&cluster, &[1]).unwrap_err();
        assert!(refused.contains("--from node-1,NODE") && refused.contains("node-2, node-3"), "{refused}");
        assert_eq!(survivors(&cluster, &[1, 3]).unwrap(), BTreeMap::from([of(0, 11), of(1, 113)]));
        // What is not known is not taken for the same.
        for node in [1, 2, 3] {
            cluster.node(node).replicas.iter_mut().for_each(|copy| copy.owner = None);
        }
        cluster.node(2).replicas[0].owner = Some(OTHER);
        assert!(survivors(&cluster, &[1]).is_err());
    }
}
