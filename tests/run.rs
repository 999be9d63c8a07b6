//! `loadline run` and `loadline report`: whole fleets of real processes, killed, stopped, resumed.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use serde_json::Value;
use support::{Said, eventually, finish, folder, number, run, signal, start};

const LIMIT: Duration = Duration::from_secs(90);

/// A study of files, one profile to a line of `profiles`.
fn study(folder: &Path, fleet: &str, measure: &str, rest: &str) -> PathBuf {
    let path = folder.join("study.toml");
    let text = format!(
        "name = \"test\"\nprofiles = [\"B4-T1-O2-W50-PR\"]\n\n[fleet]\n{fleet}\ndisk_size = \"4MiB\"\n\n[phases]\n\
         warm_up = \"1s\"\nmeasure = \"{measure}\"\ncool_down = \"0s\"\n\n{rest}"
    );
    fs::write(&path, text).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// What a finished run printed as JSON.
fn done(said: &Said) -> Value {
    assert!(matches!(said.code, Some(0 | 3)), "{:?}: {}{}", said.code, said.out, said.err);
    said.json()
}

fn children(parent: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    tasks
        .flat_map(|task| {
            let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            text.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<u32>>()
        })
        .collect()
}

fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next()).is_some_and(|state| state != 'Z')
}

fn events(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("events.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn event<'a>(events: &'a [Value], name: &str) -> Option<&'a Value> {
    events.iter().find(|e| e["event"] == name)
}

/// Waits until the load of step `number` has been on for a moment.
fn until_measuring(run: &Path, child: &mut Child) {
    eventually("a step's series begins", LIMIT, || {
        assert!(child.try_wait().unwrap().is_none(), "the run ended early: {:?}", events(run));
        let steps = fs::read_dir(run.join("steps")).into_iter().flatten().flatten();
        steps.into_iter().any(|s| {
            !s.path().join("result.json").exists()
                && fs::metadata(s.path().join("seconds.jsonl")).is_ok_and(|m| m.len() > 0)
        })
    });
}

fn steps(run: &Path) -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> = fs::read_dir(run.join("steps"))
        .unwrap()
        .flatten()
        .filter_map(|s| {
            let text = fs::read_to_string(s.path().join("result.json")).ok()?;
            Some((s.file_name().to_string_lossy().into_owned(), serde_json::from_str(&text).unwrap()))
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn a_study_measures_writes_a_report_and_leaves_no_files() {
    let place = folder();
    let file =
        study(place.path(), "nodes = 2\nworkers_per_node = 2", "2s", "[run]\nrepeats = 2\nverify = true\n");
    let out = place.path().join("run");
    let said = run(["run", text(&file), "--out", text(&out), "--json"]);
    done(&said);
    let all = steps(&out);
    assert_eq!(all.len(), 2);
    for (name, step) in &all {
        assert!(number(step, "figures/total/iops") > 0.0, "{name}");
        assert_eq!(number(step, "figures/errors"), 0.0);
        let workers = step["workers"].as_array().unwrap_or_else(|| panic!("{step}"));
        assert_eq!(workers.len(), 4, "{name}");
        let host = &workers[0]["worker"]["host"];
        let inventory = &step["hosts"][host.as_str().unwrap()];
        assert!(
            number(inventory, "cpus") > 0.0 && inventory["disks"].as_array().unwrap().len() == 4,
            "{step}"
        );
        let lines = fs::read_to_string(out.join("steps").join(name).join("host.jsonl")).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let seconds: Vec<i64> = lines.iter().filter_map(|line| line["second"].as_i64()).collect();
        assert!(seconds.contains(&0) && seconds.contains(&1), "the window has two seconds: {seconds:?}");
        for line in &lines {
            assert_eq!(&line["host"], host);
            let shares = ["user", "system", "iowait", "steal", "idle"].map(|s| number(&line["cpu"], s));
            // A look that came late leaves little time to the next one, perhaps less than a tick.
            assert!((0.0..1.01).contains(&shares.iter().sum()), "{line}");
        }
    }
    for report in ["steps.csv", "report.json", "report.md"] {
        assert!(fs::metadata(out.join("report").join(report)).is_ok_and(|m| m.len() > 0), "{report}");
    }
    assert!(!out.join("disks").exists() || fs::read_dir(out.join("disks")).unwrap().count() == 0);
    let again = run(["report", text(&out)]);
    assert!(matches!(again.code, Some(0 | 3)), "{}", again.err);
    assert!(again.out.contains("B4-T1-O2-W50-PR") && again.out.contains("IOPS"), "{}", again.out);
}

#[test]
fn a_fleets_histogram_is_the_sum_of_its_workers() {
    let place = folder();
    let file = study(place.path(), "nodes = 1\nworkers_per_node = 3", "2s", "[run]\nrepeats = 1\n");
    let out = place.path().join("run");
    done(&run(["run", text(&file), "--out", text(&out), "--json"]));
    let (_, step) = &steps(&out)[0];
    let count = |json: &Value, op: &str| json["histograms"][op]["count"].as_u64().unwrap_or(0);
    let iops: f64 = step["workers"].as_array().unwrap().iter().map(|w| number(w, "figures/total/iops")).sum();
    let fleet = number(step, "figures/total/iops");
    assert!((iops - fleet).abs() < 0.01 * fleet, "{iops} and {fleet}");
    assert!(count(step, "read") > 0 && count(step, "write") > 0, "{}", step["histograms"]);
}

#[test]
fn a_plan_says_what_it_would_do_and_does_nothing() {
    let place = folder();
    let file = study(place.path(), "nodes = 2\nworkers_per_node = 2", "5s", "[run]\nrepeats = 3\n");
    let before = fs::read_dir(place.path()).unwrap().count();
    let said = run(["run", text(&file), "--plan"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("16") && said.out.contains("MiB"), "the space it needs: {}", said.out);
    assert!(said.out.matches("B4-T1-O2-W50-PR").count() >= 3, "every step: {}", said.out);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), before);
}

#[test]
fn a_killed_worker_and_a_hung_one_are_named_and_the_run_goes_on() {
    let place = folder();
    let file = study(place.path(), "nodes = 2\nworkers_per_node = 2", "10s", "[run]\nrepeats = 2\n");
    let out = place.path().join("run");
    let mut child = start(["run", text(&file), "--out", text(&out), "--json"]);
    until_measuring(&out, &mut child);
    let workers = children(child.id());
    assert_eq!(workers.len(), 4);
    signal(workers[0], "KILL");
    signal(workers[1], "STOP");
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    let all = steps(&out);
    assert_eq!(all.len(), 2, "both steps were measured");
    let lost = |step: &Value| -> Vec<String> {
        let workers = step["workers"].as_array().unwrap().iter();
        workers.filter(|w| !w["lost"].is_null()).map(|w| w["lost"].to_string()).collect()
    };
    assert_eq!(lost(&all[0].1).len(), 2, "{}", all[0].1["workers"]);
    assert_eq!(lost(&all[1].1).len(), 0, "the next step has them all again");
    let kinds: Vec<&str> =
        all[0].1["findings"].as_array().unwrap().iter().filter_map(|f| f["kind"].as_str()).collect();
    assert!(kinds.contains(&"lost-workers"), "{kinds:?}");
    assert!(number(&all[0].1, "figures/total/iops") > 0.0);
    assert!(event(&events(&out), "lost").is_some(), "{:?}", events(&out));
    eventually("the hung one is ended too", Duration::from_secs(10), || !is_alive(workers[1]));
}

#[test]
fn the_only_workers_death_costs_its_step_and_the_run_goes_on() {
    let place = folder();
    let file = study(place.path(), "nodes = 1\nworkers_per_node = 1", "5s", "[run]\nrepeats = 2\n");
    let out = place.path().join("run");
    let mut child = start(["run", text(&file), "--out", text(&out), "--json"]);
    until_measuring(&out, &mut child);
    signal(children(child.id())[0], "KILL");
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    let lost = |step: &Value| step["workers"][0]["lost"]["reason"].as_str().map(str::to_string);
    let all = steps(&out);
    assert_eq!(all.iter().map(|(_, step)| lost(step)).collect::<Vec<_>>(), [Some("died".into()), None]);
    assert!(number(&all[1].1, "figures/total/iops") > 0.0);
}

#[test]
fn the_controllers_death_stops_the_workers_and_the_run_is_resumed() {
    let place = folder();
    let file = study(place.path(), "nodes = 1\nworkers_per_node = 2", "3s", "[run]\nrepeats = 2\n");
    let out = place.path().join("run");
    let mut child = start(["run", text(&file), "--out", text(&out)]);
    eventually("the first step is done", LIMIT, || steps_done(&out) == 1);
    until_measuring(&out, &mut child);
    let workers = children(child.id());
    assert_eq!(workers.len(), 2);
    let first = fs::read(out.join("steps").join(&steps(&out)[0].0).join("result.json")).unwrap();
    signal(child.id(), "KILL");
    child.wait().unwrap();
    eventually("the workers end", Duration::from_secs(10), || !workers.iter().any(|w| is_alive(*w)));

    done(&run(["run", "--resume", text(&out), "--json"]));
    let all = steps(&out);
    assert_eq!(all.len(), 2);
    let kept = fs::read(out.join("steps").join(&all[0].0).join("result.json")).unwrap();
    assert!(kept == first, "the complete step was not repeated");
    let folders = fs::read_dir(out.join("steps")).unwrap().count();
    assert_eq!(folders, 3, "the interrupted step's series are kept apart, not mixed");
    run(["run", "--resume", text(&out)]).refused_or_done();
}

fn steps_done(run: &Path) -> usize {
    if run.join("steps").exists() { steps(run).len() } else { 0 }
}

trait RefusedOrDone {
    fn refused_or_done(&self);
}

impl RefusedOrDone for Said {
    /// Nothing is left to do: said, and no harm done.
    fn refused_or_done(&self) {
        assert!(matches!(self.code, Some(0 | 2 | 3)) && !self.err.contains("panicked"), "{}", self.err);
    }
}

#[test]
fn ctrl_c_leaves_a_run_that_can_be_resumed_and_says_how() {
    let place = folder();
    let file = study(place.path(), "nodes = 1\nworkers_per_node = 2", "20s", "[run]\nrepeats = 1\n");
    let out = place.path().join("run");
    let mut child = start(["run", text(&file), "--out", text(&out)]);
    until_measuring(&out, &mut child);
    let workers = children(child.id());
    signal(child.id(), "INT");
    let said = finish(child, Duration::from_secs(20));
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert!(said.err.contains("--resume"), "{}", said.err);
    assert!(!workers.iter().any(|w| is_alive(*w)), "no worker is left");
    assert_eq!(steps_done(&out), 0);
}

#[test]
fn workers_join_from_anywhere_with_one_command() {
    let place = folder();
    let file = study(
        place.path(),
        "join = 2\nlisten = \"127.0.0.1:0\"\nwait = \"30s\"",
        "2s",
        &format!("[run]\nrepeats = 1\n\n[target]\nfolder = {:?}\n", place.path().join("disks")),
    );
    fs::create_dir(place.path().join("disks")).unwrap();
    let out = place.path().join("run");
    let child =
        start(["run", text(&file), "--out", text(&out), "--token", "open-sesame-open-sesame", "--json"]);
    let mut address = String::new();
    eventually("the controller listens", LIMIT, || {
        let all = events(&out);
        address = event(&all, "listening").and_then(|e| e["address"].as_str()).unwrap_or_default().into();
        !address.is_empty()
    });
    // Garbage, a wrong token and silence on the port disturb no worker.
    let mut garbage = TcpStream::connect(&address).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\xff\xff\xff\xff").unwrap();
    let _silent = TcpStream::connect(&address).unwrap();
    garbage.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = garbage.read(&mut [0; 64]);
    run(["worker", "--join", &address, "--token", "a-guess-that-is-wrong"]).refused(2, &["token"]);

    let workers: Vec<Child> = ["left", "right"]
        .map(|name| {
            start(["worker", "--join", &address, "--token", "open-sesame-open-sesame", "--name", name])
        })
        .into();
    let json = done(&finish(child, LIMIT));
    assert!(json.is_object());
    for worker in workers {
        assert_eq!(finish(worker, Duration::from_secs(15)).code, Some(0));
    }
    let (_, step) = &steps(&out)[0];
    let names: Vec<&str> =
        step["workers"].as_array().unwrap().iter().filter_map(|w| w["worker"]["id"].as_str()).collect();
    assert_eq!(names, ["left", "right"]);
    assert!(event(&events(&out), "rejected").is_some(), "{:?}", events(&out));
}

#[test]
fn a_limit_that_is_missed_has_its_own_exit_code() {
    let place = folder();
    let rest = "[run]\nrepeats = 1\nlimits = [\"p50 <= 1us\"]\n";
    let file = study(place.path(), "nodes = 1\nworkers_per_node = 1", "2s", rest);
    let out = place.path().join("run");
    let said = run(["run", text(&file), "--out", text(&out)]);
    assert_eq!(said.code, Some(99), "{}{}", said.out, said.err);
}

#[test]
fn a_stop_condition_ends_a_run_with_its_own_exit_code_and_it_can_be_gone_on_with() {
    let place = folder();
    let rest = "[run]\nrepeats = 2\nstop_if = [\"p50>1us\"]\n";
    let file = study(place.path(), "nodes = 1\nworkers_per_node = 2", "20s", rest);
    let out = place.path().join("run");
    let said = run(["run", text(&file), "--out", text(&out)]);
    assert_eq!(said.code, Some(99), "{}{}", said.out, said.err);
    assert!(said.err.contains("stop_if") && said.err.contains("p50>1us"), "{}", said.err);
    assert!(said.err.contains("--resume"), "{}", said.err);
    assert_eq!(steps_done(&out), 0, "a step that was ended counts for nothing");
    assert!(event(&events(&out), "run_stopped").is_some(), "{:?}", events(&out));
    let lost = events(&out).iter().filter(|e| e["event"] == "lost").count();
    assert!((1..=2).contains(&lost), "{:?}", events(&out));
    assert_eq!(run(["run", "--resume", text(&out)]).code, Some(99), "it is as it was");
}

#[test]
fn a_study_with_a_mistake_gets_its_line_and_the_nearest_key() {
    let place = folder();
    let path = place.path().join("wrong.toml");
    let out = place.path().join("run");
    for (content, expected) in [
        (
            "name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[fleet]\nnodez = 2\n",
            vec!["wrong.toml", "4", "nodez", "nodes"],
        ),
        ("name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PX\"]\n", vec!["wrong.toml", "2", "X"]),
        ("name = \"x\"\n", vec!["wrong.toml", "profile"]),
        ("name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[phases]\nmeasure = \"5\"\n", vec!["4", "measure"]),
        ("this is no study", vec!["wrong.toml", "1"]),
        (
            "name = \"x\"\n[[profile]]\nuse = \"B4-T1-O1-W0-PR\"\nworking_set = \"1GiB\"\n[fleet]\ndisk_size = \
             \"4MiB\"\n",
            vec!["working set", "4MiB"],
        ),
        ("name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[fleet]\ndisk_size = \"900TiB\"\n", vec!["900 TiB"]),
        (
            "name = \"x\"\nprofiles = [\"B4-T1-O1-W0-PR\"]\n[target]\ndevices = [\"/nowhere/disk\"]\n",
            vec!["/nowhere/disk"],
        ),
    ] {
        fs::write(&path, content).unwrap();
        run(["run", text(&path), "--out", text(&out)]).refused(2, &expected);
        assert!(!out.exists(), "nothing was begun for {content}");
    }
    run(["run", "/nowhere/study.toml"]).refused(2, &["/nowhere/study.toml"]);
}

#[test]
fn a_strangers_file_is_no_target_for_writes_and_no_folder_is_written_over() {
    let place = folder();
    let precious = support::precious_file(place.path(), 4);
    let path = place.path().join("study.toml");
    let content = format!(
        "name = \"x\"\nprofiles = [\"B4-T1-O1-W10-PR\"]\n[target]\ndevices = [{:?}]\n[phases]\nmeasure = \"1s\"\n",
        text(&precious)
    );
    fs::write(&path, content).unwrap();
    let out = place.path().join("run");
    run(["run", text(&path), "--out", text(&out)]).refused(2, &["precious.img", "--destroy-data"]);
    let study = study(place.path(), "nodes = 1", "1s", "");
    run(["run", text(&study), "--out", text(place.path())]).refused(2, &["empty"]);
}

#[test]
fn a_run_folder_that_is_cut_short_or_of_another_version_is_said_to_be() {
    let place = folder();
    let file = study(place.path(), "nodes = 1\nworkers_per_node = 1", "1s", "[run]\nrepeats = 1\n");
    let out = place.path().join("run");
    done(&run(["run", text(&file), "--out", text(&out), "--json"]));
    let result = out.join("steps").join(&steps(&out)[0].0).join("result.json");
    for (path, is_step) in [(out.join("run.json"), false), (result, true)] {
        let name = path.file_name().unwrap().to_str().unwrap();
        // A step is named, and does not keep the others from being shown.
        let said = |word: &str| match is_step {
            false => run(["report", text(&out)]).refused(2, &[word]),
            true => {
                let said = run(["report", text(&out)]);
                assert!(said.code == Some(3) && said.out.contains(word), "{}{}", said.out, said.err);
            }
        };
        let whole = fs::read_to_string(&path).unwrap();
        for part in [0, 1, whole.len() / 3, whole.len() - 2] {
            fs::write(&path, &whole[..part]).unwrap();
            said(name);
        }
        fs::write(&path, whole.replacen("\"version\": 1", "\"version\": 99", 1)).unwrap();
        said("99");
        fs::write(&path, &whole).unwrap();
    }
    run(["report", text(place.path())]).refused(2, &["run.json"]);
    assert!(matches!(run(["report", text(&out)]).code, Some(0 | 3)));
}
