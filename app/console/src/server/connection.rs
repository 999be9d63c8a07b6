//! Connections to the console: so many at most, each within limits of size and time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::tls::Tls;
use crate::access::Peer;
use crate::access::attempts::network;
use crate::access::secret::Digest;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long the head of a request may take, from the moment at which one may come: also how long a connection may be idle.
const HEAD: Duration = Duration::from_secs(20);
/// Bytes of a request's head at most.
const LONGEST_HEAD: usize = 16 << 10;
/// Header lines of a request at most.
const MOST_HEADERS: usize = 64;
/// Connections at once.
const MOST: usize = 512;
/// Connections at once of an address of another machine; of IPv6, of its network of 64 bits.
const MOST_OF_ONE: usize = 64;
/// The wait after a connection could not be accepted, for example because there are too many open files.
const AGAIN: Duration = Duration::from_millis(100);

/// The connections there are, by address.
#[derive(Debug, Clone, Default)]
struct Places(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// The place of a connection, until it is dropped.
struct Place(Places, IpAddr);

impl Places {
    /// A place for a connection from this address, if there is one.
    fn take(&self, address: IpAddr) -> Option<Place> {
        let network = network(address);
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = places.values().sum::<usize>() >= MOST;
        let of_one = places.get(&network).copied().unwrap_or(0);
        if is_full || (of_one >= MOST_OF_ONE && !network.is_loopback()) {
            return None;
        }
        *places.entry(network).or_default() += 1;
        Some(Place(self.clone(), network))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = places.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                places.remove(&self.1);
            }
        }
    }
}

/// Answers, until the future is dropped. A connection for which there is no place is closed.
pub(super) async fn serve(listener: TcpListener, tls: Option<Tls>, router: Router) -> io::Result<()> {
    let places = Places::default();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(_) => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        let address = from.ip().to_canonical();
        let Some(place) = places.take(address) else { continue };
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            let _place = place;
            let _ = stream.set_nodelay(true);
            match tls {
                None => answer(stream, router, Peer { address, certificate: None }).await,
                Some(tls) => protected(stream, &tls, router, address).await,
            }
        });
    }
}

async fn protected(stream: TcpStream, tls: &Tls, router: Router, address: IpAddr) {
    let shaken = tokio::time::timeout(HANDSHAKE, tls.acceptor.accept(stream)).await;
    // An error is one of the other side, which TLS has told.
    let Ok(Ok(stream)) = shaken else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|all| all.first());
    let certificate = certificate.map(|certificate| Digest::of_bytes(certificate));
    answer(stream, router, Peer { address, certificate }).await;
}

async fn answer(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router, peer: Peer) {
    let router = TowerToHyperService::new(router);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer.clone()));
        let answered = router.call(request);
        async move { Ok::<Response, Infallible>(answered.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_header_size(LONGEST_HEAD)
        .max_buf_size(4 * LONGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(io), answer);
    // An error is one of the other side.
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_bounded_in_all_and_of_an_address_of_another_machine() {
        let (places, address) = (Places::default(), |number: u8| IpAddr::from([10, 0, 0, number]));
        let of_one: Vec<_> = (0..MOST_OF_ONE).map(|_| places.take(address(1))).collect();
        assert!(of_one.iter().all(Option::is_some) && places.take(address(1)).is_none());
        let other = places.take(address(2));
        assert!(other.is_some());
        let local: Vec<_> = (0..MOST).map(|_| places.take([127, 0, 0, 1].into())).collect();
        assert_eq!(local.iter().flatten().count(), MOST - MOST_OF_ONE - 1);
        drop((of_one, other));
        assert!(places.take(address(1)).is_some());
        drop(local);
        assert!(places.0.lock().unwrap().is_empty(), "nothing is kept of those that are gone");
    }
}
