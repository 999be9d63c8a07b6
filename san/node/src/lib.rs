//! The daemon of a node.
//!
//! | module | idea |
//! | --- | --- |
//! | [`event_loop`] | the data path: a thread with its volumes, replicas and clients |
//! | [`config`] | the configuration of the cluster, and where it is kept |
//! | [`clock`] | the clock that leases count on |

pub mod clock;
pub mod config;
pub mod event_loop;
