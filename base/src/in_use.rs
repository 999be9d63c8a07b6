//! The users of a device or a file, because of which it must be left alone.
//!
//! Everything is compared by identity (device and inode, or device number), never by the text of a path: hard links,
//! bind mounts and other namespaces give one file many names.

mod loops;
mod processes;

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

pub use processes::opener_of_device;

/// What a path leads to, so that it is known again under other names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// A block device, by its number (`st_rdev`).
    Device(u64),
    /// Any other file, by its device and inode.
    File(u64, u64),
}

impl Identity {
    /// Of what this metadata is of.
    pub fn of(metadata: &Metadata) -> Identity {
        if metadata.file_type().is_block_device() {
            Identity::Device(metadata.rdev())
        } else {
            Identity::File(metadata.dev(), metadata.ino())
        }
    }
}

/// The user of this block device, a part of it or the disk that it is a part of, or of this file as a disk; `None` if
/// the kernel reports none. An exclusive open, and locks, show the rest.
pub fn holder_of(identity: Identity) -> Option<String> {
    match identity {
        Identity::Device(number) => holder_of_device(number),
        Identity::File(..) if is_swap(identity) => Some("it is swap space".into()),
        Identity::File(..) => loops::over(identity).map(|name| format!("it is behind /dev/{name}")),
    }
}

/// The user of the block device with this number (`st_rdev`), a part of it or the disk that it is a part of, in words; `None`
/// if the kernel reports none: it does not report which process opened it exclusively.
pub fn holder_of_device(number: u64) -> Option<String> {
    parts_of(number).into_iter().find_map(|part| {
        let number = fs::read_to_string(part.join("dev")).ok()?;
        let number = number.trim();
        let (major, minor) = number.split_once(':')?;
        let identity = Identity::Device(libc::makedev(major.parse().ok()?, minor.parse().ok()?));
        let name = fs::canonicalize(&part).ok()?.file_name()?.to_string_lossy().into_owned();
        mount_of(number)
            .map(|place| format!("{name} is mounted on {place}"))
            .or_else(|| is_swap(identity).then(|| format!("{name} is swap space")))
            .or_else(|| loops::over(identity).map(|by| format!("{name} is behind /dev/{by}")))
            .or_else(|| {
                let holder = fs::read_dir(part.join("holders")).ok()?.flatten().next()?;
                let holder = holder.file_name().to_string_lossy().into_owned();
                Some(format!("{name} is part of {holder} (LVM, md, a crypt volume or a multipath device)"))
            })
    })
}

/// Why what is behind the loop device with this number (`st_rdev`) is in use by others than the loop device, in words: it is locked, or held
/// exclusively. `None` if it is not, or this is no loop device.
pub fn user_behind(number: u64) -> Option<String> {
    let path = loops::behind(number)?;
    let is_device = fs::metadata(&path).ok()?.file_type().is_block_device();
    // Exclusive of a device: it fails while another has claimed it, and claims it for no longer than this.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC | if is_device { libc::O_EXCL } else { 0 };
    let by = |what: &str| Some(format!("{}, which is behind it, is {what}", path.display()));
    match fs::OpenOptions::new().read(true).custom_flags(flags).open(&path) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => by("held exclusively by another user"),
        Err(_) => None,
        Ok(file) => match file.try_lock() {
            Err(fs::TryLockError::WouldBlock) => by("locked by another user"),
            // The lock is given back here.
            _ if is_device => user_behind(fs::metadata(&path).ok()?.rdev()),
            _ => None,
        },
    }
}

/// A device and all that shares its blocks: its partitions, or the disk that it is a partition of.
fn parts_of(number: u64) -> Vec<PathBuf> {
    let own = PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number)));
    let mut parts = vec![own.clone()];
    // A disk's partitions are folders of its own, with a file "partition" in them.
    for entry in fs::read_dir(&own).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            parts.push(entry.path());
        }
    }
    if own.join("partition").exists() {
        parts.extend(fs::canonicalize(&own).ok().and_then(|own| own.parent().map(Path::to_path_buf)));
    }
    parts
}

fn mount_of(number: &str) -> Option<String> {
    // Fields of a line: id, parent, major:minor, root, mount point, ...
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next()? == number).then(|| fields.nth(1).unwrap_or("?").to_string())
    })
}

fn is_swap(identity: Identity) -> bool {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    paths.any(|path| fs::metadata(unescaped(path)).is_ok_and(|m| Identity::of(&m) == identity))
}

/// The kernel writes blanks in a path as `\040`.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(path.to_string(), |path, (written, meant)| path.replace(written, meant))
}
