//! What load: one type, and every notation that people already have for it.
//!
//! A [`Profile`] says what is asked of each disk. It is written as a name (`B4-T2-O32-W0-PR`, or one of those that
//! people know, [`known`]), as a TOML table,
//! as a DISKSPD command line ([`diskspd`]) or as a fio job ([`fio`]); [`read`] finds out which. What such a line
//! says beyond the load (targets, durations) is kept in an [`Invocation`]. Nothing is dropped in silence: what
//! has no counterpart is an error when read, and a note when printed.

mod error;
mod explain;
mod grammar;
mod invocation;
pub mod known;
mod names;
mod notation;
mod parts;
pub mod plain;
mod profile;
mod rules;
mod words;

pub mod diskspd;
pub mod fio;

pub use error::{ErrorKind, ProfileError};
pub use invocation::{Invocation, Printed};
pub use notation::{Notation, Reading, read};

pub use parts::{Arrival, Data, Extent, HotSpot, OfferedRate, Pattern, WorkingSet};
pub use profile::Profile;
