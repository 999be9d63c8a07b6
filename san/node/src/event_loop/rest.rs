//! What a loop does when there is nothing to do: looks a little longer, lets others have their turn, or sleeps.

use std::cmp::Reverse;
use std::io;
use std::time::Duration;

use loadline_san_device::uring::Looking;

use super::EventLoop;
use super::client::Way;
use super::sockets::MOST_TAKEN;
use super::unread::GATHER;

/// It sleeps no longer than this.
const LONGEST: Duration = Duration::from_millis(500);
/// So few requests at once are worth looking for, rather than sleeping.
const FEW: f32 = 1.25;

impl EventLoop {
    /// Waits until there is something to do.
    pub(super) fn rest(&mut self) -> io::Result<()> {
        let limit = self.time_to_next();
        // A sleep that many share costs little; one that each pays for is to be avoided.
        if self.begun > 0 {
            self.together = (self.together * 7.0 + self.begun as f32) / 8.0;
        }
        self.begun = 0;
        // As long as others have work to do, they may need the core.
        let few = self.together < FEW
            && self.volumes.values().map(|served| served.at_work.len()).sum::<usize>() < 2;
        let talked = std::mem::take(&mut self.talked);
        // Another node answers soon if its devices are in memory, as these are. What a disk takes is better slept for.
        self.uring.look_first(match few || !self.guests.is_empty() {
            true => Looking::Throughout,
            false if talked && self.of_ring.is_empty() => Looking::WhileIdle,
            false => Looking::Not,
        });
        let no_hurry = self.told_something.nobody_hurries(|key| {
            let client = self.clients.get(&key)?;
            Some((&client.unread, client.socket()))
        });
        let gathers = no_hurry && !talked && self.guests.is_empty();
        self.uring.gather(if gathers { GATHER } else { Duration::ZERO });
        if talked && !few && self.guests.is_empty() {
            // Nodes and clients that share the core have their turn first, if there are any: what they say meanwhile
            // comes together, and costs a fifth to a quarter less. Who looks at queues goes on looking.
            std::thread::yield_now();
        }
        self.wait(limit)
    }

    fn time_to_next(&self) -> Duration {
        let mut next = self.next_tick.min(self.next_store_tick);
        if let Some(Reverse((at, _))) = self.wakes.peek() {
            next = next.min(*at);
        }
        let longest = if self.has_faults { Duration::from_millis(1) } else { LONGEST };
        Duration::from_nanos(next.since(self.now)).min(longest)
    }

    /// Waits; but no longer than until a guest has something.
    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        let EventLoop { uring, guests, clients, taken, .. } = self;
        uring.wait_also(limit, |sleeps| {
            let mut found = false;
            guests.retain(|key| {
                let Some(client) = clients.get_mut(key) else { return false };
                let Way::Vhost(session) = &mut client.way else { return false };
                // Who waits for memory is looked at again when something was done.
                if *taken >= MOST_TAKEN && client.taken > 0 {
                    return true;
                }
                let some = if sleeps { session.wants_kicks() } else { session.has_more() };
                found |= some;
                // It will say so.
                client.looked_at = some || !sleeps;
                client.looked_at
            });
            found
        })
    }
}
