//! Kept results: what both stores promise, what a damaged file leads to, and what a run says of its baseline. The stores
//! are held to the same tests. Those of a git ref run one after another: its repository is that of the current folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use loadline_report::baseline::gate::{KeptAs, document};
use loadline_report::baseline::history::MOST_RESULTS;
use loadline_report::baseline::kept::PINNED_FILE;
use loadline_report::baseline::store::Added;
use loadline_report::baseline::{
    Addition, BaselineName, BaselineStore, Gate, History, Kept, Pin, junit, markdown, open, text,
};
use loadline_report::compare::record::{LoadRecord, RepeatRecord};
use loadline_report::compare::{Outcome, RunRecord};
use tempfile::TempDir;

/// A repository is found by the current folder, of which a process has one.
static CURRENT: Mutex<()> = Mutex::new(());

/// A fresh repository with a commit, which is the current folder as long as it lives.
struct Repository {
    folder: TempDir,
    _current: MutexGuard<'static, ()>,
}

impl Repository {
    fn new() -> Repository {
        let current = CURRENT.lock().unwrap_or_else(|broken| broken.into_inner());
        let folder = tempfile::tempdir().unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        git("init --quiet --initial-branch=main .");
        fs::write("source.txt", "source").unwrap();
        git("add source.txt");
        git("-c user.name=x -c user.email=x@localhost commit --quiet -m first");
        Repository { folder, _current: current }
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::env::set_current_dir("/");
    }
}

fn git(words: &str) -> String {
    let output = Command::new("git").args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "git {words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn name() -> BaselineName {
    "mirror".parse().unwrap()
}

/// A run of six repeats around these IOPS, as the `number`-th of a day.
fn record(number: usize, iops: f64) -> RunRecord {
    let begun = format!("2026-01-{:02}T{:02}:00:00.123Z", 1 + number / 24, number % 24);
    let repeat = |jitter: f64| RepeatRecord {
        iops: iops * jitter,
        mean_us: Some(1e6 / iops / jitter),
        p99_us: Some(3e6 / iops / jitter),
    };
    RunRecord {
        place: format!("runs/{number}"),
        run_id: format!("202601{:02}-{:02}0000-7", 1 + number / 24, number % 24),
        study: "mirror-study".into(),
        loadline: "0.1.0".into(),
        begun: serde_json::from_value(begun.into()).unwrap(),
        complete: 6,
        planned: 6,
        damaged: 0,
        missing: Vec::new(),
        versions: BTreeSet::from(["0.1.0".to_string()]),
        disks: 1,
        steal: None,
        cpu_pressure: None,
        configuration: BTreeMap::new(),
        fleet: BTreeMap::new(),
        hosts: BTreeMap::new(),
        engines: BTreeMap::new(),
        planned_loads: BTreeSet::from(["4k".to_string()]),
        searches: false,
        loads: vec![LoadRecord {
            label: "4k".into(),
            keys: BTreeMap::from([("block_size".to_string(), "4KiB".to_string())]),
            has_rate: false,
            doubtful: 0,
            repeats: [1.0, 1.004, 0.995, 1.008, 0.991, 1.002].map(repeat).to_vec(),
        }],
    }
}

fn kept(number: usize, iops: f64) -> Kept {
    Kept::new(record(number, iops), Some("0123456789abcdef0123".into()))
}

fn addition(kept: &Kept, pin: Pin) -> Addition {
    Addition { file: kept.file(), text: kept.text(), pin }
}

fn history(store: &dyn BaselineStore) -> History {
    History::read(store, &name()).unwrap()
}

/// What every store promises.
fn holds_its_promises(store: &dyn BaselineStore) {
    store.check(&name(), true).unwrap();
    assert!(store.files(&name()).unwrap().is_empty());
    assert!(history(store).pinned.is_none());

    // The first is pinned, later ones are not, whatever their figures.
    let (first, second) = (kept(0, 1000.0), kept(1, 500.0));
    let added = store.add(&name(), &addition(&first, Pin::IfFirst)).unwrap();
    assert!(added.is_new && added.is_pinned);
    let added = store.add(&name(), &addition(&second, Pin::IfFirst)).unwrap();
    assert!(added.is_new && !added.is_pinned);
    let read = history(store);
    assert_eq!(read.pinned.as_ref().unwrap().file(), first.file());
    assert_eq!(read.recent.iter().map(Kept::file).collect::<Vec<_>>(), [first.file(), second.file()]);
    let place = store.place(&name(), &second.file());
    assert_eq!(read.recent[1].run, RunRecord { place, ..second.run.clone() }, "as it was kept");

    // The same run again is not kept twice, and stays as it was first.
    let other = Kept::new(record(1, 1.0), None);
    let added = store.add(&name(), &addition(&other, Pin::IfFirst)).unwrap();
    assert!(!added.is_new && !added.is_pinned);
    assert_eq!(store.read(&name(), &second.file()).unwrap(), second.text());

    // A result that was kept before can be accepted later.
    let added = store.add(&name(), &addition(&second, Pin::Always)).unwrap();
    assert!(!added.is_new && added.is_pinned);
    assert_eq!(history(store).pinned.unwrap().file(), second.file());

    // Baselines do not mix, and only the last results are read, besides the pinned one.
    let other: BaselineName = "other".parse().unwrap();
    assert!(store.files(&other).unwrap().is_empty());
    for number in 2..MOST_RESULTS + 3 {
        store.add(&other, &addition(&kept(number, 900.0), Pin::IfFirst)).unwrap();
    }
    let read = History::read(store, &other).unwrap();
    assert_eq!((read.recent.len(), read.files.len()), (MOST_RESULTS, MOST_RESULTS + 1));
    assert_eq!(read.pinned.unwrap().file(), kept(2, 900.0).file());
    assert!(!read.recent.iter().any(|kept| kept.file() == self::kept(2, 900.0).file()));
    assert_eq!(history(store).files.len(), 2);
    store.check(&name(), true).unwrap();
}

/// Keepers at the same moment: no result is lost, and one of them is pinned.
fn loses_nothing(open: impl Fn() -> Box<dyn BaselineStore> + Sync) {
    let pinned = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for keeper in 0..4 {
            let (open, pinned) = (&open, &pinned);
            scope.spawn(move || {
                let store = open();
                for round in 0..3 {
                    store.check(&name(), true).unwrap();
                    let addition = addition(&kept(keeper * 3 + round, 1000.0), Pin::IfFirst);
                    let added = store.add(&name(), &addition).unwrap();
                    pinned.fetch_add(usize::from(added.is_pinned), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(pinned.into_inner(), 1);
    let read = history(&*open());
    let all: BTreeSet<String> = (0..12).map(|number| kept(number, 1000.0).file()).collect();
    assert_eq!(read.files, all);
    assert!(read.pinned.is_some());
}

#[test]
fn a_folder_holds_its_promises() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("deep/baselines");
    let store = open(place.to_str().unwrap()).unwrap();
    holds_its_promises(&*store);
    let mut names: Vec<_> =
        fs::read_dir(place.join("mirror")).unwrap().flatten().map(|e| e.file_name()).collect();
    names.sort();
    assert_eq!(
        names,
        [kept(0, 1.0).file().as_str(), kept(1, 1.0).file().as_str(), PINNED_FILE],
        "nothing temporary"
    );
    let size = fs::metadata(place.join("mirror").join(kept(0, 1.0).file())).unwrap().len();
    assert!(size < 8 << 10, "{size} bytes");
}

#[test]
fn keepers_in_one_folder_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    loses_nothing(|| open(folder.path().to_str().unwrap()).unwrap());
}

#[test]
fn a_ref_holds_its_promises_and_nothing_else_of_the_repository_changes() {
    let _repository = Repository::new();
    for (place, reference) in [
        ("git:refs/loadline/baselines", "refs/loadline/baselines"),
        ("git:kept/results", "refs/heads/kept/results"),
    ] {
        fs::write("source.txt", "changed").unwrap();
        git("add source.txt");
        fs::write("source.txt", "changed again").unwrap();
        let state = || {
            [git("rev-parse HEAD"), git("status --porcelain"), git("write-tree"), git("symbolic-ref HEAD")]
        };
        let before = state();
        holds_its_promises(&*open(place).unwrap());
        assert_eq!(state(), before);
        assert_eq!(fs::read_to_string("source.txt").unwrap(), "changed again");
        // Each result is one commit, and a pin of an earlier one another.
        let count = git(&format!("rev-list --count {reference}"));
        assert_eq!(count.trim(), (3 + MOST_RESULTS + 1).to_string());
        git("fsck --strict --no-dangling");
    }
}

#[test]
fn keepers_on_one_ref_lose_nothing() {
    let _repository = Repository::new();
    loses_nothing(|| open("git:refs/loadline/baselines").unwrap());
}

#[test]
fn a_ref_that_is_no_place_for_results_is_refused_with_the_reason() {
    let repository = Repository::new();
    git("branch other");
    for (place, why) in [
        ("git:", "does not accept"),
        ("git:a..b", "does not accept"),
        ("git:refs/x.lock", "does not accept"),
        ("git:-x", "does not accept"),
        ("git:HEAD", "does not accept"),
        ("git:@{-1}", "does not accept"),
        ("git:main", "is checked out"),
        ("git:refs/heads/main", "is checked out"),
        ("git:refs/remotes/origin/x", "git fetch"),
        ("git:refs/tags/x", "git tag"),
    ] {
        let message = open(place).err().unwrap_or_else(|| panic!("{place} is accepted")).message;
        assert!(message.contains(why) && message.contains(place), "{place}: {message}");
    }
    // A branch that Loadline did not make, and a ref in the way of another.
    let before = git("rev-parse other");
    for writes in [true, false] {
        let message = open("git:other").unwrap().check(&name(), writes).unwrap_err().message;
        assert!(message.contains("Loadline did not make it"), "{message}");
    }
    assert!(open("git:other").unwrap().add(&name(), &addition(&kept(0, 1.0), Pin::Always)).is_err());
    assert_eq!(git("rev-parse other"), before);
    let message = open("git:main/below").unwrap().check(&name(), true).unwrap_err().message;
    assert!(message.contains("cannot be written"), "{message}");
    // A ref that is locked for good.
    let store = open("git:refs/loadline/locked").unwrap();
    store.add(&name(), &addition(&kept(0, 1.0), Pin::IfFirst)).unwrap();
    fs::write(repository.folder.path().join(".git/refs/loadline/locked.lock"), "").unwrap();
    let message = store.check(&name(), true).unwrap_err().message;
    assert!(message.contains("locked"), "{message}");
    store.check(&name(), false).unwrap();
    assert_eq!(history(&*store).files.len(), 1, "it can be read");

    let outside = tempfile::tempdir().unwrap();
    std::env::set_current_dir(outside.path()).unwrap();
    let message = open("git:x").err().unwrap().message;
    assert!(message.contains("not a git repository") && message.contains("--baselines"), "{message}");
}

#[test]
fn a_folder_that_is_no_place_for_results_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let check = |path: &Path| open(path.to_str().unwrap()).unwrap().check(&name(), true);
    fs::write(at("file"), "precious").unwrap();
    fs::create_dir(at("place")).unwrap();
    fs::write(at("place/mirror"), "precious").unwrap();
    for path in [at("file"), at("place"), at("file/below")] {
        let message = check(&path).unwrap_err().message;
        assert!(message.contains(path.to_str().unwrap()) && message.contains("--baselines"), "{message}");
    }
    assert!(open("").is_err());
    check(&at("new/place")).unwrap();
    assert!(!at("new").exists(), "a check makes nothing");
}

#[test]
fn a_damaged_file_is_named_and_stays_and_another_version_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path().to_str().unwrap()).unwrap();
    for number in 0..2 {
        store.add(&name(), &addition(&kept(number, 1000.0), Pin::IfFirst)).unwrap();
    }
    let path = folder.path().join("mirror").join(kept(1, 1000.0).file());
    let whole = fs::read_to_string(&path).unwrap();
    let newer = whole.replacen("\"version\": 1", "\"version\": 9", 1);
    for (damaged, word) in [
        (&whole[..whole.len() / 2], "move it away"),
        ("", "move it away"),
        (&whole.replacen("1000", "2000", 1), "move it away"),
        ("\u{fffd}", "move it away"),
        (&newer, "version 9"),
    ] {
        fs::write(&path, damaged).unwrap();
        let message = History::read(&*store, &name()).unwrap_err().message;
        assert!(message.contains(path.to_str().unwrap()) && message.contains(word), "{message}");
        assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
    }
    // Moved away, as the message says.
    fs::rename(&path, folder.path().join("damaged")).unwrap();
    assert_eq!(history(&*store).files.len(), 1);
    // The pinned one is gone; then what says so is, and the oldest is pinned.
    fs::write(&path, &whole).unwrap();
    let first = path.with_file_name(kept(0, 1000.0).file());
    fs::remove_file(&first).unwrap();
    let message = History::read(&*store, &name()).unwrap_err().message;
    assert!(message.contains(PINNED_FILE) && message.contains("is not there"), "{message}");
    fs::remove_file(path.with_file_name(PINNED_FILE)).unwrap();
    fs::write(path.with_file_name("README.md"), "another's").unwrap();
    fs::write(path.with_file_name(kept(2, 1000.0).file()), kept(2, 1000.0).text()).unwrap();
    assert_eq!(history(&*store).pinned.unwrap().file(), kept(1, 1000.0).file());
}

#[test]
fn another_study_and_other_loads_are_refused_before_the_load() {
    let pinned = Some(kept(0, 1000.0));
    let history = History { pinned, ..History::default() };
    let loads = |labels: &[&str]| labels.iter().map(|label| label.to_string()).collect::<BTreeSet<_>>();
    let admit = |study: &str, labels: &[&str]| history.check_study(&name(), study, &loads(labels));
    admit("mirror-study", &["4k", "8k"]).unwrap();
    for (study, labels, words) in [
        ("other", &["4k"][..], ["mirror-study", "other"]),
        ("mirror-study", &["8k"], ["4k", "8k"]),
        ("mirror-study", &[], ["searches", "not compared"]),
    ] {
        let message = admit(study, labels).unwrap_err().message;
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
    History::default().check_study(&name(), "any", &loads(&["x"])).unwrap();
}

/// A gate with this many results of 1,000 IOPS, of which the first is pinned.
fn gate(results: usize, iops: f64) -> Gate {
    let recent: Vec<Kept> = (0..results).map(|number| kept(number, 1000.0 + 2.0 * number as f64)).collect();
    let history =
        History { pinned: recent.first().cloned(), files: recent.iter().map(Kept::file).collect(), recent };
    Gate::of(&name(), &history, &kept(400, iops), 0.0).unwrap()
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
    let recent: Vec<Kept> = (0..8).map(|number| kept(number, 1000.0 * 0.99f64.powi(number as i32))).collect();
    let history = History { pinned: recent.first().cloned(), recent, ..History::default() };
    let last = Gate::of(&name(), &history, &kept(8, 1000.0 * 0.99f64.powi(8)), 5.0).unwrap();
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
    let again = Gate::of(&name(), &history, &kept(0, 1000.0), 0.0).unwrap();
    assert!(again.comparison.is_none() && again.trend[0].results.is_empty());
}

#[test]
fn a_result_in_which_another_load_has_the_name_is_not_in_the_trend() {
    let mut other = kept(1, 5.0);
    other.run.loads[0].keys.insert("block_size".into(), "64KiB".into());
    let recent = vec![kept(0, 1000.0), other, kept(2, 1000.0)];
    let history = History { pinned: recent.first().cloned(), recent, ..History::default() };
    let gate = Gate::of(&name(), &history, &kept(3, 1000.0), 0.0).unwrap();
    assert_eq!(gate.trend[0].results.len(), 2);
    assert!(text::page(&gate).contains("from 5 kept results on"));
}

#[test]
fn a_doubtful_result_that_is_pinned_is_said_to_make_every_comparison_doubtful() {
    let mut doubtful = kept(0, 1000.0);
    doubtful.run.loads[0].doubtful = 2;
    let mut first = Gate::of(&name(), &History::default(), &doubtful, 0.0).unwrap();
    first.note_added(&doubtful, Added { is_new: true, is_pinned: true }, "place".into());
    assert_eq!((first.kept, first.kept_in.as_deref()), (KeptAs::Pinned, Some("place")));
    assert!(text::page(&first).contains("doubtful: the pinned result has findings"));
    let history = History { pinned: Some(doubtful.clone()), recent: vec![doubtful], ..History::default() };
    let second = kept(1, 1000.0);
    let mut gate = Gate::of(&name(), &history, &second, 0.0).unwrap();
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
