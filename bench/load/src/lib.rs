//! The load generator: a profile and disks go in, measurements come out.
//!
//! | module | idea |
//! | --- | --- |
//! | [`job`] | what one worker is asked to do; it travels to the worker as it is |
//! | [`target`] | what a disk is, and opening it without ever harming what is not ours |
//! | [`error`] | what can go wrong, and which exit code that is |
//! | [`run`] | a job, prepared and run: threads, phases, the stream of intervals, the outcome |

pub mod error;
pub mod job;
pub mod run;
pub mod target;

pub use error::LoadError;
pub use job::{Disk, Engine, Job, Verify, WritePermission};
pub use run::{Outcome, Prepared, prepare};
pub use target::{FileIdentity, Target};
