//! The Command Center's server: follows clusters, keeps what they did, has the history of runs, and shows all of it on a page.
//!
//! ```text
//! nodes ─ streams ─▶ follower ─▶ cluster ─ each second ─▶ past ─▶ server ─▶ pages
//! run folders ─ scan ─▶ runs ──────────────────────────────────────▲
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | `follower` | a thread for each node, which follows its stream |
//! | `latency` | percentiles from the classes that nodes count |
//! | [`figures`] | what was done in a second adds up, and becomes rates |
//! | [`cluster`] | what is known of a cluster, and what becomes of it each second |
//! | [`view`] | what a page gets of it |
//! | [`past`] | the last 24 hours: of the cluster, of each node, of each volume |
//! | [`full`] | when a device is full |
//! | [`following`] | a cluster that is followed |
//! | [`access`] | who may use the console |
//! | [`action`] | what can be done to a cluster |
//! | [`preview`] | what an action will do, and whether it is possible |
//! | [`carry_out`] | an action is carried out by the API of a node |
//! | `scrubbing` | a scrub is followed to its end |
//! | [`runs`] | runs that `loadline run` measured |
//! | [`studies`] | studies that the console starts |
//! | [`watched_run`] | a run that pages watch |
//! | [`server`] | what the console answers |
//! | `openapi` | its description, of which the page's types are made |

pub mod access;
pub mod action;
pub mod carry_out;
pub mod cluster;
pub mod figures;
pub mod follower;
pub mod following;
pub mod full;
pub mod latency;
#[cfg(test)]
mod openapi;
pub mod past;
pub mod preview;
pub mod runs;
mod scrubbing;
pub mod server;
pub mod studies;
pub mod view;
pub mod watched_run;
