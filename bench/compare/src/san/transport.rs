//! What the protection of connections between nodes costs: two copies on two nodes, beside the same cluster with open connections.

use super::Setting;
use super::cluster::Cluster;
use super::nbd::{Figures, Load, Row, print};
use crate::pair::{Bound, Bound::AtLeast, in_turn};

/// Outstanding requests of each load.
const OUTSTANDING: u32 = 32;

/// A cluster of two nodes, how its volume is reached at the node of the owner, and the processes of the nodes.
struct Side {
    nbd: String,
    vhost: String,
    processes: Vec<u32>,
    _cluster: Cluster,
}

impl Side {
    fn start(setting: &Setting<'_>, transport: &str) -> Result<Side, String> {
        let (program, mib) = (&setting.context.program, setting.mib);
        let cluster =
            Cluster::start_with(program, setting.memory, 2, mib * 5 / 4 + 768, &["--transport", transport])?;
        let nbd = cluster.volume("disk", mib, 2, 1)?;
        Ok(Side { nbd, vhost: cluster.vhost("disk", 1), processes: cluster.processes(), _cluster: cluster })
    }

    fn run(&self, load: Load<'_>, vhost: bool) -> Result<Figures, String> {
        load.loadline(if vhost { &self.vhost } else { &self.nbd }, &self.processes)
    }
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    println!("two copies in memory on two nodes; ratios are a protected cluster / an open one\n");
    let open = Side::start(setting, "open")?;
    for (transport, least) in [("encrypted", 0.80), ("authenticated", 0.92)] {
        let protected = Side::start(setting, transport)?;
        let loads: [(&str, bool, bool, Bound); 4] = [
            ("write, NBD", true, false, AtLeast(least)),
            ("write, vhost-user", true, true, AtLeast(least)),
            // A read at the node of the owner does not use the connection.
            ("read, NBD", false, false, AtLeast(0.97)),
            ("read, vhost-user", false, true, AtLeast(0.97)),
        ];
        for (name, write, vhost, bound) in loads {
            let load = Load::new(setting.context, write, OUTSTANDING);
            let pairs =
                in_turn(setting.context.pairs, || protected.run(load, vhost), || open.run(load, vhost))?;
            let rows: [Row; 1] = [("IOPS", |f| f.iops, bound)];
            print(&format!("{transport}: {name}, {OUTSTANDING} outstanding"), &pairs, &rows);
        }
    }
    println!();
    Ok(())
}
