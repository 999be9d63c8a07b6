//! Limits that end a load before it hurts, for use on production storage.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use loadline_base::clock::Nanos;
use loadline_base::figures::counted;
use loadline_base::histogram::LatencyHistogram;
use loadline_base::units::TimeSpan;
use loadline_measure::interval::Interval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::LoadError;

/// One limit. It is checked each second, on that second alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["p99>50ms", "max>2s", "errors>0"]))]
pub enum StopIf {
    /// More errors than this, since the load began.
    Errors(u64),
    /// A percentile (in percent; 100 is the maximum) of a second's response times above this. An I/O that is out for longer than that
    /// at the end of the second is one of them, with its age.
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

/// Watches the limits while a load runs. The threads report I/Os that do not return.
pub(crate) struct Watch {
    limits: Vec<StopIf>,
    /// How long I/Os in flight had been out at the end of the last second: of those that are out for longer than the lowest limit.
    overdue: Mutex<Vec<Nanos>>,
    /// The lowest limit of a response time.
    lowest: Nanos,
    errors: AtomicU64,
    tripped: AtomicBool,
}

impl Watch {
    pub(crate) fn new(limits: &[StopIf]) -> Watch {
        let latency = |limit: &StopIf| match limit {
            StopIf::Latency(_, most) => Some(Nanos::from(most.0)),
            StopIf::Errors(_) => None,
        };
        Watch {
            limits: limits.to_vec(),
            overdue: Mutex::default(),
            lowest: limits.iter().filter_map(latency).min().unwrap_or(Nanos(u64::MAX)),
            errors: AtomicU64::new(0),
            tripped: AtomicBool::new(false),
        }
    }

    pub(crate) fn wanted(&self) -> bool {
        !self.limits.is_empty()
    }

    /// At the end of a second, a thread has I/Os that have been out for so long.
    pub(crate) fn still_out(&self, ages: impl Iterator<Item = Nanos>) {
        let mut overdue = ages.filter(|age| *age > self.lowest).peekable();
        if overdue.peek().is_some() {
            self.overdue.lock().expect("no holder panics").extend(overdue);
        }
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
        let overdue = std::mem::take(&mut *self.overdue.lock().expect("no holder panics"));
        let mut all = LatencyHistogram::new();
        let mut errors = 0;
        for interval in second {
            all.merge(&interval.read.response);
            all.merge(&interval.write.response);
            errors += interval.read.errors + interval.write.errors;
        }
        let errors = self.errors.fetch_add(errors, Ordering::Relaxed) + errors;
        self.limits.iter().find_map(|limit| match *limit {
            StopIf::Errors(most) => (errors > most).then(|| {
                let were = if errors == 1 { "was" } else { "were" };
                format!("{limit}: there {were} {}", counted(errors, "error"))
            }),
            StopIf::Latency(percent, most) => {
                let most = Nanos::from(most.0);
                let mut second = all.clone();
                // What is out for less may still be in time.
                let late = overdue.iter().filter(|age| **age > most);
                late.clone().for_each(|age| second.record(*age));
                let found = second.quantile(percent / 100.0).filter(|found| *found > most)?;
                let mut why = format!("{limit}: it was {:.1} ms in one second", found.as_millis());
                if let Some(oldest) = late.clone().max() {
                    let (count, age) = (late.count(), oldest.as_secs());
                    why +=
                        &format!("; at the end of this second {count} late I/Os had not completed, the oldest after {age:.1} s");
                }
                Some(why)
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
        hung.still_out([Nanos(3 * Nanos::SECOND.0)].into_iter());
        assert!(!hung.tripped());
        assert!(
            hung.judge(&[])
                .unwrap()
                .contains("at the end of this second 1 late I/Os had not completed, the oldest after 3.0 s")
        );
        assert!(hung.tripped() && hung.judge(&[]).is_none(), "each second is judged alone");
    }

    #[test]
    fn an_io_that_is_overdue_is_one_sample_of_its_second() {
        let mut second = Interval::new(0, Phase::Measure, 0);
        for _ in 0..995 {
            second.read.response.record(Nanos(Nanos::MILLISECOND.0));
        }
        let slow = |count: usize| std::iter::repeat_n(Nanos(200 * Nanos::MILLISECOND.0), count);
        let judged = |limit: &str, count: usize| {
            let watch = Watch::new(&[limit.parse().unwrap()]);
            watch.still_out(slow(count));
            watch.judge(std::slice::from_ref(&second)).is_some()
        };
        assert!(!judged("p99>50ms", 5) && judged("p99.9>50ms", 5) && judged("max>50ms", 1));
        assert!(judged("p99>50ms", 20) && !judged("p99>300ms", 20));
        // What is out for less than the limit says nothing.
        assert!(!judged("max>300ms", 1));
    }
}
