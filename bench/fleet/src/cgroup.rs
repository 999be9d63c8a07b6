//! Limits that the workers of a node share: one control group for each node, of either version.
//!
//! A controller (`cpu`, `memory`) hangs either on a version 1 hierarchy or on the one of version 2, and hosts mix
//! them. Groups are made below this process's own group where that is possible, so that what limits the study
//! limits its workers too, and else at the root of what is mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::error::FleetError;
use crate::node::NodeSpec;

/// A group can be removed when the kernel has buried its last process: it is tried for so long.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two tries.
const REMOVE_PAUSE: Duration = Duration::from_millis(20);
/// The period over which a CPU quota counts, microseconds: the kernel's own default.
const PERIOD_US: u64 = 100_000;

/// A group of a run that is gone is removed when it is at least so old: a process id is not the same in every
/// container, and a run that begins has groups without processes.
const LEFT_BEHIND_AGE: Duration = Duration::from_secs(60);
/// The most groups of one folder that are inspected.
const LOOKED_AT: usize = 4096;

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    /// Controllers in version 1; `None` is version 2.
    v1: Option<Vec<String>>,
    /// Which group is visible at the mount point.
    root: PathBuf,
    mount: PathBuf,
}

/// One limit, as files to be written in a group, for both versions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Limit {
    controller: &'static str,
    v1: Vec<(&'static str, String)>,
    v2: Vec<(&'static str, String)>,
}

fn limits(node: &NodeSpec) -> Vec<Limit> {
    let cpu = node.cpu_limit.map(|cores| {
        let quota = (cores * PERIOD_US as f64).round() as u64;
        Limit {
            controller: "cpu",
            v1: vec![("cpu.cfs_period_us", PERIOD_US.to_string()), ("cpu.cfs_quota_us", quota.to_string())],
            v2: vec![("cpu.max", format!("{quota} {PERIOD_US}"))],
        }
    });
    let memory = node.memory_limit.map(|limit| Limit {
        controller: "memory",
        v1: vec![("memory.limit_in_bytes", limit.bytes().to_string())],
        v2: vec![("memory.max", limit.bytes().to_string())],
    });
    cpu.into_iter().chain(memory).collect()
}

/// The control groups mounted in this process's view, from `/proc/self/mountinfo`.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (root, mount) = (PathBuf::from(unescape(left.get(3)?)), PathBuf::from(unescape(left.get(4)?)));
        let v1 = match *right.first()? {
            "cgroup" => Some(right.get(2)?.split(',').map(String::from).collect()),
            "cgroup2" => None,
            _ => return None,
        };
        Some(Hierarchy { v1, root, mount })
    };
    mountinfo.lines().filter_map(parse).collect()
}

/// A path of mountinfo: space, tab, newline and backslash are written as three octal digits.
fn unescape(text: &str) -> String {
    [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")]
        .iter()
        .fold(text.to_string(), |text, (code, char)| text.replace(code, char))
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        match &self.v1 {
            Some(controllers) => controllers.iter().any(|c| c == controller),
            None => fs::read_to_string(self.mount.join("cgroup.controllers"))
                .is_ok_and(|all| all.split_whitespace().any(|c| c == controller)),
        }
    }

    /// The groups below which a new one may be made, best first; `own` is `/proc/self/cgroup`.
    fn bases(&self, own: &str) -> Vec<PathBuf> {
        let mine = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            match &self.v1 {
                Some(v1) => controllers.split(',').any(|c| !c.is_empty() && v1.iter().any(|v| v == c)),
                None => number == "0" && controllers.is_empty(),
            }
            .then_some(path)
        });
        let below = mine.and_then(|path| Path::new(path).strip_prefix(&self.root).ok());
        let mut bases: Vec<PathBuf> = below.map(|below| self.mount.join(below)).into_iter().collect();
        bases.push(self.mount.clone());
        bases.dedup_by(|a, b| a.components().eq(b.components()));
        bases
    }
}

/// The process that made a group, if the group is one of a fleet: `loadline-PID-RANDOM-NODE`.
fn maker(name: &str) -> Option<Pid> {
    let (pid, rest) = name.strip_prefix("loadline-")?.split_once('-')?;
    let (random, _) = rest.split_once('-')?;
    let ours = random.len() == 8 && random.bytes().all(|b| b.is_ascii_hexdigit());
    pid.parse().ok().filter(|pid| ours && *pid > 0).map(Pid::from_raw)
}

/// Removes what a run left behind that was killed: groups without any process, whose maker is gone.
fn sweep(base: &Path, now: SystemTime) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten().take(LOOKED_AT) {
        let Some(pid) = entry.file_name().to_str().and_then(maker) else { continue };
        let made = entry.metadata().and_then(|m| m.modified());
        let is_old = made.is_ok_and(|made| now.duration_since(made).is_ok_and(|age| age >= LEFT_BEHIND_AGE));
        if is_old && kill(pid, None) == Err(Errno::ESRCH) {
            // The kernel refuses it for a group that has a process.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The control groups of one node. To be removed with [`NodeGroups::remove`] when its workers have ended; dropping
/// it tries once.
#[derive(Debug, Default)]
pub(crate) struct NodeGroups {
    folders: Vec<PathBuf>,
}

impl NodeGroups {
    /// Makes what the node's limits need, under names that begin with `prefix`. Without limits, nothing.
    pub(crate) fn make(node: &NodeSpec, prefix: &str) -> Result<NodeGroups, FleetError> {
        let mut groups = NodeGroups::default();
        let limits = limits(node);
        if limits.is_empty() {
            return Ok(groups);
        }
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|e| FleetError::failed(format!("cannot read {path}: {e}")))
        };
        let (mounted, own) = (hierarchies(&read("/proc/self/mountinfo")?), read("/proc/self/cgroup")?);
        for base in mounted.iter().flat_map(|hierarchy| hierarchy.bases(&own)) {
            sweep(&base, SystemTime::now());
        }
        let name = format!("{prefix}-{}", node.name);
        for limit in limits {
            groups.impose(&limit, &name, &mounted, &own, node)?;
        }
        Ok(groups)
    }

    /// The folders that a worker of the node moves into.
    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    fn impose(
        &mut self,
        limit: &Limit,
        name: &str,
        mounted: &[Hierarchy],
        own: &str,
        node: &NodeSpec,
    ) -> Result<(), FleetError> {
        let mut failures = Vec::new();
        for hierarchy in mounted.iter().filter(|h| h.has(limit.controller)) {
            for base in hierarchy.bases(own) {
                match self.impose_below(limit, &base, name, hierarchy.v1.is_some()) {
                    Ok(()) => return Ok(()),
                    Err((path, error)) => failures.push(format!("{}: {error}", path.display())),
                }
            }
        }
        let why = match failures.is_empty() {
            true => {
                format!("no control group hierarchy with the controller \"{}\" is mounted", limit.controller)
            }
            false => format!("no control group can be made ({})", failures.join("; ")),
        };
        Err(FleetError::usage(format!(
            "node {}: its {}_limit cannot be set: {why}. Run it as root, or in a group given to you \
             (systemd-run --user --scope -p Delegate=yes), or leave the limit out",
            node.name, limit.controller
        )))
    }

    fn impose_below(
        &mut self,
        limit: &Limit,
        base: &Path,
        name: &str,
        v1: bool,
    ) -> Result<(), (PathBuf, io::Error)> {
        let write = |path: PathBuf, value: &str| fs::write(&path, value).map_err(|e| (path, e));
        if !v1 {
            write(base.join("cgroup.subtree_control"), &format!("+{}", limit.controller))?;
        }
        let folder = base.join(name);
        let new = !self.folders.contains(&folder);
        if new {
            fs::create_dir(&folder).map_err(|e| (folder.clone(), e))?;
        }
        let files = if v1 { &limit.v1 } else { &limit.v2 };
        let written = files.iter().try_for_each(|(file, value)| write(folder.join(file), value));
        match (new, &written) {
            (true, Ok(())) => self.folders.push(folder),
            // The next place gets a group of its own.
            (true, Err(_)) => drop(fs::remove_dir(&folder)),
            (false, _) => {}
        }
        written
    }

    /// Removes the groups. Their processes have been ended; what the kernel has not buried in time stays.
    pub(crate) async fn remove(mut self) {
        let deadline = Instant::now() + REMOVE_LIMIT;
        loop {
            self.folders
                .retain(|folder| fs::remove_dir(folder).is_err_and(|e| e.kind() != io::ErrorKind::NotFound));
            if self.folders.is_empty() || Instant::now() >= deadline {
                return;
            }
            sleep(REMOVE_PAUSE).await;
        }
    }
}

impl Drop for NodeGroups {
    fn drop(&mut self) {
        for folder in &self.folders {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_base::units::ByteSize;

    const MOUNTS: &str = "\
24 1 0:22 / / rw - ext4 /dev/vda rw
30 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
31 24 0:27 /docker/abc /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory
32 24 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const OWN: &str = "4:memory:/docker/abc/run\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/user.slice\n";

    #[test]
    fn both_versions_are_found_where_they_are_mounted() {
        let found = hierarchies(MOUNTS);
        assert_eq!(found.len(), 3);
        assert!(found[0].has("cpu") && !found[0].has("memory") && found[1].has("memory"));
        assert_eq!(found[1].mount, Path::new("/sys/fs/cgroup/mem ory"));
        assert_eq!(found[2].v1, None);
    }

    #[test]
    fn a_group_is_made_below_ones_own_as_it_is_seen_through_the_mount() {
        let found = hierarchies(MOUNTS);
        assert_eq!(found[0].bases(OWN), [PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")]);
        assert_eq!(found[1].bases(OWN)[0], Path::new("/sys/fs/cgroup/mem ory/run"));
        assert_eq!(found[2].bases(OWN)[0], Path::new("/sys/fs/cgroup/unified/user.slice"));
        assert_eq!(found[1].bases("0::/\n"), [PathBuf::from("/sys/fs/cgroup/mem ory")]);
    }

    #[test]
    fn what_a_killed_run_left_behind_is_removed_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let (gone, here) = (ended.id(), std::process::id());
        let left = format!("loadline-{gone}-0123abcd-node-1");
        let kept = [
            format!("loadline-{here}-0123abcd-node-1"),
            format!("loadline-{gone}-node"),
            "loadline-0-0123abcd-node".into(),
            "loadline--1-0123abcd-node".into(),
            "loadline-x-0123abcd-node".into(),
            format!("other-{gone}-0123abcd-node"),
        ];
        for name in kept.iter().chain([&left]) {
            fs::create_dir(base.path().join(name)).unwrap();
        }
        sweep(base.path(), SystemTime::now());
        assert!(base.path().join(&left).exists(), "a group that was just made may be another container's");
        sweep(base.path(), SystemTime::now() + LEFT_BEHIND_AGE * 2);
        assert!(!base.path().join(&left).exists());
        assert!(kept.iter().all(|name| base.path().join(name).exists()));
    }

    #[test]
    fn limits_are_written_as_the_kernel_takes_them() {
        let node =
            NodeSpec { cpu_limit: Some(1.5), memory_limit: Some(ByteSize(64 << 20)), ..NodeSpec::named("a") };
        let limits = limits(&node);
        assert_eq!(limits[0].v2, [("cpu.max", "150000 100000".to_string())]);
        assert_eq!(limits[0].v1[1], ("cpu.cfs_quota_us", "150000".to_string()));
        assert_eq!(limits[1].v1, [("memory.limit_in_bytes", "67108864".to_string())]);
    }

    #[test]
    fn where_no_group_can_be_made_the_message_names_the_place_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("missing");
        let mounted = [Hierarchy { v1: Some(vec!["cpu".into()]), root: "/".into(), mount: mount.clone() }];
        let node = NodeSpec { cpu_limit: Some(1.0), ..NodeSpec::named("a") };
        let mut groups = NodeGroups::default();
        let error = groups.impose(&limits(&node)[0], "x", &mounted, "1:cpu:/\n", &node).unwrap_err();
        assert!(
            error.message.contains(mount.to_str().unwrap()) && error.message.contains("cpu_limit"),
            "{error}"
        );
        let error = groups.impose(&limits(&node)[0], "x", &[], "", &node).unwrap_err();
        assert!(error.message.contains("no control group hierarchy"), "{error}");
    }

    #[test]
    fn groups_that_are_made_hold_the_limits_and_are_removed() {
        let node =
            NodeSpec { cpu_limit: Some(0.5), memory_limit: Some(ByteSize(64 << 20)), ..NodeSpec::named("n") };
        let prefix = format!("loadline-test-{}", std::process::id());
        let Ok(groups) = NodeGroups::make(&node, &prefix) else {
            eprintln!("skipped: no right to make control groups here");
            return;
        };
        let folders = groups.folders().to_vec();
        assert!(!folders.is_empty() && folders.iter().all(|f| f.join("cgroup.procs").exists()));
        let written = |file: &str| {
            folders
                .iter()
                .find_map(|f| fs::read_to_string(f.join(file)).ok())
                .map(|text| text.trim().to_string())
        };
        let memory = written("memory.max").or_else(|| written("memory.limit_in_bytes"));
        assert_eq!(memory.as_deref(), Some("67108864"));
        let cpu = written("cpu.max").or_else(|| written("cpu.cfs_quota_us")).unwrap();
        assert!(cpu.starts_with("50000"), "{cpu}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(groups.remove());
        assert!(folders.iter().all(|f| !f.exists()));
    }
}
