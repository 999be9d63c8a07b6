//! Commands that run a study with a fleet, and that read its results and those of others: `loadline new`, `run`, `demo`, `worker`, `guest`, `fleet`,
//! `report`, `analyze`, `compare` and `schema`.

pub(crate) mod analyze;
mod bounded;
pub(crate) mod compare;
pub(crate) mod demo;
pub(crate) mod fleet;
pub(crate) mod guest;
pub(crate) mod host_agent;
pub(crate) mod new;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod worker;
