//! How much memory can be had here.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that can be had, bytes, and whose limit that is.
pub fn available() -> (u64, &'static str) {
    available_in(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

/// The same, where `/proc` and `/sys/fs/cgroup` are these folders.
pub fn available_in(proc: &Path, groups: &Path) -> (u64, &'static str) {
    let host = host(proc);
    match group(proc, groups) {
        Some(group) if group < host => (group, "in the control group that this process runs in"),
        _ => (host, "on this host"),
    }
}

/// What the host has without swapping; a lot, where the kernel does not say.
fn host(proc: &Path) -> u64 {
    let text = fs::read_to_string(proc.join("meminfo")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

/// The files of one version of control groups.
struct Version {
    root: PathBuf,
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

/// What the memory limits of this process's control group, and of those above it, leave.
fn group(proc: &Path, groups: &Path) -> Option<u64> {
    let text = fs::read_to_string(proc.join("self/cgroup")).ok()?;
    let rooms = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let version = if controllers.split(',').any(|c| c == "memory") {
            Version {
                root: groups.join("memory"),
                limit: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                cache: "total_cache",
            }
        } else if number == "0" {
            let unified = groups.join("unified");
            let root = if unified.is_dir() { unified } else { groups.to_path_buf() };
            Version { root, limit: "memory.max", used: "memory.current", cache: "file" }
        } else {
            return None;
        };
        // In a container the path may be one of the host, which is not there: what is there is its own group.
        let path = Path::new(path.trim_start_matches('/'));
        path.ancestors().filter_map(|part| room(&version, &version.root.join(part))).min()
    });
    rooms.min()
}

/// What one group's limit leaves; `None` if it has none.
fn room(version: &Version, group: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // Of a group without a limit, v2 says "max", and v1 a number larger than any memory.
    let limit = number(version.limit)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of = |key: &str| {
        let line = stat.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' '));
        line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    // The page cache goes when memory is needed, except for what lives only there.
    let shared = of("total_shmem").max(of("shmem"));
    let used = number(version.used).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(of(version.cache).saturating_sub(shared))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn the_host_and_every_control_group_above_limit_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, groups) = (folder.path().join("proc"), folder.path().join("groups"));
        let available = || available_in(&proc, &groups);
        assert_eq!(available().0, u64::MAX, "the kernel says nothing");
        write(&proc, &[("meminfo", "MemTotal: 9 kB\nMemAvailable:    8192 kB\n")]);
        assert_eq!(available(), (8 << 20, "on this host"));
        // Version 2: the group above has the limit, and half of what is used is page cache.
        write(&proc, &[("self/cgroup", "0::/a/b\n")]);
        write(&groups, &[("a/b/memory.max", "max\n"), ("a/memory.max", "3000000\n")]);
        write(
            &groups,
            &[("a/memory.current", "1000000\n"), ("a/memory.stat", "file 600000\nshmem 100000\n")],
        );
        assert_eq!(available().0, 2_500_000);
        assert!(available().1.contains("control group"));
        // Version 1, in a container that does not see its own path.
        write(&proc, &[("self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n")]);
        write(&groups, &[("memory/memory.limit_in_bytes", "2000000\n")]);
        assert_eq!(available().0, 2_000_000);
        write(&groups, &[("memory/memory.limit_in_bytes", "9223372036854771712\n")]);
        assert_eq!(available(), (8 << 20, "on this host"));
    }
}
