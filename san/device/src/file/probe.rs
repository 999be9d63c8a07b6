//! What a device is: its kind, its length, and the alignment that it requires for direct I/O.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use loadline_base::limits;
use loadline_san_protocol::log::SECTOR;
use loadline_san_store::io::Sector;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, FsType, TMPFS_MAGIC, fstatfs};

use super::DeviceError;

/// Its files live in the page cache only. (nix does not name it.)
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);
const SMALLEST: u64 = SECTOR as u64;

mod ioctl {
    nix::ioctl_read!(device_bytes, 0x12, 114, u64);
    nix::ioctl_read_bad!(device_sector, nix::libc::BLKSSZGET, nix::libc::c_int);
    nix::ioctl_read_bad!(device_is_read_only, nix::request_code_none!(0x12, 94), nix::libc::c_int);
}

/// The properties of a device that a probe reads.
pub(super) struct Properties {
    pub(super) bytes: u64,
    pub(super) in_memory: bool,
}

/// Reads what can be read without opening the file, since to open it may have effects: of a tape, for one.
pub(super) fn check(path: &Path) -> Result<Metadata, DeviceError> {
    let owned = || path.to_owned();
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DeviceError::Missing { path: owned() },
        _ => DeviceError::Failed { path: owned(), what: "looked at", error },
    })?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(DeviceError::Kind { path: owned(), kind: "a directory" });
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(DeviceError::Kind { path: owned(), kind: "neither a file nor a block device" });
    }
    // The superuser may write to it all the same; but its permissions state that no process should.
    if kind.is_file() && metadata.permissions().mode() & 0o222 == 0 {
        return Err(DeviceError::ReadOnly {
            path: owned(),
            why: "its permissions are for reading only".into(),
        });
    }
    Ok(metadata)
}

/// Refuses a regular file of so many bytes if this process may not write to all of it.
pub(super) fn may_have(path: &Path, bytes: u64) -> Result<(), DeviceError> {
    match limits::file_size() {
        Some(limit) if limit < bytes => Err(DeviceError::FileSize { path: path.to_owned(), bytes, limit }),
        _ => Ok(()),
    }
}

/// Probes an open file or device: refuses what cannot be used with sectors of 512 bytes past the page cache.
pub(super) fn probe(file: &File, path: &Path, metadata: &Metadata) -> Result<Properties, DeviceError> {
    let fail = |what, error| DeviceError::Failed { path: path.to_owned(), what, error };
    let direct =
        fcntl(file, FcntlArg::F_GETFL).map(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_DIRECT));
    let direct = direct.map_err(|error| fail("looked at", error.into()))?;
    let not_direct = || DeviceError::NotDirect { path: path.to_owned() };
    let too_large = |sector| DeviceError::SectorSize { path: path.to_owned(), sector };
    if metadata.file_type().is_block_device() {
        let device = ask(file).map_err(|error| fail("asked for its size", error.into()))?;
        return match device {
            // Linux opens it for writing all the same, and refuses each write.
            BlockDevice { read_only: true, .. } => {
                Err(DeviceError::ReadOnly { path: path.to_owned(), why: "it is set to be only read".into() })
            }
            _ if !direct => Err(not_direct()),
            BlockDevice { sector, .. } if sector > SMALLEST => Err(too_large(sector)),
            BlockDevice { bytes, .. } => Ok(Properties { bytes, in_memory: false }),
        };
    }
    let system = fstatfs(file).map_err(|error| fail("asked for its file system", error.into()))?;
    let bytes = metadata.size();
    may_have(path, bytes)?;
    if [TMPFS_MAGIC, RAMFS_MAGIC].contains(&system.filesystem_type()) {
        return Ok(Properties { bytes, in_memory: true });
    }
    match direct_alignment(file) {
        _ if !direct => Err(not_direct()),
        Some(0) => Err(not_direct()),
        Some(sector) if u64::from(sector) > SMALLEST => Err(too_large(sector.into())),
        Some(_) => Ok(Properties { bytes, in_memory: false }),
        // It writes less than a block of its own through the page cache, without saying so.
        None if system.filesystem_type() == BTRFS_SUPER_MAGIC => Err(not_direct()),
        None => match takes_a_sector(file) {
            Ok(true) => Ok(Properties { bytes, in_memory: false }),
            // Its alignment is not known; most devices have 4096.
            Ok(false) => Err(too_large(4096)),
            Err(error) => Err(DeviceError::Unreadable { path: path.to_owned(), at: SMALLEST, error }),
        },
    }
}

/// What a block device reports: its size and its sector size, in bytes, and whether it refuses writes.
struct BlockDevice {
    bytes: u64,
    sector: u64,
    read_only: bool,
}

fn ask(device: &File) -> nix::Result<BlockDevice> {
    let (mut bytes, mut sector, mut read_only) = (0u64, 0i32, 0i32);
    // SAFETY: each request writes one value of the type given for it (BLKGETSIZE64: u64, BLKSSZGET and BLKROGET: int).
    unsafe {
        ioctl::device_bytes(device.as_raw_fd(), &mut bytes)?;
        ioctl::device_sector(device.as_raw_fd(), &mut sector)?;
        ioctl::device_is_read_only(device.as_raw_fd(), &mut read_only)?;
    }
    Ok(BlockDevice { bytes, sector: sector.max(1) as u64, read_only: read_only != 0 })
}

/// The alignment that the kernel states for direct I/O (`STATX_DIOALIGN`, Linux 6.1, not of every file system): 0 where
/// there is no direct I/O, though the flag is taken.
fn direct_alignment(file: &File) -> Option<u32> {
    // SAFETY: statx is plain data for which zeros are valid; the call fills it for an open descriptor, with an
    // empty path that is a valid C string.
    let found = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let empty = c"".as_ptr();
        let done =
            libc::statx(file.as_raw_fd(), empty, libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut found);
        (done == 0).then_some(found)
    }?;
    let (memory, offset) = (found.stx_dio_mem_align, found.stx_dio_offset_align);
    let asked = if offset == 0 { 0 } else { offset.max(memory) };
    (found.stx_mask & libc::STATX_DIOALIGN != 0).then_some(asked)
}

/// Where the kernel states none, the second sector of the file is tried.
fn takes_a_sector(file: &File) -> io::Result<bool> {
    let mut sector = [Sector::ZERO];
    match file.read_at(&mut sector[0].0, SMALLEST) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}
