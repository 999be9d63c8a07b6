//! The HTTP API of a node, called: where it is, and what proves that one may call it.
//!
//! | module | idea |
//! | --- | --- |
//! | `address` | where an API is: HTTP on this machine, HTTPS, a unix socket |
//! | `access` | the file that proves an access, as TLS takes it |
//! | `unix` | HTTP over a unix socket |

mod access;
mod address;
mod unix;

pub use address::ApiAddress;
