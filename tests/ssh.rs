//! Fleets on hosts that SSH reaches: real servers of OpenSSH, each in a network namespace. These tests need root, `ip` and `sshd`
//! (`./dev setup --tests`).

#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/netns.rs"]
mod netns;
#[path = "ssh/hosts.rs"]
mod ssh_hosts;
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use ssh_hosts::{Hosts, LIMIT, hosts};
use support::{eventually, finish, signal};

/// A study of a second that writes and reads.
const QUICK: &str = "name = \"ssh\"\nprofiles = [\"B4-T1-O4-W50-PR\"]\n[phases]\nwarm_up = \"0s\"\nmeasure = \"1s\"\n\
                     cool_down = \"0s\"\n[run]\nrepeats = 1\n";

fn node(name: &str, disks: &[&Path]) -> String {
    let disks = match disks {
        [] => String::new(),
        disks => format!("disks = {disks:?}\n"),
    };
    format!("[[fleet.node]]\nname = \"{name}\"\nssh = \"{name}\"\n{disks}")
}

/// A file of a host, of zeros.
fn disk(hosts: &Hosts, host: usize, mib: u64) -> PathBuf {
    let path = hosts.data(host).join(hosts.name("disk"));
    fs::write(&path, vec![0; (mib << 20) as usize]).unwrap();
    path
}

fn result(run: &Path) -> Value {
    let step = fs::read_dir(run.join("steps")).unwrap().flatten().next().expect("a step").path();
    serde_json::from_slice(&fs::read(step.join("result.json")).unwrap()).unwrap()
}

/// A loop device over a file, taken down when dropped.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Loop {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Loop(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_fleet_fills_and_measures_disks_that_are_named_for_each_host() {
    let Some(hosts) = hosts() else { return };
    let files: Vec<PathBuf> = (1..=3).map(|host| disk(&hosts, host, 8)).collect();
    let device = Loop::over(&files[0]);
    let study = hosts.study(&format!(
        "{QUICK}{}{}{}",
        node("h1", &[&device.0]),
        node("h2", &[&files[1]]),
        node("h3", &[&files[2]])
    ).replace("[run]", "[run]\n").replace("cool_down", "fill = true\ncool_down"));
    let plan = hosts.run(&["run", &study, "--plan"]);
    plan.refused(2, &["--destroy-data", "host h1 (h1)", "host h2 (h2)", "host h3 (h3)"]);
    for name in [&device.0, &files[1], &files[2]] {
        assert!(plan.out.contains(&format!("{} (8 MiB)", name.display())), "{}", plan.out);
    }
    hosts.run(&["run", &study]).refused(2, &["--destroy-data"]);
    assert!(fs::read(&files[1]).unwrap().iter().all(|byte| *byte == 0), "nothing is written without leave");

    let out = hosts.folder.join(hosts.name("run"));
    let said = hosts.run(&["run", &study, "--destroy-data", "--out", out.to_str().unwrap()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let result = result(&out);
    let workers = result["workers"].as_array().unwrap();
    let on: Vec<&str> = workers.iter().map(|worker| worker["worker"]["host"].as_str().unwrap()).collect();
    assert_eq!(on, ["h1", "h2", "h3"]);
    assert!(workers.iter().all(|worker| worker["lost"].is_null() && worker["figures"]["total"]["iops"].as_f64() > Some(0.0)));
    assert!(files.iter().all(|file| !fs::read(file).unwrap().iter().all(|byte| *byte == 0)), "each was filled");
    (1..=3).for_each(|host| hosts.is_left_clean(host));
}
