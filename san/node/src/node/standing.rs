//! Where a client counts before its volume's loop has it: among connections that have proved nothing, from which the oldest are displaced;
//! then, once it has proved who it is or has chosen a volume that it may use, among those that wait to be let in or are forwarded. Whoever
//! reaches the port of a volume that requires no TLS comes so far, so one source has a share of those places.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use loadline_san_export::login::LoginError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Entered;
use super::unproved::Source;

/// Clients of each kind that wait to be let in, or are forwarded, at most. More are disconnected.
const MOST: usize = 2048;
/// Of those that need not prove who they are, so many of one source.
const MOST_OF_ONE: usize = MOST / 2;

/// How many more clients may wait to be let in or be forwarded, for each kind: none shuts another out.
#[derive(Debug, Clone)]
pub(super) struct Rooms {
    /// Clients that came by the network, and need not prove who they are.
    open: Arc<Semaphore>,
    /// How many of these each source has.
    sources: Sources,
    /// Clients that have a certificate.
    proved: Arc<Semaphore>,
    /// Clients that came by a unix socket.
    local: Arc<Semaphore>,
}

impl Default for Rooms {
    fn default() -> Rooms {
        let room = || Arc::new(Semaphore::new(MOST));
        Rooms { open: room(), sources: Sources::default(), proved: room(), local: room() }
    }
}

/// How many clients each source has. Clones are the same.
#[derive(Debug, Clone, Default)]
struct Sources(Arc<Mutex<HashMap<Source, usize>>>);

impl Sources {
    fn counts(&self) -> MutexGuard<'_, HashMap<Source, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place of this source; `None` if it has all that one may have.
    fn take(&self, source: Source) -> Option<Share> {
        let mut counts = self.counts();
        let count = counts.get(&source).copied().unwrap_or(0);
        (count < MOST_OF_ONE).then(|| {
            counts.insert(source, count + 1);
            Share { sources: self.clone(), source }
        })
    }
}

/// A place of a source. To drop it gives it back.
#[derive(Debug)]
struct Share {
    sources: Sources,
    source: Source,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut counts = self.sources.counts();
        if let Some(count) = counts.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.source);
            }
        }
    }
}

/// Where a client counts.
#[derive(Debug)]
pub(super) struct Standing {
    entered: Option<Entered>,
    /// Its place, and whether that is one of clients with a certificate.
    place: Option<(OwnedSemaphorePermit, bool)>,
    /// The place of its source, if it need not prove who it is.
    share: Option<Share>,
    source: Source,
    rooms: Rooms,
}

impl Standing {
    /// Of a client that has proved nothing yet.
    pub(super) fn new(entered: Entered, source: Source, rooms: &Rooms) -> Standing {
        Standing { entered: Some(entered), place: None, share: None, source, rooms: rooms.clone() }
    }

    /// The client has proved who it is by a certificate, or has chosen a volume that it may use without one. It is displaced no more. An
    /// error disconnects it: there are too many of its kind.
    pub(super) fn admit(&mut self, is_proved: bool) -> Result<(), LoginError> {
        if self.place.as_ref().is_some_and(|(_, proved)| *proved == is_proved) {
            return Ok(());
        }
        let Rooms { open, sources, proved, local } = &self.rooms;
        let full = |most: usize, whose: &str| {
            LoginError(format!("{most} other clients {whose} wait for volumes, or are forwarded"))
        };
        let (room, share) = match (self.source, is_proved) {
            (Source::Local, _) => (local, None),
            (Source::Host(_), true) => (proved, None),
            (Source::Host(_), false) => {
                let share = sources.take(self.source);
                (open, Some(share.ok_or_else(|| full(MOST_OF_ONE, "of its address without a certificate"))?))
            }
        };
        let place = room.clone().try_acquire_owned().map_err(|_| full(MOST, "of its kind"))?;
        (self.place, self.share, self.entered) = (Some((place, is_proved)), share, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::super::unproved::Unproved;
    use super::*;

    fn host(number: u32) -> Source {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes()).into()
    }

    #[test]
    fn no_kind_of_clients_takes_the_places_of_another_and_no_source_all_of_a_kind() {
        let (rooms, unproved) = (Rooms::default(), Unproved::default());
        let take = |source, is_proved| {
            let mut standing = Standing::new(unproved.clients.enter(source).0, source, &rooms);
            standing.admit(is_proved).map(|()| standing)
        };
        let of_one: Vec<Standing> = (0..MOST_OF_ONE).map(|_| take(host(0), false).unwrap()).collect();
        assert!(take(host(0), false).unwrap_err().0.contains("1024 other clients of its address"));
        assert!(take(host(1), false).is_ok());
        drop(of_one);
        let strangers: Vec<Standing> =
            (0..MOST as u32).map(|n| take(host(n % 100), false).unwrap()).collect();
        assert!(take(host(101), false).unwrap_err().0.contains("2048 other clients"));
        assert!(take(host(0), true).is_ok() && take(Source::Local, false).is_ok());
        drop(strangers);
        assert!(take(host(0), false).is_ok(), "places are given back");
        assert!(rooms.sources.counts().is_empty());
    }

    #[test]
    fn a_client_that_is_admitted_is_not_displaced() {
        let (rooms, unproved) = (Rooms::default(), Unproved::default());
        let mut standing = Standing::new(unproved.clients.enter(host(0)).0, host(0), &rooms);
        standing.admit(false).unwrap();
        assert!(standing.entered.is_none());
        standing.admit(true).unwrap();
        assert!(standing.place.as_ref().is_some_and(|(_, proved)| *proved) && standing.share.is_none());
    }
}
