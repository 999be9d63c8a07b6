//! The local path, vhost-user-blk: beside QEMU's storage daemon, the file itself, and NBD. Our generator is the client of all.

use std::path::Path;
use std::process::{Command, Stdio};

use super::cluster::Cluster;
use super::nbd::{Figures, Load, Row, print};
use super::{Peer, Setting, folder_in};
use crate::pair::{Bound::AtLeast, Bound::AtMost, in_turn, median};
use crate::program;

const IOPS: fn(&Figures) -> f64 = |f| f.iops;
const MEAN: fn(&Figures) -> f64 = |f| f.mean_us;

/// QEMU's storage daemon with a file as a vhost-user disk.
fn daemon(file: &Path, socket: &Path) -> Result<Peer, String> {
    let node = format!("driver=file,node-name=disk,filename={},aio=io_uring", file.display());
    let export = format!(
        "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path={},writable=on",
        socket.display()
    );
    let mut command = Command::new("qemu-storage-daemon");
    command.args(["--blockdev", &node, "--export", &export]).stdin(Stdio::null());
    let child =
        command.spawn().map_err(|e| format!("qemu-storage-daemon: {e} (./dev setup --tests installs it)"))?;
    let peer = Peer(child);
    for _ in 0..500 {
        // Not connected to: it has one front-end at a time.
        if socket.exists() {
            return Ok(peer);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Err("qemu-storage-daemon does not listen".into())
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    one_copy(setting)?;
    two_copies(setting)?;
    on_a_disk(setting)
}

fn iops(least: f64) -> Row {
    ("IOPS", IOPS, AtLeast(least))
}

fn one_copy(setting: &Setting<'_>) -> Result<(), String> {
    let (context, mib) = (setting.context, setting.mib);
    println!("one copy in memory, vhost-user; ratios are Loadline / qemu-storage-daemon\n");
    let cluster = Cluster::start(&context.program, setting.memory, 1, mib * 5 / 4 + 768)?;
    cluster.volume("disk", mib, 1, 1)?;
    let (uri, ours) = (cluster.vhost("disk", 1), cluster.processes());
    let folder = folder_in(setting.memory)?;
    let (file, bare) = (program::random_file(folder.path(), mib)?, program::random_file(folder.path(), mib)?);
    let bare = bare.path().display().to_string();
    let socket = folder.path().join("vhost.sock");
    let peer = daemon(file.path(), &socket)?;
    let (theirs, their_uri) = ([peer.0.id()], format!("vhost-user:{}", socket.display()));
    let cpu: Row = ("server CPU us/IO", |f| f.server_us, AtMost(0.5));
    for (name, write) in [("read, 32 outstanding", false), ("write, 32 outstanding", true)] {
        let load = Load::new(context, write, 32);
        let pairs =
            in_turn(context.pairs, || load.loadline(&uri, &ours), || load.loadline(&their_uri, &theirs))?;
        print(name, &pairs, &[iops(2.0), cpu]);
    }
    println!("\nthe same; ratios are Loadline / the generator on a file in memory itself\n");
    for (name, write) in [("read, 32 outstanding", false), ("write, 32 outstanding", true)] {
        let load = Load::new(context, write, 32);
        let pairs = in_turn(context.pairs, || load.loadline(&uri, &ours), || load.loadline(&bare, &[]))?;
        print(name, &pairs, &[iops(0.7)]);
    }
    for (name, write) in [("read, 1 outstanding", false), ("write, 1 outstanding", true)] {
        added(setting, name, &Load::new(context, write, 1), (&uri, &ours), &bare)?;
    }
    println!();
    Ok(())
}

/// What is added to the latency of the device itself.
fn added(
    setting: &Setting<'_>,
    name: &str,
    load: &Load<'_>,
    (uri, ours): (&str, &[u32]),
    bare: &str,
) -> Result<(), String> {
    let pairs = in_turn(setting.context.pairs, || load.loadline(uri, ours), || load.loadline(bare, &[]))?;
    let of = |of: fn(&(Figures, Figures)) -> f64| median(pairs.iter().map(of));
    println!(
        "{name}: mean {:.1} us, of the device itself {:.1} us: {:+.1} us",
        of(|(ours, _)| MEAN(ours)),
        of(|(_, theirs)| MEAN(theirs)),
        of(|(ours, theirs)| MEAN(ours) - MEAN(theirs))
    );
    Ok(())
}

fn two_copies(setting: &Setting<'_>) -> Result<(), String> {
    let (context, mib) = (setting.context, setting.mib);
    println!("two copies on two nodes in memory; ratios are vhost-user / NBD on a unix socket\n");
    let cluster = Cluster::start(&context.program, setting.memory, 2, mib * 5 / 4 + 768)?;
    let nbd = cluster.volume("disk", mib, 2, 1)?;
    let (uri, ours) = (cluster.vhost("disk", 1), cluster.processes());
    let write = Load::new(context, true, 32);
    let pairs = in_turn(context.pairs, || write.loadline(&uri, &ours), || write.loadline(&nbd, &ours))?;
    print("write, 32 outstanding", &pairs, &[iops(1.5)]);
    println!();
    Ok(())
}

fn on_a_disk(setting: &Setting<'_>) -> Result<(), String> {
    let (context, mib) = (setting.context, setting.mib);
    println!("one copy on a disk; ratios are Loadline / the generator on a file on that disk itself\n");
    let cluster = Cluster::start(&context.program, setting.disk, 1, mib * 5 / 4 + 768)?;
    cluster.volume("disk", mib, 1, 1)?;
    let (uri, ours) = (cluster.vhost("disk", 1), cluster.processes());
    let bare = program::random_file(setting.disk, mib)?;
    let bare = bare.path().display().to_string();
    let rows = [
        ("read, 1 outstanding", 1, false),
        ("read, 32 outstanding", 32, false),
        ("read, 32 outstanding, polling", 32, true),
    ];
    for (name, outstanding, poll) in rows {
        let load = Load { poll, ..Load::new(context, false, outstanding) };
        let pairs = in_turn(context.pairs, || load.loadline(&uri, &ours), || load.loadline(&bare, &[]))?;
        let mean: Row = ("mean us", MEAN, AtMost(1.05));
        print(name, &pairs, &[iops(0.95), mean]);
    }
    println!();
    Ok(())
}
