//! The layers below a file or a block device, down to memory: mounts, the folders of an overlay, files behind loop devices, and
//! the devices below device-mapper and md.

use std::fs;
use std::path::{Path, PathBuf};

/// File systems that keep their files in memory.
const MEMORY: [&str; 5] = ["tmpfs", "ramfs", "devtmpfs", "rootfs", "hugetlbfs"];
/// Beginnings of the names of block devices that keep their blocks in memory or nowhere; a number follows.
const MEMORY_DEVICES: [&str; 3] = ["ram", "zram", "nullb"];
/// Models of SCSI disks that the kernel keeps in memory.
const MEMORY_MODELS: [&str; 2] = ["scsi_debug", "RAMDISK"];
/// Layers are followed to this depth: mounts of overlays may form a circle.
const DEEPEST: u32 = 16;

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// The device's number, `MAJOR:MINOR`.
    number: String,
    /// Where it is mounted.
    point: PathBuf,
    /// Options of the mount.
    options: String,
    /// The type of the file system.
    system: String,
    /// What is mounted: a device, for most file systems with one.
    source: String,
    /// Options of the file system.
    details: String,
}

/// The mounts and block devices of a host whose `/proc`, `/sys` and files lie below a folder.
#[derive(Debug)]
pub(super) struct Layers<'a> {
    root: &'a Path,
    mounts: Vec<Mount>,
}

impl<'a> Layers<'a> {
    pub(super) fn read(root: &'a Path) -> Layers<'a> {
        let text = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        Layers { root, mounts: text.lines().filter_map(Mount::parse).collect() }
    }

    /// The file system that holds a path, and its mount options.
    pub(super) fn file_system(&self, path: &Path) -> Option<String> {
        let mount = self.mount_of(&self.real(path))?;
        Some(format!("{} ({})", mount.system, mount.options))
    }

    /// The folder in sysfs of the whole disk below the file system that holds a path; `None` if there is no such device, or
    /// several.
    pub(super) fn device_of_file(&self, path: &Path) -> Option<PathBuf> {
        self.device_of(self.mount_of(&self.real(path))?)
    }

    /// The folder in sysfs of the whole disk with a number, `MAJOR:MINOR`; a partition's is its disk's.
    pub(super) fn device(&self, number: &str) -> Option<PathBuf> {
        whole_disk(&self.root.join("sys/dev/block").join(number))
    }

    /// The layers from the file system that holds a path down to memory, in words; `None` if none of them is known to be memory.
    pub(super) fn memory_of_file(&self, path: &Path) -> Option<String> {
        self.memory_below_path(path, 0)
    }

    /// The layers from a disk's folder in sysfs down to memory, in words; `None` if none of them is known to be memory.
    pub(super) fn memory_of_device(&self, folder: &Path) -> Option<String> {
        self.memory_below_device(folder, 0)
    }

    fn memory_below_path(&self, path: &Path, depth: u32) -> Option<String> {
        if depth > DEEPEST {
            return None;
        }
        let mount = self.mount_of(&self.real(path))?;
        if MEMORY.contains(&mount.system.as_str()) {
            return Some(mount.system.clone());
        }
        if mount.system == "overlay" {
            let below = mount.folders().into_iter().filter(|folder| self.below_root(folder).exists());
            let found = below.filter_map(|folder| self.memory_below_path(&folder, depth + 1)).next();
            return found.map(|below| format!("overlay over {below}"));
        }
        self.memory_below_device(&self.device_of(mount)?, depth + 1)
    }

    fn memory_below_device(&self, folder: &Path, depth: u32) -> Option<String> {
        if depth > DEEPEST {
            return None;
        }
        let name = folder.file_name()?.to_string_lossy().into_owned();
        let numbered = |begin: &str| {
            name.strip_prefix(begin).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let model = fs::read_to_string(folder.join("device/model")).unwrap_or_default();
        if MEMORY_DEVICES.iter().any(|begin| numbered(begin))
            || MEMORY_MODELS.iter().any(|known| model.starts_with(known))
        {
            return Some(name);
        }
        let over = |below: String| format!("{name} over {below}");
        if let Ok(file) = fs::read_to_string(folder.join("loop/backing_file")) {
            let file = file.trim_end_matches('\n');
            // The kernel adds this to the name of a file without one.
            let file = file.strip_suffix(" (deleted)").unwrap_or(file);
            return self.memory_below_path(Path::new(file), depth + 1).map(over);
        }
        let below = fs::read_dir(folder.join("slaves")).ok()?;
        let disks = below.flatten().filter_map(|entry| whole_disk(&entry.path()));
        disks.filter_map(|disk| self.memory_below_device(&disk, depth + 1)).next().map(over)
    }

    /// The mount that a real path is on: of those at the deepest folder of the path, the last, which hides the others.
    fn mount_of(&self, path: &Path) -> Option<&Mount> {
        let holds = self.mounts.iter().filter(|mount| path.starts_with(&mount.point));
        holds.max_by_key(|mount| mount.point.components().count())
    }

    /// The disk below a file system: by its number, or by its source if the number is no block device's, as of btrfs.
    fn device_of(&self, mount: &Mount) -> Option<PathBuf> {
        let by_source = || {
            let real = self.real(Path::new(&mount.source));
            let name = real.strip_prefix("/dev").ok()?.to_str()?.replace('/', "!");
            whole_disk(&self.root.join("sys/class/block").join(name))
        };
        self.device(&mount.number).or_else(by_source)
    }

    fn below_root(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A path without symbolic links; the path itself if it does not exist.
    fn real(&self, path: &Path) -> PathBuf {
        if path.is_relative() {
            return fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        }
        let real = fs::canonicalize(self.below_root(path)).ok();
        let real = real.and_then(|real| Some(Path::new("/").join(real.strip_prefix(self.root).ok()?)));
        real.unwrap_or_else(|| path.to_path_buf())
    }
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let (mount, rest) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(2);
        let (number, _, point, options) = (mount.next()?, mount.next()?, mount.next()?, mount.next()?);
        let mut rest = rest.split(' ');
        Some(Mount {
            number: number.into(),
            point: unescaped(point).into(),
            options: options.into(),
            system: rest.next()?.into(),
            source: unescaped(rest.next().unwrap_or_default()),
            details: unescaped(rest.next().unwrap_or_default()),
        })
    }

    /// The folders of an overlay: that of its writes first.
    fn folders(&self) -> Vec<PathBuf> {
        let options = || self.details.split(',');
        let upper = options().filter_map(|option| option.strip_prefix("upperdir="));
        let lower = options()
            .filter_map(|option| option.strip_prefix("lowerdir=").or(option.strip_prefix("lowerdir+=")));
        upper
            .chain(lower.flat_map(|all| all.split(':')))
            .filter(|one| !one.is_empty())
            .map(PathBuf::from)
            .collect()
    }
}

/// The folder of a whole disk, of a link to its folder or to that of a partition of it.
fn whole_disk(link: &Path) -> Option<PathBuf> {
    let folder = fs::canonicalize(link).ok()?;
    if folder.join("partition").exists() { folder.parent().map(Path::to_path_buf) } else { Some(folder) }
}

/// A field of `mountinfo`, in which blanks and backslashes are octal numbers.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_string(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /dev rw,nosuid - devtmpfs udev rw,size=1k
23 21 0:30 / /mem rw - tmpfs tmpfs rw
24 21 0:40 / /merged rw,relatime - overlay overlay rw,lowerdir=/low:/low2,upperdir=/mem/up,workdir=/mem/work
25 21 0:41 / /kept rw - overlay overlay rw,lowerdir=/low,upperdir=/up,workdir=/work
26 21 0:42 / /hidden rw - overlay overlay rw,lowerdir=/nowhere,upperdir=/not/seen
27 21 7:0 / /looped rw - ext4 /dev/loop0 rw
28 21 253:0 / /mapped rw - xfs /dev/mapper/x rw
29 21 0:50 / /trees rw - btrfs /dev/loop0 rw
30 21 0:60 / /on\\040disk rw - ext4 /dev/sda1 rw
31 21 0:61 / /circle rw - overlay overlay rw,upperdir=/circle/up
";

    /// A host with a disk `sda`, loop devices, mapped devices and a RAID.
    fn host() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |path: &str, text: &str| {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        };
        write("proc/self/mountinfo", MOUNTS);
        for folder in [
            "low",
            "low2",
            "up",
            "mem/up",
            "merged",
            "circle/up",
            "dev/mapper",
            "sys/dev/block",
            "sys/class/block",
        ] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        write("sys/devices/sda/sda1/partition", "1\n");
        write("sys/devices/loop0/loop/backing_file", "/mem/image (deleted)\n");
        write("sys/devices/loop1/loop/backing_file", "/images/one\n");
        write("sys/devices/ram0/size", "1\n");
        write("sys/devices/sdz/device/model", "scsi_debug      \n");
        for (name, slaves) in
            [("dm-0", vec!["sda/sda1", "md0"]), ("md0", vec!["loop0"]), ("dm-1", vec!["sda/sda1"])]
        {
            let folder = root.join("sys/devices").join(name).join("slaves");
            fs::create_dir_all(&folder).unwrap();
            for slave in slaves {
                let last = slave.rsplit('/').next().unwrap();
                symlink(root.join("sys/devices").join(slave), folder.join(last)).unwrap();
            }
        }
        for (number, device) in [("8:1", "sda/sda1"), ("7:0", "loop0"), ("253:0", "dm-0")] {
            symlink(root.join("sys/devices").join(device), root.join("sys/dev/block").join(number)).unwrap();
        }
        symlink(root.join("sys/devices/loop0"), root.join("sys/class/block/loop0")).unwrap();
        folder
    }

    #[test]
    fn memory_is_found_below_a_file_through_every_layer() {
        let folder = host();
        let root = folder.path().canonicalize().unwrap();
        let layers = Layers::read(&root);
        let below = |path: &str| layers.memory_of_file(Path::new(path));
        for (path, found) in [
            ("/mem/x", Some("tmpfs")),
            ("/dev/x", Some("devtmpfs")),
            ("/merged/x", Some("overlay over tmpfs")),
            ("/looped/x", Some("loop0 over tmpfs")),
            ("/trees/x", Some("loop0 over tmpfs")),
            ("/mapped/x", Some("dm-0 over md0 over loop0 over tmpfs")),
            ("/x", None),
            ("/kept/x", None),
            ("/on disk/x", None),
            // What is below is not visible, or the layers form a circle.
            ("/hidden/x", None),
            ("/circle/x", None),
        ] {
            assert_eq!(below(path).as_deref(), found, "{path}");
        }
        // The deepest mount counts, and of two at one place the later one.
        assert_eq!(layers.file_system(Path::new("/merged/x")).as_deref(), Some("overlay (rw,relatime)"));
        assert_eq!(layers.file_system(Path::new("/on disk/x")).as_deref(), Some("ext4 (rw)"));
    }

    #[test]
    fn memory_is_found_below_a_device() {
        let folder = host();
        let root = folder.path().canonicalize().unwrap();
        let layers = Layers::read(&root);
        let below = |name: &str| layers.memory_of_device(&root.join("sys/devices").join(name));
        for (name, found) in [
            ("ram0", Some("ram0")),
            ("sdz", Some("sdz")),
            ("loop0", Some("loop0 over tmpfs")),
            ("loop1", None),
            ("dm-1", None),
            ("sda", None),
        ] {
            assert_eq!(below(name).as_deref(), found, "{name}");
        }
        // A partition's disk is the whole one.
        assert_eq!(layers.device("8:1"), Some(root.join("sys/devices/sda")));
    }
}
