//! Connections whose other side is proved by a certificate: TLS 1.3.
//!
//! ```text
//!  socket ─▶ handshake (rustls, asynchronous) ─▶ records ─▶ Stream   for asynchronous code
//!                                                       └─▶ Channel  for an event loop, which never waits
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | [`keys`] | one direction of a connection: bytes are sealed and opened with a key and a number |
//! | [`records`] | both directions, as records of TLS 1.3 |
//! | [`handshake`] | the identity of the other side, and the keys |
//! | [`helpers`] | threads that compute handshakes, after everything else |
//! | [`stream`] | a connection for asynchronous code |
//! | [`channel`] | a connection for an event loop, protected or not |
//! | [`socket`] | calls on sockets that do not wait |

pub mod channel;
pub mod handshake;
pub mod helpers;
pub mod keys;
pub mod records;
pub mod socket;
pub mod stream;

#[cfg(test)]
mod tests;
