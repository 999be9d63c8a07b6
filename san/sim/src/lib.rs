//! Whole clusters in one thread, from a seed, with every fault: `san/core` over a model of the store.
//!
//! | module | idea |
//! | --- | --- |
//! | [`world`] | nodes and processes: what happens, in order |
//! | `steps` | what processes do |
//! | `network` | what is on its way between nodes |
//! | `config` | the configuration store |
//! | [`forwarder`] | nodes that forward what clients ask for to the owner |
//! | `tenant` | clients, and what they ask for |
//! | [`directed`] | schedules written down, for what chance finds too rarely |
//! | `faults` | what goes wrong, and when |
//! | `restores` | the configuration store goes back in time |
//! | `lasting` | what stays broken at the end |
//! | `liveness` | what should go on, and does |
//! | `wire` | messages and records as bytes |
//! | [`oracle`] | what must never happen |
//! | `told` | what stores have told to be durable |
//! | [`history`] | whether what was read could be |
//! | [`run`] | a whole run, from its seed to its verdict |
//! | [`coverage`] | what of the protocol was seen |
//! | [`settings`] | what cluster a run has |
//! | [`store`] | a replica's store on a simulated disk |
//! | [`rng`] | the seed, and what is drawn from it |

mod backups;
mod config;
pub mod coverage;
pub mod cutting;
pub mod directed;
mod faults;
pub mod forwarder;
pub mod history;
mod lasting;
mod liveness;
mod network;
pub mod oracle;
mod restores;
pub mod rng;
pub mod run;
pub mod settings;
mod steps;
pub mod store;
mod tenant;
mod told;
mod wire;
pub mod world;

/// Prints a line. Whoever reads may have read enough, as `head` does: then there is nothing more to do.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => { $crate::tell_line(format_args!($($text)*)) };
}

/// See [`tell!`].
pub fn tell_line(text: std::fmt::Arguments<'_>) {
    use std::io::Write;
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}
