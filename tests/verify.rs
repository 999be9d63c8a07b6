//! `--verify` and `loadline verify`: what becomes of writes, and what is said when that cannot be known.

mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use support::{Said, eventually, finish, folder, loadline, number, precious_file, run, signal, start};

const LIMIT: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn says(json: &Value, kind: &str, words: &str) -> bool {
    json["findings"].as_array().is_some_and(|findings| {
        findings.iter().any(|f| f["kind"] == kind && f["found"].as_str().is_some_and(|s| s.contains(words)))
    })
}

#[test]
fn what_lies_in_the_temporary_folder_is_never_taken_for_a_journal() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let (temporary, victim) = (folder.path().join("tmp"), folder.path().join("victim"));
    fs::create_dir(&temporary).unwrap();
    fs::write(&victim, "").unwrap();
    // The shell's process becomes the program's, so that a name made of the process's number is known beforehand.
    let script = r#"ln -s "$VICTIM" "$TMPDIR/loadline-$$-0.journal"; exec "$0" "$@""#;
    let program = loadline().get_program().to_os_string();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(script).arg(program).env("TMPDIR", &temporary).env("VICTIM", &victim);
    shell.args(["bench", text(&file), "--destroy-data", "--fill", "--verify", "-p", "B4-T1-O4-W50-PR"]);
    shell.args(["--warm-up", "0s", "--for", "1s"]).stdin(Stdio::null());
    let output = shell.output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::metadata(&victim).unwrap().len(), 0, "it was written through a link");
    let left: Vec<_> = fs::read_dir(&temporary).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left.len(), 1, "what was there stays, and nothing else: {left:?}");
    assert!(left[0].is_symlink());
}

#[test]
fn a_new_file_needs_a_new_journal() {
    let folder = folder();
    let (file, journal) = (folder.path().join("new.img"), folder.path().join("journal"));
    fs::write(&journal, "").unwrap();
    let words = ["bench", text(&file), "--create", "4MiB", "--verify", "--journal", text(&journal)];
    run(words).refused(2, &["journal", "exists", "name a file that does not exist"]);
    assert!(!file.exists() && journal.exists(), "nothing was begun");
}

#[test]
fn a_scan_that_fails_leaves_the_loads_result() {
    let folder = folder();
    let file = precious_file(folder.path(), 8);
    let result = folder.path().join("result.json");
    let words = ["bench", text(&file), "--destroy-data", "--verify", "-p", "B4-T1-O4-W50-PR"];
    let child = start(words.iter().chain(&["--warm-up", "0s", "--for", "3s", "--json", text(&result)]));
    std::thread::sleep(Duration::from_millis(1500));
    fs::rename(&file, folder.path().join("moved.img")).unwrap();
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.out.contains("IOPS") && said.out.contains("scan incomplete"), "{}", said.out);
    let json: Value = serde_json::from_slice(&fs::read(&result).unwrap()).unwrap();
    assert!(number(&json, "total/iops") > 0.0 && number(&json, "verify/checked") > 0.0);
    assert!(says(&json, "integrity", "does not exist"), "{}", json["findings"]);
}

#[test]
fn ctrl_c_in_the_scan_leaves_the_loads_result() {
    let folder = folder();
    let file = folder.path().join("new.img");
    let words =
        ["bench", text(&file), "--create", "1GiB", "--verify", "-p", "B4-T1-O4-W50-PR", "--json", "-"];
    let child = start(words.iter().chain(&["--warm-up", "0s", "--for", "1s"]));
    // The scan is the only part that opens the file for reading only.
    eventually("the scan runs", LIMIT, || opened_for_reading_only(child.id(), &file));
    signal(child.id(), "INT");
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(130), "{}{}", said.out, said.err);
    let json = said.json();
    assert!(number(&json, "total/iops") > 0.0);
    assert!(says(&json, "integrity", "scan incomplete: it was stopped"), "{}", json["findings"]);
    assert!(!file.exists());
}

fn opened_for_reading_only(process: u32, file: &Path) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    open.flatten().filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file)).any(|fd| {
        let number = fd.file_name();
        let info = fs::read_to_string(format!("/proc/{process}/fdinfo/{}", number.to_string_lossy()));
        let flags = info.unwrap_or_default();
        let flags = flags.lines().find_map(|line| line.strip_prefix("flags:")).map(str::trim);
        flags.is_some_and(|octal| octal.ends_with(['0', '4']))
    })
}

#[test]
fn a_check_of_nothing_is_no_success() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let words = ["bench", text(&file), "--verify", "-p", "B4-T1-O4-W0-PR", "--json", "-"];
    let said = run(words.iter().chain(&["--warm-up", "0s", "--for", "1s"]));
    assert_eq!(said.code, Some(3), "{}", said.err);
    let json = said.json();
    assert_eq!(number(&json, "verify/checked"), 0.0);
    assert!(says(&json, "integrity", "no block was checked"), "{}", json["findings"]);

    let journal = folder.path().join("journal");
    fs::write(&journal, "").unwrap();
    let said = run(["verify", text(&file), "--journal", text(&journal)]);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.out.contains("acknowledged with this journal"), "{}", said.out);
}

#[test]
fn a_file_system_without_direct_io_is_said_to_have_none() {
    // A file that every recent kernel has, that anyone may read, and that takes no direct I/O.
    let file = Path::new("/sys/kernel/btf/vmlinux");
    if !file.exists() {
        eprintln!("no {}: not tested", file.display());
        return;
    }
    let folder = folder();
    let journal = folder.path().join("journal");
    fs::write(&journal, "").unwrap();
    let said = run(["verify", text(file), "--journal", text(&journal), "--json"]);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(says(&said.json(), "not-direct", "page cache"), "{}", said.out);
}

#[test]
fn a_scan_never_asks_the_page_cache_even_if_the_load_did() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let profile = folder.path().join("cached.toml");
    fs::write(&profile, "block_size = \"512B\"\nwrite_percent = 50\ndirect = false\n").unwrap();
    let child = start(
        ["bench", text(&file), "--destroy-data", "--verify", "--fill", "-p", text(&profile), "--json", "-"]
            .iter()
            .chain(&["--warm-up", "0s", "--for", "2s"]),
    );
    let said = finish(child, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert!(number(&said.json(), "verify/checked") >= 8192.0, "{}", said.out);
}

/// One block for four I/Os: nearly every write has to wait for another.
fn one_block(rate: &[&str]) -> Said {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let profile = folder.path().join("narrow.toml");
    fs::write(&profile, "outstanding = 4\nwrite_percent = 50\nworking_set = \"4KiB\"\n").unwrap();
    let words = ["bench", text(&file), "--destroy-data", "--verify", "-p", text(&profile), "--json", "-"];
    run(words.iter().chain(&["--warm-up", "0s", "--for", "2s"]).chain(rate))
}

#[test]
fn writes_that_have_to_wait_are_not_dropped_for_reads() {
    for rate in [&[][..], &["--rate", "500iops"][..]] {
        let json = one_block(rate).json();
        let share = number(&json, "write/iops") / number(&json, "total/iops");
        assert!((share - 0.5).abs() < 0.06, "{share} of all are writes, and half were asked for");
    }
}
