//! The network between two workers, measured bare, as each of the two does it: a message there and back, and as many
//! bytes as go one way.
//!
//! One worker listens, on an address of its own host; the other one dials it, once for the messages and then several
//! times for the bytes, as storage uses a connection for each of its loops. Each connection begins with a key that the
//! controller made up for this measurement, so that no other peer gets an answer. Bytes are counted where they arrive.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use loadline_measure::stats::median;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::token::Digits;

/// Bytes of a message there, and of the one back.
const MESSAGE: usize = 64;
/// The most messages of one measurement, which may end earlier by [`MESSAGES_FOR`].
const MESSAGES: usize = 10_000;
/// The longest time for which messages are sent.
const MESSAGES_FOR: Duration = Duration::from_secs(1);
/// Connections that carry bytes at once: one alone is often bound by one CPU and not by the network.
const STREAMS: usize = 4;
/// For how long they do.
const STREAM_FOR: Duration = Duration::from_secs(2);
/// Bytes that are written at once.
const CHUNK: usize = 256 << 10;
/// How long a connection may take to be made, and how long nothing may move on one.
const STALL_LIMIT: Duration = Duration::from_secs(5);
/// How long the one that listens does so.
const LISTEN_LIMIT: Duration = Duration::from_secs(30);
/// Connections that are served at once at the most, those included that have not sent their key yet.
const MOST_AT_ONCE: usize = 16;
/// How often the listener polls for a connection.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// The first byte after the key on a connection that carries messages to and fro.
const FOR_MESSAGES: u8 = b'm';
/// The first byte after the key on a connection that carries bytes one way.
const FOR_BYTES: u8 = b'b';

/// The speed of the network path between two workers while no load runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkPathSpeed {
    /// Median time of a message of 64 bytes there and one back, over TCP, in microseconds.
    pub round_trip_us: f64,
    /// Bytes that arrived in a second, one way, over four TCP connections.
    pub bytes_per_s: f64,
}

/// Listens for one measurement, on a thread that ends with it, at a limit, or when `stop` is set. Where it listens.
pub(crate) fn listen(ip: IpAddr, key: Digits, stop: Arc<AtomicBool>) -> Result<SocketAddr, String> {
    let failed = |e: std::io::Error| format!("cannot listen on {ip} for the network to be measured: {e}");
    let listener = TcpListener::bind((ip, 0)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let serve = move || {
        let deadline = Instant::now() + LISTEN_LIMIT;
        let served = Arc::new(AtomicUsize::new(0));
        // One for messages, and the streams.
        let is_done = || served.load(Ordering::Relaxed) > STREAMS || stop.load(Ordering::Relaxed);
        while Instant::now() < deadline && !is_done() {
            // Each thread that serves, or waits for a key, holds one.
            let is_full = Arc::strong_count(&served) > MOST_AT_ONCE;
            match listener.accept() {
                Ok((stream, _)) if !is_full => {
                    let served = served.clone();
                    let answer = move || answer(stream, key, &served);
                    // A connection that no thread could be had for is closed, and the other end says so.
                    let _ = thread::Builder::new().name("network".into()).stack_size(STACK).spawn(answer);
                }
                _ => thread::sleep(POLL_EVERY),
            }
        }
    };
    thread::Builder::new().name("network".into()).stack_size(STACK).spawn(serve).map_err(failed)?;
    Ok(address)
}

/// Serves a connection and counts its bytes, if the peer has the key.
fn answer(mut stream: TcpStream, key: Digits, served: &AtomicUsize) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    prepare(&stream)?;
    let mut hello = [0; Digits::LEN + 1];
    stream.read_exact(&mut hello)?;
    let (said, purpose) = hello.split_at(Digits::LEN);
    if said != key.bytes() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    served.fetch_add(1, Ordering::Relaxed);
    if purpose == [FOR_MESSAGES] { echo(stream) } else { swallow(stream) }
}

/// Sends back every message until there are no more.
fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut message = [0; MESSAGE];
    loop {
        stream.read_exact(&mut message)?;
        stream.write_all(&message)?;
    }
}

/// Reads every byte, and sends at the end how many they were.
fn swallow(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = vec![0; CHUNK];
    let mut count: u64 = 0;
    loop {
        match stream.read(&mut bytes)? {
            0 => break,
            read => count += read as u64,
        }
    }
    stream.write_all(&count.to_be_bytes())
}

/// Measures the way to a worker that [listens](listen).
pub(crate) fn measure(
    address: SocketAddr,
    key: Digits,
    stop: &AtomicBool,
) -> Result<NetworkPathSpeed, String> {
    let failed = |e: std::io::Error| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("{address}: nothing moved for {} s", STALL_LIMIT.as_secs())
        }
        // The worker that listens there closes each connection without its key.
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            format!(
                "{address}: the program that listens there closed the connection; perhaps it is not the other worker"
            )
        }
        _ => format!("{address}: {e}"),
    };
    let round_trip_us = round_trip(address, key, stop).map_err(failed)?;
    let bytes_per_s = stream_bytes(address, key, stop).map_err(failed)?;
    Ok(NetworkPathSpeed { round_trip_us, bytes_per_s })
}

fn round_trip(address: SocketAddr, key: Digits, stop: &AtomicBool) -> std::io::Result<f64> {
    let mut stream = dial(address, key, FOR_MESSAGES)?;
    let mut message = [7; MESSAGE];
    let mut times = Vec::with_capacity(MESSAGES);
    let began = Instant::now();
    while times.len() < MESSAGES && (times.is_empty() || began.elapsed() < MESSAGES_FOR) {
        if stop.load(Ordering::Relaxed) {
            return Err(ErrorKind::Interrupted.into());
        }
        let sent = Instant::now();
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    // The first one finds caches cold and the other thread just started, and a median does not mind.
    Ok(median(&times).unwrap_or(f64::NAN))
}

/// All connections are there before the first byte; the time is until the last one's count is back.
fn stream_bytes(address: SocketAddr, key: Digits, stop: &AtomicBool) -> std::io::Result<f64> {
    let streams: Vec<TcpStream> =
        (0..STREAMS).map(|_| dial(address, key, FOR_BYTES)).collect::<std::io::Result<_>>()?;
    let began = Instant::now();
    let counts = thread::scope(|scope| {
        let pump = |mut stream: TcpStream| {
            let bytes = vec![0x5a; CHUNK];
            while began.elapsed() < STREAM_FOR && !stop.load(Ordering::Relaxed) {
                stream.write_all(&bytes)?;
            }
            stream.shutdown(std::net::Shutdown::Write)?;
            let mut count = [0; 8];
            stream.read_exact(&mut count)?;
            std::io::Result::Ok(u64::from_be_bytes(count))
        };
        let pumps: Vec<_> = streams.into_iter().map(|stream| scope.spawn(move || pump(stream))).collect();
        let join = |pump: thread::ScopedJoinHandle<'_, std::io::Result<u64>>| {
            pump.join().unwrap_or_else(|_| Err(ErrorKind::Other.into()))
        };
        pumps.into_iter().map(join).collect::<std::io::Result<Vec<u64>>>()
    })?;
    if stop.load(Ordering::Relaxed) {
        return Err(ErrorKind::Interrupted.into());
    }
    Ok(counts.iter().sum::<u64>() as f64 / began.elapsed().as_secs_f64())
}

fn dial(address: SocketAddr, key: Digits, purpose: u8) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, STALL_LIMIT)?;
    prepare(&stream)?;
    let mut hello = [purpose; Digits::LEN + 1];
    hello[..Digits::LEN].copy_from_slice(key.bytes());
    stream.write_all(&hello)?;
    Ok(stream)
}

fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    stream.set_write_timeout(Some(STALL_LIMIT))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn two_ends_with_one_key_measure_the_way_between_them() {
        let key = Digits::random().unwrap();
        let address = listen(Ipv4Addr::LOCALHOST.into(), key, Arc::default()).unwrap();
        let speed = measure(address, key, &AtomicBool::new(false)).unwrap();
        assert!(speed.round_trip_us > 1.0 && speed.round_trip_us < 1e6, "{speed:?}");
        assert!(speed.bytes_per_s > 1e6 && speed.bytes_per_s < 1e12, "{speed:?}");
        // Five connections were served, and there are no more: the listener has ended.
        thread::sleep(POLL_EVERY * 20);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_client_without_the_key_is_not_answered_and_takes_no_place() {
        let key = Digits::random().unwrap();
        let address = listen(Ipv4Addr::LOCALHOST.into(), key, Arc::default()).unwrap();
        let stop = AtomicBool::new(false);
        for _ in 0..6 {
            let error = measure(address, Digits::random().unwrap(), &stop).unwrap_err();
            assert!(error.contains("closed the connection"), "{error}");
        }
        measure(address, key, &stop).unwrap();
    }

    #[test]
    fn a_way_that_leads_nowhere_is_said_and_a_stop_ends_both() {
        let key = Digits::random().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let address = listen(Ipv4Addr::LOCALHOST.into(), key, stop.clone()).unwrap();
        stop.store(true, Ordering::Relaxed);
        thread::sleep(POLL_EVERY * 20);
        let error = measure(address, key, &AtomicBool::new(false)).unwrap_err();
        assert!(error.contains(&address.to_string()) && error.contains("refused"), "{error}");

        let address = listen(Ipv4Addr::LOCALHOST.into(), key, Arc::default()).unwrap();
        let began = Instant::now();
        assert!(measure(address, key, &stop).is_err());
        assert!(began.elapsed() < STREAM_FOR);
        // An address of another host.
        assert!(listen("192.0.2.1".parse().unwrap(), key, Arc::default()).unwrap_err().contains("192.0.2.1"));
    }
}
