//! Fleets on hosts that SSH reaches: real servers of OpenSSH, each in a network namespace. These tests need root, `ip` and `sshd`
//! (`./dev setup --tests`).

#[path = "support/line.rs"]
mod line;
#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/netns.rs"]
mod netns;
#[path = "ssh/scale.rs"]
mod scale;
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

/// Runs a study to its end.
fn measured(hosts: &Hosts, study: &str) {
    let said = hosts.run(&["run", study, "--out", &hosts.name("run")]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
}

/// The results of a run, in the order of its steps; a step that was interrupted has none.
fn results(run: &Path) -> Vec<Value> {
    let steps = fs::read_dir(run.join("steps")).unwrap().flatten();
    let mut files: Vec<PathBuf> = steps.map(|step| step.path().join("result.json")).collect();
    files.retain(|file| file.exists());
    files.sort();
    files.iter().map(|file| serde_json::from_slice(&fs::read(file).unwrap()).unwrap()).collect()
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
    let study = hosts.study(
        &format!(
            "{QUICK}{}{}{}",
            node("h1", &[&device.0]),
            node("h2", &[&files[1]]),
            node("h3", &[&files[2]])
        )
        .replace("[run]", "[run]\n")
        .replace("cool_down", "fill = true\ncool_down"),
    );
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
    let result = results(&out).remove(0);
    let start = &result["start"];
    assert!(start["spread_ns"].is_u64() && start["clock_error_ns"].is_u64(), "{start}");
    let workers = result["workers"].as_array().unwrap();
    let on: Vec<&str> = workers.iter().map(|worker| worker["worker"]["host"].as_str().unwrap()).collect();
    assert_eq!(on, ["h1", "h2", "h3"]);
    assert!(workers.iter().all(|worker| worker["lost"].is_null() && worker["figures"]["total"]["iops"].as_f64() > Some(0.0)));
    assert!(
        files.iter().all(|file| !fs::read(file).unwrap().iter().all(|byte| *byte == 0)),
        "each was filled"
    );
    (1..=3).for_each(|host| hosts.is_left_clean(host));
}

#[test]
fn workers_on_hosts_are_virtual_machines_there_whose_first_program_comes_with_the_copy() {
    let Some(hosts) = hosts() else { return };
    let files: Vec<PathBuf> = (2..=3).map(|host| disk(&hosts, host, 8)).collect();
    let nodes = format!("{}{}", node("h2", &[&files[0]]), node("h3", &[&files[1]]));
    let study = hosts.study(&format!("{QUICK}[fleet]\nmachine = {{}}\n{nodes}"));
    let out = hosts.folder.join(hosts.name("run"));
    let said = hosts.run(&["run", &study, "--destroy-data", "--out", out.to_str().unwrap()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let result = results(&out).remove(0);
    for name in ["h2-0", "h3-0"] {
        let machine = &result["hosts"][name]["machine"];
        assert!(machine["start_to_first_io_ns"].as_u64() > Some(0), "{name}: {}", result["hosts"]);
    }
    let lost =
        result["workers"].as_array().unwrap().iter().filter(|worker| !worker["lost"].is_null()).count();
    assert_eq!(lost, 0, "{}", said.err);
    (2..=3).for_each(|host| hosts.is_left_clean(host));
}

#[test]
fn a_disk_in_use_or_named_twice_is_refused_with_its_host() {
    let Some(hosts) = hosts() else { return };
    let (one, two) = (disk(&hosts, 1, 4), disk(&hosts, 1, 4));
    let link = hosts.data(1).join(hosts.name("by-id"));
    std::os::unix::fs::symlink(&one, &link).unwrap();
    let twice = format!("[fleet]\nworkers_per_node = 2\n{}", node("h1", &[&one, &link]));
    let said = hosts.run(&["run", &hosts.study(&format!("{QUICK}{twice}")), "--plan", "--destroy-data"]);
    said.refused(2, &["host h1 (h1)", "are the same disk", one.to_str().unwrap(), link.to_str().unwrap()]);
    let _used = Loop::over(&two);
    let missing = hosts.data(2).join("nothing");
    let both = format!("{}{}", node("h1", &[&two]), node("h2", &[&missing]));
    let said = hosts.run(&["run", &hosts.study(&format!("{QUICK}{both}")), "--plan", "--destroy-data"]);
    said.refused(2, &["host h1 (h1)", "is behind /dev/loop", "host h2 (h2)", "does not exist"]);
}

#[test]
fn each_host_that_cannot_be_reached_is_named_and_says_what_to_do() {
    let Some(hosts) = hosts() else { return };
    let refusals = [
        ("silent", "does not answer"),
        ("closed", "and that sshd runs"),
        ("password", "ssh-copy-id password"),
        ("wrong-key", "ssh-copy-id wrong-key"),
        ("no-user", "has no such user"),
        ("wrong-host", "ssh-keygen -R"),
        ("unknown-host", "accept it once by hand: ssh unknown-host"),
        ("no-shell", "This account is not available"),
        ("other-machine", "loadline-sparc64"),
        ("full", "cannot write to"),
    ];
    let nodes: String = refusals.iter().map(|(name, _)| node(name, &[])).collect();
    let text = |nodes: &str| format!("{QUICK}{nodes}[target]\nfolder = \"{}\"\n", hosts.data(1).display());
    let said = hosts.run(&["run", &hosts.study(&text(&format!("{nodes}{}", node("h1", &[])))), "--plan"]);
    for (name, part) in refusals {
        let line = said.err.lines().find(|line| line.contains(&format!("host {name} ({name}): ")));
        assert!(line.is_some_and(|line| line.contains(part)), "{name}: {part}\n{}", said.err);
    }
    assert!(said.out.contains("host h1 (h1)"), "the others are asked all the same: {}", said.out);
    let direct = hosts.run(&["run", &hosts.study(&text(&node("no-forward", &[])))]);
    direct.refused(1, &["host no-forward (no-forward)", "AllowTcpForwarding", "listen ="]);
    hosts.is_left_clean(1);
}

#[test]
fn a_host_whose_shell_prints_is_measured_and_workers_can_connect_directly() {
    let Some(hosts) = hosts() else { return };
    let folder =
        format!("[target]\nfolder = \"{}\"\n[fleet]\ndisk_size = \"4MiB\"\n", hosts.data(1).display());
    // The other one is reached by another host.
    let talks = format!("{QUICK}{folder}{}{}", node("talks", &[]), node("jumped", &[]));
    measured(&hosts, &hosts.study(&talks));
    // A server without forwarding is enough then.
    let listen = format!("listen = \"0.0.0.0:0\"\n{}", node("no-forward", &[]));
    measured(&hosts, &hosts.study(&format!("{QUICK}{folder}{listen}")));
    hosts.is_left_clean(1);
}

/// A study of files on two hosts that goes on for a while.
fn long(hosts: &Hosts, nodes: &[&str], data: usize) -> String {
    let nodes: String = nodes.iter().map(|name| node(name, &[])).collect();
    hosts.study(&format!(
        "{}[fleet]\ndisk_size = \"4MiB\"\n{nodes}[target]\nfolder = \"{}\"\n",
        QUICK.replace("measure = \"1s\"", "measure = \"60s\""),
        hosts.data(data).display()
    ))
}

/// Workers that run on a host.
fn workers(hosts: &Hosts, host: usize) -> usize {
    hosts.processes(host).iter().filter(|line| line.contains(" worker ")).count()
}

#[test]
fn after_ctrl_c_and_after_the_death_of_the_controller_nothing_runs_on_a_host() {
    let Some(hosts) = hosts() else { return };
    for (name, ends) in [("INT", Some(130)), ("KILL", None)] {
        let out = hosts.folder.join(hosts.name("run"));
        let mut child = hosts
            .loadline(&["run", &long(&hosts, &["h2", "h3"], 2), "--out", out.to_str().unwrap()])
            .spawn()
            .unwrap();
        // Those of other tests run on these hosts too.
        eventually("this run's workers run on both hosts", LIMIT, || {
            fs::read_to_string(out.join("events.jsonl")).unwrap_or_default().matches("\"joined\"").count()
                == 2
        });
        assert!(workers(&hosts, 2) > 0 && workers(&hosts, 3) > 0);
        let token = fs::read_to_string(format!("/proc/{}/environ", child.id())).unwrap();
        assert!(!token.contains("LOADLINE_TOKEN"));
        assert!(hosts.processes(2).iter().all(|line| !line.contains("--token")), "every user reads it there");
        signal(child.id(), name);
        match ends {
            Some(code) => assert_eq!(finish(child, LIMIT).code, Some(code)),
            None => assert!(!child.wait().unwrap().success()),
        }
        for host in [2, 3] {
            eventually("no worker is left", Duration::from_secs(20), || hosts.processes(host).is_empty());
        }
        // Its files are kept for --resume, and named.
        for file in fs::read_dir(hosts.data(2)).unwrap().flatten() {
            if file.file_name().to_string_lossy().starts_with("loadline-") {
                fs::remove_file(file.path()).unwrap();
            }
        }
        hosts.is_left_clean(2);
    }
    // Those of other tests end too.
    eventually("no ssh to it is left", LIMIT, || {
        !hosts.processes(0).iter().any(|line| line.contains(" -- h2 "))
    });
}

#[test]
fn a_run_on_hosts_that_was_stopped_is_resumed_with_its_files_and_removes_them() {
    let Some(hosts) = hosts() else { return };
    let study = hosts.study(&format!(
        "{}[fleet]\ndisk_size = \"4MiB\"\n{}{}[target]\nfolder = \"{}\"\n",
        QUICK.replace("measure = \"1s\"", "measure = \"4s\"").replace("repeats = 1", "repeats = 2"),
        node("h2", &[]),
        node("h3", &[]),
        hosts.data(3).display()
    ));
    let out = hosts.folder.join(hosts.name("run"));
    let child = hosts.loadline(&["run", &study, "--out", out.to_str().unwrap()]).spawn().unwrap();
    eventually("a step is complete", LIMIT, || {
        fs::read_to_string(out.join("events.jsonl")).unwrap_or_default().contains("step_complete")
    });
    signal(child.id(), "INT");
    finish(child, LIMIT).refused(130, &["to go on: loadline run --resume"]);
    let said = hosts.run(&["run", "--resume", out.to_str().unwrap()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    assert_eq!(results(&out).len(), 2);
    (2..=3).for_each(|host| hosts.is_left_clean(host));
}

#[test]
fn ctrl_c_during_the_copy_of_the_program_leaves_no_half_of_it() {
    let Some(hosts) = hosts() else { return };
    // A host of its own: the program is not there yet.
    let programs = hosts.folder.join("h4/cache/loadline/programs");
    let copying = || {
        let folders = fs::read_dir(&programs).into_iter().flatten().flatten();
        let mut files =
            folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
        files.any(|file| file.file_name().to_string_lossy().starts_with("new."))
    };
    let _ = fs::remove_dir_all(&programs);
    let child = hosts.loadline(&["run", &long(&hosts, &["h4"], 4), "--plan"]).spawn().unwrap();
    eventually("the copy begins", LIMIT, copying);
    signal(child.id(), "INT");
    assert_eq!(finish(child, LIMIT).code, Some(130));
    eventually("the half is removed", LIMIT, || !copying());
    hosts.is_left_clean(4);
    // Two at once, and both copies are whole.
    let _ = fs::remove_dir_all(&programs);
    let study = hosts.study(&format!(
        "{QUICK}[fleet]\ndisk_size = \"4MiB\"\n{}[target]\nfolder = \"{}\"\n",
        node("h4", &[]),
        hosts.data(4).display()
    ));
    let out = [hosts.name("run"), hosts.name("run")];
    let children: Vec<_> =
        out.iter().map(|out| hosts.loadline(&["run", &study, "--out", out]).spawn().unwrap()).collect();
    for child in children {
        let said = finish(child, LIMIT);
        assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    }
    hosts.is_left_clean(4);
}

#[test]
fn copies_of_the_program_are_shown_with_their_hosts_and_only_where_there_are_any() {
    let Some(hosts) = hosts() else { return };
    let study = long(&hosts, &["slow"], 1);
    let (shown, go) = (hosts.folder.join(hosts.name("shown")), hosts.folder.join("go"));
    for command in [["run", &study, "--plan"], ["doctor", "--study", &study]] {
        let _ = fs::remove_file(&go);
        let _ = fs::remove_dir_all(hosts.folder.join("slow"));
        let child = hosts.loadline(&command).stderr(fs::File::create(&shown).unwrap()).spawn().unwrap();
        let read = || fs::read_to_string(&shown).unwrap();
        let goes_on = |line: &str| {
            line.starts_with("copying the program to slow: ")
                && line.ends_with(" left")
                && line.contains(" MiB, ")
        };
        eventually("the copy is shown", LIMIT, || read().lines().any(goes_on));
        fs::write(&go, "").unwrap();
        let said = finish(child, LIMIT);
        assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, read());
        assert!(read().contains("copied the program to slow ("), "{}", read());
        let again = hosts.run(&command);
        assert!(matches!(again.code, Some(0 | 3)) && !again.err.contains("the program to"), "{}", again.err);
    }
}

#[test]
fn a_host_that_reboots_is_named_and_the_run_goes_on_and_takes_it_back() {
    let Some(hosts) = hosts() else { return };
    let files: Vec<PathBuf> = [3, 4].iter().map(|host| disk(&hosts, *host, 4)).collect();
    let nodes = format!("{}{}", node("h3", &[&files[0]]), node("h4", &[&files[1]]));
    let text = QUICK.replace("measure = \"1s\"", "measure = \"9s\"").replace("repeats = 1", "repeats = 2");
    let study = hosts.study(&format!("{text}{nodes}"));
    let out = hosts.folder.join(hosts.name("run"));
    let child =
        hosts.loadline(&["run", &study, "--destroy-data", "--out", out.to_str().unwrap()]).spawn().unwrap();
    let said = |what: &str| fs::read_to_string(out.join("events.jsonl")).unwrap_or_default().contains(what);
    eventually("it measures", LIMIT, || said("\"starting\""));
    // Without a word, as in a power cut.
    let is_reached = |passage| {
        hosts.network.set(4, 0, passage);
        hosts.network.set(0, 4, passage);
    };
    is_reached(netns::Passage::Silent);
    hosts.end_connections(4);
    eventually("its worker is lost", LIMIT, || said("\"lost\""));
    is_reached(netns::Passage::Open);
    let ended = finish(child, LIMIT);
    assert_eq!(ended.code, Some(3), "{}{}", ended.out, ended.err);
    assert!(ended.err.contains("h4/0"), "{}", ended.err);
    let lost = |step: &Value| -> Vec<bool> {
        step["workers"].as_array().unwrap().iter().map(|worker| !worker["lost"].is_null()).collect()
    };
    let steps = results(&out);
    assert_eq!(lost(&steps[0]), [false, true], "{}", ended.err);
    assert_eq!(lost(&steps[1]), [false, false], "{}", ended.err);
    hosts.is_left_clean(4);
}

#[test]
fn the_doctor_reports_of_each_host_of_an_inventory_and_names_those_that_it_does_not_reach() {
    let Some(hosts) = hosts() else { return };
    let inventory = hosts.folder.join(hosts.name("hosts.ini"));
    fs::write(&inventory, "[storage]\nh[1:1]\nn-a ansible_host=10.77.0.4 ansible_user=root\n[gone]\nclosed\n[all:children]\nstorage\n")
        .unwrap();
    let inventory = inventory.to_str().unwrap();
    let said = hosts.run(&["doctor", "--inventory", inventory, "--group", "storage", "--json"]);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    let names: Vec<String> = said.json()["hosts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host["worker"].as_str().unwrap().into())
        .collect();
    assert_eq!(names, ["h1/0", "n-a/0"]);
    let paths = said.json()["network"].as_array().unwrap().clone();
    assert!(paths.iter().all(|path| path["bytes_per_s"].as_f64() > Some(0.0)), "{paths:?}");
    let said = hosts.run(&["doctor", "--inventory", inventory]);
    said.refused(
        1,
        &["worker closed/0", "host closed (closed)", "the findings of the other hosts are valid"],
    );
    let study = hosts.study(&format!(
        "{QUICK}[fleet]\ninventory = \"{inventory}\"\ngroup = \"storage\"\ndisk_size = \"4MiB\"\n[target]\nfolder = \"{}\"\n",
        hosts.data(1).display()
    ));
    let said = hosts.run(&["doctor", "--study", &study]);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.err);
    measured(&hosts, &study);
}
