//! Replication as pure steps: events in, actions out. No I/O, no clock, no thread.
//!
//! The rules that it keeps, and why each is needed, are in `docs/design/san.md`.
//!
//! | module | idea |
//! | --- | --- |
//! | [`layout`] | where a block of a volume is: which group, and where in it |
//! | [`range`] | what overlaps what, and so waits |
//! | [`pipeline`] | a group's entries that are issued and not acknowledged |
//! | [`record`] | what the store knows of a volume |
//! | [`swap`] | changing it when the store may answer late, or not at all |
//! | [`lease`] | how long an owner may read without asking |
//! | [`placement`] | which replica is on which device |
//! | [`ids`] | what things are called |

pub mod ids;
pub mod layout;
pub mod lease;
pub mod pipeline;
pub mod placement;
pub mod range;
pub mod record;
pub mod swap;
