//! Where the volumes of a cluster are: their owners, and the copies that are in sync.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{Status, Volume};
use crate::cluster::Cluster;
use crate::error::TargetError;

/// Where a volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedVolume {
    /// The node that owns it, if it has an owner.
    pub owner: Option<String>,
    /// The nodes of the copies in sync of each of its stripes, those of nodes that are gone not included.
    pub stripes: Vec<Vec<String>>,
}

impl Cluster {
    /// Where each volume of the cluster is now, by its name.
    pub fn placement(&self) -> Result<BTreeMap<String, PlacedVolume>, TargetError> {
        Ok(placed(self.alive()?.status()?))
    }
}

fn placed(status: Status) -> BTreeMap<String, PlacedVolume> {
    let alive: BTreeSet<&String> =
        status.nodes.iter().filter(|node| node.alive).map(|node| &node.name).collect();
    let of = |volume: &Volume| {
        let mut stripes: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for replica in &volume.replicas {
            let copies = stripes.entry(replica.group).or_default();
            if replica.state == "in sync" && alive.contains(&replica.node) {
                copies.push(replica.node.clone());
            }
        }
        PlacedVolume { owner: volume.owner.clone(), stripes: stripes.into_values().collect() }
    };
    status.volumes.iter().map(|volume| (volume.name.clone(), of(volume))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn copies_that_are_away_or_whose_node_is_gone_do_not_count() {
        let node = |name: &str, alive| json!({ "name": name, "alive": alive, "api": "127.0.0.1:1", "incarnation": 1 });
        let replica =
            |group, node: &str, state: &str| json!({ "group": group, "node": node, "state": state });
        let status = json!({
            "cluster": "c", "asked": "a", "devices": [],
            "nodes": [node("a", true), node("b", true), node("c", false)],
            "volumes": [{
                "name": "v", "owner": "a",
                "replicas": [
                    replica(0, "a", "in sync"), replica(0, "b", "away"), replica(0, "c", "in sync"),
                    replica(1, "c", "in sync"), replica(1, "b", "in sync"),
                ],
            }],
        });
        let found = placed(serde_json::from_value(status).unwrap());
        let wanted =
            PlacedVolume { owner: Some("a".into()), stripes: vec![vec!["a".into()], vec!["b".into()]] };
        assert_eq!(found["v"], wanted);
    }
}
