//! Kept results: what both stores promise, and what a damaged file leads to. The stores are held to the same tests. Those of a git ref run one after another: its repository is that of the current folder.

mod kept;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use loadline_report::baseline::history::MOST_RESULTS;
use loadline_report::baseline::kept::PINNED_FILE;
use loadline_report::baseline::{BaselineName, BaselineStore, History, KeptResult, Pin, open};
use loadline_report::compare::RunRecord;
use tempfile::TempDir;

use kept::{addition, history, kept, name, record};

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
    assert_eq!(read.recent.iter().map(KeptResult::file).collect::<Vec<_>>(), [first.file(), second.file()]);
    let place = store.place(&name(), &second.file());
    assert_eq!(read.recent[1].run, RunRecord { place, ..second.run.clone() }, "as it was kept");

    // The same run again is not kept twice, and stays as it was first.
    let other = KeptResult::new(record(1, 1.0), None);
    let added = store.add(&name(), &addition(&other, Pin::IfFirst)).unwrap();
    assert!(!added.is_new && !added.is_pinned);
    assert_eq!(store.read(&name(), &second.file()).unwrap(), second.text());

    // A result that was kept before can be accepted later.
    let added = store.add(&name(), &addition(&second, Pin::Always)).unwrap();
    assert!(!added.is_new && added.is_pinned);
    assert_eq!(history(store).pinned.unwrap().file(), second.file());
    // Once more changes nothing: on a ref there is no further commit, as the count of commits shows.
    let added = store.add(&name(), &addition(&second, Pin::Always)).unwrap();
    assert!(!added.is_new && added.is_pinned);

    // Baselines do not mix, and only the last results are read, besides the pinned one.
    let other: BaselineName = "other".parse().unwrap();
    assert!(store.files(&other).unwrap().is_empty());
    for number in 2..MOST_RESULTS + 3 {
        store.add(&other, &addition(&kept(number, 900.0), Pin::IfFirst)).unwrap();
    }
    let read = History::read(store, &other).unwrap();
    assert_eq!((read.recent.len(), read.files.len()), (MOST_RESULTS, MOST_RESULTS + 1));
    assert_eq!(read.pinned.unwrap().file(), kept(2, 900.0).file());
    assert!(!read.recent.iter().any(|kept| kept.file() == self::kept::kept(2, 900.0).file()));
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
        ("git:refs/remotes/origin/x", "fetch"),
        ("git:refs/tags/x", "tag"),
        ("git:refs/stash", "stash"),
        ("git:refs/notes/commits", "notes"),
        ("git:refs/replace/x", "replace"),
        ("git:refs/bisect/x", "bisect"),
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
fn where_no_result_is_pinned_the_next_addition_pins_the_oldest() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path().to_str().unwrap()).unwrap();
    // A crash between the two files of a first result, or the file that says what is pinned was moved away.
    fs::create_dir(folder.path().join("mirror")).unwrap();
    fs::write(folder.path().join("mirror").join(kept(5, 1000.0).file()), kept(5, 1000.0).text()).unwrap();
    let added = store.add(&name(), &addition(&kept(2, 900.0), Pin::IfFirst)).unwrap();
    assert!(added.is_new && !added.is_pinned);
    assert_eq!(history(&*store).pinned.unwrap().file(), kept(5, 1000.0).file(), "not the older run");
    assert!(folder.path().join("mirror").join(PINNED_FILE).exists());
}

#[test]
fn what_is_no_regular_file_or_has_no_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path().to_str().unwrap()).unwrap();
    store.add(&name(), &addition(&kept(0, 1000.0), Pin::IfFirst)).unwrap();
    let path = folder.path().join("mirror").join(kept(1, 1000.0).file());
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    let refused = || {
        let message = History::read(&*store, &name()).unwrap_err().message;
        assert!(message.contains(path.to_str().unwrap()) && message.contains("no regular file"), "{message}");
        fs::remove_file(&path).unwrap();
    };
    refused();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    refused();
}

/// Changes the tree of the baseline on a ref, by a line of `ls-tree` and what takes its place.
fn rewrite(reference: &str, below: &str, change: &dyn Fn(&str) -> String) {
    use std::io::Write;
    let lines = git(&format!("ls-tree {reference}{below}"));
    let mut child = Command::new("git")
        .arg("mktree")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(change(&lines).as_bytes()).unwrap();
    let tree = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let tree = match below {
        "" => tree.trim().to_string(),
        _ => {
            let old = git(&format!("rev-parse {reference}:mirror"));
            return rewrite(reference, "", &|root: &str| root.replace(old.trim(), tree.trim()));
        }
    };
    let committer = "-c user.name=x -c user.email=x@localhost";
    let commit = git(&format!("{committer} commit-tree {tree} -p {reference} -m changed"));
    git(&format!("update-ref {reference} {}", commit.trim()));
}

#[test]
fn a_tree_that_another_program_changed_stays_a_tree() {
    let _repository = Repository::new();
    let reference = "refs/loadline/baselines";
    let store = open("git:refs/loadline/baselines").unwrap();
    for number in 0..2 {
        store.add(&name(), &addition(&kept(number, 1000.0), Pin::IfFirst)).unwrap();
    }
    rewrite(reference, ":mirror", &|lines: &str| lines.replace("100644", "100755"));
    assert_eq!(history(&*store).files.len(), 2, "an executable file is a file");
    store.add(&name(), &addition(&kept(0, 1000.0), Pin::IfFirst)).unwrap();
    store.add(&name(), &addition(&kept(2, 1000.0), Pin::Always)).unwrap();
    git("fsck --strict --no-dangling");
    // Links in the place of a result and of the baseline.
    rewrite(reference, ":mirror", &|lines: &str| lines.replacen("100755", "120000", 1));
    store.add(&name(), &addition(&kept(0, 1000.0), Pin::Always)).unwrap();
    git("fsck --strict --no-dangling");
    assert_eq!(history(&*store).files.len(), 3);
    let blob = git(&format!("rev-parse {reference}:loadline-baselines.txt"));
    rewrite(reference, "", &|lines: &str| {
        let others = lines.lines().filter(|line| !line.ends_with("mirror"));
        let others: String = others.map(|line| format!("{line}\n")).collect();
        format!("{others}120000 blob {}\tmirror\n", blob.trim())
    });
    let before = git(&format!("rev-parse {reference}"));
    for message in [
        store.check(&name(), true).unwrap_err().message,
        store.add(&name(), &addition(&kept(3, 1.0), Pin::IfFirst)).unwrap_err().message,
    ] {
        assert!(message.contains("mirror is no folder"), "{message}");
    }
    assert_eq!(git(&format!("rev-parse {reference}")), before);
}
