//! The daemon of a node.
//!
//! | module | idea |
//! | --- | --- |
//! | [`event_loop`] | the data path: a thread with its volumes, replicas and clients |
//! | [`clock`] | the clock that leases count on |

pub mod clock;
pub mod event_loop;
