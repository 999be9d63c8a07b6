//! The end of a session: file systems are unmounted, so that they are whole.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use loadline_guest::session::DISK;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// How long a file system may be in use by processes that were killed: one may be in the middle of an I/O.
const BUSY_LIMIT: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(50);
/// What this program has mounted itself.
const OWN: [&str; 7] = ["/", "/proc", "/sys", "/dev", "/run", "/tmp", "/dev/pts"];

/// Unmounts all that the session has mounted, the last mounted first. While something is in use, `kill` is called again and again. The error
/// is for people: what cannot be unmounted, and why.
pub(crate) fn unmount_all(kill: impl Fn()) -> Result<(), String> {
    let limit = Instant::now() + BUSY_LIMIT;
    loop {
        let mounts = fs::read_to_string("/proc/mounts")
            .map_err(|e| format!("what is mounted cannot be read from /proc/mounts: {e}"))?;
        let mut failed = Vec::new();
        for Mounted { what, folder } in mounted_by_session(&mounts) {
            if let Err(e) = unmount(&folder) {
                failed.push(format!("{what} cannot be unmounted from {folder}: {}", e.desc()));
            }
        }
        match failed.into_iter().next_back() {
            None => return Ok(()),
            // The one that was mounted first has the disk.
            Some(why) if Instant::now() > limit => return Err(format!("{why}, for {BUSY_LIMIT:?}")),
            Some(_) => {}
        }
        kill();
        thread::sleep(RETRY);
    }
}

/// Unmounts one file system.
pub(crate) fn unmount(folder: &str) -> Result<(), Errno> {
    loop {
        match umount2(folder, MntFlags::empty()) {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    what: String,
    folder: String,
}

/// What the lines of /proc/mounts have beside what this program has mounted, the last one first. Something of the session may be mounted
/// over that.
fn mounted_by_session(mounts: &str) -> Vec<Mounted> {
    let mut own = OWN.to_vec();
    let mut found = Vec::new();
    for line in mounts.lines() {
        let mut words = line.split(' ').map(plain);
        let (Some(what), Some(folder)) = (words.next(), words.next()) else { continue };
        match own.iter().position(|own| *own == folder) {
            Some(at) if !what.starts_with("/dev/") => drop(own.remove(at)),
            _ => found.push(Mounted { what, folder }),
        }
    }
    found.reverse();
    found
}

/// A word of /proc/mounts, where spaces and a few others are written in octal.
fn plain(word: &str) -> String {
    word.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// How many sectors were written to the disk since the machine was started.
pub(crate) fn written_sectors() -> u64 {
    let counts = fs::read_to_string(format!("/sys/class/block/{DISK}/stat")).unwrap_or_default();
    sectors_in(&counts)
}

/// The seventh figure of a block device's `stat`.
fn sectors_in(counts: &str) -> u64 {
    counts.split_whitespace().nth(6).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// How much the kernel has in memory that is not on a disk yet, MiB.
pub(crate) fn unwritten_mib() -> u64 {
    unwritten_in(&fs::read_to_string("/proc/meminfo").unwrap_or_default()).div_ceil(1 << 10)
}

/// The same, KiB.
fn unwritten_in(memory: &str) -> u64 {
    let of = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    of("Dirty:").unwrap_or(0) + of("Writeback:").unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_session_has_mounted_is_found_the_last_first_and_what_this_program_has_is_not() {
        let mounts = "rootfs / rootfs rw 0 0\nproc /proc proc rw 0 0\nsysfs /sys sysfs rw 0 0\ndev /dev devtmpfs rw 0 0\n\
                      tmpfs /run tmpfs rw 0 0\ntmpfs /tmp tmpfs rw 0 0\ndevpts /dev/pts devpts rw 0 0\n\
                      /dev/vda1 /mnt ext4 rw 0 0\nproc /mnt/proc proc rw 0 0\ndev /mnt/dev devtmpfs rw 0 0\n\
                      /dev/loop0 /mnt/a\\040b ext4 rw 0 0\n/dev/vda2 /tmp ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n";
        let found = mounted_by_session(mounts);
        let found: Vec<_> = found.iter().map(|of| (of.what.as_str(), of.folder.as_str())).collect();
        assert_eq!(
            found,
            [
                ("tmpfs", "/tmp"),
                ("/dev/vda2", "/tmp"),
                ("/dev/loop0", "/mnt/a b"),
                ("dev", "/mnt/dev"),
                ("proc", "/mnt/proc"),
                ("/dev/vda1", "/mnt"),
            ]
        );
    }

    #[test]
    fn what_is_still_to_be_written_and_what_was_is_read_from_the_kernel() {
        let memory = "MemTotal: 250000 kB\nDirty:   2048 kB\nWriteback:   1024 kB\nWritebackTmp:  9 kB\n";
        assert_eq!(unwritten_in(memory), 3072);
        assert_eq!(unwritten_in(""), 0);
        assert_eq!(sectors_in("  1  2  3  4  5  6  777  8  9\n"), 777);
        assert_eq!(sectors_in(""), 0);
    }
}
