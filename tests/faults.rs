//! Nodes of the run's own cluster are killed, frozen and brought back in the middle of a window, under a load that checks every
//! block.

mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use support::{eventually, finish, nodes_in, run, signal, start};

const STUDY: &str = r#"
name = "faults"
profiles = ["B4-T1-O4-W50-PR"]
faults = [FAULTS]
[target]
san = { copies = 2 }
[fleet]
nodes = 3
disk_size = "16MiB"
[phases]
warm_up = "1s"
measure = "LENGTH"
cool_down = "1s"
[run]
repeats = 1
verify = true
"#;

/// Runs a study with these faults in a window of so long. Its report.
fn measured(folder: &Path, faults: &str, length: &str) -> Value {
    let study = folder.join("faults.toml");
    let text = STUDY.replace("FAULTS", faults).replace("LENGTH", length);
    fs::write(&study, text).unwrap();
    let run_folder = folder.join("run");
    let text = |path: &Path| path.to_str().unwrap().to_string();
    let said = run(["run", &text(&study), "--out", &text(&run_folder)]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    serde_json::from_slice(&fs::read(run_folder.join("report/report.json")).unwrap()).unwrap()
}

fn lost(report: &Value) -> (u64, u64) {
    let verify = &report["steps"][0]["verify"];
    let of = |name: &str| verify[name].as_u64().unwrap();
    (of("checked"), of("lost") + of("corrupt") + of("foreign") + of("unreadable"))
}

#[test]
fn a_node_is_killed_and_comes_back_in_one_window_and_its_timeline_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    // The worker may be out for 8 s, and what the rest carries then is taken from the second half of what is left: whole seconds.
    let faults =
        r#"{ at = "4s", do = "kill", node = "node-3" }, { at = "18s", do = "return", node = "node-3" }"#;
    let report = measured(folder.path(), faults, "32s");
    let (checked, bad) = lost(&report);
    assert!(checked > 1_000 && bad == 0, "{checked} checked, {bad} bad");
    let row = &report["faults"][0];
    let (kill, back) = (&row["events"][0], &row["events"][1]);
    assert_eq!(row["repeats"], 1, "{}", report["steps"][0]["findings"]);
    assert_eq!((kill["moved"].as_u64(), kill["errors"].as_u64()), (Some(1), Some(0)), "{kill}");
    let median = |figure: &Value| figure["median"].as_f64().unwrap_or_else(|| panic!("{kill}\n{back}"));
    assert!((0.0..10.0).contains(&median(&kill["detected_s"])), "{kill}");
    assert!((0.0..8.0).contains(&median(&kill["out_s"])), "its worker goes on elsewhere: {kill}");
    assert!((0.0..12.0).contains(&median(&back["redundant_s"])), "{back}");
    assert!(kill["iops_ratio"]["estimate"].as_f64().is_some_and(|ratio| ratio > 0.0), "{kill}");
    let moved = &report["steps"][0]["timeline"]["events"][0]["moved"][0];
    assert_eq!(moved["worker"], "node-3/0");
    assert!(["node-1", "node-2"].contains(&moved["to"][0].as_str().unwrap()), "{moved}");
    assert_eq!(report["steps"][0]["lost_workers"], 0, "a worker that was started again is not lost");
}

#[test]
fn somebody_elses_storage_is_harmed_by_the_users_commands_and_waited_for() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let study = folder.path().join("external.toml");
    let state = folder.path().join("state");
    // The stranger's storage: what is harmed is in a file, and it takes two looks to be in sync again.
    let text = format!(
        r#"
name = "external"
profiles = ["B4-T1-O1-W0-PR"]
faults = [{{ at = "1s", do = "kill", node = "san-2" }}, {{ at = "3s", do = "return", node = "san-2" }}]
[target.external]
nodes = ["san-1", "san-2"]
health = "test ! -e {state}.down"
[target.external.commands]
kill = "echo $LOADLINE_ACTION $NODE >> {state}; touch {state}.down"
return = "echo $LOADLINE_ACTION $NODE after $LOADLINE_WAS >> {state}; (sleep 1; rm {state}.down) > /dev/null 2>&1 &"
[fleet]
disk_size = "4MiB"
[phases]
warm_up = "1s"
measure = "8s"
cool_down = "0s"
[run]
repeats = 1
"#,
        state = state.display()
    );
    fs::write(&study, &text).unwrap();
    let out = folder.path().join("run");
    let words = ["run", study.to_str().unwrap(), "--out", out.to_str().unwrap()];
    // Its commands are run only if that is said, and are shown before.
    run(words).refused(2, &["--run-commands", "has 3"]);
    assert!(!state.exists() && !out.exists());
    let planned = run(words.iter().chain(&["--plan"])).out;
    assert!(
        planned.contains("kill: echo $LOADLINE_ACTION $NODE >>") && planned.contains("health: test"),
        "{planned}"
    );
    let said = run(words.iter().chain(&["--run-commands"]));
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    assert_eq!(fs::read_to_string(&state).unwrap(), "kill san-2\nreturn san-2 after kill\n");
    let report: Value = serde_json::from_slice(&fs::read(out.join("report/report.json")).unwrap()).unwrap();
    let events = &report["faults"][0]["events"];
    let redundant = events[1]["redundant_s"]["median"].as_f64().unwrap();
    assert!((0.9..3.0).contains(&redundant), "{events}");
    assert_eq!(events[0]["moved"], 0, "its nodes are not those of the workers");

    for (wrong, right, part) in [
        ("kill = \"", "freeze = \"", "there is no command for it; give one under commands, as kill"),
        ("node = \"san-2\" }, {", "node = \"san-3\" }, {", "there is no node san-3"),
        ("health = \"", "# \"", "this storage has no way to report that"),
        ("return = \"", "retrun = \"", "did you mean return"),
    ] {
        fs::write(&study, text.replacen(wrong, right, 1)).unwrap();
        let again = folder.path().join("again");
        let said = run(["run", study.to_str().unwrap(), "--out", again.to_str().unwrap()]);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains(part), "{part}: {}", said.err);
    }
}

#[test]
fn every_kind_of_fault_is_done_in_its_window_and_no_write_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let of = |at: u32, what: &str, node: u32| {
        // A cluster that has just lost a node takes some seconds to say how it is.
        let back = at + 7;
        format!(
            r#"{{ at = "{at}s", do = {what}, node = "node-{node}" }}, {{ at = "{back}s", do = "return", node = "node-{node}" }}"#
        )
    };
    let kinds =
        ["\"freeze\"", "\"cut\"", "\"fail-device\"", "{ slow-device = { by = \"3ms\" } }", "\"fill\""];
    let faults: Vec<String> = (0u32..).zip(kinds).map(|(n, what)| of(2 + 14 * n, what, 1 + n % 3)).collect();
    let report = measured(folder.path(), &faults.join(", "), "74s");
    let (checked, bad) = lost(&report);
    assert!(checked > 1_000 && bad == 0, "{checked} checked, {bad} bad");
    let step = &report["steps"][0];
    assert_eq!(report["faults"][0]["repeats"], 1, "{}", step["findings"]);
    let events = step["timeline"]["events"].as_array().unwrap();
    assert_eq!(events.len(), 10);
    let moved: Vec<usize> = events.iter().map(|event| event["moved"].as_array().unwrap().len()).collect();
    // A node that stands still loses its workers; and one that begins anew to have a new device.
    assert_eq!((moved[0], &moved[1..5]), (1, &[0, 0, 0, 0][..]));
    assert!(moved[5] > 0 && moved[6..] == [0; 4], "{moved:?}");
    assert_eq!(step["lost_workers"], 0, "{}", step["findings"]);
    assert!(events[0]["moved"][0]["out_s"].as_f64().is_some(), "{}", events[0]);
    for event in [&events[0], &events[2], &events[4]] {
        assert!(event["detected_s"].as_f64().is_some(), "a copy is missing: {event}");
    }
    assert!(events.iter().all(|event| event["errors"] == 0), "{events:?}");
}

#[test]
fn ctrl_c_in_the_middle_of_a_fault_leaves_nothing_running_and_the_run_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let study = folder.path().join("faults.toml");
    let faults =
        r#"{ at = "2s", do = "kill", node = "node-2" }, { at = "9s", do = "return", node = "node-2" }"#;
    fs::write(&study, STUDY.replace("FAULTS", faults).replace("LENGTH", "16s")).unwrap();
    let out = folder.path().join("run");
    let child = start(["run", study.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    eventually("the fault comes", Duration::from_secs(90), || {
        fs::read_to_string(out.join("events.jsonl")).is_ok_and(|text| text.contains("\"event\":\"killed\""))
    });
    signal(child.id(), "INT");
    let said = finish(child, Duration::from_secs(60));
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert_eq!(nodes_in(&out), 0, "no node is left");
    let said = run(["run", "--resume", out.to_str().unwrap()]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report: Value = serde_json::from_slice(&fs::read(out.join("report/report.json")).unwrap()).unwrap();
    let (checked, bad) = lost(&report);
    assert!(checked > 1_000 && bad == 0, "{checked} checked, {bad} bad");
    assert_eq!(report["faults"][0]["repeats"], 1, "{}", report["steps"][0]["findings"]);
}

#[test]
fn the_demo_loses_two_nodes_and_gets_them_back_without_losing_a_write() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let out = folder.path().join("run");
    let said = run(["demo", "--out", out.to_str().unwrap()]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report: Value = serde_json::from_slice(&fs::read(out.join("report/report.json")).unwrap()).unwrap();
    assert_eq!((report["complete"].as_u64(), report["conditions"].as_array().unwrap().len()), (Some(16), 4));
    for step in report["steps"].as_array().unwrap() {
        assert_eq!((step["errors"].as_u64(), step["lost_workers"].as_u64()), (Some(0), Some(0)), "{step}");
        let bad =
            ["lost", "corrupt", "foreign", "unreadable"].map(|what| step["verify"][what].as_u64().unwrap());
        assert_eq!(bad, [0; 4], "{}", step["label"]);
    }
    assert!(!out.join("san").exists(), "nothing is left but the results");
    assert!(fs::read_to_string(out.join("report/report.html")).unwrap().contains("</html>"));
}
