//! Threads that compute what handshakes need. A handshake costs as much as a hundred requests of a client, and everyone who reaches a port
//! can begin one. So those of strangers are computed by threads of low priority, few of them: however many are begun, they take no time from
//! the threads that serve volumes and the configuration, and little more of the processors than is left. Those that this side begins, and
//! those from addresses of nodes, have a thread of their own. Whoever shares an address with a node has its place in the order, too: so the
//! addresses take turns, and what this side begins comes before all of them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nix::libc;
use tokio::sync::oneshot;

/// How nice the threads are to others (`setpriority`, see sched(7)): the others get about ten times as much of a processor.
const NICE: libc::c_int = 10;

/// Computations for strangers that wait at most. For a further one, the oldest is dropped.
const MOST_OF_STRANGERS: usize = 4096;

/// Who waits for a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precedence {
    /// This side has connected: computed first.
    Own,
    /// The other side has connected from this address, which is one of a node: computed next, each address in its turn.
    Node(IpAddr),
    /// Anyone.
    Stranger,
}

type Job = Box<dyn FnOnce() + Send>;

/// Jobs of several addresses, which take turns.
#[derive(Default)]
struct Turns {
    /// Those of each address that has any.
    jobs: BTreeMap<IpAddr, VecDeque<Job>>,
    /// The same addresses: the first is next.
    order: VecDeque<IpAddr>,
}

impl Turns {
    fn push(&mut self, address: IpAddr, job: Job) {
        let jobs = self.jobs.entry(address).or_default();
        if jobs.is_empty() {
            self.order.push_back(address);
        }
        jobs.push_back(job);
    }

    fn pop(&mut self) -> Option<Job> {
        let address = self.order.pop_front()?;
        let jobs = self.jobs.get_mut(&address)?;
        let job = jobs.pop_front();
        match jobs.is_empty() {
            true => _ = self.jobs.remove(&address),
            false => self.order.push_back(address),
        }
        job
    }
}

#[derive(Default)]
struct Queues {
    own: VecDeque<Job>,
    nodes: Turns,
    strangers: VecDeque<Job>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    queues: Mutex<Queues>,
    given: Condvar,
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, precedence: Precedence, job: Job) {
        let mut queues = self.queues();
        match precedence {
            Precedence::Own => queues.own.push_back(job),
            Precedence::Node(address) => queues.nodes.push(address, job),
            Precedence::Stranger => {
                if queues.strangers.len() >= MOST_OF_STRANGERS {
                    queues.strangers.pop_front();
                }
                queues.strangers.push_back(job);
            }
        }
        drop(queues);
        // The one that is notified alone might not be one that may compute it.
        self.given.notify_all();
    }

    /// The next job of a thread that computes for nodes alone, or for all; `None` when there will be none.
    fn next(&self, for_nodes: bool) -> Option<Job> {
        let mut queues = self.queues();
        loop {
            if queues.ended {
                return None;
            }
            if let Some(job) = queues.own.pop_front() {
                return Some(job);
            }
            if let Some(job) = queues.nodes.pop() {
                return Some(job);
            }
            if let Some(job) = (!for_nodes).then(|| queues.strangers.pop_front()).flatten() {
                return Some(job);
            }
            queues = self.given.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The threads. They end when this is dropped.
pub struct Helpers {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helpers").finish_non_exhaustive()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.queues().ended = true;
        self.shared.given.notify_all();
    }
}

impl Helpers {
    /// Starts a thread for nodes, and so many for all, each with a stack of so many bytes. Fails if the system has none.
    pub fn start(threads: usize, stack: usize) -> io::Result<Helpers> {
        let helpers = Helpers { shared: Arc::default() };
        for number in 0..=threads {
            let for_nodes = number == 0;
            let shared = helpers.shared.clone();
            let thread = std::thread::Builder::new().name("handshakes".into()).stack_size(stack);
            thread.spawn(move || {
                if !for_nodes {
                    // SAFETY: the call reads its numbers alone: 0 is the calling thread, for which Linux has a priority of its own.
                    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
                }
                while let Some(job) = shared.next(for_nodes) {
                    job();
                }
            })?;
        }
        Ok(helpers)
    }

    /// Has a thread compute this, and waits for the result. If that is not waited for any more, and the computation was not begun, it never
    /// is. `None` if the threads do not keep up with what strangers ask for, or if the computation panics.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        precedence: Precedence,
        compute: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move || {
            if !answer.is_closed() {
                let _ = answer.send(compute());
            }
        });
        self.shared.give(precedence, job);
        answered.await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::tests::run;

    #[test]
    fn strangers_do_not_delay_nodes() {
        let helpers = Helpers::start(1, 1 << 20).unwrap();
        let (begun, begins) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let order = order.clone();
            move || order.lock().unwrap().push(what)
        };
        run(async {
            // The one thread for strangers is busy.
            let busy = helpers.compute(Precedence::Stranger, move || {
                begun.send(()).unwrap();
                goes.recv().unwrap();
            });
            let others = async {
                begins.recv().unwrap();
                let gone = helpers.compute(Precedence::Stranger, note("gone"));
                assert!(tokio::time::timeout(std::time::Duration::ZERO, gone).await.is_err());
                let stranger = helpers.compute(Precedence::Stranger, note("stranger"));
                let node = async {
                    helpers.compute(Precedence::Own, note("node")).await.unwrap();
                    go.send(()).unwrap();
                };
                // The first of them is polled first.
                tokio::join!(biased; stranger, node);
            };
            tokio::join!(biased; busy, others);
        });
        assert_eq!(*order.lock().unwrap(), ["node", "stranger"]);
    }

    #[test]
    fn addresses_of_nodes_take_turns_and_what_this_side_begins_comes_first() {
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let shared = Shared::default();
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut given: Vec<_> = (0..100).map(|_| (Precedence::Node(one), "one")).collect();
        given.extend([(Precedence::Node(other), "other"), (Precedence::Own, "own")]);
        for (precedence, what) in given {
            let done = done.clone();
            shared.give(precedence, Box::new(move || done.lock().unwrap().push(what)));
        }
        (0..102).for_each(|_| shared.next(true).unwrap()());
        let done = done.lock().unwrap();
        assert_eq!(done[..4], ["own", "one", "other", "one"]);
        assert!(done[4..].iter().all(|what| *what == "one"));
    }

    #[test]
    fn the_threads_give_way_to_others() {
        let helpers = Helpers::start(1, 1 << 20).unwrap();
        // SAFETY: the call reads its numbers alone.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        for _ in 0..20 {
            let known = run(helpers.compute(Precedence::Own, nice)).unwrap();
            assert!(known == nice() || known == NICE.max(nice()), "any of the threads");
            assert_eq!(run(helpers.compute(Precedence::Stranger, nice)), Some(NICE.max(nice())));
        }
    }
}
