//! A stated limit: `p99 <= 20ms`. A run that misses one exits with 99.

use std::fmt;
use std::str::FromStr;

use loadline_base::units::{Rate, TimeSpan};
use loadline_measure::summary::PERCENTILES;
use loadline_measure::window::Figures;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a limit is set on: a figure of the whole fleet in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Metric {
    Iops,
    Throughput,
    Mean,
    Percentile(&'static str),
    Max,
    Stall,
    Errors,
}

/// A limit on a figure of every step, written `p99 <= 20ms`, `iops >= 10000`, `throughput >= 100MB/s`,
/// `stall <= 500ms` or `errors <= 0`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["p99 <= 20ms", "iops >= 10000", "errors <= 0"]))]
pub struct Limit {
    metric: Metric,
    at_most: bool,
    /// In the metric's unit: I/Os a second, bytes a second, microseconds, a count.
    bound: f64,
    text: String,
}

/// Text that is not a limit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{text}\" is not a limit: {problem}")]
pub struct LimitError {
    text: String,
    problem: String,
}

/// How a step did against a limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// The limit, as written in the study.
    pub limit: String,
    /// Whether it was held. A figure that too few I/Os carry is not known to hold, so it is missed.
    pub held: bool,
    /// What was found, in words.
    pub found: String,
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        let fault = |problem: String| LimitError { text: text.to_string(), problem };
        let (name, at_most, bound) = if let Some((name, bound)) = text.split_once("<=") {
            (name.trim(), true, bound.trim())
        } else if let Some((name, bound)) = text.split_once(">=") {
            (name.trim(), false, bound.trim())
        } else {
            return Err(fault("write a figure, <= or >=, and a bound: p99 <= 20ms or iops >= 10000".into()));
        };
        let percentile = PERCENTILES.iter().map(|(known, _)| *known).find(|known| *known == name);
        let metric = match name {
            "iops" => Metric::Iops,
            "throughput" => Metric::Throughput,
            "mean" => Metric::Mean,
            "max" => Metric::Max,
            "stall" => Metric::Stall,
            "errors" => Metric::Errors,
            _ => Metric::Percentile(percentile.ok_or_else(|| {
                fault(format!(
                    "there is no figure \"{name}\"; there are iops, throughput, mean, {}, max, stall and errors",
                    PERCENTILES.map(|(known, _)| known).join(", ")
                ))
            })?),
        };
        let number = || bound.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        let bound = match metric {
            Metric::Iops | Metric::Errors => {
                number().ok_or_else(|| fault(format!("\"{bound}\" is not a number")))?
            }
            Metric::Throughput => match bound.parse() {
                Ok(Rate::BytesPerSecond(n)) => n,
                _ => return Err(fault(format!("\"{bound}\" is not a throughput: write 100MB/s"))),
            },
            _ => {
                let span: TimeSpan = bound.parse().map_err(|e| fault(format!("{e}")))?;
                span.0.as_nanos() as f64 / 1e3
            }
        };
        Ok(Limit { metric, at_most, bound, text: text.trim().to_string() })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Limit {
    type Error = LimitError;

    fn try_from(text: String) -> Result<Limit, LimitError> {
        text.parse()
    }
}

impl From<Limit> for String {
    fn from(limit: Limit) -> String {
        limit.text
    }
}

impl Limit {
    /// How these figures do against it.
    pub fn judge(&self, figures: &Figures) -> Verdict {
        let total = &figures.total;
        let value = match self.metric {
            Metric::Iops => Some(total.iops),
            Metric::Throughput => Some(total.bytes_per_s),
            Metric::Mean => total.latency_us.mean,
            Metric::Percentile(name) => total.latency_us.percentile(name),
            Metric::Max => total.latency_us.max,
            Metric::Stall => Some(figures.longest_stall_ms as f64 * 1e3),
            Metric::Errors => Some(figures.errors as f64),
        };
        let held = value.is_some_and(|v| if self.at_most { v <= self.bound } else { v >= self.bound });
        let found = match (self.metric, value) {
            (_, None) => "too few I/Os completed to tell".to_string(),
            (Metric::Iops | Metric::Errors, Some(n)) => format!("{n:.0}"),
            (Metric::Throughput, Some(n)) => format!("{:.1} MB/s", n / 1e6),
            (_, Some(us)) if us < 1e3 => format!("{us:.1} us"),
            (_, Some(us)) => format!("{:.2} ms", us / 1e3),
        };
        Verdict { limit: self.text.clone(), held, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_measure::summary::LatencySummary;

    fn figures() -> Figures {
        let mut figures = Figures { errors: 2, longest_stall_ms: 12, ..Figures::default() };
        figures.total.iops = 5000.0;
        figures.total.bytes_per_s = 2e8;
        figures.total.latency_us = LatencySummary { p99: Some(1_500.0), ..LatencySummary::default() };
        figures
    }

    #[test]
    fn a_limit_is_held_or_missed() {
        for (text, held) in [
            ("p99 <= 2ms", true),
            ("p99 <= 1ms", false),
            ("iops >= 5000", true),
            ("iops>=5001", false),
            ("throughput >= 200MB/s", true),
            ("stall <= 10ms", false),
            ("errors <= 2", true),
        ] {
            assert_eq!(text.parse::<Limit>().unwrap().judge(&figures()).held, held, "{text}");
        }
    }

    #[test]
    fn a_percentile_that_too_few_ios_carry_is_not_known_to_hold() {
        let verdict = "p99.9 <= 1h".parse::<Limit>().unwrap().judge(&figures());
        assert!(!verdict.held);
        assert_eq!(verdict.found, "too few I/Os completed to tell");
    }

    #[test]
    fn what_is_no_limit_is_refused_and_says_what_is() {
        for text in [
            "",
            "p99 20ms",
            "p98 <= 20ms",
            "iops >= many",
            "p99 <= 20",
            "throughput >= 5iops",
            "errors <= -1",
        ] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
        let message = "p98 <= 20ms".parse::<Limit>().unwrap_err().to_string();
        assert!(message.contains("p99.9") && message.contains("\"p98\""), "{message}");
    }
}
