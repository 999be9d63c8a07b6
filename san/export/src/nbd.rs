//! The server's side of NBD: fixed newstyle, structured replies, block status.
//!
//! ```text
//!  bytes ─▶ handshake ─▶ an export is chosen ─▶ session ─▶ requests of the volume
//!                                               ▲    │
//!                                        answers┘    └─▶ bytes
//! ```
//!
//! Bytes are not trusted: whatever they are, they do not make it panic, nor keep more memory than is said here.
//!
//! | module | idea |
//! | --- | --- |
//! | [`handshake`] | a client comes, asks what there is, and chooses |
//! | [`session`] | requests are taken from the stream, and answered |

pub mod handshake;
pub mod session;
