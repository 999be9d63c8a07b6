//! The network between the nodes, measured bare before the fleet, as the devices are.

use loadline_fleet::{NetworkPath, WorkerInfo};

use crate::error::StudyError;
use crate::folder::events::RunEvent;
use crate::network::MeasuredLink;
use crate::progress::Update;
use crate::runner::Runner;
use crate::workers::Workers;
use loadline_fleet::or_stop;

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
            let link = NetworkPath { from: from.id, to: to.id, ip: ip.and_then(|node| node.address) };
            let measured = or_stop(&mut self.stop, self.workers.measure_path(&link)).await??;
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
