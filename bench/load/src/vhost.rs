//! A connection to a vhost-user-blk server: <https://qemu-project.gitlab.io/qemu/interop/vhost-user.html>, and the block
//! device of <https://docs.oasis-open.org/virtio/virtio/v1.2/virtio-v1.2.html> (5.2).
//!
//! A server has one front-end at a time. So the connection is made when the disk is opened, and all threads share it, with a
//! queue for each.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use nix::libc;
use nix::sys::socket::{Shutdown, UnixAddr, getpeername, shutdown};
use virtio_driver::{
    EventFd, QueueNotifier, VhostUser, VirtioBlkFeatureFlags as Feature, VirtioBlkQueue, VirtioBlkTransport,
    VirtioFeatureFlags,
};

use crate::engine::Memory;
use crate::error::LoadError;

/// How long a server may take to let a front-end in; a front-end that has just gone may be in its way.
const LIMIT: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(50);
/// Descriptors of a request: what is asked, the data, what came of it.
const DESCRIPTORS: usize = 3;
/// The most descriptors of a queue that servers take (1024 is QEMU's limit, and ours).
const MOST_DESCRIPTORS: usize = 1024;

/// One connection is made at a time: see [`Socket`].
static CONNECTING: Mutex<()> = Mutex::new(());

/// A queue of a disk, which one thread has at a time.
pub(crate) struct Queue {
    pub(crate) blk: VirtioBlkQueue<'static, u32>,
    pub(crate) completed: Arc<EventFd>,
    notifier: Box<dyn QueueNotifier>,
}

// SAFETY: a queue is its owner's place in memory that is mapped as long as the disk's transport lives, and numbers beside it.
// Nothing of it belongs to a thread, and only one thread has it.
unsafe impl Send for Queue {}

impl Queue {
    /// Tells the server that there is something in the queue.
    pub(crate) fn notify(&self) -> io::Result<()> {
        self.notifier.notify()
    }
}

/// A server's disk.
pub(crate) struct VhostDisk {
    /// Dropped after the queues: their memory is its own. The holder of a queue holds this disk.
    queues: Mutex<Vec<Queue>>,
    transport: Mutex<Box<VirtioBlkTransport>>,
    socket: Socket,
    /// The size of the disk, in bytes.
    pub(crate) bytes: u64,
    /// Nothing may be written.
    pub(crate) read_only: bool,
    /// The device keeps writes in a cache until a flush.
    pub(crate) flushes: bool,
    /// Offsets and lengths are multiples of this.
    pub(crate) least: u32,
}

impl fmt::Debug for VhostDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VhostDisk").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// The connection's socket, which the driver keeps for itself: found by looking which descriptor came to be, and is
/// connected there. By it a server that has died is noticed.
struct Socket(OwnedFd);

impl Socket {
    fn all_to(path: &Path) -> HashSet<RawFd> {
        let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
        numbers
            .filter(|fd| getpeername::<UnixAddr>(*fd).is_ok_and(|peer| peer.path() == Some(path)))
            .collect()
    }

    /// The one that was not there before. No other thread connects meanwhile.
    fn new_to(path: &Path, before: &HashSet<RawFd>) -> Option<Socket> {
        let fd = Socket::all_to(path).difference(before).next().copied()?;
        // SAFETY: it takes a number and touches no memory; what it returns is a new descriptor, of which there is no other owner.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        // SAFETY: as above.
        (copy >= 0).then(|| Socket(unsafe { OwnedFd::from_raw_fd(copy) }))
    }
}

/// What is wanted of a disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Threads that use it at the same time.
    pub(crate) threads: usize,
    /// I/Os that each has outstanding at most.
    pub(crate) slots: usize,
    /// Writes are durable when they are answered.
    pub(crate) through: bool,
}

impl VhostDisk {
    /// Connects to the server that listens at this socket.
    pub(crate) fn connect(path: &Path, wanted: Wanted) -> Result<VhostDisk, LoadError> {
        let name = path.display();
        let descriptors = (wanted.slots * DESCRIPTORS).next_power_of_two().max(64);
        if descriptors > MOST_DESCRIPTORS {
            return Err(LoadError::usage(format!(
                "vhost-user:{name}: {} I/Os outstanding are more than fit a queue: at most {} for each thread",
                wanted.slots,
                MOST_DESCRIPTORS / DESCRIPTORS
            )));
        }
        let until = Instant::now() + LIMIT;
        loop {
            match try_connect(path, wanted, descriptors as u16, until) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(LoadError::usage(format!(
                        "vhost-user:{name}: there is no socket of this name"
                    )));
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    return Err(LoadError::usage(format!("vhost-user:{name}: {error}")));
                }
                // It may be about to notice that its last front-end has gone.
                Err(error) if Instant::now() + RETRY < until && error.kind() != io::ErrorKind::TimedOut => {
                    std::thread::sleep(RETRY);
                }
                Err(error) => {
                    return Err(LoadError::failed(format!(
                        "vhost-user:{name}: the server refuses the connection ({error}): check that the server runs, and that \
                         no other front end uses the disk; a server accepts one front end at a time"
                    )));
                }
                Ok(disk) => return Ok(disk),
            }
        }
    }

    /// For a thread.
    pub(crate) fn take_queue(&self) -> io::Result<Queue> {
        let taken = locked(&self.queues).pop();
        taken.ok_or_else(|| io::Error::other("all queues of the vhost-user disk are in use: report it"))
    }

    pub(crate) fn give_back(&self, queue: Queue) {
        locked(&self.queues).push(queue);
    }

    /// The server may read and write this memory from now on.
    pub(crate) fn map(&self, memory: &mut Memory) -> io::Result<()> {
        let mut transport = locked(&self.transport);
        for (region, file) in memory.shared() {
            transport.map_mem_region(region.as_ptr() as usize, region.len(), file.as_raw_fd(), 0)?;
        }
        Ok(())
    }

    /// It may not any more. If it does not answer, it is not asked again: the connection ends soon.
    pub(crate) fn unmap(&self, memory: &Memory) {
        let mut transport = locked(&self.transport);
        for (region, _) in memory.shared() {
            if transport.unmap_mem_region(region.as_ptr() as usize, region.len()).is_err() {
                return;
            }
        }
    }

    /// Readable, or closed, when the server has ended.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }
}

impl Drop for VhostDisk {
    fn drop(&mut self) {
        let _ = shutdown(self.socket.0.as_raw_fd(), Shutdown::Both);
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it has the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects, but waits no longer than until then: the driver itself waits for ever.
fn try_connect(path: &Path, wanted: Wanted, descriptors: u16, until: Instant) -> io::Result<VhostDisk> {
    let _alone = locked(&CONNECTING);
    let before = Socket::all_to(path);
    // A socket that does not exist is reported at once.
    std::fs::metadata(path)?;
    let (send, made) = mpsc::channel();
    let of_thread = PathBuf::from(path);
    std::thread::Builder::new().name("vhost-connect".into()).stack_size(STACK).spawn(move || {
        _ = send.send(connected(&of_thread, wanted, descriptors));
    })?;
    match made.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(Ok((transport, queues, properties))) => {
            let socket = Socket::new_to(path, &before)
                .ok_or_else(|| io::Error::other("the connection's socket is not found: is /proc mounted?"))?;
            let DiskProperties { bytes, read_only, flushes, least } = properties;
            let (queues, transport) = (Mutex::new(queues), Mutex::new(transport));
            Ok(VhostDisk { queues, transport, socket, bytes, read_only, flushes, least })
        }
        Ok(Err(error)) => Err(error),
        Err(_) => {
            // The thread ends by it.
            if let Some(socket) = Socket::new_to(path, &before) {
                let _ = shutdown(socket.0.as_raw_fd(), Shutdown::Both);
            }
            Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"))
        }
    }
}

/// The properties of a disk, as its server reports them.
struct DiskProperties {
    bytes: u64,
    read_only: bool,
    flushes: bool,
    least: u32,
}

type Connected = (Box<VirtioBlkTransport>, Vec<Queue>, DiskProperties);

fn connected(path: &Path, wanted: Wanted, descriptors: u16) -> io::Result<Connected> {
    let path = path.to_str().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is not UTF-8"))?;
    let mut features = Feature::RO | Feature::BLK_SIZE | Feature::MQ;
    // A device whose driver does not flush has no volatile cache (5.2.5 of the specification).
    if !wanted.through {
        features |= Feature::FLUSH;
    }
    let ring = VirtioFeatureFlags::VERSION_1 | VirtioFeatureFlags::RING_EVENT_IDX;
    let mut transport: Box<VirtioBlkTransport> =
        Box::new(VhostUser::new(path, features.bits() | ring.bits())?);
    let has = Feature::from_bits_truncate(transport.get_features());
    let config = transport.get_config()?;
    let offered = if has.contains(Feature::MQ) { u16::from(config.num_queues) as usize } else { 1 };
    if offered < wanted.threads {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("its server has {offered} queues, and each of {} threads needs one", wanted.threads),
        ));
    }
    // One for the queues, and one or two for each thread.
    let regions = 1 + 2 * wanted.threads as u64;
    if transport.max_mem_regions() < regions {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "its server maps {} regions of memory, and {} threads need {regions}: use fewer",
                transport.max_mem_regions(),
                wanted.threads
            ),
        ));
    }
    let queues = VirtioBlkQueue::setup_queues(&mut *transport, wanted.threads, descriptors)?;
    let queues = queues.into_iter().enumerate().map(|(index, blk)| Queue {
        blk,
        completed: transport.get_completion_fd(index),
        notifier: transport.get_submission_notifier(index),
    });
    let queues: Vec<Queue> = queues.collect();
    let properties = DiskProperties {
        bytes: u64::from(config.capacity) * 512,
        read_only: has.contains(Feature::RO),
        flushes: has.contains(Feature::FLUSH),
        least: if has.contains(Feature::BLK_SIZE) { u32::from(config.blk_size).max(512) } else { 512 },
    };
    Ok((transport, queues, properties))
}
