//! Commands that measure on this host, in one process: `loadline bench`, `verify`, `profile` and `doctor`.

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod profile;
pub(crate) mod verify;
