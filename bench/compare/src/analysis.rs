//! What it costs to analyse a large run: `loadline analyze` and `loadline report` over 1,000 steps of 64 workers.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use loadline_base::clock::Nanos;
use loadline_fleet::{WorkerId, WorkerInfo};
use loadline_load::CpuTime;
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::window::Window;
use loadline_study::folder::OwnedFolder;
use loadline_study::folder::manifest::Manifest;
use loadline_study::folder::result::{StepResult, WorkerResult};
use loadline_study::read;
use loadline_study::when::When;
use nix::sys::resource::{UsageWho, getrusage};

const WORKERS: u32 = 64;
const STUDY: &str = "name = \"large\"\n[matrix]\nblock_size = [\"4K\", \"8K\", \"64K\", \"256K\", \"1M\"]\n\
                     write_percent = [0, 30, 50, 100]\noutstanding = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]\n\
                     [fleet]\nnodes = 4\nworkers_per_node = 16\n[phases]\nmeasure = \"60s\"\n[run]\nrepeats = 5\n";

/// Makes such a run and measures both commands on it.
pub(crate) fn measure(program: &Path, folder: &Path) -> Result<(), String> {
    let place = tempfile::Builder::new()
        .prefix("loadline-compare-")
        .tempdir_in(folder)
        .map_err(|e| format!("a folder in {}: {e}", folder.display()))?;
    let run = place.path().join("run");
    let (steps, bytes) = make(&run).map_err(|e| e.message)?;
    println!("a run of {steps} steps of {WORKERS} workers, {:.0} MB of results", bytes as f64 / 1e6);
    let path = run.display().to_string();
    for (words, wanted) in [
        (vec!["analyze", &path, "--limit", "p99 <= 5ms", "--json"], "wanted: under 5 s, 500 MiB"),
        (vec!["report", &path, "--no-files", "--json"], ""),
    ] {
        let begun = Instant::now();
        let status = Command::new(program)
            .args(&words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .map_err(|e| format!("{} cannot be run: {e}", program.display()))?;
        let took = begun.elapsed().as_secs_f64();
        if !matches!(status.code(), Some(0 | 3)) {
            return Err(format!("loadline {} ended with {status}", words[0]));
        }
        // The largest of all children so far, in KiB: the first command is the one that is judged.
        let peak = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.max_rss());
        println!("loadline {:<8} {took:>6.2} s  {:>5} MiB at the most  {wanted}", words[0], peak >> 10);
    }
    Ok(())
}

/// The steps that it made, and how large their results are.
fn make(run: &Path) -> Result<(usize, u64), loadline_study::StudyError> {
    let manifest = Manifest::new(read::parse("large.toml", STUDY)?, STUDY.into(), run.into())?;
    let owned = OwnedFolder::create(run, manifest)?;
    let window = window();
    let mut all = Window::new(window.length());
    (0..WORKERS).for_each(|_| all.merge(&window));
    let workers: Vec<WorkerResult> = (0..WORKERS).map(|number| worker(number, &window)).collect();
    let mut bytes = 0;
    for step in &owned.folder.plan.steps {
        let folder = owned.begin_step(step)?;
        let mut result = StepResult::empty(&owned.folder.manifest.run_id, step, When::now());
        (result.figures, result.histograms) = (all.figures(), all.histograms());
        // So that sweeps have a shape.
        let load = f64::from(step.profile.outstanding);
        result.figures.total.iops *= load / (load + 30.0) * (1.0 + f64::from(step.number % 7) / 200.0);
        (result.seconds, result.workers) = (all.seconds(), workers.clone());
        (result.nodes, result.series) = (BTreeMap::new(), BTreeMap::new());
        owned.complete_step(step, &result)?;
        bytes += std::fs::metadata(folder.join("result.json")).map_or(0, |m| m.len());
    }
    Ok((owned.folder.plan.steps.len(), bytes))
}

/// A minute of one worker: 2,000 I/Os a second from 100 us to 5 ms.
fn window() -> Window {
    let mut window = Window::new(Nanos(60 * Nanos::SECOND.0));
    for second in 0..60 {
        let mut interval = Interval::new(second, Phase::Measure, 0);
        for i in 0..2_000u64 {
            let operations = if i % 3 == 0 { &mut interval.write } else { &mut interval.read };
            operations.response.record(Nanos(100_000 + i * i % 4_900_000));
            operations.bytes += 4096;
            interval.completions.set(Nanos(i * 500_000));
        }
        window.add(&interval);
    }
    window
}

fn worker(number: u32, window: &Window) -> WorkerResult {
    let node = format!("node-{}", number / 16 + 1);
    WorkerResult {
        worker: WorkerInfo {
            id: WorkerId(format!("{node}/{}", number % 16)),
            node,
            host: "host".into(),
            pid: number,
            version: env!("CARGO_PKG_VERSION").into(),
        },
        figures: window.figures(),
        clock_error_ns: Some(100),
        cpu: Some(CpuTime { user_s: 1.0, system_s: 2.0 }),
        host_cpu: None,
        engine: Some("io_uring".into()),
        findings: Vec::new(),
        lost: None,
    }
}
