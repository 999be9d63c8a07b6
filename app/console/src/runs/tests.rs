//! Runs are listed, compared and noted as they are in their folders, whatever happens to the index.

use std::fs;
use std::sync::mpsc;

use loadline_study::folder::OwnedFolder;
use loadline_study::folder::manifest::{Manifest, RunState};
use loadline_study::folder::result::StepResult;
use loadline_study::when::When;
use tempfile::TempDir;

use super::*;

/// Folders of runs and of an index, and a console that reads them when the test calls it.
struct Trial {
    place: TempDir,
    runs: Runs,
    scanner: Scanner,
}

/// A run's folder with four repeats of a load, each of about so many IOPS; finished, or left by its process.
fn measure(path: &Path, study: &str, iops: f64, is_finished: bool) -> OwnedFolder {
    measure_repeats(path, study, 4, iops, is_finished)
}

/// The same with so many repeats.
pub(crate) fn measure_repeats(
    path: &Path,
    study: &str,
    repeats: u32,
    iops: f64,
    is_finished: bool,
) -> OwnedFolder {
    let text = format!(
        "name = \"{study}\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\ndevices = [\"null:1GiB\"]\n[run]\nrepeats = {repeats}\n"
    );
    let parsed = loadline_study::read::parse("study.toml", &text).unwrap();
    let mut owned = OwnedFolder::create(path, Manifest::new(parsed, text, path.into()).unwrap()).unwrap();
    for (n, step) in owned.folder.plan.steps.clone().into_iter().enumerate() {
        owned.begin_step(&step).unwrap();
        let mut result = StepResult::empty(&owned.folder.manifest.run_id, &step, When::now());
        result.figures.window_s = 1.0;
        result.figures.total.iops = iops + n as f64 / 3.0;
        result.figures.total.latency_us.p99 = Some(1e6 / iops);
        owned.complete_step(&step, &result).unwrap();
    }
    if is_finished {
        owned.folder.manifest.state = RunState::Finished;
        owned.folder.manifest.finished = Some(When::now());
    }
    owned.save().unwrap();
    owned
}

impl Trial {
    fn new() -> Trial {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("runs")).unwrap();
        let (runs, scanner) = Trial::console(place.path());
        Trial { place, runs, scanner }
    }

    fn console(place: &Path) -> (Runs, Scanner) {
        (Runs::new(vec![place.join("runs")], Some(place.join("index"))), Scanner::default())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().canonicalize().unwrap().join("runs").join(name)
    }

    fn measure(&self, name: &str, study: &str, iops: f64) {
        drop(measure(&self.path(name), study, iops, true));
    }

    /// The list after a scan.
    fn scanned(&mut self) -> RunsView {
        self.runs.turn(&mut self.scanner);
        self.page(Wanted::default())
    }

    fn page(&self, wanted: Wanted) -> RunsView {
        self.runs.page(&wanted).unwrap()
    }

    fn index(&self) -> PathBuf {
        self.place.path().join("index").join(index::FILE)
    }

    fn id(&self, name: &str) -> String {
        entry::id_of(&self.path(name))
    }

    /// The same folders in a new console.
    fn restart(&mut self) {
        (self.runs, self.scanner) = Trial::console(self.place.path());
    }
}

fn names(view: &RunsView) -> Vec<&str> {
    view.runs.iter().map(|run| run.path.rsplit('/').next().unwrap()).collect()
}

fn notes(tags: &[&str], note: &str) -> Notes {
    Notes { tags: tags.iter().map(|tag| tag.to_string()).collect(), note: note.into() }
}

#[test]
fn a_run_is_listed_with_its_figures_and_leaves_the_list_when_its_folder_is_gone() {
    let mut trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    fs::create_dir(trial.path("no run")).unwrap();
    let view = trial.scanned();
    assert_eq!((names(&view), view.total, view.unread), (vec!["one"], 1, 0));
    let run = &view.runs[0];
    assert_eq!((run.standing, run.complete, run.planned), (RunStanding::Finished, 4, 4));
    assert!(run.answer.as_ref().unwrap().headline.contains("1,000 IOPS"), "{run:?}");
    let detail = trial.runs.detail(&run.id).unwrap();
    let report = Run::open(&trial.path("one")).unwrap().report;
    assert_eq!(detail.loads[0].iops, report.loads[0].iops, "every digit");
    assert_eq!(detail.loads[0].p99_us, report.loads[0].p99_us);
    assert_eq!(detail.tiles, Some(report.tiles));
    assert_eq!(trial.runs.find(&run.id), Some(trial.path("one")));
    fs::remove_dir_all(trial.path("one")).unwrap();
    assert!(trial.scanned().runs.is_empty());
    assert!(trial.runs.find(&run.id).is_none());
    assert!(matches!(trial.runs.detail(&run.id), Err(Refusal::NotFound(_))));
    assert!(matches!(trial.runs.set_notes(&run.id, notes(&[], "")), Err(Refusal::NotFound(_))));
    // All of it, not only the row.
    let kept: i64 = rusqlite::Connection::open(trial.index())
        .unwrap()
        .query_row("SELECT (SELECT count(*) FROM figures) + (SELECT count(*) FROM tags)", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(kept, 0);
}

#[test]
fn a_run_is_in_progress_while_its_process_lives_and_interrupted_afterwards() {
    let mut trial = Trial::new();
    let owned = measure(&trial.path("one"), "s", 1000.0, false);
    assert_eq!(trial.scanned().runs[0].standing, RunStanding::InProgress);
    let load = Some(("B4-T1-O1-W0-PR".to_owned(), String::new()));
    assert!(
        trial.runs.trend("s", load.clone(), Figure::Iops).unwrap().points.is_empty(),
        "its figures change"
    );
    drop(owned);
    // It is not read again at once while it goes on.
    trial.scanner = Scanner::default();
    assert_eq!(trial.scanned().runs[0].standing, RunStanding::Interrupted);
    assert_eq!(trial.runs.trend("s", load, Figure::Iops).unwrap().points.len(), 1);
}

#[test]
fn a_damaged_index_is_made_anew_which_is_said_and_no_tag_is_lost() {
    let mut trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    trial.scanned();
    let id = trial.id("one");
    let noted = trial.runs.set_notes(&id, notes(&["b", "a"], "new disks")).unwrap().run;
    assert_eq!(
        (noted.tags.as_slice(), noted.note.as_str()),
        (["a".to_string(), "b".into()].as_slice(), "new disks")
    );
    // The last connection that is closed writes everything back.
    trial.restart();
    let whole = fs::read(trial.index()).unwrap();
    let mut in_part = whole.clone();
    in_part.iter_mut().skip(4096).for_each(|byte| *byte = 0xff);
    for damaged in [
        b"no index at all, and long enough to be read as one".repeat(9),
        in_part,
        whole[..whole.len() / 2].to_vec(),
    ] {
        trial.restart();
        // What the other connections have not written back is gone too.
        for ending in ["-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{ending}", trial.index().display()));
        }
        fs::write(trial.index(), &damaged).unwrap();
        let view = trial.scanned();
        assert!(view.notices.len() == 1 && view.notices[0].contains("was damaged"), "{:?}", view.notices);
        assert_eq!(view.runs[0].tags, ["a", "b"]);
        assert_eq!(view.runs[0].note, "new disks");
        assert_eq!(view.tags, ["a", "b"]);
    }
    // Without damage nothing is said; an index that is gone is made.
    trial.restart();
    assert!(trial.scanned().notices.is_empty());
    trial.restart();
    fs::remove_file(trial.index()).unwrap();
    assert_eq!(trial.scanned().runs[0].tags, ["a", "b"]);
}

#[test]
fn damage_that_a_query_meets_is_mended_by_the_next_scan() {
    let mut trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    trial.scanned();
    let other = rusqlite::Connection::open(trial.index()).unwrap();
    other.execute("UPDATE runs SET row = '{'", []).unwrap();
    assert!(
        matches!(trial.runs.page(&Wanted::default()), Err(Refusal::Later(why)) if why.contains("makes it anew"))
    );
    let view = trial.scanned();
    assert_eq!(names(&view), ["one"]);
    assert!(view.notices[0].contains("was damaged"), "{:?}", view.notices);
}

#[test]
fn an_index_that_cannot_be_written_is_kept_in_memory_which_is_said() {
    let place = tempfile::tempdir().unwrap();
    drop(measure(&place.path().join("runs/one"), "s", 1000.0, true));
    fs::write(place.path().join("index"), "a file, and no folder").unwrap();
    let (runs, mut scanner) = Trial::console(place.path());
    assert!(runs.page(&Wanted::default()).unwrap().runs.is_empty(), "not open yet, and no error");
    runs.turn(&mut scanner);
    let view = runs.page(&Wanted::default()).unwrap();
    assert_eq!(names(&view), ["one"]);
    assert!(view.notices[0].contains("keeps the index in memory"), "{:?}", view.notices);
    let id = &view.runs[0].id;
    assert_eq!(runs.set_notes(id, notes(&["x"], "")).unwrap().run.tags, ["x"]);
}

#[test]
fn a_scan_that_panics_is_reported_on_the_page_and_the_next_one_reads_what_is_new() {
    let mut trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    assert_eq!(trial.scanned().total, 1);
    trial.measure("two", "s", 1000.0);
    // Its panic holds what a scan may hold.
    trial.runs.survive(&mut trial.scanner, |runs, _| {
        let _state = runs.state();
        panic!("step {} has no load", 7);
    });
    let view = trial.page(Wanted::default());
    assert!(view.total == 1 && view.notices.len() == 1, "{:?}", view.notices);
    assert!(view.notices[0].contains("a bug of Loadline (step 7 has no load)"), "{:?}", view.notices);
    trial.runs.survive(&mut trial.scanner, Runs::turn);
    let view = trial.page(Wanted::default());
    assert!(view.total == 2 && view.notices.is_empty(), "{:?}", view.notices);
}

#[test]
fn a_run_that_cannot_be_read_is_listed_with_the_reason_and_again_when_it_is_mended() {
    let mut trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    let manifest = trial.path("one").join("run.json");
    let whole = fs::read(&manifest).unwrap();
    let hostile =
        String::from_utf8(whole.clone()).unwrap().replace("name = \\\"s\\\"", "name = \\\"<b>s\\\"");
    for (damaged, why) in
        [(&whole[..100], "truncated"), (b"{}", "run.json"), (hostile.as_bytes(), "run.json")]
    {
        fs::write(&manifest, damaged).unwrap();
        let view = trial.scanned();
        let run = &view.runs[0];
        assert_eq!(run.standing, RunStanding::Unreadable, "{run:?}");
        assert!(run.fault.as_ref().unwrap().contains(why), "{run:?}");
        assert!(trial.runs.detail(&run.id).unwrap().loads.is_empty());
        assert!(matches!(trial.runs.compare(&run.id, &run.id), Err(Refusal::Usage(_))));
    }
    // It may be noted why.
    let id = trial.id("one");
    assert_eq!(trial.runs.set_notes(&id, notes(&["broken"], "")).unwrap().run.tags, ["broken"]);
    fs::remove_file(&manifest).unwrap();
    assert!(trial.scanned().runs[0].fault.as_ref().unwrap().contains("it has no run.json"));
    make_pipe(&manifest);
    assert!(trial.scanned().runs[0].fault.as_ref().unwrap().contains("no file that can be read"));
    fs::remove_file(&manifest).unwrap();
    fs::write(&manifest, &whole).unwrap();
    let view = trial.scanned();
    assert_eq!(view.runs[0].standing, RunStanding::Finished);
    assert_eq!(view.runs[0].tags, ["broken"]);
}

/// Makes a pipe that no process writes to.
fn make_pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn the_list_is_paged_searched_and_filtered() {
    let mut trial = Trial::new();
    for n in 0..7 {
        trial.measure(&format!("run-{n}"), if n % 2 == 0 { "even" } else { "odd" }, 1000.0);
        // Runs are ordered by the millisecond in which they began.
        std::thread::sleep(Duration::from_millis(2));
    }
    trial.scanned();
    let tag = |name: &str, tags: &[&str], note: &str| {
        trial.runs.set_notes(&trial.id(name), notes(tags, note)).unwrap();
    };
    tag("run-1", &["gold", "100 %"], "It's <i>old</i>; DROP TABLE runs");
    tag("run-3", &["gold"], "");
    let wanted = |change: &dyn Fn(&mut Wanted)| {
        let mut wanted = Wanted::default();
        change(&mut wanted);
        let view = trial.page(wanted);
        (view.total, names(&view).into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    let some = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    assert_eq!(wanted(&|of| of.count = Some(3)), (7, some(&["run-6", "run-5", "run-4"])));
    assert_eq!(wanted(&|of| (of.from, of.count) = (5, Some(3))), (7, some(&["run-1", "run-0"])));
    assert_eq!(wanted(&|of| of.from = usize::MAX), (7, Vec::new()));
    assert_eq!(wanted(&|of| of.study = "odd".into()), (3, some(&["run-5", "run-3", "run-1"])));
    assert_eq!(wanted(&|of| of.tag = "gold".into()), (2, some(&["run-3", "run-1"])));
    assert_eq!(wanted(&|of| (of.tag, of.from) = ("gold".into(), 1)), (2, some(&["run-1"])));
    assert_eq!(wanted(&|of| of.search = "RUN-4".into()), (1, some(&["run-4"])));
    assert_eq!(wanted(&|of| of.search = "odd gold it's".into()), (1, some(&["run-1"])));
    for (search, count) in [("100 %", 1), ("%", 1), ("_", 0), ("' OR 1=1 --", 0), ("<i>old</i>;", 1)] {
        assert_eq!(wanted(&|of| of.search = search.into()).0, count, "{search}");
    }
    assert_eq!(wanted(&|of| of.tag = "gol".into()).0, 0);
    let view = trial.page(Wanted::default());
    assert_eq!((view.studies, view.tags), (some(&["even", "odd"]), some(&["100 %", "gold"])));
}

#[test]
fn a_trend_has_each_run_beside_the_noise_of_those_before_it() {
    let mut trial = Trial::new();
    for n in 0..7u32 {
        trial.measure(&format!("run-{n}"), "s", if n == 6 { 500.0 } else { 1000.0 + f64::from(n) });
        std::thread::sleep(Duration::from_millis(2));
    }
    trial.measure("other", "t", 1.0);
    trial.scanned();
    let trend = trial.runs.trend("s", None, Figure::Iops).unwrap();
    assert_eq!((trend.load.as_str(), trend.points.len()), ("B4-T1-O1-W0-PR", 7));
    let report = Run::open(&trial.path("run-6")).unwrap().report;
    let last = trend.points.last().unwrap();
    assert_eq!(Some(last.value), report.loads[0].iops);
    let band = last.band.unwrap();
    let first = Run::open(&trial.path("run-0")).unwrap().report.loads[0].iops.unwrap();
    assert_eq!(band.low, first.median);
    assert!((band.chance_within - 5.0 / 7.0).abs() < 1e-12);
    let outside: Vec<Option<bool>> = trend.points.iter().map(|point| point.is_outside).collect();
    assert_eq!(outside[4..], [None, Some(true), Some(true)], "the sixth is the largest so far");
    let p99 = trial.runs.trend("s", Some((trend.load, String::new())), Figure::P99Us).unwrap();
    assert_eq!(p99.points[6].value.median, 2000.0);
    assert!(trial.runs.trend("none", None, Figure::Iops).unwrap().points.is_empty());
}

#[test]
fn a_comparison_is_that_of_the_command() {
    let mut trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    trial.measure("two", "s", 500.0);
    trial.scanned();
    let view = trial.runs.compare(&trial.id("one"), &trial.id("two")).unwrap();
    let [a, b] = ["one", "two"].map(|name| Run::open(&trial.path(name)).unwrap());
    assert_eq!(view.comparison, Comparison::of(&a, &b, 0.0).unwrap());
    assert!(view.sentences[0].contains("1 slower"), "{:?}", view.sentences);
    let same = trial.runs.compare(&trial.id("one"), &trial.id("one"));
    assert!(matches!(same, Err(Refusal::Usage(why)) if why.contains("same run")));
    assert!(matches!(trial.runs.compare("x", &trial.id("one")), Err(Refusal::NotFound(_))));
}

#[test]
fn two_consoles_use_one_index_and_neither_waits_for_the_other_for_long() {
    let mut trial = Trial::new();
    for n in 0..4 {
        trial.measure(&format!("run-{n}"), "s", 1000.0);
    }
    let (other, mut others) = Trial::console(trial.place.path());
    std::thread::scope(|scope| {
        scope.spawn(|| (0..5).for_each(|_| other.turn(&mut others)));
        (0..5).for_each(|_| drop(trial.scanned()));
    });
    for runs in [&trial.runs, &other] {
        let view = runs.page(&Wanted::default()).unwrap();
        assert_eq!((view.total, view.notices), (4, Vec::new()));
    }
    // What one console notes the other one shows at once.
    let id = trial.id("run-0");
    other.set_notes(&id, notes(&["seen"], "")).unwrap();
    assert_eq!(trial.runs.detail(&id).unwrap().run.tags, ["seen"]);
    // A program that holds the file keeps nothing from being read, and a scan from writing for a few seconds only.
    let holder = rusqlite::Connection::open(trial.index()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    trial.measure("run-4", "s", 1000.0);
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let (runs, scanner) = (&trial.runs, &mut trial.scanner);
        scope.spawn(move || {
            runs.turn(scanner);
            done.send(()).unwrap();
        });
        let begun = Instant::now();
        while is_done.try_recv().is_err() {
            assert_eq!(trial.runs.page(&Wanted::default()).unwrap().total, 4);
            assert!(begun.elapsed() < Duration::from_secs(30), "it hangs");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(trial.page(Wanted::default()).notices[0].contains("another program holds it"));
    // Notes are in the folder, although the index cannot have them yet.
    assert_eq!(trial.runs.set_notes(&id, notes(&["later"], "")).unwrap().run.tags, ["later"]);
    assert_eq!(other.detail(&id).unwrap().run.tags, ["seen"]);
    drop(holder);
    let view = trial.scanned();
    assert_eq!((view.total, view.notices.len(), view.tags), (5, 0, vec!["later".to_string()]));
}

#[test]
fn a_folder_that_cannot_be_listed_is_named_and_its_runs_come_back_with_it() {
    let mut trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    assert_eq!(trial.scanned().total, 1);
    let (here, away) = (trial.path(""), trial.place.path().join("away"));
    fs::rename(&here, &away).unwrap();
    let view = trial.scanned();
    assert!(view.total == 0 && view.folders[0].fault.is_some(), "{view:?}");
    fs::rename(&away, &here).unwrap();
    let view = trial.scanned();
    assert!(view.total == 1 && view.folders[0].fault.is_none(), "{view:?}");
}

#[test]
fn a_folder_may_come_later_and_until_then_no_index_is_made() {
    let mut trial = Trial::new();
    fs::remove_dir(trial.path("")).unwrap();
    let view = trial.scanned();
    assert_eq!(view.folders[0].fault.as_deref(), Some("there is no such folder yet"));
    assert!(view.notices.is_empty() && !trial.index().exists(), "{view:?}");
    trial.measure("one", "s", 1000.0);
    let view = trial.scanned();
    assert!(view.total == 1 && view.folders[0].fault.is_none() && trial.index().exists(), "{view:?}");
}

#[test]
fn what_a_run_wrote_is_never_changed() {
    let mut trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    let files = |path: &Path| {
        let mut all: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false => all.push((entry.clone(), fs::read(entry).unwrap())),
                }
            }
        }
        all.retain(|(path, _)| path.file_name().unwrap() != notes::FILE);
        all.sort();
        all
    };
    let before = files(&trial.path("one"));
    trial.scanned();
    trial.runs.set_notes(&trial.id("one"), notes(&["x"], "y")).unwrap();
    trial.scanned();
    assert_eq!(files(&trial.path("one")), before);
}

#[test]
fn ten_thousand_runs_are_paged_and_searched_in_a_moment() {
    let trial = Trial::new();
    trial.measure("one", "s", 1000.0);
    let folder = trial.path("").display().to_string().trim_end_matches('/').to_owned();
    let one = entry::Entry::read(&trial.path("one"), false);
    let (runs, index) = (Runs::new(vec![folder.clone().into()], None), Index::in_memory().unwrap());
    let stamp = Stamp { run: String::new(), notes: String::new() };
    for n in 0..10_000u64 {
        let path = trial.path(&format!("run-{n:05}"));
        let mut entry = one.clone();
        entry.row.id = entry::id_of(&path);
        entry.row.path = path.display().to_string();
        entry.row.begun = When::at(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(n));
        index.put(&folder, &path, &stamp, &entry).unwrap();
    }
    runs.state().index = Some(index);
    for (search, from, first, total) in [
        ("", 0, "run-09999", 10_000),
        ("", 9_990, "run-00009", 10_000),
        ("run-0000 1,000", 0, "run-00009", 10),
    ] {
        let begun = Instant::now();
        let view = runs.page(&Wanted { search: search.into(), from, ..Wanted::default() }).unwrap();
        assert_eq!(
            (names(&view)[0], view.total, view.runs.len()),
            (first, total, total.min(50).min(10_000 - from))
        );
        assert!(begun.elapsed() < Duration::from_secs(1), "{search}: {:?}", begun.elapsed());
    }
    let most = runs.page(&Wanted { count: Some(5000), ..Wanted::default() }).unwrap();
    assert_eq!(most.runs.len(), 200, "a page has so many at most");
    let begun = Instant::now();
    assert_eq!(runs.trend("s", None, Figure::Iops).unwrap().points.len(), query::MOST_POINTS as usize);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[test]
fn a_run_with_figures_that_are_no_numbers_is_one_that_cannot_be_read_and_the_others_are_listed() {
    let mut trial = Trial::new();
    trial.measure("fine", "s", 1000.0);
    // The median of four of these is beyond all numbers, and JSON has none for it.
    trial.measure("absurd", "s", f64::MAX);
    for _ in 0..2 {
        let view = trial.scanned();
        assert_eq!((view.total, &view.notices), (2, &vec![]));
        let absurd = trial.runs.detail(&trial.id("absurd")).unwrap();
        assert_eq!(absurd.run.standing, RunStanding::Unreadable);
        assert!(absurd.run.fault.is_some_and(|why| why.contains("no numbers")));
        assert_eq!(trial.runs.trend("s", None, Figure::Iops).unwrap().points.len(), 1);
    }
}

#[test]
fn a_run_whose_files_are_pipes_keeps_no_other_run_from_being_read() {
    let mut trial = Trial::new();
    trial.measure("piped", "s", 1000.0);
    let steps = fs::read_dir(trial.path("piped").join("steps")).unwrap();
    let result = steps.map(|step| step.unwrap().path().join("result.json")).next().unwrap();
    fs::remove_file(&result).unwrap();
    nix::unistd::mkfifo(&result, nix::sys::stat::Mode::S_IRWXU).unwrap();
    trial.measure("whole", "s", 1000.0);
    let view = trial.scanned();
    let of = |name: &str| view.runs.iter().find(|run| run.path.ends_with(name)).unwrap();
    assert_eq!((of("piped").complete, of("whole").complete), (3, 4));
}
