//! The page of a real run, in a real browser: `studies/files.toml`, healthy and cut short, and against an earlier run.

#[path = "support/browser.rs"]
mod browser;
mod support;

use std::time::Duration;

use browser::shown;
use serde_json::Value;
use support::{finish, folder, run, start};

/// How long the earlier run may take once the other one has ended.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_page_of_a_real_run_shows_every_figure_as_it_is_and_compares_with_an_earlier_run() {
    let folder = folder();
    let place = |name: &str| folder.path().join(name).display().to_string();
    let study = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/files.toml");
    // An earlier run, of another length: the loads are the same, and the page says that the phases are not. No figure has to be
    // right here, so that both run at the same time.
    let text = std::fs::read_to_string(study).unwrap();
    std::fs::write(folder.path().join("short.toml"), text.replace("measure = \"3s\"", "measure = \"1s\""))
        .unwrap();
    let before = start(["run", &place("short.toml"), "--out", &place("before")]);
    let said = run(["run", study, "--out", &place("now")]);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    assert!(said.out.contains("now/report/report.html"), "it says where its page is: {}", said.out);
    let said = finish(before, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);

    let said = run(["report", &place("now"), "--baseline", &place("before")]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("compared with the run that --baseline names"), "{}", said.out);
    let page = shown(&folder.path().join("now/report/report.html"), &[]);
    let sections: Vec<&str> = page["sections"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(
        sections,
        [
            "verdict",
            "load-line",
            "validity",
            "orientation",
            "loads",
            "timeline",
            "heat",
            "percentiles",
            "spread",
            "sweep",
            "baseline",
            "inventory"
        ]
    );
    assert!(page["figures"].as_u64().unwrap() > 100, "{page}");
    assert!(page["charts"].as_u64().unwrap() >= 6 && page["tables"].as_u64().unwrap() >= 12, "{page}");
    let text = page["text"].as_str().unwrap();
    assert!(text.contains("all 8 steps are complete"), "{text}");
    assert!(
        text.contains("8K random 70/30 read/write, 4 outstanding\nB8-T1-O4-W30-PR"),
        "name and code: {text}"
    );
    assert!(
        text.contains("Answer") && text.contains("How sure") && text.contains("What limits it"),
        "{text}"
    );
    assert!(said.out.starts_with("answer "), "the answer comes first: {}", said.out);
    assert!(text.contains("B4-paced") && text.contains("of configuration"), "{text}");
    // What loads compare with is marked as orientation, or the reason is given.
    let compares = text.contains("data sheets state what a new drive does") && text.contains(" for: ");
    assert!(compares || text.contains("Not compared: "), "{text}");
    assert_eq!(page["missing"], serde_json::json!([]));

    run(["report", &place("now"), "--baseline", &place("nowhere")]).refused(2, &["--baseline", "nowhere"]);
    run(["report", &place("now"), "--baseline", &place("now")]).refused(2, &["the same run"]);
}
