//! Storage policies of the run's own cluster, each in several conditions, under a load that checks every block.

mod support;

use std::fs;

use serde_json::Value;
use support::run;

const STUDY: &str = r#"
name = "policies"
asks = "What do stripes cost?"
profiles = ["B4-T1-O4-W100-PR"]
[fleet]
nodes = 3
disk_size = "16MiB"
when_node_is_gone = "rest"
[phases]
warm_up = "1s"
measure = "2s"
cool_down = "0s"
[[policy]]
name = "one"
san = { copies = 2, log = "32MiB" }
[[policy]]
name = "four"
san = { copies = 2, stripes = 4, log = "32MiB" }
[[condition]]
name = "healthy"
[[condition]]
name = "down"
do = [{ do = "kill", node = "node-3" }]
[run]
repeats = 1
verify = true
"#;

#[test]
fn policies_have_volumes_of_their_own_and_workers_of_a_lost_node_may_rest() {
    let folder = tempfile::tempdir().unwrap();
    let study = folder.path().join("policies.toml");
    fs::write(&study, STUDY).unwrap();
    let out = folder.path().join("run");
    let said = run(["run", study.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report: Value = serde_json::from_slice(&fs::read(out.join("report/report.json")).unwrap()).unwrap();
    let steps = report["steps"].as_array().unwrap();
    let is = |step: &Value, policy: &str, condition: &str| {
        (&step["policy"], &step["condition"]) == (&Value::from(policy), &Value::from(condition))
    };
    let of = |policy, condition| steps.iter().find(|step| is(step, policy, condition)).unwrap();
    assert_eq!(of("one", "healthy")["workers"], 3);
    assert_eq!(of("one", "down")["workers"], 2, "the worker of the lost node rests");
    assert_eq!(steps.iter().map(|step| step["lost_workers"].as_u64().unwrap()).sum::<u64>(), 0);
    // What is stored is what the policy says: each write is logged by two copies, whatever the stripes.
    for policy in ["one", "four"] {
        let storage = &of(policy, "healthy")["storage"];
        let bytes = |name: &str| storage[name].as_f64().unwrap();
        let times = bytes("log_bytes_per_s") / bytes("front_write_bytes_per_s");
        assert!((2.2..2.4).contains(&times), "{policy}: {times} bytes logged for each written, of {storage}");
    }
    let verified = said.out.lines().find(|line| line.starts_with("verified:")).unwrap();
    assert!(verified.contains(" 0 lost, 0 corrupt, 0 foreign, 0 unreadable"), "{verified}");
    let rows: Vec<String> = (report["conditions"].as_array().unwrap().iter())
        .map(|row| {
            format!("{} {}", row["load"].as_str().unwrap(), row["conditions"].as_array().unwrap().len())
        })
        .collect();
    let load = "B4-T1-O4-W100-PR";
    let wanted = ["healthy", "down", "one", "four"].map(|within| format!("{load}, {within} 2"));
    assert_eq!(rows, wanted, "policies within each condition, and conditions on each policy");
    let markdown = fs::read_to_string(out.join("report/report.md")).unwrap();
    assert!(markdown.contains("Asked: *What do stripes cost?*"), "{markdown}");
    assert!(markdown.contains("carries as many workers as before"), "{markdown}");
}
