//! Where the system has control groups.
//!
//! A controller (`cpu`, `memory`) hangs either on a version 1 hierarchy or on the one of version 2, and hosts mix
//! them. Groups are made below this process's own group where that is possible, so that what limits the run
//! limits its processes too, and else at the root of what is mounted.

use std::fs;
use std::path::{Path, PathBuf};

/// One mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    /// Controllers in version 1; `None` is version 2.
    pub(crate) v1: Option<Vec<String>>,
    /// Which group is visible at the mount point.
    pub(crate) root: PathBuf,
    pub(crate) mount: PathBuf,
}

/// The control groups mounted in this process's view, from `/proc/self/mountinfo`.
pub(crate) fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
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
    /// Whether groups of this hierarchy have the controller.
    pub(crate) fn has(&self, controller: &str) -> bool {
        match &self.v1 {
            Some(controllers) => controllers.iter().any(|c| c == controller),
            None => fs::read_to_string(self.mount.join("cgroup.controllers"))
                .is_ok_and(|all| all.split_whitespace().any(|c| c == controller)),
        }
    }

    /// The groups below which a new one may be made, best first; `own` is `/proc/self/cgroup`.
    pub(crate) fn bases(&self, own: &str) -> Vec<PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
