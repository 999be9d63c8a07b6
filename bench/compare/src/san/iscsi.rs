//! One copy, by iSCSI over the loopback network, beside tgt: the same initiators, the same size, both in memory. And beside NBD on the same
//! volume. And what idle sessions cost.

mod initiator;
mod sessions;

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::Cluster;
use super::nbd::{Figures, Load};
use super::{Peer, Setting, cpu_of, folder_in};
use crate::pair::{Bound, Bound::AtLeast, Bound::AtMost, in_turn, median, print_row};
use crate::program;

/// How long the target of others may take to start.
const LIMIT: Duration = Duration::from_secs(10);
/// The name of its target. Its disk is LUN 1.
const NAME: &str = "iqn.2003-01.org.example:disk";

/// A figure, and what is wanted of the ratio, if anything is.
type Row = (&'static str, fn(&Figures) -> f64, Option<Bound>);

/// The daemon of Linux's `tgt`, with one file as its disk.
struct Tgt {
    daemon: Peer,
    folder: tempfile::TempDir,
    port: u16,
}

impl Tgt {
    fn start(disk: &Path) -> Result<Tgt, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| format!("a port for tgt: {e}"))?;
        let port = listener.local_addr().map_err(|e| format!("a port for tgt: {e}"))?.port();
        drop(listener);
        let folder = tempfile::tempdir().map_err(|e| format!("a folder for tgt: {e}"))?;
        let portal = format!("portal=127.0.0.1:{port}");
        let mut command = Command::new("tgtd");
        command.env("TGT_IPC_SOCKET", folder.path().join("tgtd")).args(["-f", "--iscsi", &portal]);
        let child: Child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("tgtd cannot be run: {e}: ./dev setup --tests installs tgt"))?;
        let tgt = Tgt { daemon: Peer(child), folder, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if begun.elapsed() > LIMIT {
                return Err(format!(
                    "tgtd does not listen after {} s: is another one there, or is root needed?",
                    LIMIT.as_secs()
                ));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        tgt.admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", NAME])?;
        let disk = disk.display().to_string();
        tgt.admin(&["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &disk])?;
        tgt.admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
        Ok(tgt)
    }

    fn admin(&self, words: &[&str]) -> Result<(), String> {
        let mut command = Command::new("tgtadm");
        command.env("TGT_IPC_SOCKET", self.folder.path().join("tgtd")).args(["--lld", "iscsi"]).args(words);
        let done = command.output().map_err(|e| format!("tgtadm cannot be run: {e}"))?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("tgtadm {words:?}: {}", String::from_utf8_lossy(&done.stderr))),
        }
    }

    fn uri(&self) -> String {
        format!("iscsi://127.0.0.1:{}/{NAME}/1", self.port)
    }
}

/// `iscsi-perf` of libiscsi, which reads. It reports IOPS only: the mean latency follows from what is outstanding.
fn by_iscsi_perf(load: &Load<'_>, uri: &str, servers: &[u32]) -> Result<Figures, String> {
    let (outstanding, seconds) = (load.outstanding.to_string(), load.seconds.to_string());
    let arguments = ["-m", &outstanding, "-b", "8", "-r", "-t", &seconds, uri];
    let before = cpu_of(servers);
    let done = Command::new("iscsi-perf").args(arguments).stdin(Stdio::null()).output().map_err(|e| {
        format!("iscsi-perf cannot be run: {e}: ./dev setup --tests installs it (libiscsi-bin)")
    })?;
    let served = cpu_of(servers) - before;
    let text = String::from_utf8_lossy(&done.stdout);
    let iops = average(&text).filter(|iops| done.status.success() && *iops > 0.0).ok_or_else(|| {
        format!("iscsi-perf ended with {}: {text}{}", done.status, String::from_utf8_lossy(&done.stderr))
    })?;
    let ios = iops * f64::from(load.seconds);
    Ok(Figures {
        iops,
        server_us: served * 1e6 / ios,
        client_us: 0.0,
        mean_us: f64::from(load.outstanding) * 1e6 / iops,
    })
}

/// The last average in what `iscsi-perf` prints.
fn average(text: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once("iops average ")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// How a volume of a cluster is reached by the network, by this protocol.
fn network_uri(cluster: &Cluster, protocol: &str) -> Result<String, String> {
    let shown = cluster.loadline(&["volume", "attach", "disk", "--node", "node-1", "--json"])?;
    let shown: Value = serde_json::from_str(&shown).map_err(|e| e.to_string())?;
    let uri = shown["ways"][protocol]["network"].as_str();
    uri.map(str::to_owned).ok_or_else(|| format!("the volume is not reached by {protocol}: {shown}"))
}

/// Prints what was measured of both, or adds it to the rows of the JSON.
fn report(name: &str, pairs: &[(Figures, Figures)], rows: &[Row], json: Option<&mut Vec<Value>>) {
    let values = |of: fn(&Figures) -> f64| -> Vec<(f64, f64)> {
        pairs.iter().map(|(ours, theirs)| (of(ours), of(theirs))).collect()
    };
    if let Some(all) = json {
        all.extend(rows.iter().map(|(what, of, bound)| {
            let values = values(*of);
            let ratios: Vec<f64> = values.iter().map(|(ours, theirs)| ours / theirs).collect();
            let wanted = bound.map(|bound| match bound {
                AtLeast(least) => json!({ "at_least": least }),
                AtMost(most) => json!({ "at_most": most }),
            });
            json!({
                "load": name,
                "figure": what,
                "loadline": median(values.iter().map(|pair| pair.0)),
                "other": median(values.iter().map(|pair| pair.1)),
                "ratio": median(ratios.iter().copied()),
                "ratios": ratios,
                "wanted": wanted,
            })
        }));
        return;
    }
    for (what, of, bound) in rows {
        let values = values(*of);
        if let Some(bound) = bound {
            print_row(name, what, &values, *bound);
            continue;
        }
        let ratios: Vec<f64> = values.iter().map(|(ours, theirs)| ours / theirs).collect();
        let (low, high) = ratios.iter().fold((f64::MAX, 0f64), |(l, h), r| (l.min(*r), h.max(*r)));
        println!(
            "{:<44} {:>12.2} {:>12.2}  {:.2} ({low:.2}..{high:.2})",
            format!("{name}: {what}"),
            median(values.iter().map(|pair| pair.0)),
            median(values.iter().map(|pair| pair.1)),
            median(ratios.iter().copied()),
        );
    }
}

pub(super) fn measure(setting: &Setting<'_>) -> Result<(), String> {
    let (context, mib) = (setting.context, setting.mib);
    let folder = folder_in(setting.memory)?;
    let file = program::random_file(folder.path(), mib)?;
    // First: if it is missing, nothing else is begun.
    let tgt = Tgt::start(file.path())?;
    let (theirs, their_uri) = ([tgt.daemon.0.id()], tgt.uri());
    let cluster = Cluster::start(&context.program, setting.memory, 1, mib * 5 / 4 + 768)?;
    cluster.volume("disk", mib, 1, 1)?;
    let (uri, nbd) = (network_uri(&cluster, "iscsi")?, network_uri(&cluster, "nbd")?);
    let ours = cluster.processes();
    let load = |write, outstanding| Load::new(context, write, outstanding);
    let rows = |iops, mean, cpu| -> [Row; 3] {
        [
            ("IOPS", |f| f.iops, iops),
            ("mean us", |f| f.mean_us, mean),
            ("server CPU us/IO", |f| f.server_us, cpu),
        ]
    };
    let many = || rows(Some(AtLeast(2.0)), None, Some(AtMost(0.5)));
    let one = || rows(None, Some(AtMost(0.8)), None);
    let mut all = setting.json.then(Vec::new);
    if !setting.json {
        println!(
            "one copy in memory, iSCSI by the loopback network, by iscsi-perf and our initiator; ratios are Loadline / tgt\n"
        );
    }
    for (name, load, rows) in [
        ("iscsi-perf read, 32 outstanding", load(false, 32), many()),
        ("iscsi-perf read, 1 outstanding", load(false, 1), one()),
    ] {
        let pairs = in_turn(
            context.pairs,
            || by_iscsi_perf(&load, &uri, &ours),
            || by_iscsi_perf(&load, &their_uri, &theirs),
        )?;
        report(name, &pairs, &rows, all.as_mut());
    }
    for (name, load, rows) in [
        ("ours read, 32 outstanding", load(false, 32), many()),
        ("ours write, 32 outstanding", load(true, 32), many()),
        ("ours read, 1 outstanding", load(false, 1), one()),
        ("ours write, 1 outstanding", load(true, 1), one()),
    ] {
        let pairs =
            in_turn(context.pairs, || load.loadline(&uri, &ours), || load.loadline(&their_uri, &theirs))?;
        report(name, &pairs, &rows, all.as_mut());
    }
    if !setting.json {
        println!("\nthe same volume; our initiator; ratios are iSCSI / NBD\n");
    }
    for (name, load) in [
        ("NBD: read, 32 outstanding", load(false, 32)),
        ("NBD: write, 32 outstanding", load(true, 32)),
        ("NBD: read, 1 outstanding", load(false, 1)),
        ("NBD: write, 1 outstanding", load(true, 1)),
    ] {
        let bound = (load.outstanding > 1).then_some(AtLeast(0.7));
        let pairs = in_turn(context.pairs, || load.loadline(&uri, &ours), || load.loadline(&nbd, &ours))?;
        report(name, &pairs, &rows(bound, None, None), all.as_mut());
    }
    // What was measured is printed, whatever becomes of this.
    let idle = idle_sessions(setting);
    match (all, &idle) {
        (Some(rows), idle) => {
            let idle = idle.as_ref().ok().map(sessions::Figures::json);
            println!("{:#}", json!({ "pairs": context.pairs, "rows": rows, "idle_sessions": idle }));
        }
        (None, Ok(idle)) => println!("\n{}", idle.text()),
        (None, Err(_)) => {}
    }
    idle.map(|_| ())
}

/// The idle sessions alone.
pub(super) fn measure_sessions(setting: &Setting<'_>) -> Result<(), String> {
    let figures = idle_sessions(setting)?;
    match setting.json {
        true => println!("{:#}", json!({ "idle_sessions": figures.json() })),
        false => println!("{}", figures.text()),
    }
    Ok(())
}

/// Measures idle sessions with a node that has carried no load: memory that a load has left would be used again, and hide what they add.
fn idle_sessions(setting: &Setting<'_>) -> Result<sessions::Figures, String> {
    let cluster = Cluster::start(&setting.context.program, setting.memory, 1, 1024)?;
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--copies", "1"])?;
    sessions::measure(&cluster, &network_uri(&cluster, "iscsi")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_average_of_iscsi_perf_is_read() {
        let text = "\r00:00:01 - lba 4, iops current 14822 (57 MB/s), iops average 15198 (59 MB/s), in_flight 32\riops average 15038 \
                    (58 MB/s)    \n\nfinished.\n";
        assert_eq!(average(text), Some(15038.0));
        assert_eq!(average("Failed to connect"), None);
    }
}
