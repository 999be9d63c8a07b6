//! The Command Center's server: follows clusters, keeps what they did, and shows it on a page.
//!
//! ```text
//! nodes ─ streams ─▶ follower ─▶ cluster ─ each second ─▶ past ─▶ server ─▶ pages
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | `follower` | a thread for each node, which follows its stream |
//! | `latency` | percentiles from the classes that nodes count |
//! | [`figures`] | what was done in a second adds up, and becomes rates |
//! | [`cluster`] | what is known of a cluster, and what becomes of it each second |
//! | [`view`] | what a page gets of it |
//! | [`past`] | the last 24 hours |
//! | [`following`] | a cluster that is followed |
//! | [`server`] | what the console answers |
//! | `openapi` | its description, of which the page's types are made |

pub mod cluster;
pub mod figures;
pub mod follower;
pub mod following;
pub mod latency;
#[cfg(test)]
mod openapi;
pub mod past;
pub mod server;
pub mod view;
