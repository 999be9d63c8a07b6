//! Images of a Ceph cluster: a real one, small, of this test's own. It needs root and Ceph's packages (`./dev setup --tests`).
//!
//! All parts share the cluster, which takes a while to start, and come one after the other: some stop what others need.

mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Said, finish, folder, loadline, number, run, start};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/peers/ceph-mini.sh");
const QUICK: [&str; 4] = ["--warm-up", "0s", "--for", "1s"];
const LIMIT: Duration = Duration::from_secs(90);
const MIB: u64 = 64;
const OSDS: usize = 3;

/// A cluster, which stops when dropped.
struct Ceph(PathBuf);

impl Ceph {
    fn start(folder: &Path) -> Ceph {
        let ceph = Ceph(folder.into());
        ceph.script(&["up", &OSDS.to_string(), "2", &MIB.to_string()]);
        ceph
    }

    fn script(&self, words: &[&str]) {
        let output = Command::new("bash").args([SCRIPT, words[0]]).arg(&self.0).args(&words[1..]).output();
        let output = output.expect("bash runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {}: {stderr}", output.status);
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a plain path").into()
    }

    /// How `loadline` names an image of it.
    fn uri(&self, image: &str) -> String {
        format!("rbd:bench/{image}?conf={}", self.file("ceph.conf"))
    }

    fn rbd(&self, words: &[&str]) -> String {
        let output = Command::new("rbd").args(["--conf", &self.file("ceph.conf")]).args(words).output();
        let output = output.expect("rbd runs");
        assert!(output.status.success(), "rbd {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What is in an image, as Ceph's own program reads it.
    fn export(&self, image: &str, file: &Path) {
        self.rbd(&["export", "--no-progress", &format!("bench/{image}"), file.to_str().unwrap()]);
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut status = Command::new("ceph");
            status.args(["--conf", &self.file("ceph.conf"), "--connect-timeout", "5", "-s"]);
            if let Ok(said) = status.output() {
                eprintln!("{}", String::from_utf8_lossy(&said.stdout));
            }
        }
        // Not asserted: a second panic would end the test without a word about the first.
        let _ = Command::new("bash").args([SCRIPT, "down"]).arg(&self.0).output();
    }
}

fn bench(target: &str, more: &[&str]) -> Said {
    run(["bench", target].iter().chain(&QUICK).chain(more))
}

fn is_measured(said: &Said) -> Value {
    // Findings (3) are of the machine's speed.
    assert!(matches!(said.code, Some(0 | 3)), "{:?}: {}{}", said.code, said.out, said.err);
    said.json()
}

fn bad(json: &Value) -> f64 {
    ["lost", "corrupt", "foreign", "unreadable"]
        .iter()
        .map(|what| number(json, &format!("verify/{what}")))
        .sum()
}

fn kinds(json: &Value) -> Vec<&str> {
    json["findings"].as_array().unwrap().iter().filter_map(|finding| finding["kind"].as_str()).collect()
}

#[test]
fn images_of_a_ceph_cluster_are_measured_and_verified_through_faults() {
    let id = Command::new("id").arg("-u").output().expect("id runs");
    if id.stdout != b"0\n" {
        eprintln!("a Ceph cluster needs root: not tested");
        return;
    }
    let folder = folder();
    let begun = Instant::now();
    let ceph = Ceph::start(folder.path());
    for image in ["disk1", "disk2"] {
        ceph.script(&["image", image, "16"]);
    }
    let progress = |what: &str| eprintln!("{:5.1} s: {what}", begun.elapsed().as_secs_f64());
    progress("the cluster is there");
    let part = |name: &str, part: fn(&Ceph)| {
        part(&ceph);
        progress(name);
    };
    // These mostly wait, and each has images of its own.
    std::thread::scope(|scope| {
        scope.spawn(|| part("measured", it_is_measured_and_every_block_verified));
        scope.spawn(|| part("refused", what_cannot_be_opened_is_said));
        scope.spawn(|| part("in use", who_has_an_image_open_is_left_alone));
    });
    part("read", what_was_written_is_what_ceph_reads_and_the_other_way_round);
    part("one killed", an_osd_that_is_killed_loses_nothing);
    part("study", a_study_measures_it_healthy_with_an_osd_down_and_back);
    part("all stopped", a_cluster_that_stops_answering_ends_the_load_and_nothing_hangs);
}

fn it_is_measured_and_every_block_verified(ceph: &Ceph) {
    let target = ceph.uri("disk0");
    let blocks = (MIB << 20) as f64 / 4096.0;
    let write = ["-p", "B4-T2-O8-W50-PR", "--destroy-data", "--fill", "--verify", "--json", "-"];
    let json = is_measured(&bench(&target, &write));
    assert_eq!((json["engine"].as_str(), number(&json, "errors")), (Some("librbd"), 0.0));
    assert!(number(&json, "verify/checked") >= blocks && bad(&json) == 0.0, "{}", json["verify"]);
    assert!(number(&json, "read/iops") > 0.0 && number(&json, "write/iops") > 0.0);
    assert_eq!(json["inventory"]["disks"][0]["kind"], "Ceph RBD");
    // Durable at once or not, flushed or not, whole sectors of any size.
    let profile = ceph.0.join("profile.toml");
    fs::write(
        &profile,
        "block_size = \"16KiB\"\nwrite_percent = 70\nwrite_through = true\nflush_every = 4\n",
    )
    .unwrap();
    for profile in [profile.to_str().unwrap(), "B0.5-T1-O4-W50-PR", "B1024-T1-O2-W50-PS"] {
        let more = ["-p", profile, "--destroy-data", "--verify", "--json", "-"];
        let json = is_measured(&bench(&target, &more));
        assert!(number(&json, "errors") + bad(&json) == 0.0, "{profile}: {json}");
    }
    // The configuration is also found as Ceph finds it; and --poll never sleeps.
    let read = ["bench", "rbd://bench/disk0", "-p", "B4-T1-O4-W0-PR", "--poll", "--json", "-"];
    let output = loadline().args(read).args(QUICK).env("CEPH_CONF", ceph.file("ceph.conf")).output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(number(&json, "read/iops") > 0.0 && number(&json, "errors") == 0.0);
}

fn what_was_written_is_what_ceph_reads_and_the_other_way_round(ceph: &Ceph) {
    let (target, journal) = (ceph.uri("disk0"), ceph.file("journal"));
    let write = [
        "-p",
        "B4-T1-O16-W100-PR",
        "--destroy-data",
        "--fill",
        "--verify",
        "--journal",
        &journal,
        "--json",
        "-",
    ];
    is_measured(&bench(&target, &write));
    // What was acknowledged is in the image, as Ceph's own program reads it.
    let file = ceph.0.join("disk0.img");
    ceph.export("disk0", &file);
    let verify = |target: &str| run(["verify", target, "--journal", &journal, "--json"]);
    let said = verify(file.to_str().unwrap());
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert_eq!(number(&said.json(), "checked"), (MIB << 20) as f64 / 4096.0);
    // And what that program writes is what is read here: one block of the copy is put back to what it never was.
    let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
    open.write_all_at(&[7; 100], 9 * 4096 + 1000).unwrap();
    ceph.rbd(&["import", "--no-progress", file.to_str().unwrap(), "bench/copy"]);
    let said = verify(&ceph.uri("copy"));
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert_eq!(number(&said.json(), "corrupt"), 1.0, "{}", said.out);
    assert!(said.out.contains("byte 36864"), "{}", said.out);
    assert_eq!(verify(&target).code, Some(0), "the original is as it was");
    fs::remove_file(&file).unwrap();
}

fn what_cannot_be_opened_is_said(ceph: &Ceph) {
    let conf = ceph.file("ceph.conf");
    ceph.script(&["user", "reader", "mon", "profile rbd", "osd", "profile rbd-read-only pool=bench"]);
    ceph.script(&["user", "nobody", "mon", "allow r"]);
    let (reader, nobody, admin) =
        (ceph.file("reader.keyring"), ceph.file("nobody.keyring"), ceph.file("keyring"));
    let deaf = ceph.0.join("deaf.conf");
    let text = fs::read_to_string(&conf).unwrap();
    let monitor = text.lines().find(|line| line.starts_with("mon host")).unwrap();
    fs::write(&deaf, text.replace(monitor, "mon host = v1:127.0.0.1:1")).unwrap();
    let broken = ceph.0.join("broken.conf");
    fs::write(&broken, "[global\nfsid").unwrap();
    let (deaf, broken) = (deaf.to_str().unwrap(), broken.to_str().unwrap());
    let of = |rest: &str| format!("rbd:bench/disk1?conf={conf}{rest}");
    let (read, write) = ("B4-T1-O1-W0-PR", "B4-T1-O1-W100-PR");
    let table: Vec<(String, &str, i32, Vec<&str>)> = vec![
        (ceph.uri("disk1"), write, 2, vec!["did not make", "--destroy-data"]),
        (
            "rbd:bench/disk1?conf=/nowhere/ceph.conf".into(),
            read,
            2,
            vec!["/nowhere/ceph.conf", "cannot be read"],
        ),
        (
            format!("rbd:bench/disk1?conf={broken}"),
            read,
            2,
            vec!["broken.conf", "none that Ceph understands"],
        ),
        (
            format!("rbd:bench/disk1?conf={deaf}"),
            read,
            1,
            vec!["monitors do not answer within 10 s", "ceph -s"],
        ),
        (format!("rbd:none/disk1?conf={conf}"), read, 2, vec!["no pool \"none\"", "ceph osd pool ls"]),
        (ceph.uri("none"), read, 2, vec!["no image \"none\" in pool \"bench\"", "rbd ls bench"]),
        (of("&namespace=n"), read, 2, vec!["namespace \"n\"", "rbd ls bench/n"]),
        (ceph.uri("disk1@snap"), read, 2, vec!["snapshot is not measured"]),
        (of("&keyring=/nowhere/keyring"), read, 2, vec!["/nowhere/keyring", "cannot be read"]),
        (of("&user=reader"), read, 2, vec!["refuses client.reader", "?keyring="]),
        (of(&format!("&user=stranger&keyring={admin}")), read, 2, vec!["client.stranger", "?keyring="]),
        (
            of(&format!("&user=nobody&keyring={nobody}")),
            read,
            2,
            vec!["client.nobody may not", "for reading"],
        ),
    ];
    let begun = Instant::now();
    for (target, profile, code, words) in &table {
        bench(target, &["-p", profile]).refused(*code, words);
    }
    assert!(begun.elapsed() < LIMIT);
    // A user that may only read can read, and cannot write.
    let target = of(&format!("&user=client.reader&keyring={reader}"));
    is_measured(&bench(&target, &["-p", read, "--json", "-"]));
    bench(&target, &["-p", write, "--destroy-data"]).refused(2, &["client.reader may not", "for writing"]);
    // A key that is not the user's.
    let wrong = ceph.0.join("wrong.keyring");
    fs::write(&wrong, fs::read_to_string(&nobody).unwrap().replace("nobody", "reader")).unwrap();
    let target = of(&format!("&user=reader&keyring={}", wrong.display()));
    bench(&target, &["-p", read]).refused(2, &["refuses client.reader"]);
    without_the_library(&of(""));
    a_cache_of_the_image_is_refused(ceph);
}

/// A namespace of mounts in which the library is an empty file.
fn without_the_library(target: &str) {
    let listed = Command::new("ldconfig").arg("-p").output().expect("ldconfig runs");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let library =
        listed.lines().find_map(|line| line.trim().strip_prefix("librbd.so.1 ")?.split(" => ").nth(1));
    let script = "mount --bind /dev/null \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, library.expect("librbd1 is installed")]);
    let child = command
        .args([env!("CARGO_BIN_EXE_loadline"), "bench", target])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("unshare runs");
    finish(child, LIMIT).refused(2, &["client library is not here", "librbd.so.1", "install librbd1"]);
}

fn a_cache_of_the_image_is_refused(ceph: &Ceph) {
    ceph.rbd(&["config", "image", "set", "bench/disk1", "rbd_cache", "true"]);
    let said = bench(&ceph.uri("disk1"), &["-p", "B4-T1-O1-W0-PR"]);
    said.refused(2, &["rbd_cache = true", "rbd config image remove bench/disk1 rbd_cache"]);
    ceph.rbd(&["config", "image", "remove", "bench/disk1", "rbd_cache"]);
}

fn writing(target: &str, more: &[&str]) -> Child {
    let words =
        ["bench", target, "-p", "B4-T1-O8-W50-PR", "--destroy-data", "--warm-up", "0s", "--json", "-"];
    start(words.iter().chain(more))
}

fn who_has_an_image_open_is_left_alone(ceph: &Ceph) {
    let target = ceph.uri("disk2");
    let first = writing(&target, &["--for", "8s"]);
    std::thread::sleep(Duration::from_secs(2));
    let refused = ["is in use", "client.", "has it open"];
    let (write, read) = (["-p", "B4-T1-O1-W100-PR", "--destroy-data"], ["-p", "B4-T1-O1-W0-PR"]);
    let reader = start(["bench", &target].iter().chain(&QUICK).chain(&read));
    bench(&target, &write).refused(2, &refused);
    finish(reader, LIMIT).refused(2, &refused);
    is_measured(&finish(first, LIMIT));
    // The lock of another program is respected, too.
    let words = ["bench", "--io-type", "write", "--io-total", "100G", "bench/disk2"];
    let mut other = Command::new("rbd");
    other.args(["--conf", &ceph.file("ceph.conf")]).args(words).stdout(Stdio::null()).stderr(Stdio::null());
    let mut other = other.spawn().expect("rbd runs");
    std::thread::sleep(Duration::from_secs(1));
    let said = bench(&target, &write);
    support::signal(other.id(), "INT");
    let _ = other.wait();
    said.refused(2, &refused);
    // The same image twice is in use by ourselves.
    run(["bench", &target, &target].iter().chain(&QUICK).chain(&write)).refused(2, &refused);
}

fn an_osd_that_is_killed_loses_nothing(ceph: &Ceph) {
    let target = ceph.uri("disk0");
    let child = writing(&target, &["--for", "6s", "--fill", "--verify"]);
    std::thread::sleep(Duration::from_secs(3));
    ceph.script(&["stop-osd", "0"]);
    let json = is_measured(&finish(child, LIMIT));
    assert_eq!((number(&json, "errors"), bad(&json)), (0.0, 0.0), "{json}");
    assert!(number(&json, "verify/checked") >= (MIB << 20) as f64 / 4096.0);
    assert!(number(&json, "longest_stall_ms") > 0.0 && number(&json, "window_s") == 6.0);
    assert!(!kinds(&json).contains(&"censored"), "{}", json["findings"]);
    ceph.script(&["start-osd", "0"]);
}

fn a_study_measures_it_healthy_with_an_osd_down_and_back(ceph: &Ceph) {
    let text = format!(
        r#"
name = "ceph"
profiles = ["B4-T1-O4-W50-PR"]
[target]
devices = ["{one}", "{two}"]
[target.external]
nodes = ["0", "1", "2"]
health = "ceph --conf {conf} --connect-timeout 5 pg stat | grep -Eq ': [0-9]+ active.clean;'"
[target.external.commands]
kill = "bash {SCRIPT} stop-osd {folder} $NODE"
return = "bash {SCRIPT} start-osd {folder} $NODE"
[[condition]]
name = "healthy"
[[condition]]
name = "one-down"
do = [{{ do = "kill", node = "1" }}]
[[condition]]
name = "recovered"
do = [{{ do = "return", node = "1" }}]
wait_redundant = "60s"
[fleet]
nodes = 2
[phases]
warm_up = "1s"
measure = "3s"
cool_down = "0s"
[run]
repeats = 1
verify = true
"#,
        one = ceph.uri("disk1"),
        two = ceph.uri("disk2"),
        conf = ceph.file("ceph.conf"),
        folder = ceph.0.display(),
    );
    let (study, out) = (ceph.0.join("study.toml"), ceph.0.join("out"));
    fs::write(&study, text).unwrap();
    let words = ["run", study.to_str().unwrap(), "--out", out.to_str().unwrap()];
    run(words).refused(2, &["rbd:bench/disk1", "--destroy-data"]);
    let said = run(words.iter().chain(&["--destroy-data", "--run-commands"]));
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report: Value = serde_json::from_slice(&fs::read(out.join("report/report.json")).unwrap()).unwrap();
    let row = report["conditions"][0]["conditions"].as_array().unwrap();
    let names: Vec<&str> = row.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["healthy", "one-down", "recovered"]);
    for step in report["steps"].as_array().unwrap() {
        assert_eq!((step["errors"].as_u64(), step["lost_workers"].as_u64()), (Some(0), Some(0)), "{step}");
        let bad =
            ["lost", "corrupt", "foreign", "unreadable"].map(|what| step["verify"][what].as_u64().unwrap());
        assert_eq!(bad, [0; 4], "{step}");
    }
}

fn a_cluster_that_stops_answering_ends_the_load_and_nothing_hangs(ceph: &Ceph) {
    let target = ceph.uri("disk0");
    let all = |verb: &str, signal: &[&str]| {
        for osd in 0..OSDS {
            ceph.script(&[&[verb, &osd.to_string()], signal].concat());
        }
    };
    let measured = writing(&target, &["--for", "3s", "--drain", "2s"]);
    let verified = writing(&ceph.uri("disk1"), &["--for", "3s", "--drain", "1s", "--verify"]);
    std::thread::sleep(Duration::from_millis(1500));
    all("stop-osd", &["STOP"]);
    let begun = Instant::now();
    // A client that opens the image now gets an error that names the OSDs, and does not hang either.
    let late = start(["bench", &ceph.uri("disk2"), "-p", "B4-T1-O1-W0-PR"].iter().chain(&QUICK));
    let said = finish(measured, LIMIT);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(kinds(&said.json()).contains(&"censored"), "{}", said.out);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let said = finish(verified, LIMIT);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.out.contains("scan incomplete: rbd:bench/disk1"), "{}{}", said.out, said.err);
    assert!(said.out.contains("OSDs that have its objects do not answer"), "{}{}", said.out, said.err);
    finish(late, LIMIT).refused(1, &["OSDs that have its objects do not answer", "ceph health detail"]);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    // The OSD continues, and I/Os that were in flight do no harm.
    all("stop-osd", &["CONT"]);
}
