//! Figures: what the controller needs for each worker, from fleets of several sizes. `./dev bench ssh` prints them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::line::line_through;
use super::ssh_hosts::{HOSTS, Hosts, LIMIT, hosts};
use super::support::{eventually, finish};
use super::{node, results};

/// Workers of each fleet, if `LOADLINE_BENCH_WORKERS` names no others. Multiples of the number of hosts.
const SIZES: &str = "16 64 128 256";
/// I/Os that each worker issues in a second. The two processors of a small machine also run all workers: 256 of them issue 5,120
/// I/Os in a second, and leave most of the processors to the controller.
const RATE: u32 = 20;
/// For how many workers the need is computed from the slopes.
const ON_PAPER: f64 = 1024.0;
/// How long the processor time of the controller is measured. It begins 4 s after the load.
const WINDOW: Duration = Duration::from_secs(20);

/// What one fleet took.
struct Taken {
    workers: f64,
    /// From the command to the start of the load, seconds.
    start: f64,
    spread_us: f64,
    clock_error_us: f64,
    controller_cores: f64,
    /// Of all `ssh` processes of the controller together.
    ssh_cores: f64,
    /// The controller's largest resident set, kB.
    peak_kb: f64,
    /// Of everything that runs on this machine: if it comes near to the number of processors, the row is not valid.
    machine_cores: f64,
}

#[test]
#[ignore = "it measures: run ./dev bench ssh"]
fn what_the_controller_needs_for_each_worker() {
    let Some(hosts) = hosts() else { return };
    let sizes = std::env::var("LOADLINE_BENCH_WORKERS").unwrap_or_default();
    let sizes = if sizes.trim().is_empty() { SIZES.to_string() } else { sizes };
    let sizes: Vec<usize> = sizes.split_whitespace().map(|size| size.parse().expect("a number")).collect();
    assert!(
        sizes.iter().all(|size| *size > 0 && size.is_multiple_of(HOSTS)),
        "multiples of {HOSTS}: {sizes:?}"
    );
    println!(
        "workers  start, s  spread, us  clock error, us  controller, cores  its ssh, cores  peak memory, kB  machine, cores"
    );
    let all: Vec<Taken> = sizes.iter().map(|size| measured(&hosts, *size)).collect();
    if all.iter().any(|taken| taken.workers != all[0].workers) {
        on_paper("controller, cores", &all, |taken| taken.controller_cores);
        on_paper("its ssh, cores", &all, |taken| taken.ssh_cores);
        on_paper("peak memory, kB", &all, |taken| taken.peak_kb);
    }
}

/// Measures a fleet of so many workers, and prints a row.
fn measured(hosts: &Hosts, workers: usize) -> Taken {
    let disks = vec![Path::new("null:1GiB"); workers / HOSTS];
    let nodes: String = (1..=HOSTS).map(|host| node(&format!("h{host}"), &disks)).collect();
    let study = hosts.study(&format!(
        "name = \"many\"\n[[profile]]\nrate = \"{RATE}iops\"\n[phases]\nwarm_up = \"2s\"\nmeasure = \"26s\"\ncool_down = \"0s\"\n\
         [run]\nrepeats = 1\n[fleet]\nworkers_per_node = {}\n{nodes}",
        workers / HOSTS
    ));
    // The program is on the hosts then.
    hosts.run(&["run", &study, "--plan"]);
    let out = hosts.folder.join(hosts.name("run"));
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let child = hosts.loadline(&["run", &study, "--out", out.to_str().unwrap()]).spawn().unwrap();
    let id = child.id();
    let (stop, stopped) = channel();
    let peak = std::thread::spawn(move || peak_of(id, &stopped));
    let mut starts = None;
    eventually("it starts", LIMIT, || {
        starts = load_start(&out);
        starts.is_some()
    });
    let starts = starts.unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    std::thread::sleep((starts + Duration::from_secs(4)).saturating_sub(now));
    let (from, before, busy_before) = (Instant::now(), used(id), busy());
    std::thread::sleep(WINDOW);
    let (after, busy_after, length) = (used(id), busy(), from.elapsed());
    let said = finish(child, LIMIT);
    drop::<Sender<()>>(stop);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let result = results(&out).remove(0);
    let lost = |worker: &&Value| !worker["lost"].is_null();
    assert_eq!(result["workers"].as_array().unwrap().iter().filter(lost).count(), 0, "{}", said.err);
    let us = |key: &str| result["start"][key].as_u64().unwrap() as f64 / 1e3;
    // Threads and processes that began or ended meanwhile are not counted.
    let cores = |is: &dyn Fn(u32) -> bool| {
        let of = after.iter().filter(|((process, _), _)| is(*process));
        let ns: u64 = of.filter_map(|(thread, ns)| Some(ns - before.get(thread)?)).sum();
        ns as f64 / length.as_nanos() as f64
    };
    let taken = Taken {
        workers: workers as f64,
        start: starts.saturating_sub(begun).as_secs_f64(),
        spread_us: us("spread_ns"),
        clock_error_us: us("clock_error_ns"),
        controller_cores: cores(&|process| process == id),
        ssh_cores: cores(&|process| process != id),
        peak_kb: peak.join().unwrap() as f64,
        machine_cores: (busy_after - busy_before) / length.as_secs_f64(),
    };
    println!(
        "{:7}  {:8.2}  {:10.0}  {:15.0}  {:17.4}  {:14.4}  {:15}  {:14.2}",
        taken.workers,
        taken.start,
        taken.spread_us,
        taken.clock_error_us,
        taken.controller_cores,
        taken.ssh_cores,
        taken.peak_kb,
        taken.machine_cores
    );
    taken
}

/// When the load begins, since 1970; `None` if that is not agreed yet.
fn load_start(run: &Path) -> Option<Duration> {
    let events = fs::read_to_string(run.join("events.jsonl")).ok()?;
    let line = events.lines().find(|line| line.contains("\"starting\""))?;
    let event: Value = serde_json::from_str(line).ok()?;
    Some(Duration::from_millis(event["unix_ms"].as_u64()?))
}

/// Nanoseconds that each thread of a process and of its children has run, by process and thread.
fn used(id: u32) -> BTreeMap<(u32, String), u64> {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent.is_some_and(|parent| parent == id.to_string())
    };
    let mut used = BTreeMap::new();
    for process in numbers.filter(|process| *process == id || is_child(process)) {
        for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
            let name = thread.file_name().to_string_lossy().into_owned();
            used.extend(ns.map(|ns| ((process, name), ns)));
        }
    }
    used
}

/// Seconds that the processors of this machine have worked.
fn busy() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap();
    let all = text.lines().next().unwrap().split_whitespace().skip(1);
    // User, nice, system, idle, waiting for I/O, interrupts, soft interrupts; a hundredth of a second each.
    let all: Vec<f64> = all.take(7).map(|ticks| ticks.parse().unwrap()).collect();
    (all.iter().sum::<f64>() - all[3] - all[4]) / 100.0
}

/// The largest resident set that a process had, kB. Reads it until the process or the wait for it ends.
fn peak_of(id: u32, stopped: &Receiver<()>) -> u64 {
    let mut peak = 0;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_millis(20)) {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kb = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        peak = peak.max(kb.unwrap_or(0));
    }
    peak
}

/// Prints what one more worker takes, what the controller takes without workers, and what many workers would take: a straight line
/// through all fleets, by least squares.
fn on_paper(what: &str, all: &[Taken], of: impl Fn(&Taken) -> f64) {
    let points: Vec<(f64, f64)> = all.iter().map(|taken| (taken.workers, of(taken))).collect();
    let (slope, intercept) = line_through(&points);
    println!(
        "{what}: {slope:.6} for each worker, {intercept:.4} without workers; for {ON_PAPER} workers on paper: {:.4}",
        intercept + slope * ON_PAPER
    );
}
