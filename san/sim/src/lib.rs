//! Whole clusters in one thread, from a seed, with every fault: `san/core` over a model of the store.
//!
//! | module | idea |
//! | --- | --- |
//! | [`world`] | nodes and processes: what happens, in order |
//! | `world::steps` | what processes do |
//! | `world::network` | what is on its way between nodes |
//! | `world::wire` | messages and records as bytes |
//! | `world::config` | the configuration store |
//! | [`world::forwarder`] | nodes that forward what clients ask for to the owner |
//! | `world::tenant` | clients, and what they ask for |
//! | `world::faults` | what goes wrong, and when |
//! | `world::backups` | devices go back in time |
//! | `world::restores` | the configuration store goes back in time |
//! | `world::lasting` | what stays broken at the end |
//! | `world::liveness` | what should go on, and does |
//! | `world::oracle` | checks for what must never happen |
//! | `world::durability` | checks that a start finds what its store has reported to be durable |
//! | [`violation`] | what must never happen |
//! | [`directed`] | schedules written down, for what chance finds too rarely |
//! | [`history`] | whether what was read could be |
//! | [`run`] | a whole run, from its seed to its verdict |
//! | [`scale`] | many nodes and volumes: what a fault costs, and how that grows |
//! | [`coverage`] | what of the protocol was seen |
//! | [`settings`] | what cluster a run has |
//! | [`store`] | a replica's store on a simulated disk |
//! | [`cutting`] | a store whose power fails between any two of its writes |
//! | `queue` | what is to happen, in the order of time |
//! | [`rng`] | the seed, and what is drawn from it |
//! | [`time`] | simulated time |

pub mod coverage;
pub mod cutting;
pub mod directed;
pub mod history;
mod queue;
pub mod rng;
pub mod run;
pub mod scale;
pub mod settings;
pub mod store;
pub mod time;
pub mod violation;
pub mod world;

/// Prints a line. If the reader has closed the pipe, as `head` does, the process exits with 0.
#[macro_export]
macro_rules! print_line {
    ($($text:tt)*) => { $crate::write_line(format_args!($($text)*)) };
}

/// Prints a line to standard output: the function behind [`print_line!`]. Exits the process with 0 if standard output is closed.
pub fn write_line(text: std::fmt::Arguments<'_>) {
    use std::io::Write;
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}
