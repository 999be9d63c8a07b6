//! Nodes with a share of the cores: each is in a control group.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use loadline_base::units::ByteSize;
use loadline_target::error::ErrorKind;
use loadline_target::{Cluster, ClusterSpec, FaultKind};

use crate::support::{eventually, finish, folder, run, signal, start};
use crate::{LIMIT, STUDY, fault, results, spec, volume};

/// The control groups of nodes that this process, or one that has started nodes, has made and not removed.
fn groups_of(process: u32) -> Vec<PathBuf> {
    fn below(folder: &Path, depth: usize, name: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(name) {
                found.push(entry.path());
            } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                below(&entry.path(), depth - 1, name, found);
            }
        }
    }
    let mut found = Vec::new();
    below(Path::new("/sys/fs/cgroup"), 6, &format!("loadline-{process}-"), &mut found);
    found
}

#[test]
fn a_node_with_a_share_of_the_cores_is_in_its_group_also_when_it_returns() {
    let folder = folder();
    let stop = AtomicBool::new(false);
    let home = folder.path().join("cluster");
    let nodes = vec!["node-1".into(), "node-2".into()];
    let shared = ClusterSpec { nodes, device: ByteSize(1 << 29), cores: Some(0.5), ..spec(&home) };
    let mut cluster = match Cluster::start(shared, &stop) {
        Ok(cluster) => cluster,
        // Without the right to make groups the error comes before anything is written.
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::Usage, "{error}");
            assert!(error.message.contains("node-1: its cpu_limit cannot be set"), "{error}");
            assert!(error.message.contains("Run it as root") && !home.exists(), "{error}");
            return;
        }
    };
    let own = std::process::id();
    let is_in_its_group = |cluster: &Cluster, node: &str| {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", cluster.pid(node).unwrap())).unwrap();
        let is_its = |line: &str| {
            let group = line.rsplit('/').next().unwrap_or_default();
            group.starts_with(&format!("loadline-{own}-")) && group.ends_with(node)
        };
        assert!(groups.lines().any(is_its), "{node}: {groups}");
    };
    ["node-1", "node-2"].iter().for_each(|node| is_in_its_group(&cluster, node));
    let groups = groups_of(own);
    assert_eq!(groups.len(), 2, "{groups:?}");
    for group in &groups {
        let quota = ["cpu.max", "cpu.cfs_quota_us"].map(|file| std::fs::read_to_string(group.join(file)));
        let quota = quota.into_iter().find_map(Result::ok).unwrap();
        assert!(quota.starts_with("50000"), "{quota}");
    }
    cluster.volume(&volume(1)).unwrap();
    let (first, kept) = (cluster.pid("node-2"), groups.clone());
    cluster.inject(&fault(FaultKind::Kill, "node-2"), &stop).unwrap();
    cluster.inject(&fault(FaultKind::Return, "node-2"), &stop).unwrap();
    assert_ne!(cluster.pid("node-2"), first);
    is_in_its_group(&cluster, "node-2");
    assert_eq!(groups_of(own), kept, "it is the group that the node had before");
    cluster.stop();
    assert_eq!(groups_of(own), Vec::<PathBuf>::new());
}

#[test]
fn a_study_gives_its_nodes_a_share_of_the_cores_says_so_and_leaves_no_group() {
    let folder = folder();
    let (study, out) = (folder.path().join("own.toml"), folder.path().join("run"));
    let with = |cores: &str| {
        let node = format!("copies = 2, node = {{ cpu_limit = {cores} }}");
        std::fs::write(&study, STUDY.replace("copies = 2", &node).replace("repeats = 2", "repeats = 1"))
            .unwrap();
    };
    let plan = || run(["run".as_ref(), study.as_os_str(), "--plan".as_ref()]);
    with("0");
    plan().refused(2, &["san.node", "give 0.01 to 4096"]);
    with("4000");
    plan().refused(2, &["san.node", "no effect on this machine"]);
    with("0.5");
    let said = plan();
    assert!(
        said.code == Some(0) && said.out.contains("0.5 cores of this machine"),
        "{}{}",
        said.out,
        said.err
    );

    let mut child = start(["run".as_ref(), study.as_os_str(), "--out".as_ref(), out.as_os_str()]);
    let process = child.id();
    let is_measured = || {
        let events = std::fs::read_to_string(out.join("events.jsonl")).unwrap_or_default();
        events.contains("\"event\":\"starting\"")
    };
    eventually("its step is measured, or it is refused", Duration::from_secs(90), || {
        is_measured() || child.try_wait().unwrap().is_some()
    });
    if !is_measured() {
        finish(child, LIMIT).refused(2, &["its cpu_limit cannot be set", "Run it as root"]);
        assert!(!out.exists(), "and nothing is left");
        return;
    }
    assert_eq!(groups_of(process).len(), 3);
    signal(process, "INT");
    assert_eq!(finish(child, LIMIT).code, Some(130));
    assert_eq!(groups_of(process), Vec::<PathBuf>::new());
    let said = run(["run".as_ref(), "--resume".as_ref(), out.as_os_str()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
    let result = &results(&out)[0];
    let findings = result["findings"].as_array().unwrap();
    assert!(findings.iter().any(|one| one["found"] == "each node has 0.5 cores"), "{findings:?}");
}
