//! Opening a disk without ever harming what is not ours: what speaks against it is found before any I/O.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_base::in_use::{Identity, holder_of};
use loadline_base::units::ByteSize;
use loadline_profile::Profile;
use nix::errno::Errno;
use nix::fcntl::{self, FcntlArg, OFlag};
use nix::libc;
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use crate::error::LoadError;
use crate::iscsi::uri::IscsiUri;
use crate::locks::holder_of_locks;
use crate::made::{FileIdentity, may_be_written};
use crate::nbd::uri::{NbdUri, Server};
use crate::rbd::disk::RbdDisk;
use crate::target::{Disk, Target, WritePermission};
use crate::vhost::VhostDisk;
use crate::{direct, extents};

mod served;

/// A process that has just ended may hold its files a moment longer: the kernel takes io_uring apart afterwards.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(20);

/// The transport to an open disk.
#[derive(Debug, Clone)]
pub(crate) enum Transport {
    /// It is nowhere.
    Null,
    /// A file or block device.
    File(Arc<OwnedFd>),
    /// By connections to its server: each thread has its own.
    Nbd(NbdUri),
    /// By a connection to its server, which all threads share.
    Vhost(Arc<VhostDisk>),
    /// An open image, which all threads share.
    Rbd(Arc<RbdDisk>),
    /// By sessions with its target: each thread has its own.
    Iscsi(IscsiUri),
}

impl Transport {
    /// Whether a server has the disk.
    pub(crate) fn is_served(&self) -> bool {
        !matches!(self, Transport::Null | Transport::File(_))
    }

    /// Whether a server of this host has the disk: by shared memory, or at a socket in the file system.
    pub(crate) fn is_served_here(&self) -> bool {
        match self {
            Transport::Vhost(_) => true,
            Transport::Nbd(uri) => matches!(uri.server, Server::Unix(_)),
            Transport::Null | Transport::File(_) | Transport::Rbd(_) | Transport::Iscsi(_) => false,
        }
    }
}

/// An open disk, locked against other users; but a server's: NBD knows no locks, a unit of iSCSI is not reserved here, a
/// vhost-user server has one front-end, and of an image its other clients were checked.
#[derive(Debug)]
pub(crate) struct OpenDisk {
    /// As it was named.
    pub(crate) name: String,
    /// How it is reached.
    pub(crate) transport: Transport,
    pub(crate) size: ByteSize,
    /// The file lives in memory (tmpfs).
    pub(crate) in_memory: bool,
    /// I/O bypasses the page cache.
    pub(crate) direct: bool,
    /// Bytes of a regular file that were never written, as far as the file system tells. Looked for only if they
    /// will be read.
    pub(crate) unwritten: ByteSize,
}

/// Opens a disk whatever will be done to it: what was never written is not looked for.
pub(crate) fn open_whole(disk: &Disk, profile: &Profile, write: bool) -> Result<OpenDisk, LoadError> {
    open_as(disk, profile, write, write)
}

/// Opens a disk for a profile: for reading only, unless `write`. Everything that speaks against it is an error
/// here, before any I/O: it does not exist, is a directory, is in use, may not be written to, or the block size
/// does not fit.
pub(crate) fn open(disk: &Disk, profile: &Profile, write: bool) -> Result<OpenDisk, LoadError> {
    let mut open = open_as(disk, profile, write, write)?;
    if let Transport::File(file) = &open.transport
        && profile.write_percent < 100
    {
        let stat = fstat(file).map_err(|e| LoadError::failed(format!("{}: {}", open.name, e.desc())))?;
        if stat.st_mode & libc::S_IFMT == libc::S_IFREG {
            let written = extents::written(file, open.size.0).unwrap_or(stat.st_blocks as u64 * 512);
            open.unwritten = ByteSize(open.size.0.saturating_sub(written));
        }
    }
    Ok(open)
}

/// As [`open`], but for what was never written. `alone`: no other process may even read it meanwhile.
fn open_as(disk: &Disk, profile: &Profile, write: bool, alone: bool) -> Result<OpenDisk, LoadError> {
    let path = match &disk.target {
        Target::Null(size) => {
            return Ok(OpenDisk {
                name: disk.target.to_string(),
                transport: Transport::Null,
                size: *size,
                in_memory: true,
                direct: true,
                unwritten: ByteSize(0),
            });
        }
        Target::Nbd(uri) => return served::open_nbd(disk, uri, profile, write),
        Target::Vhost(socket) => return served::open_vhost(disk, socket, profile, write),
        Target::Rbd(uri) => return served::open_rbd(disk, uri, profile, write),
        Target::Iscsi(uri) => return served::open_iscsi(disk, uri, profile, write),
        Target::Path(path) => path,
    };
    let name = path.display().to_string();
    let checked = check(path, &name, &disk.writes, write)?;
    let device = checked.file_type().is_block_device();
    let (file, metadata, mut direct) = open_checked(path, &name, &checked, profile, write)?;
    if let (true, WritePermission::Made(made)) = (write, &disk.writes)
        && !FileIdentity::of(&metadata).is_same_file(made)
    {
        return Err(LoadError::usage(format!(
            "{name} is not the file that this run made (it was replaced), so it is not written to: move it away, \
             and begin a new run"
        )));
    }
    if let Some(holder) = holder_of_locks(&file, alone) {
        return Err(in_use_error(&name, &holder));
    }
    lock(&file, &name, alone)?;
    let (size, needed) = if device {
        direct::device_size(&file, &name)?
    } else {
        let aligned = if direct { direct::alignment(&file, &metadata) } else { None };
        direct = aligned.is_some();
        if write {
            may_be_written(&name, metadata.size())?;
        }
        (ByteSize(metadata.size()), aligned.unwrap_or(1))
    };
    settle(&file, direct).map_err(|e| LoadError::failed(format!("{name} cannot be set up: {}", e.desc())))?;
    check_alignment(&name, profile, needed)?;
    let in_memory = fstatfs(&file).is_ok_and(|fs| fs.filesystem_type() == TMPFS_MAGIC);
    let unwritten = ByteSize(0);
    Ok(OpenDisk {
        name,
        transport: Transport::File(Arc::new(file.into())),
        size,
        in_memory,
        direct,
        unwritten,
    })
}

/// What a disk is.
#[derive(Debug, Clone, Copy)]
pub struct Examined {
    /// The size of the disk.
    pub size: ByteSize,
    /// Device and inode of a file, or 0 and the number of a block device; `None` of what is neither.
    pub identity: Option<(u64, u64)>,
}

/// Whether a disk could be measured by this profile now, and what it is. It is opened as a measurement would, but for
/// reading only, whatever the profile does; whether it may be written to is not asked. `alone`: it will be written to,
/// so that no other process may even read it.
pub fn examine(target: &Target, profile: &Profile, alone: bool) -> Result<Examined, LoadError> {
    let disk = Disk { target: target.clone(), writes: WritePermission::Refused };
    let open = open_as(&disk, profile, false, alone)?;
    let identity = match &open.transport {
        Transport::Null
        | Transport::Nbd(_)
        | Transport::Vhost(_)
        | Transport::Rbd(_)
        | Transport::Iscsi(_) => None,
        Transport::File(file) => {
            let failed = |e: Errno| LoadError::failed(format!("{target} cannot be checked: {}", e.desc()));
            let stat = fstat(file).map_err(failed)?;
            let device = stat.st_mode & libc::S_IFMT == libc::S_IFBLK;
            Some(if device { (0, stat.st_rdev) } else { (stat.st_dev, stat.st_ino) })
        }
    };
    Ok(Examined { size: open.size, identity })
}

/// Checks what can be checked without opening, and says what it was.
fn check(path: &Path, name: &str, permission: &WritePermission, write: bool) -> Result<Metadata, LoadError> {
    let metadata = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => LoadError::usage(format!(
            "{name} does not exist: name a file or block device that does, or have a file made with --create SIZE"
        )),
        _ => LoadError::usage(format!("{name} cannot be checked: {e}")),
    })?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(LoadError::usage(format!(
            "{name} is a directory: name a file in it, or have one made with --create SIZE"
        )));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(LoadError::usage(format!("{name} is neither a file nor a block device")));
    }
    if let Some(holder) = holder_of(Identity::of(&metadata)) {
        return Err(in_use_error(name, &holder));
    }
    if write {
        may_write(name, permission, kind.is_block_device())?;
    }
    Ok(metadata)
}

fn in_use_error(name: &str, holder: &str) -> LoadError {
    LoadError::usage(format!(
        "{name} is in use: {holder}. A device or file in use is never measured; free it first, or name another"
    ))
}

fn may_write(name: &str, permission: &WritePermission, device: bool) -> Result<(), LoadError> {
    match permission {
        WritePermission::Destroy => Ok(()),
        WritePermission::Made(_) if !device => Ok(()),
        _ => Err(LoadError::usage(format!(
            "{name} is {}, and this load would overwrite its data. To allow that, add --destroy-data; or use a profile that \
             only reads (W0)",
            if device { "a block device" } else { "a file that Loadline did not make" }
        ))),
    }
}

/// Opens what was checked, and nothing else that may stand at the path by now. The last value says whether direct
/// I/O was accepted.
fn open_checked(
    path: &Path,
    name: &str,
    checked: &Metadata,
    profile: &Profile,
    write: bool,
) -> Result<(File, Metadata, bool), LoadError> {
    // A pipe or a terminal that took the file's place must neither stop us nor become ours.
    let mut flags = OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    flags |= if write { OFlag::O_RDWR } else { OFlag::O_RDONLY };
    if checked.file_type().is_block_device() {
        // On a block device, an exclusive open without O_CREAT fails while it is claimed by another user.
        flags |= OFlag::O_EXCL;
    }
    if profile.write_through {
        flags |= OFlag::O_DSYNC;
    }
    let patience = Instant::now() + PATIENCE;
    let open = |flags| {
        loop {
            match fcntl::open(path, flags, Mode::empty()) {
                Err(Errno::EBUSY) if Instant::now() < patience => std::thread::sleep(RETRY),
                other => break other,
            }
        }
    };
    let (file, direct) = if profile.direct {
        match open(flags | OFlag::O_DIRECT) {
            // The file system cannot do direct I/O: the finding says so.
            Err(Errno::EINVAL) => (open(flags), false),
            other => (other, true),
        }
    } else {
        (open(flags), false)
    };
    let file = File::from(file.map_err(|e| match e {
        Errno::EBUSY => in_use_error(name, "another program holds it exclusively"),
        Errno::EACCES | Errno::EPERM | Errno::EROFS => LoadError::usage(format!(
            "{name} may not be opened for {}: {}",
            if write { "writing" } else { "reading" },
            e.desc()
        )),
        _ => LoadError::failed(format!("{name} cannot be opened: {}", e.desc())),
    })?);
    let opened = file.metadata().map_err(|e| LoadError::failed(format!("{name} cannot be checked: {e}")))?;
    let which = |m: &Metadata| (m.dev(), m.ino(), m.rdev(), m.mode() & libc::S_IFMT);
    if which(&opened) != which(checked) {
        return Err(LoadError::usage(format!(
            "{name} was replaced by something else while it was being opened: see what does that, and try again"
        )));
    }
    Ok((file, opened, direct))
}

/// Locks an open disk against other Loadlines.
fn lock(file: &File, name: &str, write: bool) -> Result<(), LoadError> {
    let kind = if write { libc::LOCK_EX } else { libc::LOCK_SH };
    let taken = lock_by(PATIENCE, || {
        // SAFETY: flock takes an open descriptor and touches no memory. (nix ties the lock to a wrapper that would
        // have to be taken apart again; this one lives as long as the descriptor.)
        Errno::result(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) }).map(drop)
    });
    match taken {
        true => Ok(()),
        false => Err(in_use_error(name, "another Loadline, or another program, has locked it")),
    }
}

/// Tries for a while to get a lock that another process has. A file system without locks (some that are shared over a
/// network) is used without one.
fn lock_by(patience: Duration, mut attempt: impl FnMut() -> nix::Result<()>) -> bool {
    let limit = Instant::now() + patience;
    loop {
        match attempt() {
            Err(Errno::EINTR) => {}
            Err(Errno::EWOULDBLOCK) if Instant::now() >= limit => return false,
            Err(Errno::EWOULDBLOCK) => std::thread::sleep(RETRY),
            Ok(()) | Err(_) => return true,
        }
    }
}

/// Sets the flags for the load. `O_NONBLOCK` was for opening: with it, io_uring gives an I/O back instead of letting
/// it wait.
fn settle(file: &File, direct: bool) -> nix::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl::fcntl(file, FcntlArg::F_GETFL)?);
    let mut wanted = flags - OFlag::O_NONBLOCK;
    if !direct {
        wanted -= OFlag::O_DIRECT;
    }
    fcntl::fcntl(file, FcntlArg::F_SETFL(wanted)).map(drop)
}

fn check_alignment(name: &str, profile: &Profile, needed: u64) -> Result<(), LoadError> {
    let parts = [
        ("a block size", profile.block_size.0),
        ("an alignment", profile.alignment.map_or(0, |a| a.0)),
        ("a base offset", profile.base_offset.0),
    ];
    match parts.iter().find(|(_, bytes)| bytes % needed != 0) {
        None => Ok(()),
        Some((what, bytes)) => Err(LoadError::usage(format!(
            "{what} of {} does not fit {name}, whose blocks have {}: use a multiple of that",
            ByteSize(*bytes),
            ByteSize(needed)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::make_file;
    use nix::fcntl::FallocateFlags;
    use nix::sys::statfs::statfs;

    fn disk(path: &Path, writes: WritePermission) -> Disk {
        Disk { target: Target::Path(path.to_path_buf()), writes }
    }

    #[test]
    fn a_file_that_loadline_did_not_make_is_written_only_when_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        let made = make_file(&path, ByteSize::MIB).unwrap();
        let profile = Profile { write_percent: 50, ..Profile::default() };
        let error = open(&disk(&path, WritePermission::Refused), &profile, true).unwrap_err();
        assert!(error.message.contains("--destroy-data"), "{error}");
        let inode = FileIdentity { inode: made.inode + 1, ..made };
        let born = FileIdentity { born_ns: made.born_ns.map(|ns| ns - 1), ..made };
        for other in [Some(inode), made.born_ns.is_some().then_some(born)].into_iter().flatten() {
            let error = open(&disk(&path, WritePermission::Made(other)), &profile, true).unwrap_err();
            assert!(error.message.contains("replaced"), "{error}");
        }
        for allowed in [WritePermission::Made(made), WritePermission::Destroy] {
            open(&disk(&path, allowed), &profile, true).unwrap();
        }
    }

    #[test]
    fn a_server_at_a_socket_in_the_file_system_is_on_this_host() {
        let is_here = |uri: &str| Transport::Nbd(uri.parse().unwrap()).is_served_here();
        assert!(is_here("nbd+unix:///export?socket=/run/nbd.sock"));
        // Not even the loopback address says so: it may be a tunnel's end.
        assert!(!is_here("nbd://127.0.0.1/export"));
        assert!(!Transport::Null.is_served_here());
    }

    #[test]
    fn reading_never_opens_for_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        make_file(&path, ByteSize::MIB).unwrap();
        let opened = open(&disk(&path, WritePermission::Destroy), &Profile::default(), false).unwrap();
        let Transport::File(file) = &opened.transport else { panic!("it is a file") };
        let flags = fcntl::fcntl(file, FcntlArg::F_GETFL).unwrap();
        let flags = OFlag::from_bits_truncate(flags);
        assert_eq!(flags & OFlag::O_ACCMODE, OFlag::O_RDONLY);
        assert!(!flags.contains(OFlag::O_NONBLOCK), "io_uring would give I/Os back");
        assert_eq!(flags.contains(OFlag::O_DIRECT), opened.direct);
    }

    #[test]
    fn what_took_the_place_of_what_was_checked_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        make_file(&path, ByteSize::MIB).unwrap();
        let checked = check(&path, "disk", &WritePermission::Refused, false).unwrap();
        let swap = |what: &str, make: &dyn Fn()| {
            fs::remove_file(&path).unwrap();
            make();
            for profile in [Profile::default(), Profile { direct: false, ..Profile::default() }] {
                let error = open_checked(&path, "disk", &checked, &profile, false).unwrap_err();
                assert!(error.message.contains("replaced"), "{what}: {error}");
            }
        };
        // Kept, so that its inode is not given away.
        let _old = File::open(&path).unwrap();
        swap("a pipe, which must not hang", &|| nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap());
        swap("another file", &|| {
            make_file(&path, ByteSize::MIB).unwrap();
        });
        swap("a device", &|| std::os::unix::fs::symlink("/dev/null", &path).unwrap());
    }

    #[test]
    fn two_writers_do_not_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        make_file(&path, ByteSize::MIB).unwrap();
        let writer = disk(&path, WritePermission::Destroy);
        let _first = open(&writer, &Profile::default(), true).unwrap();
        let error = open(&writer, &Profile::default(), true).unwrap_err();
        assert!(error.message.contains("in use"), "{error}");
    }

    #[test]
    fn a_file_system_without_locks_is_used_without_one_and_at_once() {
        let begin = Instant::now();
        for errno in [Errno::ENOSYS, Errno::EOPNOTSUPP, Errno::ENOLCK] {
            assert!(lock_by(PATIENCE, || Err(errno)), "{errno}");
        }
        assert!(begin.elapsed() < PATIENCE);
        assert!(!lock_by(Duration::from_millis(50), || Err(Errno::EWOULDBLOCK)));
        let mut attempts = [Ok(()), Err(Errno::EWOULDBLOCK), Err(Errno::EINTR)].to_vec();
        assert!(lock_by(PATIENCE, || attempts.pop().unwrap()), "it is tried again");
    }

    #[test]
    fn a_file_locked_by_a_virtual_machine_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        make_file(&path, ByteSize::MIB).unwrap();
        let qemu = File::open(&path).unwrap();
        let lock = libc::flock {
            l_type: libc::F_RDLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 100,
            l_len: 2,
            l_pid: 0,
        };
        fcntl::fcntl(&qemu, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
        for write in [true, false] {
            let error = open(&disk(&path, WritePermission::Destroy), &Profile::default(), write).unwrap_err();
            assert!(error.message.contains("in use"), "{error}");
        }
    }

    #[test]
    fn room_that_was_only_reserved_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        if statfs(folder.path()).unwrap().filesystem_type() == TMPFS_MAGIC {
            eprintln!("a file system in memory does not tell what is written: not tested");
            return;
        }
        let path = folder.path().join("disk");
        make_file(&path, ByteSize(4 << 20)).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let reserved = fcntl::fallocate(&file, FallocateFlags::empty(), 0, 4 << 20);
        if reserved == Err(Errno::EOPNOTSUPP) {
            return;
        }
        let unwritten = |write_percent| {
            let profile = Profile { write_percent, ..Profile::default() };
            open(&disk(&path, WritePermission::Refused), &profile, false).unwrap().unwritten
        };
        assert_eq!(unwritten(0), ByteSize(4 << 20));
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 1 << 20], 1 << 20).unwrap();
        assert_eq!(unwritten(0), ByteSize(3 << 20));
        assert_eq!(unwritten(100), ByteSize(0), "it is not checked if nothing is read");
    }

    #[test]
    fn what_is_no_disk_is_said_to_be_none() {
        let open = |path: &str| {
            let error = open(&disk(Path::new(path), WritePermission::Destroy), &Profile::default(), false);
            error.unwrap_err()
        };
        assert!(open("/nowhere/at/all").message.contains("does not exist"));
        assert!(open("/proc").message.contains("is a directory"));
        assert!(open("/dev/null").message.contains("neither a file nor a block device"));
    }
}
