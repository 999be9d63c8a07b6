//! Connections that have not proved yet that they know the token: how many there may be, and how many refusals are reported.
//!
//! Every host that reaches the port can connect as often as it likes. What it can use up has a bound for each address and
//! for all together, and reports about it must not delay the messages of workers.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::inbound::Inbound;

/// Connections that have not introduced themselves yet. One more is closed at once; a worker tries again.
const MOST: usize = 256;
/// Those of them that may come from one address: half, so that one host alone cannot use all places. All workers of one
/// machine come from one address, and those that find no place try again.
const MOST_PER_ADDRESS: usize = 128;
/// Refused connections that are reported to the controller in a second. The others are counted.
const REPORTS_PER_SECOND: u32 = 8;

/// Counts connections that have not proved themselves, and refuses those beyond the bounds.
#[derive(Debug)]
pub(crate) struct UnauthenticatedConnections {
    inbox: mpsc::Sender<Inbound>,
    here: Mutex<HashMap<IpAddr, usize>>,
    refusals: Mutex<Refusals>,
}

/// How many connections were refused.
#[derive(Debug)]
struct Refusals {
    /// How many, in all.
    count: u64,
    /// When `reported` began to count.
    since: Instant,
    /// How many of them were reported to the controller.
    reported: u32,
}

/// The place of a connection that has not proved itself; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    unauthenticated: Arc<UnauthenticatedConnections>,
    address: IpAddr,
}

impl UnauthenticatedConnections {
    pub(crate) fn new(inbox: mpsc::Sender<Inbound>) -> UnauthenticatedConnections {
        let refusals = Refusals { count: 0, since: Instant::now(), reported: 0 };
        UnauthenticatedConnections { inbox, here: Mutex::default(), refusals: Mutex::new(refusals) }
    }

    /// A place for one more, or why there is none.
    pub(crate) fn place(self: &Arc<Self>, address: IpAddr) -> Result<Place, String> {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        if here.values().sum::<usize>() >= MOST {
            return Err(format!("{MOST} other connections have not sent their hello yet"));
        }
        let from_there = here.entry(address).or_default();
        if *from_there >= MOST_PER_ADDRESS {
            return Err(format!(
                "{MOST_PER_ADDRESS} other connections from its address have not sent their hello yet"
            ));
        }
        *from_there += 1;
        Ok(Place { unauthenticated: Arc::clone(self), address })
    }

    /// Counts a refused connection, and reports it to the controller unless too many were reported in this second. Never
    /// waits: a flood of connections takes neither memory nor the workers' place in the queue.
    pub(crate) fn refuse(&self, from: SocketAddr, why: String) {
        let mut all = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        all.count += 1;
        if all.since.elapsed() >= Duration::from_secs(1) {
            (all.since, all.reported) = (Instant::now(), 0);
        }
        if all.reported < REPORTS_PER_SECOND {
            all.reported += 1;
            // If the queue is full, the workers' messages go first; the next report carries the count.
            let _ = self.inbox.try_send(Inbound::Rejected { from, why, count: all.count });
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut here = self.unauthenticated.here.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(from_there) = here.get_mut(&self.address) {
            *from_there -= 1;
            if *from_there == 0 {
                here.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn one_address_gets_half_of_the_places_and_gives_them_back() {
        let unauthenticated = Arc::new(UnauthenticatedConnections::new(mpsc::channel(1).0));
        let first: Vec<Place> =
            (0..MOST_PER_ADDRESS).map(|_| unauthenticated.place(address(1)).unwrap()).collect();
        assert!(unauthenticated.place(address(1)).unwrap_err().contains("from its address"));
        let second: Vec<Place> =
            (0..MOST_PER_ADDRESS).map(|_| unauthenticated.place(address(2)).unwrap()).collect();
        assert!(unauthenticated.place(address(3)).unwrap_err().contains("256 other connections"));
        drop(first);
        assert!(unauthenticated.place(address(1)).is_ok());
        drop(second);
        assert!(unauthenticated.here.lock().unwrap().is_empty(), "an address that is gone is forgotten");
    }

    #[test]
    fn a_flood_of_connections_is_counted_and_does_not_fill_the_controllers_queue() {
        let (inbox, mut reported) = mpsc::channel(64);
        let unauthenticated = UnauthenticatedConnections::new(inbox);
        let from = SocketAddr::new(address(1), 1);
        for _ in 0..1000 {
            unauthenticated.refuse(from, "it has no token".into());
        }
        let mut counts = Vec::new();
        while let Ok(Inbound::Rejected { count, .. }) = reported.try_recv() {
            counts.push(count);
        }
        // A second may have passed in between on a busy machine.
        assert!(counts.len() <= 3 * REPORTS_PER_SECOND as usize && counts[..3] == [1, 2, 3], "{counts:?}");
        assert_eq!(unauthenticated.refusals.lock().unwrap().count, 1000);
    }

    #[test]
    fn where_the_queue_is_full_no_connection_waits() {
        let (inbox, mut reported) = mpsc::channel(1);
        let unauthenticated = UnauthenticatedConnections::new(inbox);
        for _ in 0..3 {
            unauthenticated.refuse(SocketAddr::new(address(1), 1), "x".into());
        }
        assert!(
            matches!(reported.try_recv(), Ok(Inbound::Rejected { count: 1, .. }))
                && reported.try_recv().is_err()
        );
    }
}
