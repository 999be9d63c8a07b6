//! What a program between a worker and its controller, or on the controller's port, cannot do.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Events, Fake, Fault, TOKEN, Wire, challenge, hello, joined, options, run, work};
use loadline_base::units::TimeSpan;
use loadline_fleet::wire::{Hello, PROTOCOL, Proven, Side, ToController, ToWorker};
use loadline_fleet::{
    ErrorKind as Kind, Fleet, FleetError, FleetEvent, LossReason, WorkerId, run_worker, tls,
};
use serde_json::Value;

const WAIT: TimeSpan = TimeSpan::seconds(20);
const SOON: Duration = Duration::from_secs(5);

/// A fleet of one worker, which `other` joins as a fake at the end, after its attacks on the controller's port.
fn fleet_beside<T: Send + 'static>(other: impl FnOnce(SocketAddr) -> T + Send + 'static) -> (T, Events) {
    let events = Events::default();
    let done = run(async {
        let here = events.clone();
        let other = thread::spawn(move || {
            let address = here.address();
            let done = other(address);
            (done, Fake::start(address, "good", Fault::None))
        });
        let fleet = Fleet::start(joined(1, WAIT), events.sink()).await.unwrap();
        let (done, fake) = tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
        fleet.stop().await;
        fake.join().unwrap();
        done
    });
    (done, events)
}

fn next(wire: &mut Wire) -> Option<Value> {
    wire.receive(SOON).ok().flatten()
}

/// The two ends of a program in the middle: it opens the connection of a worker, and has one of its own to the controller.
fn between(controller: SocketAddr) -> (TcpListener, impl FnOnce(&TcpListener) -> (Wire, Wire)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener, move |listener| (Wire::accept(listener), Wire::connect(controller)))
}

#[test]
fn a_worker_refuses_a_controllers_proof_that_a_program_in_the_middle_forwards() {
    let (error, events) = fleet_beside(|controller| {
        let (listener, meet) = between(controller);
        let worker = work(listener.local_addr().unwrap().to_string(), "a");
        let (mut to_worker, mut to_controller) = meet(&listener);
        let hello = next(&mut to_worker).unwrap();
        to_controller.send(&hello).unwrap();
        let challenge = next(&mut to_controller).unwrap();
        assert!(challenge.get("challenge").is_some(), "{challenge}");
        to_worker.send(&challenge).unwrap();
        assert_eq!(next(&mut to_worker), None, "the worker gives no proof");
        worker.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind, Kind::Usage);
    assert!(error.message.contains("token") && error.message.contains("decrypts"), "{error}");
    assert!(events.rejected().iter().any(|why| why.contains("closed the connection")));
}

#[test]
fn a_controller_refuses_a_workers_proof_that_a_program_in_the_middle_forwards() {
    let (answer, events) = fleet_beside(|controller| {
        let (listener, meet) = between(controller);
        let address = listener.local_addr().unwrap();
        // A worker that trusts every controller.
        let worker = thread::spawn(move || {
            let mut wire = Wire::connect(address);
            let hello = hello("a");
            let worker = hello.nonce;
            wire.send(&ToController::Hello(hello)).unwrap();
            let Some(ToWorker::Challenge { nonce: controller, .. }) = wire.receive(SOON).unwrap() else {
                panic!("no challenge")
            };
            let proven = Proven { channel: wire.channel, worker, controller };
            wire.send(&ToController::Proof { proof: proven.proof(TOKEN, Side::Worker) }).unwrap();
            let _ = wire.receive::<ToWorker>(SOON);
        });
        let (mut to_worker, mut to_controller) = meet(&listener);
        to_controller.send(&next(&mut to_worker).unwrap()).unwrap();
        to_worker.send(&next(&mut to_controller).unwrap()).unwrap();
        to_controller.send(&next(&mut to_worker).unwrap()).unwrap();
        let answer = next(&mut to_controller).unwrap();
        drop(to_worker);
        worker.join().unwrap();
        answer
    });
    assert!(answer["refused"]["why"].as_str().unwrap().contains("token"), "{answer}");
    assert_eq!(events.rejected().len(), 1, "{:?}", events.rejected());
}

#[test]
fn a_proof_of_an_earlier_connection_is_refused() {
    let (answer, _) = fleet_beside(|controller| {
        let mine = hello("a");
        let mut first = Wire::connect(controller);
        first.send(&ToController::Hello(mine.clone())).unwrap();
        let Some(ToWorker::Challenge { nonce, .. }) = first.receive(SOON).unwrap() else {
            panic!("no challenge")
        };
        // What passed on the first connection is sent on a second one, with the same hello.
        let proven = Proven { channel: first.channel, worker: mine.nonce, controller: nonce };
        let proof = proven.proof(TOKEN, Side::Worker);
        let mut second = Wire::connect(controller);
        second.send(&ToController::Hello(mine)).unwrap();
        next(&mut second).unwrap();
        second.send(&ToController::Proof { proof }).unwrap();
        next(&mut second).unwrap()
    });
    assert!(answer["refused"]["why"].as_str().unwrap().contains("token"), "{answer}");
}

#[test]
fn a_controllers_proof_of_an_earlier_connection_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let earlier = thread::spawn(move || drop(Wire::connect(address)));
    let channel = Wire::accept(&listener).channel;
    earlier.join().unwrap();
    let worker = work(address.to_string(), "a");
    let mut wire = Wire::accept(&listener);
    let Some(ToController::Hello(hello)) = wire.receive(SOON).unwrap() else { panic!("no hello") };
    // Even where both nonces were the same again.
    let controller = hello.nonce;
    let proof = Proven { channel, worker: hello.nonce, controller }.proof(TOKEN, Side::Controller);
    wire.send(&ToWorker::Challenge { nonce: controller, proof }).unwrap();
    assert_eq!(next(&mut wire), None, "the worker gives no proof");
    assert!(worker.join().unwrap().unwrap_err().message.contains("token"));
}

#[test]
fn a_proof_that_is_sent_back_to_the_side_that_made_it_is_refused() {
    let (answer, _) = fleet_beside(|controller| {
        let mut wire = Wire::connect(controller);
        wire.send(&ToController::Hello(hello("a"))).unwrap();
        let Some(ToWorker::Challenge { proof, .. }) = wire.receive(SOON).unwrap() else {
            panic!("no challenge")
        };
        wire.send(&ToController::Proof { proof }).unwrap();
        next(&mut wire).unwrap()
    });
    assert!(answer["refused"]["why"].as_str().unwrap().contains("token"), "{answer}");
}

#[test]
fn a_worker_of_a_version_without_encryption_is_told_that_there_are_two_versions() {
    let (answer, events) = fleet_beside(|controller| {
        let mut wire = Wire::plain(TcpStream::connect(controller).unwrap());
        wire.send(&ToController::Hello(Hello { protocol: 7, ..hello("a") })).unwrap();
        next(&mut wire).unwrap()
    });
    assert_eq!(answer["refused"]["protocol"], PROTOCOL);
    assert!(events.rejected()[0].contains("version 7"), "{:?}", events.rejected());
}

#[test]
fn a_worker_that_does_not_encrypt_its_connection_is_refused_whatever_it_knows() {
    let (answer, events) = fleet_beside(|controller| {
        let mut wire = Wire::plain(TcpStream::connect(controller).unwrap());
        wire.send(&ToController::Hello(hello("a"))).unwrap();
        next(&mut wire).unwrap()
    });
    assert!(answer["refused"]["why"].as_str().unwrap().contains("not encrypted"), "{answer}");
    assert!(events.rejected()[0].contains("not encrypted"), "{:?}", events.rejected());
}

#[test]
fn a_worker_tells_a_controller_that_does_not_encrypt_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = work(listener.local_addr().unwrap().to_string(), "a-secret-name");
    let mut stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut said = vec![0; 4096];
    let read = stream.read(&mut said).unwrap();
    // A refusal that says that it is to try again.
    let refused = ToWorker::Refused { protocol: PROTOCOL, why: "later".into(), retry: true };
    Wire::plain(stream).send(&refused).unwrap();
    let error = worker.join().unwrap().unwrap_err();
    assert_eq!(error.kind, Kind::Usage);
    assert!(error.message.contains("not a Loadline controller"), "{error}");
    assert!(!said[..read].windows(13).any(|part| part == b"a-secret-name"));
}

#[test]
fn a_connection_of_tls_1_2_is_refused() {
    let (error, events) = fleet_beside(|controller| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let mut client = rustls::ClientConnection::new(Arc::new(config), tls::controller_name()).unwrap();
        let mut stream = TcpStream::connect(controller).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        client.complete_io(&mut stream).unwrap_err().to_string()
    });
    assert!(error.contains("ProtocolVersion"), "{error}");
    assert!(events.rejected()[0].contains("encrypted connection failed"), "{:?}", events.rejected());
}

#[test]
fn no_session_is_resumed() {
    let config = tls::controller_config().unwrap();
    assert!(
        config.send_tls13_tickets == 0 && !config.ticketer.enabled() && !config.session_storage.can_cache()
    );
    assert_eq!(config.max_early_data_size, 0);
    assert!(!tls::worker_config().enable_early_data);
}

/// Waits until the other side has ended a connection.
fn ended(mut stream: impl Read) {
    let mut rest = [0; 1024];
    loop {
        match stream.read(&mut rest) {
            Ok(1..) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => panic!("it was not ended"),
            _ => return,
        }
    }
}

/// Connections that stop: before they send anything, in their first message, after the handshake, and after their hello.
fn stopped(controller: SocketAddr) -> ([TcpStream; 2], [Wire; 2]) {
    let silent = TcpStream::connect(controller).unwrap();
    let mut half = TcpStream::connect(controller).unwrap();
    half.write_all(&[22, 3, 1, 0, 200, 1, 0, 0]).unwrap();
    let encrypted = Wire::connect(controller);
    let mut greeted = Wire::connect(controller);
    greeted.send(&ToController::Hello(hello("a"))).unwrap();
    next(&mut greeted).unwrap();
    ([silent, half], [encrypted, greeted])
}

#[test]
fn a_side_that_stops_in_the_handshake_delays_no_worker() {
    let (held, events) = fleet_beside(stopped);
    let kinds = events
        .all()
        .into_iter()
        .filter(|e| matches!(e, FleetEvent::Joined { .. } | FleetEvent::Rejected { .. }));
    let first = kinds.into_iter().next();
    assert!(matches!(first, Some(FleetEvent::Joined { .. })), "{:?}", events.all());
    drop(held);
}

#[test]
fn a_side_that_stops_in_the_handshake_is_dropped_after_seconds() {
    let (_, events) = fleet_beside(|controller| {
        let (streams, wires) = stopped(controller);
        for stream in streams {
            stream.set_read_timeout(Some(SOON * 4)).unwrap();
            ended(stream);
        }
        for mut wire in wires {
            assert_eq!(next(&mut wire), None);
        }
    });
    let late = events.rejected().iter().filter(|why| why.contains("did not prove within 5s")).count();
    assert_eq!(late, 4, "{:?}", events.rejected());
}

#[test]
fn a_worker_leaves_a_controller_that_stops_in_the_handshake_and_tries_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let worker = work(listener.local_addr().unwrap().to_string(), "a");
    let (silent, _) = listener.accept().unwrap();
    silent.set_read_timeout(Some(SOON * 4)).unwrap();
    ended(&silent);
    // The next one is a controller.
    let mut wire = Wire::accept(&listener);
    let proven = challenge(&mut wire, TOKEN);
    let Some(ToController::Proof { proof }) = wire.receive(SOON).unwrap() else { panic!("no proof") };
    assert!(proven.is_proof(TOKEN, Side::Worker, &proof));
    wire.send(&ToWorker::Welcome { worker: WorkerId("a".into()) }).unwrap();
    wire.send(&ToWorker::Bye).unwrap();
    assert_eq!(worker.join().unwrap(), Ok(()));
}

#[test]
fn connections_without_a_token_keep_no_worker_out() {
    let (held, events) = fleet_beside(|controller| {
        // More than may wait from one address, and none of them ever says more.
        let connect = |_| {
            let mut stream = TcpStream::connect(controller).unwrap();
            stream.write_all(&[22]).unwrap();
            stream
        };
        (0..400).map(connect).collect::<Vec<TcpStream>>()
    });
    let dropped = events.rejected().iter().filter(|why| why.contains("when newer connections came")).count();
    assert!(dropped > 0, "{:?}", events.rejected());
    drop(held);
}

/// Forwards bytes between a worker and its controller. From a signal on, it changes a bit of what goes one way.
struct Forwarder {
    address: SocketAddr,
    spoil: Arc<AtomicBool>,
}

impl Forwarder {
    fn start(controller: SocketAddr, spoils_orders: bool) -> Forwarder {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let spoil: Arc<AtomicBool> = Arc::default();
        let told = spoil.clone();
        thread::spawn(move || {
            let (worker, _) = listener.accept().unwrap();
            let controller = TcpStream::connect(controller).unwrap();
            let never: Arc<AtomicBool> = Arc::default();
            let (orders, reports) = if spoils_orders { (told, never) } else { (never, told) };
            let back = (controller.try_clone().unwrap(), worker.try_clone().unwrap());
            let orders = thread::spawn(move || forward(back.0, back.1, &orders));
            forward(worker, controller, &reports);
            orders.join().unwrap();
        });
        Forwarder { address, spoil }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, spoil: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if spoil.swap(false, Ordering::Relaxed) {
            bytes[read - 1] ^= 1;
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A fleet of one real worker, with a forwarder between that changes a bit once the worker has joined. What the worker ended
/// with, and how the fleet lost it.
fn with_a_bit_changed(in_orders: bool) -> (FleetError, (LossReason, String)) {
    let events = Events::default();
    run(async {
        let here = events.clone();
        let worker = thread::spawn(move || {
            let forwarder = Forwarder::start(here.address(), in_orders);
            let options = options(forwarder.address.to_string(), "a");
            // Its first report is that it has joined.
            run_worker(options, &mut |_| forwarder.spoil.store(true, Ordering::Relaxed)).unwrap_err()
        });
        let fleet = Fleet::start(joined(1, WAIT), events.sink()).await.unwrap();
        let here = events.clone();
        let ended = tokio::task::spawn_blocking(move || {
            let error = worker.join().unwrap();
            let loss = here.wait(|e| match e {
                FleetEvent::Lost { loss, .. } => Some((loss.reason, loss.message.clone())),
                _ => None,
            });
            (error, loss)
        });
        let ended = ended.await.unwrap();
        fleet.stop().await;
        ended
    })
}

#[test]
fn orders_that_are_changed_on_the_way_end_the_worker_with_a_message() {
    let (error, (reason, why)) = with_a_bit_changed(true);
    assert_eq!(error.kind, Kind::Failed);
    assert!(error.message.contains("a message was changed on the way"), "{error}");
    assert!(reason == LossReason::Garbled && why.contains("changed on the way"), "{reason:?} {why}");
}

#[test]
fn reports_that_are_changed_on_the_way_are_refused_and_the_worker_is_lost_by_name() {
    let (error, (reason, why)) = with_a_bit_changed(false);
    assert!(reason == LossReason::Garbled && why.contains("a message was changed on the way"), "{why}");
    assert!(error.message.contains("is gone"), "{error}");
}

#[test]
fn nothing_that_a_worker_and_its_controller_send_can_be_read_on_the_way() {
    let events = Events::default();
    let seen = run(async {
        let here = events.clone();
        let between = thread::spawn(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let worker = work(listener.local_addr().unwrap().to_string(), "a-secret-name");
            let (stream, _) = listener.accept().unwrap();
            let there = TcpStream::connect(here.address()).unwrap();
            let (back, forth) = (there.try_clone().unwrap(), stream.try_clone().unwrap());
            let orders = thread::spawn(move || record(back, forth));
            let mut seen = record(stream, there);
            seen.extend(orders.join().unwrap());
            worker.join().unwrap().unwrap();
            seen
        });
        let fleet = Fleet::start(joined(1, WAIT), events.sink()).await.unwrap();
        fleet.stop().await;
        between.join().unwrap()
    });
    for word in [&b"a-secret-name"[..], b"hello", b"challenge", b"welcome", TOKEN.as_bytes()] {
        assert!(!seen.windows(word.len()).any(|part| part == word), "{}", String::from_utf8_lossy(word));
    }
}

/// Forwards bytes and returns them.
fn record(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let (mut seen, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        seen.extend_from_slice(&bytes[..read]);
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    seen
}
