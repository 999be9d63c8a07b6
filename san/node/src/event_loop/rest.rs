//! What a loop does when there is nothing to do: polls a little longer, yields the CPU, or sleeps.

use std::io;
use std::time::Duration;

use loadline_san_core::lease::Moment;
use loadline_san_device::uring::Polling;

use super::EventLoop;
use super::backlog::GATHER;

/// It sleeps no longer than this.
const LONGEST: Duration = Duration::from_millis(500);
/// A loop without work for so long is idle: the next request does not come so soon that polling for it would pay.
const IDLE_NS: u64 = 200_000_000;
/// Up to so many requests at once are polled for, rather than slept for.
const FEW: f32 = 1.25;

impl EventLoop {
    /// Waits until there is something to do.
    pub(super) fn rest(&mut self) -> io::Result<()> {
        let idle = self.is_idle();
        let limit = self.time_to_next(idle);
        // A sleep that many share costs little; one that each pays for is to be avoided.
        if self.begun > 0 {
            self.together = (self.together * 7.0 + self.begun as f32) / 8.0;
        }
        self.begun = 0;
        // As long as others have work to do, they may need the core.
        let few = self.together < FEW && self.volumes.at_work() < 2;
        let (traffic, polls) = (self.peers.take_traffic(), self.front_ends.polls());
        // Another node answers soon if its devices are in memory, as these are. What a disk takes is better slept for.
        self.uring.poll_first(match few && !idle || polls {
            true => Polling::Throughout,
            false if traffic && !idle && !self.replicas.use_ring() => Polling::WhileIdle,
            false => Polling::Not,
        });
        let gathers = self.front_ends.all_have_backlogs() && !traffic && !polls;
        self.uring.gather(if gathers { GATHER } else { Duration::ZERO });
        if traffic && !few && !polls {
            // Nodes and clients that share the core have their turn first, if there are any: what they send meanwhile
            // comes together, and costs a fifth to a quarter less. A loop that polls queues goes on polling.
            std::thread::yield_now();
        }
        self.uring.wait_also(limit, self.front_ends.queue_poller())
    }

    /// Whether nothing but time passes here: volumes keep their leases, and stores check what they hold.
    fn is_idle(&self) -> bool {
        self.now.since(self.worked) >= IDLE_NS && !self.volumes.are_busy() && !self.replicas.are_busy()
    }

    /// An idle loop wakes for the tick of idle volumes only. Its stores get a tick when they are due then.
    fn time_to_next(&self, idle: bool) -> Duration {
        let mut next = if idle { self.next_idle_tick } else { self.next_tick.min(self.next_store_tick) };
        if let Some(at) = self.replicas.next_wake() {
            next = next.min(at);
        }
        let soon = [self.replicas.next_held(), self.volumes.next_limited()];
        next = soon.into_iter().flatten().fold(next, Moment::min);
        Duration::from_nanos(next.since(self.now)).min(LONGEST)
    }
}
