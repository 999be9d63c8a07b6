//! How far this host's monotonic clock lies from the controller's.
//!
//! Each host counts its monotonic clock from its own start, so an instant of the controller means nothing here
//! until the distance is known. It is estimated as NTP does it: a question carries this host's time, the answer
//! the controller's, and of several exchanges the one with the shortest round trip is the most exact. The truth lies
//! within half of that round trip, whatever the network did.

use loadline_base::clock::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One question and its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    /// When the question left, on this host's clock.
    pub(crate) sent: Nanos,
    /// When the controller had it, on the controller's clock.
    pub(crate) at: Nanos,
    /// When the answer was here, on this host's clock.
    pub(crate) received: Nanos,
}

/// The controller's clock, seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClockOffset {
    /// Controller's clock − this host's clock.
    offset_ns: i128,
    /// The truth is at most so far from the estimate.
    pub(crate) error: Nanos,
}

/// A clock as it travels: how far a system's monotonic clock lies from the controller's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KnownClock {
    /// The start of the system whose clock it is (`boot_id` of Linux, and its time namespace): processes with the same have one clock.
    /// Empty if the kernel does not say.
    pub system: String,
    /// Controller's clock − the system's clock, nanoseconds.
    pub offset_ns: i64,
    /// The truth is at most so far from the offset, nanoseconds.
    pub error_ns: u64,
}

impl KnownClock {
    /// Whether both can be true of one clock.
    pub(crate) fn agrees_with(&self, other: &KnownClock) -> bool {
        let apart = self.offset_ns.abs_diff(other.offset_ns);
        // An offset within its error is taken for none, so that it is off by as much again.
        self.system == other.system && apart <= 2 * self.error_ns.saturating_add(other.error_ns)
    }
}

/// What identifies the clock that this process reads; empty if the kernel does not say.
pub(crate) fn own_system() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    match boot.trim() {
        "" => String::new(),
        boot => format!("{boot} {}", namespace.display()),
    }
}

/// The best estimate that these exchanges allow. `None` without one that makes sense.
///
/// Where no offset at all would explain them too, there is none: then both are on one host, where the clock is the
/// same for all processes, and the estimate would only add noise.
pub(crate) fn estimate(exchanges: &[Exchange]) -> Option<ClockOffset> {
    let best = exchanges.iter().filter(|e| e.received >= e.sent).min_by_key(|e| e.received.0 - e.sent.0)?;
    let (sent, received) = (i128::from(best.sent.0), i128::from(best.received.0));
    let offset_ns = i128::from(best.at.0) - (sent + received) / 2;
    let error = Nanos((best.received.0 - best.sent.0).div_ceil(2));
    let same_clock = offset_ns.unsigned_abs() <= u128::from(error.0);
    Some(ClockOffset { offset_ns: if same_clock { 0 } else { offset_ns }, error })
}

impl ClockOffset {
    /// As it travels; `None` if it is too far to be told.
    pub(crate) fn known(self) -> Option<KnownClock> {
        let offset_ns = i64::try_from(self.offset_ns).ok()?;
        Some(KnownClock { system: own_system(), offset_ns, error_ns: self.error.0 })
    }

    /// As it was told.
    pub(crate) fn told(known: &KnownClock) -> ClockOffset {
        ClockOffset { offset_ns: known.offset_ns.into(), error: Nanos(known.error_ns) }
    }

    /// An instant of the controller, on this host's clock. `None` if it lies before this host started.
    pub(crate) fn to_local(self, controller: Nanos) -> Option<Nanos> {
        u64::try_from(i128::from(controller.0) - self.offset_ns).ok().map(Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exchange(sent: u64, there_ns: u64, back_ns: u64, offset: i64) -> Exchange {
        let at = (sent + there_ns).checked_add_signed(offset).unwrap();
        Exchange { sent: Nanos(sent), at: Nanos(at), received: Nanos(sent + there_ns + back_ns) }
    }

    #[test]
    fn the_exchange_with_the_shortest_round_trip_wins() {
        let offset = 5_000_000_000;
        let exchanges = [
            exchange(1_000, 9_000_000, 100, offset),
            exchange(20_000_000, 1_000, 1_000, offset),
            exchange(40_000_000, 50, 8_000_000, offset),
        ];
        let estimated = estimate(&exchanges).unwrap();
        assert_eq!(estimated.to_local(Nanos(6_000_000_000)), Some(Nanos(1_000_000_000)));
        assert_eq!(estimated.error, Nanos(1_000));
    }

    #[test]
    fn on_one_host_there_is_no_offset_however_slow_the_exchange_was() {
        let estimated = estimate(&[exchange(1_000, 3_000_000, 10, 0)]).unwrap();
        assert_eq!(estimated.to_local(Nanos(77)), Some(Nanos(77)));
    }

    #[test]
    fn without_a_sensible_exchange_there_is_no_estimate() {
        assert_eq!(estimate(&[]), None);
        let backwards = Exchange { sent: Nanos(10), at: Nanos(5), received: Nanos(9) };
        assert_eq!(estimate(&[backwards]), None);
    }

    #[test]
    fn an_instant_before_this_host_started_is_none_of_its_instants() {
        let younger = estimate(&[exchange(1_000, 10, 10, 1_000_000)]).unwrap();
        assert_eq!(younger.to_local(Nanos(5)), None);
    }

    proptest! {
        #[test]
        fn the_truth_lies_within_the_stated_error(
            offset in -1_000_000_000_000i64..1_000_000_000_000,
            trips in prop::collection::vec((1u64..10_000_000, 1u64..10_000_000), 1..10),
        ) {
            let exchanges: Vec<Exchange> =
                trips.iter().map(|(there, back)| exchange(2_000_000_000_000, *there, *back, offset)).collect();
            let estimated = estimate(&exchanges).unwrap();
            let wrong = (estimated.offset_ns - i128::from(offset)).unsigned_abs();
            // Two errors, where an offset within the error was taken for none.
            let bound = if estimated.offset_ns == 0 { 2 * estimated.error.0 } else { estimated.error.0 };
            prop_assert!(wrong <= u128::from(bound) + 1);
        }

        #[test]
        fn no_times_panic_it(sent: u64, at: u64, received: u64, instant: u64) {
            let exchange = Exchange { sent: Nanos(sent), at: Nanos(at), received: Nanos(received) };
            if let Some(offset) = estimate(&[exchange]) {
                let _ = offset.to_local(Nanos(instant));
            }
        }
    }
}
