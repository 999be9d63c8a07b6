//! Whole clusters in one thread, from a seed, with every fault: `san/core` over a model of the store.
//!
//! | module | idea |
//! | --- | --- |
//! | [`world`] | nodes, processes, the network, the configuration store: what happens, in order |
//! | `tenant` | clients, and what they ask for |
//! | [`directed`] | schedules written down, for what chance finds too rarely |
//! | `faults` | what goes wrong, and when |
//! | `lasting` | what stays broken at the end |
//! | `wire` | messages and records as bytes |
//! | [`oracle`] | what must never happen |
//! | [`history`] | whether what was read could be |
//! | [`run`] | a whole run, from its seed to its verdict |
//! | [`coverage`] | what of the protocol was seen |
//! | [`settings`] | what cluster a run has |
//! | [`store`] | a replica's store on a simulated disk |
//! | [`rng`] | the seed, and what is drawn from it |

pub mod coverage;
pub mod directed;
mod faults;
pub mod history;
mod lasting;
pub mod oracle;
pub mod rng;
pub mod run;
pub mod settings;
pub mod store;
mod tenant;
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
