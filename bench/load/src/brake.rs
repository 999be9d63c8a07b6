//! Limits that end a load before it hurts: the brake for production storage.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use loadline_base::units::TimeSpan;
use loadline_measure::interval::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// One limit. It is looked at each second, on that second alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["p99>50ms", "max>2s", "errors>0"]))]
pub enum StopIf {
    /// More errors than this, since the load began.
    Errors(u64),
    /// A percentile (in percent; 100 is the maximum) of a second's response times above this. An I/O that has
    /// not come back for as long counts too.
    Latency(f64, TimeSpan),
}

const EXPECTED: &str = "a limit: write p99>50ms, p99.9>1s, max>2s or errors>0";

impl FromStr for StopIf {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Self, LoadError> {
        let error = || LoadError::usage(format!("\"{text}\" is not {EXPECTED}"));
        let (what, limit) = text.split_once('>').ok_or_else(error)?;
        let (what, limit) = (what.trim(), limit.trim());
        if what == "errors" {
            return limit.parse().map(StopIf::Errors).map_err(|_| error());
        }
        let percent = match what.strip_prefix('p') {
            Some(number) => number.parse::<f64>().map_err(|_| error())?,
            None if what == "max" => 100.0,
            None => return Err(error()),
        };
        if !(0.0..=100.0).contains(&percent) {
            return Err(error());
        }
        limit.parse().map(|limit| StopIf::Latency(percent, limit)).map_err(|_| error())
    }
}

impl fmt::Display for StopIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopIf::Errors(n) => write!(f, "errors>{n}"),
            StopIf::Latency(100.0, limit) => write!(f, "max>{limit}"),
            StopIf::Latency(percent, limit) => write!(f, "p{percent}>{limit}"),
        }
    }
}

impl TryFrom<String> for StopIf {
    type Error = LoadError;

    fn try_from(text: String) -> Result<Self, LoadError> {
        text.parse()
    }
}

impl From<StopIf> for String {
    fn from(limit: StopIf) -> String {
        limit.to_string()
    }
}

/// Watches the limits while a load runs. The threads tell of I/Os that do not come back.
pub(crate) struct Watch {
    limits: Vec<StopIf>,
    /// How long the oldest I/O in flight had been out at the end of the last second, nanoseconds.
    longest_out: AtomicU64,
    errors: AtomicU64,
    tripped: AtomicBool,
}

impl Watch {
    pub(crate) fn new(limits: &[StopIf]) -> Watch {
        Watch {
            limits: limits.to_vec(),
            longest_out: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            tripped: AtomicBool::new(false),
        }
    }

    pub(crate) fn wanted(&self) -> bool {
        !self.limits.is_empty()
    }

    /// At the end of a second, a thread has an I/O that has been out for so long.
    pub(crate) fn still_out(&self, age: Nanos) {
        self.longest_out.fetch_max(age.0, Ordering::Relaxed);
    }

    /// Whether a limit was passed: then what is in flight is counted with its age, not dropped.
    pub(crate) fn tripped(&self) -> bool {
        self.tripped.load(Ordering::Relaxed)
    }

    /// Which limit a second passed, in words.
    pub(crate) fn judge(&self, second: &[Interval]) -> Option<String> {
        let why = self.passed(second);
        if why.is_some() {
            self.tripped.store(true, Ordering::Relaxed);
        }
        why
    }

    fn passed(&self, second: &[Interval]) -> Option<String> {
        if !self.wanted() {
            return None;
        }
        let age = Nanos(self.longest_out.swap(0, Ordering::Relaxed));
        let mut all = LatencyHistogram::new();
        let mut errors = 0;
        for interval in second {
            all.merge(&interval.read.response);
            all.merge(&interval.write.response);
            errors += interval.read.errors + interval.write.errors;
        }
        let errors = self.errors.fetch_add(errors, Ordering::Relaxed) + errors;
        self.limits.iter().find_map(|limit| match *limit {
            StopIf::Errors(most) => (errors > most).then(|| format!("{limit}: there were {errors} errors")),
            StopIf::Latency(percent, most) => {
                let most = Nanos::from(most.0);
                if age > most {
                    return Some(format!("{limit}: an I/O has not come back for {:.1} s", age.as_secs()));
                }
                let found = all.quantile(percent / 100.0)?;
                (found > most).then(|| format!("{limit}: it was {:.1} ms in one second", found.as_millis()))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_measure::interval::Phase;

    #[test]
    fn limits_are_read_and_printed() {
        for text in ["p99>50ms", "p99.9>1s", "max>2s", "errors>0"] {
            assert_eq!(text.parse::<StopIf>().unwrap().to_string(), text);
        }
        for text in ["", "p99", "p101>1s", "p99>fast", "errors>-1", "mean>1s"] {
            assert!(text.parse::<StopIf>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_slow_second_an_error_and_a_hung_io_are_seen() {
        let watch = |limit: &str| Watch::new(&[limit.parse().unwrap()]);
        let mut second = Interval::new(0, Phase::Measure, 0);
        for _ in 0..100 {
            second.read.response.record(Nanos(60 * Nanos::MILLISECOND.0));
        }
        assert!(watch("p99>50ms").judge(std::slice::from_ref(&second)).is_some());
        assert!(watch("p99>70ms").judge(std::slice::from_ref(&second)).is_none());
        assert!(watch("errors>0").judge(std::slice::from_ref(&second)).is_none());
        second.write.errors = 1;
        assert!(watch("errors>0").judge(&[second]).is_some());
        let hung = watch("max>2s");
        hung.still_out(Nanos(3 * Nanos::SECOND.0));
        assert!(!hung.tripped());
        assert!(hung.judge(&[]).unwrap().contains("not come back"));
        assert!(hung.tripped() && hung.judge(&[]).is_none(), "each second is judged alone");
    }
}
