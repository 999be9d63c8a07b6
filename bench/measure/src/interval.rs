//! What one disk of one worker did in one second, and how such records add up.
//!
//! Two rules make the figures of a window honest. *Throughput* counts the I/Os that completed inside the window.
//! *Latency* is that of the I/Os **intended** inside it, whenever they completed: an I/O that a stall pushed past
//! the window's end is still one of its I/Os. So a record says both the second in which its I/Os completed and
//! the phase in which they were intended, and everything in it is a sum: records of the same second add up in any
//! order.

use loadline_base::clock::Nanos;
use loadline_base::histogram::{EncodedHistogram, HistogramError, LatencyHistogram};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stall::CompletionMap;
use crate::tenths::TenthCounts;

/// More I/Os of one kind on one disk in one second are none that were done.
const MOST_IOS: u64 = 10_000_000_000;
/// The bytes of the largest I/O.
const LARGEST_IO: u64 = 64 << 20;
/// More bytes of one kind on one disk in one second are none that were moved.
const MOST_BYTES: u64 = 1 << 50;
/// Seconds further than this from the beginning of the window, either way, are in no measurement.
const FARTHEST_SECOND: i64 = 10_000_000;

/// The part of a measurement in which an I/O was intended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Load is on, and not measured yet.
    WarmUp,
    /// The measured window.
    Measure,
    /// Load stays on, so that workers which end a little later are still measured under the whole load.
    CoolDown,
}

/// The I/Os of one kind: reads, or writes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Operations {
    /// Completed − intended, of I/Os that succeeded, and the age of those in `censored`.
    pub response: LatencyHistogram,
    /// I/Os in `response` that had not completed when waiting for them ended: their age is a lower bound.
    pub censored: u64,
    /// Bytes moved by the I/Os that succeeded.
    pub bytes: u64,
    /// I/Os that failed. They are in no histogram.
    pub errors: u64,
}

impl Operations {
    /// I/Os that completed with success.
    pub fn completed(&self) -> u64 {
        self.response.count() - self.censored
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.response.is_empty() && self.errors == 0
    }

    /// Adds what another record counted.
    pub fn merge(&mut self, other: &Operations) {
        self.response.merge(&other.response);
        // Only figures that a worker made up come near the end of the numbers; they must not end the controller.
        self.censored = self.censored.saturating_add(other.censored);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.errors = self.errors.saturating_add(other.errors);
    }

    /// Back to nothing, keeping the memory.
    pub fn clear(&mut self) {
        self.response.clear();
        (self.censored, self.bytes, self.errors) = (0, 0, 0);
    }
}

/// What one disk (by its index in the worker) did in one second.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// The second in which the I/Os completed, counted from the beginning of the measured window: the first
    /// measured second is 0, warm-up is negative, seconds past the window hold what was waited for.
    pub second: i64,
    /// The phase in which the I/Os were intended.
    pub phase: Phase,
    /// The disk's index in its worker.
    pub disk: u32,
    /// The reads.
    pub read: Operations,
    /// The writes.
    pub write: Operations,
    /// Completed − issued, reads and writes; only of a rate-driven load (in a closed loop it is the response).
    pub service: LatencyHistogram,
    /// Issued − intended (or − the moment a slot became free, if that was later): the generator's own delay.
    /// Only of a rate-driven load.
    pub lateness: LatencyHistogram,
    /// The milliseconds of this second in which I/Os completed.
    pub completions: CompletionMap,
    /// How many I/Os completed with success in each tenth of this second.
    pub tenths: TenthCounts,
    /// The age of the oldest I/O that was outstanding when the second ended, since it was intended; zero if none was. Records that are
    /// merged keep the greatest.
    pub oldest: Nanos,
}

impl Interval {
    /// A record of nothing yet.
    pub fn new(second: i64, phase: Phase, disk: u32) -> Interval {
        Interval {
            second,
            phase,
            disk,
            read: Operations::default(),
            write: Operations::default(),
            service: LatencyHistogram::new(),
            lateness: LatencyHistogram::new(),
            completions: CompletionMap::default(),
            tenths: TenthCounts::default(),
            oldest: Nanos(0),
        }
    }

    /// Whether nothing is recorded. A second in which I/Os were issued and none completed is not nothing: their
    /// lateness is in it, and the age of the oldest.
    pub fn is_empty(&self) -> bool {
        self.read.is_empty()
            && self.write.is_empty()
            && self.service.is_empty()
            && self.lateness.is_empty()
            && self.oldest == Nanos(0)
    }

    /// Adds what another record of the same second counted (of another thread, disk, worker or phase).
    pub fn merge(&mut self, other: &Interval) {
        assert_eq!(self.second, other.second, "records of two seconds are not one second");
        self.read.merge(&other.read);
        self.write.merge(&other.write);
        self.service.merge(&other.service);
        self.lateness.merge(&other.lateness);
        self.completions.merge(&other.completions);
        self.tenths.merge(&other.tenths);
        self.oldest = self.oldest.max(other.oldest);
    }

    /// Makes it a record of nothing for another second, keeping the memory.
    pub fn reset(&mut self, second: i64, phase: Phase) {
        (self.second, self.phase) = (second, phase);
        self.read.clear();
        self.write.clear();
        self.service.clear();
        self.lateness.clear();
        self.completions = CompletionMap::default();
        self.tenths = TenthCounts::default();
        self.oldest = Nanos(0);
    }

    /// The form that is sent and stored.
    pub fn encode(&self) -> EncodedInterval {
        let histogram = |h: &LatencyHistogram| (!h.is_empty()).then(|| h.encode());
        let operations = |o: &Operations| {
            (!o.is_empty()).then(|| EncodedOperations {
                response: histogram(&o.response),
                censored: o.censored,
                bytes: o.bytes,
                errors: o.errors,
            })
        };
        EncodedInterval {
            second: self.second,
            phase: self.phase,
            disk: self.disk,
            read: operations(&self.read),
            write: operations(&self.write),
            service: histogram(&self.service),
            lateness: histogram(&self.lateness),
            completions: self.completions.encode(),
            tenths: self.tenths.encode(),
            oldest_ns: self.oldest.0,
        }
    }
}

/// [`Operations`] as they are sent and stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EncodedOperations {
    /// Latencies, completed − intended, of I/Os that succeeded, and the ages of those in `censored`; absent if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<EncodedHistogram>,
    /// I/Os in `response` that had not completed when waiting for them ended: their age is a lower bound.
    pub censored: u64,
    /// Bytes moved by the I/Os that succeeded.
    pub bytes: u64,
    /// I/Os that failed. They are in no histogram.
    pub errors: u64,
}

/// An [`Interval`] as it is sent and stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EncodedInterval {
    /// The second in which the I/Os completed, counted from the beginning of the measured window; negative in warm-up.
    pub second: i64,
    /// The phase in which the I/Os were intended.
    pub phase: Phase,
    /// The disk's index in its worker.
    pub disk: u32,
    /// The reads; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<EncodedOperations>,
    /// The writes; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<EncodedOperations>,
    /// Completed − issued, reads and writes; only of a rate-driven load; absent if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<EncodedHistogram>,
    /// Issued − intended: the generator's own delay. Only of a rate-driven load; absent if empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<EncodedHistogram>,
    /// The milliseconds with completions: 1000 bits, least significant first, in base64.
    pub completions: String,
    /// How many I/Os completed with success in each tenth of this second, without the zeros at the end; absent if none did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tenths: Vec<u32>,
    /// The age of the oldest I/O that was outstanding when the second ended, nanoseconds; absent if none was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub oldest_ns: u64,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl EncodedInterval {
    /// The record, checked: it may come from a worker that makes it up, and sums of such records must stay sums.
    pub fn decode(&self) -> Result<Interval, HistogramError> {
        if !(-FARTHEST_SECOND..=FARTHEST_SECOND).contains(&self.second) {
            return Err(HistogramError::new("its second is in no measurement"));
        }
        let histogram = |h: &Option<EncodedHistogram>| match h {
            Some(h) if h.count > MOST_IOS => {
                Err(HistogramError::new("no disk does so many I/Os in a second"))
            }
            Some(h) => h.decode(),
            None => Ok(LatencyHistogram::new()),
        };
        let operations = |o: &Option<EncodedOperations>| match o {
            None => Ok(Operations::default()),
            Some(o) => {
                let response = histogram(&o.response)?;
                if o.censored > response.count() {
                    return Err(HistogramError::new("more I/Os are censored than counted"));
                }
                if o.bytes > response.count().saturating_mul(LARGEST_IO).min(MOST_BYTES) {
                    return Err(HistogramError::new("its I/Os cannot have moved so many bytes"));
                }
                if o.errors > MOST_IOS {
                    return Err(HistogramError::new("no disk fails so many I/Os in a second"));
                }
                Ok(Operations { response, censored: o.censored, bytes: o.bytes, errors: o.errors })
            }
        };
        Ok(Interval {
            second: self.second,
            phase: self.phase,
            disk: self.disk,
            read: operations(&self.read)?,
            write: operations(&self.write)?,
            service: histogram(&self.service)?,
            lateness: histogram(&self.lateness)?,
            completions: CompletionMap::decode(&self.completions)
                .ok_or_else(|| HistogramError::new("its map of completions is broken"))?,
            tenths: TenthCounts::decode(&self.tenths)
                .ok_or_else(|| HistogramError::new("no disk does so many I/Os in a tenth of a second"))?,
            oldest: Nanos(self.oldest_ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_comes_back_from_the_wire_as_it_was() {
        let mut interval = Interval::new(-3, Phase::WarmUp, 2);
        interval.read.response.record(Nanos(12_345));
        interval.read.bytes = 4096;
        interval.write.errors = 2;
        interval.lateness.record(Nanos(80));
        interval.completions.set(Nanos(999_999_999));
        interval.tenths.add(Nanos(999_999_999));
        interval.oldest = Nanos(7_000_000_001);
        let text = serde_json::to_string(&interval.encode()).unwrap();
        let encoded: EncodedInterval = serde_json::from_str(&text).unwrap();
        assert_eq!(encoded.decode().unwrap(), interval);
    }

    #[test]
    fn a_second_in_which_ios_were_only_issued_is_not_empty() {
        let mut interval = Interval::new(0, Phase::Measure, 0);
        assert!(interval.is_empty());
        interval.lateness.record(Nanos(80));
        assert!(!interval.is_empty());
        interval.reset(1, Phase::Measure);
        interval.service.record(Nanos(80));
        assert!(!interval.is_empty());
        interval.reset(2, Phase::Measure);
        interval.oldest = Nanos(1);
        assert!(!interval.is_empty());
        interval.reset(3, Phase::Measure);
        assert!(interval.is_empty());
    }

    #[test]
    fn figures_that_cannot_have_been_measured_are_refused_and_never_overflow() {
        let mut interval = Interval::new(0, Phase::Measure, 0);
        interval.read.response.record(Nanos(1_000));
        interval.read.bytes = LARGEST_IO;
        interval.read.errors = MOST_IOS;
        let good = interval.encode();
        assert!(good.decode().is_ok());
        let made_up: [fn(&mut EncodedInterval); 8] = [
            |i| i.second = i64::MAX,
            |i| i.tenths = vec![u32::MAX],
            |i| i.second = -FARTHEST_SECOND - 1,
            |i| i.read.as_mut().unwrap().bytes += 1,
            |i| i.read.as_mut().unwrap().bytes = u64::MAX,
            |i| i.read.as_mut().unwrap().errors = u64::MAX,
            |i| i.write = Some(EncodedOperations { response: None, censored: 0, bytes: 1, errors: 0 }),
            |i| i.read.as_mut().unwrap().response.as_mut().unwrap().count = u64::MAX,
        ];
        for spoil in made_up {
            let mut bad = good.clone();
            spoil(&mut bad);
            assert!(bad.decode().is_err(), "{bad:?}");
        }
        let mut most = Operations { bytes: u64::MAX, errors: u64::MAX, ..Operations::default() };
        most.merge(&interval.read);
        assert_eq!((most.bytes, most.errors), (u64::MAX, u64::MAX));
    }

    #[test]
    fn more_censored_than_counted_is_refused() {
        let mut interval = Interval::new(0, Phase::Measure, 0);
        interval.read.response.record(Nanos(1_000));
        let mut encoded = interval.encode();
        encoded.read.as_mut().unwrap().censored = 2;
        assert!(encoded.decode().is_err());
    }
}
