//! Machines on nodes with limits that are migrated. No study has both yet: a study that migrates machines starts its own cluster, of nodes that
//! are all alike. So these are fleets without a study.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use loadline_base::units::{ByteSize, TimeSpan};
use loadline_fleet::{
    Fleet, FleetSpec, LocalProcesses, Machine, MidStepChanges, MidStepOrder, Migration, NodeSpec, Placement,
    WorkerId,
};
use loadline_load::{Disk, Job, Target, WritePermission};
use loadline_profile::Profile;
use tokio::sync::{mpsc, oneshot};

use crate::{LIMIT, Place};

/// What a process may use: its CPUs, and the nodes in whose control groups it is.
fn limits_of(process: u32) -> (String, BTreeSet<String>) {
    let read = |name: &str| fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default();
    let status = read("status");
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    // They are called loadline-PROCESS-RANDOM-NODE.
    let node = |line: &str| {
        let name = line.rsplit_once('/')?.1.strip_prefix("loadline-")?;
        name.splitn(3, '-').nth(2).map(str::to_string)
    };
    (cpus.unwrap_or_default().trim().to_string(), read("cgroup").lines().filter_map(node).collect())
}

/// The control groups that this process has made.
fn groups() -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![PathBuf::from("/sys/fs/cgroup")], Vec::new());
    let ours = format!("loadline-{}-", std::process::id());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(&ours) {
                    found.push(entry.path());
                }
                folders.push(entry.path());
            }
        }
    }
    found
}

/// The QEMU of a worker's machine: a child of the keeper that is named after the worker.
fn machine_of(place: &Place, worker: &WorkerId) -> u32 {
    let keeper = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.to_string();
        fs::read(format!("/proc/{parent}/cmdline")).ok()
    };
    let is_its = |process: &u32| {
        let words = keeper(*process).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == worker.0.as_bytes())
    };
    let found: Vec<u32> = place.machines().into_iter().filter(is_its).collect();
    assert_eq!(found.len(), 1, "{worker}: {found:?}");
    found[0]
}

/// A fleet of machines on these nodes, of the program under test.
fn fleet_on(place: &Place, nodes: Vec<NodeSpec>) -> FleetSpec {
    let program = Path::new(env!("CARGO_BIN_EXE_loadline"));
    let kernel = program.parent().and_then(Path::parent).expect("cargo's folder").join("guest");
    let wrapper = place.path("loadline");
    let lines = format!(
        "#!/bin/sh\nexport LOADLINE_GUEST_KERNEL={} XDG_CACHE_HOME={}\nexec {} \"$@\"\n",
        kernel.display(),
        place.path("cache").display(),
        program.display()
    );
    fs::write(&wrapper, lines).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let nodes =
        nodes.into_iter().map(|node| NodeSpec { machine: Some(Machine::default()), ..node }).collect();
    let placement = Placement::Processes(LocalProcesses { nodes, workers_per_node: 1 });
    FleetSpec { program: wrapper, ..FleetSpec::new(placement) }
}

/// A load on nothing, for so long.
fn job(seconds: u64) -> Job {
    let disk = Disk { target: Target::Null(ByteSize::GIB), writes: WritePermission::Refused };
    let profile = Profile { outstanding: 1, rate: Some("100iops".parse().unwrap()), ..Profile::default() };
    Job { measure: TimeSpan::seconds(seconds), ..Job::new(vec![disk], profile) }
}

#[test]
fn a_machine_that_is_migrated_is_under_the_limits_of_its_new_node_and_no_group_is_left() {
    let place = Place::new();
    let (all, _) = limits_of(std::process::id());
    let last = (std::thread::available_parallelism().unwrap().get() - 1).to_string();
    let limited = |name: &str, cpus: &str, cores| NodeSpec {
        cpus: Some(cpus.into()),
        cpu_limit: Some(cores),
        memory_limit: Some(ByteSize::GIB),
        ..NodeSpec::named(name)
    };
    let nodes = vec![limited("a", "0", 0.8), limited("b", &last, 0.9), NodeSpec::named("c")];
    let spec = fleet_on(&place, nodes);
    let worker = WorkerId("a/0".into());
    let node = |name: &str, cpus: &str| (cpus.to_string(), BTreeSet::from([name.to_string()]));
    let went = async {
        let mut fleet = Fleet::start(spec, Box::new(|_| {})).await.unwrap();
        assert_eq!(limits_of(machine_of(&place, &worker)), node("a", "0"));
        assert_eq!(limits_of(machine_of(&place, &WorkerId("b/0".into()))), node("b", &last));
        assert!(!groups().is_empty());
        let (order, orders) = mpsc::channel(1);
        let jobs = BTreeMap::from([(worker.clone(), job(12))]);
        let changes = MidStepChanges { may_go: BTreeSet::new(), orders };
        let go = async |to: &str| {
            let (done, is_done) = oneshot::channel();
            let migration = Migration { node: to.into(), disks: Vec::new() };
            order.send(MidStepOrder::Migrate(worker.clone(), migration, done)).await.unwrap();
            is_done.await.unwrap().unwrap();
            limits_of(machine_of(&place, &worker))
        };
        let goes = async {
            let mut seen = Vec::new();
            for to in ["b", "c", "a", "b"] {
                seen.push(go(to).await);
            }
            seen
        };
        let (outcome, seen) = tokio::join!(fleet.measure_through(&jobs, Some(changes)), goes);
        assert_eq!(outcome.unwrap().lost().count(), 0);
        fleet.stop().await;
        seen
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seen = runtime.block_on(async { tokio::time::timeout(LIMIT, went).await.unwrap() });
    assert_eq!(seen, [node("b", &last), (all, BTreeSet::new()), node("a", "0"), node("b", &last)]);
    let left = groups();
    assert!(left.is_empty(), "each group is removed: {left:?}");
}
