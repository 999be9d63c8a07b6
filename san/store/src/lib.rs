//! One replica on one device: a log that is also its write-back cache, extents with checksums, and what it keeps of itself.
//!
//! | module | idea |
//! | --- | --- |
//! | [`store`] | a store while it serves |
//! | [`open`] | how one is made, and found again |
//! | [`space`] | a device, and who has which part of it |
//! | [`check`] | a stopped one, looked at and checked |
//! | [`inspect`] | what can be seen of one |
//! | [`io`] | what a store asks of its devices, and what they answer |
//! | `log`, `index` | the log in memory, and which blocks it holds |
//! | `append`, [`read`], `destage`, `growth` | what a store does |
//! | `map` | what blocks hold, without reading them |
//! | [`scrub`] | looking for what is corrupt |
//! | `held` | data of records, in memory until it is destaged |
//! | `extents` | consecutive blocks, and what is kept of each |
//! | `replica_meta` | what a replica keeps of itself |
//! | `replay` | reading a log that was left |
//!
//! The rules are in `docs/explanation/san-rules.md`, *On the device*; the formats in `docs/reference/protocol.md`.

mod append;
pub mod check;
mod destage;
mod discard;
mod extents;
mod growth;
mod held;
mod index;
pub mod inspect;
pub mod io;
mod log;
mod map;
pub mod open;
pub mod read;
mod replay;
mod replica_meta;
mod returns;
pub mod scrub;
pub mod space;
pub mod store;
