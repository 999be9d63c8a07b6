//! `loadline bench`: real files, real signals.

mod support;
#[path = "peers/tgt.rs"]
mod tgt;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use support::{eventually, finish, folder, loadline, number, precious_file, run, signal, start};
use tgt::{NAME, Tgt};

const QUICK: [&str; 4] = ["--warm-up", "1s", "--for", "2s"];
const LIMIT: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn a_result_has_every_key_that_programs_read() {
    let folder = folder();
    let file = precious_file(folder.path(), 16);
    let said = run(["bench", text(&file), "--profile", "B4-T1-O4-W0-PR", "--json", "-"].iter().chain(&QUICK));
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    let json = said.json();
    for side in ["total", "read", "write"] {
        for key in ["iops", "bytes_per_s", "latency_us", "errors"] {
            assert!(json[side].get(key).is_some(), "{side}.{key}");
        }
        for key in ["mean", "min", "max", "p50", "p90", "p95", "p99", "p99.9", "p99.99", "p99.999", "deepest"]
        {
            assert!(json[side]["latency_us"].get(key).is_some(), "{side}.latency_us.{key}");
        }
    }
    for key in [
        "service_us",
        "lateness_us",
        "window_s",
        "cpu",
        "longest_stall_ms",
        "errors",
        "findings",
        "histograms",
        "inventory",
        "host",
        "seconds",
        "version",
        "seed",
    ] {
        assert!(json.get(key).is_some(), "{key}");
    }
    assert!(number(&json, "total/iops") > 0.0);
    assert_eq!(number(&json, "window_s"), 2.0);
    assert!(json["write"]["latency_us"]["mean"].is_null(), "nothing was written");
    assert!(number(&json, "cpu/system_s") > 0.0);
    let product = number(&json, "total/iops") * number(&json, "total/latency_us/mean") / 1e6;
    assert!((product / 4.0 - 1.0).abs() < 0.15, "Little's law: {product} of 4 outstanding");
    assert_eq!(json["histograms"]["read"]["count"].as_f64().map(|n| n > 0.0), Some(true));
}

#[test]
fn a_load_on_a_file_is_compared_with_published_figures_and_one_on_memory_is_not() {
    let folder = folder();
    // Writes on a sparse file: to compare its reads, all of it would have to be written first.
    let file = folder.path().join("large.img");
    fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
    let words = ["bench", text(&file), "--profile", "B4-T1-O4-W100-PR", "--destroy-data"];
    let json = run(words.iter().chain(&["--json", "-"]).chain(&QUICK)).json();
    assert_eq!(json["inventory"]["disks"][0]["bytes"], 1 << 30);
    let load = &json["orientation"]["loads"][0];
    // A busy machine may make the load doubtful, and the temporary folder may be in memory.
    let spoils = |finding: &serde_json::Value| {
        finding["severity"] == "doubt"
            || ["not-direct", "generator-bound"].iter().any(|kind| finding["kind"] == *kind)
    };
    let in_memory = !json["inventory"]["disks"][0]["memory"].is_null();
    let is_compared = !in_memory && !json["findings"].as_array().unwrap().iter().any(spoils);
    assert_eq!(load["refused"].is_null(), is_compared, "{load}");
    if is_compared {
        assert_eq!(load["iops"], json["total"]["iops"]);
        let drives = [&load["drives"]["below"], &load["drives"]["above"]];
        let named = drives.into_iter().find(|drive| !drive.is_null()).expect("a drive");
        assert!(
            named["sources"][0]["address"].as_str().is_some_and(|at| at.starts_with("https://")),
            "{named}"
        );
        assert!(load["machines"].as_array().is_some_and(|all| !all.is_empty()));
    }
    let said = run(words.iter().chain(&QUICK));
    assert!(
        said.out.contains("orientation only: data sheets") || said.out.contains("not compared: "),
        "{}",
        said.out
    );
    // The caches of a drive may hold a small file.
    let small = precious_file(folder.path(), 16);
    let json = run(["bench", text(&small), "--json", "-"].iter().chain(&QUICK)).json();
    let why = json["orientation"]["loads"][0]["refused"].as_str().expect("it is not compared").to_string();
    let spoilt = in_memory || json["findings"].as_array().unwrap().iter().any(spoils);
    assert!(spoilt || why.contains("its working set of 16MiB is less than 1GiB"), "{why}");
    // The figures of memory are given, and compared with nothing.
    let said = run(["bench", "null:1GiB"].iter().chain(&QUICK));
    assert!(
        said.out.contains("not compared: its target") && !said.out.contains("enough for"),
        "{}",
        said.out
    );
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        let file = precious_file(memory.path(), 16);
        let said = run(["bench", text(&file)].iter().chain(&QUICK));
        assert!(said.out.contains("in memory (tmpfs)") && !said.out.contains("enough for"), "{}", said.out);
    }
}

#[test]
fn a_strangers_file_is_read_and_never_written() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let before = fs::read(&file).unwrap();
    let write = ["bench", text(&file), "--profile", "B4-T1-O4-W1-PR", "--for", "1s"];
    run(write).refused(2, &["precious.img", "did not make", "--destroy-data"]);
    let said = run(["bench", text(&file), "--profile", "B4-T1-O4-W0-PR"].iter().chain(&QUICK));
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    assert!(fs::read(&file).unwrap() == before, "its content changed");
}

#[test]
fn a_created_file_is_filled_measured_verified_and_removed() {
    let folder = folder();
    let file = folder.path().join("new.img");
    let words =
        ["bench", text(&file), "--create", "16MiB", "-p", "B4-T2-O4-W50-PR", "--verify", "--json", "-"];
    let said = run(words.iter().chain(&QUICK));
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    let json = said.json();
    assert!(number(&json, "verify/checked") >= 4096.0, "every block was scanned");
    for bad in ["lost", "corrupt", "foreign"] {
        assert_eq!(number(&json, &format!("verify/{bad}")), 0.0);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn what_is_there_is_never_created_over() {
    let folder = folder();
    let file = precious_file(folder.path(), 1);
    run(["bench", text(&file), "--create", "1MiB"]).refused(2, &["exists already"]);
    assert!(file.exists());
}

#[test]
fn a_byte_flipped_under_a_verifying_run_is_found() {
    let folder = folder();
    let file = precious_file(folder.path(), 8);
    let mut child = start(
        ["bench", text(&file), "--destroy-data", "--fill", "--verify", "-p", "B4-T1-O4-W0-PR", "--json", "-"]
            .iter()
            .chain(&["--warm-up", "0s", "--for", "3s"]),
    );
    // The load only reads; flip one byte of what the fill wrote, once it runs.
    std::thread::sleep(Duration::from_secs(1));
    assert!(child.try_wait().unwrap().is_none(), "it still runs");
    let open = fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, 5 * 4096 + 2000).unwrap();
    open.write_all_at(&[byte[0] ^ 0x10], 5 * 4096 + 2000).unwrap();
    open.sync_all().unwrap();
    let said = finish(child, LIMIT);
    assert_eq!(said.code, Some(1), "{}", said.err);
    let json = said.json();
    assert_eq!(number(&json, "verify/corrupt"), 1.0, "one block, however often it was read");
    assert!(json["verify"]["examples"][0].as_str().unwrap().contains("byte 20480"), "{}", json["verify"]);
}

#[test]
fn a_killed_writers_acknowledged_writes_are_judged_by_another_process() {
    let folder = folder();
    let file = precious_file(folder.path(), 8);
    let journal = folder.path().join("journal");
    let mut child = start([
        "bench",
        text(&file),
        "--destroy-data",
        "--verify",
        "--journal",
        text(&journal),
        "-p",
        "B4-T1-O8-W100-PR",
        "--for",
        "60s",
    ]);
    std::thread::sleep(Duration::from_secs(2));
    signal(child.id(), "KILL");
    child.wait().unwrap();
    let verify = || run(["verify", text(&file), "--journal", text(&journal), "--json"]);
    let said = verify();
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    assert!(number(&said.json(), "checked") > 1000.0, "{}", said.out);
    // And one acknowledged block put back to what was there before it: a lost write.
    let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
    open.write_all_at(&[0; 4096], 0).unwrap();
    open.sync_all().unwrap();
    let said = verify();
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert_eq!(number(&said.json(), "lost"), 1.0);
}

#[test]
fn a_pause_is_charged_to_every_io_that_it_delayed() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let words = ["bench", text(&file), "-p", "B4-T1-O4-W0-PR", "--rate", "500iops", "--json", "-"];
    let child = start(words.iter().chain(&["--warm-up", "1s", "--for", "4s"]));
    std::thread::sleep(Duration::from_millis(2500));
    signal(child.id(), "STOP");
    std::thread::sleep(Duration::from_millis(800));
    signal(child.id(), "CONT");
    let json = finish(child, LIMIT).json();
    // 800 ms of 4 s: a fifth of the I/Os were intended in the pause, and waited 400 ms of it on average.
    let p90 = number(&json, "total/latency_us/p90");
    assert!((200_000.0..800_000.0).contains(&p90), "p90 is {p90} us");
    assert!(number(&json, "total/latency_us/max") >= 700_000.0);
    assert!(number(&json, "longest_stall_ms") >= 700.0);
    let iops = number(&json, "total/iops");
    assert!((iops / 500.0 - 1.0).abs() < 0.02, "all were issued in the end: {iops}");
}

#[test]
fn a_stop_condition_ends_the_load_with_its_own_exit_code() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let words = ["bench", text(&file), "-p", "B4-T1-O4-W0-PR", "--stop-if", "p50>1us", "--for", "60s"];
    run(words.iter().chain(&["--warm-up", "0s"])).refused(99, &["p50>1us"]);
}

#[test]
fn a_stop_condition_leaves_healthy_storage_alone() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    // One I/O is always in flight, also at the end of each second.
    let words = ["bench", text(&file), "-p", "B4-T1-O1-W0-PR", "--stop-if", "p50>100ms", "--json", "-"];
    let said = run(words.iter().chain(&["--warm-up", "0s", "--for", "4s"]));
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    assert_eq!(number(&said.json(), "window_s"), 4.0);
}

#[test]
fn a_stop_condition_judges_the_last_second_too() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let words = ["bench", text(&file), "-p", "B4-T1-O4-W0-PR", "--stop-if", "p50>1us", "--for", "1s"];
    run(words.iter().chain(&["--warm-up", "0s"])).refused(99, &["p50>1us"]);
}

#[test]
fn a_rate_far_beyond_any_storage_is_a_finding_and_not_a_failure() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let words = ["bench", text(&file), "-p", "B4-T1-O1-W50-PR", "--destroy-data", "--rate", "1e3miops"];
    run(words).refused(2, &["rate"]);
    let words = ["bench", text(&file), "-p", "B4-T1-O1-W50-PR", "--destroy-data", "--rate", "900miops"];
    let said = run(words.iter().chain(&["--drain", "1s", "--warm-up", "0s", "--for", "3s", "--json", "-"]));
    assert_eq!(said.code, Some(3), "{}", said.err);
    assert!(number(&said.json(), "total/censored") > 1e9, "everything offered is counted");
}

#[test]
fn ctrl_c_cleans_up() {
    let folder = folder();
    let file = folder.path().join("new.img");
    let words = ["bench", text(&file), "--create", "16MiB", "--for", "600s"];
    let child = start(words);
    eventually("the file is there", LIMIT, || file.exists());
    std::thread::sleep(Duration::from_millis(500));
    signal(child.id(), "INT");
    let said = finish(child, Duration::from_secs(20));
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert!(!file.exists());
}

#[test]
fn a_rate_holds_high_and_low() {
    for (rate, seconds, expected) in [("20kiops", "2s", 40_000.0), ("0.5iops", "6s", 3.0)] {
        let words =
            ["bench", "null:1GiB", "--rate", rate, "--warm-up", "1s", "--for", seconds, "--json", "-"];
        let json = run(words).json();
        let count = number(&json, "total/iops") * number(&json, "window_s");
        assert!((count - expected).abs() <= (expected * 0.01f64).max(1.0), "{count} of {expected} at {rate}");
    }
}

#[test]
fn threads_issue_io_where_io_uring_is_not_used() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let words = ["bench", text(&file), "-p", "B4-T1-O4-W0-PR", "--engine", "threads", "--json", "-"];
    let said = run(words.iter().chain(&QUICK));
    let json = said.json();
    assert_eq!(json["engine"], "threads");
    assert!(number(&json, "total/iops") > 0.0);
}

#[test]
fn the_words_of_fio_and_diskspd_are_understood() {
    for words in [
        "--bs 8k --iodepth 4 --rw randread --numjobs 2 --runtime 1 --ramp_time 0",
        "-b 8k -o 4 -w 0 -t 2 -r -d 1 -W 0",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let said = run(["bench", "null:1GiB", "--json", "-"].iter().chain(&words));
        assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
        let json = said.json();
        for (key, value) in [("threads", 2.0), ("outstanding", 4.0), ("write_percent", 0.0)] {
            assert_eq!(number(&json, &format!("profile/{key}")), value, "{words:?}");
        }
        assert_eq!((&json["profile"]["block_size"], number(&json, "window_s")), (&"8KiB".into(), 1.0));
        assert!(said.err.contains("the load is B8-T2-O4-W0-PR"), "{}", said.err);
    }
    // A value that begins with a hyphen is the profile's, whichever way it is given.
    for profile in [vec!["-p", "-b4K -t2 -o8 -r -Su -Zr"], vec!["--profile=-b4K -t2 -o8 -r -Su -Zr"]] {
        let words = ["bench", "null:1GiB", "--json", "-", "--warm-up", "0s", "--for", "1s"];
        let json = run(words.iter().chain(&profile)).json();
        assert_eq!((number(&json, "profile/threads"), number(&json, "profile/outstanding")), (2.0, 8.0));
    }
    run(["bench", "null:1GiB", "--bs", "4k", "-o", "32"])
        .refused(2, &["of fio", "of DISKSPD", "one of them"]);
    run(["bench", "null:1GiB", "--bssplit", "4k/50:8k/50"]).refused(2, &["bssplit", "one block size"]);
}

#[test]
fn bad_input_gets_one_clear_message() {
    let folder = folder();
    let file = precious_file(folder.path(), 1);
    let large = folder.path().join("large.toml");
    fs::write(&large, "working_set = \"1GiB\"\n").unwrap();
    for (words, expected) in [
        (vec!["bench", "/nowhere/disk"], vec!["/nowhere/disk", "does not exist"]),
        (vec!["bench", text(folder.path())], vec!["is a directory"]),
        (vec!["bench", "/dev/null"], vec!["neither a file nor a block device"]),
        (vec!["bench", "nbd://host/disk"], vec!["nbd://"]),
        (vec!["bench", text(&file), "-p", "B4-T1-O32-W0-PX"], vec!["X", "R random"]),
        (vec!["bench", text(&file), "-p", "B4-T1-O32-W101-PR"], vec!["101"]),
        (vec!["bench", text(&file), "-p", text(&large)], vec!["precious.img", "1GiB", "1MiB"]),
        (vec!["bench", text(&file), "-p", "B2048-T1-O1-W0-PR"], vec!["precious.img", "2MiB"]),
        (vec!["bench", text(&file), "--rate", "0iops"], vec!["0iops"]),
        (vec!["bench", text(&file), "--for", "1500ms"], vec!["whole seconds"]),
        (vec!["bench", text(&file), "--for", "1s", "--runtime", "2"], vec!["--for", "fio", "leave one out"]),
        (vec!["bench", text(&file), "--stop-if", "p99<1ms"], vec!["p99>50ms"]),
        (vec!["bench"], vec!["TARGET"]),
        (vec!["verify", text(&file), "--journal", "/nowhere/journal"], vec!["/nowhere/journal"]),
        (vec!["verify", text(&file), "--journal", text(&large)], vec!["large.toml"]),
        (vec!["profile", "show", "/nowhere/profile"], vec!["/nowhere/profile"]),
    ] {
        run(words).refused(2, &expected);
    }
}

#[test]
fn an_open_loop_that_is_too_fast_is_said_to_be() {
    let folder = folder();
    let file = precious_file(folder.path(), 4);
    let words =
        ["bench", text(&file), "-p", "B4-T1-O1-W0-PR", "--rate", "5miops", "--drain", "1s", "--json", "-"];
    let said = run(words.iter().chain(&["--warm-up", "0s", "--for", "2s"]));
    assert_eq!(said.code, Some(3), "{}", said.err);
    let json = said.json();
    let kinds: Vec<&str> =
        json["findings"].as_array().unwrap().iter().filter_map(|f| f["kind"].as_str()).collect();
    assert!(kinds.contains(&"rate-not-met") && kinds.contains(&"censored"), "{kinds:?}");
    assert!(number(&json, "total/latency_us/max") > 1e6, "the backlog's age is counted");
}

/// What `profile list` names is a profile: `profile show` explains it, and a load can have it.
#[test]
fn each_name_of_the_list_of_profiles_is_one() {
    let said = run(["profile", "list"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let table = said.out.split("\n\n").next().unwrap();
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|row| row.split("  ").collect()).collect();
    let names: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert!(["oltp", "sql", "vdi", "vmfleet-peak", "hcibench-4k70r"].iter().all(|name| names.contains(name)));
    for name in names {
        let shown = run(["profile", "show", name]);
        assert!(shown.code == Some(0) && shown.out.contains("fio"), "{name}: {}{}", shown.out, shown.err);
    }
    for name in ["4k-randread", "256k-write", "8k-70-30", "peak", "4k70r"] {
        assert_eq!(run(["profile", "show", name]).code, Some(0), "{name}");
    }
    run(["profile", "show", "4k-randred"]).refused(2, &["4k-randred", "randread"]);
}

/// Colour is for people at a terminal: not for pipes, and not where NO_COLOR is set.
#[test]
fn colour_is_shown_on_terminals_only() {
    let on_terminal = |no_color: &str| {
        let mut command = std::process::Command::new("script");
        let words = format!("{} report /nowhere", env!("CARGO_BIN_EXE_loadline"));
        command.args(["-qec", &words, "/dev/null"]).env("NO_COLOR", no_color).env("TERM", "xterm");
        String::from_utf8(command.output().expect("script runs").stdout).unwrap()
    };
    let shown = on_terminal("");
    assert!(shown.starts_with("\u{1b}[31mloadline:\u{1b}[0m "), "{shown:?}");
    let plain = on_terminal("1");
    assert!(plain.starts_with("loadline: ") && !plain.contains('\u{1b}'), "{plain:?}");
    assert!(run(["report", "/nowhere"]).err.starts_with("loadline: "));
}

#[test]
fn a_unit_of_an_iscsi_target_is_measured_with_the_secret_of_the_environment() {
    let folder = folder();
    let tgt = Tgt::start(&precious_file(folder.path(), 4));
    tgt.admin(&["--op", "new", "--mode", "account", "--user", "bench", "--password", "sesame-opens-it"]);
    tgt.admin(&["--op", "bind", "--mode", "account", "--tid", "1", "--user", "bench"]);
    let uri = format!("iscsi://bench@127.0.0.1:{}/{NAME}/1", tgt.port);
    let words = ["bench", &uri, "--profile", "B4-T1-O4-W0-PR", "--json", "-"];
    run(words.iter().chain(&QUICK)).refused(2, &["LOADLINE_ISCSI_SECRET", "?secret=PATH"]);
    let mut command = loadline();
    command.env("LOADLINE_ISCSI_SECRET", "sesame-opens-it").args(words).args(QUICK);
    let output = command.output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", String::from_utf8_lossy(&output.stderr));
    let json: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert!(number(&json, "total/iops") > 0.0 && number(&json, "errors") == 0.0);
    assert!(!said.contains("sesame"), "the secret is in no result");
}
