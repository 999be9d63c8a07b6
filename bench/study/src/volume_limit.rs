//! A limit of what the clients of each volume do a second, as a study states it.

use std::fmt;
use std::time::Duration;

use loadline_base::figures::thousands;
use loadline_base::units::TimeSpan;
use loadline_target::LimitOfVolume;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

/// A megabyte, as `loadline volume limit --mbps` counts it.
const MB: u64 = 1_000_000;
/// The burst of a limit that names none.
const BURST: Duration = Duration::from_millis(100);
/// The longest burst that a cluster takes.
const LONGEST_BURST: Duration = Duration::from_secs(60);

/// How much the clients of each volume may do a second, all together: `{ iops = 500 }`, `{ mbps = 20 }`, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VolumeLimit {
    /// Requests a second; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub iops: Option<u64>,
    /// Megabytes (1,000,000 bytes) a second of reads and writes together; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub mbps: Option<u64>,
    /// How much of the time before may be caught up; 100ms by default, 1m at the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<TimeSpan>,
}

/// `"none"`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unlimited {
    /// Volumes without a limit.
    None,
}

/// One value of the axis `volume_limit`: a limit of each volume, or `"none"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum LimitValue {
    /// No limit.
    Unlimited(Unlimited),
    /// A limit.
    Limited(VolumeLimit),
}

impl<'de> Deserialize<'de> for LimitValue {
    /// The error names the key that is wrong, where a derived one would say that no variant matches.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = LimitValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a limit such as { iops = 500 } or { mbps = 20 }, or \"none\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LimitValue, E> {
                match text {
                    "none" => Ok(LimitValue::Unlimited(Unlimited::None)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<LimitValue, A::Error> {
                let limit = VolumeLimit::deserialize(de::value::MapAccessDeserializer::new(map))?;
                Ok(LimitValue::Limited(limit))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl LimitValue {
    /// The limit; `None`: no limit.
    pub fn limit(self) -> Option<VolumeLimit> {
        match self {
            LimitValue::Unlimited(_) => None,
            LimitValue::Limited(limit) => Some(limit),
        }
    }
}

impl VolumeLimit {
    /// What is wrong with it, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.iops == Some(0) || self.mbps == Some(0) {
            return Err("a limit of 0 would stop the load for good: give at least 1, or \"none\" as a value of volume_limit".into());
        }
        if self.iops.is_none() && self.mbps.is_none() {
            return Err("it limits nothing: give iops or mbps".into());
        }
        match self.burst {
            Some(burst) if burst.0 > LONGEST_BURST => {
                Err(format!("a burst of {burst} is too long: at most 1m is possible"))
            }
            Some(burst) if burst.0.subsec_nanos() % 1_000_000 != 0 => {
                Err(format!("a burst of {burst}: give whole milliseconds"))
            }
            _ => Ok(()),
        }
    }

    /// The limit as a cluster takes it.
    pub(crate) fn of_volume(&self) -> LimitOfVolume {
        LimitOfVolume {
            iops: self.iops,
            bytes_per_s: self.mbps.map(|mbps| mbps.saturating_mul(MB)),
            burst_ms: self.burst.map(|burst| u64::try_from(burst.0.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// What a label of a load ends with: `500iops-20MBps-burst1s`.
    pub(crate) fn label(&self) -> String {
        let iops = self.iops.map(|iops| format!("{iops}iops"));
        let mbps = self.mbps.map(|mbps| format!("{mbps}MBps"));
        let burst = self.burst.map(|burst| format!("burst{burst}"));
        iops.into_iter().chain(mbps).chain(burst).collect::<Vec<_>>().join("-")
    }

    /// The most I/Os a second of one volume over a window of so many seconds that begins with a whole burst to be caught up, of I/Os
    /// of so many bytes.
    pub fn most_iops(&self, block_size: u64, window_s: f64) -> f64 {
        let burst_s = self.burst.map_or(BURST, |burst| burst.0).as_secs_f64();
        self.sustained_iops(block_size) * (1.0 + burst_s / window_s.max(f64::MIN_POSITIVE))
    }

    /// The most I/Os a second of one volume once the burst is used up, of I/Os of so many bytes.
    pub fn sustained_iops(&self, block_size: u64) -> f64 {
        let by_bytes = self.mbps.map(|mbps| mbps as f64 * MB as f64 / block_size.max(1) as f64);
        self.iops.map(|iops| iops as f64).into_iter().chain(by_bytes).fold(f64::INFINITY, f64::min)
    }
}

impl fmt::Display for VolumeLimit {
    /// `500 requests a second and 20 MB/s, with bursts of 1s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iops = self.iops.map(|iops| match iops {
            1 => "1 request a second".to_owned(),
            _ => format!("{} requests a second", thousands(iops as f64)),
        });
        let mbps = self.mbps.map(|mbps| format!("{} MB/s", thousands(mbps as f64)));
        f.write_str(&iops.into_iter().chain(mbps).collect::<Vec<_>>().join(" and "))?;
        self.burst.map_or(Ok(()), |burst| write!(f, ", with bursts of {burst}"))
    }
}
