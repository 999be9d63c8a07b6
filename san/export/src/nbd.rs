//! The server's side of NBD: fixed newstyle, structured replies, block status.
//!
//! ```text
//!  bytes ─▶ handshake ─▶ an export is chosen ─▶ session ─▶ requests of the volume
//!                                               ▲    │
//!                                        answers┘    └─▶ bytes
//! ```
//!
//! Bytes are not trusted: whatever they are, they do not make it panic, nor keep more memory than is stated here.
//!
//! | module | idea |
//! | --- | --- |
//! | [`handshake`] | the login: a client lists the exports, and chooses one |
//! | [`session`] | requests are taken from bytes, and answers are put into an outbox |
//! | [`connection`] | the session at its socket |

pub mod connection;
pub mod handshake;
pub mod session;

use std::net::SocketAddr;
use std::path::Path;

use crate::ways::Ways;

/// The URIs of a volume ([the NBD URI specification](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md)).
pub(crate) fn ways(volume: &str, address: Option<SocketAddr>, socket: &Path) -> Ways {
    Ways {
        network: address.map(|address| format!("nbd://{address}/{volume}")),
        local: Some(format!("nbd+unix:///{volume}?socket={}", socket.display())),
    }
}
