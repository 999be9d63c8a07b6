//! The clock that leases count on.

use loadline_san_core::lease::Moment;
use nix::time::{ClockId, clock_gettime};

/// This moment on `CLOCK_BOOTTIME`, which runs on while the machine is suspended.
pub fn now() -> Moment {
    // The clock exists on every Linux since 2.6.39, so the call cannot fail.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("CLOCK_BOOTTIME");
    Moment(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
