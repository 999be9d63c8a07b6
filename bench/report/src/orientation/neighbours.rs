//! The nearest published figures of a like load: the largest that is no more than it, and the least that is more.

use loadline_base::figures::{megabytes, thousands};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::known::{Figure, Source};

/// The nearest published figures; both `null` if there is none of a like load.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Neighbours {
    /// The largest published figure that is no more than the load; `null` if every one is more.
    pub below: Option<Neighbour>,
    /// The least published figure that is more than the load; `null` if none is.
    pub above: Option<Neighbour>,
}

/// A published figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Neighbour {
    /// The drive or the cluster.
    pub name: String,
    /// What is published: of a drive, or of one node of a cluster.
    pub figure: f64,
    /// What the figure is of.
    pub unit: Unit,
    /// The load (or what each of its nodes carries) divided by the figure.
    pub ratio: f64,
    /// What the source says of the conditions.
    pub conditions: String,
    /// Where it is published.
    pub sources: Vec<Source>,
}

/// What a figure is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// I/Os a second.
    Iops,
    /// Bytes a second.
    BytesPerS,
}

/// A published figure of a like load.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate<'a> {
    name: &'a str,
    figure: f64,
    conditions: &'a str,
    sources: &'a [Source],
}

impl<'a> Candidate<'a> {
    /// What one of `parts` equal parts does (a drive is one part, a cluster has its nodes).
    pub(super) fn of(
        name: &'a str,
        figure: &Figure,
        parts: u32,
        conditions: &'a str,
        sources: &'a [Source],
    ) -> Option<Candidate<'a>> {
        let figure = figure.value()? / f64::from(parts.max(1));
        Some(Candidate { name, figure, conditions, sources })
    }
}

impl Neighbours {
    /// The nearest to `value` among figures in the same unit: bytes a second if `in_bytes`, else IOPS.
    pub(super) fn of<'a>(
        value: f64,
        candidates: impl Iterator<Item = Candidate<'a>>,
        in_bytes: bool,
    ) -> Neighbours {
        let (mut below, mut above): (Option<Candidate<'a>>, Option<Candidate<'a>>) = (None, None);
        for candidate in candidates {
            if candidate.figure <= value {
                if below.as_ref().is_none_or(|best| candidate.figure > best.figure) {
                    below = Some(candidate);
                }
            } else if above.as_ref().is_none_or(|best| candidate.figure < best.figure) {
                above = Some(candidate);
            }
        }
        let neighbour = |one: Candidate<'_>| Neighbour {
            name: one.name.into(),
            figure: one.figure,
            unit: if in_bytes { Unit::BytesPerS } else { Unit::Iops },
            ratio: value / one.figure,
            conditions: one.conditions.into(),
            sources: one.sources.to_vec(),
        };
        Neighbours { below: below.map(neighbour), above: above.map(neighbour) }
    }

    /// In words; `each` says what a figure is for, such as " a node". `None` if there is no figure.
    pub(super) fn sentence(&self, each: &str) -> Option<String> {
        let of = |one: &Neighbour| {
            let figure = match one.unit {
                Unit::Iops => format!("{} IOPS", thousands(one.figure.round())),
                Unit::BytesPerS => format!("{} MB/s", megabytes(one.figure)),
            };
            format!("{} times {} ({figure}{each})", times(one.ratio), one.name)
        };
        match (&self.below, &self.above) {
            (None, None) => None,
            (Some(below), Some(above)) => Some(format!("between two: {}, {}", of(below), of(above))),
            (Some(below), None) => Some(format!("above every listed one: {}", of(below))),
            (None, Some(above)) => Some(format!("below every listed one: {}", of(above))),
        }
    }
}

/// A ratio with two digits that count.
fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 9.95 => thousands(ratio.round()),
        ratio if ratio >= 0.995 => format!("{ratio:.1}"),
        ratio if ratio >= 0.0995 => format!("{ratio:.2}"),
        ratio => format!("{ratio:.3}"),
    }
}
