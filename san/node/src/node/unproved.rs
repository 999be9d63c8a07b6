//! Connections whose other side has not proved yet that it may connect. Their number is limited for each kind apart, so that strangers of one
//! kind take no place of another kind.
//!
//! A new connection is always taken. If there is no place for it, the oldest one has to go: a stranger that opens many and leaves them
//! displaces its own. A connection gives its place back as soon as it has proved something.
//!
//! | kind | most | most of one source |
//! | --- | --- | --- |
//! | the port for nodes, from an address of a node of the cluster | 2048 | 1024 |
//! | the port for nodes, from elsewhere | 256 | 32 |
//! | the API, from an address of a node | 256 | 128 |
//! | the API, from elsewhere | 256 | 32 |
//! | clients of volumes, by the network | 1024 | 512 |
//! | clients of volumes, by a unix socket | 1024 | 1024 |
//!
//! Where the process may have few open files, it is a share of them instead. A source is an IPv4 address, or the network of 64 bits of an
//! IPv6 address: whoever has one address of that has all. Whoever shares an address with a node
//! is among its connections, so no node has all places.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use loadline_base::limits;
use loadline_base::network::source_of;
use tokio::sync::oneshot;

use super::Node;

/// Of the open files that the process may have, one part of so many may be connections of one kind that have proved nothing.
const SHARE: u64 = 8;

/// How long no connection is accepted for want of descriptors; and how long after some were given back.
const NOT_ACCEPTED: Duration = Duration::from_millis(100);
const EVICTED: Duration = Duration::from_millis(2);

/// Where a connection comes from, as far as that tells strangers apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    /// This machine, by a unix socket.
    Local,
    /// A host: see [`source_of`].
    Host(IpAddr),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Source {
        Source::Host(source_of(address))
    }
}

/// Connections of one kind that have proved nothing. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    most: usize,
    most_of_one: usize,
    places: Arc<Mutex<Places>>,
}

#[derive(Debug, Default)]
struct Places {
    /// How many there ever were.
    number: u64,
    /// By their numbers: the oldest is the first.
    all: BTreeMap<u64, (Source, oneshot::Sender<()>)>,
    by_source: HashMap<Source, BTreeSet<u64>>,
}

impl Places {
    /// Gives a place up. Sent to its connection, this ends it.
    fn remove(&mut self, number: u64) -> Option<oneshot::Sender<()>> {
        let (source, evicts) = self.all.remove(&number)?;
        if let Some(of_one) = self.by_source.get_mut(&source) {
            of_one.remove(&number);
            if of_one.is_empty() {
                self.by_source.remove(&source);
            }
        }
        Some(evicts)
    }
}

impl Pool {
    fn new(most: usize, most_of_one: usize) -> Pool {
        let most = most.min((limits::open_files() / SHARE) as usize).max(1);
        Pool { most, most_of_one: most_of_one.min(most), places: Arc::default() }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection comes from there. Its place, and what reports that the place goes to another one.
    pub(crate) fn enter(&self, source: Source) -> (Entered, Evicted) {
        let mut places = self.places();
        let own = places.by_source.get(&source);
        let oldest = match own.filter(|own| own.len() >= self.most_of_one) {
            Some(own) => own.first().copied(),
            None if places.all.len() >= self.most => places.all.keys().next().copied(),
            None => None,
        };
        if let Some(evicts) = oldest.and_then(|oldest| places.remove(oldest)) {
            let _ = evicts.send(());
        }
        places.number += 1;
        let (number, (evicts, evicted)) = (places.number, oneshot::channel());
        places.all.insert(number, (source, evicts));
        places.by_source.entry(source).or_default().insert(number);
        drop(places);
        (Entered { pool: self.clone(), number }, Evicted(evicted))
    }

    /// The oldest connection has to go, for want of descriptors. Whether there was one.
    fn evict(&self) -> bool {
        let mut places = self.places();
        let oldest = places.all.keys().next().copied();
        oldest.and_then(|oldest| places.remove(oldest)).is_some_and(|evicts| evicts.send(()).is_ok())
    }
}

/// The place of a connection. To drop it gives it back: the connection has proved something, or has ended.
#[derive(Debug)]
pub(crate) struct Entered {
    pool: Pool,
    number: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.pool.places().remove(self.number);
    }
}

/// Reports that the place of a connection goes to another one.
#[derive(Debug)]
pub(crate) struct Evicted(oneshot::Receiver<()>);

impl Evicted {
    /// Why a connection ends whose place goes to another one.
    pub(crate) const WHY: &str = "it has proved nothing yet, and its place was needed for a newer connection";

    /// Waits until the connection has to end. For ever, once it has given its place back.
    pub(crate) async fn wait(self) {
        if self.0.await.is_err() {
            std::future::pending().await
        }
    }
}

/// All of them, by their kinds.
#[derive(Debug)]
pub(crate) struct Unproved {
    /// The port for nodes, from the address of a node.
    pub(crate) nodes: Pool,
    /// The port for nodes, from elsewhere.
    pub(crate) strangers: Pool,
    /// The API, from the address of a node.
    pub(crate) api_of_nodes: Pool,
    /// The API, from elsewhere.
    pub(crate) api: Pool,
    /// Clients of volumes that come by the network.
    pub(crate) clients: Pool,
    /// Clients of volumes that come by a unix socket.
    pub(crate) local: Pool,
}

impl Default for Unproved {
    fn default() -> Unproved {
        Unproved {
            nodes: Pool::new(2048, 1024),
            strangers: Pool::new(256, 32),
            api_of_nodes: Pool::new(256, 128),
            api: Pool::new(256, 32),
            clients: Pool::new(1024, 512),
            local: Pool::new(1024, 1024),
        }
    }
}

impl Unproved {
    /// The oldest of those that have to go first have to go, for want of descriptors. Whether there were any.
    pub(crate) fn evict(&self) -> bool {
        [&self.strangers, &self.api, &self.clients].map(Pool::evict).contains(&true)
    }
}

impl Node {
    /// Connections whose other side has not proved its identity yet.
    pub(crate) fn unproved(&self) -> &Unproved {
        &self.0.unproved
    }

    /// Whether the configuration has a node at this address.
    pub(crate) fn is_address_of_node(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let state = self.state();
        state.catalog.nodes.values().any(|(node, _)| node.addresses().iter().any(|of| of.ip() == address))
    }

    /// A connection cannot be accepted: for want of descriptors, perhaps, of which connections that have proved nothing give some back.
    pub(crate) async fn not_accepted(&self, error: &std::io::Error) {
        tracing::warn!("a connection cannot be accepted: {error}");
        let pause = if self.0.unproved.evict() { EVICTED } else { NOT_ACCEPTED };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        text.parse::<IpAddr>().unwrap().into()
    }

    fn is_evicted(evicted: &mut Evicted) -> bool {
        evicted.0.try_recv().is_ok()
    }

    #[test]
    fn a_stranger_displaces_its_own_oldest_and_never_another() {
        let pool = Pool::new(8, 4);
        let (_other, mut others) = pool.enter(source("10.0.0.2"));
        let mut held: Vec<_> = (0..100).map(|_| pool.enter(source("10.0.0.1"))).collect();
        assert_eq!(pool.places().all.len(), 5);
        let stay: Vec<bool> = held.iter_mut().map(|(_, evicted)| !is_evicted(evicted)).collect();
        assert!(stay[96..].iter().all(|stays| *stays) && !stay[..96].contains(&true), "the newest stay");
        assert!(!is_evicted(&mut others));
    }

    #[test]
    fn whoever_shares_the_address_of_one_node_displaces_no_other_node() {
        let unproved = Unproved::default();
        for pool in [&unproved.nodes, &unproved.api_of_nodes] {
            let (_other, mut others) = pool.enter(source("10.0.0.2"));
            let _held: Vec<_> = (0..5000).map(|_| pool.enter(source("10.0.0.1"))).collect();
            assert!(!is_evicted(&mut others));
        }
    }

    #[test]
    fn when_all_places_are_taken_the_oldest_of_all_goes_and_the_newest_never() {
        let pool = Pool::new(8, 4);
        let mut held: Vec<_> = (0..9).map(|n| pool.enter(source(&format!("10.0.0.{n}")))).collect();
        assert!(is_evicted(&mut held[0].1));
        assert!(held[1..].iter_mut().all(|(_, evicted)| !is_evicted(evicted)));
        // One that has proved something has no place any more, and stays whatever comes.
        let (proved, mut stays) = held.remove(1);
        drop(proved);
        let _more: Vec<_> = (0..50).map(|n| pool.enter(source(&format!("10.0.1.{n}")))).collect();
        assert!(!is_evicted(&mut stays));
        assert!(is_evicted(&mut held[1].1));
    }

    #[test]
    fn nothing_is_kept_of_those_that_have_left() {
        let pool = Pool::new(8, 4);
        drop((0..100).map(|n| pool.enter(source(&format!("fd00::{n}")))).collect::<Vec<_>>());
        assert!(pool.places().all.is_empty() && pool.places().by_source.is_empty());
    }

    #[test]
    fn addresses_of_one_network_of_ipv6_have_the_places_of_one() {
        let pool = Pool::new(64, 4);
        let mut held: Vec<_> = (0..5).map(|n| pool.enter(source(&format!("2001:db8:1:2::{n}")))).collect();
        assert!(is_evicted(&mut held[0].1));
    }
}
