//! Studies of a cluster of the SAN that runs on hosts, with a fleet on the same hosts: servers of OpenSSH and nodes, in network
//! namespaces. These tests need root, `ip` and `sshd` (`./dev setup --tests`).

#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/etcd.rs"]
mod etcd;
#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/netns.rs"]
mod netns;
#[allow(dead_code, reason = "other fleets use the rest")]
#[path = "ssh/hosts.rs"]
mod ssh_hosts;
#[path = "ssh/san.rs"]
mod ssh_san;
#[path = "ssh/studies.rs"]
mod studies;
mod support;

use std::collections::BTreeSet;
use std::fs;

use ssh_hosts::{HOSTS, LIMIT, hosts};
use ssh_san::San;
use studies::{is_measured, json, places, results, study};
use support::{eventually, finish, signal};

#[test]
fn the_degraded_study_moves_the_workers_of_a_host_that_is_cut_off_and_leaves_nothing_behind() {
    let Some(hosts) = hosts() else { return };
    let san = San::start(&hosts);
    san.must(&["volume", "create", "of-others", "--size", "16MiB", "--log", "32MiB", "--copies", "2"]);
    let conditions = "[[condition]]\nname = \"healthy\"\n\
                      [[condition]]\nname = \"cut\"\ndo = [{ do = \"cut\", node = \"h4\" }]\nwait = \"1s\"\n\
                      [[condition]]\nname = \"killed\"\ndo = [{ do = \"kill\", node = \"h2\", force = true }]\nwait = \"1s\"\n";
    let (cut, open) = san.link_of(4);
    let commands = format!(
        "[target.san.commands]\nkill = {:?}\nreturn = {:?}\n[target.san.commands_here]\ncut = {cut:?}\nreturn = {open:?}",
        san.kill(),
        san.start_again(),
    );
    let study = hosts.study(&study(&san, conditions, &commands, "3s"));
    let plan = hosts.run(&["run", &study, "--plan"]);
    assert_eq!(plan.code, Some(0), "{}{}", plan.out, plan.err);
    for words in
        ["4 nodes: the run makes volumes there", "kill, on the node's host: ", "cut, on this machine: "]
    {
        assert!(plan.out.contains(words), "{words}\n{}", plan.out);
    }
    hosts.run(&["run", &study]).refused(2, &["--run-commands"]);
    let out = hosts.folder.join(hosts.name("run"));
    let said = hosts.run(&["run", &study, "--run-commands", "--out", out.to_str().unwrap()]);
    is_measured(&said);
    let steps = results(&out);
    assert_eq!(steps.len(), 3, "{}", said.err);
    let at = |step: usize, worker: &str| {
        let places = places(&steps[step]);
        places.into_iter().find(|(id, _)| id == worker).expect("it took part").1
    };
    for worker in 1..=HOSTS {
        assert_eq!(at(0, &format!("h{worker}/0")), format!("h{worker}"));
    }
    assert_ne!(at(1, "h4/0"), "h4", "its host is cut off");
    assert_eq!(at(1, "h2/0"), "h2");
    for worker in ["h2/0", "h4/0"] {
        assert!(!["h2", "h4"].contains(&at(2, worker).as_str()), "{worker}");
    }
    for step in &steps {
        for worker in step["workers"].as_array().unwrap() {
            assert!(
                worker["lost"].is_null() && worker["figures"]["total"]["iops"].as_f64() > Some(0.0),
                "{worker}"
            );
        }
        assert_eq!(step["figures"]["errors"], 0);
    }
    // Only what is not the run's is left, and all nodes serve again.
    assert_eq!(san.volumes(), ["of-others"]);
    assert!(json(&out.join("run.json"))["volumes"].is_null() && !out.join("faults.json").exists());
    (1..=HOSTS).for_each(|host| hosts.is_left_clean_but(host, "san serve"));
    eventually("all nodes run again", LIMIT, || san.alive() == HOSTS);
    san.must(&["volume", "delete", "of-others", "--confirm", "of-others"]);

    faults_in_a_window(&hosts, &san);
    an_interrupted_run(&hosts, &san);
    a_controller_that_dies_in_a_fault(&hosts, &san);
    ctrl_c_while_a_condition_is_entered(&hosts, &san);
    refusals(&hosts, &san);
}

/// A node is killed in a window, and comes back: its worker goes on at the node that has taken its volume over.
fn faults_in_a_window(hosts: &ssh_hosts::Hosts, san: &San) {
    let faults = "faults = [{ at = \"2s\", do = \"kill\", node = \"h3\" }, { at = \"7s\", do = \"return\", node = \"h3\" }]";
    let commands = format!("commands = {{ kill = {:?}, return = {:?} }}", san.kill(), san.start_again());
    let study = hosts.study(&study(san, faults, &commands, "14s"));
    let out = hosts.folder.join(hosts.name("run"));
    let said = hosts.run(&["run", &study, "--run-commands", "--out", out.to_str().unwrap()]);
    is_measured(&said);
    let step = results(&out).remove(0);
    let event = &step["timeline"]["events"][0];
    let moved = event["moved"].as_array().unwrap();
    assert_eq!(moved.len(), 1, "{event}");
    assert!(moved[0]["worker"] == "h3/0" && moved[0]["to"] != serde_json::json!(["h3"]), "{event}");
    assert!(moved[0]["started_s"].as_f64().is_some() && event["failed"].is_null(), "{event}");
    let (_, host) = places(&step).into_iter().find(|(id, _)| id == "h3/0").unwrap();
    assert_eq!(host, moved[0]["to"][0].as_str().unwrap(), "it ran where its volume was");
    assert_eq!(san.volumes(), [""; 0]);
}

/// A run that is interrupted keeps its volumes for --resume, says so, and removes them at its end.
fn an_interrupted_run(hosts: &ssh_hosts::Hosts, san: &San) {
    let study = hosts.study(&study(san, "", "", "3s").replace("repeats = 1", "repeats = 2"));
    let out = hosts.folder.join(hosts.name("run"));
    let child = hosts.loadline(&["run", &study, "--out", out.to_str().unwrap()]).spawn().unwrap();
    let events = || fs::read_to_string(out.join("events.jsonl")).unwrap_or_default();
    eventually("a step is complete", LIMIT, || events().contains("step_complete"));
    signal(child.id(), "INT");
    finish(child, LIMIT)
        .refused(130, &["loadline run --resume", "4 volumes of the run are left in the cluster"]);
    let left: BTreeSet<String> = san.volumes().into_iter().collect();
    assert!(left.len() == HOSTS && left.iter().all(|name| name.starts_with("run-")), "{left:?}");
    is_measured(&hosts.run(&["run", "--resume", out.to_str().unwrap()]));
    assert_eq!((results(&out).len(), san.volumes().len()), (2, 0));
}

/// A controller that is killed while a node is down has written down that the node is; the run that goes on brings it back first.
fn a_controller_that_dies_in_a_fault(hosts: &ssh_hosts::Hosts, san: &San) {
    let conditions = "[[condition]]\nname = \"killed\"\ndo = [{ do = \"kill\", node = \"h2\" }]\n";
    let commands = format!("commands = {{ kill = {:?}, return = {:?} }}", san.kill(), san.start_again());
    let study = hosts.study(&study(san, conditions, &commands, "2s").replace("repeats = 1", "repeats = 2"));
    let out = hosts.folder.join(hosts.name("run"));
    let mut child =
        hosts.loadline(&["run", &study, "--run-commands", "--out", out.to_str().unwrap()]).spawn().unwrap();
    let events = || fs::read_to_string(out.join("events.jsonl")).unwrap_or_default();
    eventually("a step is complete", LIMIT, || events().contains("step_complete"));
    signal(child.id(), "KILL");
    child.wait().unwrap();
    assert_eq!(json(&out.join("faults.json"))[0]["node"], "h2");
    let said = hosts.run(&["run", "--resume", out.to_str().unwrap(), "--run-commands"]);
    is_measured(&said);
    assert_eq!(results(&out).len(), 2, "{}", said.err);
    eventually("all nodes run again", LIMIT, || san.alive() == HOSTS);
    assert!(san.volumes().is_empty() && !out.join("faults.json").exists());
}

/// Ctrl-C while a run waits in a condition: the node comes back at once, and not when the wait is over.
fn ctrl_c_while_a_condition_is_entered(hosts: &ssh_hosts::Hosts, san: &San) {
    let conditions =
        "[[condition]]\nname = \"killed\"\ndo = [{ do = \"kill\", node = \"h3\" }]\nwait = \"10m\"\n";
    let commands = format!("commands = {{ kill = {:?}, return = {:?} }}", san.kill(), san.start_again());
    let study = hosts.study(&study(san, conditions, &commands, "2s"));
    let out = hosts.folder.join(hosts.name("run"));
    let child =
        hosts.loadline(&["run", &study, "--run-commands", "--out", out.to_str().unwrap()]).spawn().unwrap();
    eventually("the node is gone", LIMIT, || out.join("faults.json").exists() && san.alive() == HOSTS - 1);
    signal(child.id(), "INT");
    finish(child, LIMIT)
        .refused(130, &["undoing the faults of h3", "4 volumes of the run are left in the cluster"]);
    assert!(!out.join("faults.json").exists());
    eventually("all nodes run again", LIMIT, || san.alive() == HOSTS);
    for name in san.volumes() {
        san.must(&["volume", "detach", &name, "--force"]);
        san.must(&["volume", "delete", &name, "--confirm", &name]);
    }
}

/// Mistakes in a study are reported before the run makes anything.
fn refusals(hosts: &ssh_hosts::Hosts, san: &San) {
    let plain = study(san, "", "", "1s");
    is_measured(&hosts.run(&["doctor", "--study", &hosts.study(&plain)]));
    let plan = |text: &str| hosts.run(&["run", &hosts.study(text), "--plan"]);
    plan(&plain.replace("name = \"h2\"", "name = \"x2\""))
        .refused(2, &["it has no node x2", "h1, h2, h3, h4"]);
    plan(&plain.replace("\"32MiB\"\n[[", "\"900GiB\"\n[[")).refused(2, &["too little space in the cluster"]);
    plan(&plain.replace(&san.api(1), "https://10.77.0.2:1")).refused(1, &["10.77.0.2:1 does not answer"]);
    plan(&plain.replace(san.access().to_str().unwrap(), "/nothing")).refused(2, &["/nothing"]);
    let slow = "faults = [{ at = \"0s\", do = { slow-device = { by = \"5ms\" } }, node = \"h3\" }]";
    let said = hosts.run(&["run", &hosts.study(&study(san, slow, "", "2s")), "--out", &hosts.name("run")]);
    said.refused(2, &["h3 cannot cause faults in itself", "test_faults = true"]);
    assert_eq!(san.volumes(), [""; 0]);
}
