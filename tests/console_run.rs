//! The page of a run while it runs, in a real browser; and how a run is ended from it.

#[path = "support/console.rs"]
mod driver;
mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use driver::Browser;
use serde_json::Value;
use support::{folder, loadline};

/// Long enough that the page is seen in the middle, and short enough that its end is.
const STUDY: &str = r#"
name = "watched"
[target]
san = { copies = 2, log = "32MiB" }
[fleet]
nodes = 2
workers_per_node = 1
disks_per_worker = 1
disk_size = "16MiB"
[phases]
warm_up = "1s"
measure = "MEASURE"
cool_down = "0s"
[[profile]]
use = "B4-T1-O2-W30-PR"
name = "mixed"
rate = "400iops"
[[profile]]
use = "B8-T1-O4-W0-PR"
name = "reads"
rate = "400iops"
[[profile]]
use = "B4-T1-O2-W0-PR"
name = "small-reads"
rate = "300iops"
[[profile]]
use = "B4-T1-O2-W100-PR"
name = "writes"
rate = "300iops"
[run]
repeats = 1
"#;

/// A run with a page.
struct Run {
    child: Child,
    says: BufReader<std::process::ChildStderr>,
    page: String,
    link: String,
}

impl Run {
    fn start(folder: &Path, name: &str, measure: &str) -> Run {
        let study = folder.join(format!("{name}.toml"));
        std::fs::write(&study, STUDY.replace("MEASURE", measure)).unwrap();
        let mut child = loadline()
            .args(["run", study.to_str().unwrap(), "--console", "--out"])
            .arg(folder.join(name))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it is built");
        let mut says = BufReader::new(child.stderr.take().unwrap());
        let mut all = String::new();
        let page = loop {
            let mut line = String::new();
            assert!(says.read_line(&mut line).unwrap() > 0, "it says where its page is: {all}");
            if let Some(page) = line.strip_prefix("page:") {
                break page.trim().to_owned();
            }
            all.push_str(&line);
        };
        let mut link = String::new();
        says.read_line(&mut link).unwrap();
        let link = link.trim().rsplit(' ').next().unwrap().to_owned();
        Run { child, says, page, link }
    }

    /// The status of an answer, and its content.
    fn ask(&self, request: &str) -> (u16, String) {
        let port = self.page.split(':').nth(2).and_then(|rest| rest.split('/').next()?.parse::<u16>().ok());
        let (status, _, content) = driver::ask(port.expect("it has one"), request, "", "");
        (status, content)
    }

    fn report_path(&self) -> String {
        format!("/runs/{}/report/report.html", self.id())
    }

    fn id(&self) -> &str {
        self.page.rsplit('/').next().unwrap()
    }

    /// Its exit code and what it said last.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.says.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

#[test]
fn a_run_is_seen_while_it_runs_and_its_page_becomes_its_report() {
    let folder = folder();
    let run = Run::start(folder.path(), "watched", "11s");
    // The link signs in, and leads to the page of the run.
    let mut browser = Browser::open("console_run.mjs", &run.link);
    let shown = browser.until("the page of the run", |shown| !shown["doing"].is_null());
    assert_eq!((&shown["path"], &shown["stops"]), (&run.report_path().into(), &true.into()), "{shown:#}");
    let shown = browser.until("figures of a second of both workers", |shown| {
        shown["charts"].as_u64() >= Some(3) && shown["workers"].as_array().is_some_and(|all| all.len() == 2)
    });
    let doing = shown["doing"].as_str().unwrap();
    assert!(doing.contains("step 1 of 4"), "{doing}");
    assert!(shown["progress"].as_str().unwrap().contains("0 of 4 steps"), "{shown:#}");
    assert!(shown["progress"].as_str().unwrap().contains("left"), "{shown:#}");
    let iops = shown["tiles"][0].as_str().unwrap();
    assert!(iops.chars().any(|c| ('1'..='9').contains(&c)), "the load is seen: {iops}");

    // It is the only run of its console: there is no list to lead to.
    assert_eq!(shown["all_runs"], Value::Null, "{shown:#}");

    // Files of the run, and no other ones.
    let study = std::fs::read_to_string(folder.path().join("watched/study.toml")).unwrap();
    assert_eq!(run.ask(&format!("GET /runs/{}/study.toml", run.id())), (200, study));
    for path in ["lock", "live.json", "..%2fwatched.toml", "steps/..%2fstudy.toml", "report/../study.toml"] {
        assert_eq!(run.ask(&format!("GET /runs/{}/{path}", run.id())).0, 404, "{path}");
    }
    for request in ["GET /runs/other", "GET /runs/other/study.toml", "GET /api/runs/other/stream"] {
        assert!(matches!(run.ask(request).0, 404 | 307), "{request}");
    }
    browser.then("look");

    // The cluster that the run has started has a page of its own.
    let offered =
        browser.until("the page of the cluster is offered", |shown| !shown["cluster_link"].is_null());
    assert!(offered["cluster_link"].as_str().unwrap().ends_with("/#/clusters/measured"), "{offered:#}");
    browser.then("cluster");
    let is_said = |shown: &Value, what: &str| {
        shown["cluster"]["state"].as_str().is_some_and(|text| text.contains(what))
    };
    let shown = browser.until("the cluster of the run", |shown| is_said(shown, "Healthy"));
    assert_eq!(shown["cluster"]["nodes"], 2, "{shown:#}");
    assert_eq!(shown["cluster"]["links"], serde_json::json!(["Clusters", "Run", "New study"]), "{shown:#}");

    let begun = |shown: &Value, what: &str| shown["begun"].as_str().is_some_and(|text| text.contains(what));
    let shown = browser.until("three steps", |shown| begun(shown, "3 of 4 steps"));
    assert!(shown["verdict"][0].as_str().unwrap().contains("IOPS"), "{shown:#}");
    // A second has I/Os enough for the median alone.
    browser.then("median");
    let shown = browser.until("the present second of the last step", |shown| {
        shown["now"]["text"].as_str().is_some_and(|text| text.contains("now, step 4: "))
    });
    assert_eq!(shown["now"]["circles"], 1, "{shown:#}");
    let alternative = shown["now"]["alternative"].as_str().unwrap();
    assert!(
        alternative.contains("p50 against IOPS") && alternative.contains("now, step 4: "),
        "{alternative}"
    );
    let shown = browser.until("the end", |shown| begun(shown, "· finished"));
    assert!(begun(&shown, "4 of 4 steps"), "{shown:#}");
    let shown = browser.until("no second is the present one", |shown| shown["now"]["circles"] == 0);
    assert!(shown["now"]["text"].is_null() && !shown["now"]["alternative"].is_null(), "{shown:#}");
    // The run has stopped its cluster, which is neither healthy nor unknown then.
    let shown = browser.until("the cluster has ended", |shown| is_said(shown, "Ended"));
    assert!(is_said(&shown, "the run has stopped"), "{shown:#}");
    assert_eq!(shown["cluster"]["nodes"], 0, "{shown:#}");
    let (code, said) = run.end();
    assert!(matches!(code, Some(0 | 3)), "{said}");
    // The page stays as it was when the run ended.
    let shown = browser.until("what is shown when the console is gone", |shown| shown["doing"].is_null());
    assert_eq!(shown["verdict"].as_array().unwrap().len(), 3, "{shown:#}");
    // That is how it should be: nothing alarms, and the report is named.
    let shown = browser.until("that the console ended with the run", |shown| !shown["ended"].is_null());
    let report = folder.path().canonicalize().unwrap().join("watched/report/report.html");
    let ended = format!(
        "The run has finished, and its console ended with it. The report is below. As a file it is {}.",
        report.display()
    );
    assert_eq!((&shown["ended"], &shown["alarms"]), (&ended.into(), &serde_json::json!([])), "{shown:#}");
    browser.close();
    let left: Vec<_> =
        std::fs::read_dir(folder.path().join("watched")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_str().unwrap().contains("live")), "{left:?}");
}
