//! What becomes of the volumes that a node owns, as lines of its log: that it serves them, and which copies are in sync.

use std::collections::BTreeSet;

use loadline_base::figures::listed;
use loadline_san_core::ids::{NodeId, Owner};
use loadline_san_core::record::{Record, RecordState};
use loadline_san_protocol::record;

use crate::config::catalog::Catalog;

/// The longest list of nodes in one line.
const MOST_NAMED: usize = 8;

/// What has changed of the volumes that this node serves, a line each, with the name of its volume.
pub(super) fn news(me: Owner, before: &Catalog, now: &Catalog) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (id, stored) in &now.records {
        let old = before.records.get(id);
        if old.is_some_and(|old| old.version == stored.version) {
            continue;
        }
        let (Some((volume, _)), Ok(new)) = (now.volumes.get(id), record::decode(&stored.value)) else {
            continue;
        };
        if !is_served_by(&new, me) {
            continue;
        }
        let old = old.and_then(|old| record::decode(&old.value).ok()).filter(|old| is_served_by(old, me));
        let copies = copies(&new, now);
        match old {
            None => lines.push((
                volume.name.clone(),
                format!("volume {}: this node serves it; {copies}", volume.name),
            )),
            Some(old) if out_of_sync(&old) != out_of_sync(&new) => {
                lines.push((volume.name.clone(), format!("volume {}: {copies}", volume.name)));
            }
            Some(_) => {}
        }
    }
    lines
}

/// By this life of the process: what a former one served is served when this one has taken it over.
fn is_served_by(record: &Record, owner: Owner) -> bool {
    record.owner == owner && record.state == RecordState::Active
}

/// The nodes that have a copy of some group which is not in sync.
fn out_of_sync(record: &Record) -> BTreeSet<NodeId> {
    let departed = record.groups.iter().flat_map(|group| group.departed.keys());
    departed.filter_map(|replica| record.homes.get(replica).copied()).collect()
}

/// Which copies are in sync, in words.
fn copies(record: &Record, catalog: &Catalog) -> String {
    let name = |node: &NodeId| {
        let known = catalog.nodes.get(&node.0).map(|(node, _)| node.name.clone());
        known.unwrap_or_else(|| format!("node {}", node.0))
    };
    let out: Vec<String> = out_of_sync(record).iter().map(name).collect();
    match out.is_empty() {
        true => "all its copies are in sync".into(),
        false => format!("not in sync: the copies at {}", listed(&out, MOST_NAMED)),
    }
}
