//! Two copies on three nodes, beside Ceph with two copies on three OSDs: fio as the client of both, by NBD and by librbd.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::cluster::Cluster;
use super::nbd::{Engine, Load, Row, print};
use super::{Setting, folder_in};
use crate::pair::{Bound, Bound::AtLeast, in_turn};

/// A small Ceph cluster on this machine, which stops when dropped.
struct Ceph {
    folder: PathBuf,
}

/// What starts and stops it.
const SCRIPT: &str = include_str!("../../../../tests/peers/ceph-mini.sh");

impl Ceph {
    fn start(folder: &Path, mib: u64) -> Result<Ceph, String> {
        let ceph = Ceph { folder: folder.into() };
        ceph.script(&["up", "3", "2", &mib.to_string()])?;
        Ok(ceph)
    }

    fn script(&self, arguments: &[&str]) -> Result<(), String> {
        let output = Command::new("bash")
            .args(["-c", SCRIPT, "ceph", arguments[0]])
            .arg(&self.folder)
            .args(&arguments[1..])
            .output()
            .map_err(|e| format!("bash: {e}"))?;
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("Ceph does not start: {text}")) }
    }

    fn processes(&self) -> Vec<u32> {
        let files = std::fs::read_dir(self.folder.join("run")).into_iter().flatten().flatten();
        let pids = files.filter(|file| file.path().extension().is_some_and(|end| end == "pid"));
        pids.filter_map(|file| std::fs::read_to_string(file.path()).ok()?.trim().parse().ok()).collect()
    }

    /// fio's way to its image.
    fn engine(&self) -> Engine {
        let arguments = ["--ioengine=rbd", "--clientname=admin", "--pool=bench", "--rbdname=disk0"];
        let environment = vec![("CEPH_CONF", self.folder.join("ceph.conf"))];
        Engine { arguments: arguments.map(String::from).to_vec(), environment }
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let _ = self.script(&["down"]);
    }
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
    let fill = Load { write: true, outstanding: 32, seconds: 15, program: &context.program };
    let mut in_order = ceph.engine();
    in_order.arguments.extend(["--rw=write", "--bs=1m"].map(String::from));
    fill.fio(&in_order, &theirs, mib)?;
    for (write, least) in rows {
        let load =
            Load { write: *write, outstanding: 32, seconds: context.seconds, program: &context.program };
        let pairs = in_turn(
            context.pairs,
            || load.fio(&Engine::nbd(&uri), &ours, mib),
            || load.fio(&ceph.engine(), &theirs, mib),
        )?;
        let what = format!("{} {name}, 32 outstanding", if *write { "write" } else { "read" });
        let iops: Row = ("IOPS", |f| f.iops, AtLeast(*least));
        let cpu: Row = ("CPU us/IO, all nodes", |f| f.server_us, Bound::AtMost(1.0));
        print(&what, &pairs, &[iops, cpu]);
    }
    println!();
    Ok(())
}
