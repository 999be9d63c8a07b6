//! Volumes as targets of iSCSI, at nodes that are real processes: for libiscsi's tests, its tools, and QEMU's initiator.

mod nodes;
#[path = "iscsi/raw.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod raw;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use loadline_base::iscsi::flag;
use nodes::client::Nbd;
use nodes::{Cluster, run};
use raw::Raw;

/// How long the whole suite of libiscsi may take.
const SUITE: Duration = Duration::from_secs(600);

/// How initiators reach a volume at a node, as `volume attach` tells it.
fn uri(cluster: &Cluster, node: u8, volume: &str) -> String {
    let shown = cluster.loadline(&["volume", "attach", volume, "--node", &format!("node-{node}"), "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("it is JSON");
    shown["ways"]["iscsi"]["network"].as_str().expect("initiators reach it").to_string()
}

/// The same volume at another node.
fn at(cluster: &Cluster, uri: &str, node: u8) -> String {
    let (_, rest) = uri.trim_start_matches("iscsi://").split_once(':').expect("it has a port");
    format!("iscsi://{}:{rest}", cluster.address(node))
}

/// The output of a command that may fail, and whether it succeeded; it ends within this time.
fn tried(program: &str, words: &[&str], limit: Duration) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.arg(limit.as_secs().to_string()).arg(program).args(words);
    let output = command.stdin(Stdio::null()).output().expect("./dev setup --tests installs it");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// What libiscsi's suite says of each of its tests.
#[derive(Debug, Default)]
struct Suite {
    passed: BTreeSet<String>,
    failed: BTreeMap<String, String>,
    skipped: BTreeMap<String, String>,
}

/// Reads the output of `iscsi-test-cu`. It says `Test: NAME ...` and `passed` or `FAILED`, and lines of `[SKIPPED]` between.
fn read(text: &str) -> Suite {
    let mut suite = Suite::default();
    let (mut family, mut said) = (String::new(), String::new());
    let mut name: Option<String> = None;
    for line in text.lines() {
        if let Some(rest) = line.trim_start().strip_prefix("Suite: ") {
            family = rest.trim().to_string();
            continue;
        }
        let mut rest = line;
        if let Some((_, test)) = line.split_once("Test: ") {
            let (test, behind) = test.split_once(" ...").unwrap_or((test, ""));
            (name, rest) = (Some(format!("{family}.{}", test.trim())), behind);
            said.clear();
        }
        said.push_str(rest);
        said.push('\n');
        // A line of a test may say [FAILED] of a command which is repeated.
        let has_failed = rest.trim() == "FAILED";
        let is_over = rest.starts_with("passed") || has_failed;
        let Some(test) = name.take_if(|_| is_over) else { continue };
        if has_failed {
            suite.failed.insert(test, said.clone());
        } else if let Some(why) = said.lines().find(|line| line.contains("[SKIPPED]")) {
            let why = why.split_once("[SKIPPED]").map_or("", |(_, why)| why.trim());
            suite.skipped.insert(test, why.to_string());
        } else {
            suite.passed.insert(test);
        }
    }
    suite
}

/// Tests in a list, one in a line, with a reason behind it.
fn listed(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_whitespace().next().expect("it has a name").to_string()).collect()
}

#[test]
fn the_tests_of_libiscsi_fail_nowhere_and_skip_only_what_a_volume_does_not_have() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB"]);
    let uri = uri(&cluster, 1, "disk");
    let begun = Instant::now();
    // Both of its outputs in the order in which it writes them.
    let line = format!("exec stdbuf -o0 iscsi-test-cu --dataloss --verbose '{uri}' '{uri}' 2>&1");
    let (_, text) = tried("sh", &["-c", &line], SUITE);
    let suite = read(&text);
    let skipped: BTreeSet<String> = suite.skipped.keys().cloned().collect();
    assert!(begun.elapsed() < SUITE, "it hangs; it said last: {}", &text[text.len().saturating_sub(2000)..]);
    let failed: BTreeSet<String> = suite.failed.keys().cloned().collect();
    assert_eq!(failed, listed(include_str!("iscsi/wrong.txt")), "{:#?}", suite.failed);
    assert_eq!(skipped, listed(include_str!("iscsi/skipped.txt")), "{:#?}", suite.skipped);
    assert!(text.contains("Run Summary"), "it did not end: {text}");
    assert!(suite.passed.len() > 180, "{} passed: {text}", suite.passed.len());
}

#[test]
fn qemu_copies_an_image_to_a_volume_and_back() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "32MiB"]);
    let uri = uri(&cluster, 1, "disk");
    let folder = tempfile::tempdir().expect("there is room");
    let [before, after] = ["before", "after"].map(|name| folder.path().join(name).display().to_string());
    let mut bytes = vec![0; 32 << 20];
    let mut state = 7u64;
    // Every other mebibyte has data.
    for (at, byte) in bytes.iter_mut().enumerate().filter(|(at, _)| (at >> 20) % 2 == 0) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at as u64 | 1);
        *byte = (state >> 56) as u8;
    }
    fs::write(&before, &bytes).expect("there is room");
    run(Command::new("qemu-img").args(["convert", "-n", "-f", "raw", "-O", "raw", &before, &uri]));
    run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", "raw", &uri, &after]));
    assert!(fs::read(&after).expect("it was written") == bytes, "it is another one");
    run(Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw", &before, &uri]));
}

#[test]
fn each_node_is_a_path_and_the_owner_the_active_one() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "32MiB", "--copies", "3"]);
    let first = uri(&cluster, 1, "disk");
    let limit = Duration::from_secs(20);
    let (listed, text) = tried("iscsi-ls", &[&format!("iscsi://{}", cluster.address(2))], limit);
    assert!(listed, "{text}");
    for node in 1..=3 {
        assert!(text.contains(&cluster.address(node).to_string()), "node {node} is a portal: {text}");
    }
    let reads = |cluster: &Cluster, node| {
        tried("qemu-io", &["-r", "-f", "raw", "-c", "read 0 4k", &at(cluster, &first, node)], limit)
    };
    assert!(reads(&cluster, 1).0, "{}", reads(&cluster, 1).1);
    let (_, text) = tried("iscsi-inq", &[&first], limit);
    assert!(text.contains("LOADLINE") && text.contains("VOLUME"), "{text}");
    // Nodes that do not own it stand by. libiscsi asks first whether the unit is ready.
    for node in [2, 3] {
        let (answered, text) = reads(&cluster, node);
        assert!(!answered && text.contains("NOT READY"), "{text}");
    }
    let target = first.split('/').nth(3).expect("it has a target");
    sessions_and_reservations_are_shown(&cluster, target);
    // Node 2 becomes the owner, and node 1 stands by.
    uri(&cluster, 2, "disk");
    assert!(reads(&cluster, 2).0, "{}", reads(&cluster, 2).1);
    assert!(!reads(&cluster, 1).0);
    // It dies, and another one is the owner.
    cluster.kill(2);
    let begun = Instant::now();
    while !reads(&cluster, 1).0 && !reads(&cluster, 3).0 {
        assert!(begun.elapsed() < limit, "no node has taken it over");
        std::thread::sleep(Duration::from_millis(50));
    }
    let volume = shown(&cluster);
    assert_eq!(
        volume["reservations"]["registrations"][0]["key"], "0x0000000000000def",
        "it survives the owner"
    );
    assert_eq!(volume["paths"]["unknown"][0]["node"], "node-2", "{volume}");
}

#[test]
fn commands_name_the_clients_that_they_disconnect_and_initiators_without_a_session_at_the_new_owner() {
    const NAME: &str = "iqn.2026-01.org.example:a";
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "32MiB"]);
    let attach = |node: &str| cluster.loadline(&["volume", "attach", "disk", "--node", node]);
    let first = "loadline volume access disk --initiator IQN";
    let said = attach("node-1");
    assert!(said.contains(first) && !said.contains("disconnected"), "{said}");

    // The name is kept in lower case, and what was given before is named.
    let secret = tempfile::NamedTempFile::new().expect("there is room");
    fs::write(secret.path(), "twelve bytes").expect("there is room");
    let access = ["volume", "access", "disk", "--initiator", "IQN.2026-01.org.Example:A"];
    let chap = ["--chap", "host", "--secret-file", secret.path().to_str().expect("it is text")];
    let said = cluster.loadline(&[&access[..], &chap].concat());
    assert!(
        said.contains(&format!("initiator {NAME} may use volume disk, and proves who it is by CHAP")),
        "{said}"
    );
    let said = cluster.loadline(&access);
    assert!(said.contains(NAME) && said.contains("it had to prove who it is by CHAP as host"), "{said}");
    assert!(!attach("node-1").contains(first), "an initiator is let in");

    let target = loadline_san_export::iscsi::name::name_of("disk");
    let log_in = |owner| {
        let mut session = Raw::log_in_as(NAME, cluster.address(owner), 1, Some(&target)).expect("it logs in");
        // It is a client once the loop has let it in.
        session.get_ready();
        session
    };
    let _sessions = (log_in(1), Nbd::connect(cluster.address(1), "disk").expect("it is served"));
    let (code, said) = cluster.try_loadline(&["volume", "detach", "disk"]);
    let clients = format!("initiator {NAME} and 1 other client");
    assert!(code == 2 && said.contains(&format!("is used by {clients}: stop its clients first")), "{said}");
    let said = attach("node-2");
    assert!(said.contains(&format!("disconnected: {clients}\n")), "{said}");
    assert!(said.contains(&format!("without a session at node-2: {NAME} (at node-1). If")), "{said}");

    let _session = log_in(2);
    let said = attach("node-2");
    assert!(said.contains(&format!("disconnected: initiator {NAME}\n")), "{said}");
    assert!(!said.contains("without a session"), "{said}");
    let _session = log_in(2);
    let said = cluster.loadline(&["volume", "detach", "disk", "--force"]);
    assert!(said.contains(&format!("volume disk is detached; disconnected: initiator {NAME}")), "{said}");
}

/// A write of one block of 512 bytes.
const WRITE: [u8; 10] = [0x2a, 0, 0, 0, 0, 8, 0, 0, 1, 0];
/// A service action of PERSISTENT RESERVE OUT.
const PREEMPT_AND_ABORT: u8 = 5;
/// Status codes.
const CHECK_CONDITION: u8 = 0x02;
const RESERVATION_CONFLICT: u8 = 0x18;

fn shown(cluster: &Cluster) -> serde_json::Value {
    serde_json::from_str(&cluster.loadline(&["volume", "show", "disk", "--json"])).expect("it is JSON")
}

const NAME: &str = "iqn.2026-01.org.example:test";

/// What owns the volume, as a node knows it.
fn owner(cluster: &Cluster, node: u8) -> String {
    let shown: serde_json::Value =
        serde_json::from_str(&cluster.http(node, "/v1/volumes/disk")).expect("it is JSON");
    shown["owner"].as_str().unwrap_or_default().to_string()
}

#[test]
fn an_initiator_gets_its_volume_where_it_has_a_session_when_a_node_has_taken_over_where_it_has_none() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "32MiB", "--copies", "2", "--at", "node-1"]);
    let uri = uri(&cluster, 1, "disk");
    let target = uri.split('/').nth(3).expect("it has a target");
    // The node with the other copy takes over, and the initiator has a session with the third one.
    let volume = shown(&cluster);
    let has_copy = |node: u8| volume["replicas"].to_string().contains(&format!("\"node-{node}\""));
    let third = [2, 3].into_iter().find(|node| !has_copy(*node)).expect("there are two copies");
    let mut sessions = [1, third]
        .map(|node| Raw::log_in_as(NAME, cluster.address(node), 1, Some(target)).expect("it is let in"));
    sessions[0].get_ready();
    // Whether it reaches the owner is looked at because it has logged in: that is to be over.
    std::thread::sleep(Duration::from_secs(7));
    cluster.kill(1);
    sessions[1].get_ready();
    assert_eq!(owner(&cluster, third), format!("node-{third}"));
}

#[test]
fn what_a_fenced_initiator_has_begun_is_not_carried_out_whichever_node_hears_of_it() {
    let cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "32MiB", "--copies", "3"]);
    let uri = uri(&cluster, 1, "disk");
    let target = uri.split('/').nth(3).expect("it has a target");
    let log_in = |name: &str, node| {
        let name = format!("iqn.2026-01.org.example:{name}");
        Raw::log_in_as(&name, cluster.address(node), 1, Some(target)).expect("it is let in")
    };
    let (mut fenced, mut other) = (log_in("fenced", 1), log_in("other", 2));
    fenced.get_ready();
    assert!(!other.is_ready().expect("it is answered"), "it stands by");
    for (number, owner_hears) in [(1, true), (2, false)] {
        let (theirs, ours) = (2 * number, 2 * number + 1);
        let kept = if number == 1 { 0 } else { 3 };
        assert_eq!(fenced.reserve_out(0, 0, (0, theirs)).expect("it is answered"), 0, "it registers");
        assert_eq!(other.reserve_out(0, 0, (kept, ours)).expect("it is answered"), 0, "it registers");
        if number == 1 {
            assert_eq!(fenced.reserve_out(1, 5, (theirs, 0)).expect("it is answered"), 0, "it reserves");
        }
        // Its data is asked for, and does not come yet.
        let write = fenced.send_command(&WRITE, flag::WRITE, 512, &[]);
        let transfer = fenced.asked_for(write).expect("its data is asked for");
        if !owner_hears {
            cluster.signal(1, "STOP");
        }
        let preempted = other.reserve_out(PREEMPT_AND_ABORT, 5, (ours, theirs)).expect("it is answered");
        assert_eq!(preempted, 0, "it is confirmed");
        if !owner_hears {
            // Only by another owner, which has it.
            assert_ne!(owner(&cluster, 2), "node-1");
            cluster.signal(1, "CONT");
        }
        // The session may have ended.
        let _ = fenced.send_data(write, transfer, &[9; 512]);
        let mut owner = log_in("third", if owner_hears { 1 } else { 3 });
        if !owner_hears {
            cluster.loadline(&["volume", "attach", "disk", "--node", "node-3"]);
        }
        owner.get_ready();
        let read = owner.send_command(&[0x28, 0, 0, 0, 0, 8, 0, 0, 1, 0], flag::READ, 512, &[]);
        assert_eq!(owner.answer(read).expect("it is answered"), (0, vec![0; 512]), "nothing was written");
        if owner_hears {
            let write = fenced.send_command(&WRITE, flag::WRITE, 512, &[9; 512]);
            assert_eq!(fenced.answer(write).expect("it is answered").0, CHECK_CONDITION, "it is told");
            let write = fenced.send_command(&WRITE, flag::WRITE, 512, &[9; 512]);
            assert_eq!(fenced.answer(write).expect("it is answered").0, RESERVATION_CONFLICT);
        }
    }
}

/// HARDWARE ERROR, SET TARGET PORT GROUPS COMMAND FAILED: key and code.
const NOT_SET: (u8, u8, u8) = (4, 0x67, 0x0a);

#[test]
fn an_initiator_moves_the_volume_only_to_where_the_other_clients_of_its_owner_have_sessions() {
    let cluster = Cluster::start(2);
    cluster.loadline(&["volume", "create", "disk", "--size", "32MiB"]);
    let uri = uri(&cluster, 1, "disk");
    let target = uri.split('/').nth(3).expect("it has a target");
    let log_in = |name: &str, node| {
        let name = format!("iqn.2026-01.org.example:{name}");
        Raw::log_in_as(&name, cluster.address(node), 1, Some(target)).expect("it is let in")
    };
    let (mut other, mut first, mut second) = (log_in("other", 1), log_in("mover", 1), log_in("mover", 2));
    other.get_ready();
    first.get_ready();
    assert!(!second.is_ready().expect("it is answered"), "it stands by");
    assert_eq!(second.activate_standby().expect("it is answered"), Err(NOT_SET));
    assert_eq!(owner(&cluster, 2), "node-1");
    assert!(other.is_ready().expect("its session goes on"));
    let mut other = log_in("other", 2);
    assert!(!other.is_ready().expect("it is answered"), "it stands by");
    assert_eq!(second.activate_standby().expect("it is answered"), Ok(()));
    assert_eq!(owner(&cluster, 2), "node-2");
    other.get_ready();
}

/// An initiator has a session with the owner (node 1), and one with node 2, and reserves the volume, which goes on.
fn sessions_and_reservations_are_shown(cluster: &Cluster, target: &str) {
    let log_in = |node| Raw::log_in_as(NAME, cluster.address(node), 1, Some(target)).expect("it is let in");
    let (mut first, mut second) = (log_in(1), log_in(2));
    // A new session is first told that it is one.
    first.get_ready();
    assert_eq!(first.reserve_out(0, 0, (0, 0xabc)).expect("it is answered"), 0, "it registers");
    let status = first.reserve_out(1, 5, (0xabc, 0)).expect("it is answered");
    assert_eq!(status, 0, "it reserves: write exclusive, registrants only");
    let volume = shown(cluster);
    let path = |node: u8, state: &str| serde_json::json!({ "node": format!("node-{node}"), "portal": format!("{}:3260", cluster.address(node)), "state": state, "sessions": 1 });
    let paths =
        serde_json::json!([{ "initiator": NAME, "paths": [path(1, "active"), path(2, "stands_by")] }]);
    assert_eq!(volume["paths"]["initiators"], paths);
    assert_eq!((&volume["health"], &volume["note"]), (&"healthy".into(), &serde_json::Value::Null));
    let reservation = &volume["reservations"]["reservation"];
    assert_eq!(
        (&reservation["holder"], &reservation["kind"]),
        (&NAME.into(), &"write exclusive, registrants only".into())
    );
    let text = cluster.loadline(&["volume", "show", "disk"]);
    let lines = [
        "iscsi     2 sessions of 1 initiator",
        "reserved  write exclusive",
        "stands by",
        "0x0000000000000abc",
    ];
    lines.iter().for_each(|line| assert!(text.contains(line), "{line}: {text}"));
    let text = cluster.loadline(&["san", "status"]);
    assert!(text.contains("iSCSI: 2 sessions of 1 initiator with 1 volume; 1 volume reserved"), "{text}");
    // By a path that stands by, another key takes the reservation. At once the first path has lost it.
    assert!(!second.is_ready().expect("it is answered"), "it stands by");
    let mut writes = || {
        let number = first.send_command(&WRITE, flag::WRITE, 512, &[1; 512]);
        first.answer(number).expect("it is answered").0
    };
    assert_eq!(writes(), 0);
    assert_eq!(second.reserve_out(0, 0, (0, 0xdef)).expect("it is answered"), 0, "it registers");
    let preempt = (PREEMPT_AND_ABORT, 5, (0xdef, 0xabc));
    assert_eq!(second.reserve_out(preempt.0, preempt.1, preempt.2).expect("it is answered"), 0);
    // The first answer says that its registration was removed.
    assert_eq!((writes(), writes()), (CHECK_CONDITION, RESERVATION_CONFLICT));
    let again = second.reserve_out(1, 5, (0xdef, 0)).expect("it is answered");
    assert_eq!(again, 0, "what it has already it gets again");
    // One path is left. The note says so, and the volume stays healthy.
    drop(second);
    let begun = Instant::now();
    let text = loop {
        let text = cluster.loadline(&["san", "status"]);
        if text.contains("iSCSI: 1 session of") {
            break text;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the session has not ended: {text}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(text.contains(&format!("disk: one initiator has only one path ({NAME}, at node-1)")), "{text}");
    assert_eq!(shown(cluster)["health"], "healthy");
}
