//! Two copies on three nodes, beside Ceph with two copies on three OSDs: fio as the client of both, by NBD and by librbd.

use std::path::Path;

use super::cluster::Cluster;
use super::nbd::{Engine, Load, Row, print};
use super::{Setting, folder_in};
use crate::ceph::Ceph;
use crate::pair::{Bound, Bound::AtLeast, in_turn};

/// fio's way to its image.
fn engine(ceph: &Ceph) -> Engine {
    let arguments = ["--ioengine=rbd", "--clientname=admin", "--pool=bench", "--rbdname=disk0"];
    let environment = vec![("CEPH_CONF", ceph.conf())];
    Engine { arguments: arguments.map(String::from).to_vec(), environment }
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    for (name, place, rows) in [
        ("in memory", setting.memory, &[(true, 20.0), (false, 4.0)][..]),
        ("on disk files", setting.disk, &[(true, 8.0)]),
    ] {
        measure_on(setting, name, place, rows)?;
    }
    Ok(())
}

fn measure_on(setting: &Setting<'_>, name: &str, place: &Path, rows: &[(bool, f64)]) -> Result<(), String> {
    let (context, mib) = (setting.context, setting.mib);
    println!(
        "two copies on three nodes, {name}, at the socket of the owner's node; ratios are Loadline / Ceph\n"
    );
    let folder = folder_in(place)?;
    let ceph = Ceph::start(folder.path(), mib)?;
    let cluster = Cluster::start(&context.program, place, 3, mib * 5 / 4 + 768)?;
    let uri = cluster.volume("disk", mib, 2, 1)?;
    let (ours, theirs) = (cluster.processes(), ceph.processes());
    let fill = Load { seconds: 15, ..Load::new(context, true, 32) };
    let mut in_order = engine(&ceph);
    in_order.arguments.extend(["--rw=write", "--bs=1m"].map(String::from));
    fill.fio(&in_order, &theirs, mib)?;
    for (write, least) in rows {
        let load = Load::new(context, *write, 32);
        let pairs = in_turn(
            context.pairs,
            || load.fio(&Engine::nbd(&uri), &ours, mib),
            || load.fio(&engine(&ceph), &theirs, mib),
        )?;
        let what = format!("{} {name}, 32 outstanding", if *write { "write" } else { "read" });
        let iops: Row = ("IOPS", |f| f.iops, AtLeast(*least));
        let cpu: Row = ("CPU us/IO, all nodes", |f| f.server_us, Bound::AtMost(1.0));
        print(&what, &pairs, &[iops, cpu]);
    }
    println!();
    Ok(())
}
