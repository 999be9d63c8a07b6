//! A criterion of success, as a sentence: `each node >= 50000 IOPS of 8K 70/30 random under 3 ms at p95`.

use std::fmt;
use std::str::FromStr;

use loadline_base::units::{ByteSize, Rate, TimeSpan};
use loadline_profile::{Pattern, Profile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The scope of the figure that must reach the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Fleet,
    EachNode,
    EachWorker,
}

/// Which loads it is about.
#[derive(Debug, Clone, PartialEq)]
enum Which {
    /// By its label, its family or the name of its table.
    Named(String),
    /// By block size, percent of writes and pattern, as far as they are given.
    Kind { block_size: Option<ByteSize>, write_percent: Option<u8>, random: Option<bool> },
}

/// A criterion of success, written `each node >= 50000 IOPS of 8K 70/30 random under 3 ms at p95`: the scope (`fleet`,
/// `each node` or `each worker`), how much (IOPS, or a throughput such as `2GB/s`), of which load (a profile's name, or
/// words: block size, read/write or `read` or `write`, `random` or `sequential`), and within which latency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String", extend("examples" = ["each node >= 50000 IOPS of 8K 70/30 random under 3 ms at p95"]))]
pub struct Criterion {
    pub(crate) scope: Scope,
    pub(crate) least: Rate,
    which: Which,
    /// The percentile's name, or `mean`, and microseconds.
    pub(crate) within: Option<(String, f64)>,
    pub(crate) text: String,
}

/// Text that is not a criterion.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "\"{text}\" is not a criterion of success: {problem}; write it like \"each node >= 50000 IOPS of 8K 70/30 random \
     under 3 ms at p95\""
)]
pub struct CriterionError {
    text: String,
    problem: String,
}

impl Criterion {
    /// Whether a load is one that it is about; `names` are its label, its family and the like.
    pub fn is_about<S: AsRef<str>>(&self, names: &[S], profile: &Profile) -> bool {
        match &self.which {
            Which::Named(name) => names.iter().any(|known| known.as_ref().eq_ignore_ascii_case(name)),
            Which::Kind { block_size, write_percent, random } => {
                let is_random = matches!(profile.pattern, Pattern::Random | Pattern::Mixed { .. });
                block_size.is_none_or(|size| size == profile.block_size)
                    && write_percent.is_none_or(|percent| percent == profile.write_percent)
                    && random.is_none_or(|random| random == is_random)
            }
        }
    }
}

impl FromStr for Criterion {
    type Err = CriterionError;

    fn from_str(text: &str) -> Result<Criterion, CriterionError> {
        let fault = |problem: String| CriterionError { text: text.trim().to_string(), problem };
        let (scope, rest) = text.split_once(">=").ok_or_else(|| fault("there is no \">=\"".into()))?;
        let scope = match scope.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase().as_str() {
            "fleet" | "cluster" | "the fleet" | "the cluster" => Scope::Fleet,
            "each node" => Scope::EachNode,
            "each worker" => Scope::EachWorker,
            other => return Err(fault(format!("\"{other}\" is not fleet, each node or each worker"))),
        };
        let (least, rest) = rest.split_once(" of ").ok_or_else(|| {
            fault("after the figure comes \"of\" and the load: \"of 8K 70/30 random\"".into())
        })?;
        let least: Rate =
            least.trim().parse().map_err(|_| fault(format!("\"{}\" is not a rate", least.trim())))?;
        let (load, within) = match rest.split_once(" under ") {
            None => (rest, None),
            Some((load, within)) => {
                let (span, name) = within.split_once(" at ").ok_or_else(|| {
                    fault("after the latency comes \"at\" and a percentile: \"at p95\"".into())
                })?;
                let compact: String = span.split_whitespace().collect();
                let span: TimeSpan = compact
                    .parse()
                    .map_err(|_| fault(format!("\"{}\" is not a span of time", span.trim())))?;
                let name = name.trim();
                let known = loadline_measure::summary::PERCENTILES.map(|(known, _)| known);
                if name != "mean" && !known.contains(&name) {
                    return Err(fault(format!("\"{name}\" is not one of mean, {}", known.join(", "))));
                }
                (load, Some((name.to_string(), span.0.as_nanos() as f64 / 1e3)))
            }
        };
        let which = which(load).map_err(fault)?;
        Ok(Criterion { scope, least, which, within, text: text.trim().to_string() })
    }
}

fn which(load: &str) -> Result<Which, String> {
    let words: Vec<&str> = load.split_whitespace().collect();
    let (mut block_size, mut write_percent, mut random) = (None, None, None);
    for word in &words {
        let digit = word.starts_with(|c: char| c.is_ascii_digit());
        match (word.to_lowercase().as_str(), word.split_once('/')) {
            ("read" | "reads", _) => write_percent = Some(0),
            ("write" | "writes", _) => write_percent = Some(100),
            ("random" | "rand", _) => random = Some(true),
            ("sequential" | "seq", _) => random = Some(false),
            (_, Some((reads, writes))) if digit => {
                let percent = |text: &str| text.parse::<u8>().ok().filter(|p| *p <= 100);
                match (percent(reads), percent(writes)) {
                    (Some(reads), Some(writes)) if reads + writes == 100 => write_percent = Some(writes),
                    _ => return Err(format!("\"{word}\" is not reads/writes in percent, such as 70/30")),
                }
            }
            _ if digit && word.parse::<ByteSize>().is_ok() => block_size = word.parse().ok(),
            _ if words.len() == 1 => return Ok(Which::Named((*word).to_string())),
            _ => {
                return Err(format!(
                    "\"{word}\" is neither a size, 70/30, read, write, random nor sequential"
                ));
            }
        }
    }
    if words.is_empty() {
        return Err("no load is named".into());
    }
    Ok(Which::Kind { block_size, write_percent, random })
}

impl fmt::Display for Criterion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Criterion {
    type Error = CriterionError;

    fn try_from(text: String) -> Result<Criterion, CriterionError> {
        text.parse()
    }
}

impl From<Criterion> for String {
    fn from(criterion: Criterion) -> String {
        criterion.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_criterion_is_refused_and_says_how_to_write_one() {
        for (text, part) in [
            ("", "no \">=\""),
            ("each disk >= 5 IOPS of 4K", "each disk"),
            ("fleet >= many of 4K", "not a rate"),
            ("fleet >= 5 IOPS", "comes \"of\""),
            ("fleet >= 5 IOPS of 8K 70/40 random", "70/40"),
            ("fleet >= 5 IOPS of 8K quickly", "quickly"),
            ("fleet >= 5 IOPS of 8K under 3 ms", "comes \"at\""),
            ("fleet >= 5 IOPS of 8K under 3 at p95", "span of time"),
            ("fleet >= 5 IOPS of 8K under 3ms at p98", "p98"),
        ] {
            let message = text.parse::<Criterion>().unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("write it like"), "{message}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics_it(text in "(each node|fleet| >= |[0-9]{1,4}|IOPS| of |8K|/|70| under | at |p95|ms| ){0,14}") {
            let _ = text.parse::<Criterion>();
        }
    }
}
