//! The network between the nodes, measured bare before the fleet, as the devices are.

use loadline_fleet::{Link, LinkSpeed, WorkerInfo};
use loadline_profile::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::folder::events::RunEvent;
use crate::progress::Update;
use crate::runner::Runner;
use crate::stop::or_stop;
use crate::workers::Workers;

/// The network from one node to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// The node that sent.
    pub from: String,
    /// The node that received.
    pub to: String,
    /// Whether both are on one host: then it is that host's own loopback.
    pub one_host: bool,
    /// What it does; `null` if it could not be measured.
    pub speed: Option<LinkSpeed>,
    /// Why it could not be.
    pub why: Option<String>,
}

impl<W: Workers> Runner<'_, W> {
    /// Measures the network from each node to the next one, in a circle and one after another, unless that was done. Of a
    /// study with ceilings only. What cannot be measured is written down, and the run goes on: storage may use another
    /// network than its workers do.
    pub(crate) async fn measure_network(&mut self) -> Result<(), StudyError> {
        let manifest = &self.owned.folder.manifest;
        if manifest.study.ceilings.node.is_empty() || manifest.network.is_some() || self.is_measured() {
            return Ok(());
        }
        let circle = circle(&manifest.workers);
        if !circle.is_empty() {
            let notice =
                format!("measuring the network between {} nodes, some {} s", circle.len(), 3 * circle.len());
            self.shared.lock().show(Update::Notice(&notice));
        }
        let mut links = Vec::new();
        for (from, to) in circle {
            let ip = manifest.study.ceilings.node.iter().find(|node| node.name == to.node);
            let link = Link { from: from.id, to: to.id, ip: ip.and_then(|node| node.address) };
            let measured = or_stop(&mut self.stop, self.workers.measure_link(&link)).await??;
            if let Err(why) = &measured {
                let notice = format!(
                    "the network from {} to {} could not be measured: {why}. If the workers reach each other by other \
                     addresses than the controller, give each [[ceilings.node]] its address",
                    from.node, to.node
                );
                self.shared.lock().show(Update::Notice(&notice));
            }
            let one_host = from.host == to.host;
            let (speed, why) = measured.map_or_else(|why| (None, Some(why)), |speed| (Some(speed), None));
            links.push(MeasuredLink { from: from.node, to: to.node, one_host, speed, why });
        }
        self.owned.events.run(&RunEvent::NetworkMeasured { links: links.clone() })?;
        self.owned.folder.manifest.network = Some(links);
        self.owned.save()
    }
}

/// The first worker of each node, and that of the next node; nothing with one node.
fn circle(workers: &[WorkerInfo]) -> Vec<(WorkerInfo, WorkerInfo)> {
    let mut first: Vec<&WorkerInfo> = Vec::new();
    for worker in workers {
        if !first.iter().any(|known| known.node == worker.node) {
            first.push(worker);
        }
    }
    let next = first.iter().cycle().skip(1);
    let pairs = first.iter().zip(next).map(|(from, to)| ((*from).clone(), (*to).clone()));
    pairs.filter(|(from, to)| from.node != to.node).collect()
}

/// What share of the slowest link a load uses, if each node sends as much as the others: this many bytes a second of the
/// whole fleet, of which each that is written is sent to other nodes `writes` times, and each that is read `reads` times.
/// `None` if no link was measured.
pub fn share(
    bytes_per_s: f64,
    profile: &Profile,
    (writes, reads): (f64, f64),
    links: &[MeasuredLink],
) -> Option<f64> {
    let slowest = links.iter().filter_map(|link| Some(link.speed?.bytes_per_s)).reduce(f64::min)?;
    let written = f64::from(profile.write_percent) / 100.0;
    let sent = bytes_per_s * (written * writes + (1.0 - written) * reads) / links.len() as f64;
    (slowest > 0.0).then(|| sent / slowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(speed: Option<f64>) -> MeasuredLink {
        let speed = speed.map(|bytes_per_s| LinkSpeed { round_trip_us: 50.0, bytes_per_s });
        MeasuredLink { from: "a".into(), to: "b".into(), one_host: false, speed, why: None }
    }

    #[test]
    fn a_share_is_of_the_slowest_link_and_counts_copies() {
        let mixed: Profile = "B8-T1-O1-W30-PR".parse().unwrap();
        let links = [link(Some(2e9)), link(Some(1e9)), link(Some(3e9))];
        // Of 6 GB/s 1.8 are written, and sent twice; 4.2 are read, half of them from another node: 5.7 GB/s by 3 nodes.
        let found = share(6e9, &mixed, (2.0, 0.5), &links).unwrap();
        assert!((found - 1.9).abs() < 1e-12, "{found}");
        assert_eq!(share(6e9, &mixed, (2.0, 0.5), &[]), None);
        assert_eq!(share(6e9, &mixed, (2.0, 0.5), &[link(None)]), None);
    }
}
