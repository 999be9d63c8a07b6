//! What a front-end asked and was not answered, in memory that it keeps while this process is gone ("Inflight I/O tracking" in
//! the vhost-user protocol): the process that serves it next finds what was begun, and begins it anew.
//!
//! ```text
//!   queue: features 8 │ version 2 │ descriptors 2 │ last answered 2 │ used index 2 │ for each: begun 1 … order 8
//!   …
//!   stamp: magic 8 │ cluster 16 │ volume 8 │ attachment 8
//! ```
//!
//! Nothing is begun anew in a later ownership (rule T4 of the [design](../../../../docs/explanation/san-rules.md)): the stamp at the end,
//! which is our own, states in which attachment of the volume it was begun. If another node may have owned the volume since, it fails
//! instead.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::guard::Guard;
use crate::session::Attachment;

const HEADER: usize = 16;
const DESCRIPTOR: usize = 16;
const STAMP: usize = 40;
const ALIGNMENT: usize = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"loadline");
const VERSION: u16 = 1;

/// A descriptor's request: not begun, begun, or begun and to fail.
const IDLE: u8 = 0;
const BEGUN: u8 = 1;
const FAILS: u8 = 2;

/// Requests of all queues. Shared with the front-end, which may change any of it: it can harm its own requests only.
#[derive(Debug)]
pub(super) struct InFlight {
    start: NonNull<u8>,
    bytes: usize,
    queues: u16,
    descriptors: u16,
    guard: Option<Guard>,
}

/// Bytes of one queue.
fn of_queue(descriptors: u16) -> usize {
    (HEADER + DESCRIPTOR * descriptors as usize).next_multiple_of(ALIGNMENT)
}

impl InFlight {
    /// Bytes for so many queues.
    pub(super) fn bytes(queues: u16, descriptors: u16) -> usize {
        of_queue(descriptors) * queues as usize + STAMP
    }

    /// New memory, in which nothing is begun.
    pub(super) fn file(queues: u16, descriptors: u16) -> io::Result<File> {
        let file = memfd_create("loadline-inflight", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&file, InFlight::bytes(queues, descriptors) as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(File::from(file))
    }

    /// Maps what a front-end has kept. What was begun in an attachment that is not this one, nor known to be as good, is marked
    /// as failing; then it is stamped with this one.
    pub(super) fn map(
        file: File,
        offset: u64,
        queues: u16,
        descriptors: u16,
        attachment: &Attachment,
    ) -> io::Result<InFlight> {
        let bytes = InFlight::bytes(queues, descriptors);
        if queues == 0 || descriptors == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "there are no requests to keep"));
        }
        super::memory::check(&file, offset, bytes as u64)
            .map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))?;
        // SAFETY: a new mapping of an open file at an address of the kernel's choice aliases nothing here.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let guard = Guard::new(start.as_ptr(), bytes).inspect_err(|_| {
            // SAFETY: it was just mapped, and nothing refers to it.
            unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
        })?;
        let this = InFlight { start, bytes, queues, descriptors, guard: Some(guard) };
        if !this.may_go_on(attachment) {
            for queue in 0..queues {
                for head in 0..descriptors {
                    let state = this.state(queue, head);
                    if state.load(Ordering::Acquire) != IDLE {
                        state.store(FAILS, Ordering::Release);
                    }
                }
            }
        }
        this.stamp(attachment);
        Ok(this)
    }

    /// Whether what was begun here may be begun anew: it is this volume's, and no other node has owned it since.
    fn may_go_on(&self, attachment: &Attachment) -> bool {
        let [magic, low, high, volume, number] =
            std::array::from_fn(|n| self.stamped(n).load(Ordering::Acquire));
        let cluster = u128::from(high) << 64 | u128::from(low);
        magic == MAGIC
            && cluster == attachment.cluster
            && volume == attachment.volume
            && (attachment.alone_since..=attachment.number).contains(&number)
    }

    /// What is begun from now on belongs to this attachment.
    pub(super) fn stamp(&self, attachment: &Attachment) {
        let cluster = attachment.cluster;
        let values = [MAGIC, cluster as u64, (cluster >> 64) as u64, attachment.volume, attachment.number];
        for (n, value) in values.into_iter().enumerate() {
            self.stamped(n).store(value, Ordering::Release);
        }
    }

    /// It has gone away.
    pub(super) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    /// Whether it has room for this queue.
    pub(super) fn fits(&self, queue: u16, descriptors: u16) -> bool {
        queue < self.queues && descriptors <= self.descriptors
    }

    fn stamped(&self, n: usize) -> &AtomicU64 {
        // SAFETY: the stamp follows the queues, within the mapping (see `bytes`), which lives as long as this; each queue's
        // length is a multiple of 64, so it is aligned. Memory that others change is to be read by atomics.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(self.bytes - STAMP + n * 8).cast()) }
    }

    fn header(&self, queue: u16, at: usize) -> &AtomicU16 {
        assert!(queue < self.queues && at + 2 <= HEADER);
        // SAFETY: as above; `at` is even, and within the queue's header.
        unsafe {
            AtomicU16::from_ptr(
                self.start.as_ptr().add(of_queue(self.descriptors) * queue as usize + at).cast(),
            )
        }
    }

    fn descriptor(&self, queue: u16, head: u16) -> NonNull<u8> {
        assert!(queue < self.queues && head < self.descriptors);
        let at = of_queue(self.descriptors) * queue as usize + HEADER + DESCRIPTOR * head as usize;
        // SAFETY: it is within the mapping, as was just asserted.
        unsafe { self.start.add(at) }
    }

    fn state(&self, queue: u16, head: u16) -> &AtomicU8 {
        // SAFETY: the first byte of a descriptor's part, which is within the mapping.
        unsafe { AtomicU8::from_ptr(self.descriptor(queue, head).as_ptr()) }
    }

    fn order(&self, queue: u16, head: u16) -> &AtomicU64 {
        // SAFETY: its second eight bytes; parts are 16 bytes long and aligned to that.
        unsafe { AtomicU64::from_ptr(self.descriptor(queue, head).add(8).as_ptr().cast()) }
    }

    fn version(&self, queue: u16) -> &AtomicU16 {
        self.header(queue, 8)
    }

    fn last_answered(&self, queue: u16) -> &AtomicU16 {
        self.header(queue, 12)
    }

    fn used_index(&self, queue: u16) -> &AtomicU16 {
        self.header(queue, 14)
    }

    /// A queue begins, whose used ring is at this index. What was begun and not answered, in its order; and whether it is to
    /// fail. ("When reconnecting" in the protocol.)
    pub(super) fn recover(&self, queue: u16, descriptors: u16, used: u16) -> Vec<Again> {
        if self.version(queue).load(Ordering::Acquire) != VERSION {
            self.header(queue, 10).store(descriptors, Ordering::Relaxed);
            self.used_index(queue).store(used, Ordering::Relaxed);
            self.version(queue).store(VERSION, Ordering::Release);
        }
        if self.used_index(queue).load(Ordering::Acquire) != used {
            // It was answered, and that was not noted.
            let last = self.last_answered(queue).load(Ordering::Relaxed);
            if last < descriptors {
                self.state(queue, last).store(IDLE, Ordering::Relaxed);
            }
            self.used_index(queue).store(used, Ordering::Release);
        }
        let mut again: Vec<Again> = (0..descriptors)
            .filter_map(|head| {
                let state = self.state(queue, head).load(Ordering::Acquire);
                let order = self.order(queue, head).load(Ordering::Relaxed);
                (state != IDLE).then_some(Again { head, order, fails: state != BEGUN })
            })
            .collect();
        again.sort_by_key(|again| again.order);
        again
    }

    /// A request is begun.
    pub(super) fn begin(&self, queue: u16, head: u16, order: u64) {
        self.order(queue, head).store(order, Ordering::Relaxed);
        self.state(queue, head).store(BEGUN, Ordering::Release);
    }

    /// A request is about to be answered.
    pub(super) fn answers(&self, queue: u16, head: u16) {
        self.last_answered(queue).store(head, Ordering::Release);
    }

    /// It was answered: the used ring is at this index now.
    pub(super) fn answered(&self, queue: u16, head: u16, used: u16) {
        self.state(queue, head).store(IDLE, Ordering::Release);
        self.used_index(queue).store(used, Ordering::Release);
    }
}

/// A request that was begun and not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Again {
    pub(super) head: u16,
    pub(super) order: u64,
    /// It is not to be begun anew.
    pub(super) fails: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // First: what is not mapped any more must not be guarded.
        self.guard = None;
        // SAFETY: the mapping is this one's, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Attachment = Attachment { cluster: 1 << 70 | 5, volume: 9, number: 4, alone_since: 4 };

    fn mapped(file: &File, attachment: &Attachment) -> InFlight {
        InFlight::map(file.try_clone().unwrap(), 0, 2, 8, attachment).unwrap()
    }

    #[test]
    fn what_was_begun_and_not_answered_is_found_in_its_order() {
        let file = InFlight::file(2, 8).unwrap();
        let kept = mapped(&file, &HERE);
        assert_eq!(kept.recover(1, 8, 0), []);
        for (order, head) in [5, 2, 7].into_iter().enumerate() {
            kept.begin(1, head, order as u64);
        }
        kept.answers(1, 2);
        kept.answered(1, 2, 1);
        drop(kept);
        let kept = mapped(&file, &HERE);
        let of = |head, order| Again { head, order, fails: false };
        assert_eq!(kept.recover(1, 8, 1), [of(5, 0), of(7, 2)]);
        assert_eq!(kept.recover(0, 8, 0), [], "the other queue has nothing");
        // One was answered, and the process died before it was noted.
        kept.answers(1, 7);
        drop(kept);
        assert_eq!(mapped(&file, &HERE).recover(1, 8, 2), [of(5, 0)]);
    }

    #[test]
    fn nothing_is_begun_anew_if_another_node_may_have_owned_the_volume() {
        let file = InFlight::file(1, 8).unwrap();
        let (map, begun) = (
            |attachment: &Attachment| InFlight::map(file.try_clone().unwrap(), 0, 1, 8, attachment).unwrap(),
            |kept: &InFlight| kept.recover(0, 8, 0).iter().map(|again| again.fails).collect::<Vec<_>>(),
        );
        map(&HERE).begin(0, 3, 0);
        let later = Attachment { number: 6, ..HERE };
        assert_eq!(begun(&map(&later)), [false], "it was attached here only");
        assert_eq!(begun(&map(&HERE)), [true], "the number went back");
        map(&HERE).begin(0, 3, 0);
        let elsewhere = Attachment { number: 9, alone_since: 8, ..HERE };
        assert_eq!(begun(&map(&elsewhere)), [true]);
        assert_eq!(
            begun(&map(&elsewhere)),
            [true],
            "it fails also if this process dies before it has said so"
        );
        map(&elsewhere).begin(0, 3, 0);
        assert_eq!(begun(&map(&Attachment { volume: 10, ..elsewhere })), [true], "another volume");
    }

    #[test]
    fn what_is_too_short_is_refused() {
        let file = InFlight::file(1, 8).unwrap();
        for (offset, queues, descriptors) in
            [(0, 2, 8), (0, 1, 64), (1 << 40, 1, 8), (u64::MAX, 1, 8), (0, 0, 8), (0, 1, 0)]
        {
            let map = InFlight::map(file.try_clone().unwrap(), offset, queues, descriptors, &HERE);
            assert!(map.is_err(), "{offset} {queues} {descriptors}");
        }
    }
}
