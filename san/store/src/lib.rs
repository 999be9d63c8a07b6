//! One replica on one device: a log that is also its write-back cache, extents with checksums, and its metadata.
//!
//! | module | idea |
//! | --- | --- |
//! | [`store`] | a store while it serves; what it does is in modules of its own: append, [`read`], destage, growth, [`scrub`] |
//! | [`open`] | how one is made, and found again: the log that was left is replayed |
//! | [`space`] | a device, and the users of its parts |
//! | [`check`] | checks of a store that is not in use |
//! | [`inspect`] | what can be seen of one |
//! | [`io`] | the I/Os of a store on its devices, and their results |
//! | `log`, `index` | the log in memory, and which blocks it holds |
//! | `map` | what blocks hold, without reading them |
//! | [`cache`] | which blocks the read cache has |
//! | `held` | data of records, in memory until it is destaged |
//! | `extents` | consecutive blocks, and what is kept of each |
//! | `replica_meta` | the metadata of a replica |
//!
//! The rules are in `docs/explanation/san-rules.md`, *On the device*; the formats in `docs/reference/protocol.md`.

pub mod cache;
pub mod check;
mod extents;
mod held;
mod index;
pub mod inspect;
pub mod io;
mod log;
mod map;
pub mod open;
mod replica_meta;
pub mod space;
pub mod store;

pub use store::{read, scrub};
