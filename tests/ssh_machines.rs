//! Workers that are virtual machines on hosts, with disks of a cluster of the SAN on the same hosts: they are migrated from host to host.
//! Servers of OpenSSH, nodes and QEMU run in network namespaces. These tests need root, `ip`, `sshd` and QEMU (`./dev setup --tests`).

#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/etcd.rs"]
mod etcd;
#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/netns.rs"]
mod netns;
#[allow(dead_code, reason = "other fleets use the rest")]
#[path = "ssh/hosts.rs"]
mod ssh_hosts;
#[allow(dead_code, reason = "studies without machines use the rest")]
#[path = "ssh/san.rs"]
mod ssh_san;
#[allow(dead_code, reason = "studies without machines use the rest")]
#[path = "ssh/studies.rs"]
mod studies;
mod support;

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use ssh_hosts::{HOSTS, LIMIT, hosts};
use ssh_san::San;
use studies::{is_measured, results, study};
use support::{eventually, finish, signal};

#[test]
fn machines_go_from_host_to_host_and_end_with_their_keepers() {
    let Some(hosts) = hosts() else { return };
    let san = San::start(&hosts);
    machines_go_from_host_to_host(&hosts, &san);
    machines_of_other_hosts_end_with_their_keepers(&hosts, &san);
}

/// A study whose workers are machines of the first hosts, so many, with volumes of two copies that they reach as local disks.
fn machines(san: &San, faults: &str, measure: &str, hosts: usize) -> String {
    let mut text = study(san, faults, "", measure)
        .replace("copies = 3\nleast = 1", "copies = 2")
        .replace("disk_size = \"32MiB\"", "disk_size = \"8MiB\"\nmachine = {}");
    for host in hosts + 1..=HOSTS {
        text = text.replace(&format!("[[fleet.node]]\nname = \"h{host}\"\nssh = \"h{host}\"\n"), "");
    }
    text
}

/// The machines that were migrated by an event, each with where it went.
fn went(event: &Value) -> Vec<String> {
    let of = |machine: &Value| format!("{} {}", machine["worker"], machine["to"]).replace('"', "");
    event["migrated"].as_array().unwrap().iter().map(of).collect()
}

/// Machines are migrated to other hosts while they measure, from there to others and back, and their volumes go with them. The next window
/// begins with each at home.
fn machines_go_from_host_to_host(hosts: &ssh_hosts::Hosts, san: &San) {
    let faults = "faults = [{ at = \"3s\", do = \"migrate\", node = \"h1\" },\n\
                  { at = \"6s\", do = \"migrate\", node = \"h2\", to = \"h3\" },\n\
                  { at = \"11s\", do = { pause-machine = { by = \"500ms\" } }, node = \"h3\" },\n\
                  { at = \"13s\", do = \"migrate\", node = \"h3\", to = \"h1\" }]";
    let text = machines(san, faults, "25s", 3).replace("repeats = 1", "repeats = 2");
    let out = hosts.folder.join(hosts.name("run"));
    let said = hosts.run(&["run", &hosts.study(&text), "--out", out.to_str().unwrap()]);
    is_measured(&said);
    let steps = results(&out);
    assert_eq!(steps.len(), 2, "{}", said.err);
    for step in &steps {
        let events = step["timeline"]["events"].as_array().unwrap();
        assert!(events.iter().all(|event| event["failed"].is_null()), "{events:#?}");
        assert_eq!(went(&events[0]), ["h1/0 h2"]);
        assert_eq!(went(&events[1]), ["h1/0 h3", "h2/0 h3"], "one goes on from the host to which it came");
        assert!(events[2]["stall_ms"].as_f64() >= Some(400.0), "the pause reaches it there: {}", events[2]);
        assert_eq!(went(&events[3]), ["h1/0 h1", "h2/0 h1", "h3/0 h1"], "one comes home");
        assert_eq!(step["figures"]["errors"], 0);
        for worker in step["workers"].as_array().unwrap() {
            assert!(worker["lost"].is_null(), "{worker}");
        }
    }
    assert_eq!(san.volumes(), [""; 0]);
    (1..=HOSTS).for_each(|host| hosts.is_left_clean_but(host, "san serve"));
}

/// The process on a host with these words in its command line.
fn process(hosts: &ssh_hosts::Hosts, host: usize, words: &[&str]) -> Option<u32> {
    let network = &hosts.network;
    let output = Command::new("ip").args(["netns", "pids", &network.name(host)]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |id: &u32| fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let is_it = |id: &u32| {
        let line = String::from_utf8_lossy(&line(id)).replace('\0', " ");
        words.iter().all(|word| line.contains(word))
    };
    text.split_whitespace().filter_map(|id| id.parse().ok()).find(is_it)
}

/// A machine on another host ends with its keeper at home, and with the process that received it there. One that crashes on its host is
/// started again.
fn machines_of_other_hosts_end_with_their_keepers(hosts: &ssh_hosts::Hosts, san: &San) {
    let faults = "faults = [{ at = \"25s\", do = \"crash-machine\", node = \"h3\" }]";
    let out = hosts.folder.join(hosts.name("run"));
    let study = hosts.study(&machines(san, faults, "60s", 3));
    let run = hosts.loadline(&["run", &study, "--out", out.to_str().unwrap()]).spawn().unwrap();
    eventually("the run takes orders", LIMIT, || out.join("orders.sock").exists());
    let moves = |worker: &str, to: &str| {
        let said = hosts.run(&["fleet", "move", out.to_str().unwrap(), "--worker", worker, "--to", to]);
        assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    };
    let ends = |host: usize, killed: u32| {
        signal(killed, "KILL");
        eventually("the machine has ended", Duration::from_secs(20), || {
            process(hosts, host, &["qemu", "-incoming"]).is_none()
        });
    };
    moves("h1/0", "h2");
    ends(2, process(hosts, 1, &["--name h1/0"]).expect("its keeper is at home"));
    moves("h2/0", "h1");
    ends(1, process(hosts, 1, &["--name h2/0", "--receive"]).expect("it was received"));
    let said = finish(run, LIMIT);
    is_measured(&said);
    let step = results(&out).remove(0);
    let lost = |worker: &Value| worker["lost"]["message"].as_str().map(str::to_string);
    let lost: Vec<_> = step["workers"].as_array().unwrap().iter().map(lost).collect();
    assert!(lost[0].is_some() && lost[2].is_none(), "{lost:?}");
    assert!(
        lost[1].as_ref().is_some_and(|why| why.contains("the connection to the host on which it ran ended")),
        "{lost:?}"
    );
    let moved = &step["timeline"]["events"].as_array().unwrap().last().unwrap()["moved"];
    assert!(moved[0]["worker"] == "h3/0" && moved[0]["out_s"].as_f64().is_some(), "{moved}");
    (1..=HOSTS).for_each(|host| hosts.is_left_clean_but(host, "san serve"));
}
