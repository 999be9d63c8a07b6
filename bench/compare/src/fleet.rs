//! A fleet of 64 workers: does it offer what it says, on time, in how much memory?

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::pair::median;
use crate::program::number;
use crate::steal::CpuTicks;

/// How often it is measured.
const RUNS: usize = 3;
const WORKERS: u32 = 64;
const IOPS_EACH: u32 = 100;

struct Figures {
    iops: f64,
    p99_us: f64,
    /// Private memory of the largest worker, and of all processes together, KiB.
    worker_kib: u64,
    all_kib: u64,
}

/// Measures it a few times, and prints the medians of IOPS and lateness, and the most memory.
pub(crate) fn measure(program: &Path, folder: &Path) -> Result<(), String> {
    let cpu = CpuTicks::now();
    let runs = (0..RUNS).map(|_| run(program, folder)).collect::<Result<Vec<Figures>, String>>()?;
    let row = |what: &str, value: String, wanted: &str, met: bool| {
        println!("{what:<44} {value:>25}  {wanted}: {}", if met { "met" } else { "NOT MET" });
    };
    let offered = f64::from(WORKERS * IOPS_EACH);
    let iops = median(runs.iter().map(|r| r.iops));
    row(
        "fleet of 64 at 100 IOPS each: total",
        format!("{iops:.1} IOPS"),
        "6400 to within 1 %",
        (iops / offered - 1.0).abs() <= 0.01,
    );
    let p99 = median(runs.iter().map(|r| r.p99_us));
    let (low, high) = runs.iter().fold((f64::MAX, 0f64), |(l, h), r| (l.min(r.p99_us), h.max(r.p99_us)));
    let range = format!("{p99:.0} us ({low:.0}..{high:.0})");
    row("fleet of 64: p99 lateness", range, "under 1000 us", p99 < 1000.0);
    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let worker = runs.iter().map(|r| r.worker_kib).max().unwrap_or(0);
    row("fleet of 64: a worker's private memory", mib(worker), "under 16 MiB", worker < 16 * 1024);
    let all = runs.iter().map(|r| r.all_kib).max().unwrap_or(0);
    row("fleet of 64: everything's private memory", mib(all), "under 1536 MiB", all < 1536 * 1024);
    if let (Some(before), Some(after)) = (cpu, CpuTicks::now()) {
        println!("{:<44} {:>23.1} %", "fleet of 64: CPU that others took (steal)", after.steal_since(before));
    }
    Ok(())
}

/// Runs a study of 64 workers at 100 IOPS each on files in `folder`, and reads their memory meanwhile.
fn run(program: &Path, folder: &Path) -> Result<Figures, String> {
    let error = |e: std::io::Error| format!("a study in {}: {e}", folder.display());
    let place = tempfile::Builder::new().prefix("loadline-compare-").tempdir_in(folder).map_err(error)?;
    let study = place.path().join("fleet.toml");
    let text = format!(
        "name = \"fleet\"\n\n[target]\nfolder = {:?}\n\n[fleet]\nnodes = 4\nworkers_per_node = {}\ndisk_size = \
         \"8MiB\"\n\n[phases]\nwarm_up = \"3s\"\nmeasure = \"20s\"\n\n[[profile]]\nuse = \"B4-T1-O4-W30-PR\"\nrate = \
         \"{IOPS_EACH}iops\"\n\n[run]\nrepeats = 1\n",
        place.path().join("disks"),
        WORKERS / 4
    );
    fs::write(&study, text).and_then(|()| fs::create_dir(place.path().join("disks"))).map_err(error)?;
    let run = place.path().join("run");
    let mut child = Command::new(program)
        .arg("run")
        .arg(&study)
        .arg("--out")
        .arg(&run)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(error)?;
    let (mut largest, mut all) = (0u64, 0u64);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(error)? {
            break status;
        }
        let private: Vec<u64> = family(child.id()).into_iter().filter_map(private_kib).collect();
        all = all.max(private.iter().sum());
        largest = largest.max(private.iter().skip(1).copied().max().unwrap_or(0));
        std::thread::sleep(Duration::from_millis(500));
    };
    if !matches!(status.code(), Some(0 | 3)) {
        return Err(format!("the study ended with {status}"));
    }
    let result = fs::read_dir(run.join("steps"))
        .map_err(error)?
        .flatten()
        .map(|e| e.path().join("result.json"))
        .find(|p| p.exists())
        .ok_or("the study left no result")?;
    let json: Value =
        serde_json::from_str(&fs::read_to_string(result).map_err(error)?).map_err(|e| e.to_string())?;
    let figures = json.get("figures").unwrap_or(&json);
    Ok(Figures {
        iops: number(figures, "total/iops")?,
        p99_us: number(figures, "lateness_us/p99")?,
        worker_kib: largest,
        all_kib: all,
    })
}

/// A process and its children, itself first.
fn family(parent: u32) -> Vec<u32> {
    let mut all = vec![parent];
    for task in fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|p| p.parse::<u32>().ok()));
    }
    all
}

/// Memory that only this process has, KiB.
fn private_kib(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let lines = text.lines().filter(|l| l.starts_with("Private_Clean:") || l.starts_with("Private_Dirty:"));
    Some(lines.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum())
}
