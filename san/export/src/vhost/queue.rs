//! One queue of a front-end: taken from, answered into, and its two bells.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use virtio_queue::{Queue as Ring, QueueT};

use super::inflight::{Again, InFlight};
use super::memory::{Mapped, Memory, Reason};
use crate::session::QueueWatch;

/// The most descriptors of a queue: QEMU's limit too.
pub(super) const MOST_DESCRIPTORS: u16 = 1024;

/// Where the parts of a queue are, by the front-end's messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

/// One virtqueue of a front-end, with the two eventfds by which the front-end and this process notify each other.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) ring: Ring,
    places: Option<Places>,
    /// The front-end notifies this process by it of new requests.
    kick: Option<File>,
    /// The kernel watches it.
    pub(super) watched: bool,
    /// This process notifies the front-end by it of answers.
    call: Option<File>,
    pub(super) enabled: bool,
    /// The places of its parts were checked, so that it may be used.
    pub(super) running: bool,
    /// What was begun in a former life.
    pub(super) again: VecDeque<Again>,
    /// Requests so far, those of former lives counted in.
    pub(super) order: u64,
    /// A request was answered since the last notification.
    pub(super) rings: bool,
    /// The front-end must be notified even if it has turned notifications off: a former life may have answered requests without a
    /// notification.
    must_ring: bool,
    /// What the kernel watches is another one's by now.
    stale: bool,
}

impl Queue {
    pub(super) fn new() -> Queue {
        let ring = Ring::new(MOST_DESCRIPTORS).expect("a power of two");
        Queue {
            ring,
            places: None,
            kick: None,
            watched: false,
            call: None,
            enabled: false,
            running: false,
            again: VecDeque::new(),
            order: 0,
            rings: false,
            must_ring: false,
            stale: false,
        }
    }

    /// As if it were new; but what the kernel watches is known.
    pub(super) fn reset(&mut self) {
        self.silence();
        let stale = self.stale;
        *self = Queue { stale, ..Queue::new() };
    }

    pub(super) fn set_size(&mut self, size: u32) -> Result<(), Reason> {
        let size = u16::try_from(size).ok().filter(|size| self.ring.try_set_size(*size).is_ok());
        size.map(|_| ())
            .ok_or_else(|| format!("a queue's size is a power of two, and at most {MOST_DESCRIPTORS}"))
    }

    /// It goes on from here. (The other index is in memory.)
    pub(super) fn set_base(&mut self, base: u16) {
        self.ring.set_next_avail(base);
    }

    pub(super) fn set_places(&mut self, places: Places, memory: &Memory) -> Result<(), Reason> {
        let find =
            |user| memory.guest_address(user).ok_or("a queue lies outside of the memory that is shared");
        let (descriptors, available, used) =
            (find(places.descriptors)?, find(places.available)?, find(places.used)?);
        let set = self.ring.try_set_desc_table_address(descriptors);
        let set = set.and_then(|()| self.ring.try_set_avail_ring_address(available));
        let set = set.and_then(|()| self.ring.try_set_used_ring_address(used));
        set.map_err(|error| format!("a queue's place is not taken: {error}"))?;
        self.places = Some(places);
        Ok(())
    }

    /// By this descriptor there will be news; which begins it.
    pub(super) fn set_kick(&mut self, kick: Option<File>) -> Result<(), Reason> {
        let kick = kick.ok_or("it would have its queue polled all the time, and never notify")?;
        self.silence();
        self.kick = Some(bell(kick)?);
        Ok(())
    }

    pub(super) fn set_call(&mut self, call: Option<File>) -> Result<(), Reason> {
        self.call = call.map(bell).transpose()?;
        // Otherwise the front-end would get no notification of what was answered before.
        (self.rings, self.must_ring) = (true, true);
        Ok(())
    }

    /// What is to be done about watching for news, if something is.
    pub(super) fn unwatched(&mut self) -> Option<QueueWatch> {
        if std::mem::take(&mut self.stale) {
            return Some(QueueWatch::No);
        }
        let kick = self.kick.as_ref().filter(|_| !self.watched)?;
        self.watched = true;
        Some(QueueWatch::By(kick.as_raw_fd()))
    }

    /// The kernel has reported that the eventfd is ready.
    pub(super) fn kicked(&mut self) {
        self.watched = false;
        if let Some(kick) = &self.kick {
            let mut count = [0_u8; 8];
            let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: 8 };
            // Nothing there, it was another one's news: that is as well. It does not wait for some, whatever the other side has
            // done to the descriptor, which it has too.
            // SAFETY: eight bytes, borrowed for the call.
            let _ = unsafe { libc::preadv2(kick.as_raw_fd(), &raw const into, 1, -1, libc::RWF_NOWAIT) };
        }
    }

    /// The queue may be used, if all settings that it needs have arrived.
    pub(super) fn begin(
        &mut self,
        number: u16,
        event_index: bool,
        mapped: &Mapped,
        kept: Option<&InFlight>,
    ) -> Result<(), Reason> {
        if self.running || self.kick.is_none() || self.places.is_none() {
            return Ok(());
        }
        self.ring.set_event_idx(event_index);
        self.ring.set_ready(true);
        if !self.ring.is_valid(mapped) {
            return Err("a queue is not all within the memory that is shared".into());
        }
        let used = self.ring.used_idx(mapped, Ordering::Acquire);
        let used = used.map_err(|error| format!("a queue cannot be checked: {error}"))?.0;
        self.ring.set_next_used(used);
        if let Some(kept) = kept {
            if !kept.fits(number, self.ring.size()) {
                return Err("what it keeps of requests in flight has no room for its queues".into());
            }
            self.again = kept.recover(number, self.ring.size(), used).into();
            self.order = self.again.back().map_or(0, |again| again.order.wrapping_add(1));
            // They were taken, and more was not. (The base shows that too, unless the process that knew it was killed.)
            self.ring.set_next_avail(used.wrapping_add(self.again.len() as u16));
        }
        self.running = true;
        (self.rings, self.must_ring) = (true, true);
        Ok(())
    }

    /// Ends the use of the queue. Returns the index at which it would continue.
    pub(super) fn end(&mut self) -> u16 {
        self.silence();
        self.kick = None;
        self.running = false;
        self.again.clear();
        self.ring.set_ready(false);
        self.ring.next_avail()
    }

    /// Whether there is something that was not taken.
    pub(super) fn has_more(&self, mapped: &Mapped) -> bool {
        let is_used = self.running && self.enabled;
        is_used
            && (!self.again.is_empty()
                || self
                    .ring
                    .avail_idx(mapped, Ordering::Acquire)
                    .is_ok_and(|there| there.0 != self.ring.next_avail()))
    }

    /// Asks the front-end to notify when there is more. Returns whether there is some already.
    pub(super) fn wants_kicks(&mut self, mapped: &Mapped) -> bool {
        let is_used = self.running && self.enabled;
        is_used && self.ring.enable_notification(mapped).unwrap_or(false)
    }

    /// The front-end need not notify for now: the queue is polled.
    pub(super) fn wants_no_kicks(&mut self, mapped: &Mapped) {
        if self.running && self.enabled {
            let _ = self.ring.disable_notification(mapped);
        }
    }

    /// Notifies the front-end of answers, if it has requested notifications.
    pub(super) fn ring(&mut self, mapped: &Mapped, mut ring: impl FnMut(RawFd)) {
        if std::mem::take(&mut self.rings) {
            let wants = self.ring.needs_notification(mapped).unwrap_or(true);
            if let Some(call) = self.call.as_ref().filter(|_| wants || self.must_ring) {
                self.must_ring = false;
                ring(call.as_raw_fd());
            }
        }
    }

    /// What the kernel watches ends: it keeps a descriptor until there is news.
    fn silence(&mut self) {
        self.stale |= std::mem::take(&mut self.watched);
    }
}

/// An eventfd by which one side notifies the other, and that never makes us wait.
fn bell(file: File) -> Result<File, Reason> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if !link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]") {
        return Err("the descriptor for notifications is no eventfd".into());
    }
    let set = fcntl(&file, FcntlArg::F_GETFL).and_then(|flags| {
        fcntl(&file, FcntlArg::F_SETFL(OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK))
    });
    set.map_err(|error| format!("the descriptor for notifications cannot be set up: {error}"))?;
    Ok(file)
}
