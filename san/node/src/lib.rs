//! The daemon of a node.
//!
//! | module | idea |
//! | --- | --- |
//! | [`event_loop`] | the data path: a thread with its volumes, replicas and clients |
//! | [`node`] | the control path: what a node does with its configuration |
//! | [`api`] | the same for programs, over HTTP |
//! | [`cluster`] | clusters and nodes, before any process of them runs |
//! | [`recent`] | the last lines of the log |
//! | [`settings`] | `node.toml` |
//! | [`unusable`] | why a replica cannot be used |
//! | [`config`] | the configuration of the cluster, and where it is kept |
//! | [`clock`] | the clock that leases count on |
//! | [`openapi`] | an API as OpenAPI describes it |
//! | `outgoing` | connections to other nodes, and the address that they come from |
//! | `strangers` | lines of the log that strangers cause |

pub mod api;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod event_loop;
pub mod identity;
mod metrics;
mod name;
pub mod node;
pub mod openapi;
mod outgoing;
pub mod recent;
pub mod settings;
mod strangers;
pub mod unusable;
