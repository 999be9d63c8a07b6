//! What a disk asks of direct I/O: its size, and what every I/O must be a multiple of.

use std::fs::{self, File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use loadline_base::units::ByteSize;
use nix::libc;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, fstatfs};

use crate::error::LoadError;

mod ioctl {
    nix::ioctl_read!(device_bytes, 0x12, 114, u64);
    nix::ioctl_read_bad!(device_block, nix::libc::BLKSSZGET, nix::libc::c_int);
}

/// A block device's size, and the size of its logical blocks.
pub(crate) fn device_size(file: &File, name: &str) -> Result<(ByteSize, u64), LoadError> {
    let (mut bytes, mut block) = (0u64, 0i32);
    // SAFETY: each request writes one value of the type given for it (BLKGETSIZE64: u64, BLKSSZGET: int).
    let result = unsafe {
        ioctl::device_bytes(file.as_raw_fd(), &mut bytes)
            .and_then(|_| ioctl::device_block(file.as_raw_fd(), &mut block))
    };
    result.map_err(|e| LoadError::failed(format!("{name} does not tell its size: {}", e.desc())))?;
    if bytes == 0 {
        return Err(LoadError::usage(format!(
            "{name} has a size of 0 bytes: check that a medium is inserted"
        )));
    }
    Ok((ByteSize(bytes), block.max(1) as u64))
}

/// What direct I/O on a regular file must be aligned to; `None` if its file system does none, though it took the
/// flag. 1 where nothing is known that it must be aligned to.
pub(crate) fn alignment(file: &File, metadata: &Metadata) -> Option<u64> {
    match reported_alignment(file) {
        Some(0) => None,
        Some(bytes) => Some(u64::from(bytes)),
        None => Some(below(file, metadata.dev()).unwrap_or(1)),
    }
}

/// What the kernel says (`STATX_DIOALIGN`, Linux 6.1, not of every file system): 0 where there is no direct I/O.
fn reported_alignment(file: &File) -> Option<u32> {
    // SAFETY: statx is plain data for which zeros are valid; the call fills it for an open descriptor, with an
    // empty path that is a valid C string.
    let found = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let empty = c"".as_ptr();
        let done =
            libc::statx(file.as_raw_fd(), empty, libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut found);
        (done == 0).then_some(found)
    }?;
    (found.stx_mask & libc::STATX_DIOALIGN != 0).then_some(found.stx_dio_offset_align)
}

/// The logical block size of the device below the file system, if there is one.
fn below(file: &File, device: u64) -> Option<u64> {
    let system = fstatfs(file).ok()?;
    if system.filesystem_type() == BTRFS_SUPER_MAGIC {
        // Its files are on no device that has a number; below its sector size it goes through the page cache.
        return u64::try_from(system.block_size()).ok().filter(|bytes| *bytes > 0);
    }
    let device = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    let read = |path: String| fs::read_to_string(path).ok()?.trim().parse().ok().filter(|n| *n > 0);
    // A partition has its disk's queue.
    read(format!("{device}/queue/logical_block_size"))
        .or_else(|| read(format!("{device}/../queue/logical_block_size")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_device_below_a_file_is_asked_where_the_kernel_does_not_tell() {
        let file = tempfile::tempfile().unwrap();
        let device = file.metadata().unwrap().dev();
        let number = format!("{}:{}", libc::major(device), libc::minor(device));
        if !Path::new("/sys/dev/block").join(&number).exists() {
            eprintln!("temporary files are on no block device: not tested");
            return;
        }
        let bytes = below(&file, device).unwrap();
        assert!(bytes >= 512 && bytes.is_power_of_two(), "{bytes}");
        // A file in memory has nothing below it.
        assert_eq!(below(&file, libc::makedev(0, 4095)), None);
    }
}
