//! Another implementation at the other end: rustls with its own records.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustls::{ClientConnection, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Bytes that go there and back.
const BYTES: usize = 600_000;

fn data() -> Vec<u8> {
    (0..BYTES).map(|at| (at * 13 + at / 509) as u8).collect()
}

/// Sends back all that comes.
fn echo(mut stream: impl Read + Write) {
    let (mut buffer, mut left) = (vec![0; 5000], BYTES);
    while left > 0 {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0);
        stream.write_all(&buffer[..count]).unwrap();
        left -= count;
    }
    stream.flush().unwrap();
}

/// Sends the data, and reads them back.
async fn exchange(stream: Stream<tokio::net::UnixStream>) {
    let (mut from, mut to) = tokio::io::split(stream);
    let sends = async {
        to.write_all(&data()).await.unwrap();
        to.flush().await.unwrap();
    };
    let mut back = vec![0; BYTES];
    let reads = async {
        from.read_exact(&mut back).await.unwrap();
    };
    tokio::join!(sends, reads);
    assert_eq!(back, data());
}

fn socket(socket: UnixStream) -> tokio::net::UnixStream {
    socket.set_nonblocking(true).unwrap();
    tokio::net::UnixStream::from_std(socket).unwrap()
}

#[test]
fn a_server_of_rustls_that_changes_its_keys_is_understood() {
    let authority = Authority::new();
    let server = Arc::new(authority.server(authority.issue("b", 2020, 2090), &[ENCRYPTED]));
    let client = Arc::new(authority.client(Some(authority.issue("a", 2020, 2090)), &[ENCRYPTED]));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let mut connection = ServerConnection::new(server).unwrap();
        let mut left = BYTES;
        let mut buffer = vec![0; 5000];
        while left > 0 {
            let count = rustls::Stream::new(&mut connection, &mut theirs).read(&mut buffer).unwrap();
            rustls::Stream::new(&mut connection, &mut theirs).write_all(&buffer[..count]).unwrap();
            left -= count;
            // It bears no more requests in a row than these.
            if left % 50_000 < 5000 {
                connection.refresh_traffic_keys().unwrap();
            }
        }
        rustls::Stream::new(&mut connection, &mut theirs).flush().unwrap();
    });
    run(async {
        let (stream, proved) = handshake::connect(socket(ours), client, name("b")).await.unwrap();
        assert!(proved.certificate.is_some());
        exchange(stream).await;
    });
    thread.join().unwrap();
}

#[test]
fn a_client_of_rustls_is_understood() {
    let authority = Authority::new();
    let server = Arc::new(authority.server(authority.issue("b", 2020, 2090), &[ENCRYPTED]));
    let client = Arc::new(authority.client(Some(authority.issue("a", 2020, 2090)), &[ENCRYPTED]));
    let (theirs, ours) = UnixStream::pair().unwrap();
    let thread = std::thread::spawn(move || {
        let connection = ClientConnection::new(client, name("b")).unwrap();
        echo(rustls::StreamOwned::new(connection, theirs));
    });
    run(async {
        let (stream, proved) = handshake::accept(socket(ours), server).await.unwrap();
        assert!(proved.certificate.is_some());
        exchange(stream).await;
    });
    thread.join().unwrap();
}
