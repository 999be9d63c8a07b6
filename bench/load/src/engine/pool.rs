//! A pool of threads, one for each outstanding I/O, with `pread` and `pwrite`: for places where io_uring is refused.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::uio::{pread, pwrite};
use nix::unistd::fdatasync;

use super::{Engine, Io, Kind, Memory};

/// More threads than this are refused: the engine is a stand-in, not a way to run thousands of threads.
pub(crate) const MOST_THREADS: usize = 256;
/// How long dropping the engine waits for I/Os in flight.
const DROP_LIMIT: Duration = Duration::from_millis(100);

struct Request {
    io: Io,
    address: *mut u8,
}

// SAFETY: the address is a slot's memory, which is the I/O's alone until its completion is queued.
unsafe impl Send for Request {}

#[derive(Default)]
struct Queues {
    requests: VecDeque<Request>,
    done: VecDeque<(u32, i32)>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    requested: Condvar,
    completed: Condvar,
}

pub(crate) struct PoolEngine {
    shared: Arc<Shared>,
    /// Leaked if I/Os are still in flight at the end.
    memory: Option<Memory>,
    threads: Vec<JoinHandle<()>>,
    done: VecDeque<(u32, i32)>,
    in_flight: usize,
}

impl PoolEngine {
    pub(crate) fn new(file: Arc<OwnedFd>, memory: Memory, slots: usize) -> io::Result<PoolEngine> {
        if slots > MOST_THREADS {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{slots} outstanding need as many threads, and more than {MOST_THREADS} are too many"
                ),
            ));
        }
        PoolEngine::with(file, memory, slots, |work| {
            std::thread::Builder::new().name("io".into()).stack_size(64 << 10).spawn(work)
        })
    }

    fn with(
        file: Arc<OwnedFd>,
        memory: Memory,
        slots: usize,
        mut spawn: impl FnMut(Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<PoolEngine> {
        let mut engine = PoolEngine {
            shared: Arc::new(Shared::default()),
            memory: Some(memory),
            threads: Vec::with_capacity(slots),
            done: VecDeque::with_capacity(slots),
            in_flight: 0,
        };
        for _ in 0..slots {
            let (shared, file) = (Arc::clone(&engine.shared), Arc::clone(&file));
            // If one cannot be made, dropping the engine ends the others.
            engine.threads.push(spawn(Box::new(move || serve(&shared, &file)))?);
        }
        Ok(engine)
    }

    fn collect(&mut self, want: usize, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        while queues.done.len() < want.min(self.in_flight) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queues =
                self.shared.completed.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.in_flight -= queues.done.len();
        self.done.append(&mut queues.done);
    }
}

fn serve(shared: &Shared, file: &OwnedFd) {
    loop {
        let mut queues = shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let request = loop {
            if let Some(request) = queues.requests.pop_front() {
                break request;
            }
            if queues.closed {
                return;
            }
            queues = shared.requested.wait(queues).unwrap_or_else(PoisonError::into_inner);
        };
        drop(queues);
        let offset = request.io.offset as i64;
        let result = match request.io.kind {
            Kind::Flush => fdatasync(file.as_fd()).map(|()| 0),
            Kind::Read => {
                // SAFETY: the slot's memory is this I/O's alone until its completion is queued below.
                let data =
                    unsafe { std::slice::from_raw_parts_mut(request.address, request.io.length as usize) };
                pread(file.as_fd(), data, offset)
            }
            Kind::Write => {
                // SAFETY: as above.
                let data = unsafe { std::slice::from_raw_parts(request.address, request.io.length as usize) };
                pwrite(file.as_fd(), data, offset)
            }
        };
        let result = result.map_or_else(|errno| -(errno as i32), |moved| moved as i32);
        let mut queues = shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.done.push_back((request.io.slot, result));
        drop(queues);
        shared.completed.notify_one();
    }
}

impl Engine for PoolEngine {
    fn push(&mut self, io: Io) -> io::Result<()> {
        let memory = self.memory.as_ref().expect("present until dropped");
        let address =
            if io.kind == Kind::Flush { std::ptr::null_mut() } else { memory.address(io.slot, io.kind) };
        let request = Request { io, address };
        self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner).requests.push_back(request);
        self.in_flight += 1;
        self.shared.requested.notify_one();
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, want: usize, limit: Duration) -> io::Result<()> {
        if self.in_flight == 0 {
            std::thread::sleep(limit);
        }
        self.collect(want, limit);
        Ok(())
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        self.done.pop_front()
    }

    fn memory(&mut self) -> &mut Memory {
        self.memory.as_mut().expect("present until dropped")
    }
}

impl Drop for PoolEngine {
    fn drop(&mut self) {
        self.collect(usize::MAX, DROP_LIMIT);
        {
            let mut queues = self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner);
            queues.closed = true;
            // What was not begun never will be: nothing refers to its memory any more.
            self.in_flight -= queues.requests.len();
            queues.requests.clear();
        }
        self.shared.requested.notify_all();
        if self.in_flight == 0 {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        } else {
            // A thread hangs in the kernel with this memory: it is given up for good.
            std::mem::forget(self.memory.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_cannot_be_made_ends_the_others() {
        let file = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        let mut made = 0;
        let engine =
            PoolEngine::with(Arc::clone(&file), Memory::new(4096, 4, true, false).unwrap(), 4, |work| {
                made += 1;
                if made > 2 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(std::thread::spawn(work)) }
            });
        assert!(engine.is_err());
        assert_eq!(Arc::strong_count(&file), 1, "no thread is left that holds the file");
    }
}
