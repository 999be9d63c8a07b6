//! The monotonic clock, as a type: a moment and a distance between moments, in nanoseconds.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// How long the clock has stood still since this process began, nanoseconds.
static STOOD_STILL: AtomicU64 = AtomicU64::new(0);

/// The clock of this host stood still for so long: the virtual machine that it is was migrated. From now on [`Nanos::now`] counts that time.
pub fn stood_still(length: Nanos) {
    STOOD_STILL.fetch_add(length.0, Ordering::Relaxed);
}

/// Nanoseconds: a moment on this host's monotonic clock, or the distance between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// One second.
    pub const SECOND: Nanos = Nanos(1_000_000_000);
    /// One millisecond.
    pub const MILLISECOND: Nanos = Nanos(1_000_000);
    /// One microsecond.
    pub const MICROSECOND: Nanos = Nanos(1_000);

    /// This moment on `CLOCK_MONOTONIC`, the same for every process of one host, and how long that clock has
    /// [stood still](stood_still).
    pub fn now() -> Nanos {
        // The clock exists on every Linux, so the call cannot fail.
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC");
        let stood = STOOD_STILL.load(Ordering::Relaxed);
        Nanos(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64 + stood)
    }

    /// The distance from `earlier`, or zero if that lies later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// In microseconds.
    pub fn as_micros(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// In milliseconds.
    pub fn as_millis(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// In seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0 + other.0)
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    /// Panics if `other` is larger: a negative span is a mistake, not a value.
    fn sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.checked_sub(other.0).expect("the earlier moment is subtracted from the later"))
    }
}

impl From<Duration> for Nanos {
    /// Spans above 584 years saturate.
    fn from(span: Duration) -> Nanos {
        Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Duration {
        Duration::from_nanos(nanos.0)
    }
}

/// Asks the kernel to wake this thread at the nanosecond it asked for, and not up to 50 µs later (the default
/// timer slack), so that a paced load is issued on time.
pub fn wake_on_time() {
    // Best effort: without it wake-ups are late, which the lateness series shows.
    let _ = nix::sys::prctl::set_timerslack(1);
}
