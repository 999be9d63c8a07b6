//! What measured points come to: for each load the saturation of its growth, the knee and the load line of its sweep,
//! the cliffs inside its series, and the findings of all of them.

mod sweeps;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use loadline_base::figures::{latency, listed, thousands};
use loadline_base::units::{Rate, TimeSpan};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::audit::points::{audit, carried, share_of_ceiling};
use crate::audit::{Finding, FindingKind};
use crate::change::levels;
use crate::curve::{Level, LoadLine, load_line};
use crate::knee::{SENSITIVITY, knee};
use crate::point::{Point, Stated};
use crate::saturation::{Saturation, saturation};
use crate::stats::median;
use crate::steady::{ROUNDS, Steadiness, rounds, steadiness};
use sweeps::{Sweep, sweeps};

/// A latency and its limit, such as `p99 <= 3ms` or `mean <= 2ms`.
#[derive(Debug, Clone, PartialEq)]
pub struct LatencyLimit {
    /// The percentile (0 to 100); `None` for the mean.
    pub percentile: Option<f64>,
    /// The limit, in microseconds.
    pub limit_us: f64,
}

impl FromStr for LatencyLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<LatencyLimit, String> {
        let advice =
            || format!("\"{text}\" is not a latency and its limit: write p99 <= 3ms, or mean <= 2ms");
        let (name, span) = text.split_once("<=").ok_or_else(advice)?;
        let percentile = match name.trim() {
            "mean" => None,
            name => {
                let percent = name.strip_prefix('p').and_then(|p| p.parse::<f64>().ok());
                Some(percent.filter(|p| *p > 0.0 && *p < 100.0).ok_or_else(advice)?)
            }
        };
        let span: TimeSpan = span.trim().parse().map_err(|_| advice())?;
        Ok(LatencyLimit { percentile, limit_us: span.0.as_nanos() as f64 / 1e3 })
    }
}

impl fmt::Display for LatencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percentile {
            Some(percent) => write!(f, "p{percent} <= {}", latency(self.limit_us)),
            None => write!(f, "mean <= {}", latency(self.limit_us)),
        }
    }
}

impl LatencyLimit {
    /// The latency that is judged; infinite where a point missed whatever its latency says: I/Os failed, workers were
    /// lost, or an offered rate was not carried. `None` if the point does not state it.
    fn judged(&self, point: &Point) -> Option<f64> {
        let sound = carried(point) && point.errors == 0 && point.lost_workers == 0;
        if sound { self.of(point) } else { Some(f64::INFINITY) }
    }

    fn of(&self, point: &Point) -> Option<f64> {
        match self.percentile {
            None => point.mean_us.map(|mean| mean.value),
            Some(percent) => {
                let same = |(known, _): &&(f64, Stated)| (known - percent).abs() < 1e-9;
                point.percentiles_us.iter().find(same).map(|(_, stated)| stated.value)
            }
        }
    }
}

/// What a reader of points states beside them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// What the storage can do at the most, by I/Os and by bytes a second.
    pub ceilings: Vec<Rate>,
    /// The limit of the load line.
    pub limit: Option<LatencyLimit>,
    /// Whether the points were audited when they were measured, so that only what they come to together is looked at.
    pub audited: bool,
}

/// What varies from point to point of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// The number of workers.
    Workers,
    /// I/Os outstanding in all.
    Outstanding,
    /// The rate that was offered.
    Rate,
}

/// A level of the series inside one point's window that was left for another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cliff {
    /// Which point: its place in the source.
    pub place: String,
    /// When, in seconds from the beginning of the window.
    pub at_s: f64,
    /// I/Os a second before.
    pub from: f64,
    /// I/Os a second after.
    pub to: f64,
}

/// How points of one load, in which nothing varies, stand to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Held {
    /// Whether the median of the points is within the limit.
    pub within: bool,
    /// That median, microseconds; `null` where the limit is missed whatever the latency says: I/Os failed, workers were
    /// lost, or an offered rate was not carried.
    pub latency_us: Option<f64>,
}

/// A place on the axis of a sweep, by the medians of its repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CurvePlace {
    /// I/Os a second, or bytes where the group is `in_bytes`.
    pub amount: f64,
    /// The latency that is limited, microseconds; `null` where the limit is missed whatever the latency says: I/Os failed,
    /// workers were lost, or an offered rate was not carried.
    pub latency_us: Option<f64>,
    /// Whether it is within the limit.
    pub held: bool,
}

/// A sweep of one load in one condition, or points of it in which nothing varies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// The load.
    pub profile: String,
    /// The condition, if the source names one.
    pub condition: Option<String>,
    /// What is the same in all points, where the load has several sweeps: `depths of 4 workers`.
    pub at: Option<String>,
    /// How many points there are.
    pub points: usize,
    /// What varies; `null` if it is one load.
    pub axis: Option<Axis>,
    /// What is counted where a source only states bytes: `false` means that figures are I/Os a second, `true` bytes.
    pub in_bytes: bool,
    /// The most that was reached: the largest of the places on the axis, each by the median of its repeats.
    pub most: Option<f64>,
    /// How that compares with the same load in the source's first condition with as many workers: 0.9 is a tenth less.
    pub against_first: Option<f64>,
    /// The growth by workers: its peak, and what comes after.
    pub saturation: Option<Saturation>,
    /// Where more load begins to cost more than it brings, I/Os a second; `null` if the curve has no knee.
    pub knee: Option<f64>,
    /// The most within the limit that was stated.
    pub load_line: Option<LoadLine>,
    /// What the load line was found in: the places that state the latency that is limited, in the order of the load. Empty
    /// without a limit.
    pub curve: Vec<CurvePlace>,
    /// The load that carried it, in the axis' unit.
    pub load_at_line: Option<f64>,
    /// The last load that held the limit, in the axis' unit.
    pub held_to: Option<f64>,
    /// Of points in which nothing varies, the latency that is limited, and whether it is within the limit; `null` for a
    /// sweep, without a limit, or where it is not stated.
    pub held: Option<Held>,
    /// Places on the axis whose points state the latency that is limited.
    pub judged: usize,
    /// Places on the axis whose points do not.
    pub unjudged: usize,
    /// The most of the stated ceiling that was reached, 1 being all of it.
    pub of_ceiling: Option<f64>,
    /// How steady the last point with a series was over its window.
    pub steadiness: Option<Steadiness>,
    /// Where the level changed inside a window.
    pub cliffs: Vec<Cliff>,
}

/// What points come to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Analysis {
    /// Each load in each condition, in the order of the source.
    pub groups: Vec<Group>,
    /// What a reader should know.
    pub findings: Vec<Finding>,
}

/// The points of one place on an axis: the load, and which points they are.
type Place = (f64, Vec<usize>);

/// Analyses the points of one source.
pub fn analyse(mut points: Vec<Point>, options: &Options) -> Analysis {
    for point in &mut points {
        for rate in &options.ceilings {
            match *rate {
                Rate::Iops(iops) => point.ceiling_iops = Some(Stated::exact(iops)),
                Rate::BytesPerSecond(bytes) => point.ceiling_bytes_per_s = Some(Stated::exact(bytes)),
            }
        }
    }
    let mut findings = if options.audited { Vec::new() } else { audit(&points) };
    // In the order of the source, and found by name: a table may have as many loads as rows.
    let mut places: BTreeMap<(&str, Option<&String>, String), usize> = BTreeMap::new();
    let mut loads: Vec<Vec<&Point>> = Vec::new();
    for point in &points {
        // What has other blocks or another mix is another load, whatever it is called.
        let kind = format!("{:?} {:?} {:?}", point.block_bytes, point.write_percent, point.latency_of);
        let key = (point.family(), point.condition.as_ref(), kind);
        let place = *places.entry(key).or_insert_with(|| {
            loads.push(Vec::new());
            loads.len() - 1
        });
        loads[place].push(point);
    }
    let mut firsts: BTreeMap<&str, &[&Point]> = BTreeMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for load in &loads {
        let first = *firsts.entry(load[0].family()).or_insert(load);
        for sweep in sweeps(load) {
            let mut group = group(load[0], &sweep, options);
            if load[0].condition.is_some() && !std::ptr::eq(first, load.as_slice()) {
                group.against_first = against_first(first, load, group.in_bytes);
            }
            if !options.audited {
                findings.extend(cliffs(&group).or_else(|| not_steady(&group, &sweep.points)));
            }
            groups.push(group);
        }
    }
    Analysis { groups, findings }
}

/// What a point carried: I/Os a second, or bytes where a source has no others.
fn amount(point: &Point, in_bytes: bool) -> Option<f64> {
    match in_bytes {
        true => point.throughput.as_ref().map(|t| t.bytes_per_s.value),
        false => point.iops.map(|iops| iops.value),
    }
}

/// What a later condition of a load is of the first one: the median over what both measured, as many workers with as much
/// outstanding or offered of each.
fn against_first(first: &[&Point], later: &[&Point], in_bytes: bool) -> Option<f64> {
    let by_place = |points: &[&Point]| {
        let mut places: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for point in points {
            let place = format!("{:?} {:?} {:?}", point.workers, point.outstanding, point.rate_iops);
            places.entry(place).or_default().extend(amount(point, in_bytes));
        }
        places
    };
    let (before, after) = (by_place(first), by_place(later));
    let ratio = |(place, after): (&String, &Vec<f64>)| {
        let before = median(before.get(place)?).filter(|m| *m > 0.0)?;
        Some(median(after)? / before)
    };
    median(&after.iter().filter_map(ratio).collect::<Vec<_>>())
}

fn group(load: &Point, sweep: &Sweep<'_>, options: &Options) -> Group {
    let Sweep { axis, points, places, .. } = sweep;
    let in_bytes = points.iter().all(|p| p.iops.is_none());
    let middle = |place: &Place| {
        let amounts: Vec<f64> = place.1.iter().filter_map(|i| amount(points[*i], in_bytes)).collect();
        median(&amounts).map(|amount| (place.0, amount))
    };
    let series: Vec<(f64, f64)> = places.iter().filter_map(middle).collect();
    let mean_of = |place: &Place| {
        let means: Vec<f64> = place.1.iter().filter_map(|i| Some(points[*i].mean_us?.value)).collect();
        median(&means)
    };
    let curve: Option<Vec<(f64, f64)>> =
        places.iter().map(|place| Some((middle(place)?.1, mean_of(place)?))).collect();
    let curve = curve.filter(|_| axis.is_some());
    let (mut judged, mut judged_places) = (0, Vec::new());
    let line = options.limit.as_ref().filter(|_| axis.is_some()).and_then(|limit| {
        let level = |place: &Place| -> Option<(f64, Level)> {
            let each = |value: &dyn Fn(&Point) -> Option<f64>| -> Option<Vec<f64>> {
                place.1.iter().map(|i| value(points[*i])).collect()
            };
            let iops = each(&|p| amount(p, in_bytes))?;
            Some((place.0, Level { iops, latency_us: each(&|p| limit.judged(p))? }))
        };
        // A place whose points have no such percentile, with too few I/Os for one, says nothing.
        let (loads, levels): (Vec<f64>, Vec<Level>) = places.iter().filter_map(level).unzip();
        judged = levels.len();
        judged_places = levels.iter().filter_map(|level| curve_place(level, limit.limit_us)).collect();
        let line = load_line(&levels, limit.limit_us)?;
        Some((loads[line.at], loads[line.last], line))
    });
    let held = options.limit.as_ref().filter(|_| axis.is_none()).and_then(|limit| {
        let each: Option<Vec<f64>> = points.iter().map(|p| limit.judged(p)).collect();
        let latency = median(&each?)?;
        Some(Held { within: latency <= limit.limit_us, latency_us: Some(latency).filter(|l| l.is_finite()) })
    });
    judged += usize::from(held.is_some());
    let with_series = points.iter().rev().find(|p| p.series.len() >= 2 * ROUNDS);
    Group {
        profile: load.family().to_string(),
        condition: load.condition.clone(),
        at: sweep.at.clone(),
        points: points.len(),
        in_bytes,
        most: series.iter().map(|(_, amount)| *amount).reduce(f64::max),
        against_first: None,
        saturation: (*axis == Some(Axis::Workers)).then(|| saturation(&series)).flatten(),
        knee: curve.and_then(|curve| knee(&curve, SENSITIVITY).map(|at| curve[at].0)),
        load_at_line: line.as_ref().map(|(at, ..)| *at),
        held_to: line.as_ref().map(|(_, last, _)| *last),
        load_line: line.map(|(.., line)| line),
        curve: judged_places,
        held,
        judged,
        unjudged: places.len() - judged,
        of_ceiling: points.iter().filter_map(|p| share_of_ceiling(p)).reduce(f64::max),
        steadiness: with_series.and_then(|p| steadiness_of(p)),
        cliffs: points.iter().flat_map(|p| cliffs_of(p)).collect(),
        axis: *axis,
    }
}

fn curve_place(level: &Level, limit_us: f64) -> Option<CurvePlace> {
    let (amount, latency) = (median(&level.iops)?, median(&level.latency_us)?);
    let latency_us = Some(latency).filter(|latency| latency.is_finite());
    Some(CurvePlace { amount, latency_us, held: latency <= limit_us })
}

fn cliffs_of(point: &Point) -> Vec<Cliff> {
    let iops: Vec<f64> = point.series.iter().map(|s| s.iops).collect();
    let found = levels(&iops);
    let cliff = |pair: &[crate::change::Level]| Cliff {
        place: point.place.clone(),
        at_s: point.series[pair[0].to - 1].at_s,
        from: pair[0].level,
        to: pair[1].level,
    };
    found.windows(2).map(cliff).collect()
}

/// That windows of a sweep were not steady.
fn not_steady(group: &Group, points: &[&Point]) -> Option<Finding> {
    let long = points.iter().filter(|p| p.series.len() >= 2 * ROUNDS);
    let looked_at: Vec<Steadiness> = long.filter_map(|p| steadiness_of(p)).collect();
    let unsteady = looked_at.iter().filter(|found| !found.steady).count();
    if unsteady == 0 {
        return None;
    }
    let worst = looked_at.iter().map(|found| found.slope.abs()).fold(0.0, f64::max);
    Some(Finding::doubt(
        FindingKind::NotSteady,
        format!(
            "{}: IOPS of five parts of the window within 20 % of their mean, and their trend within 10 %",
            group.profile
        ),
        format!(
            "{unsteady} of {} windows not so; the largest trend is {:.0} %",
            looked_at.len(),
            100.0 * worst
        ),
        "Measured before it was steady: a buffer that fills, a cache that warms, or another user of the storage. Warm up \
         longer, and look at the series.",
    ))
}

fn steadiness_of(point: &Point) -> Option<Steadiness> {
    let seconds: Vec<f64> = point.series.iter().map(|s| s.iops).collect();
    steadiness(&rounds(&seconds, ROUNDS)?)
}

/// That the level changed inside the windows of a load. A fall is what a full write buffer looks like.
fn cliffs(group: &Group) -> Option<Finding> {
    let first = group.cliffs.first()?;
    let shown: Vec<String> = group
        .cliffs
        .iter()
        .map(|c| {
            format!(
                "{} after {:.0} s from {} to {} IOPS",
                c.place,
                c.at_s,
                thousands(c.from),
                thousands(c.to)
            )
        })
        .collect();
    let cause = if first.to < first.from {
        "A fall inside the window is usually a write buffer or cache that is full: neither figure before nor after is \
         that of the whole window. Warm up longer, and look at the series."
    } else {
        "A rise inside the window is usually a cache that warms up, or work in the background that ended. Warm up \
         longer, and look at the series."
    };
    Some(Finding::doubt(
        FindingKind::LevelChange,
        format!("{}: one level over the window", group.profile),
        listed(&shown, 4),
        cause,
    ))
}
