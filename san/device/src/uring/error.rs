//! Why io_uring is not used, or not for this.

use std::io;

use loadline_base::limits::without_io_uring;

/// Why io_uring is not used, or not for this.
#[derive(Debug, thiserror::Error)]
pub enum UringError {
    /// Here it is not allowed, or missing.
    #[error("io_uring is refused here ({error}): {}", without_io_uring(error))]
    Refused {
        /// The error of the system.
        error: io::Error,
    },
    /// Too little or too much of something.
    #[error("{number} {what} are requested: request 1 to 4096")]
    Options {
        /// The name of what is counted, in the plural.
        what: &'static str,
        /// How many were asked for.
        number: u32,
    },
    /// No further store.
    #[error(
        "this thread has {stores} stores, and no room for another: give it to another thread, or allow more"
    )]
    Full {
        /// How many there are.
        stores: u32,
    },
    /// There is none of this number.
    #[error("this thread has no store {store}: report it")]
    NoStore {
        /// The number.
        store: u32,
    },
    /// Something of it is not done.
    #[error("store {store} has {requests} requests that are not done: take them first")]
    Busy {
        /// The number.
        store: u32,
        /// The number of operations that are not done.
        requests: usize,
    },
    /// It did not work.
    #[error("the devices of store {store} cannot be {what} for io_uring: {error}")]
    Failed {
        /// The number.
        store: u32,
        /// What was to be done.
        what: &'static str,
        /// The error of the system.
        error: io::Error,
    },
}
