//! Comparisons of runs whose figures are made up: each word for a load, what is said beside it, and every form of it.

use std::collections::{BTreeMap, BTreeSet};

use loadline_fleet::{WorkerId, WorkerInfo};
use loadline_load::host::Inventory;
use loadline_report::Report;
use loadline_report::compare::{
    Comparison, Figure, Load, Outcome, Run, Verdict, document, junit, markdown, text,
};
use loadline_report::rows::{StepRow, loads};
use loadline_study::folder::OwnedFolder;
use loadline_study::folder::manifest::Manifest;
use loadline_study::folder::result::StepResult;
use loadline_study::planned_step::Purpose;
use loadline_study::read;
use loadline_study::when::When;

const STUDY: &str = "name = \"made-up\"\nprofiles = [\"B4-T1-O8-W0-PR\"]\n[run]\nrepeats = 1\n";

/// A run without figures, as it is read from a folder.
fn empty(study: &str) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let manifest =
        Manifest::new(read::parse("study.toml", study).unwrap(), study.into(), "/s".into()).unwrap();
    let owned = OwnedFolder::create(&folder.path().join("run"), manifest).unwrap();
    let step = owned.folder.plan.steps[0].clone();
    owned.begin_step(&step).unwrap();
    let result = StepResult::empty(&owned.folder.manifest.run_id, &step, When::now());
    owned.complete_step(&step, &result).unwrap();
    Run::open(owned.folder.path()).unwrap()
}

/// One repeat of a load: IOPS, mean and p99 in microseconds.
type Repeat = (f64, Option<f64>, Option<f64>);

/// A run with these loads.
fn run(name: &str, all: &[(&str, &[Repeat])]) -> Run {
    let mut run = empty(STUDY);
    let template = run.report.steps.remove(0);
    for (label, repeats) in all {
        for (number, (iops, mean, p99)) in repeats.iter().enumerate() {
            let mut step =
                StepRow { label: label.to_string(), repeat: number as u32 + 1, ..template.clone() };
            (step.iops, step.latency_us.mean, step.latency_us.p99) = (*iops, *mean, *p99);
            (step.errors, step.lost_workers) = (0, 0);
            step.findings.clear();
            run.report.steps.push(step);
        }
    }
    run.folder = format!("runs/{name}");
    run.report.run_id = name.into();
    again(&mut run);
    run
}

/// The rows of the loads, after those of the steps were changed.
fn again(run: &mut Run) {
    run.report.loads = loads(&run.report.steps);
    run.report.complete = run.report.steps.len();
    run.report.planned = run.report.steps.len();
}

/// Six repeats around these figures, within 1 %.
fn around(iops: f64, latency: f64) -> Vec<Repeat> {
    let jitter = [1.0, 1.004, 0.995, 1.008, 0.991, 1.002];
    jitter.map(|j| (iops * j, Some(latency / j), Some(latency * 3.0 / j))).to_vec()
}

fn compare(a: &Run, b: &Run) -> Comparison {
    Comparison::of(a, b, 0.0).unwrap()
}

/// The one load of two runs.
fn load(a: &[Repeat], b: &[Repeat]) -> Load {
    compare(&run("a", &[("x", a)]), &run("b", &[("x", b)])).loads.remove(0)
}

/// The same run with a rate.
fn with_rate(mut run: Run) -> Run {
    run.report.steps.iter_mut().for_each(|step| step.profile.rate = Some("1000iops".parse().unwrap()));
    run
}

#[test]
fn fewer_iops_are_slower_more_are_faster_and_noise_is_neither() {
    let base = around(10_000.0, 800.0);
    let slower = load(&base, &around(8_000.0, 1000.0));
    assert_eq!(
        (slower.verdict, slower.decided_by, slower.beyond_allowed),
        (Verdict::Slower, Some(Figure::Iops), true)
    );
    assert_eq!((slower.iops.a, slower.iops.b.map(f64::round)), (Some(10_010.0), Some(8_008.0)));
    let ratio = slower.iops.ratio.unwrap();
    assert!((ratio.estimate - 0.8).abs() < 0.01 && ratio.high.unwrap() < 0.83, "{ratio:?}");
    assert!(slower.mean_us.ratio.unwrap().low.unwrap() > 1.2, "latencies are compared beside");
    assert!(slower.p99_us.ratio.unwrap().low.unwrap() > 1.2);
    assert_eq!(load(&base, &around(12_000.0, 600.0)).verdict, Verdict::Faster);
    let mut shuffled = base.clone();
    shuffled.rotate_left(2);
    let same = load(&base, &shuffled);
    assert_eq!((same.verdict, same.beyond_allowed), (Verdict::NoDifferenceShown, false));
    // The latency alone decides nothing in a closed loop.
    assert_eq!(load(&base, &around(10_000.0, 2_000.0)).verdict, Verdict::NoDifferenceShown);
}

#[test]
fn with_a_rate_the_latency_decides() {
    let judge = |a: Vec<Repeat>, b: Vec<Repeat>| {
        compare(&with_rate(run("a", &[("x", &a)])), &with_rate(run("b", &[("x", &b)]))).loads.remove(0)
    };
    let slower = judge(around(1000.0, 500.0), around(1000.0, 900.0));
    assert_eq!((slower.verdict, slower.decided_by), (Verdict::Slower, Some(Figure::P99Us)));
    // A lower latency of clearly fewer I/Os is not faster: the rate was not carried.
    let less = judge(around(1000.0, 500.0), around(900.0, 300.0));
    assert_eq!((less.verdict, less.decided_by), (Verdict::Slower, Some(Figure::Iops)));
    let mut without = around(1000.0, 300.0);
    without[3].2 = None;
    let mean = judge(around(1000.0, 500.0), without);
    assert_eq!(
        (mean.verdict, mean.decided_by, mean.p99_us.ratio),
        (Verdict::Faster, Some(Figure::MeanUs), None)
    );
    // All that was wanted in the window completed after it: a latency, and not a thing measured.
    let mut stalled = around(1000.0, 300.0);
    stalled[0].0 = 0.0;
    assert_eq!(judge(around(1000.0, 500.0), stalled).verdict, Verdict::NothingMeasured);
}

#[test]
fn too_few_repeats_and_nothing_measured_are_not_judged() {
    let base = around(10_000.0, 800.0);
    let few = load(&base[..3], &around(100.0, 80_000.0)[..3]);
    assert_eq!((few.verdict, few.iops.ratio.unwrap().low), (Verdict::TooFewRepeats, None));
    let mut nothing = around(10_000.0, 800.0);
    nothing[2] = (0.0, None, None);
    let nothing = load(&base, &nothing);
    assert_eq!((nothing.verdict, nothing.iops.ratio), (Verdict::NothingMeasured, None));
    let (a, b) = (run("a", &[("x", &base[..3])]), run("b", &[("x", &base[..3])]));
    let comparison = compare(&a, &b);
    assert_eq!((comparison.judged, comparison.outcome()), (0, Outcome::Doubtful));
    assert!(text::page(&comparison).contains("fewer than four repeats a side"));
}

#[test]
fn what_is_on_one_side_is_listed_and_what_is_on_none_is_refused() {
    let some = around(10_000.0, 800.0);
    let a = run("a", &[("gone", &some), ("x", &some)]);
    let b = run("b", &[("x", &some), ("new", &some), ("B4-T1-O8-W0-PR", &some)]);
    let comparison = compare(&a, &b);
    let words: Vec<(&str, Verdict)> =
        comparison.loads.iter().map(|l| (l.label.as_str(), l.verdict)).collect();
    let expected = [
        ("gone", Verdict::OnlyInA),
        ("x", Verdict::NoDifferenceShown),
        ("new", Verdict::OnlyInB),
        ("B4-T1-O8-W0-PR", Verdict::OnlyInB),
    ];
    assert_eq!(words, expected);
    assert_eq!(comparison.outcome(), Outcome::Doubtful);
    let sentences = comparison.sentences().join("\n");
    assert!(sentences.contains("gone: only in A.\nnew: only in B."), "{sentences}");
    assert!(sentences.contains("B4-T1-O8-W0-PR: only in B; A has not measured it yet."), "{sentences}");
    let message =
        Comparison::of(&run("a", &[("gone", &some)]), &run("b", &[("new", &some)]), 0.0).unwrap_err();
    assert!(
        message.message.contains("runs/a has gone") && message.message.contains("runs/b has new"),
        "{message}"
    );
    let message = Comparison::of(&a, &run("b", &[]), 0.0).unwrap_err().message;
    assert!(message.contains("runs/b has no complete step"), "{message}");
    let message = Comparison::of(&a, &a, 0.0).unwrap_err().message;
    assert!(message.contains("the same run"), "{message}");
}

#[test]
fn another_profile_of_the_same_name_is_not_judged() {
    let a = run("a", &[("x", &around(10_000.0, 800.0))]);
    let mut b = run("b", &[("x", &around(5_000.0, 1600.0))]);
    b.report.steps.iter_mut().for_each(|step| step.profile.block_size = "64KiB".parse().unwrap());
    let comparison = compare(&a, &b);
    let load = &comparison.loads[0];
    assert_eq!((load.verdict, load.decided_by, load.iops.ratio), (Verdict::NotTheSameLoad, None, None));
    assert!(load.iops.a.is_some() && load.iops.b.is_some(), "its figures are still shown");
    assert!(load.sentence().starts_with("not the same load: block_size: 4"), "{}", load.sentence());
    assert_eq!((comparison.outcome(), comparison.judged), (Outcome::Doubtful, 0));
    assert!(text::page(&comparison).contains("x: not the same load: block_size: 4"));
    let mut fuller = run("b", &[("x", &around(5_000.0, 1600.0))]);
    fuller.report.steps.iter_mut().for_each(|step| step.fill_level = Some(80.0));
    let sentence = compare(&a, &fuller).loads[0].sentence();
    assert_eq!(sentence, "not the same load: fill_level: not given -> 80 %");
}

#[test]
fn what_a_search_asked_for_is_no_repeat_of_a_load() {
    let some = around(10_000.0, 800.0);
    let (a, mut b) = (run("a", &[("x", &some)]), run("b", &[("x", &some)]));
    let mut searched = b.report.steps[0].clone();
    (searched.purpose, searched.iops) = (Purpose::Search { search: 1, load: 2.0 }, 0.0);
    b.report.steps.push(searched);
    again(&mut b);
    let load = compare(&a, &b).loads.remove(0);
    assert_eq!((load.verdict, load.repeats.b), (Verdict::NoDifferenceShown, 6));
}

#[test]
fn what_the_machines_did_beside_the_load_is_taken_into_account() {
    let quiet = run("a", &[("x", &around(1000.0, 100.0))]);
    assert_eq!(compare(&quiet, &run("b", &[("x", &around(1000.0, 100.0))])).outcome(), Outcome::Fine);
    let mut stolen = run("b", &[("x", &around(1000.0, 100.0))]);
    stolen.report.steps.iter_mut().for_each(|step| step.host_steal = Some(0.08));
    let mut stated = quiet.clone();
    stated.report.steps.iter_mut().for_each(|step| step.host_steal = Some(0.01));
    let comparison = compare(&stated, &stolen);
    assert_eq!(comparison.outcome(), Outcome::Doubtful);
    assert!(comparison.doubts[0].contains("1 % of the CPU in A, and 8 % in B"), "{:?}", comparison.doubts);
    let mut busy = run("b", &[("x", &around(1000.0, 100.0))]);
    busy.cpu_pressure = vec![0.55; 3];
    let mut calm = quiet.clone();
    calm.cpu_pressure = vec![0.05; 3];
    let comparison = compare(&calm, &busy);
    assert_eq!(comparison.doubts.len(), 1, "{:?}", comparison.doubts);
    assert!(comparison.doubts[0].contains("waited for a CPU 5 % of the time in A, and 55 % in B"));
    // What was not recorded says nothing.
    assert_eq!(compare(&quiet, &busy).outcome(), Outcome::Fine);
}

#[test]
fn doubtful_repeats_are_kept_and_said() {
    let (a, mut b) =
        (run("a", &[("x", &around(10_000.0, 800.0))]), run("b", &[("x", &around(10_000.0, 800.0))]));
    assert_eq!(compare(&a, &b).outcome(), Outcome::Fine);
    b.report.steps[1].lost_workers = 1;
    b.report.steps[4].errors = 3;
    again(&mut b);
    let comparison = compare(&a, &b);
    assert_eq!((comparison.loads[0].doubtful.a, comparison.loads[0].doubtful.b), (0, 2));
    assert_eq!(comparison.loads[0].verdict, Verdict::NoDifferenceShown);
    assert_eq!(comparison.outcome(), Outcome::Doubtful);
    let page = text::page(&comparison);
    assert!(page.contains("6 (2 doubtful)") && page.contains("doubtful: x: repeats lost workers"), "{page}");
    // Slower comes before doubtful.
    let mut slower = run("b", &[("x", &around(5_000.0, 1600.0))]);
    slower.report.steps[1].errors = 1;
    again(&mut slower);
    assert_eq!(compare(&a, &slower).outcome(), Outcome::Slower);
}

#[test]
fn so_many_percent_slower_may_be_allowed() {
    let outcome = |b: f64, allowed: f64, rate: bool| {
        let of = |run: Run| if rate { with_rate(run) } else { run };
        let a = of(run("a", &[("x", &around(10_000.0, 1000.0))]));
        let (iops, latency) = if rate { (10_000.0, 1000.0 * b) } else { (10_000.0 * b, 1000.0) };
        let comparison =
            Comparison::of(&a, &of(run("b", &[("x", &around(iops, latency))])), allowed).unwrap();
        assert_eq!(comparison.loads[0].verdict, Verdict::Slower, "it is slower, whatever is allowed");
        comparison.outcome()
    };
    for rate in [false, true] {
        let slower = if rate { 1.1 } else { 0.9 };
        assert_eq!(outcome(slower, 0.0, rate), Outcome::Slower);
        assert_eq!(outcome(slower, 5.0, rate), Outcome::Slower);
        // Part of the interval is within ten percent, and all of it within twenty. The estimate decides whether that is
        // doubtful.
        assert_eq!(outcome(slower, 9.9, rate), Outcome::Doubtful);
        assert_eq!(outcome(slower, 10.1, rate), Outcome::Fine);
        assert_eq!(outcome(slower, 20.0, rate), Outcome::Fine);
    }
}

#[test]
fn how_many_chance_alone_would_call_is_said_from_five_loads_on() {
    let names = ["a", "b", "c", "d", "e"];
    let some = around(10_000.0, 800.0);
    let of = |name: &str, count: usize| {
        let all: Vec<(&str, &[Repeat])> =
            names[..count].iter().map(|label| (*label, some.as_slice())).collect();
        run(name, &all)
    };
    let says = |count: usize| text::page(&compare(&of("a", count), &of("b", count))).contains("chance alone");
    assert!(!says(4));
    assert!(says(5));
    let five = compare(&of("a", 5), &of("b", 5));
    assert!((five.called_by_chance - 0.25).abs() < 1e-9);
}

fn host(kernel: &str) -> Inventory {
    Inventory { kernel: Some(kernel.into()), cpus: 4, ..Inventory::default() }
}

#[test]
fn what_differs_beside_the_figures_comes_first() {
    let some = around(10_000.0, 800.0);
    let (mut a, mut b) = (run("a", &[("x", &some)]), run("b", &[("x", &some)]));
    assert_eq!(compare(&a, &b).configuration, []);
    assert!(text::page(&compare(&a, &b)).contains("No difference of configuration."));
    let other = STUDY.replace("repeats = 1", "repeats = 1\nseed = 7") + "[fleet]\nworkers_per_node = 2\n";
    b.manifest.study = read::parse("study.toml", &other).unwrap();
    b.disks = 2;
    b.report.loadline = "9.9.9".into();
    b.manifest.workers.push(WorkerInfo {
        id: WorkerId("node-1/0".into()),
        node: "node-1".into(),
        host: "h".into(),
        pid: 1,
        version: "9.9.9".into(),
    });
    a.manifest.workers =
        vec![WorkerInfo { pid: 2, version: a.report.loadline.clone(), ..b.manifest.workers[0].clone() }];
    a.hosts = BTreeMap::from([("h".to_string(), host("6.1"))]);
    b.hosts = BTreeMap::from([("h".to_string(), host("6.8"))]);
    a.engines = BTreeMap::from([("x".to_string(), BTreeSet::from(["io_uring".to_string()]))]);
    b.engines = BTreeMap::from([("x".to_string(), BTreeSet::from(["threads".to_string()]))]);
    let comparison = compare(&a, &b);
    let lines: Vec<String> = comparison.configuration.iter().map(|difference| difference.line()).collect();
    let version = &a.report.loadline;
    assert_eq!(
        lines,
        [
            format!("Loadline: {version} -> 9.9.9"),
            "fleet.workers_per_node: 1 -> 2".into(),
            "run.seed: 1 -> 7".into(),
            format!("Loadline of the workers: {version} -> 9.9.9"),
            "host: kernel (h): 6.1 -> 6.8".into(),
            "engine (x): io_uring -> threads".into(),
        ]
    );
    assert_eq!(
        comparison.doubts[0],
        "A has disks: 1, B: 2; each of them gets the load, so it is not the same in all"
    );
    assert!(comparison.doubts[1].contains(&format!("A was measured by Loadline {version}, B by 9.9.9")));
    assert_eq!(comparison.outcome(), Outcome::Doubtful);
    let page = text::page(&comparison);
    assert!(page.find("run.seed").unwrap() < page.find("IOPS").unwrap(), "{page}");
    assert!(
        comparison.loads[0].other_engine && page.contains("doubtful: x: A and B were issued by"),
        "{page}"
    );
}

#[test]
fn unfinished_runs_are_compared_as_far_as_they_are() {
    let some = around(10_000.0, 800.0);
    let (a, mut b) = (run("a", &[("x", &some)]), run("b", &[("x", &some)]));
    b.report.missing = vec!["7 (x, repeat 7)".into()];
    b.report.planned = 7;
    let comparison = compare(&a, &b);
    assert_eq!(comparison.doubts, ["B is unfinished: 6 of 7 steps are complete; missing: 7 (x, repeat 7)"]);
    assert_eq!((comparison.outcome(), comparison.judged), (Outcome::Doubtful, 1));
    assert!(text::page(&comparison).contains("doubtful: B is unfinished"));
}

#[test]
fn the_table_is_aligned_and_the_word_stands_beside_the_figure_that_decides() {
    let (some, less) = (around(52_000.0, 600.0), around(48_000.0, 650.0));
    let few = around(100.0, 20_000.0);
    let paced = |run: Run| {
        let mut run = run;
        let paced = run.report.steps.iter_mut().filter(|step| step.label == "paced");
        paced.for_each(|step| step.profile.rate = Some("1000iops".parse().unwrap()));
        run
    };
    let a = paced(run("a", &[("B4-T1-O8-W0-PR", &some), ("paced", &few), ("few", &few[..2])]));
    let b = paced(run("b", &[("B4-T1-O8-W0-PR", &less), ("paced", &few), ("few", &few[..3])]));
    let page = text::page(&compare(&a, &b));
    let from = page.find("load ").unwrap();
    let table: Vec<&str> = page[from..].lines().take(10).collect();
    assert_eq!(
        table.join("\n") + "\n",
        "\
load            n of A  n of B   figure       A       B  B ÷ A  95 % interval                   result
B4-T1-O8-W0-PR       6       6     IOPS  52,052  48,048  0.923   0.915..0.931                   slower
                                mean ms   0.599   0.649  1.083   1.074..1.093
                                 p99 ms    1.80    1.95  1.083   1.074..1.093
paced                6       6     IOPS     100     100  1.000   0.991..1.009
                                mean ms    20.0    20.0  1.000   0.991..1.009
                                 p99 ms    59.9    59.9  1.000   0.991..1.009      no difference shown
few                  2       3     IOPS     100     100  0.998              -  too few repeats to tell
                                mean ms    20.0    20.0  1.002              -
                                 p99 ms    59.9    60.0  1.002              -
"
    );
}

#[test]
fn names_that_mean_harm_stay_names_in_every_form() {
    let hostile = "x<&\"'>]]>\u{1}\u{1b}[2J\n| a | `b` *c* [d](e) \\ \u{ffff}";
    let (some, less) = (around(10_000.0, 800.0), around(5_000.0, 1600.0));
    let mut a = run("a", &[(hostile, &some), ("only<>", &some)]);
    let b = run("b", &[(hostile, &less)]);
    a.report.study = hostile.into();
    a.folder = hostile.into();
    let comparison = compare(&a, &b);
    let xml = junit::document(&comparison);
    assert!(xml.starts_with(junit::HEAD));
    assert!(xml.contains("tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"1\""), "{xml}");
    let name =
        "name=\"x&lt;&amp;&quot;&apos;&gt;]]&gt;\u{fffd}\u{fffd}[2J&#10;| a | `b` *c* [d](e) \\ \u{fffd}\"";
    assert!(xml.contains(name), "{xml}");
    assert!(
        xml.contains("<failure type=\"slower\" message=\"slower: IOPS 10,010 in A, 5,005 in B: B ÷ A is 0.5"),
        "{xml}"
    );
    assert!(xml.contains("<skipped message=\"only in A\"/>"), "{xml}");
    assert!(!xml.chars().any(|c| c.is_control() && c != '\n'), "{xml}");
    let page = markdown::page(&comparison);
    assert!(page.starts_with(markdown::HEAD));
    assert!(
        page.contains("| x\\<&\"'>\\]\\]>\\\\u{1}\\\\u{1b}\\[2J\\\\n\\| a \\| \\`b\\` \\*c\\* "),
        "{page}"
    );
    for line in page.lines().filter(|line| line.starts_with('|')) {
        assert_eq!(line.replace("\\|", "").matches('|').count(), 10, "{line}");
    }
    let text = text::page(&comparison);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
}

#[test]
fn json_has_every_key_and_no_figure_that_is_none() {
    let some = around(10_000.0, 800.0);
    let mut nothing = around(10_000.0, 800.0);
    nothing[0] = (0.0, None, None);
    let a = run("a", &[("x", &some), ("gone", &some), ("nothing", &some)]);
    let b = run("b", &[("x", &some), ("nothing", &nothing)]);
    let comparison = compare(&a, &b);
    let text = document(&comparison);
    let back: Comparison = serde_json::from_str(&text).unwrap();
    assert_eq!((&back.runs, back.loads.len()), (&comparison.runs, 3));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["loads"][0]["verdict"], "no_difference_shown");
    assert_eq!(json["loads"][0]["decided_by"], "iops");
    assert_eq!(json["loads"][1]["verdict"], "only_in_a");
    assert!(json["loads"][1]["iops"]["b"].is_null() && json["loads"][1]["iops"]["a"].is_number());
    assert!(json["loads"][2]["iops"]["ratio"].is_null() && json["loads"][2]["mean_us"]["b"].is_null());
    assert!(!text.contains("NaN") && !text.contains("inf"));
    assert_eq!(document(&compare(&a, &b)), text, "again, the same");
}

#[test]
fn a_run_is_read_with_its_hosts_and_engines() {
    let run = empty(STUDY);
    let report: &Report = &run.report;
    assert_eq!((report.complete, report.planned), (1, 1));
    assert_eq!(run.engines.keys().collect::<Vec<_>>(), ["B4-T1-O8-W0-PR"]);
    let nowhere = std::path::Path::new("/nowhere/run");
    assert!(Run::open(nowhere).unwrap_err().message.contains("/nowhere/run"));
}
