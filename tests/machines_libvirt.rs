//! Workers that are virtual machines which libvirt starts: Debian's real libvirt, of a test's own, and QEMU as another user. That needs
//! root; the tests of an ordinary user's libvirt (`session`) do not.

#[path = "machines_libvirt/by_ssh.rs"]
mod by_ssh;
#[path = "machines_libvirt/daemon.rs"]
mod daemon;
#[allow(dead_code, reason = "the fault scripts use the rest")]
#[path = "hosts/netns.rs"]
mod netns;
#[path = "machines_libvirt/session.rs"]
mod session;
#[allow(dead_code, reason = "other fleets use the rest")]
#[path = "ssh/hosts.rs"]
mod ssh_hosts;
mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use daemon::Daemon;
use serde_json::Value;
use support::{Said, checked, eventually, finish, folder, loadline, signal};

/// How long a run may take on a busy machine without hardware virtualisation.
const LIMIT: Duration = Duration::from_secs(400);

/// A study whose workers are machines of this libvirt: so many nodes, with more options of a machine, that measure for so long.
fn study(libvirt: &str, nodes: u32, machine: &str, target: &str, seconds: u32) -> String {
    format!(
        "name = \"machines\"\nprofiles = [\"B4-T1-O4-W50-PR\"]\n[fleet]\nnodes = {nodes}\ndisk_size = \"16MiB\"\n\
         machine = {{ memory = \"112MiB\", {machine} libvirt = \"{libvirt}\" }}\n[target]\n{target}\n[phases]\nwarm_up = \"0s\"\n\
         measure = \"{seconds}s\"\ncool_down = \"0s\"\n[run]\nrepeats = 1\nverify = true\n"
    )
}

/// A place for one test: a libvirt, folders that its QEMU may enter, and temporary files that nobody else has.
struct Place {
    daemon: Daemon,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = folder();
        for (name, mode) in [("", 0o755), ("data", 0o755), ("temporary", 0o777)] {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        let daemon = Daemon::start(&folder.path().join("libvirt"));
        Place { daemon, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn study(&self, nodes: u32, machine: &str, target: &str, seconds: u32) -> String {
        study(&self.daemon.uri(), nodes, machine, target, seconds)
    }

    /// One on files.
    fn on_files(&self, nodes: u32, seconds: u32) -> String {
        self.study(nodes, "", &format!("folder = {:?}", self.path("data")), seconds)
    }

    fn begin(&self, text: &str, words: &[&str], variables: &[(&str, &Path)]) -> Child {
        fs::write(self.path("study.toml"), text).unwrap();
        let _ = fs::remove_dir_all(self.path("run"));
        let program = Path::new(env!("CARGO_BIN_EXE_loadline"));
        let target = program.parent().and_then(Path::parent).expect("cargo's folder");
        let mut command = loadline();
        command
            .env("LOADLINE_GUEST_KERNEL", target.join("guest"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("TMPDIR", self.path("temporary"))
            .current_dir(self.folder.path())
            .args(["run", "study.toml", "--out", "run"])
            .args(words)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn run(&self, text: &str, words: &[&str], variables: &[(&str, &Path)]) -> Said {
        finish(self.begin(text, words, variables), LIMIT)
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("run/report/report.json")).unwrap()).unwrap()
    }

    /// What the workers have written down.
    fn log(&self) -> String {
        let logs = fs::read_dir(self.path("run/workers")).into_iter().flatten().flatten();
        logs.filter_map(|log| fs::read_to_string(log.path()).ok()).collect()
    }

    /// Waits until so many machines measure.
    fn measures(&self, machines: usize) {
        let began = || {
            let events = fs::read_to_string(self.path("run/events.jsonl")).unwrap_or_default();
            events.contains("step_began") || events.contains("\"step")
        };
        eventually("machines measure", LIMIT, || began() && self.daemon.machines().len() == machines);
    }

    /// Nothing of machines is on this host.
    fn is_clean(&self) -> bool {
        self.daemon.machines().is_empty() && fs::read_dir(self.path("temporary")).unwrap().next().is_none()
    }

    /// A stand-in for `virsh`, before the real one: these lines of a shell, in which `real` runs the real one with the same words.
    fn stand_in(&self, name: &str, lines: &str) -> PathBuf {
        let path = std::env::var("PATH").unwrap();
        let folder = self.path(name);
        fs::create_dir(&folder).unwrap();
        let text = format!("#!/bin/sh\nPATH={path:?}\n{lines}\n");
        fs::write(folder.join("virsh"), text).unwrap();
        fs::set_permissions(folder.join("virsh"), Permissions::from_mode(0o755)).unwrap();
        PathBuf::from(format!("{}:{path}", folder.display()))
    }
}

#[test]
fn machines_are_in_the_list_of_libvirt_while_they_measure_and_gone_at_the_end_and_the_report_says_so() {
    let place = Place::new();
    let target = format!("folder = {:?}", place.path("data"));
    let run = place.begin(&place.study(2, "queues = 1, iothread = true,", &target, 3), &[], &[]);
    place.measures(2);
    let names = place.daemon.domains();
    assert!(names.iter().all(|name| name.starts_with("loadline-")), "{names:?}");
    let ends: Vec<&str> = names.iter().map(|name| &name[name.len() - 9..]).collect();
    assert_eq!(ends, ["-node-1-0", "-node-2-0"], "{names:?}");
    assert!(place.daemon.virsh(&["list", "--title"]).unwrap().contains("Loadline worker node-1/0"));
    let shown = place.daemon.virsh(&["dumpxml", &names[0]]).unwrap();
    assert!(shown.contains("<memory unit='KiB'>114688</memory>") && !shown.contains("<interface"), "{shown}");
    let said = finish(run, LIMIT);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    assert_eq!(place.daemon.domains(), [""; 0]);
    assert!(place.is_clean());
    let report = place.report();
    let (blocks, bad) = checked(&report);
    assert!(blocks > 1000 && bad == 0, "{blocks} checked, {bad} bad");
    let machines = report["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 2);
    for start in machines {
        let version = start["libvirt"].as_str().unwrap();
        assert!(said.out.contains(&format!("started by libvirt {version}")), "{}", said.out);
        assert_eq!(start["acceleration"], "TCG (software)");
    }
    assert_eq!(fs::read_dir(place.path("data")).unwrap().count(), 0, "the run's files are removed");
}

#[test]
fn machines_use_a_cluster_crash_pause_and_are_killed_and_lose_no_write() {
    let place = Place::new();
    let faults = "faults = [{ at = \"1s\", do = \"crash-machine\", node = \"node-1\" },\n\
         { at = \"2s\", do = { pause-machine = { by = \"2s\" } }, node = \"node-2\" },\n\
         { at = \"16s\", do = \"kill-machine\", node = \"node-3\" }]\n";
    let text = place.study(3, "", "san = { copies = 2 }", 36).replace("[fleet]", &format!("{faults}[fleet]"));
    let said = place.run(&text, &[], &[]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}\n{}\n{}", said.code, said.out, said.err);
    assert!(place.is_clean());
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
    assert!(pause["stall_ms"].as_f64() > Some(1500.0), "the pause is in its figures: {pause}");
    let log = place.log();
    assert!(log.contains("libvirt's domain loadline-") && log.contains("Kernel panic"), "{log}");
}

#[test]
fn a_run_that_is_killed_leaves_no_domain_also_if_libvirt_is_gone_by_then() {
    let place = Place::new();
    let run = place.begin(&place.on_files(2, 60), &[], &[]);
    place.measures(2);
    signal(run.id(), "KILL");
    finish(run, LIMIT);
    eventually("libvirt ends the domains", LIMIT, || place.daemon.domains().is_empty() && place.is_clean());
    let run = place.begin(&place.on_files(2, 60), &[], &[]);
    place.measures(2);
    place.daemon.end("KILL");
    // One whose keeper has noticed it already may have turned itself off by now.
    assert!(!place.daemon.machines().is_empty(), "machines go on without a daemon that was killed");
    signal(run.id(), "KILL");
    finish(run, LIMIT);
    eventually("the machines turn themselves off", Duration::from_secs(60), || place.is_clean());
    place.daemon.begin_again();
    eventually("libvirt forgets them", LIMIT, || place.daemon.domains().is_empty());
}

#[test]
fn a_libvirt_that_is_stopped_ends_its_machines_and_one_that_is_killed_is_named_and_both_leave_none() {
    let place = Place::new();
    // Stopped in order, it ends what lives with a connection to it.
    let run = place.begin(&place.on_files(1, 60), &[], &[]);
    place.measures(1);
    place.daemon.end("TERM");
    // While libvirt stops it may still answer.
    eventually("the end of the machine is named", LIMIT, || {
        place.log().contains("libvirt's domain loadline-") && place.log().contains("has ended")
    });
    signal(run.id(), "INT");
    // Without its machine the run may have ended by itself.
    let said = finish(run, LIMIT);
    assert!(matches!(said.code, Some(130 | 3)), "{:?}\n{}", said.code, said.err);
    assert!(place.is_clean());
    place.daemon.begin_again();
    // Killed, it leaves its machines to go on. Only the next that is asked of it fails.
    let run = place.begin(&place.on_files(1, 4), &[], &[]);
    place.measures(1);
    place.daemon.end("KILL");
    let said = finish(run, LIMIT);
    assert!(said.code.is_some_and(|code| code != 101), "{}", said.err);
    assert!(!said.err.contains("panicked"), "{}", said.err);
    eventually("its machine is gone", LIMIT, || place.is_clean());
}

#[test]
fn what_speaks_against_machines_of_libvirt_is_said_with_what_to_do() {
    let place = Place::new();
    let study = place.on_files(1, 2);
    // Of the study.
    let uri = place.daemon.uri();
    let with_uri = |other: &str| study.replace(&uri, other);
    place
        .run(&with_uri("xen:///system"), &[], &[])
        .refused(2, &["only qemu and qemu+ssh", "qemu:///session"]);
    let limited = study.replace("nodes = 1\n", "") + "[[fleet.node]]\nname = \"a\"\ncpu_limit = 1.0\n";
    place.run(&limited, &[], &[]).refused(2, &["node a", "cpu_limit", "do not hold"]);
    place.run(&study, &["--fleet", "libvirt:tcp"], &[]).refused(2, &["it is no URI", "qemu+ssh://USER@HOST"]);
    // No virsh, no libvirt, a libvirt that is silent in the middle of a word.
    let empty = place.path("empty");
    fs::create_dir(&empty).unwrap();
    place
        .run(&study, &[], &[("PATH", &empty)])
        .refused(2, &["virsh cannot be started", "apt install libvirt-clients"]);
    let nowhere = with_uri(&format!("qemu:///system?socket={}", place.path("nowhere").display()));
    place
        .run(&nowhere, &[], &[])
        .refused(2, &["cannot be used: failed to connect", "systemctl start libvirtd"]);
    let half = place.stand_in("half", "echo Running against; kill -9 $$");
    place
        .run(&study, &[], &[("PATH", &half)])
        .refused(1, &["virsh version ended (signal: 9", "did not say why"]);
    let cut = place.stand_in("cut", "case \"$*\" in *create*) kill -9 $$;; *) exec virsh \"$@\";; esac");
    let said = place.run(&study, &[], &[("PATH", &cut)]);
    said.refused(1, &["libvirt does not start the virtual machine loadline-", "virsh ended (signal: 9"]);
    let order =
        "case \"$*\" in *qemu-monitor-command*) virsh \"$@\" | head -c 5;; *) exec virsh \"$@\";; esac";
    let order = place.stand_in("order", order);
    place.run(&study, &[], &[("PATH", &order)]).refused(1, &["virsh answers half"]);
    // What libvirt refuses: a processor that its QEMU has not, and a folder that is closed to its user.
    let many = study.replace("memory =", "cpus = 2, memory =");
    let refusing = place.stand_in(
        "refusing",
        "case \"$*\" in *create*) sed 's/<vcpu>2/<vcpu>9999/' | virsh \"$@\";; *) exec virsh \"$@\";; esac",
    );
    place
        .run(&many, &[], &[("PATH", &refusing)])
        .refused(1, &["does not start the virtual machine", "Maximum CPUs"]);
    fs::set_permissions(place.path("data"), Permissions::from_mode(0o700)).unwrap();
    let said = place.run(&study, &[], &[]);
    said.refused(2, &["Permission denied", "runs as user 64055", "qemu:///session"]);
    assert!(place.is_clean());
    assert_eq!(place.daemon.domains(), [""; 0]);
}
