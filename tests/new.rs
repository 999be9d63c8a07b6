//! From a question to a study: the file, its plan, and a run of it.

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{Said, finish, folder, loadline, nodes_in, start};

/// Runs `loadline new` in this folder.
fn new(folder: &Path, words: &[&str]) -> Said {
    let child = loadline()
        .arg("new")
        .args(words)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    finish(child, Duration::from_secs(60))
}

/// The files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn each_question_writes_a_study_whose_plan_is_the_one_that_run_prints() {
    let folder = folder();
    for (question, options, next) in [
        (
            "capacity",
            &["--load", "office desktops", "--limit", "p99 <= 5ms"][..],
            "loadline run capacity.toml",
        ),
        ("node-down", &["--nodes", "2"], "loadline run node-down.toml"),
        ("slower", &["--load", "B4-T1-O4-W30-PR"], "loadline run slower.toml --baseline slower"),
        ("accept", &["--machines", "1"], "loadline run accept.toml"),
    ] {
        let said = new(folder.path(), &[&[question, "--effort", "quick"], options].concat());
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
        let (plan, end) = said.out.split_once("\nwrote ").unwrap();
        assert_eq!(end, format!("{question}.toml\nnext: {next}\n"));
        assert!(plan.contains("total: ") && plan.contains("space: "), "{plan}");
        let mut words: Vec<&str> = next.split(' ').skip(1).collect();
        words.push("--plan");
        let child = loadline().args(words).current_dir(folder.path()).output().unwrap();
        let planned = String::from_utf8(child.stdout).unwrap();
        assert_eq!(child.status.code(), Some(0), "{}", String::from_utf8_lossy(&child.stderr));
        // The names of runs have the time, and free space changes.
        let stable = |text: &str| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.starts_with("space: "));
            lines.map(|line| line.split(", in runs/").next().unwrap().to_string()).collect()
        };
        assert_eq!(stable(plan), stable(&planned));
        let text = fs::read_to_string(folder.path().join(format!("{question}.toml"))).unwrap();
        assert!(text.contains(&format!("# {next}\n")), "{text}");
    }
}

#[test]
fn json_has_the_file_the_next_command_and_the_plan() {
    let folder = folder();
    let said = new(folder.path(), &["capacity", "--effort", "quick", "--json", "--name", "vms"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let made = said.json();
    assert_eq!(made["file"], "vms.toml");
    assert_eq!(made["next"], "loadline run vms.toml");
    assert_eq!(made["destroys_data"], false);
    assert_eq!(made["plan"]["steps"][0]["label"], "database");
    assert_eq!(made["plan"]["step_seconds"], 6);
    assert!(made["plan"]["most_seconds"].as_u64() > made["plan"]["seconds"].as_u64());
    assert!(made["space"][0]["needed_bytes"].as_u64() >= made["plan"]["storage_bytes"].as_u64());
}

#[test]
fn what_cannot_be_used_is_refused_and_nothing_is_written() {
    let folder = folder();
    let quick = |words: &[&'static str]| new(folder.path(), &[words, &["--effort", "quick"]].concat());
    for (words, parts) in [
        (&[][..], &["QUESTION is missing", "capacity, node-down, slower, accept"][..]),
        (&["why"], &["QUESTION", "\"why\" is unknown"]),
        (&["capacity", "--limit", "0"], &["--limit", "limit of 0"]),
        (&["node-down", "--nodes", "1"], &["--nodes", "at least 2 nodes, not 1"]),
        (&["accept", "--nodes", "1"], &["--nodes", "at least 2 nodes, not 1"]),
        (&["capacity", "--name", "../../etc/x"], &["--name", "is not a name"]),
        (&["capacity", "--name", "x\"\n[run]"], &["--name", "is not a name"]),
        (&["capacity", "--name", "-x"], &["unexpected argument"]),
        (&["capacity", "--output", "nowhere/x.toml"], &["--output", "nowhere is not a folder"]),
        (
            &["capacity", "--target", "https://127.0.0.1:1"],
            &["--access-file is missing", "--hosts is missing"],
        ),
        (
            &["slower", "--target", "/dev/none"],
            &["could not run, so nothing is written", "there is nothing", "to make it again"],
        ),
        (&["capacity", "--hosts", "a=b"], &["--hosts", "only if storage is running"]),
    ] {
        let said = quick(words);
        said.refused(2, parts);
        assert!(said.out.is_empty(), "{words:?}: {}", said.out);
    }
    assert!(files(folder.path()).is_empty(), "{:?}", files(folder.path()));
    // No user may make a file there.
    quick(&["capacity", "--output", "/proc/x.toml"]).refused(1, &["/proc/x.toml cannot be made"]);
}

#[test]
fn a_file_that_exists_is_not_overwritten_and_a_link_is_not_followed() {
    let folder = folder();
    let file = folder.path().join("capacity.toml");
    fs::write(&file, "mine").unwrap();
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), folder.path().join("accept.toml")).unwrap();
    new(folder.path(), &["capacity"]).refused(2, &["capacity.toml exists", "--name or --output"]);
    new(folder.path(), &["accept"]).refused(2, &["accept.toml exists"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(files(folder.path()).len(), 2);
}

#[test]
fn a_study_of_a_disk_that_holds_data_names_the_permission_and_touches_nothing() {
    let folder = folder();
    let disk = folder.path().join("disk.img");
    fs::write(&disk, vec![7u8; 64 << 20]).unwrap();
    let said = new(folder.path(), &["slower", "--target", "disk.img", "--effort", "quick"]);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(said.err.contains("warning: this study writes to existing disks"), "{}", said.err);
    assert!(
        said.out.ends_with("next: loadline run slower.toml --baseline slower --destroy-data\n"),
        "{}",
        said.out
    );
    assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == 7));
    // The file alone is no permission.
    let run = loadline().args(["run", "slower.toml"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&run.stderr).contains("add --destroy-data"));
    assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == 7));
}

/// Runs `loadline new` on a terminal with these words, in this folder; a person types these lines and then ends the input.
fn on_terminal(folder: &Path, words: &str, lines: &str) -> (Option<i32>, String) {
    let typed = format!("{} new {words}", env!("CARGO_BIN_EXE_loadline"));
    let mut child = Command::new("script")
        .args(["-qec", &typed, "/dev/null"])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let said = finish(child, Duration::from_secs(60));
    (said.code, said.out)
}

#[test]
fn on_a_terminal_it_asks_what_is_not_given_and_an_end_of_the_input_writes_nothing() {
    let folder = folder();
    let words = "capacity --target cluster --load database --effort quick";
    let (code, shown) = on_terminal(folder.path(), words, "many\n2\n\n?\n");
    assert!(shown.contains("is not a number") && shown.contains("10ms: 95 of 100 I/Os"), "{shown}");
    assert!(code == Some(2) && shown.contains("nothing is written"), "{code:?} {shown}");
    assert!(files(folder.path()).is_empty());

    let (code, shown) = on_terminal(folder.path(), words, "2\n\n20ms\nmine\n");
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        !shown.contains("Where is the storage?") && shown.contains("next: loadline run mine.toml"),
        "{shown}"
    );
    let text = fs::read_to_string(folder.path().join("mine.toml")).unwrap();
    assert!(text.contains("limit = \"20ms\"") && text.contains("nodes = 2"), "{text}");
}

#[test]
fn a_made_study_runs_as_the_next_command_says_and_answers_its_question() {
    let folder = folder();
    let words = [
        "node-down",
        "--effort",
        "quick",
        "--machines",
        "1",
        "--nodes",
        "2",
        "--load",
        "file-server",
        "--json",
    ];
    let made = new(folder.path(), &words);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let study = folder.path().join(made.json()["file"].as_str().unwrap());
    let out = folder.path().join("r");
    let child =
        start(["run".as_ref(), study.as_os_str(), "--out".as_ref(), out.as_os_str(), "--json".as_ref()]);
    let said = finish(child, Duration::from_secs(240));
    // A machine that is busy makes figures doubtful.
    assert!(matches!(said.code, Some(0 | 3)), "{:?}{}", said.code, said.err);
    let text = said.json().to_string();
    assert!(text.contains("What do 2 machines (file-server) notice when a node dies and returns?"), "{text}");
    assert!(text.contains("node-2 is killed") && text.contains("node-2 is back"), "{text}");
    assert_eq!(nodes_in(&out), 0, "the cluster of the run is gone");
}
