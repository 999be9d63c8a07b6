//! A client of NBD with TLS, and of the API.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use loadline_base::nbd::{OPTION_MAGIC, get_u32, option, reply};
use loadline_san_node::identity::trust::provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::{Nbd, greet};

/// A connection with TLS.
pub(crate) type Tls = StreamOwned<ClientConnection, TcpStream>;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);

/// What a client trusts and has, of files as `san access add` writes them.
fn config(authority: &Path, own: Option<(&Path, &Path)>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).expect("it is there")).expect("it is one");
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("it has them")
        .with_root_certificates(roots);
    match own {
        Some((certificate, key)) => {
            let certificate = CertificateDer::from_pem_file(certificate).expect("it is there");
            let key = PrivateKeyDer::from_pem_file(key).expect("it is there");
            builder.with_client_auth_cert(vec![certificate], key).expect("it is one")
        }
        None => builder.with_no_client_auth(),
    }
}

fn begin(stream: TcpStream, address: Ipv4Addr, config: ClientConfig) -> Tls {
    let name = ServerName::from(std::net::IpAddr::from(address));
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).expect("it is one"), stream)
}

/// A client of a volume by TLS, with the certificate in this folder.
pub(crate) fn nbd(address: Ipv4Addr, volume: &str, folder: &Path) -> io::Result<Nbd<Tls>> {
    let mut stream = TcpStream::connect(SocketAddr::from((address, 10809)))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    greet(&mut stream)?;
    let mut asked = OPTION_MAGIC.to_be_bytes().to_vec();
    asked.extend(option::STARTTLS.to_be_bytes());
    asked.extend([0; 4]);
    stream.write_all(&asked)?;
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    if get_u32(&head, 12) != reply::ACK {
        return Err(io::Error::other("TLS is not offered"));
    }
    let own = (folder.join("client-cert.pem"), folder.join("client-key.pem"));
    let config = config(&folder.join("ca-cert.pem"), Some((&own.0, &own.1)));
    Nbd::choose(begin(stream, address, config), volume)
}

/// A connection to the API, which stays open; with the certificate in this file, if one is named.
pub(crate) fn api(address: Ipv4Addr, authority: &Path, own: Option<&Path>) -> Tls {
    let stream = TcpStream::connect(SocketAddr::from((address, 7400))).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("it may be so long");
    begin(stream, address, config(authority, own.map(|own| (own, own))))
}

/// The status of what the API answers to this request; the connection stays open. An error if it has ended.
pub(crate) fn status(stream: &mut Tls, head: &str) -> io::Result<u16> {
    stream.write_all(format!("{head}Host: localhost\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        answer.push(byte[0]);
    }
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    let length = answer.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    stream.read_exact(&mut vec![0; length.expect("it has a length")])?;
    Ok(answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("it has a status"))
}

/// Whether the other side ends the connection, within the time that an answer may take.
pub(crate) fn ends(stream: &mut Tls) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}
