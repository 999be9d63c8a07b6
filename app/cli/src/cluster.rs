//! `loadline volume`, `device` and `node`: a cluster that runs, through the API of one of its nodes.

pub(crate) mod client;
pub(crate) mod device;
mod maintenance;
mod moves;
pub(crate) mod node;
mod restart;
pub(crate) mod volume;
