//! A model of a storage device: what a drive's data sheet says, as figures by which a simulated device behaves.
//!
//! A device does one thing at a time: each I/O occupies it for as long as its speed says, and completes its latency later. So reads
//! and writes share the device. Data sheets that state a mix agree: the P3700 has 460,000 reads or 175,000 writes a second, which
//! are 309,000 of seven reads to three writes by this rule, and 265,000 as Intel states. If reads and writes did not share
//! it, the figure would be 583,000.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::units::{ByteSize, TimeSpan};

/// The speed of a model must be at least this many I/Os a second.
const LEAST_IOPS: u64 = 10;
/// The same for bytes a second.
const LEAST_BYTES: u64 = 1 << 20;
/// The longest latency, and the longest flush.
const LONGEST: Duration = Duration::from_secs(1);

/// A device as its figures describe it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceModel {
    /// What it is a model of.
    pub name: String,
    /// Where its figures are from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// How fast it reads.
    pub read: Speed,
    /// How fast it writes, for any length of time.
    pub write: Speed,
    /// How long a flush takes, beside what the cache has to write first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub flush: TimeSpan,
    /// A cache of the device, in front of its writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<WriteCache>,
}

/// How fast a device does one kind of I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Speed {
    /// I/Os of 4 KiB a second, with many at a time: at least 10.
    pub iops: u64,
    /// Bytes a second, in large I/Os: at least 1 MiB.
    pub per_second: ByteSize,
    /// How long an I/O takes that finds the device idle, of half of them at most: 1 s at the longest.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency: TimeSpan,
    /// The same of 99 % of them. Absent: all take equally long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<TimeSpan>,
}

/// A cache of a device: a write is done when it is in there, and what is in there is written when the device has nothing else to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteCache {
    /// Bytes that it takes.
    pub size: ByteSize,
    /// How long a write takes to get in there.
    pub latency: TimeSpan,
    /// A power failure loses what is in there, so a flush waits until the cache is empty.
    #[serde(default)]
    pub volatile: bool,
}

fn is_zero(span: &TimeSpan) -> bool {
    *span == TimeSpan::ZERO
}

/// Why figures are no model.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {why}")]
pub struct ModelError {
    /// The field, as `read.iops`.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub why: String,
}

impl DeviceModel {
    /// Whether a device can behave so. The error names the first field that is wrong.
    pub fn check(&self) -> Result<(), ModelError> {
        let wrong = |field: String, why: String| Err(ModelError { field, why });
        if self.name.trim().is_empty() {
            return wrong("name".into(), "it is empty: say what it is a model of".into());
        }
        for (kind, speed) in [("read", self.read), ("write", self.write)] {
            if speed.iops < LEAST_IOPS {
                return wrong(
                    format!("{kind}.iops"),
                    format!("{} is too few: give at least {LEAST_IOPS}", speed.iops),
                );
            }
            if speed.per_second.0 < LEAST_BYTES {
                return wrong(
                    format!("{kind}.per_second"),
                    format!("{} is too little: give at least 1MiB", speed.per_second),
                );
            }
            if speed.p99.is_some_and(|p99| p99 < speed.latency) {
                return wrong(
                    format!("{kind}.p99"),
                    format!("it is shorter than the latency, which half of them take: {}", speed.latency),
                );
            }
        }
        let spans = [
            ("read.latency", Some(self.read.latency)),
            ("read.p99", self.read.p99),
            ("write.latency", Some(self.write.latency)),
            ("write.p99", self.write.p99),
            ("flush", Some(self.flush)),
            ("cache.latency", self.cache.map(|cache| cache.latency)),
        ];
        for (field, span) in spans {
            if let Some(span) = span.filter(|span| span.0 > LONGEST) {
                return wrong(field.into(), format!("{span} is too long: give at most 1s"));
            }
        }
        if self.cache.is_some_and(|cache| cache.size.0 == 0) {
            return wrong("cache.size".into(), "a cache of 0 bytes takes nothing: leave it out".into());
        }
        Ok(())
    }
}

impl Speed {
    /// How long so many bytes of one I/O occupy the device.
    pub fn cost(&self, bytes: u64) -> Duration {
        let by_number = 1_000_000_000 / self.iops.max(1);
        let by_bytes = u128::from(bytes) * 1_000_000_000 / u128::from(self.per_second.0.max(1));
        Duration::from_nanos(by_number.max(u64::try_from(by_bytes).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> DeviceModel {
        let speed = |iops, mib: u64| Speed {
            iops,
            per_second: ByteSize(mib << 20),
            latency: TimeSpan(Duration::from_micros(100)),
            p99: None,
        };
        DeviceModel {
            name: "a drive".into(),
            source: String::new(),
            read: speed(100_000, 1000),
            write: speed(50_000, 500),
            flush: TimeSpan::ZERO,
            cache: None,
        }
    }

    #[test]
    fn small_ios_cost_by_their_number_and_large_ones_by_their_bytes() {
        let read = model().read;
        assert_eq!(read.cost(4096), Duration::from_micros(10));
        assert_eq!(read.cost(10 << 20), Duration::from_millis(10));
        assert_eq!(read.cost(0), Duration::from_micros(10));
    }

    #[test]
    fn what_no_device_does_is_refused_by_its_field() {
        assert_eq!(model().check(), Ok(()));
        let refused = |change: fn(&mut DeviceModel)| {
            let mut model = model();
            change(&mut model);
            model.check().unwrap_err().field
        };
        assert_eq!(refused(|model| model.name = " ".into()), "name");
        assert_eq!(refused(|model| model.read.iops = 9), "read.iops");
        assert_eq!(refused(|model| model.write.per_second = ByteSize(1)), "write.per_second");
        assert_eq!(refused(|model| model.read.p99 = Some(TimeSpan(Duration::from_micros(99)))), "read.p99");
        assert_eq!(refused(|model| model.write.latency = TimeSpan::seconds(2)), "write.latency");
        assert_eq!(refused(|model| model.flush = TimeSpan::seconds(2)), "flush");
        let none = WriteCache { size: ByteSize(0), latency: TimeSpan::ZERO, volatile: false };
        let mut empty = model();
        empty.cache = Some(none);
        assert_eq!(empty.check().unwrap_err().field, "cache.size");
    }
}
