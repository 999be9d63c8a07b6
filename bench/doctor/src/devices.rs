//! The disks to check: those that are named, or every whole disk of the kernel.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use loadline_base::in_use::holder_of_device;
use nix::libc;

use crate::root::Root;

/// Beginnings of names that are no disks, or lie on others: they are checked only if they are named.
const NO_DISKS: [&str; 7] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd"];

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name of the whole disk, such as `nvme0n1`.
    pub name: String,
    /// Its folder in sysfs.
    pub folder: PathBuf,
    /// The user of the device or a part of it, in words; `None` if the kernel reports none.
    pub holder: Option<String>,
}

/// Every whole disk with a size, in the order of their names.
pub fn whole_disks(root: &Root) -> Vec<Device> {
    let mut disks = root.names("sys/block");
    disks.retain(|name| !NO_DISKS.iter().any(|none| name.starts_with(none)));
    disks.retain(|name| root.number(format!("sys/block/{name}/size")).is_some_and(|sectors| sectors > 0));
    let device = |name: String| {
        let link = root.path("sys/block").join(&name);
        let holder = root.line(format!("sys/block/{name}/dev")).and_then(|number| {
            let (major, minor) = number.split_once(':')?;
            holder_of_device(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
        });
        Device { folder: fs::canonicalize(&link).unwrap_or(link), name, holder }
    };
    disks.into_iter().map(device).collect()
}

/// The disk that a path such as `/dev/sdb`, or a name such as `sdb`, stands for, or that it is a partition of. Why it is none,
/// and what to do, if it is none.
pub fn named(path: &Path) -> Result<Device, String> {
    let path = match path.components().count() == 1 && !path.exists() {
        true => Path::new("/dev").join(path),
        false => path.to_path_buf(),
    };
    let shown = path.display();
    let metadata = fs::metadata(&path).map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => {
            format!("the device {shown} does not exist: lsblk shows all devices")
        }
        _ => format!("the device {shown} cannot be checked: {why}"),
    })?;
    if !metadata.file_type().is_block_device() {
        return Err(format!(
            "{shown} is no block device: lsblk shows which there are; durable writes to a file are measured with \
             --folder DIR"
        ));
    }
    let number = metadata.rdev();
    let own = PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number)));
    let folder = fs::canonicalize(&own).map_err(|why| {
        format!("{}, which is {shown}, cannot be checked: {why}: is /sys mounted?", own.display())
    })?;
    let folder = match folder.join("partition").exists() {
        true => folder.parent().map(Path::to_path_buf).unwrap_or(folder),
        false => folder,
    };
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Device { name, folder, holder: holder_of_device(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::fixture;

    #[test]
    fn disks_are_those_that_have_a_size_and_lie_on_no_other() {
        let names = ["loop0", "zram0", "dm-3", "md0", "sr0", "nvme10n1", "nvme2n1", "vda", "nbd0"];
        let files: Vec<(String, &str)> = names
            .iter()
            .map(|name| (format!("sys/block/{name}/size"), if *name == "nbd0" { "0\n" } else { "2048\n" }))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        let (_folder, root) = fixture(&files);
        let found: Vec<String> = whole_disks(&root).into_iter().map(|device| device.name).collect();
        assert_eq!(found, ["nvme2n1", "nvme10n1", "vda"]);
    }

    #[test]
    fn what_is_no_disk_is_said_to_be_none() {
        let refused = |path: &str, words: &str| {
            let why = named(Path::new(path)).unwrap_err();
            assert!(why.contains(words) && why.contains("lsblk"), "{why}");
        };
        refused("/dev/none", "/dev/none does not exist");
        refused("none-of-this-name", "/dev/none-of-this-name does not exist");
        refused("/dev/null", "no block device");
        refused("/proc/version", "--folder");
    }
}
