//! Reports on a run folder that was put together by hand: what they look like, and that no damage to the folder makes
//! one of them lie.

#[path = "../../../tests/support/memory.rs"]
mod memory;

use std::fs;
use std::path::{Path, PathBuf};

use loadline_base::clock::Nanos;
use loadline_fleet::{Loss, LossReason, WorkerId, WorkerInfo};
use loadline_load::{CpuTime, VerifyReport};
use loadline_measure::analysis::Options;
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::window::{Figures, Window};
use loadline_report::tiles::Tone;
use loadline_report::{Report, csv, findings, json, markdown, points, table, write};
use loadline_study::folder::events::RunEvent;
use loadline_study::folder::manifest::Manifest;
use loadline_study::folder::result::{StepResult, WorkerResult};
use loadline_study::folder::series::SeriesWriter;
use loadline_study::folder::{OwnedFolder, RunFolder};
use loadline_study::limit::Limit;
use loadline_study::when::When;
use loadline_study::{Study, read};

const STUDY: &str = r#"
name = "golden"
description = "What a report | looks like"
profiles = ["B4-T1-O8-W0-PR", "B64-T1-O8-W100-PS"]
[fleet]
workers_per_node = 2
disk_size = "1GiB"
[phases]
measure = "2s"
[run]
repeats = 2
limits = ["p99 <= 500us"]
"#;

fn study() -> Study {
    read::parse("golden.toml", STUDY).unwrap()
}

/// What one worker did: `count` I/Os a second of `micros` and a little more.
fn window(count: u64, micros: u64, block: u64, writes: bool) -> Window {
    let mut window = Window::new(Nanos(2 * Nanos::SECOND.0));
    for second in 0..2 {
        let mut interval = Interval::new(second, Phase::Measure, 0);
        let operations = if writes { &mut interval.write } else { &mut interval.read };
        for i in 0..count {
            operations.response.record(Nanos(micros * 1_000 + i % 100 * 1_000));
            operations.bytes += block;
        }
        (0..1000).for_each(|ms| interval.completions.set(Nanos(ms * 1_000_000)));
        window.add(&interval);
    }
    window
}

fn worker(name: &str) -> WorkerInfo {
    WorkerInfo {
        id: WorkerId(name.into()),
        node: "node-1".into(),
        host: "host".into(),
        pid: 1,
        version: env!("CARGO_PKG_VERSION").into(),
    }
}

/// A run of four steps of which the third is missing; in the last a worker was lost.
fn synthetic(path: &Path) -> PathBuf {
    let manifest = Manifest::new(study(), STUDY.into(), path.into()).unwrap();
    let mut owned = OwnedFolder::create(&path.join("run"), manifest).unwrap();
    owned.events.run(&RunEvent::FillDone).unwrap();
    for step in owned.folder.plan.steps.clone().iter().filter(|step| step.number != 3) {
        let folder = owned.begin_step(step).unwrap();
        let mut series = SeriesWriter::create(&folder, 0).unwrap();
        series.begin(1_700_000_000_000).unwrap();
        series.add(&WorkerId("node-1/0".into()), &Interval::new(0, Phase::Measure, 0).encode()).unwrap();
        let writes = step.profile.write_percent > 0;
        let (count, micros) =
            if writes { (1_000, 7_000) } else { (20_000, 200 + u64::from(step.repeat) * 100) };
        let one = window(count, micros, step.profile.block_size.0, writes);
        let mut all = one.clone();
        all.merge(&one);
        let mut result = StepResult::empty(&owned.folder.manifest.run_id, step, When::now());
        result.figures = all.figures();
        result.histograms = all.histograms();
        result.cpu = CpuTime { user_s: 1.0, system_s: 2.0, polling_s: 0.0 };
        let lost = (step.number == 4).then(|| Loss {
            reason: LossReason::Died,
            message: "its process ended".into(),
            unix_ms: 1,
            after_s: Some(1.0),
        });
        for (name, lost) in [("node-1/0", None), ("node-1/1", lost)] {
            result.workers.push(WorkerResult {
                worker: worker(name),
                // What the second of them did not complete, the first did.
                figures: Figures {
                    longest_stall_ms: if name.ends_with('1') { 120 } else { 0 },
                    ..one.figures()
                },
                clock_error_ns: Some(0),
                began_late_ns: None,
                cpu: None,
                host_cpu: None,
                engine: Some("io_uring".into()),
                findings: Vec::new(),
                lost,
            });
        }
        result.verify = writes.then(|| VerifyReport { checked: 9, unjudged: 2, ..VerifyReport::default() });
        let limit: Limit = "p99 <= 500us".parse().unwrap();
        result.verdicts = vec![limit.judge(&result.figures)];
        if step.number > 1 {
            result.findings.push(Finding::note(
                FindingKind::Fallback,
                "io_uring",
                format!("threads, in step {}", step.number),
                "The kernel refused it.",
            ));
        }
        result.series = series.finish().unwrap();
        owned.complete_step(step, &result).unwrap();
    }
    owned.folder.path().to_path_buf()
}

fn report(run: &Path) -> Report {
    Report::of(&RunFolder::open(run).unwrap()).unwrap()
}

#[test]
fn the_table_of_steps_and_of_loads_in_text() {
    let folder = memory::folder();
    let report = report(&synthetic(folder.path()));
    assert_eq!(
        table::steps(&report),
        "\
step  profile            rep    IOPS  MB/s    CPU  mean us  p50 us  p99 us  deepest us  stall ms  worker stall  errors  lost
   1  B4-T1-O8-W0-PR       1  40,000   164   1.50      350     350     399     p99 399         0           120       0     0
   2  B64-T1-O8-W100-PS    1   2,000   131   1.50     7050    7078       -    p95 7099         0           120       0     0
   4  B4-T1-O8-W0-PR       2  40,000   164  ≥1.50      450     451     499     p99 499         0             0       0     1
"
    );
    assert_eq!(
        table::loads(&report),
        "\
profile                         n                     IOPS            MB/s         mean us          p99 us
B4-T1-O8-W0-PR     2 (1 doubtful)  40,000 [40,000..40,000]  164 [164..164]  400 [350..450]  449 [399..499]
B64-T1-O8-W100-PS               1                    2,000             131            7050               -
Median and range of the repeats; no confidence level (fewer than six repeats, or lost workers).
"
    );
}

/// The same step again and again, so that there are repeats of it.
fn repeated(report: &mut Report, times: usize) {
    report.loads.clear();
    let step = report.steps[0].clone();
    report.steps = vec![step; times];
}

#[test]
fn repeats_that_lost_workers_have_no_confidence_level() {
    let folder = memory::folder();
    let mut report = report(&synthetic(folder.path()));
    repeated(&mut report, 9);
    report.steps[8].iops = 50_000.0;
    let of = |report: &Report| loadline_report::rows::loads(&report.steps).remove(0);
    let whole = of(&report);
    assert_eq!((whole.doubtful, whole.iops.unwrap().level), (0, Some(0.95)));
    assert_eq!(whole.iops.unwrap().high, 40_000.0, "nine repeats leave out one at each end");
    report.steps[3].errors = 1;
    let errors = of(&report);
    assert_eq!((errors.doubtful, errors.iops.unwrap().level), (1, Some(0.95)));
    report.steps[4].lost_workers = 1;
    let lost = of(&report);
    assert_eq!((lost.doubtful, lost.iops.unwrap().level), (2, None));
    assert_eq!(lost.iops.unwrap().high, 50_000.0, "the range");
}

#[test]
fn findings_limits_and_what_is_missing_are_sentences() {
    let folder = memory::folder();
    let sentences = findings::sentences(&report(&synthetic(folder.path())));
    assert_eq!(
        sentences,
        [
            "unfinished: 3 of 4 steps are complete; missing: 3 (B64-T1-O8-W100-PS, repeat 2)",
            "limit missed: step 2 (B64-T1-O8-W100-PS): p99 <= 500us, found too few I/Os completed to tell",
            "note: steps 2, 4: expected io_uring; found threads, in step 2 (in the first of them). The kernel refused \
             it.",
        ]
    );
}

#[test]
fn files_for_programs_and_people_are_written_beside_the_run() {
    let folder = memory::folder();
    let run = synthetic(folder.path());
    let report = report(&run);
    let files = write::files(&report, &RunFolder::open(&run).unwrap(), None).unwrap();
    assert_eq!(files.len(), 4);
    let lines: Vec<String> = csv::steps(&report).lines().map(str::to_string).collect();
    assert_eq!(lines.len(), 4);
    assert!(
        lines[0].starts_with("step,profile,repeat,workers,iops,bytes_per_s,cpu_cores,mean_us"),
        "{}",
        lines[0]
    );
    assert!(lines[3].starts_with("4,B4-T1-O8-W0-PR,2,2,40000,163840000,1.5,449.5,"), "{}", lines[3]);
    assert_eq!(lines.iter().map(|line| line.split(',').count()).max(), Some(41));
    let back: Report = serde_json::from_str(&json::document(&report)).unwrap();
    assert_eq!((back.steps.len(), &back.missing), (3, &report.missing));
    assert!(
        lines[0].ends_with(
            ",purpose,policy,condition,fill_level_percent,unaligned_percent,of_ceiling,of_network,volume_limit,predicted_iops_low,predicted_iops_high"
        ),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].ends_with(",120,,,,,,,load,,,,0,,,,,")
            && lines[2].ends_with(",120,9,0,0,0,0,2,load,,,,0,,,,,"),
        "{lines:?}"
    );
    let page = markdown::page(&report);
    // Two loads are compared, or named with the reason; it is marked as orientation.
    assert_eq!(report.orientation.loads.len(), 2);
    let oriented = page.split_once("\n## Orientation\n").expect("a part of its own").1;
    assert!(
        oriented.contains("Orientation only: data sheets state") && oriented.contains("times Seagate"),
        "{page}"
    );
    assert!(oriented.contains("- B4-T1-O8-W0-PR: not compared: workers were lost"), "{page}");
    assert!(oriented.contains("- B64-T1-O8-W100-PS: 2,000 IOPS"), "{page}");
    assert_eq!(
        table::verified(&report),
        "verified: 9 blocks checked, 0 lost, 0 corrupt, 0 foreign, 0 unreadable, 2 not judged (a write was in flight, or \
         of unknown outcome)\n"
    );
    assert!(page.contains("\nverified: 9 blocks checked"), "{page}");
    let answer = "**Answer: 40,000 IOPS at the most**\n\n- 4K random read, 8 outstanding: 40,000 IOPS";
    assert!(page.contains(answer) && page.contains("**How sure: Doubtful: 2 of 8 checks**"), "{page}");
    assert!(page.contains("**What limits it: "), "{page}");
    assert_eq!(report.tiles.answer.tone, Tone::Amber, "its measurements are doubtful");
    let text = report.tiles.text();
    assert!(
        text.starts_with("answer          40,000 IOPS at the most\n                4K random read"),
        "{text}"
    );
    assert!(
        table::names(&report).contains("B4-T1-O8-W0-PR     4K random read, 8 outstanding\n"),
        "{}",
        table::names(&report)
    );
    assert!(
        page.contains("What a report \\| looks like")
            && page.contains("| 4 | 4K random read, 8 outstanding (B4-T1-O8-W0-PR) | 2 |"),
        "{page}"
    );
}

/// Cuts the file off at every byte, and asks each time. The last byte of a sealed file is the line feed after it.
fn at_every_byte(file: &Path, mut ask: impl FnMut(usize, usize)) {
    let bytes = fs::read(file).unwrap();
    for length in 0..bytes.len() {
        fs::write(file, &bytes[..length]).unwrap();
        ask(length, bytes.len());
    }
    fs::write(file, &bytes).unwrap();
}

#[test]
fn a_run_or_step_file_cut_off_at_any_byte_is_refused_by_name() {
    let folder = memory::folder();
    let run = synthetic(folder.path());
    let manifest = run.join("run.json");
    at_every_byte(&manifest, |length, whole| match RunFolder::open(&run) {
        Ok(_) => assert_eq!(length + 1, whole),
        Err(error) => assert!(error.message.contains(manifest.to_str().unwrap()), "{error}"),
    });
    let opened = RunFolder::open(&run).unwrap();
    for step in opened.plan.steps.iter().filter(|step| step.number != 3) {
        let file = opened.step_path(step).join("result.json");
        at_every_byte(&file, |length, whole| match opened.result(step) {
            Ok(result) => {
                assert!(result.is_some() && length + 1 == whole, "cut to {length}, it was never measured")
            }
            Err(error) => assert!(error.message.contains(file.to_str().unwrap()), "{error}"),
        });
        // To resume is no less careful.
        fs::write(&file, "{").unwrap();
        assert!(OwnedFolder::resume(&run).unwrap_err().message.contains(file.to_str().unwrap()));
        fs::write(&file, "").unwrap();
        assert!(OwnedFolder::resume(&run).is_err());
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
        OwnedFolder::resume(&run).expect("as the message advises, the step's folder is no longer in the run");
    }
}

#[test]
fn any_other_file_cut_off_at_any_byte_changes_no_figure() {
    let folder = memory::folder();
    let run = synthetic(folder.path());
    let whole = table::steps(&report(&run));
    let opened = RunFolder::open(&run).unwrap();
    let step = opened.step_path(&opened.plan.steps[0]);
    let mut files = ["study.toml", "events.jsonl"].map(|name| run.join(name)).to_vec();
    files.extend(["intervals.hlog", "seconds.jsonl"].map(|name| step.join(name)));
    for file in files {
        at_every_byte(&file, |_, _| {
            assert_eq!(table::steps(&report(&run)), whole);
            if let Ok(owned) = OwnedFolder::resume(&run) {
                assert_eq!(owned.folder.results().unwrap().iter().flat_map(|(_, result)| result).count(), 3);
            }
        });
    }
}

#[test]
fn a_series_that_was_cut_off_is_said_and_is_in_no_figure() {
    let folder = memory::folder();
    let run = synthetic(folder.path());
    let opened = RunFolder::open(&run).unwrap();
    let seconds = opened.step_path(&opened.plan.steps[0]).join("seconds.jsonl");
    fs::write(&seconds, "").unwrap();
    let report = report(&run);
    assert!(
        report.notices.len() == 1 && report.notices[0].contains("seconds.jsonl has 0 of"),
        "{:?}",
        report.notices
    );
}

#[test]
fn one_damaged_step_is_named_and_the_others_are_shown() {
    let folder = memory::folder();
    let run = synthetic(folder.path());
    let opened = RunFolder::open(&run).unwrap();
    let file = |step: usize| opened.step_path(&opened.plan.steps[step]).join("result.json");
    fs::write(file(1), &fs::read(file(1)).unwrap()[..99]).unwrap();
    let (analysis, count) = points::analysis(&opened, &Options::default()).unwrap();
    assert_eq!(count, 2, "steps 1 and 4; step 3 was never measured");
    let finding = analysis.findings.iter().find(|finding| finding.kind == FindingKind::MissingIntervals);
    let finding = finding.expect("the damaged step is a finding");
    assert!(finding.severity == Severity::Doubt && finding.found.contains(file(1).to_str().unwrap()));
    assert!(
        finding.found.contains("Move the step's folder") && !finding.found.contains("emove the"),
        "{finding}"
    );
    let report = report(&run);
    assert_eq!((report.complete, report.unreadable, report.missing.len()), (2, 1, 2));
    assert!(report.notices[0].contains(file(1).to_str().unwrap()), "{:?}", report.notices);
    write::files(&report, &opened, None).expect("the page shows the other steps");
    for step in [0, 3] {
        fs::write(file(step), "{").unwrap();
    }
    let error = points::analysis(&opened, &Options::default()).unwrap_err();
    assert!(error.message.contains(file(0).to_str().unwrap()), "none is left: {error}");
}

#[test]
fn what_is_no_run_at_all_is_said() {
    let folder = memory::folder();
    for (path, part) in
        [(folder.path().to_path_buf(), "it has no run.json"), (folder.path().join("x"), "no run in")]
    {
        let message = RunFolder::open(&path).unwrap_err().message;
        assert!(message.contains(part), "{message}");
    }
}
