//! What large runs cost: `loadline analyze` and `loadline report` over 1,000 steps of 64 workers, and the page of 100.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use loadline_base::clock::Nanos;
use loadline_fleet::{WorkerId, WorkerInfo};
use loadline_load::CpuTime;
use loadline_load::host::{CpuShares, HostSecond, Inventory, Pressure};
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::window::Window;
use loadline_study::StudyError;
use loadline_study::folder::OwnedFolder;
use loadline_study::folder::manifest::Manifest;
use loadline_study::folder::result::{NodeFigures, StepResult, WorkerResult};
use loadline_study::folder::series::SeriesWriter;
use loadline_study::read;
use loadline_study::when::When;

const NODES: u32 = 4;
const WORKERS: u32 = 64;
const SECONDS: i64 = 60;
/// How often a command's memory is read.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A study of this many block sizes, each with four mixes and five depths.
fn study(block_sizes: &[&str], repeats: u32) -> String {
    format!(
        "name = \"large\"\n[matrix]\nblock_size = {block_sizes:?}\nwrite_percent = [0, 30, 50, 100]\n\
         outstanding = [1, 4, 16, 64, 256]\n[fleet]\nnodes = {NODES}\nworkers_per_node = {}\n[phases]\n\
         measure = \"{SECONDS}s\"\n[run]\nrepeats = {repeats}\n",
        WORKERS / NODES
    )
}

/// Makes such runs and measures the commands on them.
pub(crate) fn measure(program: &Path, folder: &Path) -> Result<(), String> {
    let place = tempfile::Builder::new()
        .prefix("loadline-compare-")
        .tempdir_in(folder)
        .map_err(|e| format!("a folder in {}: {e}", folder.display()))?;
    let (small, large) = (place.path().join("small"), place.path().join("large"));
    for (run, text) in [(&small, study(&["4K"], 5)), (&large, study(&["4K", "8K", "64K", "256K", "1M"], 10))]
    {
        let (steps, bytes) = make(run, &text).map_err(|e| e.message)?;
        let name = run.file_name().unwrap_or_default().to_string_lossy();
        println!(
            "{name}: a run of {steps} steps of {WORKERS} workers, {:.0} MB of results",
            bytes as f64 / 1e6
        );
    }
    let large = large.display().to_string();
    let small = small.display().to_string();
    for (words, wanted) in [
        (vec!["analyze", &large, "--limit", "p99 <= 5ms", "--json"], "wanted: under 5 s, 500 MiB"),
        (vec!["report", &large, "--json"], "wanted: under 10 s, 1 GiB"),
        (vec!["report", &small, "--json"], ""),
    ] {
        let begun = Instant::now();
        let mut child = Command::new(program)
            .args(&words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("{} cannot be run: {e}", program.display()))?;
        let mut peak = 0;
        let status = loop {
            // Its own most so far, which only grows.
            peak = peak.max(most_memory(child.id()).unwrap_or(0));
            match child.try_wait().map_err(|e| format!("loadline {}: {e}", words[0]))? {
                Some(status) => break status,
                None => std::thread::sleep(LOOK_EVERY),
            }
        };
        let took = begun.elapsed().as_secs_f64();
        if !matches!(status.code(), Some(0 | 3)) {
            return Err(format!("loadline {} ended with {status}", words[0]));
        }
        println!("loadline {:<8} {took:>6.2} s  {:>5} MiB at the most  {wanted}", words[0], peak >> 10);
    }
    for (run, wanted) in [(&small, "wanted: at most 1 MB, interactive in under 1 s"), (&large, "")] {
        page(&Path::new(run).join("report/report.html"), wanted)?;
    }
    Ok(())
}

/// The most memory that a process has had, KiB.
fn most_memory(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// How large a page is, and how long a browser takes until it can be used: the median of five.
fn page(page: &Path, wanted: &str) -> Result<(), String> {
    let bytes = std::fs::metadata(page).map_err(|e| format!("{}: {e}", page.display()))?.len();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/tests/ready.mjs");
    let run = Command::new("node")
        .arg(script)
        .arg(page)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("node cannot be run: {e}"))?;
    let ready = String::from_utf8_lossy(&run.stdout).trim().to_string();
    if !run.status.success() {
        return Err(format!("the page could not be opened: {}", run.status));
    }
    println!("its page: {:.2} MB, interactive after {ready} ms in Chromium  {wanted}", bytes as f64 / 1e6);
    Ok(())
}

/// The steps that it made, and how large their results are.
fn make(run: &Path, text: &str) -> Result<(usize, u64), StudyError> {
    let manifest = Manifest::new(read::parse("large.toml", text)?, text.into(), run.into())?;
    let owned = OwnedFolder::create(run, manifest)?;
    let mut random = Random(1);
    let mut bytes = 0;
    for step in &owned.folder.plan.steps {
        let folder = owned.begin_step(step)?;
        let mut result = StepResult::empty(&owned.folder.manifest.run_id, step, When::now());
        let mut all = Window::new(Nanos(SECONDS as u64 * Nanos::SECOND.0));
        // So that sweeps have a shape.
        let load = u64::from(step.profile.outstanding);
        let (rate, slow) = (150_000 * load / (load + 30), 100_000 + 20_000 * load);
        (0..SECONDS).for_each(|second| all.add(&interval(&mut random, second, rate, slow)));
        (result.figures, result.histograms) = (all.figures(), all.histograms());
        (result.seconds, result.heat) = (all.seconds(), Some(all.heat().clone()));
        let mut nodes: BTreeMap<String, (u32, Window)> = BTreeMap::new();
        for number in 0..WORKERS {
            let mut one = Window::new(all.length());
            one.add(&interval(&mut random, 0, rate * SECONDS as u64 / u64::from(WORKERS), slow));
            let worker = worker(number, &one);
            let of_node = nodes.entry(worker.worker.node.clone());
            let (workers, window) = of_node.or_insert_with(|| (0, Window::new(all.length())));
            *workers += 1;
            window.merge(&one);
            result.workers.push(worker);
        }
        result.nodes =
            nodes.into_iter().map(|(name, (workers, window))| (name, node(workers, &window))).collect();
        result.series = series(&folder, &mut random)?;
        let inventory = || Inventory { cpus: 64, memory: Some(1 << 38), ..Inventory::default() };
        result.hosts = (1..=NODES).map(|n| (format!("host-{n}"), inventory())).collect();
        owned.complete_step(step, &result)?;
        bytes += std::fs::metadata(folder.join("result.json")).map_or(0, |m| m.len());
    }
    Ok((owned.folder.plan.steps.len(), bytes))
}

/// Numbers that compress as badly as measured ones.
struct Random(u64);

impl Random {
    /// Below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        // Knuth's MMIX; the upper bits are good enough for this.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }
}

/// A second of about so many I/Os, most of which take `slow` nanoseconds, and some many times that.
fn interval(random: &mut Random, second: i64, rate: u64, slow: u64) -> Interval {
    let mut interval = Interval::new(second, Phase::Measure, 0);
    for i in 0..120u64 {
        let operations = if i % 3 == 0 { &mut interval.write } else { &mut interval.read };
        let tail = if i % 10 == 0 { 1 << random.below(6) } else { 1 };
        let count = rate / 120 / tail + random.below(rate / 1_000 + 2);
        operations.response.record_many(Nanos(slow / 2 + random.below(slow) * tail), count);
        operations.bytes += 4096 * count;
        interval.completions.set(Nanos(i * 8_000_000));
    }
    interval
}

fn worker(number: u32, window: &Window) -> WorkerResult {
    let node = format!("node-{}", number / (WORKERS / NODES) + 1);
    WorkerResult {
        worker: WorkerInfo {
            id: WorkerId(format!("{node}/{}", number % (WORKERS / NODES))),
            node,
            host: "host".into(),
            pid: number,
            version: env!("CARGO_PKG_VERSION").into(),
        },
        figures: window.figures(),
        clock_error_ns: Some(100),
        began_late_ns: None,
        cpu: Some(CpuTime { user_s: 1.0, system_s: 2.0, polling_s: 0.0 }),
        host_cpu: None,
        engine: Some("io_uring".into()),
        findings: Vec::new(),
        lost: None,
    }
}

fn node(workers: u32, window: &Window) -> NodeFigures {
    let total = window.figures().total;
    NodeFigures { workers, iops: total.iops, bytes_per_s: total.bytes_per_s, latency_us: total.latency_us }
}

/// What the hosts did.
fn series(folder: &Path, random: &mut Random) -> Result<BTreeMap<String, u64>, StudyError> {
    let mut series = SeriesWriter::create(folder, 0)?;
    for second in 0..SECONDS {
        for host in 1..=NODES {
            let mut share = |around: u64| (around + random.below(50)) as f64 / 1_000.0;
            let cpu =
                CpuShares { user: share(200), system: share(300), steal: share(0), ..CpuShares::default() };
            let pressure = Pressure { cpu_some: share(100), io_some: share(400), ..Pressure::default() };
            let did = HostSecond { second, cpu, pressure: Some(pressure), ..HostSecond::default() };
            series.add_host(&format!("host-{host}"), &did)?;
        }
    }
    series.finish()
}
