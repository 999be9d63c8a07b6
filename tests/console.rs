//! The console, in a real browser, of a real cluster that loses a node.

#[path = "support/console.rs"]
mod driver;
mod nodes;
mod support;

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use driver::{Browser, Console, LIMIT};
use nodes::Cluster;
use nodes::client::{Nbd, meanwhile};
use serde_json::Value;

/// A console of these clusters, on a port that was free.
fn start(clusters: &[&str]) -> Console {
    Console::start([&["--port", "0"], clusters].concat())
}

fn row<'v>(shown: &'v Value, table: &str, name: &str) -> Option<&'v Vec<Value>> {
    let rows = shown[table].as_array()?.iter().filter_map(Value::as_array);
    rows.into_iter().find(|row| row[0] == name)
}

#[test]
fn the_page_shows_what_a_cluster_does_and_never_green_or_0_of_what_is_not_known() {
    let mut cluster = Cluster::start(3);
    // A name that would be a tag, if it was not escaped.
    for (name, node) in [("calm", "node-1"), ("busy", "node-2")] {
        cluster.loadline(&["volume", "create", name, "--size", "32MiB"]);
        cluster.loadline(&["volume", "attach", name, "--node", node]);
    }
    let [first, second] = [0, 1].map(|node| format!("{}:7400", cluster.addresses()[node]));
    let console = start(&[&format!("<b>lab={first}"), &format!("other={second}")]);
    let mut browser = Browser::open("console.mjs", &console.url());
    browser.until("all nodes report", |shown| {
        shown["overall"] == "Healthy" && shown["nodes"][2][1] == "reports"
    });

    let mut client = Nbd::connect(cluster.addresses()[1], "busy").expect("it is served");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                client.write(number % 4096, 7).expect("it is written");
                number += 1;
            }
        });
        meanwhile(&stop, || look_at_a_loss(&mut cluster, &mut browser));
    });
    cluster.start_node(3);
    // The same for programs, a line each second.
    let lines = cluster.loadline(&["watch", "--json", "--for", "4s"]);
    let second = |line: &str| serde_json::from_str::<Value>(line).expect("it is JSON");
    let first = second(lines.lines().next().expect("there are some"));
    assert!(first["known"] == true || first["total"].is_null(), "what is not known is not 0: {first:#}");
    let last = second(lines.lines().last().expect("there are some"));
    assert!(
        last["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3) && last["known"] == true,
        "{last:#}"
    );
    let shown = browser.until("it is healthy again", |shown| shown["overall"] == "Healthy");
    assert!(shown["alerts"].as_array().is_some_and(Vec::is_empty) && shown["charts"] == 4, "{shown:#}");
    browser.close();
}

/// Node 2 serves the volume that is written to, node 1 the other one. Node 3 is killed.
fn look_at_a_loss(cluster: &mut Cluster, browser: &mut Browser) {
    let cell =
        |shown: &Value, table, name, column: usize| row(shown, table, name).map(|row| row[column].clone());
    // A node may be late by some seconds, where other tests run: it is unknown then, and the total is without it.
    browser.until("the busy volume is first, and its node has all of the load", |shown| {
        let busy = cell(shown, "nodes", "node-2", 3);
        shown["volumes"][0][0] == "busy"
            && shown["volumes"][0][5] != "0"
            && cell(shown, "volumes", "calm", 5).is_some_and(|cell| cell == "0")
            && cell(shown, "nodes", "node-1", 3).is_some_and(|cell| cell == "0")
            && busy.is_some()
            && busy == cell(shown, "nodes", "Total", 3)
    });

    cluster.kill(3);
    let shown = browser.until("a node that does not report is unknown", |shown| {
        cell(shown, "nodes", "node-3", 1)
            .is_some_and(|cell| cell.as_str().is_some_and(|of| of.starts_with("unknown since")))
            && cell(shown, "nodes", "Total", 1).is_some_and(|cell| cell == "without node-3")
            && shown["overall"] == "Degraded"
    });
    let lost = row(&shown, "nodes", "node-3").expect("it is there");
    assert!(lost[2..].iter().all(|cell| cell == "unknown"), "{lost:?}");
    let any_has = |list: &Value, what: &str| {
        list.as_array()
            .is_some_and(|all| all.iter().any(|one| one.as_str().is_some_and(|one| one.contains(what))))
    };
    assert!(any_has(&shown["why"], "node-3"), "{shown:#}");
    browser.until("it is an event", |shown| any_has(&shown["events"], "node-3 does not report"));
    browser.then("picture other");
    // Charts of a node, and of a volume over a longer time.
    browser.then("click node-2");
    browser.until("charts of a node", |shown| {
        shown["charted"] == "Node node-2, the last 15 minutes"
            && shown["charts"] == 3
            && shown["known"].as_u64() > Some(3)
    });
    browser.then("click busy");
    browser.then("span 3600");
    browser.until("charts of a volume", |shown| {
        shown["charted"] == "Volume busy, the last 1 hour" && shown["known"].as_u64() > Some(3)
    });
    browser.then("span 900");
    browser.then("click Show the whole cluster");
}

#[test]
fn a_page_that_slept_catches_up_and_seconds_that_no_one_has_seen_are_a_gap() {
    let cluster = Cluster::start(1);
    let console = start(&[&format!("lab={}:7400", cluster.addresses()[0])]);
    let mut browser = Browser::open("console.mjs", &console.url());
    let known = |shown: &Value| shown["known"].as_u64().unwrap_or(0);
    let shown = browser.until("it shows some seconds", |shown| known(shown) > 4);
    let before = known(&shown);

    // The page alone sleeps: it misses nothing.
    browser.then("freeze");
    let begun = Instant::now();
    let seconds_kept = || {
        let (_, _, json) = console.ask("GET /api/clusters/lab/past", "", "");
        serde_json::from_str::<Value>(&json).expect("it is JSON")["at"]
            .as_array()
            .expect("they are a list")
            .len()
    };
    while (seconds_kept() as u64) < before + 10 {
        assert!(begun.elapsed() < LIMIT, "the console goes on");
        std::thread::sleep(Duration::from_millis(200));
    }
    browser.then("wake");
    browser.until("it has what it missed", |shown| {
        known(shown) >= before + 10
            && shown["gaps"] == 0
            && shown["alerts"].as_array().is_some_and(Vec::is_empty)
    });

    // The computer sleeps, with the console. These seconds are the test: the page must not bridge them.
    browser.then("freeze");
    console.signal("STOP");
    std::thread::sleep(Duration::from_secs(6));
    browser.then("wake");
    browser.until("what it shows is old, and it says so", |shown| {
        shown["overall"] == "Unknown"
            && shown["alerts"][0].as_str().is_some_and(|of| of.contains("Nothing has come"))
    });
    console.signal("CONT");
    browser.until("the seconds that no one has seen are a gap", |shown| {
        shown["gaps"] == 1
            && shown["overall"] == "Healthy"
            && shown["alerts"].as_array().is_some_and(Vec::is_empty)
    });
    // How it looks is the other test's.
    drop(browser);
}

/// Kibibytes of the page's scripts, compressed, at most.
const SCRIPT_KIB: u64 = 250;

#[test]
fn the_script_of_the_page_stays_small() {
    let web = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web");
    let output = Command::new("node").args(["tests/size.mjs", "dist/console.html"]).current_dir(web).output();
    let output = output.expect("node is installed by ./dev setup");
    let bytes: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("it prints a number");
    assert!(bytes > 10 << 10 && bytes < SCRIPT_KIB << 10, "{bytes} bytes");
}

#[test]
fn events_are_listed_once_in_whatever_order_they_come() {
    let web = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web");
    let output = Command::new("node").arg("tests/events.mjs").current_dir(web).output();
    let output = output.expect("node is installed by ./dev setup");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_a_stranger_asks_is_refused_and_what_is_not_there_is_named() {
    let console = start(&["lab=127.0.0.1:9"]);
    let get = |path: &str, lines: &str| console.ask(&format!("GET {path}"), lines, "");
    assert_eq!(get("/", "").0, 200);
    // A page of another site, and a name that leads here.
    assert_eq!(get("/api/clusters", "Origin: http://evil.example\r\n").0, 403);
    assert_eq!(get("/api/clusters", "Host: evil.example\r\n").0, 403);
    let (status, _, answer) = get("/api/clusters/none/volumes", "");
    assert!(status == 404 && answer.contains("there are: lab"), "{answer}");
    let (status, _, answer) = get("/api/clusters/lab/volumes", "");
    assert!(status == 503 && answer.contains("no node of the cluster has answered yet"), "{answer}");
    for (path, says) in [
        ("nodes/node-1/past", "nothing is kept of a node 'node-1'"),
        ("volumes/a%2Fb/past?seconds=10", "nothing is kept of a volume 'a/b'"),
        ("past?seconds=-1", "invalid digit"),
    ] {
        let (status, _, answer) = get(&format!("/api/clusters/lab/{path}"), "");
        assert!((status == 404 || status == 400) && answer.contains(says), "{answer}");
    }
    assert_eq!(get("/none", "").0, 404);
    let (status, head, answer) = get("/api/openapi.json", "");
    assert!(status == 200 && answer.contains("/api/clusters/{name}/stream"), "{answer}");
    for header in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(head.contains(header), "{head}");
    }
    // A screen needs a terminal.
    let output = Command::new(env!("CARGO_BIN_EXE_loadline")).arg("watch").stdin(Stdio::null()).output();
    let output = output.expect("it is built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("loadline watch --json"), "{said}");
    // A second console on the port, names that are the same, and what is no address.
    let port = console.port.to_string();
    for (arguments, code, says) in [
        (vec!["--port", &port, "lab=127.0.0.1:9"], 1, "another console"),
        (vec!["--port", "0", "a=127.0.0.1:9", "a=127.0.0.2:9"], 2, "give each a name of its own"),
        (vec!["--port", "0", "lab=nowhere"], 2, "IP:PORT"),
        (vec!["--port", "0", "https://node-1:7400"], 2, "--access"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_loadline")).arg("console").args(&arguments).output();
        let output = output.expect("it is built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(says), "{arguments:?}: {said}");
    }
}
