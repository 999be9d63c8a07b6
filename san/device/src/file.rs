//! A device of a replica: a block device or a regular file, open for exclusive use.
//!
//! Disks are used with direct I/O only. After a failed `fsync` the page cache may mark data as clean that never reached the disk,
//! and the error is not reported again; with direct I/O each write reports its own result. Only what lives in memory anyway is used
//! through the page cache, which it is.

mod create;
mod error;
mod lock;
mod probe;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use loadline_san_core::lease::Moment;
use loadline_san_store::io::{Area, Disk, IoFault, IoRequest, Piece, Sector};
use nix::libc::{self, iovec};
use zerocopy::IntoBytes;

pub use error::DeviceError;

use crate::model::{ModelledDevice, Work};
use crate::vectors::{MOST_TRIES, MOST_VECTORS, advance, failed};

/// Bytes at the beginning of a device that must be zeroes for the device to be blank.
const CHECKED_AT_START: u64 = 1 << 20;
/// Bytes at the end that must be zeroes too: partition tables and RAID members keep a copy there.
const CHECKED_AT_END: u64 = 64 << 10;

/// An open device, locked against all others that ask for a lock.
#[derive(Debug)]
pub struct DeviceFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    in_memory: bool,
    model: Option<Arc<ModelledDevice>>,
}

/// A replica's devices.
#[derive(Debug)]
pub struct Devices {
    /// The fast one.
    pub log: DeviceFile,
    /// The large one, if it is another.
    pub capacity: Option<DeviceFile>,
}

/// What went wrong with an I/O, on whichever device it was.
#[derive(Debug)]
pub(crate) enum Fault {
    Failed { at: u64, error: io::Error },
    Short { at: u64 },
}

impl Fault {
    pub(crate) fn of(self, area: Area) -> IoFault {
        match self {
            Fault::Failed { at, error } => failed(area, at, error),
            Fault::Short { at } => IoFault::Short { area, at },
        }
    }
}

impl DeviceFile {
    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A plain handle of it. The lock lasts until that is dropped too.
    pub(crate) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Another handle of it. The lock lasts until all are dropped.
    pub fn share(&self) -> io::Result<DeviceFile> {
        let (file, path) = (self.file.try_clone()?, self.path.clone());
        let model = self.model.clone();
        Ok(DeviceFile { file, path, bytes: self.bytes, in_memory: self.in_memory, model })
    }

    /// The same device, which behaves as a model says from now on, for all handles that are made of this one.
    pub fn modelled(self, model: Option<Arc<ModelledDevice>>) -> DeviceFile {
        DeviceFile { model, ..self }
    }

    /// The model by which it behaves, if it has one.
    pub fn model(&self) -> Option<&ModelledDevice> {
        self.model.as_deref()
    }

    /// How long it was when it was opened, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// It lives in memory (tmpfs, ramfs): fast, and gone when the machine restarts.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Whether nothing seems to be on it: its first MiB and its last 64 KiB are zeroes. Fails if it cannot be read.
    pub fn is_blank(&self) -> Result<bool, DeviceError> {
        let mut sectors = Sector::zeroes((CHECKED_AT_END / size_of::<Sector>() as u64) as usize);
        let whole = self.bytes - self.bytes % size_of::<Sector>() as u64;
        let first = (0..CHECKED_AT_START.min(whole)).step_by(CHECKED_AT_END as usize);
        for at in first.chain([whole.saturating_sub(CHECKED_AT_END)]) {
            let length = CHECKED_AT_END.min(whole - at) as usize;
            let into = &mut sectors.as_mut_bytes()[..length];
            self.read_at(at, into).map_err(|fault| {
                let (Fault::Failed { at, .. } | Fault::Short { at }) = fault;
                let error = match fault {
                    Fault::Failed { error, .. } => error,
                    Fault::Short { .. } => io::ErrorKind::UnexpectedEof.into(),
                };
                DeviceError::Unreadable { path: self.path.clone(), at, error }
            })?;
            if into.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fills this, whose memory is aligned to 512 bytes, from a byte on that is a multiple of them.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let (mut done, mut tries) = (0, 0);
        while done < into.len() {
            let at = at.saturating_add(done as u64);
            match self.file.read_at(&mut into[done..], at) {
                Ok(0) => return Err(Fault::Short { at }),
                Ok(read) => done += read,
                Err(error) if is_passing(&error) && tries < MOST_TRIES => tries += 1,
                Err(error) => return Err(Fault::Failed { at, error }),
            }
        }
        Ok(())
    }

    /// Writes what these vectors refer to, one after the other, from a byte on. `durable`: it returns when the device has
    /// it for good. The vectors are used up.
    ///
    /// # Safety
    /// Each vector refers to memory that may be read, and that does not change during the call.
    pub(crate) unsafe fn write_vectors(
        &self,
        mut at: u64,
        vectors: &mut [iovec],
        durable: bool,
    ) -> Result<(), Fault> {
        let (mut first, mut tries) = (0, 0);
        let (mut flags, mut sync) = (if durable { libc::RWF_DSYNC } else { 0 }, false);
        while first < vectors.len() {
            let some = &vectors[first..vectors.len().min(first + MOST_VECTORS)];
            // What does not fit is refused by the kernel, as a negative offset.
            let offset = i64::try_from(at).unwrap_or(-1);
            // SAFETY: `some` are valid vectors, no more than the system takes, of memory that the caller keeps.
            let wrote = unsafe {
                libc::pwritev2(self.file.as_raw_fd(), some.as_ptr(), some.len() as i32, offset, flags)
            };
            match usize::try_from(wrote) {
                Ok(0) => return Err(Fault::Failed { at, error: io::ErrorKind::WriteZero.into() }),
                Ok(bytes) => {
                    first = advance(vectors, first, bytes);
                    at += bytes as u64;
                }
                Err(_) => match io::Error::last_os_error() {
                    // A file system that does not know the flag writes without it, and syncs at the end.
                    error if error.raw_os_error() == Some(libc::EOPNOTSUPP) && flags != 0 => {
                        (flags, sync) = (0, true);
                    }
                    error if is_passing(&error) && tries < MOST_TRIES => tries += 1,
                    error => return Err(Fault::Failed { at, error }),
                },
            }
        }
        if sync { self.sync() } else { Ok(()) }
    }

    /// Makes durable what was written.
    pub(crate) fn sync(&self) -> Result<(), Fault> {
        self.file.sync_data().map_err(|error| Fault::Failed { at: 0, error })
    }
}

/// It only means that it is to be tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

impl AsFd for DeviceFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Devices {
    /// The one that has this area.
    pub fn file(&self, area: Area) -> &DeviceFile {
        match area {
            Area::Log => &self.log,
            Area::Capacity => self.capacity.as_ref().unwrap_or(&self.log),
        }
    }

    /// Whether a device behaves as a model says.
    pub fn have_model(&self) -> bool {
        [Area::Log, Area::Capacity].iter().any(|area| self.file(*area).model.is_some())
    }

    /// The devices get this request now. When it completes as their models say, if they have any.
    pub fn begin<D>(&self, now: Moment, request: &IoRequest<D>) -> Option<Moment> {
        let begin = |area, work| self.file(area).model().map(|model| model.begin(now, work));
        match request {
            IoRequest::Read(reading) => {
                let bytes = |of: &[Piece]| of[of.len() - 1].end() - of[0].at;
                reading.ios().filter_map(|of| begin(of[0].area, Work::Read(bytes(of)))).max()
            }
            IoRequest::Write(writing) => {
                begin(writing.area, Work::Write { bytes: writing.length(), durable: writing.durable })
            }
            IoRequest::Sync(area) => begin(*area, Work::Flush),
        }
    }

    /// All of it lives in memory.
    pub fn are_in_memory(&self) -> bool {
        self.file(Area::Log).in_memory && self.file(Area::Capacity).in_memory
    }
}

impl Disk for Devices {
    fn bytes(&self, area: Area) -> u64 {
        self.file(area).bytes
    }

    fn read(&mut self, area: Area, at: u64, into: &mut [Sector]) -> Result<(), IoFault> {
        self.file(area).read_at(at, into.as_mut_bytes()).map_err(|fault| fault.of(area))
    }

    fn write(&mut self, area: Area, at: u64, from: &[Sector]) -> Result<(), IoFault> {
        let bytes = from.as_bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let mut vectors = [iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        // SAFETY: the one vector refers to `from`, which is borrowed until the call returns, and is only read.
        unsafe { self.file(area).write_vectors(at, &mut vectors, true) }.map_err(|fault| fault.of(area))
    }

    fn sync(&mut self, area: Area) -> Result<(), IoFault> {
        self.file(area).sync().map_err(|fault| fault.of(area))
    }
}
