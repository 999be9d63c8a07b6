//! Who is refused in a handshake, and with which words.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::helpers::{Helpers, Precedence};

/// What the client and the server of a handshake say.
fn refused(client: ClientConfig, server: ServerConfig, called: &'static str) -> (String, String) {
    run(async {
        let (ours, theirs) = shake(client, server, called).await;
        // A client is done before the server has looked at its certificate: it learns the refusal when it reads.
        let ours = match ours {
            Err(error) => error.to_string(),
            Ok((mut stream, _)) => match stream.read_u8().await {
                Ok(_) => "taken".into(),
                Err(error) => error.to_string(),
            },
        };
        let theirs = match theirs {
            Err(error) => error.to_string(),
            Ok((mut stream, _)) => {
                let _ = stream.write_u8(1).await;
                "taken".into()
            }
        };
        (ours, theirs)
    })
}

#[test]
fn a_client_without_a_certificate_of_the_authority_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = || authority.server(authority.issue("b", 2020, 2090), &[ENCRYPTED]);
    for (own, words) in [
        (None, "the other side has no certificate"),
        (Some(other.issue("a", 2020, 2090)), "was not issued by this cluster"),
        (
            Some(authority.issue("a", 2020, 2021)),
            "was valid until 2021-01-01 00:00 UTC, and the clock of this host says 2",
        ),
        (
            Some(authority.issue("a", 2088, 2090)),
            "is valid from 2088-01-01 00:00 UTC, and the clock of this host says 2",
        ),
    ] {
        let (ours, theirs) = refused(authority.client(own, &[ENCRYPTED]), server(), "b");
        assert!(theirs.contains(words), "{theirs}");
        assert_ne!(ours, "taken");
    }
}

#[test]
fn both_sides_find_that_their_clocks_disagree() {
    let authority = Authority::new();
    for (from, until, of_clocks) in [(2020, 2021, true), (2088, 2090, true), (2020, 2090, false)] {
        // The client's certificate, and then the server's.
        for (client, server) in [((from, until), (2020, 2090)), ((2020, 2090), (from, until))] {
            let issue = |name, (from, until)| Some(authority.issue(name, from, until));
            let client = authority.client(issue("a", client), &[ENCRYPTED]);
            let server = authority.server(issue("b", server).unwrap(), &[ENCRYPTED]);
            let found = run(async {
                let (ours, theirs) = shake(client, server, "b").await;
                let ours = match ours {
                    Ok((mut stream, _)) if theirs.is_err() => {
                        HandshakeError::from(stream.read_u8().await.unwrap_err()).is_of_clocks()
                    }
                    Ok(_) => false,
                    Err(error) => error.is_of_clocks(),
                };
                [ours, theirs.is_err_and(|error| error.is_of_clocks())]
            });
            assert_eq!(found, [of_clocks; 2], "{from} {until}");
        }
    }
}

#[test]
fn a_server_of_another_cluster_or_name_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let client = || authority.client(Some(authority.issue("a", 2020, 2090)), &[ENCRYPTED]);
    let foreign = other.server(other.issue("b", 2020, 2090), &[ENCRYPTED]);
    assert!(refused(client(), foreign, "b").0.contains("was not issued by this cluster"));
    let another = authority.server(authority.issue("c", 2020, 2090), &[ENCRYPTED]);
    assert!(refused(client(), another, "b").0.contains("is of another node or address"));
}

#[test]
fn sides_that_protect_in_different_ways_refuse_each_other() {
    let authority = Authority::new();
    let server = authority.server(authority.issue("b", 2020, 2090), &[ENCRYPTED]);
    let client = authority.client(Some(authority.issue("a", 2020, 2090)), &[AUTHENTICATED]);
    let (ours, theirs) = refused(client, server, "b");
    assert!(ours.contains("protects its connections in another way"), "{ours}");
    assert!(theirs.contains("protects its connections in another way"), "{theirs}");
}

#[test]
fn a_client_of_an_older_tls_is_refused() {
    let authority = Authority::new();
    let server = authority.server(authority.issue("b", 2020, 2090), &[]);
    let own = authority.issue("a", 2020, 2090);
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(authority.roots())
        .with_client_auth_cert(vec![own.0], own.1)
        .unwrap();
    let (ours, theirs) = refused(client, server, "b");
    assert!(theirs.contains("does not offer TLS 1.3"), "{theirs}");
    assert!(ours.contains("does not speak TLS 1.3"), "{ours}");
}

#[test]
fn what_is_no_tls_is_refused_and_a_side_that_leaves_is_noticed() {
    let authority = Authority::new();
    let server = || Arc::new(authority.server(authority.issue("b", 2020, 2090), &[]));
    for (sent, words) in
        [(&b"GET / HTTP/1.1\r\nHost: b\r\n\r\n"[..], "does not speak TLS"), (&[22, 3, 1][..], "has closed")]
    {
        let error = run(async {
            let (mut ours, theirs) = tokio::io::duplex(1 << 16);
            ours.write_all(sent).await.unwrap();
            ours.shutdown().await.unwrap();
            handshake::accept(theirs, server()).await.unwrap_err()
        });
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// Carries bytes from one side to the other, and changes the one at this place.
async fn carry(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    change: Option<(usize, u8)>,
) {
    let (mut done, mut buffer) = (0, [0; 4096]);
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if let Some((at, with)) = change.filter(|(at, _)| (done..done + count).contains(at)) {
            buffer[at - done] ^= with;
        }
        done += count;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// A node ends by a panic, so whoever can cause one by a few bytes stops a node.
#[test]
fn a_handshake_that_is_changed_in_any_byte_fails_and_never_panics() {
    let authority = Authority::new();
    let server = Arc::new(authority.server(authority.issue("b", 2020, 2090), &[ENCRYPTED]));
    let client = Arc::new(authority.client(Some(authority.issue("a", 2020, 2090)), &[ENCRYPTED]));
    let seed: u64 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    for round in 0..600 {
        let change = Some((random() % 1500, (random() % 255 + 1) as u8));
        let (up, down) = if round % 2 == 0 { (change, None) } else { (None, change) };
        run(async {
            let (ours, ours_end) = tokio::io::duplex(1 << 16);
            let (theirs_end, theirs) = tokio::io::duplex(1 << 16);
            let (from_ours, to_ours) = tokio::io::split(ours_end);
            let (from_theirs, to_theirs) = tokio::io::split(theirs_end);
            let limit = std::time::Duration::from_millis(300);
            let connects = async {
                let limited =
                    tokio::time::timeout(limit, handshake::connect(ours, client.clone(), name("b"))).await;
                if let Ok(Ok((mut stream, _))) = limited {
                    let _ = tokio::time::timeout(limit, stream.read_u8()).await;
                }
            };
            let accepts = async {
                let limited = tokio::time::timeout(limit, handshake::accept(theirs, server.clone())).await;
                if let Ok(Ok((mut stream, _))) = limited {
                    let _ = stream.write_u8(1).await;
                }
            };
            let carries =
                async { tokio::join!(carry(from_ours, to_theirs, up), carry(from_theirs, to_ours, down)) };
            tokio::select! {
                _ = async { tokio::join!(connects, accepts) } => {}
                _ = carries => {}
            }
        });
    }
}

#[test]
fn helpers_compute_the_same_handshake() {
    let authority = Authority::new();
    let helpers = Helpers::start(1, 1 << 20).unwrap();
    let server = Arc::new(authority.server(authority.issue("b", 2020, 2090), &[ENCRYPTED]));
    let client = Arc::new(authority.client(Some(authority.issue("a", 2020, 2090)), &[ENCRYPTED]));
    run(async {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let by = (&helpers, Precedence::Stranger);
        let (ours, theirs) = tokio::join!(
            handshake::connect_with(&helpers, ours, client, name("b")),
            handshake::accept_with(by, theirs, server.clone())
        );
        let (mut ours, (mut theirs, proved)) = (ours.unwrap().0, theirs.unwrap());
        assert!(proved.certificate.is_some());
        ours.write_all(b"hello").await.unwrap();
        ours.flush().await.unwrap();
        let mut read = [0; 5];
        theirs.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"hello");
        // One that fails is refused with the same words.
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        ours.write_all(b"GET / HTTP/1.1\r\nHost: b\r\n\r\n").await.unwrap();
        ours.shutdown().await.unwrap();
        let error = handshake::accept_with(by, theirs, server).await.unwrap_err();
        assert!(error.to_string().contains("does not speak TLS"), "{error}");
    });
}
