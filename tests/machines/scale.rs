//! Figures: what virtual machines take of their host, from fleets of several sizes. `./dev bench machines` prints them.

use std::fs;
use std::time::{Duration, Instant};

use super::line::line_through;
use super::support::{eventually, finish};
use super::{LIMIT, Place, study};

/// Machines of each fleet, if `LOADLINE_BENCH_WORKERS` names no others.
const SIZES: &str = "1 2 4 8";
/// For how many machines the need is computed from the slopes.
const ON_PAPER: f64 = 64.0;
/// I/Os of each machine in a second: little, so that the machine itself is measured.
const RATE: u32 = 20;
/// How long processor time is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// What one fleet took.
struct Taken {
    machines: f64,
    /// From the start of a machine to its first I/O, the median, seconds.
    first_io_s: f64,
    /// Of all machines until they measure, seconds of a processor.
    boot_cpu_s: f64,
    /// Of all machines while they measure.
    cores: f64,
    /// Of all QEMUs, shared pages in parts, MiB.
    memory_mib: f64,
    /// The most that a worker in its machine has had, MiB.
    worker_mib: f64,
}

#[test]
#[ignore = "it measures: run ./dev bench machines"]
fn what_machines_take_of_their_host() {
    let sizes = std::env::var("LOADLINE_BENCH_WORKERS").unwrap_or_default();
    let sizes = if sizes.trim().is_empty() { SIZES.to_string() } else { sizes };
    println!("machines  first I/O, s  boot, processor s  at {RATE} IOPS, cores  memory, MiB  a worker, MiB");
    let all: Vec<Taken> =
        sizes.split_whitespace().map(|size| measured(size.parse().expect("a number"))).collect();
    if all.iter().any(|taken| taken.machines != all[0].machines) {
        on_paper("boot, processor s", &all, |taken| taken.boot_cpu_s);
        on_paper("cores", &all, |taken| taken.cores);
        on_paper("memory, MiB", &all, |taken| taken.memory_mib);
    }
}

fn measured(machines: usize) -> Taken {
    let place = Place::new();
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let text = study(&format!(
        "[fleet]\nnodes = {machines}\ndisk_size = \"4MiB\"\nmachine = {{}}\n[target]\nfolder = {:?}\n\
         [[profile]]\nrate = \"{}iops\"",
        data.path(),
        RATE as usize * machines
    ))
    .replace("profiles = [\"B4-T1-O4-W50-PR\"]\n", "")
    .replace("measure = \"2s\"", "measure = \"18s\"")
    .replace("verify = true", "verify = false");
    fs::write(place.path("study.toml"), text).unwrap();
    let mut command = place.command();
    let child = command.args(["run", "study.toml", "--out", "run"]).spawn().unwrap();
    let starts =
        || fs::read_to_string(place.path("run/events.jsonl")).unwrap_or_default().contains("\"starting\"");
    eventually("they start to measure", LIMIT, starts);
    let boot_cpu_s = used(&place);
    // The start is agreed on half a second before.
    std::thread::sleep(Duration::from_secs(2));
    let (from, before) = (Instant::now(), used(&place));
    std::thread::sleep(WINDOW);
    let cores = (used(&place) - before) / from.elapsed().as_secs_f64();
    let memory_mib = place.machines().iter().map(|process| memory_of(*process)).sum();
    let said = finish(child, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let report = place.report();
    let starts = report["machines"].as_array().unwrap();
    let mut first: Vec<f64> =
        starts.iter().map(|start| start["start_to_first_io_s"].as_f64().unwrap()).collect();
    first.sort_by(f64::total_cmp);
    let most = starts.iter().map(|start| start["worker_bytes"].as_u64().unwrap()).max().unwrap();
    let taken = Taken {
        machines: machines as f64,
        first_io_s: first[first.len() / 2],
        boot_cpu_s,
        cores,
        memory_mib,
        worker_mib: most as f64 / (1 << 20) as f64,
    };
    println!(
        "{:8}  {:12.2}  {:17.2}  {:17.3}  {:11.0}  {:13.1}",
        taken.machines, taken.first_io_s, taken.boot_cpu_s, taken.cores, taken.memory_mib, taken.worker_mib
    );
    taken
}

/// Seconds of a processor that all machines have used.
fn used(place: &Place) -> f64 {
    let of = |process: u32| -> f64 {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // Behind the name: the 12th and 13th are the times in user and system mode, in hundredths of a second.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok()).unwrap_or_default();
        (ticks(11) + ticks(12)) / 100.0
    };
    place.machines().into_iter().map(of).sum()
}

/// A process's part of the memory, MiB: pages that several have are divided among them.
fn memory_of(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    kib.and_then(|kib| kib.trim().trim_end_matches("kB").trim().parse::<f64>().ok()).unwrap_or_default()
        / 1024.0
}

fn on_paper(what: &str, all: &[Taken], of: impl Fn(&Taken) -> f64) {
    let points: Vec<(f64, f64)> = all.iter().map(|taken| (taken.machines, of(taken))).collect();
    let (slope, intercept) = line_through(&points);
    println!(
        "{what}: {slope:.3} for each machine, {intercept:.3} beside; for {ON_PAPER} machines on paper: {:.1}",
        intercept + slope * ON_PAPER
    );
}
