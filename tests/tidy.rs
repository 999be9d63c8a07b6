//! What a command leaves behind, and what it leaves alone: files, results, a closed output, a kernel that refuses.

mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::{eventually, finish, folder, loadline, precious_file, refuse_registering, run, signal, start};

const LIMIT: Duration = Duration::from_secs(60);
const QUICK: [&str; 6] = ["-p", "B4-T1-O4-W0-PR", "--warm-up", "0s", "--for", "1s"];

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn a_result_overwrites_only_an_earlier_result() {
    let folder = folder();
    let file = precious_file(folder.path(), 1);
    let before = fs::read(&file).unwrap();
    let bench = |target: &str, json: &Path| run(["bench", target, "--json", text(json)].iter().chain(&QUICK));
    let other = folder.path().join("letter.txt");
    fs::write(&other, "precious").unwrap();
    bench("null:1GiB", &other).refused(2, &["letter.txt", "not a result", "Name another"]);
    assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    bench(text(&file), &file).refused(2, &["precious.img", "one of the targets"]);
    assert!(fs::read(&file).unwrap() == before, "the target was overwritten");
    bench("null:1GiB", folder.path()).refused(2, &["is a directory"]);
    bench("null:1GiB", &folder.path().join("none/result.json")).refused(2, &["none", "does not exist"]);
    let new = folder.path().join("new.img");
    let create = ["bench", text(&new), "--create", "1MiB", "--json", text(&new)];
    run(create.iter().chain(&QUICK)).refused(2, &["one of the targets"]);
    assert!(!new.exists());
    let result = folder.path().join("result.json");
    for _ in 0..2 {
        let said = bench("null:1GiB", &result);
        assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
        assert!(said.out.contains("IOPS"), "the table is printed beside: {}", said.out);
        let json: serde_json::Value = serde_json::from_slice(&fs::read(&result).unwrap()).unwrap();
        assert_eq!(json["engine"], "null");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing temporary is left");
}

#[test]
fn figures_are_printed_though_their_file_cannot_be_written() {
    let folder = folder();
    let gone = folder.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let child = start(["bench", "null:1GiB", "--json", text(&gone.join("r.json"))].iter().chain(&QUICK));
    std::thread::sleep(Duration::from_millis(500));
    fs::remove_dir(&gone).unwrap();
    let said = finish(child, LIMIT);
    said.refused(1, &["r.json", "cannot be written"]);
    assert!(said.out.contains("IOPS"), "{}", said.out);
}

/// A load on a file of its own that would go on for long.
fn on_a_new_file(file: &Path) -> Child {
    let words =
        ["bench", text(file), "--create", "16MiB", "--verify", "-p", "B4-T1-O4-W50-PR", "--for", "600s"];
    let child = loadline()
        .args(words)
        .env("TMPDIR", file.parent().expect("a folder"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    eventually("the file is there", LIMIT, || file.exists());
    std::thread::sleep(Duration::from_secs(1));
    child
}

#[test]
fn two_signals_at_once_leave_nothing_behind() {
    let folder = folder();
    let child = on_a_new_file(&folder.path().join("new.img"));
    // Both are there when it goes on: it ends on the spot.
    for name in ["STOP", "INT", "TERM", "CONT"] {
        signal(child.id(), name);
    }
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a file or a journal is left");
}

#[test]
fn a_terminal_that_is_gone_ends_it_in_order() {
    let folder = folder();
    let child = on_a_new_file(&folder.path().join("new.img"));
    signal(child.id(), "HUP");
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a file or a journal is left");
}

#[test]
fn nohup_is_heeded() {
    let script = "trap '' HUP; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_loadline"), "bench", "null:1GiB"]).args(QUICK);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell runs");
    std::thread::sleep(Duration::from_millis(500));
    signal(child.id(), "HUP");
    let said = finish(child, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
}

#[test]
fn a_reader_that_has_gone_makes_no_command_panic() {
    let folder = folder();
    let new = folder.path().join("new.img");
    let bench = ["bench", text(&new), "--create", "1MiB"].iter().chain(&QUICK).copied().collect();
    for words in [bench, vec!["profile", "show", "B4-T1-O4-W0-PR"], vec!["schema", "bench"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = loadline().args(&words).stdout(writer).output().expect("the program runs");
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{words:?}: {:?} {err}", output.status);
        // And with both outputs gone, as in `2>&1 | head`.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let both = writer.try_clone().expect("a pipe has two ends");
        let status = loadline().args(&words).stdout(writer).stderr(both).status().expect("the program runs");
        assert!(matches!(status.code(), Some(0 | 3)), "{words:?}: {status:?}");
    }
    assert!(!new.exists());
}

#[test]
fn a_full_disk_behind_the_output_is_told() {
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let output = loadline().args(["schema", "bench"]).stdout(full).output().expect("the program runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("standard output cannot be written"), "{err}");
}

#[test]
fn io_uring_that_is_half_refused_is_not_used() {
    use std::os::unix::process::CommandExt;
    let folder = folder();
    let file = precious_file(folder.path(), 1);
    let mut command = loadline();
    command.args(["bench", text(&file), "--json", "-"]).args(QUICK);
    // SAFETY: between fork and exec only system calls are made, and no memory is allocated.
    unsafe { command.pre_exec(refuse_registering) };
    let output = command.output().expect("the program runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{err}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a result");
    assert_eq!(json["engine"], "threads");
    assert!(json["findings"].to_string().contains("io_uring"), "{}", json["findings"]);
}

#[test]
fn memory_that_may_not_be_registered_is_noted() {
    let folder = folder();
    let file = precious_file(folder.path(), 1);
    let mut command = Command::new("prlimit");
    command.args(["--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]);
    command.args([env!("CARGO_BIN_EXE_loadline"), "bench", text(&file), "-p", "B4-T2-O64-W0-PR"]);
    let output = command.args(["--warm-up", "0s", "--for", "1s", "--json", "-"]).output();
    let output = output.expect("prlimit runs");
    let err = String::from_utf8_lossy(&output.stderr);
    if err.starts_with("setpriv") {
        eprintln!("without root, rights cannot be given up here: not tested: {err}");
        return;
    }
    let json: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {err}"));
    if json["engine"] == "io_uring" {
        assert!(json["findings"].to_string().contains("2 of its threads do without"), "{}", json["findings"]);
    }
}
