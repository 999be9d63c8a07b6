//! Byte-range locks of others: QEMU locks its images so, databases their files.
//!
//! QEMU holds only read locks, and says by where they are what it does: a lock on byte 100 + n is a right that it uses
//! (0 reads, 1 to 3 write or resize), one on byte 200 + n a right that it does not grant to others. So:
//!
//! - to write, no other process may hold any lock on any byte;
//! - to read, no other process may hold a write lock, and no QEMU a right to write. One that only reads may share.

use std::os::fd::AsFd;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Where QEMU's locks are, of rights used and rights not granted.
const QEMU: std::ops::Range<i64> = 100..300;
/// Its rights to write, to write what is the same, and to resize.
const QEMU_WRITES: (i64, i64) = (101, 3);

/// The process that has locked this open file against this one. A file system that keeps no locks, or a kernel that does not tell, has
/// no holder.
pub(crate) fn holder_of_locks(file: impl AsFd, write: bool) -> Option<String> {
    if write {
        return conflict(&file, libc::F_WRLCK, (0, 0)).map(|lock| describe(&lock));
    }
    conflict(&file, libc::F_RDLCK, (0, 0)).map(|lock| describe(&lock)).or_else(|| {
        let lock = conflict(&file, libc::F_WRLCK, QEMU_WRITES)?;
        let end = lock.l_start.checked_add(lock.l_len)?;
        // A lock that reaches further is another program's, which reads.
        (lock.l_len > 0 && QEMU.contains(&lock.l_start) && end <= QEMU.end)
            .then(|| "a virtual machine (QEMU) writes to it".into())
    })
}

/// A lock that this one would not be given beside. Length 0 is to the end.
fn conflict(file: &impl AsFd, kind: libc::c_int, (start, length): (i64, i64)) -> Option<libc::flock> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // Ask only: F_OFD_GETLK takes no lock, and needs no right to write.
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).ok()?;
    (libc::c_int::from(lock.l_type) != libc::F_UNLCK).then_some(lock)
}

fn describe(lock: &libc::flock) -> String {
    // Of a lock that belongs to an open file, not a process, the kernel says -1.
    match lock.l_pid {
        1.. => format!("process {} has locked a part of it", lock.l_pid),
        _ => "another program (such as a virtual machine) has locked a part of it".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    fn lock(file: impl AsFd, kind: libc::c_int, start: i64, length: i64) {
        let lock = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start,
            l_len: length,
            l_pid: 0,
        };
        fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    }

    #[test]
    fn a_writer_is_found_and_readers_share() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let open =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let reader = std::fs::File::open({
            open();
            &path
        })
        .unwrap();
        let seen = |write| holder_of_locks(&reader, write).is_some();
        assert!(!seen(true) && !seen(false), "no process holds it");
        let cases = [
            ("QEMU writes: uses reading and writing, grants no writing", vec![(100, 2), (201, 1)], true),
            ("QEMU reads: uses reading, grants no writing", vec![(100, 1), (201, 1)], false),
            ("a database reads", vec![(0, 0)], false),
        ];
        for (what, locks, in_use) in cases {
            let other = open();
            locks.iter().for_each(|(start, length)| lock(&other, libc::F_RDLCK, *start, *length));
            assert!(seen(true), "writing beside: {what}");
            assert_eq!(seen(false), in_use, "reading beside: {what}");
        }
        let other = open();
        lock(&other, libc::F_WRLCK, 1 << 30, 1);
        assert!(seen(true) && seen(false), "another process writes a byte");
    }
}
