//! How well a volume is, by what its owner and the nodes of its replicas report. Only a function of that: it asks nothing.
//!
//! A volume that is attached is healthy only if the owner that its record names reports that it serves it, with as many members
//! as it is to have copies, each of which answers, and the node of each member reports that the member is open, undamaged, and
//! follows that owner. Otherwise the worst that is found counts; what is not known is not healthy.

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::figures::listed;
use loadline_san_core::ids::{Epoch, Owner, ReplicaId};
use loadline_san_core::message::Promise;
use loadline_san_core::record::{Group, Record};

use super::Health;
use super::local::{
    Doing, LocalReplica, LocalView, LocalVolume, OLDER, OwnerView, Reports, SessionView, Silent, Usable,
};
use crate::config::catalog::{Catalog, ReplicaState, Volume};
use crate::node::store_state::StoreFaultKind;

/// Nodes that a note lists.
const MOST_LISTED: usize = 8;
/// What ends the fault if the store went back. A status names the nodes that found it.
const RESTART: &str = "If the newer copy still exists, put it back first. Then restart the nodes for which 'loadline san status' shows this";
/// Why volumes wait for a store that answers.
const UNUSABLE: &str = "the configuration store cannot be used ('loadline san status' has the reason)";

/// What is known when a volume is judged.
pub(super) struct Judge<'a> {
    /// The configuration, as it was read after the reports had come.
    pub(super) catalog: &'a Catalog,
    pub(super) reports: &'a Reports,
    /// What kept the configuration from being read, if anything: the catalog may be older than the reports.
    pub(super) store_fault: Option<StoreFaultKind>,
}

/// A group, as people know it: most volumes have one. Of others 'loadline volume show' lists the group of each copy.
pub(super) fn part(record: &Record, group: usize) -> String {
    match record.groups.len() {
        0 | 1 => "the volume".into(),
        _ => format!("a part of the volume (group {group})"),
    }
}

/// Why a replica is not used.
pub(super) struct Fault {
    /// Whether it is used is not known.
    pub(super) unknown: bool,
    pub(super) text: String,
}

/// The findings about the health of a volume: the worst health, and notes for the operator.
#[derive(Default)]
struct HealthFindings {
    worst: Option<Health>,
    notes: Vec<String>,
}

impl HealthFindings {
    fn add(&mut self, health: Health, note: String) {
        self.worst = self.worst.max(Some(health));
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn end(self) -> (Health, Option<String>) {
        let note = (!self.notes.is_empty()).then(|| self.notes.join("; "));
        (self.worst.unwrap_or(Health::Healthy), note)
    }
}

impl<'a> Judge<'a> {
    pub(super) fn name(&self, node: u32) -> String {
        self.catalog.nodes.get(&node).map_or(format!("node {node}"), |(node, _)| node.name.clone())
    }

    fn home(&self, replica: u64) -> Option<u32> {
        self.catalog.replicas.get(&replica).map(|(replica, _)| replica.node)
    }

    /// What the node of a replica reports of it.
    pub(super) fn replica(&self, id: u64) -> Option<&'a LocalReplica> {
        self.reports.get(&self.home(id)?)?.as_ref().ok()?.replica(id)
    }

    /// Why a replica is not used; nothing if its node reports that it is open and undamaged.
    pub(super) fn fault(&self, id: u64) -> Option<Fault> {
        let unknown = |text: String| Some(Fault { unknown: true, text });
        let Some(home) = self.home(id) else { return unknown("it is not in the configuration".into()) };
        match self.reports.get(&home) {
            None => unknown("its node is not in the configuration".into()),
            Some(Err(Silent::Gone(why))) => Some(Fault { unknown: false, text: why.clone() }),
            Some(Err(Silent::Mute(why))) => unknown(why.clone()),
            Some(Ok(view)) => match view.replica(id) {
                None => unknown("does not know of the copy yet".into()),
                Some(LocalReplica { state: Usable::Open, .. }) => None,
                Some(LocalReplica { state, why, .. }) => Some(Fault {
                    unknown: *state == Usable::Opening,
                    text: why.clone().unwrap_or_else(|| "the copy is not used".into()),
                }),
            },
        }
    }

    /// Whether a member reports less than it had promised when it became one: its device went back in time (rule R9). A copy finds
    /// that itself only when an owner greets it, and a volume at rest has none.
    pub(super) fn is_older(&self, id: u64, record: &Record) -> bool {
        let replica = ReplicaId(id);
        let group = record.groups.iter().find(|group| group.in_sync.contains(&replica));
        let since = group.map_or(0, |group| group.member_since(replica).0);
        self.replica(id).and_then(|copy| copy.epoch).is_some_and(|epoch| epoch < since)
    }

    /// Why a replica is not used, or is not to be, by a record.
    fn fault_by(&self, id: u64, record: &Record) -> Option<Fault> {
        let older = || self.is_older(id, record).then(|| Fault { unknown: false, text: OLDER.into() });
        self.fault(id).or_else(older)
    }

    /// Whether a replica that is not used will not be soon, for all that is known. A node that takes connections and does not
    /// report may be stopped.
    fn is_lost(&self, id: u64, fault: &Fault) -> bool {
        let home = self.home(id).and_then(|home| self.reports.get(&home));
        !fault.unknown || matches!(home, Some(Err(_)))
    }

    /// A replica with its node, and why it is not used, if so.
    fn describe(&self, id: u64) -> String {
        self.describe_with(id, self.fault(id))
    }

    /// The same of each of these. Groups of a volume have their replicas on the same nodes, so each text is listed once.
    fn describe_all(&self, ids: impl Iterator<Item = u64>) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for text in ids.map(|id| self.describe(id)) {
            if !all.contains(&text) {
                all.push(text);
            }
        }
        all
    }

    fn describe_with(&self, id: u64, fault: Option<Fault>) -> String {
        let node = self.home(id).map_or("an unknown node".into(), |node| self.name(node));
        match fault {
            Some(fault) => format!("{node} ({})", fault.text),
            None => node,
        }
    }

    /// The node that serves a volume, and what it reports of it.
    pub(super) fn serving(&self, id: u64, record: &Record) -> Option<(u32, &'a LocalVolume)> {
        let serves = |(node, report): (&u32, &'a Result<LocalView, Silent>)| {
            let view = report.as_ref().ok()?;
            let volume = view.volume(id).filter(|volume| volume.doing.serves())?;
            let me = OwnerView { node: *node, incarnation: view.incarnation };
            // Without the store, whoever has the highest epoch is believed.
            let named = volume.owner == Some(me)
                && (self.store_fault.is_some() || OwnerView::from(record.owner) == me);
            named.then_some((*node, volume))
        };
        self.reports.iter().filter_map(serves).max_by_key(|(_, volume)| volume.epoch)
    }

    /// The highest epoch that each replica of a volume follows or has promised, as far as it is known; the highest first.
    pub(super) fn promises(&self, record: &Record) -> Vec<(ReplicaId, Option<u64>)> {
        let epoch = |replica: &ReplicaId| (*replica, self.replica(replica.0).and_then(|found| found.epoch));
        let mut promises: Vec<_> = record.homes.keys().map(epoch).collect();
        promises.sort_by_key(|(replica, epoch)| (std::cmp::Reverse(*epoch), *replica));
        promises
    }

    /// A replica that has promised to follow another owner than the record has at the epoch of the promise, and that owner (rule R11).
    pub(super) fn forked(&self, record: &Record) -> Option<(ReplicaId, Promise, Owner)> {
        record.homes.keys().find_map(|replica| {
            let copy = self.replica(replica.0)?;
            let (epoch, owner) = (Epoch(copy.epoch?), copy.owner?.into());
            let promise = Promise { epoch, owner };
            record.contradicts(*replica, &promise).map(|owner| (*replica, promise, owner))
        })
    }

    /// Why a volume is blocked, if it is: a replica has promised an epoch above that of the record, or follows an owner that by the
    /// record did not own the volume then, or a node that does not serve it reports so.
    pub(super) fn blocked(&self, id: u64, record: &Record) -> Option<String> {
        let serving = self.serving(id, record);
        let highest = self.promises(record).first().and_then(|(_, epoch)| *epoch);
        if let Some(highest) = highest.filter(|epoch| *epoch > record.epoch.0 && self.store_fault.is_none()) {
            let served = serving.map_or(String::new(), |(node, _)| {
                format!("  {} continues to serve the volume until the record must change.", self.name(node))
            });
            return Some(format!(
                "the record in the configuration store has epoch {}, and a copy follows the higher epoch {highest}: an older \
                 configuration was put back.{served}",
                record.epoch.0
            ));
        }
        let forked = self.forked(record).filter(|_| self.store_fault.is_none());
        if let Some((replica, promise, owner)) = forked {
            return Some(format!(
                "the copy at {} follows {} at epoch {}, but according to the configuration store {} owned the volume at that \
                 epoch: an older configuration was put back and was changed afterwards.",
                self.describe(replica.0),
                self.name(promise.owner.node.0),
                promise.epoch.0,
                self.name(owner.node.0),
            ));
        }
        if serving.is_some() {
            return None;
        }
        let reports = self.reports.iter().filter_map(|(node, report)| Some((node, report.as_ref().ok()?)));
        let blocked = reports.filter_map(|(node, view)| Some((node, view.volume(id)?)));
        let mut blocked = blocked.filter(|(_, volume)| volume.doing == Doing::Blocked);
        let (node, volume) = blocked.next()?;
        let why =
            volume.blocked.clone().unwrap_or_else(|| "the configuration store went back in time".into());
        Some(format!("{} reports: {why}.", self.name(*node)))
    }

    /// What a person can decide about a volume that is blocked.
    fn choice(&self, volume: &Volume, record: &Record) -> String {
        let known: Vec<String> = self
            .promises(record)
            .into_iter()
            .map(|(replica, epoch)| {
                let node = record.homes.get(&replica).map_or("?".into(), |node| self.name(node.0));
                let has =
                    |group: &Group| group.in_sync.contains(&replica) || group.departed.contains_key(&replica);
                let group = record.groups.iter().position(has).filter(|_| record.groups.len() > 1);
                let group = group.map_or(String::new(), |index| format!(" of group {index}"));
                let owner =
                    self.replica(replica.0).and_then(|copy| copy.owner).map(|owner| self.name(owner.node));
                match (epoch, owner) {
                    (Some(epoch), Some(owner)) => format!("{node} follows {owner} at epoch {epoch}{group}"),
                    _ => format!("{} is not known", self.describe(replica.0)),
                }
            })
            .collect();
        let hint = match self.forked(record) {
            Some(_) => "Epochs of copies that follow different owners cannot be compared",
            None => "A copy that follows a lower epoch than others may lack writes",
        };
        format!(
            "Put the newer configuration back, or choose the node whose copies continue and overwrite all other copies: \
             'loadline volume recover {} --from NODE --force'. {hint}. A copy whose node stopped during a resync may also lack \
             writes. Known: {}",
            volume.name,
            listed(&known, MOST_LISTED)
        )
    }

    /// How well a volume is, and what people should know of it.
    pub(super) fn volume(&self, id: u64, volume: &Volume, record: &Record) -> (Health, Option<String>) {
        let mut found = HealthFindings::default();
        if let Some(why) = self.blocked(id, record) {
            found.add(Health::Blocked, format!("{why} {}", self.choice(volume, record)));
            return found.end();
        }
        self.objections(id, record, &mut found);
        self.beyond(id, record, &mut found);
        match self.serving(id, record) {
            Some((node, served)) => self.served(node, served, volume, record, &mut found),
            None if volume.attached.is_some() => {
                found.add(Health::Waiting, self.waits_for(id, volume, record));
            }
            None => self.at_rest(volume, record, &mut found),
        }
        // Another node may have changed the record since; and a copy that fails now is not left out.
        match self.store_fault {
            Some(StoreFaultKind::Silent | StoreFaultKind::Unusable) if found.worst.is_none() => {
                let why = "the configuration store is not used: this is the last known state, and the node cannot change it";
                found.add(Health::Unknown, why.into());
            }
            // That does not end by itself, whatever else is wrong.
            Some(StoreFaultKind::WentBack) if !found.notes.iter().any(|note| note.contains(RESTART)) => {
                let why = format!(
                    "an older copy of the configuration store was put back: this is the last state that was known before, and nodes that \
                     found the older copy change nothing. {RESTART}"
                );
                found.add(Health::Unknown, why);
            }
            _ => {}
        }
        found.end()
    }

    /// Copies of groups that the record does not have: a command makes the volume larger, or was interrupted. If they were used, the record is
    /// older than that: the volume was larger, and what clients wrote there is in these copies only.
    fn beyond(&self, id: u64, record: &Record, found: &mut HealthFindings) {
        // What nodes report may be newer than a catalog that was not read after it.
        if self.store_fault.is_some() {
            return;
        }
        let of_volume = self.catalog.replicas.iter().filter(|(_, (of, _))| of.volume == id);
        let beyond = of_volume.filter(|(_, (of, _))| of.group as usize >= record.groups.len());
        let (mut used, mut left) = (BTreeSet::new(), BTreeSet::new());
        for (id, (replica, _)) in beyond {
            let node = self.name(replica.node);
            let follows = || self.replica(*id)?.owner;
            match replica.state {
                ReplicaState::Wanted if replica.was_used_before() => used.insert(node),
                ReplicaState::Ready if follows().is_some_and(|owner| owner.incarnation != 0) => {
                    used.insert(node)
                }
                // Of one that stays, its device has the reason.
                ReplicaState::Dropping if replica.kept().is_none() => left.insert(node),
                _ => false,
            };
        }
        let names = |nodes: BTreeSet<String>| listed(&nodes.into_iter().collect::<Vec<_>>(), MOST_LISTED);
        if !used.is_empty() {
            found.add(
                Health::Unknown,
                format!(
                    "the volume was larger, and copies of its last part were used ({}), but according to the configuration store it has not \
                     grown yet: an older configuration was put back. Stop all nodes and put the newest configuration back",
                    names(used)
                ),
            );
        }
        if !left.is_empty() {
            found.add(
                Health::Degraded,
                format!("copies that an interrupted resize has left are being removed ({})", names(left)),
            );
        }
    }

    /// Nodes that block a volume which another one serves: each knew a record that the store's does not come from, and may be the only
    /// one that did.
    fn objections(&self, id: u64, record: &Record, found: &mut HealthFindings) {
        let Some((serves, _)) = self.serving(id, record) else { return };
        let views =
            self.reports.iter().filter_map(|(node, report)| Some((*node, report.as_ref().ok()?.volume(id)?)));
        for (node, volume) in views.filter(|(_, volume)| volume.doing == Doing::Blocked) {
            let why = volume.blocked.as_deref().unwrap_or("the configuration store went back in time");
            let (name, serves) = (self.name(node), self.name(serves));
            found.add(
                Health::Unknown,
                format!("{name} reports: {why}. If the copies that {serves} serves are the right ones, restart {name}"),
            );
        }
    }

    /// A volume that is served by this node.
    fn served(
        &self,
        owner: u32,
        served: &LocalVolume,
        volume: &Volume,
        record: &Record,
        found: &mut HealthFindings,
    ) {
        let name = self.name(owner);
        // While its owner has made the last change of the record, the record names what it needs.
        let same = served.epoch == record.epoch.0;
        let named = record.groups.iter().flat_map(|group| &group.in_sync).filter(|_| same);
        let sessions: BTreeMap<u64, SessionView> =
            named.map(|replica| (replica.0, SessionView::Asked)).collect();
        let members = served.members.iter().filter(|member| member.required);
        let sessions: BTreeMap<u64, SessionView> =
            sessions.into_iter().chain(members.map(|member| (member.replica, member.session))).collect();
        let mut is_missing = false;
        for (id, session) in sessions {
            let fault = if same { self.fault_by(id, record) } else { self.fault(id) };
            if let Some(fault) = fault {
                let health = if fault.unknown { Health::Unknown } else { Health::Degraded };
                is_missing |= !fault.unknown;
                let copy = self.describe_with(id, Some(fault));
                found.add(health, format!("the copy at {copy} is not confirmed to be in use"));
                continue;
            }
            let copy = self.describe(id);
            is_missing |= session != SessionView::Answers;
            match session {
                SessionView::Answers => {}
                SessionView::Silent => {
                    found.add(Health::Degraded, format!("{name} receives no answer from the copy at {copy}"));
                }
                SessionView::Asked => {
                    found.add(Health::Degraded, format!("{name} has no session with the copy at {copy}"));
                }
                SessionView::Failed => {
                    found.add(Health::Degraded, format!("the copy at {copy} has failed or is damaged"));
                }
            }
            if self.replica(id).is_some_and(|copy| copy.owner != served.owner) {
                found.add(Health::Unknown, format!("the copy at {copy} does not follow {name}"));
            }
        }
        if let Some(fault) = self.store_fault.filter(|_| is_missing) {
            let why = match fault {
                StoreFaultKind::Silent => {
                    "requests wait: the configuration store does not answer, and until it does this copy cannot be excluded".into()
                }
                StoreFaultKind::WentBack => format!(
                    "requests wait: an older copy of the configuration store was put back, and nodes that found it exclude no copy. {RESTART}"
                ),
                StoreFaultKind::Unusable => {
                    format!("requests wait: {UNUSABLE}, and until it can this copy cannot be excluded")
                }
            };
            found.add(Health::Waiting, why);
        }
        let away = record.groups.iter().flat_map(|group| group.departed.keys());
        let away: BTreeSet<String> = away.map(|replica| self.describe(replica.0)).collect();
        if !away.is_empty() {
            let away: Vec<String> = away.into_iter().collect();
            found.notes.push(format!("not in sync: the copies at {}", listed(&away, MOST_LISTED)));
        }
        for (index, group) in served.groups.iter().enumerate() {
            let part = part(record, index);
            if group.in_sync < volume.copies as usize {
                let returning = served.returning.iter().any(|of| self.fault(of.replica).is_none());
                let health = if returning { Health::Resyncing } else { Health::Degraded };
                found.worst = found.worst.max(Some(health));
            }
            if !group.reads {
                let why =
                    format!("{name} may not answer reads of {part}: it waits for leases from the copies");
                found.add(Health::Waiting, why);
            }
            if group.in_sync < group.least {
                let (has, needs) = (group.in_sync, group.least);
                let why = format!(
                    "writes to {part} wait: {has} of {} copies are in sync, and a write needs {needs} (--least); reads continue",
                    volume.copies
                );
                found.add(Health::Waiting, why);
            }
            if !group.room {
                let note =
                    format!("a device with a copy of {part} is full: writes that need room are refused");
                found.notes.push(note);
            }
        }
        if served.groups.len() < record.groups.len() {
            found.add(Health::Unknown, format!("{name} does not report all parts of the volume"));
        }
        if served.doing == Doing::Changing && !same {
            found.notes.push(format!("{name} waits for the configuration store to change the record"));
        }
    }

    /// A volume that no node is to serve: its copies are to be open.
    fn at_rest(&self, volume: &Volume, record: &Record, found: &mut HealthFindings) {
        for (index, group) in record.groups.iter().enumerate() {
            let (mut usable, mut lost) = (0, 0);
            for replica in &group.in_sync {
                match self.fault_by(replica.0, record) {
                    None => usable += 1,
                    Some(fault) => {
                        lost += usize::from(self.is_lost(replica.0, &fault));
                        let health = if fault.unknown { Health::Unknown } else { Health::Degraded };
                        let copy = self.describe_with(replica.0, Some(fault));
                        found.add(health, format!("the copy at {copy} is not confirmed to be in use"));
                    }
                }
            }
            if usable < volume.copies {
                found.worst = found.worst.max(Some(Health::Degraded));
            }
            if lost == group.in_sync.len() {
                found.add(Health::Waiting, self.only_on(index, record));
            }
        }
    }

    /// Of a group none of whose members is used.
    fn only_on(&self, index: usize, record: &Record) -> String {
        let members = &record.groups[index].in_sync;
        let describe = |replica: &ReplicaId| self.describe_with(replica.0, self.fault_by(replica.0, record));
        let members: Vec<String> = members.iter().map(describe).collect();
        format!(
            "every write of {} is stored only at {}: start {} again, or make {} usable. To continue with a copy \
             that lacks writes, run 'loadline volume recover', which first reports the writes that would be lost",
            part(record, index),
            members.join(" and "),
            if members.len() == 1 { "it" } else { "one of them" },
            if members.len() == 1 { "its device" } else { "one of their devices" },
        )
    }

    /// What a volume that is not served waits for.
    fn waits_for(&self, id: u64, volume: &Volume, record: &Record) -> String {
        for (index, group) in record.groups.iter().enumerate() {
            let lost = |id: u64| self.fault_by(id, record).is_some_and(|fault| self.is_lost(id, &fault));
            if group.in_sync.iter().all(|replica| lost(replica.0)) {
                return self.only_on(index, record);
            }
        }
        let open = self.reports.iter().filter_map(|(node, report)| {
            let volume = report.as_ref().ok()?.volume(id)?;
            Some((*node, volume))
        });
        let taking = open.filter(|(_, volume)| volume.doing != Doing::Watching);
        if let Some((node, of)) = taking.max_by_key(|(_, volume)| volume.epoch) {
            let asked = of.members.iter().filter(|member| member.session != SessionView::Answers);
            let asked = self.describe_all(asked.map(|member| member.replica));
            let from = if asked.is_empty() { "its copies".into() } else { asked.join(" and ") };
            let what = match of.doing {
                Doing::Claiming | Doing::Activating => "the configuration store".into(),
                Doing::Sealing => format!(
                    "the answer of {from}; a copy answers when the lease that it last granted has ended"
                ),
                Doing::Equalizing => "the copies, which the takeover makes equal".into(),
                Doing::Active | Doing::Changing | Doing::Watching | Doing::Blocked => {
                    return format!(
                        "{} serves the volume at epoch {}, but the record, at epoch {}, names another owner (another node, or \
                         another incarnation of the same node): {}",
                        self.name(node),
                        of.epoch,
                        record.epoch.0,
                        self.name(record.owner.node.0)
                    );
                }
            };
            return format!("{} takes the volume over, and waits for {what}", self.name(node));
        }
        let lease = volume.lease_ms as f64 / 1000.0;
        let members = self.describe_all(record.members().map(|(replica, _)| replica.0)).join(" and ");
        if let Some(fault) = self.store_fault {
            let why = match fault {
                StoreFaultKind::Silent => {
                    "the configuration store does not answer, and until it does no owner can be chosen and no copy can be excluded. The \
                     volume continues by itself when the store answers"
                        .into()
                }
                StoreFaultKind::WentBack => format!(
                    "an older copy of the configuration store was put back, and nodes that found it choose no owner and exclude no copy. {RESTART}"
                ),
                StoreFaultKind::Unusable => {
                    format!("{UNUSABLE}, and until it can no owner can be chosen and no copy can be excluded")
                }
            };
            return format!("no node serves the volume, and requests wait: {why}. Copies: {members}");
        }
        let last = self.name(record.owner.node.0);
        match self.reports.get(&record.owner.node.0) {
            Some(Err(why)) => format!(
                "{last}, which owned the volume, {}: a node with a copy takes the volume over when no copy has granted a lease for {} s. Copies: \
                 {members}",
                why.why(),
                2.0 * lease
            ),
            _ => format!(
                "no node serves the volume yet: a node with a copy takes the volume over when no copy has granted a lease for {} s. Copies: {members}",
                2.0 * lease
            ),
        }
    }
}

#[cfg(test)]
pub(in crate::node) mod tests;
