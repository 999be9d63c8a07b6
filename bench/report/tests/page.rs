//! The page of runs that are not as they should be: in progress, with lost workers, without latencies, with hostile
//! names. What is missing is said, and the rest is shown.

#[path = "../../../tests/support/browser.rs"]
mod browser;
#[path = "../../../tests/support/memory.rs"]
mod memory;

use std::fs;
use std::path::{Path, PathBuf};

use browser::shown;

use loadline_base::clock::Nanos;
use loadline_fleet::{Loss, LossReason, WorkerId, WorkerInfo};
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::window::Window;
use loadline_report::{Report, write};
use loadline_study::folder::manifest::Manifest;
use loadline_study::folder::result::{StepResult, WorkerResult};
use loadline_study::folder::{OwnedFolder, RunFolder};
use loadline_study::read;
use loadline_study::when::When;
use serde_json::Value;

const HOSTILE: &str = "</script><img src=x onerror=alert(1)> \" ' & `${x}` LOADLINE-DATA =1+1\u{202e}";

/// A run of a study, each step of which is made by `fill`; those for which it says `false` are missing.
fn run(path: &Path, study: &str, fill: impl Fn(&mut StepResult, u64) -> bool) -> PathBuf {
    let manifest = Manifest::new(read::parse("s.toml", study).unwrap(), study.into(), path.into()).unwrap();
    let owned = OwnedFolder::create(&path.join("run"), manifest).unwrap();
    for step in &owned.folder.plan.steps {
        let mut result = StepResult::empty(&owned.folder.manifest.run_id, step, When::now());
        if fill(&mut result, u64::from(step.number)) {
            owned.begin_step(step).unwrap();
            owned.complete_step(step, &result).unwrap();
        }
    }
    let folder = RunFolder::open(owned.folder.path()).unwrap();
    write::files(&Report::of(&folder).unwrap(), &folder, None).unwrap();
    folder.path().join("report/report.html")
}

/// Two workers of which each did so many I/Os a second for three seconds.
fn measured(result: &mut StepResult, count: u64, names: [&str; 2]) {
    let mut window = Window::new(Nanos(3 * Nanos::SECOND.0));
    for second in 0..3 {
        let mut interval = Interval::new(second, Phase::Measure, 0);
        for i in 0..count {
            interval.read.response.record(Nanos(200_000 + i * 977 % 3_000_000));
            interval.read.bytes += 4096;
        }
        window.add(&interval);
    }
    let mut all = window.clone();
    all.merge(&window);
    (result.figures, result.histograms) = (all.figures(), all.histograms());
    (result.seconds, result.heat) = (all.seconds(), Some(all.heat().clone()));
    result.workers = names
        .map(|name| WorkerResult {
            worker: WorkerInfo {
                id: WorkerId(name.into()),
                node: name.split('/').next().unwrap_or_default().into(),
                host: name.into(),
                pid: 1,
                version: "0.1.0".into(),
            },
            figures: window.figures(),
            clock_error_ns: Some(0),
            began_late_ns: None,
            cpu: None,
            host_cpu: None,
            engine: None,
            findings: Vec::new(),
            lost: None,
        })
        .into();
}

fn text<'a>(shown: &'a Value, key: &str) -> &'a str {
    shown[key].as_str().unwrap()
}

#[test]
fn a_run_in_progress_with_a_lost_worker_and_hostile_names_shows_what_there_is_and_says_what_is_missing() {
    let folder = memory::folder();
    let study = format!(
        "name = \"hostile\"\ndescription = {HOSTILE:?}\nprofiles = [\"B4-T1-O8-W0-PR\", \"B8-T1-O8-W0-PR\"]\n\
         [phases]\nmeasure = \"3s\"\n[run]\nrepeats = 2\n",
    )
    .replace("\\u{202e}", "\\u202E")
    .replace("\\'", "'");
    let page = run(folder.path(), &study, |result, number| {
        measured(result, 20_000 + 500 * number, [&format!("{HOSTILE}/0"), "node-1/1"]);
        if number == 2 {
            result.workers[0].lost = Some(Loss {
                reason: LossReason::Died,
                message: HOSTILE.into(),
                unix_ms: 1,
                after_s: Some(1.0),
            });
            result.findings.push(Finding::doubt(FindingKind::LostWorkers, "all", HOSTILE, "Ask <b>it</b>."));
        }
        number != 3
    });
    let shown = shown(&page, &[]);
    assert!(text(&shown, "title").starts_with("hostile "), "{shown}");
    let all = text(&shown, "text");
    assert!(all.contains("missing: 1 of 4 steps"), "{all}");
    assert!(all.contains("workers lost: 1, I/Os failed: 0, in step 2"), "{all}");
    assert!(all.contains("onerror=alert(1)"), "it is shown as what it is, text: {all}");
    assert!(shown["figures"].as_u64().unwrap() > 40, "{shown}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(!html.contains("onerror=alert"), "what is not compressed is escaped, or not there");
}

/// A study of loads in conditions; what is done in them is not asked for here.
fn conditions(loads: &str) -> String {
    format!(
        "name = \"conditions\"\nprofiles = [{loads}]\n[target]\nsan = {{ copies = 2 }}\n[fleet]\nnodes = 3\ndisk_size = \"16MiB\"\n\
         [phases]\nmeasure = \"3s\"\n[[condition]]\nname = \"healthy\"\n[[condition]]\nname = \"one-down\"\n\
         do = [{{ do = \"kill\", node = \"node-3\" }}]\n[run]\nrepeats = 1\n"
    )
}

#[test]
fn a_study_of_conditions_shows_its_bars_right_after_the_verdict_and_loads_by_their_names() {
    let folder = memory::folder();
    let study = conditions("\"B4-T1-O4-W100-PR\", \"B8-T1-O4-W30-PR\"");
    let page = run(folder.path(), &study, |result, number| {
        measured(result, 20_000 + 500 * number, ["node-1/0", "node-1/1"]);
        true
    });
    let shown = shown(&page, &[]);
    assert_eq!(shown["sections"][1], "conditions", "{shown}");
    let all = text(&shown, "text");
    assert!(
        all.contains("4K random write, 4 outstanding\nB4-T1-O4-W100-PR"),
        "a name, and its code beneath: {all}"
    );
    assert!(all.contains("IOPS at the most: one-down"), "{all}");
    assert!(all.contains("healthy = 100 %"), "{all}");
}

#[test]
fn a_chart_of_fewer_than_three_bars_or_points_is_not_drawn_and_its_figures_are_in_a_table() {
    let folder = memory::folder();
    let page = run(folder.path(), &conditions("\"B4-T1-O4-W100-PR\""), |result, _| {
        measured(result, 20_000, ["node-1/0", "node-1/1"]);
        true
    });
    let shown = shown(&page, &[]);
    let all = text(&shown, "text");
    assert!(all.contains("No chart is drawn of fewer than three bars"), "{all}");
    assert!(all.contains("Each load, with one thing changed"), "{all}");
}

#[test]
fn a_run_without_a_single_io_says_that_there_is_no_latency() {
    let folder = memory::folder();
    let study = "name = \"silent\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n[phases]\nmeasure = \"3s\"\n[run]\nrepeats = 1\n";
    let page = run(folder.path(), study, |result, _| {
        measured(result, 0, ["node-1/0", "node-1/1"]);
        true
    });
    let shown = shown(&page, &[]);
    let missing = shown["missing"].to_string();
    for part in [
        "Nothing was measured",
        "no curve",
        "No step has enough I/Os for a percentile",
        "latencies over time",
    ] {
        assert!(missing.contains(part), "{part}: {missing}");
    }
}

#[test]
fn a_run_of_which_nothing_is_complete_yet_has_a_page_too() {
    let folder = memory::folder();
    let study = "name = \"begun\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n[run]\nrepeats = 2\n";
    let shown = shown(&run(folder.path(), study, |_, _| false), &[]);
    assert!(text(&shown, "text").contains("missing: 2 of 2 steps"), "{shown}");
    assert!(shown["missing"].to_string().contains("No step is complete yet"), "{shown}");
}

#[test]
fn a_run_of_a_thousand_steps_has_a_page() {
    let folder = memory::folder();
    let study = "name = \"long\"\n[matrix]\nblock_size = [\"4K\", \"8K\", \"16K\", \"64K\", \"256K\"]\n\
                 outstanding = [1, 2, 4, 8, 16]\nwrite_percent = [0, 30, 70, 100]\n[phases]\nmeasure = \"3s\"\n\
                 [run]\nrepeats = 10\n";
    let page = run(folder.path(), study, |result, number| {
        measured(result, 300 + number, ["node-1/0", "node-1/1"]);
        true
    });
    let shown = shown(&page, &["--brief"]);
    assert!(text(&shown, "text").contains("1000 steps are complete"), "{}", text(&shown, "text"));
    let sections = shown["sections"].to_string();
    assert!(sections.contains("sweep") && sections.contains("heat"), "{sections}");
}

#[test]
fn a_page_that_is_cut_short_says_so() {
    let folder = memory::folder();
    let study =
        "name = \"cut\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n[phases]\nmeasure = \"3s\"\n[run]\nrepeats = 2\n";
    let page = run(folder.path(), study, |result, _| {
        measured(result, 5_000, ["node-1/0", "node-1/1"]);
        true
    });
    let whole = fs::read(&page).unwrap();
    fs::write(&page, &whole[..whole.len() - 900]).unwrap();
    let shown = shown(&page, &["--brief"]);
    assert!(text(&shown, "text").contains("cut short or damaged"), "{shown}");
}
