//! Workers that are virtual machines: real ones, of QEMU, with the kernel that `./dev setup --tests` fetches and the first program that
//! `./dev build` puts beside `loadline`.

#[path = "machines/iscsi.rs"]
mod iscsi;
#[path = "machines/limits.rs"]
mod limits;
#[path = "support/line.rs"]
mod line;
#[path = "machines/migrated.rs"]
mod migrated;
#[path = "machines/scale.rs"]
mod scale;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{Said, checked, eventually, finish, folder, loadline, signal};

/// How long a run may take on a busy machine without hardware virtualisation.
const LIMIT: Duration = Duration::from_secs(400);

/// A study whose workers are machines.
fn study(rest: &str) -> String {
    format!(
        "name = \"machines\"\nprofiles = [\"B4-T1-O4-W50-PR\"]\n{rest}\n[phases]\nwarm_up = \"0s\"\nmeasure = \"2s\"\n\
         cool_down = \"0s\"\n[run]\nrepeats = 1\nverify = true\n"
    )
}

/// A place for one test: its machines have their image there, which tells them from all others.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: folder() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = loadline();
        let program = Path::new(env!("CARGO_BIN_EXE_loadline"));
        let target = program.parent().and_then(Path::parent).expect("cargo's folder");
        command
            .env("LOADLINE_GUEST_KERNEL", target.join("guest"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .current_dir(self.folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a study with these variables set.
    fn run(&self, text: &str, words: &[&str], variables: &[(&str, &Path)]) -> Said {
        fs::write(self.path("study.toml"), text).unwrap();
        let mut command = self.command();
        command.args(["run", "study.toml", "--out", "run"]).args(words).envs(variables.iter().copied());
        finish(command.spawn().unwrap(), LIMIT)
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("run/report/report.json")).unwrap()).unwrap()
    }

    /// The processes of this place's machines.
    fn machines(&self) -> Vec<u32> {
        let image = self.path("cache").display().to_string();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_machine = |process: &u32| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            line.contains("qemu-system") && line.contains(&image)
        };
        processes.filter(is_machine).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = self.machines();
        if !std::thread::panicking() {
            assert!(left.is_empty(), "machines are left: {left:?}");
        }
        left.into_iter().for_each(|process| signal(process, "KILL"));
    }
}

#[test]
fn machines_measure_files_with_checked_writes_and_the_report_says_what_ran_them() {
    let place = Place::new();
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let text = study(&format!(
        "[fleet]\nnodes = 2\ndisk_size = \"16MiB\"\nmachine = {{ cpus = 1, memory = \"112MiB\", queues = 1, iothread = true }}\n\
         [target]\nfolder = {:?}",
        data.path()
    ));
    let said = place.run(&text, &[], &[]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report = place.report();
    let (blocks, bad) = checked(&report);
    assert!(blocks > 1000 && bad == 0, "{blocks} checked, {bad} bad");
    let machines = report["machines"].as_array().unwrap();
    let hosts: Vec<&str> = machines.iter().map(|start| start["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["node-1-0", "node-2-0"]);
    for start in machines {
        let (ready, first) = (start["start_to_worker_s"].as_f64(), start["start_to_first_io_s"].as_f64());
        assert!(ready > Some(0.0) && first > ready, "{start}");
        assert!(["KVM", "TCG (software)"].contains(&start["acceleration"].as_str().unwrap()), "{start}");
    }
    assert!(said.out.contains("The workers were 2 virtual machines"), "{}", said.out);
    // The disks of the machines are those files, by the names that the study gave them.
    assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0, "the run's files are removed");
    let result = fs::read_dir(place.path("run/steps")).unwrap().flatten().next().unwrap().path();
    let result: Value = serde_json::from_slice(&fs::read(result.join("result.json")).unwrap()).unwrap();
    let target = result["hosts"]["node-1-0"]["disks"][0]["target"].as_str().unwrap();
    assert!(target.starts_with(data.path().to_str().unwrap()), "{target}");
}

#[test]
fn machines_use_volumes_of_a_cluster_that_loses_a_node_and_no_write_is_lost() {
    let place = Place::new();
    let text = study(
        "[fleet]\nnodes = 3\ndisk_size = \"16MiB\"\n[target.san]\ncopies = 2\nlog = \"64MiB\"\n\
         [[condition]]\nname = \"healthy\"\n\
         [[condition]]\nname = \"one-down\"\ndo = [{ do = \"kill\", node = \"node-3\" }]",
    );
    let said = place.run(&text, &["--fleet", "vm"], &[]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report = place.report();
    let (blocks, bad) = checked(&report);
    assert!(blocks > 1000 && bad == 0, "{blocks} checked, {bad} bad");
    assert_eq!(report["complete"], 2, "{}", said.err);
    assert_eq!(report["machines"].as_array().unwrap().len(), 3);
}

#[test]
fn machines_that_crash_pause_and_die_with_their_node_go_on_and_lose_no_write() {
    let place = Place::new();
    let text = study(
        "faults = [{ at = \"2s\", do = \"crash-machine\", node = \"node-1\" },\n\
         { at = \"3s\", do = { pause-machine = { by = \"2s\" } }, node = \"node-2\" },\n\
         { at = \"20s\", do = \"kill\", node = \"node-3\" }]\n\
         [fleet]\nnodes = 3\ndisk_size = \"16MiB\"\nmachine = {}\n[target]\nsan = { copies = 2 }",
    )
    .replace("measure = \"2s\"", "measure = \"50s\"");
    let said = place.run(&text, &[], &[]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    let report = place.report();
    let (blocks, bad) = checked(&report);
    assert!(blocks > 1000 && bad == 0, "{blocks} checked, {bad} bad");
    let events = report["steps"][0]["timeline"]["events"].as_array().unwrap();
    assert!(events.iter().all(|event| event["failed"].is_null()), "{events:#?}");
    let [crash, pause, kill] = events.as_slice() else { panic!("{events:#?}") };
    for (event, worker) in [(crash, "node-1/0"), (kill, "node-3/0")] {
        let moved = &event["moved"][0];
        assert_eq!(moved["worker"], worker, "{event}");
        assert!(moved["out_s"].as_f64() > Some(1.0), "a machine boots before it goes on: {event}");
    }
    assert_eq!(crash["moved"][0]["to"][0], "node-1", "its volume is where it was");
    assert_eq!(pause["moved"].as_array().unwrap().len(), 0, "a machine that is paused stays: {pause}");
    assert_eq!(pause["stalled"], "node-2/0", "{pause}");
    assert!(
        pause["stall_ms"].as_f64() > Some(1500.0),
        "its clock goes on, so that the pause is in its figures: {pause}"
    );
    assert_eq!(
        report["steps"][0]["lost_workers"], 0,
        "a machine that was started again is not lost: {}",
        said.err
    );
    // Its kernel said why it ended, and its keeper wrote that down.
    let log = fs::read_to_string(place.path("run/workers/node-1-0.log")).unwrap();
    assert!(log.contains("the virtual machine is gone") && log.contains("Kernel panic"), "{log}");
}

#[test]
fn a_machine_that_is_killed_is_named_and_with_the_controller_all_machines_end() {
    let place = Place::new();
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let text = study(&format!(
        "[fleet]\nnodes = 2\ndisk_size = \"16MiB\"\nmachine = {{}}\n[target]\nfolder = {:?}",
        data.path()
    ))
    .replace("measure = \"2s\"", "measure = \"60s\"");
    fs::write(place.path("study.toml"), &text).unwrap();
    let begin = |out: &str| {
        let mut command = place.command();
        command.args(["run", "study.toml", "--out", out]).spawn().unwrap()
    };
    let measures = |out: &str| {
        let events = fs::read_to_string(place.path(out).join("events.jsonl")).unwrap_or_default();
        events.contains("step_began") || events.contains("\"step")
    };
    let run = begin("killed");
    eventually("two machines measure", LIMIT, || place.machines().len() == 2 && measures("killed"));
    signal(place.machines()[0], "KILL");
    let log = || {
        let logs = fs::read_dir(place.path("killed/workers")).into_iter().flatten().flatten();
        logs.filter_map(|log| fs::read_to_string(log.path()).ok()).collect::<String>()
    };
    eventually("its death is named", LIMIT, || {
        log().contains("the virtual machine is gone: QEMU has ended (signal: 9")
    });
    signal(run.id(), "INT");
    let said = finish(run, LIMIT);
    assert_eq!(said.code, Some(130), "{}", said.err);
    assert!(place.machines().is_empty());
    // And without a word to anybody.
    let run = begin("gone");
    eventually("two machines measure", LIMIT, || place.machines().len() == 2 && measures("gone"));
    signal(run.id(), "KILL");
    finish(run, LIMIT);
    eventually("the machines end with the controller", Duration::from_secs(30), || {
        place.machines().is_empty()
    });
}

#[test]
fn what_speaks_against_machines_is_said_before_any_is_measured() {
    let place = Place::new();
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let with = |fleet: &str| {
        study(&format!("[fleet]\ndisk_size = \"4MiB\"\n{fleet}\n[target]\nfolder = {:?}", data.path()))
    };
    let refused = |text: &str, variables: &[(&str, &Path)], words: &[&str]| {
        place.run(text, &[], variables).refused(2, words);
        let _ = fs::remove_dir_all(place.path("run"));
    };
    refused(&with("machine = { cpus = 0 }"), &[], &["cpus = 0"]);
    refused(&with("machine = { memory = \"1MiB\" }"), &[], &["memory = 1MiB", "96MiB"]);
    refused(&with("machine = { cores = 2 }"), &[], &["cores"]);
    refused(&with("machine = { memory = \"1024GiB\" }"), &[], &["1 virtual machines of", "none would fit"]);
    refused(&with("machine = {}\njoin = 2"), &[], &["machine and join"]);
    let fault = |what: &str, rest: &str| {
        study(&format!(
            "faults = [{{ at = \"1s\", do = {what}, node = \"node-1\" }}]\n[fleet]\nnodes = 2\n{rest}[target]\nsan = {{}}"
        ))
    };
    refused(&fault("\"kill-machine\"", ""), &[], &["the workers are processes", "machine = {}"]);
    let pause = "{ pause-machine = { by = \"9s\" } }";
    refused(&fault(pause, "machine = {}\n"), &[], &["paused for up to 4s"]);
    // A host without QEMU, with an old one, without a kernel, with one that has no virtio, without the first program.
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    let machine = with("machine = {}");
    refused(&machine, &[("PATH", &empty)], &["qemu-system", "apt install"]);
    let old = place.path("old");
    fs::create_dir(&old).unwrap();
    let program = old.join(format!("qemu-system-{}", std::env::consts::ARCH));
    fs::write(&program, "#!/bin/sh\necho QEMU emulator version 4.2.1\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    refused(&machine, &[("PATH", &old)], &["QEMU 4.2", "5.2 or newer"]);
    refused(&machine, &[("LOADLINE_GUEST_KERNEL", &empty)], &["vmlinuz is not there"]);
    let bare = place.path("bare");
    fs::create_dir_all(bare.join("lib/modules/6")).unwrap();
    fs::write(bare.join("vmlinuz"), "no kernel").unwrap();
    fs::write(bare.join("lib/modules/6/modules.dep"), "").unwrap();
    fs::write(bare.join("lib/modules/6/modules.builtin"), "").unwrap();
    refused(&machine, &[("LOADLINE_GUEST_KERNEL", &bare)], &["has no virtio_pci"]);
    refused(&machine, &[("LOADLINE_GUEST_INIT", &empty.join("init"))], &["init", "cannot be read"]);
}

#[test]
fn the_image_is_built_once_small_and_the_same_again() {
    let place = Place::new();
    let build = || {
        let said = finish(place.command().args(["guest", "build", "--json"]).spawn().unwrap(), LIMIT);
        assert_eq!(said.code, Some(0), "{}", said.err);
        said.json()
    };
    let first = build();
    let [bytes, modules] = ["bytes", "module_bytes"].map(|key| first[key].as_u64().unwrap());
    assert!(bytes - modules < 8 << 20, "{first}");
    let content = fs::read(first["image"].as_str().unwrap()).unwrap();
    fs::remove_dir_all(place.path("cache")).unwrap();
    assert_eq!(build(), first);
    assert!(fs::read(first["image"].as_str().unwrap()).unwrap() == content, "the same bytes");
    let mut without = place.command();
    without.env("LOADLINE_GUEST_KERNEL", place.path("nowhere")).args(["guest", "build"]);
    finish(without.spawn().unwrap(), LIMIT).refused(2, &["vmlinuz is not there"]);
}

#[test]
fn a_machine_whose_kernel_panics_says_so() {
    let place = Place::new();
    let data = tempfile::tempdir_in("/var/tmp").unwrap();
    let text = study(&format!(
        "[fleet]\ndisk_size = \"4MiB\"\nmachine = {{}}\n[target]\nfolder = {:?}",
        data.path()
    ));
    let init = place.path("init");
    fs::write(&init, "no program").unwrap();
    let said = place.run(&text, &[], &[("LOADLINE_GUEST_INIT", &init)]);
    said.refused(1, &["node-1/0 could not be started", "the virtual machine is gone", "Kernel panic"]);
}
