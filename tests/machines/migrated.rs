//! Machines that are migrated while they measure.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Said, eventually, finish, signal};
use crate::{LIMIT, Place, checked, study};

#[test]
fn machines_that_are_migrated_take_their_volumes_along_and_lose_no_write() {
    let place = Place::new();
    // There and back, while a node is gone, and with the node to which one has gone.
    let text = study(
        "faults = [{ at = \"2s\", do = \"migrate\", node = \"node-1\" },\n\
         { at = \"5s\", do = \"migrate\", node = \"node-2\", to = \"node-1\" },\n\
         { at = \"8s\", do = \"migrate\", node = \"node-1\", to = \"node-3\" },\n\
         { at = \"12s\", do = \"kill\", node = \"node-3\" }]\n\
         [fleet]\nnodes = 3\ndisk_size = \"8MiB\"\ndisks_per_worker = 2\nmachine = { queues = 2, iothread = true }\n\
         [target]\nsan = { copies = 2 }",
    )
    .replace("measure = \"2s\"", "measure = \"26s\"");
    let said = place.run(&text, &[], &[]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report = place.report();
    let (blocks, bad) = checked(&report);
    assert!(blocks > 1000 && bad == 0, "{blocks} checked, {bad} bad");
    let events = report["steps"][0]["timeline"]["events"].as_array().unwrap();
    assert!(events.iter().all(|event| event["failed"].is_null()), "{events:#?}");
    let [first, second, third, kill] = events.as_slice() else { panic!("{events:#?}") };
    let went = |event: &Value| -> Vec<(String, String)> {
        let machines = event["migrated"].as_array().expect("machines were migrated");
        let of = |machine: &Value, name: &str| machine[name].as_str().unwrap().to_string();
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

/// A migration by order.
fn moved(place: &Place, words: &[&str]) -> Said {
    let mut command = place.command();
    finish(command.args(["fleet", "move", "run"]).args(words).spawn().unwrap(), LIMIT)
}

/// An order that migrates a machine of a run just now: it is given anew, there and back, if the machine has moved before that was seen.
fn being_migrated(place: &Place, run: &str) -> Child {
    let (mut from, mut to) = ("node-1", "node-2");
    for _ in 0..20 {
        let before = place.machines();
        let words = ["fleet", "move", run, "--worker", "node-1/0", "--to", to];
        let mut order = place.command().args(words).spawn().unwrap();
        while order.try_wait().unwrap().is_none() {
            if destination(place, &before).is_some() {
                return order;
            }
        }
        eventually("its former QEMU has ended", LIMIT, || place.machines().len() == before.len());
        (from, to) = (to, from);
    }
    panic!("no destination was seen");
}

/// A QEMU of a place that was not there before.
fn destination(place: &Place, before: &[u32]) -> Option<u32> {
    place.machines().into_iter().find(|process| !before.contains(process))
}

#[test]
fn machines_are_migrated_by_order_and_one_that_fails_leaves_its_machine_where_it_was() {
    let place = Place::new();
    moved(&place, &["--node", "node-1", "--to", "node-2"]).refused(2, &["no run is in progress in run"]);
    let text = study(
        "[fleet]\nnodes = 3\ndisk_size = \"16MiB\"\nmachine = {}\n[target.san]\ncopies = 2\naccess = \"nbd\"",
    )
    .replace("measure = \"2s\"", "measure = \"24s\"")
    .replace("repeats = 1", "repeats = 2");
    fs::write(place.path("study.toml"), text).unwrap();
    let mut command = place.command();
    let run = command.args(["run", "study.toml", "--out", "run"]).spawn().unwrap();
    eventually("the run takes orders", LIMIT, || place.path("run/orders.sock").exists());
    // It waits until the run measures.
    let said = moved(&place, &["--worker", "node-1/0", "--to", "node-2", "--json"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let answer = said.json();
    assert_eq!(
        (&answer["migrated"][0]["worker"], &answer["failed"]),
        (&Value::from("node-1/0"), &Value::Null)
    );
    let said = moved(&place, &["--node", "node-2", "--to", "node-3"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for worker in ["node-1/0", "node-2/0"] {
        assert!(said.out.contains(&format!("{worker} is on node-3 now")), "{}", said.out);
    }
    moved(&place, &["--node", "node-2", "--to", "node-3"]).refused(2, &["no machine measures on node-2"]);
    moved(&place, &["--node", "node-4", "--to", "node-3"])
        .refused(2, &["there is no node node-4", "node-1, node-2, node-3"]);
    moved(&place, &["--node", "node-3", "--to", "node-9"]).refused(2, &["there is no node node-9"]);
    moved(&place, &["--worker", "node-1/0", "--to", "node-3"])
        .refused(2, &["node-3 is where the machines are"]);
    moved(&place, &["--worker", "node-1/7", "--to", "node-3"]).refused(2, &["no worker node-1/7"]);
    // The destination dies.
    let before = place.machines();
    let mut command = place.command();
    let order =
        command.args(["fleet", "move", "run", "--worker", "node-1/0", "--to", "node-1"]).spawn().unwrap();
    eventually("a destination is there", LIMIT, || match destination(&place, &before) {
        Some(process) => {
            signal(process, "KILL");
            true
        }
        None => false,
    });
    let said = finish(order, LIMIT);
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.err.contains("node-1/0: the virtual machine was not migrated"), "{}", said.err);
    // And once more, to where it belongs.
    let said = moved(&place, &["--worker", "node-1/0", "--to", "node-1"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let said = finish(run, LIMIT);
    assert_eq!(said.code, Some(3), "a window in which people acted is doubtful: {}{}", said.out, said.err);
    let report = place.report();
    let (blocks, bad) = checked(&report);
    assert!(blocks > 1000 && bad == 0, "{blocks} checked, {bad} bad");
    // The next window begins with each machine on its own node again.
    assert_eq!((&report["complete"], &report["steps"][1]["timeline"]), (&Value::from(2), &Value::Null));
    let step = &report["steps"][0];
    let events = step["timeline"]["events"].as_array().unwrap();
    assert!(events.len() == 4 && events.iter().all(|event| event["by_hand"] == true), "{events:#?}");
    assert!(events[2]["failed"].as_str().is_some_and(|why| why.contains("was not migrated")), "{events:#?}");
    assert_eq!(step["lost_workers"], 0, "{}", said.err);
    assert!(!place.path("run/orders.sock").exists());
}

#[test]
fn a_run_that_is_stopped_while_a_machine_is_migrated_leaves_nothing() {
    let place = Place::new();
    let text = study("[fleet]\nnodes = 2\ndisk_size = \"16MiB\"\nmachine = {}\n[target.san]\ncopies = 2")
        .replace("measure = \"2s\"", "measure = \"300s\"");
    fs::write(place.path("study.toml"), text).unwrap();
    for (out, word) in [("interrupted", "INT"), ("killed", "KILL")] {
        let mut command = place.command();
        let run = command.args(["run", "study.toml", "--out", out]).spawn().unwrap();
        eventually("the run takes orders", LIMIT, || place.path(out).join("orders.sock").exists());
        eventually("the machines are there", LIMIT, || place.machines().len() == 2);
        let order = being_migrated(&place, out);
        eventually("its copy of a journal is there", LIMIT, || {
            !copies_of_memory(&place.path(out)).is_empty()
        });
        signal(run.id(), word);
        finish(run, LIMIT);
        eventually("every machine has ended", Duration::from_secs(30), || place.machines().is_empty());
        assert!(!finish(order, LIMIT).code.is_some_and(|code| code == 0 && word == "KILL"));
        if word == "KILL" {
            let mut command = place.command();
            let mut run = command.args(["run", "--resume", out]).spawn().unwrap();
            let mut has_ended = false;
            eventually("the run goes on, or it has ended", LIMIT, || {
                has_ended = run.try_wait().unwrap().is_some();
                has_ended || place.machines().len() == 2
            });
            if !has_ended {
                signal(run.id(), "INT");
            }
            let said = finish(run, LIMIT);
            assert_eq!(said.code, Some(130), "{}{}", said.out, said.err);
        }
        assert_eq!(copies_of_memory(&place.path(out)), [""; 0]);
    }
}

#[test]
fn a_keeper_that_is_killed_while_its_machine_is_migrated_leaves_nothing_in_the_folder_of_its_run() {
    let place = Place::new();
    let text = study("[fleet]\nnodes = 2\ndisk_size = \"16MiB\"\nmachine = {}\n[target.san]\ncopies = 2")
        .replace("measure = \"2s\"", "measure = \"15s\"");
    fs::write(place.path("study.toml"), text).unwrap();
    let mut command = place.command();
    let run = command.args(["run", "study.toml", "--out", "run"]).spawn().unwrap();
    eventually("the run takes orders", LIMIT, || place.path("run/orders.sock").exists());
    eventually("the machines are there", LIMIT, || place.machines().len() == 2);
    let before = place.machines();
    let mut command = place.command();
    let order = command.args(["fleet", "move", "run", "--node", "node-1", "--to", "node-2"]).spawn().unwrap();
    eventually("a destination is there", LIMIT, || destination(&place, &before).is_some());
    let keeper = parent(destination(&place, &before).expect("it was there a moment ago"));
    eventually("its copy of a journal is there", LIMIT, || !copies_of_memory(&place.path("run")).is_empty());
    signal(keeper, "KILL");
    assert_eq!(finish(order, LIMIT).code, Some(1));
    assert_ne!(copies_of_memory(&place.path("run")), [""; 0], "the run itself does not know of it");
    let said = finish(run, LIMIT);
    assert!(said.code.is_some_and(|code| code != 101), "{}", said.err);
    assert_eq!(copies_of_memory(&place.path("run")), [""; 0]);
}

fn parent(process: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").expect("it has a name").1;
    fields.split(' ').nth(1).expect("it has a parent").parse().unwrap()
}

/// Files of migrations that are left in a run's folder.
fn copies_of_memory(run: &Path) -> Vec<String> {
    let mut folders = vec![run.to_path_buf()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "migrated") {
                found.push(path.display().to_string());
            }
        }
    }
    found
}
