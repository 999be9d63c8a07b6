//! A study that is run in a folder of its own, and what it came to.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::limited::{self, Ending};

/// A run may take so much longer than its windows: to start, to fill, to check, to stop.
const BESIDE: Duration = Duration::from_secs(180);

/// A run of a study. Its folder goes when dropped, unless it is kept.
pub(crate) struct Run {
    folder: TempDir,
    pub(crate) ending: Ending,
    pub(crate) took: Duration,
    pub(crate) steps: Vec<Step>,
}

/// What of a step matters here.
pub(crate) struct Step {
    pub(crate) label: String,
    pub(crate) iops: f64,
    /// Microseconds; `None` of too few I/Os.
    pub(crate) p99_us: Option<f64>,
    /// The share of the host's CPUs that was busy.
    pub(crate) host_busy: Option<f64>,
    pub(crate) errors: u64,
    pub(crate) lost_workers: u64,
    pub(crate) checked: Option<Checked>,
    pub(crate) events: Vec<Event>,
    /// The kinds of its findings that make it doubtful.
    pub(crate) doubts: BTreeSet<String>,
}

/// What checking the blocks found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Checked {
    pub(crate) checked: u64,
    pub(crate) unjudged: u64,
    pub(crate) lost: u64,
    pub(crate) corrupt: u64,
    pub(crate) foreign: u64,
    pub(crate) unreadable: u64,
}

impl Checked {
    pub(crate) fn bad(&self) -> u64 {
        self.lost + self.corrupt + self.foreign + self.unreadable
    }

    pub(crate) fn add(&mut self, other: &Checked) {
        self.checked += other.checked;
        self.unjudged += other.unjudged;
        self.lost += other.lost;
        self.corrupt += other.corrupt;
        self.foreign += other.foreign;
        self.unreadable += other.unreadable;
    }
}

/// Something that was done to the storage.
pub(crate) struct Event {
    /// As a study has it: `kill`, `return`.
    pub(crate) kind: String,
    pub(crate) node: String,
    /// Why it was not done.
    pub(crate) failed: Option<String>,
    /// The longest that one worker that stayed waited, seconds; `None` if it was one that was lost for good.
    pub(crate) stall_s: Option<f64>,
    /// How long each worker was out whose node was gone, seconds; `None` if it did not come back.
    pub(crate) out_s: Vec<Option<f64>>,
    /// All that the report says of it.
    json: Value,
}

impl Event {
    /// A number of what the report says of it.
    pub(crate) fn number(&self, path: &str) -> Option<f64> {
        self.json.pointer(&format!("/{path}")).and_then(Value::as_f64)
    }
}

/// How a study is run.
pub(crate) struct Runner<'a> {
    pub(crate) program: &'a Path,
    /// Where its folder is made, and what the name of that begins with.
    pub(crate) place: &'a Path,
    pub(crate) prefix: &'a str,
    /// More arguments for `loadline run`.
    pub(crate) arguments: &'a [&'a str],
}

impl Runner<'_> {
    /// Runs a study whose windows take so long. `progress` is called every second.
    pub(crate) fn run(
        &self,
        text: &str,
        windows: Duration,
        progress: impl FnMut(Duration),
    ) -> Result<Run, String> {
        let error = |e: std::io::Error| format!("a study in {}: {e}", self.place.display());
        let folder = tempfile::Builder::new().prefix(self.prefix).tempdir_in(self.place).map_err(error)?;
        let path = folder.path();
        let study = path.join("study.toml");
        fs::write(&study, text).map_err(error)?;
        let out = File::create(path.join("stdout")).map_err(error)?;
        let errors = File::create(path.join("stderr")).map_err(error)?;
        let mut command = Command::new(self.program);
        command.arg("run").arg(&study).arg("--out").arg(path.join("run")).args(self.arguments);
        let begun = Instant::now();
        let ending = limited::run(&mut command, (out, errors), windows + BESIDE, progress)
            .map_err(|e| format!("{}: {e}", self.program.display()))?;
        let steps = steps(&path.join("run"));
        Ok(Run { folder, ending, took: begun.elapsed(), steps })
    }
}

impl Run {
    /// Whether it was done, if with findings.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.ending, Ending::Code(0 | 3)) && !self.steps.is_empty()
    }

    /// Its one step; or why there is none, with the folder kept.
    pub(crate) fn only(self) -> Result<Step, String> {
        if self.ending == Ending::Stopped {
            return Err("stopped".into());
        }
        if !self.is_done() {
            let (ending, why) = (self.ending, self.why());
            return Err(format!("a study: {ending}; everything is in {}\n{why}", self.keep().display()));
        }
        self.steps.into_iter().next().ok_or_else(|| "the study left no step".into())
    }

    /// The end of what it said.
    pub(crate) fn why(&self) -> String {
        limited::tail(&self.folder.path().join("stderr"))
    }

    /// Lets its folder stay. Where that is.
    pub(crate) fn keep(self) -> PathBuf {
        self.folder.keep()
    }
}

/// The steps of a run's report; none if there is no report.
fn steps(run: &Path) -> Vec<Step> {
    let Some(report) = read(&run.join("report/report.json")) else { return Vec::new() };
    let lost = lost_workers(run);
    let steps = report["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    steps.iter().map(|json| step(json, &lost)).collect()
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

/// The names of workers that were lost in any step.
fn lost_workers(run: &Path) -> BTreeSet<String> {
    let folders = fs::read_dir(run.join("steps")).into_iter().flatten().flatten();
    let results = folders.filter_map(|folder| read(&folder.path().join("result.json")));
    let of_result = |result: Value| {
        let workers = result["workers"].as_array().cloned().unwrap_or_default();
        workers.into_iter().filter(|worker| !worker["lost"].is_null())
    };
    results
        .flat_map(of_result)
        .filter_map(|worker| Some(worker["worker"]["id"].as_str()?.to_owned()))
        .collect()
}

fn step(json: &Value, lost: &BTreeSet<String>) -> Step {
    let count = |of: &Value, name: &str| of[name].as_u64().unwrap_or(0);
    let checked = json.get("verify").filter(|verify| !verify.is_null()).map(|verify| Checked {
        checked: count(verify, "checked"),
        unjudged: count(verify, "unjudged"),
        lost: count(verify, "lost"),
        corrupt: count(verify, "corrupt"),
        foreign: count(verify, "foreign"),
        unreadable: count(verify, "unreadable"),
    });
    let findings = json["findings"].as_array().map(Vec::as_slice).unwrap_or_default();
    let doubts = findings.iter().filter(|finding| finding["severity"] != "note");
    let events = json["timeline"]["events"].as_array().map(Vec::as_slice).unwrap_or_default();
    Step {
        label: json["label"].as_str().unwrap_or_default().to_owned(),
        iops: json["iops"].as_f64().unwrap_or(0.0),
        p99_us: json["latency_us"]["p99"].as_f64(),
        host_busy: json["host_busy"].as_f64(),
        errors: count(json, "errors"),
        lost_workers: count(json, "lost_workers"),
        checked,
        events: events.iter().map(|json| event(json, lost)).collect(),
        doubts: doubts.filter_map(|finding| Some(finding["kind"].as_str()?.to_owned())).collect(),
    }
}

fn event(json: &Value, lost: &BTreeSet<String>) -> Event {
    let what = &json["fault"]["do"];
    let kind = match what.as_object() {
        Some(object) => object.keys().next().cloned(),
        None => what.as_str().map(String::from),
    };
    let by_lost = json["stalled"].as_str().is_some_and(|worker| lost.contains(worker));
    let moved = json["moved"].as_array().map(Vec::as_slice).unwrap_or_default();
    Event {
        kind: kind.unwrap_or_default(),
        node: json["fault"]["node"].as_str().unwrap_or_default().to_owned(),
        failed: json["failed"].as_str().map(String::from),
        stall_s: json["stall_ms"].as_f64().filter(|_| !by_lost).map(|ms| ms / 1e3),
        out_s: moved.iter().map(|moved| moved["out_s"].as_f64()).collect(),
        json: json.clone(),
    }
}
