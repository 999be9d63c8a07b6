//! Exclusive use: opening and locking, and waiting for a process that is about to end.
//!
//! A process that was killed may have I/O in flight which the kernel carries out after it is gone. Its open file, and the lock
//! with it, lives until then. So the lock is on the very descriptor that I/O uses, and it is waited for: the process that has it knows
//! that nothing of a former process still comes.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use loadline_base::in_use::{Identity, holder_of, opener_of_device, user_behind};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::libc;
use nix::sys::stat::Mode;

use super::{DeviceError, DeviceFile, probe};

const RETRY: Duration = Duration::from_millis(20);

impl DeviceFile {
    /// Opens a block device or a regular file to read and write, for exclusive use. Another process that has it locked is waited for
    /// for so long. Everything that speaks against it is an error, before anything is written.
    pub fn open(path: &Path, patience: Duration) -> Result<DeviceFile, DeviceError> {
        let patience = Patience { path, limit: patience, begin: Instant::now() };
        let checked = probe::check(path)?;
        let file = open_to_write(&patience, checked.file_type().is_block_device())?;
        lock(&file, &patience)?;
        // A file and the loop device over it are the same bytes. Both are looked for once this one is locked: of two that are opened at
        // the same time, one at least sees the other.
        if let Some(error) = held_by_loop(path, &checked) {
            return Err(error);
        }
        // Looked at again only now: while the lock was waited for, it may have been replaced, or become longer.
        let fail = |what| move |error| DeviceError::Failed { path: path.to_owned(), what, error };
        let opened = file.metadata().map_err(fail("looked at"))?;
        let (was, now) = (identity(&checked), std::fs::metadata(path).map(|metadata| identity(&metadata)));
        if identity(&opened) != was || now.ok() != Some(was) {
            return Err(DeviceError::Replaced { path: path.to_owned() });
        }
        let found = probe::probe(&file, path, &opened)?;
        settle(&file, !found.in_memory).map_err(|error| fail("set up")(error.into()))?;
        Ok(DeviceFile {
            file,
            path: path.to_owned(),
            bytes: found.bytes,
            in_memory: found.in_memory,
            model: None,
        })
    }
}

/// How long another process is waited for.
struct Patience<'a> {
    path: &'a Path,
    limit: Duration,
    begin: Instant,
}

impl Patience<'_> {
    /// Waits a moment, until it is to be tried again.
    fn wait(&self, how: &str) -> Result<(), DeviceError> {
        let left = self.limit.saturating_sub(self.begin.elapsed());
        if left.is_zero() {
            let opener = || Some(format!("{how}: {}", opener_of_device(device_number(self.path)?)?));
            let in_use = || {
                let (path, how) = (self.path.to_owned(), opener().unwrap_or_else(|| how.to_owned()));
                DeviceError::InUse { path, waited: self.limit, how }
            };
            return Err(held(self.path).unwrap_or_else(in_use));
        }
        std::thread::sleep(RETRY.min(left));
        Ok(())
    }
}

/// The number of a block device (`st_rdev`); `None` if it is something else.
fn device_number(path: &Path) -> Option<u64> {
    let metadata = std::fs::metadata(path).ok()?;
    metadata.file_type().is_block_device().then(|| metadata.rdev())
}

/// That the system uses it, if the system reports that.
fn held(path: &Path) -> Option<DeviceError> {
    let by = holder_of(Identity::of(&std::fs::metadata(path).ok()?))?;
    Some(DeviceError::Held { path: path.to_owned(), by })
}

/// That a loop device has it, or that it is a loop device over something that is in use.
fn held_by_loop(path: &Path, metadata: &Metadata) -> Option<DeviceError> {
    let number = metadata.file_type().is_block_device().then(|| metadata.rdev());
    let by = holder_of(Identity::of(metadata)).or_else(|| user_behind(number?))?;
    Some(DeviceError::Held { path: path.to_owned(), by })
}

fn open_to_write(patience: &Patience, device: bool) -> Result<File, DeviceError> {
    // A pipe or a terminal that took its place must neither stop us nor become ours.
    let mut flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_DIRECT;
    if device {
        // On a block device this fails while it is claimed by another user: a mount, swap space, RAID, LVM.
        flags |= OFlag::O_EXCL;
    }
    let path = patience.path;
    loop {
        let error = match open(path, flags, Mode::empty()) {
            Ok(file) => return Ok(file.into()),
            Err(error) => error,
        };
        match error {
            Errno::EINTR => {}
            Errno::EBUSY => patience.wait("it is mounted, or held exclusively")?,
            Errno::ETXTBSY => patience.wait("it is swap space, or a program that runs")?,
            // No direct I/O. Whether it lives in memory, so that it is taken as it is, is seen when it is open.
            Errno::EINVAL if flags.contains(OFlag::O_DIRECT) => flags -= OFlag::O_DIRECT,
            Errno::EACCES | Errno::EPERM | Errno::EROFS => {
                // Rules for the devices of a container refuse the host's own disks, too: that they are in use is the better reason.
                let container = match device && error == Errno::EPERM {
                    true => "; in a container, the rules for its devices may forbid it",
                    false => "",
                };
                let why = format!("{}{container}", error.desc());
                return Err(held(path).unwrap_or(DeviceError::ReadOnly { path: path.to_owned(), why }));
            }
            Errno::ENOENT => return Err(DeviceError::Missing { path: path.to_owned() }),
            _ => {
                let error = error.into();
                return Err(DeviceError::Failed { path: path.to_owned(), what: "opened", error });
            }
        }
    }
}

/// Locks it against others that lock: whole, as Loadline does, and its bytes, as QEMU does with images and databases do.
fn lock(file: &File, patience: &Patience) -> Result<(), DeviceError> {
    loop {
        // SAFETY: flock takes an open descriptor and touches no memory. (nix ties the lock to a wrapper that would have to be
        // taken apart again; this one lives as long as the descriptor.)
        let taken = Errno::result(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) });
        match taken {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(Errno::EWOULDBLOCK) => patience.wait("it is locked")?,
            Err(error) => {
                let error = io::Error::from(error);
                return Err(DeviceError::NoLocks { path: patience.path.to_owned(), error });
            }
        }
    }
    while has_locked_bytes(file) {
        patience.wait("a part of it is locked, as virtual machines and databases do")?;
    }
    Ok(())
}

fn has_locked_bytes(file: &File) -> bool {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        // To the end.
        l_len: 0,
        l_pid: 0,
    };
    // It only asks, and takes no lock.
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).is_ok() && libc::c_int::from(lock.l_type) != libc::F_UNLCK
}

/// `O_NONBLOCK` was for opening: with it, io_uring gives an I/O back instead of letting it wait.
fn settle(file: &File, direct: bool) -> nix::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(file, FcntlArg::F_GETFL)?);
    let mut wanted = flags - OFlag::O_NONBLOCK;
    if !direct {
        wanted -= OFlag::O_DIRECT;
    }
    // When it was read last is of no interest, and costs a read of a file in memory 3 % to note. Only the owner may set that.
    fcntl(file, FcntlArg::F_SETFL(wanted | OFlag::O_NOATIME))
        .or_else(|_| fcntl(file, FcntlArg::F_SETFL(wanted)))
        .map(drop)
}

fn identity(of: &Metadata) -> (u64, u64, u64, u32) {
    (of.dev(), of.ino(), of.rdev(), of.mode() & libc::S_IFMT)
}
