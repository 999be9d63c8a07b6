//! One queue of a front-end: taken from, answered into, and its two bells.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use virtio_queue::{Queue as Ring, QueueT};

use super::dirty::{Beyond, DirtyLog};
use super::inflight::{Again, InFlight};
use super::memory::{Mapped, Memory, Reason};
use crate::session::QueueWatch;

/// The most descriptors of a queue: QEMU's limit too.
pub(super) const MOST_DESCRIPTORS: u16 = 1024;

/// Bytes of a used ring's header, and of each of its entries.
const USED_HEADER: usize = 4;
const USED_ENTRY: usize = 8;

/// Where the parts of a queue are, by the front-end's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
}

/// An answer that cannot be written where it belongs, and why: the front-end is to be disconnected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unwritten(pub(super) &'static str);

/// One virtqueue of a front-end, with the two eventfds by which the front-end and this process notify each other.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) ring: Ring,
    places: Option<Places>,
    /// The guest's address of the used ring, by which what is written there is logged; `None` if it is not to be logged.
    used_log: Option<u64>,
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
            used_log: None,
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

    /// Where its parts are. In a queue that runs they stay where they are: a front-end that begins or ends the logging of what is
    /// written repeats them. `used_log`: the guest's address of the used ring, if writes to it are to be logged.
    pub(super) fn set_places(
        &mut self,
        places: Places,
        used_log: Option<u64>,
        memory: &Memory,
    ) -> Result<(), Reason> {
        if self.running {
            if self.places != Some(places) {
                return Err("it moves a queue that is in use".into());
            }
            self.used_log = used_log;
            return Ok(());
        }
        let find =
            |user| memory.guest_address(user).ok_or("a queue lies outside of the memory that is shared");
        let (descriptors, available, used) =
            (find(places.descriptors)?, find(places.available)?, find(places.used)?);
        let set = self.ring.try_set_desc_table_address(descriptors);
        let set = set.and_then(|()| self.ring.try_set_avail_ring_address(available));
        let set = set.and_then(|()| self.ring.try_set_used_ring_address(used));
        set.map_err(|error| format!("a queue's place is not taken: {error}"))?;
        (self.places, self.used_log) = (Some(places), used_log);
        Ok(())
    }

    /// Adds an entry to the used ring. Returns its index.
    pub(super) fn add_used(&mut self, mapped: &Mapped, head: u16, bytes: u32) -> Result<u16, Unwritten> {
        let index = self.ring.next_used();
        let added = self.ring.add_used(mapped, head, bytes);
        added.map(|()| index).map_err(|_| Unwritten("a queue is not within its memory any more"))
    }

    /// The used ring's header and the entry of this index were written.
    pub(super) fn mark_used(&self, index: u16, log: &DirtyLog) -> Result<(), Beyond> {
        let Some(used) = self.used_log else { return Ok(()) };
        log.mark(used, USED_HEADER)?;
        let entry = u64::from(index % self.ring.size());
        log.mark(used.saturating_add(USED_HEADER as u64 + entry * USED_ENTRY as u64), USED_ENTRY)
    }

    /// Any of the used ring may have been written.
    pub(super) fn mark_all_used(&self, log: &DirtyLog) -> Result<(), Beyond> {
        let Some(used) = self.used_log.filter(|_| self.running) else { return Ok(()) };
        // With the field behind the entries by which the guest is asked to notify.
        log.mark(used, USED_HEADER + USED_ENTRY * usize::from(self.ring.size()) + 2)
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

    /// Whether requests that a former process has taken wait to begin again.
    pub(super) fn has_again(&self) -> bool {
        self.running && !self.again.is_empty()
    }

    /// Whether there is something that was not taken. If the queue is to end, only what a former process has taken counts, whether or not
    /// the queue is still enabled: it is answered before the queue ends (rule H2).
    pub(super) fn has_more(&self, mapped: &Mapped, ends: bool) -> bool {
        if ends {
            return self.has_again();
        }
        let is_used = self.running && self.enabled;
        is_used
            && (!self.again.is_empty()
                || self
                    .ring
                    .avail_idx(mapped, Ordering::Acquire)
                    .is_ok_and(|there| there.0 != self.ring.next_avail()))
    }

    /// Asks the front-end to notify when there is more. Returns whether there is some already.
    pub(super) fn wants_kicks(&mut self, mapped: &Mapped, log: Option<&DirtyLog>) -> bool {
        let is_used = self.running && self.enabled;
        let more = is_used && self.ring.enable_notification(mapped).unwrap_or(false);
        if is_used {
            self.mark_wish(log);
        }
        more
    }

    /// The front-end need not notify for now: the queue is polled.
    pub(super) fn wants_no_kicks(&mut self, mapped: &Mapped, log: Option<&DirtyLog>) {
        if self.running && self.enabled {
            let _ = self.ring.disable_notification(mapped);
            self.mark_wish(log);
        }
    }

    /// The field by which the guest is asked to notify was written: in the header of the used ring, or behind its entries. A page without
    /// a bit is no error here: the next answer finds it.
    fn mark_wish(&self, log: Option<&DirtyLog>) {
        if let (Some(log), Some(used)) = (log, self.used_log) {
            let behind = USED_HEADER + USED_ENTRY * usize::from(self.ring.size());
            let _ = log.mark(used, USED_HEADER);
            let _ = log.mark(used.saturating_add(behind as u64), 2);
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
pub(super) fn bell(file: File) -> Result<File, Reason> {
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
