//! This process: its exit code, its limits, Ctrl-C, the log of a daemon, its service manager, secrets, and what it has made and removes again.

pub(crate) mod exit;
pub(crate) mod interrupt;
pub(crate) mod limits;
pub(crate) mod log;
pub(crate) mod made;
pub(crate) mod notify;
pub(crate) mod secret;
