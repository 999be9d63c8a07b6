//! What is measured of servers whose behaviour is known: the figures, the findings and the searches have a right answer.

mod support;

use std::time::Duration;

use serde_json::Value;
use support::server::{Server, Serves, constant, exponential, uniform};
use support::{finish, number, run, signal, start};

const MS: Duration = Duration::from_millis(1);

/// The kinds of a result's findings.
fn findings(json: &Value) -> Vec<String> {
    let findings = json["findings"].as_array().expect("a list");
    findings.iter().map(|finding| finding["kind"].as_str().expect("a word").to_owned()).collect()
}

fn about(expected: f64, is: f64, within: f64, what: &str) {
    assert!((is / expected - 1.0).abs() <= within, "{what}: {is}, and {expected} is right");
}

/// Poisson arrivals at one server with exponential times (M/M/1): the response is exponential with rate mu - lambda.
#[test]
fn an_open_loop_at_one_server_gives_what_queueing_theory_says() {
    let server = Server::start(Serves::Queue(1, exponential(MS, 1)));
    let words = ["bench", &server.uri, "-p", "B4-T1-O256-W0-PR", "--rate", "500iops poisson", "--json", "-"];
    let json = run(words.iter().chain(&["--warm-up", "1s", "--for", "20s", "--seed", "1"])).json();
    about(500.0, number(&json, "total/iops"), 0.05, "IOPS");
    // 1 / (1000 - 500) s. Neighbours are alike, so of 10,000 I/Os a mean is known to some five per cent.
    about(2_000.0, number(&json, "total/latency_us/mean"), 0.25, "the mean");
    about(2_000.0 * 20f64.ln(), number(&json, "total/latency_us/p95"), 0.3, "p95");
}

/// Poisson arrivals at several servers that take the same time for each (M/D/c). At half their load hardly any I/O waits; at nine tenths
/// the mean wait is about half of what M/M/c has, by Erlang's formula.
#[test]
fn an_open_loop_at_several_servers_gives_what_queueing_theory_says() {
    let (servers, takes_s) = (4usize, 0.004);
    for (load, within) in [(0.5, 0.15), (0.9, 0.35)] {
        let server = Server::start(Serves::Queue(servers, constant(4 * MS)));
        let rate = load * servers as f64 / takes_s;
        let rate = format!("{rate}iops poisson");
        let words = ["bench", &server.uri, "-p", "B4-T1-O512-W0-PR", "--rate", &rate, "--json", "-"];
        let json = run(words.iter().chain(&["--warm-up", "1s", "--for", "15s", "--seed", "2"])).json();
        let offered = load * servers as f64;
        let terms: Vec<f64> = (0..=servers)
            .scan(1.0, |term, k| {
                *term *= if k == 0 { 1.0 } else { offered / k as f64 };
                Some(*term)
            })
            .collect();
        let last = terms[servers] / (1.0 - load);
        let waits = last / (terms[..servers].iter().sum::<f64>() + last);
        let wait_s = 0.5 * waits * takes_s / (servers as f64 * (1.0 - load));
        about(1e6 * (takes_s + wait_s), number(&json, "total/latency_us/mean"), within, "the mean");
    }
}

/// At one server with exponential times (M/M/1) one client after the other sees p95 at 3 ms; clients with a rate of 720 a second see it at
/// 11 ms. A criterion between the two is met in a closed loop only.
#[test]
fn a_criterion_that_only_a_closed_loop_meets_is_amber() {
    let server = Server::start(Serves::Queue(1, exponential(MS, 3)));
    let folder = tempfile::tempdir().unwrap();
    let study = folder.path().join("study.toml");
    let text = format!(
        "name = \"amber\"\nsuccess = [\"fleet >= 700 IOPS of 4K read under 5 ms at p95\"]\n\
         [target]\ndevices = [\"{}\"]\n[phases]\nwarm_up = \"1s\"\nmeasure = \"8s\"\ncool_down = \"0s\"\n[run]\nrepeats = 1\n\
         [[profile]]\nname = \"closed\"\nuse = \"B4-T1-O1-W0-PR\"\n\
         [[profile]]\nname = \"rate\"\nuse = \"B4-T1-O256-W0-PR\"\nrate = \"720iops poisson\"\n",
        server.uri
    );
    std::fs::write(&study, text).unwrap();
    let out = folder.path().join("run");
    let said = run(["run", study.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
    assert!(said.out.contains("Met in a closed loop only: fleet >= 700 IOPS"), "{}", said.out);
    assert!(said.out.contains("of 720 IOPS offered (rate)"), "{}", said.out);
    let report = run(["report", out.to_str().unwrap(), "--no-files", "--json"]).json();
    assert_eq!(report["verdict"]["closed_loop_only"], true);
}

/// One in two hundred takes 200 ms: p99 is 1 ms, and a limit of it is not passed.
#[test]
fn a_stop_condition_on_a_percentile_is_not_one_on_the_slowest() {
    let mut count = 0;
    let server = Server::start(Serves::Each(Box::new(move |_| {
        count += 1;
        if count % 200 == 0 { 200 * MS } else { MS }
    })));
    let words = ["bench", &server.uri, "-p", "B4-T1-O8-W0-PR", "--stop-if", "p99>50ms", "--json", "-"];
    let said = run(words.iter().chain(&["--warm-up", "1s", "--for", "5s"]));
    let json = said.json();
    assert!(json["stopped"].is_null(), "{}", said.err);
    assert_eq!(number(&json, "window_s"), 5.0);
}

#[test]
fn a_level_that_changes_and_a_stall_are_findings_of_a_bench() {
    let slower =
        Server::start(Serves::Each(Box::new(
            |since| {
                if since > Duration::from_secs(12) { 8 * MS } else { 2 * MS }
            },
        )));
    let silent = Server::start(Serves::Each(Box::new(|since| {
        let silence = Duration::from_secs(8)..Duration::from_secs(11);
        if silence.contains(&since) { silence.end - since } else { 2 * MS }
    })));
    let steady = Server::start(Serves::Each(constant(2 * MS)));
    let bench = |server: &Server| {
        let words = ["bench", &server.uri, "-p", "B4-T1-O4-W0-PR", "--json", "-"];
        start(words.iter().chain(&["--warm-up", "1s", "--for", "20s"]))
    };
    let all = [&slower, &silent, &steady].map(bench);
    let [slower, silent, steady] = all.map(|child| finish(child, Duration::from_secs(60)));
    assert!(
        findings(&slower.json()).iter().any(|kind| kind == "level-change"),
        "{:?}",
        findings(&slower.json())
    );
    assert_eq!(slower.code, Some(3), "{}", slower.err);
    assert!(findings(&silent.json()).iter().any(|kind| kind == "stall"), "{}", silent.out);
    assert_eq!(silent.code, Some(3), "{}", silent.err);
    let calm = findings(&steady.json());
    assert!(!calm.iter().any(|kind| kind == "level-change" || kind == "stall"), "{calm:?}");
}

/// The figures until then are reported, and marked.
#[test]
fn a_load_keeps_what_it_measured_when_a_connection_ends_and_on_ctrl_c() {
    for ctrl_c in [false, true] {
        let mut random = uniform(7);
        let server = Server::start(Serves::Each(Box::new(move |_| MS.mul_f64(1.0 + random()))));
        let words = ["bench", &server.uri, "-p", "B4-T4-O2-W0-PR", "--warm-up", "0s", "--for", "60s"];
        let child = start(words.iter().chain(&["--json", "-"]));
        std::thread::sleep(Duration::from_millis(3_700));
        match ctrl_c {
            true => signal(child.id(), "INT"),
            false => server.cut_one(),
        }
        let said = finish(child, Duration::from_secs(20));
        assert_eq!(said.code, Some(if ctrl_c { 130 } else { 1 }), "{}", said.err);
        let json = said.json();
        let seconds = number(&json, "window_s");
        assert!((1.0..=4.0).contains(&seconds), "{seconds}");
        // Eight outstanding, 1.5 ms each, and what the machine adds.
        let iops = number(&json, "total/iops");
        assert!((1_500.0..5_600.0).contains(&iops), "{iops}");
        assert!(findings(&json).iter().any(|kind| kind == "stopped"), "{}", said.out);
        assert!(
            json["stopped"].as_str().is_some_and(|why| why.contains(&format!("{seconds} s"))),
            "{}",
            said.out
        );
    }
}

/// An I/O that is slow is counted, also if it comes back in the second that is not whole any more.
#[test]
fn what_came_back_late_is_in_the_figures_of_a_load_that_is_stopped() {
    let server = Server::start(Serves::Each(Box::new(|since| {
        let silence = Duration::from_millis(2_300)..Duration::from_millis(3_300);
        if silence.contains(&since) { silence.end - since } else { MS }
    })));
    let words =
        ["bench", &server.uri, "-p", "B4-T1-O4-W0-PR", "--warm-up", "0s", "--for", "60s", "--json", "-"];
    let child = start(words);
    std::thread::sleep(Duration::from_millis(3_800));
    signal(child.id(), "INT");
    let said = finish(child, Duration::from_secs(20));
    assert_eq!(said.code, Some(130), "{}", said.err);
    let json = said.json();
    let (seconds, slowest) = (number(&json, "window_s"), number(&json, "total/latency_us/max"));
    assert!(seconds <= 3.0 && slowest > 900_000.0, "{seconds} s, {slowest} us");
}
