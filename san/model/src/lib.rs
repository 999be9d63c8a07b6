//! A small model of how the virtual SAN replicates, searched exhaustively: epoch, seal, takeover, departure
//! and return.
//!
//! The rules are those of `docs/explanation/san-rules.md`. A search goes through every order of every step that the
//! bounds allow, and checks each state for what must never happen. Then it does so again with one rule left
//! out ([`Rule`]), and something must break: so the rule is needed, and the model is fine enough to see it.
//!
//! | module | idea |
//! | --- | --- |
//! | [`state`] | what a state is made of |
//! | [`protocol`] | what is searched: the protocol within bounds, and its steps |
//! | [`model`] | which steps there are in a state |
//! | `swapping` | the store: proposals, commits, what a node concludes |
//! | `serving` | writes, commit points, leases, reads |
//! | `takeover` | from the first swap to the second |
//! | `resync` | how a replica comes back |
//! | `replica` | what a replica accepts, destage, crashes |
//! | [`properties`] | what must never happen, and what should be reached |
//! | [`rule`] | what can be left out |
//! | [`scenario`] | the bounds that the tests search |
//! | [`search`] | runs a search |
//!
//! # What is bounded
//!
//! Three replicas at most, one on each of three nodes; two nodes that may own the volume; one group of at
//! most two blocks. Each [`scenario`] lets so many things happen, and is searched to the end, whatever the
//! number of steps. Only [`scenario::everything`] stops at a depth: of it, states one step further are
//! counted, and not searched.
//!
//! | | replicas | blocks | writes | reads | crashes | takeovers | departures | sessions | states | steps |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | [`scenario::TAKEOVERS`] | 3 | 1 | 1 | | | 2 | | | 702 278 | 48, all |
//! | [`scenario::BLOCKS`] | 3 | 2 | 2 | | | 1 | | | 152 109 | 33, all |
//! | [`scenario::OVERWRITES`] | 2 | 1 | 2 | | | 2 | | | 129 541 | 42, all |
//! | [`scenario::READS`] | 2 | 1 | 1 | 1 | 1 | 1 | | | 16 315 | 27, all |
//! | [`scenario::RETURN`] | 2 | 1 | 1 | | | 1 | 1 | 1 | 265 044 | 34, all |
//! | [`scenario::RETURN_AND_CRASH`] | 2 | 1 | 2 | | 1 | | 1 | 1 | 121 689 | 23, all |
//! | [`scenario::SESSIONS`] | 2 | 1 | 2 | | | | 1 | 2 | 100 224 | 23, all |
//! | [`scenario::everything`] | 3 | 2 | 2 | 1 | 1 | 2 | 1 | 1 | 192 439 | 9 |
//!
//! `LOADLINE_MODEL_DEPTH` gives the last one another depth: each step more has about twice the states. Any
//! other [`Bounds`] can be given to [`check`]. What is found is printed:
//!
//! ```text
//! cargo test -p loadline-san-model -- --nocapture
//! ```
//!
//! What a mutant needs that is too large for a search of seconds is walked through step by step, in
//! `tests/directed.rs`.
//!
//! # How it is kept small
//!
//! - **A message is a step.** A replica takes the next entry, or the commit point, from the owner's state; the step
//!   that does not happen is a message that is lost or late. A deposed owner that has not learned it continues
//!   sending what it has. What a process sent before it died, or before its last swap, arrives at once or never:
//!   later it would be refused, or do what it does at once.
//! - **An owner receives an answer at once**, and acknowledges in a step of its own, which may come at any later
//!   moment.
//! - **An owner reads the outcome of its swap from the store.** So each answer of the store may be late or lost, and
//!   a proposal may commit after its owner died.
//! - **Time is order.** Leases are granted together and run out together, at any moment; a member under a
//!   lease is promised to another, and does not report. That a grant may travel for long is only to be seen
//!   in the mutant of L1.
//! - **A crash is a crash with a start.** A node that does not start again is one whose steps do not happen.
//! - **Values are numbers that rise with each write**, so that "older" is "less".
//! - Destage takes all that the commit point allows, and a copy goes to the extents of its target.
//!
//! # What it does not express
//!
//! - R4 to R7: the devices of the model lose and corrupt nothing. Of R3 only that there is a stamp: a trim is a
//!   write.
//! - That only entries above the *highest* commit point are merged. Where no member is damaged, a member
//!   that reports an entry also reports those that have overwritten it, and nothing breaks.
//! - Requests of several blocks or groups, a person's force, a store that went back in time, and all that is
//!   about waiting: that something happens at last.
//!
//! The simulator is for these.

mod replica;
mod resync;
mod serving;
mod swapping;
mod takeover;

pub mod model;
pub mod properties;
pub mod protocol;
pub mod rule;
pub mod scenario;
pub mod search;
pub mod state;

pub use protocol::{Action, Bounds, Protocol};
pub use rule::Rule;
pub use search::{SearchResult, check};
pub use state::Left;
