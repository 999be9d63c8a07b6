//! Simulated time.

/// A moment, as nanoseconds since the beginning of the run, or a length of time in nanoseconds.
pub type Time = u64;

/// One microsecond.
pub const US: Time = 1_000;
/// One millisecond.
pub const MS: Time = 1_000_000;
