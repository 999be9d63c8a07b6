//! The control groups of one node, of either version: made with limits, given processes, removed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::error::GroupError;
use crate::hierarchy::{Hierarchy, hierarchies};
use crate::limits::{Limit, Limits};

/// The longest time for which the removal of a group is retried: the kernel refuses it until it has released the last process.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two tries.
const REMOVE_PAUSE: Duration = Duration::from_millis(20);
/// A group of a run that is gone is removed when it is at least so old: a process id is not the same in every
/// container, and a run that begins has groups without processes.
const LEFT_BEHIND_AGE: Duration = Duration::from_secs(60);
/// The most groups of one folder that are inspected.
const LOOKED_AT: usize = 4096;
/// The length of the random part of a group's name, bytes; two digits each.
const RANDOM_BYTES: usize = 4;

/// How the names of all groups of a run begin: `loadline-PID-RANDOM`, with the id of the process that makes them. By this name
/// [`NodeGroups::make`] finds and removes groups whose run was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPrefix(String);

impl RunPrefix {
    /// A prefix that no other run has. The error says that the system gives no random numbers.
    pub fn new() -> Result<RunPrefix, GroupError> {
        let mut random = [0u8; RANDOM_BYTES];
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random));
        read.map_err(|e| GroupError::Failed(format!("cannot read /dev/urandom: {e}")))?;
        let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(RunPrefix(format!("loadline-{}-{random}", std::process::id())))
    }
}

/// The process that made a group, if the group is one of a run: `loadline-PID-RANDOM-NODE`.
fn maker(name: &str) -> Option<Pid> {
    let (pid, rest) = name.strip_prefix("loadline-")?.split_once('-')?;
    let (random, _) = rest.split_once('-')?;
    let ours = random.len() == 2 * RANDOM_BYTES && random.bytes().all(|b| b.is_ascii_hexdigit());
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

/// The control groups of one node: none if the node has no limits. When the processes in the groups have ended, remove the groups
/// with [`NodeGroups::remove`]. Dropping this tries to remove the groups once.
#[derive(Debug, Default)]
pub struct NodeGroups {
    folders: Vec<PathBuf>,
}

/// How often processes of a node used up the cores that they may use. The kernel counts in periods of 0.1 s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuPeriods {
    /// Periods in which a process had work.
    pub with_work: u64,
    /// Periods of these in which the processes had to wait, because they had used up their cores.
    pub used_up: u64,
}

impl CpuPeriods {
    /// What was counted since `before`.
    pub fn since(self, before: CpuPeriods) -> CpuPeriods {
        CpuPeriods {
            with_work: self.with_work.saturating_sub(before.with_work),
            used_up: self.used_up.saturating_sub(before.used_up),
        }
    }

    /// The counts of a `cpu.stat`, which has the same names in both versions.
    fn of(stat: &str) -> Option<CpuPeriods> {
        let count = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        Some(CpuPeriods { with_work: count("nr_periods ")?, used_up: count("nr_throttled ")? })
    }
}

impl NodeGroups {
    /// Makes what the limits of a node need, after it has removed groups that killed runs left. Without limits it does nothing.
    /// The error names the limit that cannot be set, and says what to do.
    pub fn make(node: &str, limits: &Limits, prefix: &RunPrefix) -> Result<NodeGroups, GroupError> {
        let mut groups = NodeGroups::default();
        let limits = limits.each();
        if limits.is_empty() {
            return Ok(groups);
        }
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|e| GroupError::Failed(format!("cannot read {path}: {e}")))
        };
        let (mounted, own) = (hierarchies(&read("/proc/self/mountinfo")?), read("/proc/self/cgroup")?);
        for base in mounted.iter().flat_map(|hierarchy| hierarchy.bases(&own)) {
            sweep(&base, SystemTime::now());
        }
        for limit in limits {
            groups.impose(&limit, node, prefix, &mounted, &own)?;
        }
        Ok(groups)
    }

    /// The folders of the groups: a process of the node is in each of them.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// How often the processes used up their cores since the groups were made; `None` without a limit of cores.
    pub fn cpu_periods(&self) -> Option<CpuPeriods> {
        let stats = self.folders.iter().filter_map(|folder| fs::read_to_string(folder.join("cpu.stat")).ok());
        stats.into_iter().find_map(|stat| CpuPeriods::of(&stat))
    }

    /// Moves a process into the groups, with all its threads.
    pub fn admit(&self, process: u32) -> Result<(), GroupError> {
        self.folders.iter().try_for_each(|folder| {
            let processes = folder.join("cgroup.procs");
            fs::write(&processes, process.to_string()).map_err(|e| {
                GroupError::Failed(format!(
                    "cannot move the process {process} into the control group {}: {e}",
                    processes.display()
                ))
            })
        })
    }

    fn impose(
        &mut self,
        limit: &Limit,
        node: &str,
        prefix: &RunPrefix,
        mounted: &[Hierarchy],
        own: &str,
    ) -> Result<(), GroupError> {
        let name = format!("{}-{node}", prefix.0);
        let mut failures = Vec::new();
        for hierarchy in mounted.iter().filter(|h| h.has(limit.controller)) {
            for base in hierarchy.bases(own) {
                match self.impose_below(limit, &base, &name, hierarchy.v1.is_some()) {
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
        Err(GroupError::Usage(format!(
            "node {node}: its {}_limit cannot be set: {why}. Run it as root, or in a group given to you \
             (systemd-run --user --scope -p Delegate=yes), or leave the limit out",
            limit.controller
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

    /// Removes the groups, whose processes have ended. Blocks for at most 2 s; what the kernel has not released by then stays.
    pub fn remove(mut self) {
        let begun = Instant::now();
        while !self.try_remove() && begun.elapsed() < REMOVE_LIMIT {
            sleep(REMOVE_PAUSE);
        }
    }

    /// Tries to remove the groups once. Whether none is left.
    fn try_remove(&mut self) -> bool {
        let is_left =
            |folder: &PathBuf| fs::remove_dir(folder).is_err_and(|e| e.kind() != io::ErrorKind::NotFound);
        self.folders.retain(is_left);
        self.folders.is_empty()
    }
}

impl Drop for NodeGroups {
    fn drop(&mut self) {
        self.try_remove();
    }
}

#[cfg(test)]
mod tests {
    use loadline_base::units::ByteSize;

    use super::*;

    #[test]
    fn what_a_killed_run_left_behind_is_removed_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let (gone, here) = (ended.id(), std::process::id());
        let left = format!("loadline-{gone}-0123abcd-node-1");
        let kept = [
            format!("{}-node-1", RunPrefix::new().unwrap().0),
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
    fn a_group_names_the_process_that_made_it() {
        let (one, other) = (RunPrefix::new().unwrap(), RunPrefix::new().unwrap());
        assert_ne!(one, other);
        assert_eq!(maker(&format!("{}-node-1", one.0)), Some(nix::unistd::getpid()));
    }

    #[test]
    fn periods_are_read_from_either_version() {
        let v1 = "nr_periods 120\nnr_throttled 30\nthrottled_time 12345\n";
        let v2 =
            "usage_usec 1\nuser_usec 1\nsystem_usec 0\nnr_periods 120\nnr_throttled 30\nthrottled_usec 12\n";
        let found = CpuPeriods { with_work: 120, used_up: 30 };
        assert_eq!((CpuPeriods::of(v1), CpuPeriods::of(v2)), (Some(found), Some(found)));
        assert_eq!(CpuPeriods::of("usage_usec 1\n"), None, "a group without a limit");
        let before = CpuPeriods { with_work: 100, used_up: 30 };
        assert_eq!(found.since(before), CpuPeriods { with_work: 20, used_up: 0 });
    }

    #[test]
    fn where_no_group_can_be_made_the_message_names_the_place_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("missing");
        let mounted = [Hierarchy { v1: Some(vec!["cpu".into()]), root: "/".into(), mount: mount.clone() }];
        let limit = &Limits { cores: Some(1.0), memory: None }.each()[0];
        let prefix = RunPrefix::new().unwrap();
        let mut groups = NodeGroups::default();
        let error = groups.impose(limit, "a", &prefix, &mounted, "1:cpu:/\n").unwrap_err();
        assert!(matches!(error, GroupError::Usage(_)), "{error:?}");
        let error = error.to_string();
        assert!(
            error.contains(mount.to_str().unwrap()) && error.contains("node a: its cpu_limit"),
            "{error}"
        );
        let error = groups.impose(limit, "a", &prefix, &[], "").unwrap_err().to_string();
        assert!(error.contains("no control group hierarchy"), "{error}");
    }

    #[test]
    fn groups_that_are_made_hold_the_limits_and_the_processes_and_are_removed() {
        let limits = Limits { cores: Some(0.5), memory: Some(ByteSize(64 << 20)) };
        let groups = match NodeGroups::make("n", &limits, &RunPrefix::new().unwrap()) {
            Ok(groups) => groups,
            Err(error) => {
                assert!(matches!(error, GroupError::Usage(_)), "{error:?}");
                assert!(error.to_string().contains("Run it as root"), "{error}");
                return;
            }
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
        assert_eq!(groups.cpu_periods(), Some(CpuPeriods::default()), "nothing has run in it");
        let mut process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        groups.admit(process.id()).unwrap();
        let inside = |f: &PathBuf| fs::read_to_string(f.join("cgroup.procs")).unwrap().trim().to_string();
        let all: Vec<String> = folders.iter().map(inside).collect();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(all.iter().all(|one| *one == process.id().to_string()), "{all:?}");
        let gone = groups.admit(process.id()).unwrap_err();
        assert!(gone.to_string().contains("cannot move the process"), "{gone}");
        groups.remove();
        assert!(folders.iter().all(|f| !f.exists()));
    }
}
