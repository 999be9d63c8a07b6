//! Carries out what stores ask by io_uring: one ring for a thread, with the devices of all its stores.
//!
//! Each ask has one request (`request.rs`) from start to end, which owns all memory that the kernel gets. A request is
//! one or several entries of the ring (a read has one for each piece), and an entry comes again while it is not done whole.
//! Files and the pool's memory are registered, which saves the kernel a lookup and a pin for each.

mod error;
mod request;
mod watch;

pub use watch::For;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use loadline_base::ring::{Ring, RingOptions, opcode};
use loadline_base::spin::{Seen, Spins};
use loadline_san_store::io::{Area, Done, IoRequest, Token};
use nix::libc;

pub use error::UringError;

use crate::pool::{Blocks, Pool};
use crate::vectors::{MOST_TRIES, failed};
use request::{Next, Request, faulty};

/// Handing over a whole batch of completions at once settles into lockstep with the device, which was measured to be up to a
/// fifth slower; so many at a time keep it busy.
const SUBMIT_EVERY: u32 = 4;
/// The kernel pins at most this much as one registered region.
const LARGEST_REGION: usize = 1 << 30;
/// A device is polled so many times as long as others: to be woken takes as long as some devices do, and a durable write has
/// two completions, one after the other. Durable writes of two copies were 1.04 times as many with one time, 1.1 with two, 1.14
/// with four (on a virtual machine, whose idle CPUs are woken slowly).
const AT_DEVICE: u32 = 4;
/// How long a request that does nothing may take.
const TRY_LIMIT: Duration = Duration::from_secs(1);
/// How long dropping waits for what is in flight, before its memory is given up to the kernel for good.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// How much an [`Uring`] has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UringOptions {
    /// Asks that the kernel has at the same time, of all stores; further ones wait. 1 to 4096.
    pub in_flight: u32,
    /// Stores. 1 to 4096.
    pub stores: u32,
    /// It polls for completions before it sleeps, for so long at most: where a core is to spare. While a device is at work it
    /// does so for four times as long, and yields the core to other threads meanwhile. Zero: never.
    pub spin: Duration,
}

impl Default for UringOptions {
    fn default() -> Self {
        UringOptions { in_flight: 256, stores: 64, spin: Duration::from_micros(60) }
    }
}

/// Whether a ring polls for a while before it sleeps, if polling was enabled and pays, and no device is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polling {
    /// It sleeps at once.
    Not,
    /// Until other threads need the CPU, to which it yields before each poll.
    WhileIdle,
    /// To the end.
    Throughout,
}

/// What carries out the requests of all stores of one thread.
pub struct Uring {
    ring: ManuallyDrop<Ring>,
    /// What the kernel may write to and read from. Leaked if something is still in flight at the end.
    held: ManuallyDrop<Held>,
    /// For each store that can be, whether it is one.
    stores: Box<[bool]>,
    /// Requests that are not in use.
    free: Vec<u32>,
    /// What there was no request for yet.
    waiting: VecDeque<(u32, Token, IoRequest<Blocks>)>,
    /// Completions as they came.
    reaped: VecDeque<(u64, i32)>,
    done: VecDeque<(u32, Token, Done<Blocks>)>,
    /// Keys of watched descriptors that have something.
    ready: VecDeque<(u32, For)>,
    /// Descriptors that are watched.
    watching: u32,
    /// Bells that are not rung yet, by their keys.
    bells: BTreeMap<u32, u32>,
    /// Entries that the kernel has, or will have at the next submission.
    flying: u32,
    /// Entries since the last submission.
    queued: u32,
    /// The pool's memory is registered.
    registered: bool,
    spins: Spins,
    /// While a device is at work.
    device_spins: Spins,
    polling: Polling,
    spin: Duration,
    gather: Duration,
}

struct Held {
    requests: Vec<Request>,
    pool: Pool,
}

impl Uring {
    /// A ring whose reads take their buffers from this pool. Fails where io_uring is refused, which containers often do.
    pub fn new(options: UringOptions, pool: Pool) -> Result<Uring, UringError> {
        let UringOptions { in_flight, stores, spin } = options;
        for (what, number) in [("requests in flight", in_flight), ("stores", stores)] {
            if !(1..=4096).contains(&number) {
                return Err(UringError::Options { what, number });
            }
        }
        let mut ring = opened(in_flight).map_err(|error| UringError::Refused { error })?;
        let none = vec![-1; stores as usize * 2];
        ring.register_files(&none).map_err(|error| UringError::Refused { error })?;
        try_nothing(&mut ring).map_err(|error| UringError::Refused { error })?;
        let regions: Vec<libc::iovec> = pool
            .regions()
            .map(|(start, length)| libc::iovec { iov_base: start.cast(), iov_len: length })
            .collect();
        let registered = !regions.is_empty()
            && regions.iter().all(|region| region.iov_len <= LARGEST_REGION)
            // SAFETY: the pool's regions stay mapped as long as a clone of it lives, and `held` has one, which is dropped only
            // after the ring, or never. A refusal (ENOMEM: the locked-memory limit) costs speed, not correctness.
            && unsafe { ring.register_buffers(&regions) }.is_ok();
        let room = in_flight as usize;
        Ok(Uring {
            ring: ManuallyDrop::new(ring),
            held: ManuallyDrop::new(Held { requests: (0..room).map(|_| Request::new()).collect(), pool }),
            stores: vec![false; stores as usize].into(),
            free: (0..in_flight).rev().collect(),
            waiting: VecDeque::with_capacity(room),
            reaped: VecDeque::with_capacity(4 * room),
            done: VecDeque::with_capacity(2 * room),
            ready: VecDeque::with_capacity(room),
            watching: 0,
            bells: BTreeMap::new(),
            flying: 0,
            queued: 0,
            registered,
            spins: Spins::new(!spin.is_zero()),
            device_spins: Spins::new(!spin.is_zero()),
            polling: Polling::Throughout,
            spin,
            gather: Duration::ZERO,
        })
    }

    /// The pool's memory is registered, which saves CPU. It is not if it is more than may be locked (`ulimit -l`), or more
    /// than 1 GiB for a class.
    pub fn is_registered(&self) -> bool {
        self.registered
    }

    /// Adds a store with these devices, open for direct I/O, and gives its number. They stay open, and locked, until it is
    /// removed or the ring is gone. Without another device the log's has both areas.
    pub fn add(&mut self, log: BorrowedFd, capacity: Option<BorrowedFd>) -> Result<u32, UringError> {
        let free = self.stores.iter().position(|taken| !taken);
        let store = free.ok_or(UringError::Full { stores: self.stores.len() as u32 })?;
        let files = [log.as_raw_fd(), capacity.unwrap_or(log).as_raw_fd()];
        self.put(store as u32, files, "registered")?;
        self.stores[store] = true;
        Ok(store as u32)
    }

    /// Removes a store, whose number is then used again. Fails while any of its requests is not done and taken.
    pub fn remove(&mut self, store: u32) -> Result<(), UringError> {
        if !self.has(store) {
            return Err(UringError::NoStore { store });
        }
        let requests = self.waiting.iter().filter(|(of, ..)| *of == store).count()
            + self.done.iter().filter(|(of, ..)| *of == store).count()
            + self.held.requests.iter().filter(|request| request.is_of(store)).count();
        if requests > 0 {
            return Err(UringError::Busy { store, requests });
        }
        self.put(store, [-1, -1], "given up")?;
        self.stores[store as usize] = false;
        Ok(())
    }

    fn put(&mut self, store: u32, files: [RawFd; 2], what: &'static str) -> Result<(), UringError> {
        self.ring.update_files(store * 2, &files).map_err(|error| UringError::Failed { store, what, error })
    }

    fn has(&self, store: u32) -> bool {
        self.stores.get(store as usize) == Some(&true)
    }

    /// Submits an I/O of a store, or queues it if as many as there is room for are in flight. The kernel sees it at the
    /// next [`submit`](Self::submit) or [`wait`](Self::wait), or before. Every ask comes back from [`take`](Self::take),
    /// whatever becomes of it.
    pub fn start(&mut self, store: u32, token: Token, io_request: IoRequest<Blocks>) {
        match self.free.pop() {
            Some(index) => self.begin(index, store, token, io_request),
            None => self.waiting.push_back((store, token, io_request)),
        }
    }

    /// Hands over to the kernel what was started. Fails if the kernel refuses to serve the ring at all.
    pub fn submit(&mut self) -> io::Result<()> {
        self.queued = 0;
        self.ring.submit()
    }

    /// Hands over what was started, and polls for completions, without waiting. Fails as [`submit`](Self::submit) does.
    pub fn poll(&mut self) -> io::Result<()> {
        self.queued = 0;
        if self.flying + self.watching > 0 {
            self.ring.poll()?;
            self.collect()?;
        }
        Ok(())
    }

    /// Something is done, or ready, and was not taken.
    pub fn has_news(&self) -> bool {
        !self.done.is_empty() || !self.ready.is_empty()
    }

    /// Hands over what was started, and waits until something is done or ready, but no longer than this. It returns at once
    /// if something is, or if nothing is in flight and nothing watched. Fails as [`submit`](Self::submit) does.
    pub fn wait(&mut self, limit: Duration) -> io::Result<()> {
        self.wait_also(limit, |_| false)
    }

    /// As [`wait`](Self::wait), but also until this finds something. It is called again and again while polling, and once more,
    /// with true, before sleeping: from then on what it finds must wake the ring.
    pub fn wait_also(&mut self, limit: Duration, mut finds: impl FnMut(bool) -> bool) -> io::Result<()> {
        if self.has_news() || !self.reaped.is_empty() || self.flying + self.watching == 0 {
            return self.poll();
        }
        let begin = Instant::now();
        if self.poll_until(limit, &mut finds)? {
            return Ok(());
        }
        let mut left = limit.saturating_sub(begin.elapsed());
        if !self.has_news() && finds(true) {
            return self.poll();
        }
        // What completes may be only a part of an ask.
        while !self.has_news() && self.flying + self.watching > 0 {
            self.queued = 0;
            match self.gather {
                Duration::ZERO => self.ring.wait(1, Some(left))?,
                least => self.ring.gather(least, left)?,
            }
            self.collect()?;
            if self.has_news() {
                break;
            }
            left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
        }
        Ok(())
    }

    /// Polls for a while before sleeping, where that pays. Whether this has found something.
    fn poll_until(&mut self, limit: Duration, finds: &mut impl FnMut(bool) -> bool) -> io::Result<bool> {
        let at_device = self.flying > 0;
        if !at_device && self.polling == Polling::Not || !self.spins_for(at_device).worth_it() {
            return Ok(false);
        }
        self.submit()?;
        let longest = if at_device { self.spin * AT_DEVICE } else { self.spin };
        let mut spins = std::mem::take(self.spins_for(at_device));
        let alone = if self.polling == Polling::WhileIdle && !at_device { Duration::ZERO } else { longest };
        let mut found = false;
        let polled = spins.poll_while_idle(alone, longest, limit, || {
            if at_device {
                // Another task that is ready has the core first: another node's loop, a client, the kernel.
                std::thread::yield_now();
            }
            self.ring.poll()?;
            self.collect()?;
            found = finds(false);
            Ok(if found || self.has_news() { Seen::All } else { Seen::Nothing })
        });
        *self.spins_for(at_device) = spins;
        polled?;
        Ok(found)
    }

    fn spins_for(&mut self, at_device: bool) -> &mut Spins {
        if at_device { &mut self.device_spins } else { &mut self.spins }
    }

    /// Sets how the ring polls before it sleeps, from now on.
    pub fn poll_first(&mut self, polling: Polling) {
        self.polling = polling;
    }

    /// From now on a wait that sleeps does so for so long at the least: what is done or ready meanwhile comes together.
    /// Kernels before 6.12 do not.
    pub fn gather(&mut self, least: Duration) {
        self.gather = least;
    }

    /// The next ask that is done: of which store, which, and what became of it. `None` until there is one.
    pub fn take(&mut self) -> Option<(u32, Token, Done<Blocks>)> {
        self.done.pop_front()
    }

    /// Asks that were started and are not done yet.
    pub fn in_flight(&self) -> usize {
        self.held.requests.len() - self.free.len() + self.waiting.len()
    }

    /// Asks that were started and not taken yet.
    pub fn not_taken(&self) -> usize {
        self.in_flight() + self.done.len()
    }

    fn begin(&mut self, index: u32, store: u32, token: Token, io_request: IoRequest<Blocks>) {
        let known = self.has(store);
        let Held { requests, pool } = &mut *self.held;
        let request = &mut requests[index as usize];
        let begun = match known {
            true => request.begin(store, token, io_request, pool),
            false => Err(faulty(io_request, || {
                let error =
                    io::Error::new(io::ErrorKind::NotFound, "there is no store of this number: report it");
                failed(Area::Log, 0, error)
            })),
        };
        match begun {
            Ok(0) => self.finish(index),
            Ok(entries) => {
                for entry in 0..entries {
                    self.issue(index, entry);
                }
                // None could be handed over.
                if self.held.requests[index as usize].is_over() {
                    self.finish(index);
                }
            }
            Err(done) => {
                self.free.push(index);
                self.done.push_back((store, token, done));
            }
        }
    }

    /// Queues an entry of a request, or what is left of it.
    fn issue(&mut self, index: u32, entry: u32) {
        let Held { requests, pool } = &mut *self.held;
        let queued = requests[index as usize].entry(entry, self.registered.then_some(&*pool));
        let queued = queued.user_data(u64::from(index) << 32 | u64::from(entry));
        for _ in 0..MOST_TRIES {
            // SAFETY: the memory that the entry refers to is owned by the request, which keeps it until all its entries have
            // completed; requests are dropped only when nothing is in flight, and leaked otherwise. Nothing else writes to it:
            // a read's buffer has no other handle, and blocks that are written are shared, and shared blocks do not change.
            if unsafe { self.ring.push(&queued) } {
                self.flying += 1;
                self.queued += 1;
                self.held.requests[index as usize].count_one();
                if self.queued >= SUBMIT_EVERY {
                    // If it fails, so does the submission that the caller makes, and the caller gets that error.
                    let _ = self.submit();
                }
                return;
            }
            // The queue is full: it goes to the kernel; which may want its completions seen first.
            if self.submit().is_err() || self.ring.poll().is_err() {
                break;
            }
            self.reaped.extend(self.ring.completions());
        }
        self.held.requests[index as usize].fail(entry, io::Error::other("the submission queue stays full"));
    }

    /// Takes the completions that have come, continues what is not whole, and begins what waits.
    fn collect(&mut self) -> io::Result<()> {
        self.reaped.extend(self.ring.completions());
        while let Some((data, result)) = self.reaped.pop_front() {
            if self.is_watched(data, result) {
                continue;
            }
            let (index, entry) = ((data >> 32) as u32, data as u32);
            self.flying -= 1;
            let request = &mut self.held.requests[index as usize];
            if request.completed(entry, result) == Next::Again {
                self.issue(index, entry);
            }
            if self.held.requests[index as usize].is_over() {
                self.finish(index);
            }
        }
        while !self.waiting.is_empty()
            && let Some(index) = self.free.pop()
            && let Some((store, token, io_request)) = self.waiting.pop_front()
        {
            self.begin(index, store, token, io_request);
        }
        // The kernel does not know of these entries yet; a caller that sleeps elsewhere now would wait for ever.
        if self.queued > 0 { self.submit() } else { Ok(()) }
    }

    fn finish(&mut self, index: u32) {
        if let Some(done) = self.held.requests[index as usize].finish() {
            self.done.push_back(done);
            self.free.push(index);
        }
    }
}

/// A ring with room for this.
fn opened(in_flight: u32) -> io::Result<Ring> {
    Ring::new(RingOptions { entries: in_flight.max(8).next_power_of_two(), deferred: true })
}

/// Tries the whole way: what makes a ring may be allowed, and the rest of it refused (seccomp).
fn try_nothing(ring: &mut Ring) -> io::Result<()> {
    // SAFETY: a request that does nothing refers to nothing.
    if !unsafe { ring.push(&opcode::Nop::new().build().user_data(7)) } {
        return Err(io::Error::other("a new submission queue is full"));
    }
    ring.wait(1, Some(TRY_LIMIT))?;
    match ring.completions().next() {
        Some((7, 0)) => Ok(()),
        Some((_, errno)) if errno < 0 => Err(io::Error::from_raw_os_error(-errno)),
        _ => Err(io::Error::other("a request that does nothing does not complete")),
    }
}

impl AsRawFd for Uring {
    /// To be polled with other descriptors: it is readable when [`poll`](Uring::poll) would find something done.
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Uring");
        shown.field("in_flight", &self.in_flight()).field("done", &self.done.len());
        shown.field("registered", &self.registered).finish()
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.waiting.clear();
        let of_requests = |data: &u64| data & watch::WATCHED == 0;
        self.flying -= self.reaped.iter().filter(|(data, _)| of_requests(data)).count() as u32;
        let until = Instant::now() + DROP_LIMIT;
        while self.flying > 0 {
            let left = until.saturating_duration_since(Instant::now());
            // At least what is queued goes over: the kernel must have seen all that is counted.
            if left.is_zero() || self.ring.wait(1, Some(left)).is_err() {
                break;
            }
            // Nothing is continued: its result would not be used.
            self.flying -= self.ring.completions().filter(|(data, _)| of_requests(data)).count() as u32;
        }
        if self.flying == 0 {
            // The kernel takes a ring apart some time after it was closed; their locks are to be given up now.
            let _ = self.ring.update_files(0, &vec![-1; self.stores.len() * 2]);
        }
        // SAFETY: neither is used again; the ring goes first, then the memory that it refers to.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if self.flying == 0 {
            // SAFETY: no entry is in flight, so the kernel uses none of it.
            unsafe { ManuallyDrop::drop(&mut self.held) };
        }
    }
}
