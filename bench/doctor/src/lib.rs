//! What makes storage figures wrong or slow, found before anything is measured.
//!
//! Each check says what was expected, what was found, what that costs, and how to mend it. A check is a function of what
//! was read, so that tests give it folders and numbers of their own; reading is apart from it, below a [`root::Root`].
//!
//! | module | idea |
//! | --- | --- |
//! | [`check`] | what a check found, and how bad that is |
//! | [`mod@examine`] | one host, from first to last |
//! | [`report`] | hosts and the ways between them, as programs read it |
//! | [`scratch`] | the file that durable writes are measured on |
//! | [`sync_write`] | how long a durable write takes |
//! | [`network`] | judges the ways between hosts |
//! | [`hosts`] | compares hosts |
//! | [`devices`] | the disks to check |
//!
//! The other modules are the checks of a host, in the order in which [`mod@examine`] does them.

pub mod check;
pub mod devices;
pub mod examine;
pub mod hosts;
pub mod network;
pub mod report;
pub mod root;
pub mod scratch;
pub mod sync_write;

mod clock;
mod cpu;
mod device;
mod io_uring;
mod kernel;
mod limits;
mod memory;
mod others;
mod partitions;

pub use check::{Check, Severity};
pub use examine::{Examination, ExamineOptions, examine, examine_with_folder};
pub use report::DoctorReport;
