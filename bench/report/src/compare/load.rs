//! One load on both sides, and the word for it. The statistics are those of `loadline_measure::difference`, over
//! whole repeats.

use loadline_base::figures::listed;
use loadline_measure::difference::{Change, Ratio, ratio};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compare::Both;
use crate::compare::configuration::{Difference, of_loads, other_engines};
use crate::compare::figure::Figure;
use crate::compare::record::{LoadRecord, RunRecord};

/// Of a rate, less than this share may be missing without the IOPS deciding.
const RATE_TOLERANCE: f64 = 0.01;
/// How much larger than the half of a 95 % interval a difference is that 9 of 10 comparisons show: the interval ends 1.96
/// standard errors from the estimate, and the estimate is at most 1.28 of them short of the difference in 9 of 10.
const NINE_OF_TEN: f64 = (1.960 + 1.282) / 1.960;
/// How many differences of a load are named.
const MOST_DIFFERENCES: usize = 6;

/// The word for a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// More IOPS, or with a rate a lower latency, and the whole interval says so.
    Faster,
    /// Fewer IOPS, or with a rate a higher latency, and the whole interval says so.
    Slower,
    /// The interval contains no difference.
    NoDifferenceShown,
    /// There are too few repeats for an interval.
    TooFewRepeats,
    /// A repeat measured nothing.
    NothingMeasured,
    /// Another load has the same name: not judged.
    NotTheSameLoad,
    /// B has no complete repeat of it.
    OnlyInA,
    /// A has no complete repeat of it.
    OnlyInB,
}

impl Verdict {
    /// All of them, in the order in which they are counted.
    pub const ALL: [Verdict; 8] = [
        Verdict::Slower,
        Verdict::Faster,
        Verdict::NoDifferenceShown,
        Verdict::TooFewRepeats,
        Verdict::NothingMeasured,
        Verdict::NotTheSameLoad,
        Verdict::OnlyInA,
        Verdict::OnlyInB,
    ];

    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifferenceShown => "no difference shown",
            Verdict::TooFewRepeats => "too few repeats to tell",
            Verdict::NothingMeasured => "nothing measured",
            Verdict::NotTheSameLoad => "not the same load",
            Verdict::OnlyInA => "only in A",
            Verdict::OnlyInB => "only in B",
        }
    }

    /// Whether the repeats said something.
    pub fn is_judged(self) -> bool {
        matches!(self, Verdict::Faster | Verdict::Slower | Verdict::NoDifferenceShown)
    }
}

/// One figure of a load on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    /// Median of A's repeats; `null` if one of them has no such figure.
    pub a: Option<f64>,
    /// Median of B's repeats; `null` if one of them has no such figure.
    pub b: Option<f64>,
    /// B as a multiple of A; `null` if a repeat has no such figure or measured nothing, or the loads are not the same.
    pub ratio: Option<Ratio>,
}

/// One load on both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The load.
    pub label: String,
    /// The word for it.
    pub verdict: Verdict,
    /// The figure that decides: IOPS; of a load with a rate p99, or the mean if a repeat has no p99. `null` if the load
    /// is not on both sides, or not the same.
    pub decided_by: Option<Figure>,
    /// Whether it is slower by more than is allowed, with its whole interval.
    pub beyond_allowed: bool,
    /// The detectable slowdown, in percent: if a load is slower by this much, 9 of 10 comparisons whose repeats vary as much
    /// call it slower. `null` without an interval.
    pub detectable_percent: Option<f64>,
    /// Whether the comparison leaves open if the load is slower by more than is allowed: the interval contains what is allowed,
    /// and either the estimate is slower than that, or the detectable slowdown is larger than that. Never if nothing is
    /// allowed: then the verdict says what the comparison shows.
    pub limit_undecided: bool,
    /// The estimate: B is slower by so many percent (of IOPS that are missing, or of a latency that is there in addition), and
    /// faster if this is negative. `null` without an interval.
    pub slowdown_percent: Option<f64>,
    /// Complete repeats.
    pub repeats: Both<usize>,
    /// How many of them lost workers, had errors, or have another finding that makes a figure doubtful.
    pub doubtful: Both<usize>,
    /// Whether A and B were issued by different engines.
    pub other_engine: bool,
    /// I/Os a second.
    pub iops: Compared,
    /// Mean response time, microseconds.
    pub mean_us: Compared,
    /// 99th percentile of the response times, microseconds.
    pub p99_us: Compared,
    /// What differs in the loads of this name.
    pub differs: Vec<Difference>,
    /// Whether the side without a complete repeat has planned it.
    pub is_planned: bool,
}

impl Load {
    /// One of the figures.
    pub fn figure(&self, figure: Figure) -> &Compared {
        match figure {
            Figure::Iops => &self.iops,
            Figure::MeanUs => &self.mean_us,
            Figure::P99Us => &self.p99_us,
        }
    }

    /// Whether a repeat is doubtful.
    pub fn has_doubtful_repeats(&self) -> bool {
        self.doubtful.a + self.doubtful.b > 0
    }

    /// Whether something makes the word for it doubtful.
    pub fn is_doubtful(&self) -> bool {
        self.has_doubtful_repeats() || self.other_engine || self.limit_undecided
    }

    /// The word for it and why, without its name and without a full stop.
    pub fn sentence(&self) -> String {
        let word = self.verdict.word();
        let why = match self.verdict {
            Verdict::NotTheSameLoad => {
                let differences: Vec<String> = self.differs.iter().map(Difference::line).collect();
                format!(": {}", listed(&differences, MOST_DIFFERENCES))
            }
            Verdict::OnlyInA if self.is_planned => "; B has not measured it yet".into(),
            Verdict::OnlyInB if self.is_planned => "; A has not measured it yet".into(),
            Verdict::OnlyInA | Verdict::OnlyInB => String::new(),
            _ => self.decided_by.map(|figure| self.reason(figure)).unwrap_or_default(),
        };
        format!("{word}{why}")
    }

    /// `: IOPS 52,043 in A, 48,120 in B: B ÷ A is 0.925, with 95 % confidence 0.909..0.942`.
    fn reason(&self, figure: Figure) -> String {
        let compared = self.figure(figure);
        let show = |value: Option<f64>| value.map_or("-".into(), |value| figure.show(value));
        let ratio = compared.ratio.map(|ratio| {
            let interval = interval(&ratio).map_or("too few repeats for an interval".into(), |interval| {
                format!("with 95 % confidence {interval}")
            });
            format!(": B ÷ A is {}, {interval}", multiple(ratio.estimate))
        });
        let detectable = self.detectable_percent.filter(|_| self.verdict == Verdict::NoDifferenceShown);
        let detectable = detectable.map_or(String::new(), |percent| {
            format!("; a slowdown of {} is found in 9 of 10 such comparisons", share(percent))
        });
        format!(
            ": {} {} in A, {} in B{}{detectable}",
            figure.name(),
            show(compared.a),
            show(compared.b),
            ratio.unwrap_or_default()
        )
    }
}

/// A ratio with three decimals, or as many as tell it from 1; with three digits that count if it is far from 1.
pub fn multiple(ratio: f64) -> String {
    if !(0.1..10.0).contains(&ratio) {
        let decimals = if ratio > 0.0 { (2.0 - ratio.log10().floor()).clamp(0.0, 9.0) } else { 0.0 };
        return format!("{ratio:.0$}", decimals as usize);
    }
    // An interval that ends at 1.000 and does not contain 1 would look as if it did.
    let shows =
        |decimals: &usize| ratio == 1.0 || (ratio - 1.0).abs() >= 0.5 * 10f64.powi(-(*decimals as i32));
    let decimals = (3..9).find(shows).unwrap_or(9);
    format!("{ratio:.decimals$}")
}

/// A percentage with one decimal, or more where it is small.
pub fn share(percent: f64) -> String {
    match percent {
        _ if percent <= 0.0 => "any share".into(),
        _ if percent < 0.1 => "0.1 %".into(),
        _ => format!("{percent:.1} %"),
    }
}

/// `0.909..0.942`; `None` if there are too few repeats for one.
pub fn interval(ratio: &Ratio) -> Option<String> {
    Some(format!("{}..{}", multiple(ratio.low?), multiple(ratio.high?)))
}

/// All loads of either run: those of A in their order, then those that only B has.
pub(super) fn all(a: &RunRecord, b: &RunRecord, allowed: f64) -> Vec<Load> {
    let only_in_b = b.loads.iter().filter(|load| a.load(&load.label).is_none());
    let load = |of_either: &LoadRecord| {
        let label = of_either.label.as_str();
        match (a.load(label), b.load(label)) {
            (Some(on_a), Some(on_b)) => {
                let other_engine = other_engines(a, b, label).is_some();
                Load { other_engine, ..on_both(on_a, on_b, allowed) }
            }
            (Some(on_a), None) => {
                let is_planned = b.planned_loads.contains(label);
                Load { is_planned, ..on_one(Some(on_a), None, Verdict::OnlyInA) }
            }
            (_, on_b) => {
                let is_planned = a.planned_loads.contains(label);
                Load { is_planned, ..on_one(None, on_b, Verdict::OnlyInB) }
            }
        }
    };
    a.loads.iter().chain(only_in_b).map(load).collect()
}

/// A load that is on one side only, or is not the same: its figures, and no ratio.
fn on_one(a: Option<&LoadRecord>, b: Option<&LoadRecord>, verdict: Verdict) -> Load {
    let median = |side: Option<&LoadRecord>, figure: Figure| side.and_then(|load| load.median(figure));
    let figure = |figure| Compared { a: median(a, figure), b: median(b, figure), ratio: None };
    let both = |count: fn(&LoadRecord) -> usize| Both { a: a.map_or(0, count), b: b.map_or(0, count) };
    Load {
        label: a.or(b).map(|load| load.label.clone()).unwrap_or_default(),
        verdict,
        decided_by: None,
        beyond_allowed: false,
        detectable_percent: None,
        limit_undecided: false,
        slowdown_percent: None,
        repeats: both(|load| load.repeats.len()),
        doubtful: both(|load| load.doubtful),
        other_engine: false,
        iops: figure(Figure::Iops),
        mean_us: figure(Figure::MeanUs),
        p99_us: figure(Figure::P99Us),
        differs: Vec::new(),
        is_planned: false,
    }
}

fn on_both(a: &LoadRecord, b: &LoadRecord, allowed: f64) -> Load {
    let mut load = on_one(Some(a), Some(b), Verdict::NotTheSameLoad);
    load.differs = of_loads(a, b);
    if !load.differs.is_empty() {
        return load;
    }
    let compared = |figure: Figure| {
        let finite =
            |ratio: &Ratio| [Some(ratio.estimate), ratio.high].into_iter().flatten().all(f64::is_finite);
        a.values(figure).zip(b.values(figure)).and_then(|(a, b)| ratio(&a, &b)).filter(finite)
    };
    load.iops.ratio = compared(Figure::Iops);
    load.mean_us.ratio = compared(Figure::MeanUs);
    load.p99_us.ratio = compared(Figure::P99Us);
    // With a rate the IOPS are what was requested, so the latency shows how the storage performs.
    // Where B carried clearly less of it, that decides: what failed or never came is fast.
    let carried_less =
        load.iops.ratio.is_some_and(|ratio| ratio.high.is_some_and(|high| high < 1.0 - RATE_TOLERANCE));
    let decides = match (a.has_rate, load.p99_us.ratio) {
        (false, _) => Figure::Iops,
        (true, _) if carried_less => Figure::Iops,
        (true, Some(_)) => Figure::P99Us,
        (true, None) => Figure::MeanUs,
    };
    load.decided_by = Some(decides);
    // Where nothing completed in one repeat there is no ratio of IOPS, whatever decides.
    let ratio = load.iops.ratio.and(load.figure(decides).ratio);
    load.verdict = ratio.map_or(Verdict::NothingMeasured, |ratio| word(decides, ratio.change()));
    let Some(slowness) = ratio.and_then(|ratio| Slowness::of(decides, &ratio)) else { return load };
    let allowed = allowed / 100.0;
    load.beyond_allowed = load.verdict == Verdict::Slower && slowness.least > allowed;
    load.detectable_percent = Some(100.0 * slowness.detectable);
    load.limit_undecided = slowness.leaves_open(allowed);
    load.slowdown_percent = Some(100.0 * slowness.estimate);
    load
}

/// How much slower B may be, as shares: of IOPS that are missing, or of a latency that is there in addition. Below 0 it is faster.
struct Slowness {
    /// The estimate, and the ends of the interval.
    estimate: f64,
    least: f64,
    most: f64,
    /// A load that is slower by this much is called slower in 9 of 10 comparisons. The interval is as wide, relative to the
    /// estimate, wherever the estimate is; so this is the distance to its far end, times [`NINE_OF_TEN`], in logarithms.
    detectable: f64,
}

impl Slowness {
    fn of(figure: Figure, ratio: &Ratio) -> Option<Slowness> {
        let (low, high) = (ratio.low?, ratio.high?);
        Some(match figure {
            Figure::Iops => {
                let detectable = 1.0 - (ratio.estimate / high).powf(NINE_OF_TEN);
                Slowness { estimate: 1.0 - ratio.estimate, least: 1.0 - high, most: 1.0 - low, detectable }
            }
            Figure::MeanUs | Figure::P99Us => {
                let detectable = (ratio.estimate / low).powf(NINE_OF_TEN) - 1.0;
                Slowness { estimate: ratio.estimate - 1.0, least: low - 1.0, most: high - 1.0, detectable }
            }
        })
    }

    /// Whether it may be more than `allowed`, a share, without being so for certain: see [`Load::limit_undecided`].
    fn leaves_open(&self, allowed: f64) -> bool {
        let contains = self.least <= allowed && self.most > allowed;
        allowed > 0.0 && contains && (self.estimate > allowed || self.detectable > allowed)
    }
}

fn word(figure: Figure, change: Change) -> Verdict {
    match (figure, change) {
        (_, Change::NotShown) => Verdict::NoDifferenceShown,
        (_, Change::TooFew) => Verdict::TooFewRepeats,
        (Figure::Iops, Change::Larger) => Verdict::Faster,
        (Figure::Iops, Change::Smaller) => Verdict::Slower,
        (_, Change::Larger) => Verdict::Slower,
        (_, Change::Smaller) => Verdict::Faster,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_detectable_follows_from_the_width_of_the_interval() {
        let ratio = |estimate, low, high| Ratio { estimate, low: Some(low), high: Some(high) };
        let iops = Slowness::of(Figure::Iops, &ratio(1.03, 0.88, 1.22)).unwrap();
        assert!(
            (iops.detectable - 0.244).abs() < 0.001 && (iops.most - 0.12).abs() < 1e-9 && iops.least < 0.0
        );
        let p99 = Slowness::of(Figure::P99Us, &ratio(1.0, 0.98, 1.03)).unwrap();
        assert!((p99.detectable - 0.034).abs() < 0.001 && (p99.most - 0.03).abs() < 1e-9);
        assert!(Slowness::of(Figure::Iops, &Ratio { estimate: 1.0, low: None, high: None }).is_none());
        assert_eq!([0.0, 0.04, 2.04, 15.57].map(share), ["any share", "0.1 %", "2.0 %", "15.6 %"]);
    }

    /// Values around 0 as a normal distribution has them, the same in every run.
    fn normal_values(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        let mut uniform = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        move || (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }

    #[test]
    fn a_slowdown_of_the_detectable_size_is_found_in_nine_of_ten_comparisons() {
        const RUNS: usize = 400;
        for repeats in [4, 6, 10] {
            let mut normal = normal_values(7);
            let mut side = |slower: f64| -> Vec<f64> {
                (0..repeats).map(|_| 1000.0 * (1.0 - slower) * (1.0 + 0.03 * normal())).collect()
            };
            let mut compared = |slower: f64| {
                let ratio = ratio(&side(0.0), &side(slower)).unwrap();
                let slowness = Slowness::of(Figure::Iops, &ratio).unwrap();
                (slowness.detectable, ratio.change() == Change::Smaller)
            };
            let unchanged: Vec<f64> = (0..RUNS).map(|_| compared(0.0).0).collect();
            let detectable = loadline_measure::stats::median(&unchanged).unwrap();
            let found = (0..RUNS).filter(|_| compared(detectable).1).count() as f64 / RUNS as f64;
            assert!((0.87..=0.97).contains(&found), "{repeats}: {detectable} is found in {found}");
        }
    }

    #[test]
    fn a_slowdown_beyond_what_is_allowed_is_never_passed_and_more_is_never_worse() {
        let word = |(estimate, low, high): (f64, f64, f64), allowed: f64| {
            let ratio = Ratio { estimate, low: Some(low), high: Some(high) };
            let slowness = Slowness::of(Figure::Iops, &ratio).unwrap();
            match ratio.change() == Change::Smaller && slowness.least > allowed {
                true => 2,
                false => usize::from(slowness.leaves_open(allowed)),
            }
        };
        // Half as fast, and 40 % slower is allowed: the interval does not say that it is no more.
        assert_eq!(word((0.492, 0.428, 0.620), 0.4), 1);
        assert_eq!([0.05, 0.2, 0.3].map(|allowed| word((0.819, 0.713, 1.034), allowed)), [1, 1, 0]);
        for ratio in [(0.492, 0.428, 0.620), (0.819, 0.713, 1.034), (0.9, 0.89, 0.91), (1.0, 0.99, 1.01)] {
            let words: Vec<usize> = (1..70).map(|percent| word(ratio, f64::from(percent) / 100.0)).collect();
            assert!(words.is_sorted_by(|one, next| one >= next), "{ratio:?}: {words:?}");
        }
    }

    #[test]
    fn a_ratio_is_short_and_never_looks_like_one_that_it_is_not() {
        assert_eq!(
            [1.0, 0.925, 1.0832, 0.9996, 1.00004, 0.0123, 12.34, 5321.0].map(multiple),
            ["1.000", "0.925", "1.083", "0.9996", "1.00004", "0.0123", "12.3", "5321"]
        );
    }
}
