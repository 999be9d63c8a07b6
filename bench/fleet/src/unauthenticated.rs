//! Connections that have not proved yet that they know the token: how many there may be, how fast they are accepted, and how many
//! refusals are reported.
//!
//! Every host that reaches the port can connect as often as it likes. What it can use up has a bound for each address (of IPv6,
//! for each network of 64 bits) and for all together, and reports about it must not delay the messages of workers. Beyond the bound the oldest connection is
//! dropped: a worker proves itself within milliseconds, so the oldest is not likely to be one.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use loadline_base::network::source_of;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::inbound::Inbound;

/// Connections that have not proved yet that they know the token.
const MOST: usize = 256;
/// Those of them that may come from one address: half, so that one host alone cannot use all places. All workers of one
/// machine come from one address, and one that is dropped tries again.
const MOST_PER_ADDRESS: usize = 128;
/// Connections that are accepted in a second; more wait in the listener's queue. Each may cost a handshake on the thread that
/// also serves the connections of workers.
const ACCEPTED_PER_SECOND: u32 = 500;
/// Refused connections that are reported to the controller in a second. The others are counted.
const REPORTS_PER_SECOND: u32 = 8;

/// Counts connections that have not proved themselves, and drops the oldest beyond the bounds.
#[derive(Debug)]
pub(crate) struct UnauthenticatedConnections {
    inbox: mpsc::Sender<Inbound>,
    here: Mutex<Here>,
    refusals: Mutex<Refusals>,
}

/// The connections that have a place.
#[derive(Debug, Default)]
struct Here {
    /// The number of the next place.
    next: u64,
    /// By the number of their place, so the oldest is the first: their address, and what takes the place away when it is dropped.
    places: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
    per_address: HashMap<IpAddr, usize>,
}

impl Here {
    fn remove(&mut self, number: u64) {
        let Some((address, _)) = self.places.remove(&number) else { return };
        if let Some(from_there) = self.per_address.get_mut(&address) {
            *from_there -= 1;
            if *from_there == 0 {
                self.per_address.remove(&address);
            }
        }
    }

    /// The place that has to be given up before this address gets another one.
    fn surplus(&self, address: IpAddr) -> Option<u64> {
        if self.per_address.get(&address).is_some_and(|from_there| *from_there >= MOST_PER_ADDRESS) {
            return self.places.iter().find(|(_, (of, _))| *of == address).map(|(number, _)| *number);
        }
        let is_full = self.places.len() >= MOST;
        self.places.keys().next().copied().filter(|_| is_full)
    }
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
    number: u64,
    taken: oneshot::Receiver<()>,
}

impl Place {
    /// Waits until the place is taken for a newer connection, and returns why this one is refused.
    pub(crate) async fn taken(&mut self) -> String {
        // Nothing is ever sent: the other end is dropped.
        let _ = (&mut self.taken).await;
        format!(
            "it had not proved that it has the token when newer connections came, and at most {MOST} may wait for that, \
             {MOST_PER_ADDRESS} from one address"
        )
    }
}

impl UnauthenticatedConnections {
    pub(crate) fn new(inbox: mpsc::Sender<Inbound>) -> UnauthenticatedConnections {
        let refusals = Refusals { count: 0, since: Instant::now(), reported: 0 };
        UnauthenticatedConnections { inbox, here: Mutex::default(), refusals: Mutex::new(refusals) }
    }

    /// A place for one more. If there is none, the oldest connection loses its place: of those from this address if they
    /// are too many, otherwise of all.
    pub(crate) fn place(self: &Arc<Self>, address: IpAddr) -> Place {
        let address = source_of(address);
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(surplus) = here.surplus(address) {
            here.remove(surplus);
        }
        let number = here.next;
        here.next += 1;
        let (take, taken) = oneshot::channel();
        here.places.insert(number, (address, take));
        *here.per_address.entry(address).or_default() += 1;
        Place { unauthenticated: Arc::clone(self), number, taken }
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
        here.remove(self.number);
    }
}

/// How fast connections are accepted: [`ACCEPTED_PER_SECOND`].
#[derive(Debug)]
pub(crate) struct AcceptPace {
    since: Instant,
    accepted: u32,
}

impl AcceptPace {
    pub(crate) fn new() -> AcceptPace {
        AcceptPace { since: Instant::now(), accepted: 0 }
    }

    /// Waits until one more connection may be accepted.
    pub(crate) async fn next(&mut self) {
        const SECOND: Duration = Duration::from_secs(1);
        if self.accepted >= ACCEPTED_PER_SECOND {
            sleep(SECOND.saturating_sub(self.since.elapsed())).await;
        }
        if self.since.elapsed() >= SECOND {
            (self.since, self.accepted) = (Instant::now(), 0);
        }
        self.accepted += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_taken(place: &mut Place) -> bool {
        use oneshot::error::TryRecvError;
        matches!(place.taken.try_recv(), Err(TryRecvError::Closed))
    }

    #[test]
    fn beyond_the_bounds_the_oldest_connection_loses_its_place() {
        let unauthenticated = Arc::new(UnauthenticatedConnections::new(mpsc::channel(1).0));
        let places = |last, count| -> Vec<Place> {
            (0..count).map(|_| unauthenticated.place(address(last))).collect()
        };
        let mut first = places(1, 28);
        let mut second = places(2, MOST_PER_ADDRESS);
        assert!(!first.iter_mut().chain(&mut second).any(is_taken));

        let mut more = places(2, 1);
        assert!(is_taken(&mut second[0]) && !is_taken(&mut second[1]), "the oldest of that address");
        assert!(!first.iter_mut().chain(&mut more).any(is_taken));

        let mut third = places(3, MOST - MOST_PER_ADDRESS - 28);
        assert!(!first.iter_mut().chain(&mut third).any(is_taken));
        let mut fourth = places(4, 1);
        assert!(is_taken(&mut first[0]) && !is_taken(&mut first[1]), "the oldest of all");
        assert!(!fourth.iter_mut().chain(&mut third).any(is_taken));

        drop((first, second, more, third, fourth));
        let here = unauthenticated.here.lock().unwrap();
        assert!(
            here.places.is_empty() && here.per_address.is_empty(),
            "an address that is gone is forgotten"
        );
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_have_the_places_of_one() {
        let unauthenticated = Arc::new(UnauthenticatedConnections::new(mpsc::channel(1).0));
        let of = |number: usize| IpAddr::from([0x2001, 0xdb8, 1, 2, 0, 0, 0, number as u16]);
        let mut places: Vec<Place> =
            (0..=MOST_PER_ADDRESS).map(|number| unauthenticated.place(of(number))).collect();
        assert!(is_taken(&mut places[0]) && !is_taken(&mut places[1]));
    }

    #[test]
    fn a_flood_of_connections_waits_to_be_accepted() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let began = Instant::now();
        runtime.block_on(async {
            let mut pace = AcceptPace::new();
            for _ in 0..=ACCEPTED_PER_SECOND {
                pace.next().await;
            }
        });
        assert!(began.elapsed() >= Duration::from_secs(1));
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
