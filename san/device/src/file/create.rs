//! Making a new regular file to be a device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

use super::probe::may_have;
use super::{DeviceError, DeviceFile};

impl DeviceFile {
    /// Makes a new file of so many bytes, zeroes, and opens it. Nothing is ever overwritten. Room for all of it is reserved if
    /// the file system can. It and its name are durable when this returns; if it fails, no file is left.
    pub fn create(path: &Path, bytes: u64) -> Result<DeviceFile, DeviceError> {
        may_have(path, bytes)?;
        let fail = |what| move |error| DeviceError::Failed { path: path.to_owned(), what, error };
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => DeviceError::Exists { path: path.to_owned() },
            _ => fail("made")(error),
        })?;
        let opened = reserve(&file, bytes)
            .map_err(fail("given its full size"))
            .and_then(|()| file.sync_all().map_err(fail("made durable")))
            .and_then(|()| sync_folder_of(path).map_err(fail("made durable, with its folder")))
            .and_then(|()| DeviceFile::open(path, Duration::ZERO));
        if opened.is_err() {
            // The file is of no use. The error of making it is reported, and not the error of removing it.
            let _ = std::fs::remove_file(path);
        }
        opened
    }
}

fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let length = i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, length) {
            Err(Errno::EINTR) => {}
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => return file.set_len(bytes),
            other => return other.map_err(io::Error::from),
        }
    }
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}
