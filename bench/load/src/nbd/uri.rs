//! How an NBD server's disk is named: `doc/uri.md` of <https://github.com/NetworkBlockDevice/nbd>.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use loadline_base::nbd::{MOST_STRING, PORT};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::LoadError;

/// What may stand in a URI as it is.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Server {
    /// A host, by its name or address, and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// A disk that an NBD server has: `nbd://host:port/export`, or `nbd+unix:///export?socket=PATH`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NbdUri {
    /// Where the server listens.
    pub server: Server,
    /// Which of its disks. The one without a name has an empty one.
    pub export: String,
}

impl FromStr for NbdUri {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<NbdUri, LoadError> {
        let wrong = |why: &str| {
            LoadError::usage(format!(
                "target \"{text}\": {why}; write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH"
            ))
        };
        let decoded = |part: &str| {
            let decoded = percent_decode_str(part).decode_utf8();
            decoded.map(|part| part.into_owned()).map_err(|_| wrong("it is not UTF-8"))
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it is no URI"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decoded(export)?;
        if export.len() > MOST_STRING {
            return Err(wrong("the name of its export is longer than the protocol allows"));
        }
        let server = match scheme {
            "nbd" if !query.is_empty() => return Err(wrong("what stands behind the ? is not known")),
            "nbd" => {
                let (host, port) = parts(host).ok_or_else(|| wrong("its port is no number"))?;
                let host = decoded(host)?;
                Server::Tcp(if host.is_empty() { "localhost".into() } else { host }, port)
            }
            "nbd+unix" if !host.is_empty() => {
                return Err(wrong("a socket in the file system has no host: write three slashes"));
            }
            "nbd+unix" => {
                let socket = query.strip_prefix("socket=").filter(|path| !path.is_empty());
                let socket = socket.ok_or_else(|| wrong("it does not say which socket"))?;
                if socket.contains('&') {
                    return Err(wrong("what stands behind the socket is not known"));
                }
                Server::Unix(decoded(socket)?.into())
            }
            "nbds" | "nbds+unix" => return Err(wrong("TLS is not known here")),
            _ => return Err(wrong("nothing here opens it")),
        };
        Ok(NbdUri { server, export })
    }
}

/// Host and port. An IPv6 address stands in brackets.
fn parts(host: &str) -> Option<(&str, u16)> {
    if let Some((address, port)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        let port = if port.is_empty() { PORT } else { port.strip_prefix(':')?.parse().ok()? };
        return Some((address, port));
    }
    match host.split_once(':') {
        None => Some((host, PORT)),
        Some((host, port)) => Some((host, port.parse().ok()?)),
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = utf8_percent_encode(&self.export, ENCODED);
        match &self.server {
            Server::Tcp(host, port) if host.contains(':') => write!(f, "nbd://[{host}]:{port}/{export}"),
            Server::Tcp(host, port) => {
                write!(f, "nbd://{}:{port}/{export}", utf8_percent_encode(host, ENCODED))
            }
            Server::Unix(path) => {
                let path = path.to_string_lossy();
                write!(f, "nbd+unix:///{export}?socket={}", utf8_percent_encode(&path, ENCODED))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn uris_of_people_are_understood() {
        for (text, server, export) in [
            ("nbd://", Server::Tcp("localhost".into(), 10809), ""),
            ("nbd://h", Server::Tcp("h".into(), 10809), ""),
            ("nbd://127.0.0.2:10810/vm-1", Server::Tcp("127.0.0.2".into(), 10810), "vm-1"),
            ("nbd://[::1]/a%20b/c", Server::Tcp("::1".into(), 10809), "a b/c"),
            ("nbd://[fe80::1]:7/x", Server::Tcp("fe80::1".into(), 7), "x"),
            ("nbd+unix:///vm-1?socket=/run/n b.sock", Server::Unix("/run/n b.sock".into()), "vm-1"),
            ("nbd+unix:///?socket=nbd.sock", Server::Unix("nbd.sock".into()), ""),
        ] {
            assert_eq!(text.parse::<NbdUri>().unwrap(), NbdUri { server, export: export.into() }, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_uri_is_said() {
        for (text, why) in [
            ("nbd://h:x/v", "no number"),
            ("nbd://h/v?a=b", "not known"),
            ("nbd+unix:///v", "which socket"),
            ("nbd+unix://h/v?socket=s", "three slashes"),
            ("nbd+unix:///v?socket=s&tls=no", "not known"),
            ("nbds://h/v", "TLS"),
            ("nbd://h/%ff", "UTF-8"),
            ("iscsi://h/v", "nothing here"),
        ] {
            let error = text.parse::<NbdUri>().unwrap_err();
            assert!(error.message.contains(why), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_uri_is_read_as_it_is_printed(unix: bool, place in "[^\0]{1,20}", port: u16, export in ".{0,20}") {
            let server = match unix {
                true => Server::Unix(place.into()),
                false => Server::Tcp(place.replace([':', '[', ']', '/'], "x"), port),
            };
            let uri = NbdUri { server, export };
            prop_assert_eq!(uri.to_string().parse::<NbdUri>().unwrap(), uri);
        }
    }
}
