//! Why a device is not used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use loadline_base::units::ByteSize;

/// Why a device is not used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Nothing is there.
    #[error(
        "{} does not exist: name a block device or a file that does, or have a file made", path.display()
    )]
    Missing {
        /// The path that was opened.
        path: PathBuf,
    },
    /// Something is there already.
    #[error(
        "{} exists already, and nothing is ever overwritten: name another place, or use it as it is",
        path.display()
    )]
    Exists {
        /// Where the file was to be made.
        path: PathBuf,
    },
    /// It is something else.
    #[error("{} is {kind}: name a block device, or a regular file", path.display())]
    Kind {
        /// What was named.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// It may be read only.
    #[error(
        "{} may not be written to ({why}): allow this user to write to it, or name another", path.display()
    )]
    ReadOnly {
        /// What was named.
        path: PathBuf,
        /// What refuses it.
        why: String,
    },
    /// Another process has locked it.
    #[error(
        "{} is in use by another process, and was still after {} ms ({how}): stop that one first, or wait \
         until its last writes have ended", path.display(), waited.as_millis()
    )]
    InUse {
        /// What was named.
        path: PathBuf,
        /// How long it was waited for.
        waited: Duration,
        /// What shows it.
        how: String,
    },
    /// The system uses it: it is mounted, for one.
    #[error(
        "{} is in use: {by}. If its content is not needed, end that use first (umount, swapoff, or remove it from its volume group or array), \
         and try again; otherwise name another device. 'lsblk {}' shows what is on it", path.display(), path.display()
    )]
    Held {
        /// What was named.
        path: PathBuf,
        /// What uses it.
        by: String,
    },
    /// Its file system keeps no locks.
    #[error(
        "{} cannot be locked ({error}), so that nothing would keep two processes from writing to it: use a \
         block device, or a file on a local file system", path.display()
    )]
    NoLocks {
        /// What was named.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Its sectors are too large.
    #[error(
        "{} is written in sectors of {sector} bytes, and 512 are needed: format its namespace with 512-byte \
         sectors (nvme format --lbaf), or use another device", path.display()
    )]
    SectorSize {
        /// What was named.
        path: PathBuf,
        /// Bytes of its logical sectors, or the alignment that its file system requires for direct I/O.
        sector: u64,
    },
    /// It can only be used through the page cache.
    #[error(
        "{}: its file system does no direct I/O, and after a failed fsync the page cache lies about what is \
         on the disk: use a block device, or a file on XFS or ext4 (or in memory, on tmpfs)", path.display()
    )]
    NotDirect {
        /// What was named.
        path: PathBuf,
    },
    /// Something else has taken its place.
    #[error(
        "{} was replaced by something else while it was opened: see what does that, and try again",
        path.display()
    )]
    Replaced {
        /// What was named.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error(
        "{} cannot be read at byte {at}: {error}. See the kernel's log for the device",
        path.display()
    )]
    Unreadable {
        /// What was named.
        path: PathBuf,
        /// Where, in bytes.
        at: u64,
        /// The error of the system.
        error: io::Error,
    },
    /// It is longer than this process may write.
    #[error(
        "{} has {}, and this process may write files of {} only (RLIMIT_FSIZE): raise the limit (ulimit -f unlimited), or LimitFSIZE= \
         of a service, or use a block device",
        path.display(), ByteSize(*bytes).rounded(), ByteSize(*limit).rounded()
    )]
    FileSize {
        /// What was named.
        path: PathBuf,
        /// The size of the file, in bytes.
        bytes: u64,
        /// Bytes that a file may have.
        limit: u64,
    },
    /// It did not work.
    #[error("{} cannot be {what}: {error}", path.display())]
    Failed {
        /// What was named.
        path: PathBuf,
        /// What was to be done.
        what: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}
