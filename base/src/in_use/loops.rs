//! Which loop device lies over a file or a device.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use super::Identity;

/// The name of a loop device over this, if there is one.
pub(super) fn over(identity: Identity) -> Option<String> {
    fs::read_dir("/sys/block").ok()?.flatten().find_map(|device| {
        // Only a loop device that has something behind it has this file.
        let path = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let name = device.file_name().to_string_lossy().into_owned();
        let backing = match backing(&Path::new("/dev").join(&name)) {
            Ok(backing) => backing,
            // It may not be opened, or is not there: what its path leads to here, which is less sure.
            Err(_) => [Identity::of(&fs::metadata(path.trim_end_matches('\n')).ok()?); 2],
        };
        backing.contains(&identity).then_some(name)
    })
}

/// The file or device behind the loop device with this number (`st_rdev`), or behind the one that it is a part of; `None` if it is no
/// loop device, or what is behind it cannot be found by a path any more, so that no one else can open it.
pub(super) fn behind(number: u64) -> Option<PathBuf> {
    let own = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    let file = ["loop/backing_file", "../loop/backing_file"].map(|of| Path::new(&own).join(of));
    let path = file.iter().find_map(|file| fs::read_to_string(file).ok())?;
    let path = PathBuf::from(path.trim_end_matches('\n'));
    path.exists().then_some(path)
}

/// What the kernel has behind a loop device, as a file and as a device.
fn backing(path: &Path) -> io::Result<[Identity; 2]> {
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let device: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut status = Status::default();
    // SAFETY: the request fills one struct of this layout (loop_info64 of linux/loop.h), and the descriptor is open.
    unsafe { ioctl::loop_get_status64(device.as_raw_fd(), &mut status) }?;
    let file = Identity::File(decoded(status.device), status.inode);
    // A file that is no device has the number 0, which no block device has.
    Ok([file, if status.rdevice == 0 { file } else { Identity::Device(decoded(status.rdevice)) }])
}

/// The kernel's own form of a device number (`huge_encode_dev`), as `stat` has it.
fn decoded(number: u64) -> u64 {
    let major = (number >> 8) & 0xfff;
    let minor = (number & 0xff) | ((number >> 12) & 0xf_ff00);
    libc::makedev(major as u32, minor as u32)
}

/// `struct loop_info64`.
#[repr(C)]
#[derive(Default)]
struct Status {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    numbers: [u32; 4],
    // Names of 64 bytes each, a key of 32, two numbers of 8.
    rest: [u64; 22],
}

mod ioctl {
    nix::ioctl_read_bad!(loop_get_status64, 0x4C05, super::Status);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_struct_and_numbers_are_read_as_they_are() {
        assert_eq!(size_of::<Status>(), 232);
        assert_eq!(decoded(0x0801), libc::makedev(8, 1));
        assert_eq!(decoded(0x1001_0300 | 0x44), libc::makedev(0x103, 0x1_0044));
    }
}
