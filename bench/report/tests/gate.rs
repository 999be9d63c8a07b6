//! What a run says beside its baseline: the verdict, the trend, and what is kept, in every form.

mod kept;

use std::collections::BTreeSet;

use loadline_report::baseline::gate::{KeptAs, document};
use loadline_report::baseline::store::Added;
use loadline_report::baseline::{Gate, History, KeptResult, Pin, junit, markdown, open, text};
use loadline_report::compare::{Figure, Outcome};

use kept::{addition, kept, name};

#[test]
fn another_study_and_other_loads_are_refused_before_the_load() {
    let pinned = Some(kept(0, 1000.0));
    let history = History { pinned, ..History::default() };
    let loads = |labels: &[&str]| labels.iter().map(|label| label.to_string()).collect::<BTreeSet<_>>();
    let admit = |study: &str, labels: &[&str]| history.check_study(&name(), study, &loads(labels), false);
    admit("mirror-study", &["4k", "8k"]).unwrap();
    for (study, labels, words) in [
        ("other", &["4k"][..], ["mirror-study", "other"]),
        ("mirror-study", &["8k"], ["4k", "8k"]),
        ("mirror-study", &[], ["searches", "not compared"]),
    ] {
        let message = admit(study, labels).unwrap_err().message;
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    // A run that is accepted takes the place of what is pinned.
    history.check_study(&name(), "other", &loads(&["8k"]), true).unwrap();
    History::default().check_study(&name(), "any", &loads(&["x"]), false).unwrap();
}

/// A gate with this many results of 1,000 IOPS, of which the first is pinned.
fn gate(results: usize, iops: f64) -> Gate {
    let recent: Vec<KeptResult> =
        (0..results).map(|number| kept(number, 1000.0 + 2.0 * number as f64)).collect();
    let history = History {
        pinned: recent.first().cloned(),
        files: recent.iter().map(KeptResult::file).collect(),
        recent,
    };
    Gate::of(&name(), &history, &kept(400, iops), 0.0, false).unwrap()
}

#[test]
fn a_slower_run_is_slower_in_every_form_with_its_trend_and_what_was_detectable() {
    let slower = gate(8, 900.0);
    assert_eq!(slower.outcome(), Some(Outcome::Slower));
    let trend = &slower.trend[0];
    assert_eq!((trend.results.len(), trend.is_outside), (8, Some(true)));
    assert!((trend.between_runs.unwrap().chance_within - 7.0 / 9.0).abs() < 1e-12);
    let page = text::page(&slower);
    for words in [
        "  slower\n",
        "detectable",
        "████████ ▁",
        "(outside)",
        "below the range of 8",
        "22 % of runs",
        "78 % of further runs lie within the range of 8 kept results",
        "kept results, of 2026-01-01, then",
    ] {
        assert!(page.contains(words), "no {words} in:\n{page}");
    }
    let page = markdown::page(&slower);
    assert!(
        page.starts_with("<!-- loadline-baseline mirror -->\n# Loadline: mirror-study: slower\n"),
        "{page}"
    );
    assert!(page.starts_with(markdown::HEAD) && page.contains("| 4k | IOPS |"), "{page}");
    assert!(junit::document(&slower).contains("failures=\"1\""));
    let back: Gate = serde_json::from_str(&document(&slower)).unwrap();
    assert_eq!((back.kept, back.trend[0].results.len()), (KeptAs::NotKept, 8));
}

#[test]
fn creep_is_seen_since_the_pinned_result_stays() {
    // Each is 1 % slower than the one before: none is beyond its noise, and the last is far from the pinned one.
    let recent: Vec<KeptResult> =
        (0..8).map(|number| kept(number, 1000.0 * 0.99f64.powi(number as i32))).collect();
    let history = History { pinned: recent.first().cloned(), recent, ..History::default() };
    let last = Gate::of(&name(), &history, &kept(8, 1000.0 * 0.99f64.powi(8)), 5.0, false).unwrap();
    assert_eq!(last.outcome(), Some(Outcome::Slower));
}

#[test]
fn with_nothing_to_compare_with_it_says_so_in_every_form() {
    let first = gate(0, 1000.0);
    assert!(first.comparison.is_none() && first.outcome().is_none());
    assert!(text::page(&first).contains("no result is kept to compare with"));
    assert!(markdown::page(&first).contains("nothing to compare with"));
    let xml = junit::document(&first);
    assert!(
        xml.contains("skipped=\"1\"") && xml.contains("name=\"4k\"") && xml.contains("failures=\"0\""),
        "{xml}"
    );
    assert!(document(&first).contains("\"comparison\": null"));
    // The run that is the pinned one itself.
    let history =
        History { pinned: Some(kept(0, 1000.0)), recent: vec![kept(0, 1000.0)], ..History::default() };
    let again = Gate::of(&name(), &history, &kept(0, 1000.0), 0.0, false).unwrap();
    assert!(again.comparison.is_none() && again.trend[0].results.is_empty());
}

#[test]
fn a_result_in_which_another_load_has_the_name_is_not_in_the_trend() {
    let mut other = kept(1, 5.0);
    other.run.loads[0].keys.insert("block_size".into(), "64KiB".into());
    let recent = vec![kept(0, 1000.0), other, kept(2, 1000.0)];
    let history = History { pinned: recent.first().cloned(), recent, ..History::default() };
    let gate = Gate::of(&name(), &history, &kept(3, 1000.0), 0.0, false).unwrap();
    assert_eq!(gate.trend[0].results.len(), 2);
    assert!(text::page(&gate).contains("from 5 kept results on"));
}

#[test]
fn a_doubtful_result_that_is_pinned_is_said_to_make_every_comparison_doubtful() {
    let mut doubtful = kept(0, 1000.0);
    doubtful.run.loads[0].doubtful = 2;
    let mut first = Gate::of(&name(), &History::default(), &doubtful, 0.0, false).unwrap();
    first.note_added(&doubtful, Added { is_new: true, is_pinned: true }, "place".into());
    assert_eq!((first.kept, first.kept_in.as_deref()), (KeptAs::Pinned, Some("place")));
    assert!(text::page(&first).contains("doubtful: the pinned result has findings"));
    let history = History { pinned: Some(doubtful.clone()), recent: vec![doubtful], ..History::default() };
    let second = kept(1, 1000.0);
    let mut gate = Gate::of(&name(), &history, &second, 0.0, false).unwrap();
    gate.note_added(&second, Added { is_new: true, is_pinned: false }, "place".into());
    assert_eq!((gate.kept, gate.outcome()), (KeptAs::Kept, Some(Outcome::Doubtful)));
    assert!(text::page(&gate).contains("1 of 1 kept results have findings"));
}

#[test]
fn a_run_that_is_not_added_says_why_and_one_that_was_kept_before_stays() {
    let mut new = gate(2, 1000.0);
    let history = History { files: BTreeSet::from([kept(1, 1.0).file()]), ..History::default() };
    new.note_not_added(&history, &kept(400, 1.0), "the storage failed", "place".into());
    assert_eq!((new.kept, new.kept_in.clone()), (KeptAs::NotKept, None));
    assert!(text::page(&new).contains("not kept in the baseline mirror: the storage failed."));
    let mut known = gate(2, 1000.0);
    known.note_not_added(&history, &kept(1, 1.0), "--compare-only", "place".into());
    assert_eq!((known.kept, known.not_kept_because.clone()), (KeptAs::Kept, None));
}

/// A gate of this run beside these results, of which the first is pinned.
fn beside(recent: Vec<KeptResult>, this: &KeptResult) -> Gate {
    let history = History { pinned: recent.first().cloned(), recent, ..History::default() };
    Gate::of(&name(), &history, this, 0.0, false).unwrap()
}

#[test]
fn a_run_that_is_accepted_needs_no_load_in_common() {
    let (pinned, mut this) = (kept(0, 1000.0), kept(1, 1000.0));
    this.run.loads[0].label = "8k".into();
    let history = History { pinned: Some(pinned.clone()), recent: vec![pinned], ..History::default() };
    assert!(Gate::of(&name(), &history, &this, 0.0, false).is_err());
    let gate = Gate::of(&name(), &history, &this, 0.0, true).unwrap();
    assert!(gate.comparison.is_none() && text::page(&gate).contains("nothing is compared"));
}

#[test]
fn another_host_another_target_and_another_method_are_doubtful() {
    let facts = |cpu: &str, disk: &str| {
        [("CPU", cpu), ("disks: model", disk), ("kernel", "6.1")].map(|(k, v)| (k.into(), v.into())).into()
    };
    let with = |number: usize, cpu: &str, disk: &str, keys: [(&str, &str); 4]| {
        let mut kept = kept(number, 1000.0);
        kept.run.hosts.insert("h".into(), facts(cpu, disk));
        kept.run.configuration = keys.map(|(key, value)| (key.into(), value.into())).into();
        kept
    };
    let keys =
        [("phases.measure", "60s"), ("run.verify", "true"), ("target.folder", "/a"), ("run.seed", "1")];
    let pinned = with(0, "x", "d", keys);
    let outcome = |this: KeptResult| beside(vec![pinned.clone()], &this).outcome();
    assert_eq!(outcome(with(1, "x", "d", keys)), Some(Outcome::Fine));
    assert_eq!(outcome(with(1, "y", "d", keys)), Some(Outcome::Doubtful));
    assert_eq!(outcome(with(1, "x", "e", keys)), Some(Outcome::Doubtful));
    for (at, expected) in
        [Outcome::Doubtful, Outcome::Doubtful, Outcome::Doubtful, Outcome::Fine].iter().enumerate()
    {
        let mut keys = keys;
        keys[at].1 = "other";
        assert_eq!(outcome(with(1, "x", "d", keys)), Some(*expected), "{}", keys[at].0);
    }
    let gate = beside(vec![pinned.clone()], &with(1, "y", "d", keys));
    assert!(text::page(&gate).contains("doubtful: A and B were not measured alike (host: CPU (h): x -> y)"));
    // The trend has no result of another host.
    let like = with(2, "y", "d", keys);
    let gate = beside(vec![pinned, like], &with(3, "y", "d", keys));
    assert_eq!(gate.trend[0].results.len(), 1);
}

#[test]
fn the_trend_has_what_was_compared_with_the_pinned_result_and_was_not_slower() {
    // Before the pinned one, the pinned one itself, one that was slower, one that was not, one of a later pin.
    let (before, mut pinned, mut slower, like, mut later) =
        (kept(1, 2000.0), kept(2, 1000.0), kept(3, 500.0), kept(4, 1000.0), kept(5, 900.0));
    pinned.slower = BTreeSet::from(["4k".to_string()]);
    slower.slower = BTreeSet::from(["4k".to_string()]);
    let pin = pinned.file();
    let compared = |kept: KeptResult| KeptResult { compared_with: Some(pin.clone()), ..kept };
    later.compared_with = Some(kept(4, 1.0).file());
    let recent = vec![before, pinned.clone(), compared(slower), compared(like), later];
    let history = History { pinned: Some(pinned), recent, ..History::default() };
    let gate = Gate::of(&name(), &history, &kept(6, 1000.0), 0.0, false).unwrap();
    let ids: Vec<&str> = gate.trend[0].results.iter().map(|result| &result.run_id[9..11]).collect();
    assert_eq!(ids, ["02", "04"]);
}

#[test]
fn the_figures_of_a_row_are_those_of_the_comparison() {
    let rated = |number: usize| {
        let mut kept = kept(number, 1000.0);
        kept.run.loads[0].has_rate = true;
        kept
    };
    let mut no_p99 = rated(0);
    no_p99.run.loads[0].repeats[0].p99_us = None;
    let gate = beside(vec![no_p99], &rated(1));
    assert_eq!(gate.trend[0].figure, Figure::MeanUs, "as the comparison");
    // Of another figure no detectable difference is shown.
    let mut other = gate.clone();
    other.trend[0].figure = Figure::P99Us;
    let last =
        |gate: &Gate| text::page(gate).lines().rfind(|line| line.starts_with("4k  ")).map(str::to_string);
    assert!(last(&gate).unwrap().contains(" % "), "{}", text::page(&gate));
    assert!(!last(&other).unwrap().contains(" % "), "{}", text::page(&other));
}

#[test]
fn the_chance_of_a_range_is_stated_for_each_number_of_results() {
    let with_second = |number: usize| {
        let mut kept = kept(number, 1000.0);
        let mut second = kept.run.loads[0].clone();
        second.label = "8k".into();
        kept.run.loads.push(second);
        kept
    };
    let recent: Vec<KeptResult> =
        (0..9).map(|n| if n < 4 { kept(n, 1000.0) } else { with_second(n) }).collect();
    let page = text::page(&beside(recent, &with_second(10)));
    for words in
        ["80 % of further runs lie within the range of 9", "67 % of further runs lie within the range of 5"]
    {
        assert!(page.contains(words), "no {words} in:\n{page}");
    }
    assert!(page.contains("the last kept results, at most 9 of a load"), "{page}");
}

#[test]
fn words_say_no_more_than_the_intervals_do() {
    let title = |iops: f64| {
        let page = markdown::page(&gate(2, iops));
        page.lines().nth(1).unwrap().to_string()
    };
    assert_eq!(title(1000.0), "# Loadline: mirror-study: no difference shown");
    assert_eq!(title(1200.0), "# Loadline: mirror-study: faster");
    let page = text::page(&gate(2, 1000.0));
    assert!(page.contains("if a load is slower by this much, 9 of 10 comparisons"), "{page}");
}

#[test]
fn a_run_that_another_run_overtook_is_compared_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path().to_str().unwrap()).unwrap();
    let this = kept(1, 500.0);
    let mut gate = Gate::of(&name(), &History::read(&*store, &name()).unwrap(), &this, 0.0, false).unwrap();
    assert!(gate.outcome().is_none());
    // Another run is kept first, after this one read the history.
    store.add(&name(), &addition(&kept(0, 1000.0), Pin::IfFirst)).unwrap();
    gate.keep(&*store, &name(), &this, Pin::IfFirst, 0.0).unwrap();
    assert_eq!((gate.kept, gate.outcome()), (KeptAs::Kept, Some(Outcome::Slower)));
    // What a run came to is kept with it.
    let next = kept(2, 500.0);
    let mut gate = Gate::of(&name(), &History::read(&*store, &name()).unwrap(), &next, 0.0, false).unwrap();
    gate.keep(&*store, &name(), &next, Pin::IfFirst, 0.0).unwrap();
    let read = History::read(&*store, &name()).unwrap();
    let last = read.recent.last().unwrap();
    assert_eq!(last.compared_with, Some(kept(0, 1000.0).file()));
    assert_eq!(last.slower, BTreeSet::from(["4k".to_string()]));
}

#[test]
fn two_runs_of_one_id_that_began_at_different_moments_are_two() {
    let (one, mut other) = (kept(1, 1000.0), kept(1, 500.0));
    other.run.begun = kept(2, 1.0).run.begun;
    other.run.begun = serde_json::from_value("2026-01-01T01:00:00.124Z".into()).unwrap();
    assert_eq!(beside(vec![one], &other).outcome(), Some(Outcome::Slower));
}
