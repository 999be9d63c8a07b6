//! The load generator: a profile and disks go in, measurements come out.
//!
//! | module | idea |
//! | --- | --- |
//! | [`job`] | what one worker is asked to do; it travels to the worker as it is |
//! | [`result`] | what one bench came to, as programs read it |
//! | [`host`] | what the host is, and what it was doing |
//! | [`memory`] | how much memory can be had |
//! | [`target`] | what a disk is, and the files that Loadline makes as disks |
//! | [`stop_condition`] | limits that end a load before it hurts |
//! | [`error`] | what can go wrong, and which exit code that is |
//! | [`mod@prepare`] | a job made ready, and run: phases, the stream of intervals |
//! | [`outcome`] | what it comes to |

pub mod error;
mod halt;
mod handshake;
pub mod host;
pub mod job;
pub mod outcome;
pub mod prepare;
pub mod result;
pub mod stop_condition;
pub mod target;

mod address;
pub mod collect;
mod data;
mod direct;
mod engine;
mod extents;
pub mod iscsi;
mod issuer;
mod lent;
mod locks;
mod made;
pub mod memory;
pub mod nbd;
mod open;
mod pace;
pub mod rbd;
mod record;
mod run;
mod sweep;
mod threads;
mod verify;
mod vhost;

pub use collect::Sink;
pub use engine::uring::try_whole as try_io_uring;
pub use error::LoadError;
pub use job::{Engine, Job, Verify};
pub use lent::{Lent, lend};
pub use open::{Examined, examine};
pub use outcome::{CpuTime, Outcome, Scan, VerifyReport, engine_alone};
pub use prepare::{
    Prepared, prepare, prepare_to_fill, prepare_to_scan, prepare_to_scan_after_load, verify_unit,
};
pub use stop_condition::StopIf;
pub use target::{Disk, FileIdentity, Target, WritePermission};
pub use verify::{BadBlocks, share_journal, temporary_journal};
