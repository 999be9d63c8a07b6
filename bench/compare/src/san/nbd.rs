//! One copy, by NBD on a unix socket, beside nbdkit: the same client, the same size, both in memory.

use std::path::{Path, PathBuf};

use super::cluster::Cluster;
use super::{Peer, Setting, cpu_of, folder_in};
use crate::pair::{Bound, Bound::AtLeast, Bound::AtMost, Context, in_turn, print_row, words};
use crate::program::{self, number};

/// What one run came to.
pub(super) struct Figures {
    pub(super) iops: f64,
    /// Of all processes that serve.
    pub(super) server_us: f64,
    pub(super) client_us: f64,
    pub(super) mean_us: f64,
}

/// What is asked, and of what.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) write: bool,
    pub(super) outstanding: u32,
    /// Our own generator never sleeps.
    pub(super) poll: bool,
    pub(super) seconds: u32,
    pub(super) program: &'a Path,
}

impl<'a> Load<'a> {
    /// For the length that was requested.
    pub(super) fn new(context: &'a Context, write: bool, outstanding: u32) -> Load<'a> {
        Load { write, outstanding, poll: false, seconds: context.seconds, program: &context.program }
    }

    /// fio, with an engine for such a disk.
    pub(super) fn fio(&self, engine: &Engine, servers: &[u32], mib: u64) -> Result<Figures, String> {
        let (rw, direction) = if self.write { ("randwrite", "write") } else { ("randread", "read") };
        let mut arguments = words(
            "--name=compare --bs=4k --thread --time_based --norandommap --randrepeat=0 --output-format=json",
        );
        arguments.extend([
            format!("--rw={rw}"),
            format!("--iodepth={}", self.outstanding),
            format!("--runtime={}", self.seconds),
            format!("--size={mib}m"),
        ]);
        arguments.extend_from_slice(&engine.arguments);
        let before = cpu_of(servers);
        let done = program::run_with(Path::new("fio"), &arguments, &engine.environment)?;
        let served = cpu_of(servers) - before;
        let job = |path: &str| number(&done.json, &format!("jobs/0/{direction}/{path}"));
        let ios = job("total_ios")?;
        Ok(Figures {
            iops: job("iops")?,
            server_us: served * 1e6 / ios,
            client_us: done.cpu_s * 1e6 / ios,
            mean_us: job("lat_ns/mean")? / 1e3,
        })
    }

    /// Our own generator.
    pub(super) fn loadline(&self, uri: &str, servers: &[u32]) -> Result<Figures, String> {
        let profile = format!("B4-T1-O{}-W{}-PR", self.outstanding, if self.write { 100 } else { 0 });
        let mut arguments = words("bench --destroy-data --warm-up 0s --drain 5s --json - --profile");
        arguments.extend([profile, "--for".into(), format!("{}s", self.seconds), uri.into()]);
        arguments.extend(self.poll.then(|| "--poll".into()));
        let before = cpu_of(servers);
        let done = program::run(self.program, &arguments)?;
        let served = cpu_of(servers) - before;
        let ios = number(&done.json, "total/iops")? * number(&done.json, "window_s")?;
        Ok(Figures {
            iops: number(&done.json, "total/iops")?,
            server_us: served * 1e6 / ios,
            client_us: done.cpu_s * 1e6 / ios,
            mean_us: number(&done.json, "total/latency_us/mean")?,
        })
    }
}

/// fio's way to a disk.
pub(super) struct Engine {
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(&'static str, PathBuf)>,
}

impl Engine {
    /// To one of an NBD server.
    pub(super) fn nbd(uri: &str) -> Engine {
        let arguments = vec!["--ioengine=nbd".into(), format!("--uri={uri}")];
        Engine { arguments, environment: Vec::new() }
    }
}

/// A figure: what it is, which, and what is wanted of the ratio.
pub(super) type Row = (&'static str, fn(&Figures) -> f64, Bound);

/// Prints what was measured of both.
pub(super) fn print(name: &str, pairs: &[(Figures, Figures)], rows: &[Row]) {
    for (what, of, bound) in rows {
        let values: Vec<(f64, f64)> = pairs.iter().map(|(ours, theirs)| (of(ours), of(theirs))).collect();
        print_row(name, what, &values, *bound);
    }
    let median = |of: fn(&Figures) -> f64| crate::pair::median(pairs.iter().map(|(ours, _)| of(ours)));
    println!(
        "    ours: {:.2} us of CPU at the client, {:.2} us at all nodes, for each I/O",
        median(|f| f.client_us),
        median(|f| f.server_us)
    );
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    let (context, mib) = (setting.context, setting.mib);
    println!("one copy in memory, NBD on a unix socket; ratios are Loadline / nbdkit\n");
    let cluster = Cluster::start(&context.program, setting.memory, 1, mib * 5 / 4 + 768)?;
    let uri = cluster.volume("disk", mib, 1, 1)?;
    let ours = cluster.processes();
    let folder = folder_in(setting.memory)?;
    let file = program::random_file(folder.path(), mib)?;
    let socket = folder.path().join("nbd.sock");
    let peer = Peer::nbdkit(&socket, file.path())?;
    let (theirs, their_uri) = ([peer.0.id()], format!("nbd+unix:///?socket={}", socket.display()));
    let load = |write, outstanding| Load::new(context, write, outstanding);
    let iops = |bound| -> Row { ("IOPS", |f| f.iops, bound) };
    let cpu = |bound| -> Row { ("server CPU us/IO", |f| f.server_us, bound) };
    let mean = |bound| -> Row { ("mean us", |f| f.mean_us, bound) };
    let by_fio = [
        ("fio read, 32 outstanding", load(false, 32), vec![iops(AtLeast(1.3)), cpu(AtMost(0.6))]),
        ("fio write, 32 outstanding", load(true, 32), vec![iops(AtLeast(1.0)), cpu(AtMost(0.85))]),
        ("fio read, 1 outstanding", load(false, 1), vec![mean(AtMost(1.1))]),
        ("fio write, 1 outstanding", load(true, 1), vec![mean(AtMost(1.1))]),
    ];
    for (name, load, rows) in by_fio {
        let pairs = in_turn(
            context.pairs,
            || load.fio(&Engine::nbd(&uri), &ours, mib),
            || load.fio(&Engine::nbd(&their_uri), &theirs, mib),
        )?;
        print(name, &pairs, &rows);
    }
    let by_loadline = [
        ("loadline bench read, 32 outstanding", load(false, 32), vec![iops(AtLeast(2.0))]),
        ("loadline bench write, 32 outstanding", load(true, 32), vec![iops(AtLeast(2.0))]),
    ];
    for (name, load, rows) in by_loadline {
        let pairs =
            in_turn(context.pairs, || load.loadline(&uri, &ours), || load.loadline(&their_uri, &theirs))?;
        print(name, &pairs, &rows);
    }
    println!();
    Ok(())
}
