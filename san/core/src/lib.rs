//! Replication as pure steps: events in, actions out. No I/O, no clock, no thread.
//!
//! The rules that it keeps, and why each is needed, are in `docs/explanation/san-rules.md`.
//!
//! | module | idea |
//! | --- | --- |
//! | [`layout`] | where a block of a volume is: which group, and where in it |
//! | [`range`] | what overlaps what, and so waits |
//! | [`range_set`] | a set of blocks |
//! | [`pipeline`] | a group's entries that are issued and not acknowledged |
//! | [`record`] | what the store knows of a volume |
//! | [`swap`] | changing it when the store may answer late, or not at all |
//! | [`lease`] | how long an owner may read without asking |
//! | [`placement`] | which replica is on which device |
//! | [`history`] | the owners of a volume, and since which epoch |
//! | [`message`] | the messages of an owner and a replica |
//! | [`map`] | what blocks hold, as far as a store knows without reading them |
//! | [`store`] | the commands of a replica to its store, and the completions |
//! | [`replica`] | a replica: the owner that it follows, what it appends, what it reports |
//! | [`volume`] | a volume at a node that owns it, takes it over, or watches it |
//! | [`rule`] | the rules that can be left out, to see that it is noticed |
//! | [`ids`] | what things are called |

pub mod history;
pub mod ids;
pub mod layout;
pub mod lease;
pub mod map;
pub mod message;
pub mod pipeline;
pub mod placement;
pub mod range;
pub mod range_set;
pub mod record;
pub mod replica;
pub mod rule;
pub mod store;
pub mod swap;
pub mod volume;
