//! The virtual SAN beside other servers: what `./dev bench san` runs.

mod ceph;
pub(crate) mod cluster;
mod idle;
mod iscsi;
mod kill;
mod nbd;
mod storm;
mod transport;
mod vhost;
mod volumes;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::pair::Context;

/// What the measurements need to know.
pub(crate) struct Setting<'a> {
    pub(crate) context: &'a Context,
    /// Folders in memory and on a disk.
    pub(crate) memory: &'a Path,
    pub(crate) disk: &'a Path,
    /// Size of volumes and files, MiB.
    pub(crate) mib: u64,
    /// How often nodes are killed.
    pub(crate) kills: u32,
    /// Print JSON instead of a table, where that is possible.
    pub(crate) json: bool,
}

/// Measures what is wanted: all, if nothing is named, but what needs Ceph or tgt.
pub(crate) fn measure(setting: &Setting<'_>, names: &[String]) -> Result<(), String> {
    let named = |name: &str| names.iter().any(|n| name.contains(n.as_str()));
    let wanted = |name: &str| names.is_empty() || named(name);
    if wanted("nbd") {
        nbd::measure(setting)?;
    }
    if wanted("vhost") {
        vhost::measure(setting)?;
    }
    if named("iscsi") {
        iscsi::measure(setting)?;
    } else if named("iscsi-sessions") {
        iscsi::measure_sessions(setting)?;
    }
    if named("ceph") {
        ceph::measure(setting)?;
    }
    if wanted("kill") {
        kill::measure(setting)?;
    }
    if wanted("idle") {
        idle::measure(setting)?;
    }
    if wanted("transport") {
        transport::measure(setting)?;
    }
    if wanted("storm") {
        storm::measure(setting)?;
    }
    if wanted("volumes") {
        volumes::measure(setting)?;
    }
    Ok(())
}

/// A folder of our own in another one, that goes when dropped.
pub(crate) fn folder_in(place: &Path) -> Result<tempfile::TempDir, String> {
    let made = tempfile::Builder::new().prefix("loadline-compare-").tempdir_in(place);
    made.map_err(|e| format!("a folder in {}: {e}", place.display()))
}

/// User and system time that processes have used so far, seconds, with their kernel workers.
fn cpu_of(processes: &[u32]) -> f64 {
    let ticks = |process: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
    };
    processes.iter().filter_map(ticks).sum::<f64>() / 100.0
}

/// CPU that processes use in this time, which is waited for: percent of a core.
fn share_of_core(processes: &[u32], time: Duration) -> f64 {
    let (begun, before) = (Instant::now(), cpu_of(processes));
    std::thread::sleep(time);
    (cpu_of(processes) - before) / begun.elapsed().as_secs_f64() * 100.0
}

/// Memory of a process that is in RAM, MiB.
fn resident_mib(process: u32) -> Result<f64, String> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
    let kib: Option<f64> = resident.and_then(|kib| kib.parse().ok());
    kib.map(|kib| kib / 1024.0).ok_or_else(|| format!("{path} has no resident memory"))
}

fn met(met: bool) -> &'static str {
    if met { "met" } else { "NOT MET" }
}

/// A server of others, which is killed when dropped.
struct Peer(std::process::Child);

impl Peer {
    /// nbdkit, which serves a file by a socket.
    fn nbdkit(socket: &PathBuf, file: &Path) -> Result<Peer, String> {
        let mut command = std::process::Command::new("nbdkit");
        command.arg("--foreground").arg("--unix").arg(socket).arg("file").arg(file);
        let child = command.spawn().map_err(|e| format!("nbdkit: {e} (./dev setup --tests installs it)"))?;
        let peer = Peer(child);
        for _ in 0..500 {
            if std::os::unix::net::UnixStream::connect(socket).is_ok() {
                return Ok(peer);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("nbdkit does not listen".into())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
