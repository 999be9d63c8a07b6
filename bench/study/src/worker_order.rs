//! Orders of workers: as people count them, and in a circle over the nodes.

use loadline_fleet::WorkerInfo;

/// Workers in the order in which people count them: `node-1/2` before `node-1/10`.
pub(crate) fn in_order(mut workers: Vec<WorkerInfo>) -> Vec<WorkerInfo> {
    workers.sort_by_cached_key(|worker| match worker.id.0.rsplit_once('/') {
        Some((node, number)) => (node.to_string(), number.parse().unwrap_or(u64::MAX), worker.id.0.clone()),
        None => (worker.id.0.clone(), 0, String::new()),
    });
    workers
}

/// Workers in a circle over the nodes: the first of each node, then the second of each.
pub(crate) fn in_circle(workers: &[WorkerInfo]) -> Vec<usize> {
    let mut nodes: Vec<(&str, Vec<usize>)> = Vec::new();
    for (index, worker) in workers.iter().enumerate() {
        match nodes.iter_mut().find(|(node, _)| *node == worker.node) {
            Some((_, members)) => members.push(index),
            None => nodes.push((&worker.node, vec![index])),
        }
    }
    let most = nodes.iter().map(|(_, members)| members.len()).max().unwrap_or(0);
    (0..most)
        .flat_map(|rank| nodes.iter().filter_map(move |(_, members)| members.get(rank).copied()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_fleet::WorkerId;

    #[test]
    fn workers_are_counted_as_people_count() {
        let worker = |id: &str| WorkerInfo {
            id: WorkerId(id.into()),
            node: String::new(),
            host: String::new(),
            pid: 0,
            version: String::new(),
        };
        let sorted = in_order(["b/0", "a/10", "a/2", "zeta"].map(worker).to_vec());
        assert_eq!(
            sorted.iter().map(|w| w.id.0.as_str()).collect::<Vec<_>>(),
            ["a/2", "a/10", "b/0", "zeta"]
        );
    }
}
