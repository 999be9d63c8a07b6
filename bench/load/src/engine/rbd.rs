//! An image of a Ceph cluster: I/Os are handed to librbd, whose threads say what came of them.
//!
//! Why completions come by a callback, and not by the library's list of events (`rbd_poll_io_events`): that list is one for an
//! image, and an image is shared by all threads of a load (see `rbd/disk.rs`). Each engine has its own list so, and is woken
//! only if it sleeps.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Engine, Io, Kind, Memory};
use crate::rbd::disk::RbdDisk;
use crate::rbd::library::{Ceph, Handle, ceph};

/// How long dropping an engine waits for the library to be done with its memory.
const DROP_LIMIT: Duration = Duration::from_millis(100);
/// How long what then is in flight is waited for by a thread beside us: a cluster that comes back gives it back, and the image
/// is closed in order.
const REST_LIMIT: Duration = Duration::from_secs(3600);

/// What the library has done and the engine has not seen.
#[derive(Default)]
struct Done {
    all: Vec<(u32, i32)>,
    /// The engine waits to be woken.
    asleep: bool,
}

/// What engine and library share.
struct Shared {
    done: Mutex<Done>,
    wake: EventFd,
}

impl Shared {
    fn done(&self) -> MutexGuard<'_, Done> {
        // No code panics while it has the lock.
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until something is done.
    fn sleep(&self, limit: Duration) -> io::Result<()> {
        {
            let mut done = self.done();
            if !done.all.is_empty() {
                return Ok(());
            }
            done.asleep = true;
        }
        let mut events = [PollFd::new(self.wake.as_fd(), PollFlags::POLLIN)];
        let slept = super::sleep_for(&mut events, limit);
        self.done().asleep = false;
        slept?;
        match self.wake.read() {
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A slot, as the library knows it while it has its I/O.
struct Place {
    shared: Arc<Shared>,
    slot: u32,
}

/// Called by a thread of the library when an I/O is done.
unsafe extern "C" fn completed(completion: Handle, place: *mut c_void) {
    // SAFETY: it is what `push` gave away for this I/O, which is done once.
    let place = unsafe { Arc::from_raw(place.cast_const().cast::<Place>()) };
    let Ok(ceph) = ceph() else { return };
    // SAFETY: the completion is that of this call, and nothing uses it afterwards. The library lets go of it by itself when
    // this has returned.
    let result = unsafe {
        let result = (ceph.rbd_aio_get_return_value)(completion);
        (ceph.rbd_aio_release)(completion);
        result
    };
    let result = i32::try_from(result).unwrap_or(-(Errno::EIO as i32));
    let mut done = place.shared.done();
    done.all.push((place.slot, result));
    let asleep = std::mem::take(&mut done.asleep);
    drop(done);
    if asleep {
        // It fails only if the count is at its end, and then the thread that sleeps is woken as well.
        let _ = place.shared.wake.write(1);
    }
}

pub(crate) struct RbdEngine {
    /// Kept open by an I/O in flight, too (see drop).
    disk: ManuallyDrop<Arc<RbdDisk>>,
    ceph: &'static Ceph,
    image: Handle,
    /// Kept while the library may yet use it.
    memory: ManuallyDrop<Memory>,
    shared: Arc<Shared>,
    places: Vec<Arc<Place>>,
    /// What a slot's I/O moves, if all is well; the library does not say it of writes.
    lengths: Vec<u32>,
    reads: Vec<bool>,
    in_flight: usize,
    done: VecDeque<(u32, i32)>,
    /// Completions that were taken from the library's list, and not handled yet.
    taken: Vec<(u32, i32)>,
    poll: bool,
}

impl RbdEngine {
    /// An engine for `slots` I/Os on this image. `poll`: it never sleeps.
    pub(crate) fn new(disk: Arc<RbdDisk>, memory: Memory, slots: usize, poll: bool) -> io::Result<RbdEngine> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let shared = Arc::new(Shared { done: Mutex::default(), wake });
        let place = |slot| Arc::new(Place { shared: Arc::clone(&shared), slot });
        let (ceph, image) = disk.image();
        Ok(RbdEngine {
            places: (0..slots as u32).map(place).collect(),
            disk: ManuallyDrop::new(disk),
            ceph,
            image,
            memory: ManuallyDrop::new(memory),
            shared,
            lengths: vec![0; slots],
            reads: vec![false; slots],
            in_flight: 0,
            done: VecDeque::with_capacity(slots),
            taken: Vec::with_capacity(slots),
            poll,
        })
    }

    fn collect(&mut self) {
        std::mem::swap(&mut self.shared.done().all, &mut self.taken);
        self.in_flight -= self.taken.len();
        for (slot, result) in self.taken.drain(..) {
            let moved = match result {
                0 if !self.reads[slot as usize] => self.lengths[slot as usize] as i32,
                other => other,
            };
            self.done.push_back((slot, moved));
        }
    }
}

impl Engine for RbdEngine {
    fn push(&mut self, io: Io) -> io::Result<()> {
        let slot = io.slot as usize;
        (self.lengths[slot], self.reads[slot]) = (io.length, io.kind == Kind::Read);
        let place = Arc::into_raw(Arc::clone(&self.places[slot])).cast_mut().cast::<c_void>();
        let mut completion = ptr::null_mut();
        // SAFETY: the function takes what it is given here, once, and the handle is put where it belongs.
        let made = unsafe { (self.ceph.rbd_aio_create_completion)(place, completed, &mut completion) };
        if made < 0 {
            // SAFETY: there is no other reference to it.
            drop(unsafe { Arc::from_raw(place.cast_const().cast::<Place>()) });
            return Err(io::Error::from_raw_os_error(-made));
        }
        let (length, image) = (io.length as usize, self.image);
        // SAFETY: the image is open as long as the disk, which this engine keeps until its I/Os are seen, as it does the memory
        // (see drop); a slot has one I/O at a time, which the caller's list of free slots keeps true.
        let begun = unsafe {
            match io.kind {
                Kind::Flush => (self.ceph.rbd_aio_flush)(image, completion),
                Kind::Read => {
                    let into = self.memory.address(io.slot, Kind::Read);
                    (self.ceph.rbd_aio_read)(image, io.offset, length, into.cast(), completion)
                }
                Kind::Write => {
                    let from = self.memory.address(io.slot, Kind::Write);
                    (self.ceph.rbd_aio_write)(image, io.offset, length, from.cast_const().cast(), completion)
                }
            }
        };
        if begun < 0 {
            // SAFETY: what was refused is not done either: no callback runs, and there is no other reference to the two.
            unsafe {
                (self.ceph.rbd_aio_release)(completion);
                drop(Arc::from_raw(place.cast_const().cast::<Place>()));
            }
            self.done.push_back((io.slot, begun));
            return Ok(());
        }
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _want: usize, limit: Duration) -> io::Result<()> {
        let until = Instant::now() + limit;
        loop {
            self.collect();
            let left = until.saturating_duration_since(Instant::now());
            if !self.done.is_empty() || self.poll || left.is_zero() {
                return Ok(());
            }
            self.shared.sleep(left)?;
        }
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        self.done.pop_front()
    }

    fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }
}

/// What the library may yet use: kept until it has given everything back.
struct Rest {
    disk: Arc<RbdDisk>,
    memory: Memory,
    shared: Arc<Shared>,
    in_flight: usize,
}

impl Rest {
    /// Waits for it. Whether all came back.
    fn is_back(&mut self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        loop {
            self.in_flight -= std::mem::take(&mut self.shared.done().all).len();
            let left = until.saturating_duration_since(Instant::now());
            if self.in_flight == 0 || left.is_zero() || self.shared.sleep(left).is_err() {
                return self.in_flight == 0;
            }
        }
    }
}

impl Drop for RbdEngine {
    fn drop(&mut self) {
        // SAFETY: neither is used again.
        let (disk, memory) =
            unsafe { (ManuallyDrop::take(&mut self.disk), ManuallyDrop::take(&mut self.memory)) };
        let mut rest = ManuallyDrop::new(Rest {
            disk,
            memory,
            shared: Arc::clone(&self.shared),
            in_flight: self.in_flight,
        });
        if rest.is_back(DROP_LIMIT) {
            // SAFETY: it is not used again, and nor does the library use anything of it.
            unsafe { ManuallyDrop::drop(&mut rest) };
            return;
        }
        let waiting =
            std::thread::Builder::new().name("rbd-rest".into()).stack_size(STACK).spawn(move || {
                if rest.is_back(REST_LIMIT) {
                    // The memory first: closing may take long.
                    let Rest { disk, memory, .. } = ManuallyDrop::into_inner(rest);
                    drop(memory);
                    drop(disk);
                }
            });
        // Without a thread it is never given back: the closure's own is not dropped either.
        drop(waiting);
    }
}
