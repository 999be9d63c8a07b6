//! What a disk is, and opening it without ever harming what is not ours.

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loadline_base::units::ByteSize;
use loadline_profile::Profile;
use nix::errno::Errno;
use nix::fcntl::{self, OFlag};
use nix::libc;
use nix::sys::stat::Mode;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::sys::statvfs::statvfs;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;
use crate::in_use;

/// A process that has just ended may hold its files a moment longer: the kernel takes io_uring apart afterwards.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(20);

/// Where a disk is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["/dev/nvme1n1", "disk.img", "null:1GiB"]))]
pub enum Target {
    /// A regular file or a block device.
    Path(PathBuf),
    /// A disk of this size that completes everything at once: it measures the generator itself.
    Null(ByteSize),
}

/// Whether a disk may be written to, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WritePermission {
    /// It may not: a job that writes is refused.
    Refused,
    /// It is a file that Loadline made for this run, with this identity; any other file in its place is refused.
    Made(FileIdentity),
    /// Its owner gave it up (`--destroy-data`). A device in use is refused all the same.
    Destroy,
}

/// One disk of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Where it is.
    pub target: Target,
    /// Whether it may be written to.
    pub writes: WritePermission,
}

impl FromStr for Target {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        match text.split_once(':') {
            Some(("null", size)) => {
                let size: ByteSize =
                    size.parse().map_err(|e| LoadError::usage(format!("target \"{text}\": {e}")))?;
                if size.0 == 0 {
                    return Err(LoadError::usage(format!("target \"{text}\" has no size: write null:1GiB")));
                }
                Ok(Target::Null(size))
            }
            Some((scheme, rest)) if rest.starts_with("//") => Err(LoadError::usage(format!(
                "target \"{text}\": nothing here opens {scheme}://; give a file, a block device, or null:SIZE"
            ))),
            _ if text.is_empty() => {
                Err(LoadError::usage("a target without a name: give a file or a block device"))
            }
            _ => Ok(Target::Path(PathBuf::from(text))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Path(path) => path.display().fmt(f),
            Target::Null(size) => write!(f, "null:{size}"),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = LoadError;

    fn try_from(text: String) -> Result<Self, LoadError> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

/// Which file a path led to when Loadline made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileIdentity {
    /// The device that holds it (`st_dev`).
    pub device: u64,
    /// Its inode (`st_ino`).
    pub inode: u64,
}

impl FileIdentity {
    fn of(metadata: &Metadata) -> FileIdentity {
        FileIdentity { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// An open disk, locked against other users.
#[derive(Debug)]
pub(crate) struct OpenDisk {
    /// As it was named.
    pub(crate) name: String,
    /// `None` for the null target.
    pub(crate) file: Option<Arc<OwnedFd>>,
    pub(crate) size: ByteSize,
    /// The file lives in memory (tmpfs).
    pub(crate) in_memory: bool,
    /// I/O bypasses the page cache.
    pub(crate) direct: bool,
    /// Bytes of a regular file that were never written, as far as the file system tells.
    pub(crate) unwritten: ByteSize,
}

/// Opens a disk for a profile: for reading only, unless `write`. Everything that speaks against it is an error
/// here, before any I/O: it does not exist, is a directory, is in use, may not be written to, or the block size
/// does not fit.
pub(crate) fn open(disk: &Disk, profile: &Profile, write: bool) -> Result<OpenDisk, LoadError> {
    let path = match &disk.target {
        Target::Null(size) => {
            return Ok(OpenDisk {
                name: disk.target.to_string(),
                file: None,
                size: *size,
                in_memory: true,
                direct: true,
                unwritten: ByteSize(0),
            });
        }
        Target::Path(path) => path,
    };
    let name = path.display().to_string();
    let metadata = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => LoadError::usage(format!(
            "{name} does not exist: name a file or block device that does, or have a file made with --create SIZE"
        )),
        _ => LoadError::usage(format!("{name} cannot be looked at: {e}")),
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
    if kind.is_block_device() {
        let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
        if let Some(holder) = in_use::holder_of_device(major.into(), minor.into()) {
            return Err(in_use_error(&name, &holder));
        }
    } else if let Some(holder) = in_use::holder_of_file(path) {
        return Err(in_use_error(&name, &holder));
    }
    if write {
        may_write(&name, &disk.writes, kind.is_block_device())?;
    }
    let (file, direct) = open_file(path, &name, profile, write, kind.is_block_device())?;
    let opened = fs::File::from(file);
    let metadata =
        opened.metadata().map_err(|e| LoadError::failed(format!("{name} cannot be looked at: {e}")))?;
    if let (true, WritePermission::Made(made)) = (write, &disk.writes)
        && FileIdentity::of(&metadata) != *made
    {
        return Err(LoadError::usage(format!(
            "{name} is not the file that this run made (it was replaced), so it is not written to: move it away, \
             and begin a new run"
        )));
    }
    let (size, needed) = if kind.is_block_device() {
        device_size(&opened, &name)?
    } else {
        (ByteSize(metadata.size()), if direct { direct_alignment(&opened) } else { 1 })
    };
    check_alignment(&name, profile, needed)?;
    let in_memory = fstatfs(&opened).is_ok_and(|fs| fs.filesystem_type() == TMPFS_MAGIC);
    let allocated = metadata.blocks() * 512;
    let unwritten = if kind.is_file() { size.0.saturating_sub(allocated) } else { 0 };
    Ok(OpenDisk {
        name,
        file: Some(Arc::new(opened.into())),
        size,
        in_memory,
        direct,
        unwritten: ByteSize(unwritten),
    })
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
            "{name} is {}, and this load writes to it: its data would be lost. If they may be, say --destroy-data; \
             or use a profile that only reads (W0)",
            if device { "a block device" } else { "a file that Loadline did not make" }
        ))),
    }
}

/// Opens and locks. The second value says whether I/O is direct.
fn open_file(
    path: &Path,
    name: &str,
    profile: &Profile,
    write: bool,
    device: bool,
) -> Result<(OwnedFd, bool), LoadError> {
    let mut flags = OFlag::O_CLOEXEC | if write { OFlag::O_RDWR } else { OFlag::O_RDONLY };
    if device {
        // On a block device, an exclusive open without O_CREAT fails while anyone else has claimed it.
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
    let file = file.map_err(|e| match e {
        Errno::EBUSY => in_use_error(name, "another program holds it exclusively"),
        Errno::EACCES | Errno::EPERM | Errno::EROFS => LoadError::usage(format!(
            "{name} may not be opened for {}: {}",
            if write { "writing" } else { "reading" },
            e.desc()
        )),
        _ => LoadError::failed(format!("{name} cannot be opened: {}", e.desc())),
    })?;
    let lock = if write { libc::LOCK_EX } else { libc::LOCK_SH };
    // SAFETY: flock takes an open descriptor and touches no memory. (nix ties the lock to a wrapper that would
    // have to be taken apart again; this one lives as long as the descriptor.)
    while unsafe { libc::flock(file.as_raw_fd(), lock | libc::LOCK_NB) } != 0 {
        if Instant::now() >= patience {
            return Err(in_use_error(name, "another Loadline, or another program, has locked it"));
        }
        std::thread::sleep(RETRY);
    }
    Ok((file, direct))
}

mod ioctl {
    nix::ioctl_read!(device_bytes, 0x12, 114, u64);
    nix::ioctl_read_bad!(device_block, nix::libc::BLKSSZGET, nix::libc::c_int);
}

/// A block device's size, and the size of its logical blocks.
fn device_size(file: &fs::File, name: &str) -> Result<(ByteSize, u64), LoadError> {
    let (mut bytes, mut block) = (0u64, 0i32);
    // SAFETY: each request writes one value of the type given for it (BLKGETSIZE64: u64, BLKSSZGET: int).
    let result = unsafe {
        ioctl::device_bytes(file.as_raw_fd(), &mut bytes)
            .and_then(|_| ioctl::device_block(file.as_raw_fd(), &mut block))
    };
    result.map_err(|e| LoadError::failed(format!("{name} does not tell its size: {}", e.desc())))?;
    if bytes == 0 {
        return Err(LoadError::usage(format!("{name} has no size: is there a medium behind it?")));
    }
    Ok((ByteSize(bytes), block.max(1) as u64))
}

/// What direct I/O on a regular file must be aligned to, as the kernel tells (`STATX_DIOALIGN`, Linux 6.1); 1 if
/// it does not.
fn direct_alignment(file: &fs::File) -> u64 {
    // SAFETY: statx is plain data for which zeros are valid; the call fills it for an open descriptor, with an
    // empty path that is a valid C string.
    unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let empty = c"".as_ptr();
        let flags = libc::AT_EMPTY_PATH;
        if libc::statx(file.as_raw_fd(), empty, flags, libc::STATX_DIOALIGN, &mut found) == 0
            && found.stx_mask & libc::STATX_DIOALIGN != 0
        {
            return u64::from(found.stx_dio_offset_align).max(1);
        }
    }
    1
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

/// Makes a file of this size for a run, sparse, where nothing is yet, and says which file it is. The folder must
/// exist. Refused if anything is there, or if the file system has no room for it once it is filled.
pub fn make_file(path: &Path, size: ByteSize) -> Result<FileIdentity, LoadError> {
    let name = path.display();
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let space = free_space(folder)?;
    if space < size {
        return Err(LoadError::usage(format!(
            "{name} of {size} does not fit: its file system has {} MiB free; make it smaller, or free some space",
            space.0 >> 20
        )));
    }
    let file =
        fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(
            |e| match e.kind() {
                io::ErrorKind::AlreadyExists => LoadError::usage(format!(
                    "{name} exists already, and is not overwritten: name a new file, or move it away"
                )),
                _ => LoadError::usage(format!("{name} cannot be made: {e}")),
            },
        )?;
    let made = file.set_len(size.0).and_then(|()| file.metadata());
    made.map(|m| FileIdentity::of(&m)).map_err(|e| {
        // It is ours, and of no use.
        let _ = fs::remove_file(path);
        LoadError::failed(format!("{name} cannot be given its size of {size}: {e}"))
    })
}

/// Removes a file that [`make_file`] made, if it is still that file; what else is there stays.
pub fn remove_file(path: &Path, identity: FileIdentity) -> Result<(), LoadError> {
    let error = |e: io::Error| LoadError::failed(format!("{} cannot be removed: {e}", path.display()));
    match fs::symlink_metadata(path) {
        Ok(metadata) if FileIdentity::of(&metadata) == identity => fs::remove_file(path).map_err(error),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(error(e)),
    }
}

/// What an unprivileged user may still write in this folder's file system.
pub fn free_space(folder: &Path) -> Result<ByteSize, LoadError> {
    let found = statvfs(folder).map_err(|e| match e {
        Errno::ENOENT => {
            LoadError::usage(format!("the folder {} does not exist: make it first", folder.display()))
        }
        _ => LoadError::usage(format!("the folder {} cannot be looked at: {}", folder.display(), e.desc())),
    })?;
    #[allow(clippy::unnecessary_cast)] // 32 bits wide on some architectures
    Ok(ByteSize(found.blocks_available() as u64 * found.fragment_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(path: &Path, writes: WritePermission) -> Disk {
        Disk { target: Target::Path(path.to_path_buf()), writes }
    }

    #[test]
    fn targets_are_read_and_printed() {
        for text in ["/dev/sdb", "disk.img", "null:1GiB"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["", "null:", "null:0", "null:x", "nbd://host/x"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_made_file_is_new_and_only_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let made = make_file(&path, ByteSize::MIB).unwrap();
        assert!(make_file(&path, ByteSize::MIB).unwrap_err().message.contains("not overwritten"));
        let other = FileIdentity { inode: made.inode + 1, ..made };
        remove_file(&path, other).unwrap();
        assert!(path.exists(), "another file at that place stays");
        remove_file(&path, made).unwrap();
        assert!(!path.exists());
        remove_file(&path, made).unwrap();
        let error = make_file(&path, ByteSize(1 << 60)).unwrap_err().message;
        assert!(error.contains("does not fit"), "{error}");
    }

    #[test]
    fn a_file_that_loadline_did_not_make_is_written_only_when_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        let made = make_file(&path, ByteSize::MIB).unwrap();
        let profile = Profile { write_percent: 50, ..Profile::default() };
        let error = open(&disk(&path, WritePermission::Refused), &profile, true).unwrap_err();
        assert!(error.message.contains("--destroy-data"), "{error}");
        let other = FileIdentity { inode: made.inode + 1, ..made };
        let error = open(&disk(&path, WritePermission::Made(other)), &profile, true).unwrap_err();
        assert!(error.message.contains("replaced"), "{error}");
        for allowed in [WritePermission::Made(made), WritePermission::Destroy] {
            open(&disk(&path, allowed), &profile, true).unwrap();
        }
    }

    #[test]
    fn reading_never_opens_for_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        make_file(&path, ByteSize::MIB).unwrap();
        let opened = open(&disk(&path, WritePermission::Destroy), &Profile::default(), false).unwrap();
        let flags = fcntl::fcntl(opened.file.unwrap(), fcntl::FcntlArg::F_GETFL).unwrap();
        assert_eq!(OFlag::from_bits_truncate(flags) & OFlag::O_ACCMODE, OFlag::O_RDONLY);
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
