//! Stretches of mapped devices are made huge pages by one thread for the whole process, while the loops run.
//!
//! To make a huge page the kernel may have to move or to give up other memory first, without a bound on how long that takes. So a
//! loop requests it and continues: until the stretch is done it reads and writes it by calls.
//!
//! ```text
//! loop ── a stretch (at most 256 wait; else it is asked for again later) ──▶ this thread: first page ─▶ collapse ─▶ all of it
//!  ▲                                                                            │
//!  └──────────────── there, or not, and whether it was slow ◀───────────────────┘
//! ```

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;

/// Stretches that wait for the thread at most.
const MOST_WAITING: usize = 256;
/// One that took longer was slow: the loop leaves the next ones in small pages.
const SLOW: Duration = Duration::from_millis(20);
/// What has to be there for a huge page to be made of it.
const PAGE: i64 = 4096;

/// The state of a stretch, as the loop reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StretchState {
    /// It was not requested, or its end was [taken](Region::take).
    Idle,
    /// It is queued for the thread, or the thread works on it.
    Requested,
    /// All of it is there.
    There,
    /// The same; but no huge page was made, or slowly.
    ThereSlowly,
    /// There is no memory for it.
    Missing,
}

const STATES: [StretchState; 5] = [
    StretchState::Idle,
    StretchState::Requested,
    StretchState::There,
    StretchState::ThereSlowly,
    StretchState::Missing,
];

/// A device as it is mapped, which is unmapped when neither its loop nor the thread refers to it.
#[derive(Debug)]
pub(crate) struct Region {
    file: File,
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes of a stretch, and the state of each.
    stretch: u64,
    states: Box<[AtomicU8]>,
}

// SAFETY: what is mapped is read and written by the loop alone that has the mapping (see `Mapping::read`). The thread here never
// looks at it: it passes addresses to the kernel, which may be done from any thread; and the states are atomic.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Takes over a mapping of so many bytes of this file, which begins at a multiple of `stretch`.
    ///
    /// # Safety
    /// Nothing else unmaps it.
    pub(crate) unsafe fn new(file: File, start: NonNull<u8>, bytes: usize, stretch: u64) -> Arc<Region> {
        let states = (0..(bytes as u64).div_ceil(stretch)).map(|_| AtomicU8::new(0)).collect();
        Arc::new(Region { file, start, bytes, stretch, states })
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The state of a stretch. One that has ended is idle from then on.
    pub(crate) fn take(&self, stretch: usize) -> StretchState {
        let state = STATES[usize::from(self.states[stretch].load(Ordering::Acquire))];
        if !matches!(state, StretchState::Idle | StretchState::Requested) {
            self.set(stretch, StretchState::Idle);
        }
        state
    }

    fn set(&self, stretch: usize, state: StretchState) {
        self.states[stretch].store(state as u8, Ordering::Release);
    }

    /// Asks for a stretch, which is whole and idle. False if too many wait, or there is no thread.
    pub(crate) fn ask(self: &Arc<Region>, stretch: usize) -> bool {
        static THREAD: OnceLock<Option<SyncSender<Wanted>>> = OnceLock::new();
        THREAD.get_or_init(start).as_ref().is_some_and(|thread| self.ask_of(thread, stretch))
    }

    fn ask_of(self: &Arc<Region>, thread: &SyncSender<Wanted>, stretch: usize) -> bool {
        self.set(stretch, StretchState::Requested);
        // A device that is given up meanwhile is not kept open, and locked, for what waits.
        match thread.try_send(Wanted { region: Arc::downgrade(self), stretch }) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.set(stretch, StretchState::Idle);
                false
            }
        }
    }

    /// Makes all of a stretch be there, as one huge page if the system has some.
    fn make(&self, stretch: usize) -> StretchState {
        let from = stretch as u64 * self.stretch;
        let begun = Instant::now();
        // It is made of what is there, so something has to be.
        let huge = allocate(&self.file, from, PAGE) && self.collapse(from);
        let slow = !huge || begun.elapsed() > SLOW;
        match allocate(&self.file, from, self.stretch as i64) {
            false => StretchState::Missing,
            true if slow => StretchState::ThereSlowly,
            true => StretchState::There,
        }
    }

    /// Asks for a stretch to be one huge page: 120 us if little of it is there, where that many small pages take 500; copies to it
    /// were up to 1.2 times as fast. False where the system refuses (before Linux 6.1, or without memory for it).
    fn collapse(&self, from: u64) -> bool {
        // SAFETY: the stretch lies within the mapping, which lives as long as this. The call changes which pages it has, not what
        // is in it: the kernel takes away all translations of the old ones, of every thread and process, before it copies them;
        // so it does not matter that a loop may be using the stretch meanwhile.
        unsafe {
            let start = self.start.as_ptr().add(from as usize).cast();
            libc::madvise(start, self.stretch as usize, libc::MADV_COLLAPSE) == 0
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, as `new` was promised, and no reference to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Makes a part of a file have memory. False if there is none for it.
pub(crate) fn allocate(file: impl AsFd, from: u64, length: i64) -> bool {
    loop {
        match fallocate(file.as_fd(), FallocateFlags::FALLOC_FL_KEEP_SIZE, from as i64, length) {
            Err(Errno::EINTR) => {}
            other => return other.is_ok(),
        }
    }
}

/// A stretch that is to be made.
struct Wanted {
    region: Weak<Region>,
    stretch: usize,
}

/// Starts the thread. None if there can be none.
fn start() -> Option<SyncSender<Wanted>> {
    let (wanted, waiting) = sync_channel(MOST_WAITING);
    let thread = std::thread::Builder::new().name("huge-pages".into()).stack_size(STACK);
    thread.spawn(move || serve(&waiting)).ok().map(|_| wanted)
}

fn serve(waiting: &Receiver<Wanted>) {
    for Wanted { region, stretch } in waiting {
        if let Some(region) = region.upgrade() {
            let state = region.make(stretch);
            region.set(stretch, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::DeviceFile;
    use crate::mapping::Mapping;
    use std::os::fd::AsRawFd;
    use std::path::{Path, PathBuf};

    const STRETCH: u64 = 2 << 20;

    /// A file of so many stretches in memory, and its folder. None where there is no memory for files.
    fn device(stretches: u64) -> Option<(tempfile::TempDir, PathBuf)> {
        let folder = tempfile::tempdir_in("/dev/shm").ok()?;
        let path = folder.path().join("device");
        let file = File::create(&path).ok()?;
        file.set_len(stretches * STRETCH).ok()?;
        Some((folder, path))
    }

    fn region(path: &Path, stretches: u64) -> Arc<Region> {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let bytes = (stretches * STRETCH) as usize;
        // SAFETY: a new mapping of an open file, at a place that the system chooses; nothing else knows where, and all of it is
        // the region's.
        unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let start = libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0);
            assert_ne!(start, libc::MAP_FAILED);
            Region::new(file, NonNull::new(start.cast()).unwrap(), bytes, STRETCH)
        }
    }

    #[test]
    fn a_request_does_not_wait_and_the_number_that_waits_is_bounded() {
        let Some((_folder, path)) = device(4) else { return };
        let region = region(&path, 4);
        let (thread, waiting) = sync_channel(2);
        // The thread is at something that takes long: it takes nothing.
        assert!(region.ask_of(&thread, 0) && region.ask_of(&thread, 1));
        assert!(!region.ask_of(&thread, 2), "two wait already");
        let states: Vec<StretchState> = (0..4).map(|stretch| region.take(stretch)).collect();
        assert_eq!(
            states,
            [StretchState::Requested, StretchState::Requested, StretchState::Idle, StretchState::Idle]
        );
        let server = std::thread::spawn(move || serve(&waiting));
        let begun = Instant::now();
        while region.take(1) == StretchState::Requested {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is made");
            std::thread::yield_now();
        }
        assert!(matches!(region.take(0), StretchState::There | StretchState::ThereSlowly));
        assert_eq!(region.take(0), StretchState::Idle, "it was taken");
        drop(thread);
        server.join().unwrap();
        assert!(!region.ask_of(&sync_channel(0).0, 3), "there is no thread");
    }

    #[test]
    fn a_device_that_is_given_up_is_not_kept_for_what_waits() {
        let Some((_folder, path)) = device(1) else { return };
        let (region, (thread, waiting)) = (region(&path, 1), sync_channel(2));
        assert!(region.ask_of(&thread, 0));
        drop((region, thread));
        serve(&waiting);
        assert_eq!(std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()), 0, "nothing was made");
    }

    #[test]
    fn a_busy_stretch_is_mapped_soon_and_by_another_thread() {
        let Some((_folder, path)) = device(2) else { return };
        let file = DeviceFile::open(&path, Duration::ZERO).unwrap();
        let mut mapping = Mapping::new(&file).unwrap();
        let data = vec![7u8; 256 << 10];
        let vectors = [libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }];
        // SAFETY: the vector refers to `data`, which is not changed.
        let mut write = || unsafe { mapping.write(&file, 0, &vectors) };
        assert!(!write(), "it was asked for, and is written by a call until it is there");
        let begun = Instant::now();
        while !write() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is made");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut read = vec![0; data.len()];
        assert!(mapping.read(&file, 0, &mut read) && read == data);
        drop((mapping, file));
        // The lock goes with the mapping, though the thread goes on.
        DeviceFile::open(&path, Duration::from_secs(10)).unwrap();
    }
}
