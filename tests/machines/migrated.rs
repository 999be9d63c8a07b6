//! Machines that are migrated while they measure.

use crate::{Place, checked, study};

#[test]
fn machines_that_are_migrated_take_their_volumes_along_and_lose_no_write() {
    let place = Place::new();
    // There and back, while a node is gone, and with the node to which one has gone.
    let text = study(
        "faults = [{ at = \"2s\", do = \"migrate\", node = \"node-1\" },\n\
         { at = \"6s\", do = \"migrate\", node = \"node-2\", to = \"node-1\" },\n\
         { at = \"12s\", do = \"migrate\", node = \"node-1\", to = \"node-3\" },\n\
         { at = \"18s\", do = \"kill\", node = \"node-3\" }]\n\
         [fleet]\nnodes = 3\ndisk_size = \"16MiB\"\nmachine = {}\n[target]\nsan = { copies = 2 }",
    )
    .replace("measure = \"2s\"", "measure = \"40s\"");
    let said = place.run(&text, &[], &[]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report = place.report();
    let (blocks, bad) = checked(&report);
    assert!(blocks > 1000 && bad == 0, "{blocks} checked, {bad} bad");
    let events = report["steps"][0]["timeline"]["events"].as_array().unwrap();
    assert!(events.iter().all(|event| event["failed"].is_null()), "{events:#?}");
    let [first, second, third, kill] = events.as_slice() else { panic!("{events:#?}") };
    let went = |event: &serde_json::Value| -> Vec<(String, String)> {
        let machines = event["migrated"].as_array().expect("machines were migrated");
        let of = |machine: &serde_json::Value, name: &str| machine[name].as_str().unwrap().to_string();
        machines.iter().map(|machine| (of(machine, "worker"), of(machine, "to"))).collect()
    };
    let to = |workers: &[&str], node: &str| -> Vec<(String, String)> {
        workers.iter().map(|worker| (worker.to_string(), node.to_string())).collect()
    };
    assert_eq!(went(first), to(&["node-1/0"], "node-2"), "without a word of where, it is the next node");
    assert_eq!(went(second), to(&["node-1/0", "node-2/0"], "node-1"), "who came and who was there");
    assert_eq!(went(third), to(&["node-1/0", "node-2/0"], "node-3"));
    for event in [first, second, third] {
        assert_eq!(event["errors"], 0, "{event}");
        assert_eq!(event["moved"].as_array().unwrap().len(), 0, "nothing was started again: {event}");
        for machine in event["migrated"].as_array().unwrap() {
            let downtime = machine["downtime_ms"].as_f64().unwrap();
            assert!(downtime > 0.0 && downtime < 1e3 * machine["took_s"].as_f64().unwrap(), "{machine}");
        }
    }
    let mut gone: Vec<&str> =
        kill["moved"].as_array().unwrap().iter().map(|moved| moved["worker"].as_str().unwrap()).collect();
    gone.sort_unstable();
    assert_eq!(gone, ["node-1/0", "node-2/0", "node-3/0"], "a node takes the machines along that have come");
    assert!(said.out.contains("stood still for up to"), "{}", said.out);
}
