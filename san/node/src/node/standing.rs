//! Where a client counts before its volume's loop has it: among connections that have proved nothing, from which the oldest are displaced;
//! then, once it has proved who it is or has chosen a volume that it may use, among those that wait to be let in or are forwarded.

use std::sync::Arc;

use loadline_san_export::login::LoginError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Entered;

/// Clients of each kind that wait to be let in, or are forwarded, at most. More are disconnected.
const MOST: usize = 2048;

/// How many more clients may wait to be let in or be forwarded, for each kind: none shuts another out.
#[derive(Debug, Clone)]
pub(super) struct Rooms {
    /// Clients that came by the network, and need not prove who they are.
    open: Arc<Semaphore>,
    /// Clients that have a certificate.
    proved: Arc<Semaphore>,
    /// Clients that came by a unix socket.
    local: Arc<Semaphore>,
}

impl Default for Rooms {
    fn default() -> Rooms {
        let room = || Arc::new(Semaphore::new(MOST));
        Rooms { open: room(), proved: room(), local: room() }
    }
}

/// Where a client counts.
#[derive(Debug)]
pub(super) struct Standing {
    entered: Option<Entered>,
    /// Its place, and whether that is one of clients with a certificate.
    place: Option<(OwnedSemaphorePermit, bool)>,
    is_local: bool,
    rooms: Rooms,
}

impl Standing {
    /// Of a client that has proved nothing yet.
    pub(super) fn new(entered: Entered, is_local: bool, rooms: &Rooms) -> Standing {
        Standing { entered: Some(entered), place: None, is_local, rooms: rooms.clone() }
    }

    /// The client has proved who it is by a certificate, or has chosen a volume that it may use without one. It is displaced no more. An
    /// error disconnects it: there are too many of its kind.
    pub(super) fn admit(&mut self, is_proved: bool) -> Result<(), LoginError> {
        if self.place.as_ref().is_some_and(|(_, proved)| *proved == is_proved) {
            return Ok(());
        }
        let Rooms { open, proved, local } = &self.rooms;
        let room = match (self.is_local, is_proved) {
            (true, _) => local,
            (false, true) => proved,
            (false, false) => open,
        };
        let place = room.clone().try_acquire_owned();
        let full =
            |_| LoginError(format!("{MOST} other clients of its kind wait for volumes, or are forwarded"));
        (self.place, self.entered) = (Some((place.map_err(full)?, is_proved)), None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::unproved::{Source, Unproved};
    use super::*;

    #[test]
    fn no_kind_of_clients_takes_the_places_of_another() {
        let (rooms, unproved) = (Rooms::default(), Unproved::default());
        let take = |is_local, is_proved| {
            let mut standing = Standing::new(unproved.clients.enter(Source::Local).0, is_local, &rooms);
            standing.admit(is_proved).map(|()| standing)
        };
        let strangers: Vec<Standing> = (0..MOST).map(|_| take(false, false).unwrap()).collect();
        assert!(take(false, false).unwrap_err().0.contains("2048 other clients"));
        assert!(take(false, true).is_ok() && take(true, false).is_ok());
        drop(strangers);
        assert!(take(false, false).is_ok(), "places are given back");
    }

    #[test]
    fn a_client_that_is_admitted_is_not_displaced() {
        let (rooms, unproved) = (Rooms::default(), Unproved::default());
        let mut standing = Standing::new(unproved.clients.enter(Source::Local).0, false, &rooms);
        standing.admit(false).unwrap();
        assert!(standing.entered.is_none());
        standing.admit(true).unwrap();
        assert!(standing.place.as_ref().is_some_and(|(_, proved)| *proved));
    }
}
