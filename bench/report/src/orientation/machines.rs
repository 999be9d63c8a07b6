//! For how many machines of a kind a load is enough. Rounded down: what is not enough for one is less than one.

use loadline_base::figures::{latency, megabytes, thousands};
use loadline_base::units::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::known::{AccessPattern, Figure, Limits, Machine, Shape, Source, known};
use super::{Load, Within};

/// A machine's blocks are similar to a load's if neither is more than so many times the other.
const SIMILAR_BLOCK: f64 = 2.5;
/// Its mix is similar if the shares of writes differ by no more percentage points.
const SIMILAR_MIX: u8 = 10;
/// A latency that a machine needs is kept if this percentile, or a deeper one, is within it: the vSAN acceptance test does not state
/// its percentile, and the study file of it (`studies/acceptance/published.toml`) chose this one.
const LEAST_PERCENTILE: f64 = 95.0;
/// So many kinds are named in a sentence.
const MOST_NAMED: usize = 3;

/// How many machines of a kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineCount {
    /// The kind of machine.
    pub kind: String,
    /// For how many of them the load is enough, rounded down, by IOPS and by bytes.
    pub count: u64,
    /// What is counted for each of them, in words.
    pub each: String,
    /// What the source says of the conditions.
    pub conditions: String,
    /// Where it is published.
    pub sources: Vec<Source>,
}

/// Every kind that a load can be counted in: those that need a load similar to it, then disks that are given so much whatever the
/// load is.
pub(super) fn counts(shape: Shape, load: &Load) -> Vec<MachineCount> {
    let needed = known().machine.iter().filter_map(|machine| {
        let needs = machine.needs.as_ref().filter(|needs| is_similar(shape, needs) && keeps(load, needs))?;
        let (iops, block) = (needs.iops?, needs.block?);
        // Small I/Os do not stand for as many large ones.
        let machines = (load.iops / iops).min(load.bytes_per_s / (iops * block.0 as f64));
        let within = needs.within_ms.map_or(String::new(), |ms| format!(" within {}", latency(ms * 1e3)));
        let each = format!("{} IOPS of {}{within}", thousands(iops), spaced(block));
        Some(count(machine, machines, each))
    });
    let given = known().machine.iter().filter_map(|machine| {
        let Limits { iops, mb_per_s } = machine.given?;
        let by_bytes = mb_per_s * 1e6 / shape.block as f64;
        let (most, each) = if by_bytes < iops {
            (by_bytes, format!("{} MB/s", megabytes(mb_per_s * 1e6)))
        } else {
            (iops, format!("{} IOPS", thousands(iops)))
        };
        Some(count(machine, load.iops / most, each))
    });
    needed.chain(given).collect()
}

fn count(machine: &Machine, machines: f64, each: String) -> MachineCount {
    MachineCount {
        kind: machine.name.clone(),
        count: machines.floor() as u64,
        each,
        conditions: machine.conditions.clone(),
        sources: machine.sources.clone(),
    }
}

/// Whether a machine's load is similar enough to be counted in.
fn is_similar(shape: Shape, needs: &Figure) -> bool {
    let Some(block) = needs.block else { return false };
    let ratio = shape.block as f64 / block.0 as f64;
    shape.order == AccessPattern::Random
        && needs.pattern == AccessPattern::Random
        && (1.0 / SIMILAR_BLOCK..=SIMILAR_BLOCK).contains(&ratio)
        && shape.write_percent.abs_diff(needs.write_percent) <= SIMILAR_MIX
}

/// Whether the load keeps a machine's latency, if it has one: by the limit that it was carried within, if that is of a percentile deep
/// enough, or else by its 99th percentile.
fn keeps(load: &Load, needs: &Figure) -> bool {
    let Some(within_ms) = needs.within_ms else { return true };
    let limit =
        load.within.as_ref().filter(|within| is_deep(&within.percentile)).map(|within| within.limit_us);
    limit.or(load.p99_us).is_some_and(|us| us <= within_ms * 1e3)
}

/// Whether a percentile, by its name, is [`LEAST_PERCENTILE`] or deeper.
fn is_deep(percentile: &str) -> bool {
    let percent = percentile.strip_prefix('p').and_then(|percent| percent.parse::<f64>().ok());
    percent.is_some_and(|percent| percent >= LEAST_PERCENTILE)
}

/// The first kinds, in words, with the latency limit within which the load was carried; `None` if there is no kind.
pub(super) fn sentence(machines: &[MachineCount], within: Option<&Within>) -> Option<String> {
    let named: Vec<String> = machines.iter().take(MOST_NAMED).map(in_words).collect();
    let limit = within.map_or(String::new(), |within| format!(", within {within},"));
    (!named.is_empty()).then(|| format!("enough{limit} for: {}", named.join("; ")))
}

fn in_words(machine: &MachineCount) -> String {
    let MachineCount { kind, count, each, .. } = machine;
    match count {
        0 => format!("less than one {kind} ({each})"),
        count => format!("{} × {kind} ({each} each)", thousands(*count as f64)),
    }
}

/// `8 KiB`, as in sentences.
fn spaced(size: ByteSize) -> String {
    let text = size.to_string();
    match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => format!("{} {}", &text[..at], &text[at..]),
        None => format!("{text} B"),
    }
}
