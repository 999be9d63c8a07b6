//! The HTTP API of a node, called: where it is, and what proves that one may call it.
//!
//! | module | idea |
//! | --- | --- |
//! | `address` | where an API is: HTTP on this machine, HTTPS, a unix socket |
//! | `access` | the file that proves an access, as TLS takes it |
//! | `events` | server-sent events, as they come |
//! | `unix` | HTTP over a unix socket |

mod access;
mod address;
mod events;
mod unix;

pub use address::{ApiAddress, escaped};
pub use events::{Events, ServerEvent};
