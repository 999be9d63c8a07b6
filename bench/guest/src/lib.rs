//! Virtual machines as workers of a fleet: a kernel, an image of one program, and disks.

pub mod error;
pub mod machine;

pub use error::{ErrorKind, GuestError};
pub use machine::Machine;
