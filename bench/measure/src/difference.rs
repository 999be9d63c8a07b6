//! Two runs of the same load, compared over whole repeats.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::median;

/// How sure an interval is, at least.
pub const LEVEL: f64 = 0.95;
/// Up to so many ways of dealing the repeats out to both sides all of them are counted; beyond, the statistic is as good as
/// normal.
const COUNTED: f64 = 50_000.0;
/// Sums of scores this near to each other are the same sum, computed in another order.
const SAME: f64 = 1e-9;

/// A figure of B as a multiple of the same figure of A.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// The median of all B ÷ A, over every pair of a repeat of A and a repeat of B (Hodges and Lehmann 1963).
    pub estimate: f64,
    /// Lower end of the 95 % confidence interval; `null` if there are too few repeats for one.
    pub low: Option<f64>,
    /// Upper end.
    pub high: Option<f64>,
}

/// Whether a figure of B is larger than A's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The whole interval of the ratio lies above 1.
    Larger,
    /// The whole interval of the ratio lies below 1.
    Smaller,
    /// The interval contains 1.
    NotShown,
    /// There are too few repeats for an interval.
    TooFew,
}

impl Ratio {
    /// What the interval says.
    pub fn change(&self) -> Change {
        match (self.low, self.high) {
            (Some(low), _) if low > 1.0 => Change::Larger,
            (_, Some(high)) if high < 1.0 => Change::Smaller,
            (Some(_), Some(_)) => Change::NotShown,
            _ => Change::TooFew,
        }
    }
}

/// The ratio of one figure of `b` to that of `a`, each value that of one whole repeat. `None` if a side is empty, or
/// a value is not positive and finite: a ratio to nothing is none.
///
/// The interval is what a test of van der Waerden does not reject (normal scores: Φ⁻¹(rank ÷ (N + 1)); van der
/// Waerden 1952), at every ratio θ with B ÷ θ in the place of B. Its level does not depend on how the repeats are
/// distributed, since it only uses that under θ every way of dealing the pooled repeats out to A and B is equally
/// likely; those ways are counted up to 50,000, and normal beyond. Of six repeats a side it has a level of
/// 95.2 %, and needs four a side to have one of 95 % at all.
pub fn ratio(a: &[f64], b: &[f64]) -> Option<Ratio> {
    let usable = |side: &[f64]| !side.is_empty() && side.iter().all(|v| v.is_finite() && *v > 0.0);
    if !usable(a) || !usable(b) {
        return None;
    }
    let mut ratios: Vec<f64> = b.iter().flat_map(|b| a.iter().map(move |a| b / a)).collect();
    ratios.sort_by(f64::total_cmp);
    let estimate = median(&ratios)?;
    ratios.dedup();
    let scores = Scores::new(a.len(), b.len());
    let Some(limit) = scores.limit() else {
        return Some(Ratio { estimate, low: None, high: None });
    };
    // The statistic falls as θ grows, and only changes at the ratios: so it is looked at just below and just above
    // each of them.
    let below = |i: usize| if i == 0 { ratios[0] / 2.0 } else { (ratios[i - 1] * ratios[i]).sqrt() };
    let above =
        |i: usize| if i + 1 == ratios.len() { ratios[i] * 2.0 } else { (ratios[i] * ratios[i + 1]).sqrt() };
    let rejected_low = |i: &usize| scores.statistic(a, b, below(*i)) >= limit - SAME;
    let rejected_high = |i: &usize| scores.statistic(a, b, above(*i)) <= -limit + SAME;
    let low = (0..ratios.len()).rev().find(rejected_low);
    let high = (0..ratios.len()).find(rejected_high);
    let (low, high) = low.zip(high).map(|(low, high)| (ratios[low], ratios[high])).unzip();
    Some(Ratio { estimate, low, high })
}

/// The normal scores of two samples of known sizes.
struct Scores {
    scores: Vec<f64>,
    of_b: usize,
}

impl Scores {
    fn new(of_a: usize, of_b: usize) -> Scores {
        let all = of_a + of_b;
        let scores = (1..=all).map(|rank| normal_quantile(rank as f64 / (all + 1) as f64)).collect();
        Scores { scores, of_b }
    }

    /// The sum of B's scores if B were B ÷ θ.
    fn statistic(&self, a: &[f64], b: &[f64], theta: f64) -> f64 {
        let mut pooled: Vec<(f64, bool)> =
            a.iter().map(|v| (*v, false)).chain(b.iter().map(|v| (v / theta, true))).collect();
        pooled.sort_by(|x, y| x.0.total_cmp(&y.0));
        // θ is never a ratio of two values, so none of A ties with one of B.
        pooled.iter().zip(&self.scores).filter(|((_, is_b), _)| *is_b).map(|(_, score)| score).sum()
    }

    /// The smallest sum that is rejected, as is its negative: both together have a chance of at most 5 %. `None` if even
    /// the largest sum is not so rare.
    fn limit(&self) -> Option<f64> {
        let all = self.scores.len();
        let ways = (1..=self.of_b).fold(1.0, |ways, k| ways * (all - self.of_b + k) as f64 / k as f64);
        if ways > COUNTED {
            let squares: f64 = self.scores.iter().map(|s| s * s).sum();
            let (b, n) = (self.of_b as f64, all as f64);
            let deviation = (b * (n - b) / (n * (n - 1.0)) * squares).sqrt();
            return Some(normal_quantile(1.0 - (1.0 - LEVEL) / 2.0) * deviation);
        }
        let mut sums = Vec::new();
        self.deal(0, self.of_b, 0.0, &mut sums);
        sums.sort_by(|x, y| y.total_cmp(x));
        let most = (sums.len() as f64 * (1.0 - LEVEL) / 2.0 + SAME).floor() as usize;
        // As many as are equal to the last one count with it, so it is only within if the next one is smaller.
        let mut limit = None;
        for at in 1..=most {
            if sums.get(at).is_none_or(|next| *next < sums[at - 1] - SAME) {
                limit = Some(sums[at - 1]);
            }
        }
        limit
    }

    /// The sums of all ways to choose so many of the scores from this one on.
    fn deal(&self, from: usize, left: usize, sum: f64, sums: &mut Vec<f64>) {
        if left == 0 {
            sums.push(sum);
            return;
        }
        for at in from..=self.scores.len() - left {
            self.deal(at + 1, left - 1, sum + self.scores[at], sums);
        }
    }
}

/// Φ⁻¹(p), the quantile of the normal distribution, by bisection of Φ: absolute error under 1e-12.
fn normal_quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        if normal_below(middle) < p { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Φ(z), by its series z φ(z) Σ z^2k / (1·3·…·(2k+1)) around 0 (Abramowitz and Stegun 26.2.11): for the |z| under 5
/// that are asked for here it converges to the last digits.
fn normal_below(z: f64) -> f64 {
    if z.abs() > 8.0 {
        return if z > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut k) = (z, z, 1.0);
    while term.abs() > 1e-18 * sum.abs() && k < 500.0 {
        term *= z * z / (2.0 * k + 1.0);
        sum += term;
        k += 1.0;
    }
    0.5 + sum * (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_sides_far_apart_differ_and_two_alike_do_not() {
        let a = [100.0, 101.0, 99.0, 102.0, 98.0, 100.5];
        let b = a.map(|v| v * 1.3);
        let far = ratio(&a, &b).unwrap();
        assert_eq!(far.change(), Change::Larger);
        assert!((far.estimate - 1.3).abs() < 0.01 && far.low.unwrap() > 1.2 && far.high.unwrap() < 1.4);
        assert_eq!(ratio(&b, &a).unwrap().change(), Change::Smaller);
        let alike = ratio(&a, &[101.0, 99.5, 100.2, 98.5, 102.5, 100.1]).unwrap();
        assert_eq!(alike.change(), Change::NotShown);
    }

    #[test]
    fn with_three_a_side_there_is_no_interval_of_95_percent() {
        let few = ratio(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]).unwrap();
        assert_eq!((few.change(), few.low), (Change::TooFew, None));
        // 2 of the 70 ways are as far out as this one: 97 %.
        let four = ratio(&[1.0, 1.1, 1.2, 1.3], &[2.0, 2.1, 2.2, 2.3]).unwrap();
        assert_eq!(four.change(), Change::Larger);
        // Of 21 ways one is as far out as the farthest: 4.8 % on one side alone, so no 95 % interval.
        let many: Vec<f64> = (1..=20).map(f64::from).collect();
        let one = ratio(&many, &[100.0]).unwrap();
        assert_eq!((one.change(), one.low), (Change::TooFew, None));
        let far = many.iter().map(|v| v * 3.0).collect::<Vec<_>>();
        assert_eq!(
            ratio(&many, &far).unwrap().change(),
            Change::Larger,
            "twenty a side, by the normal limit"
        );
    }

    #[test]
    fn equal_values_are_no_difference_and_zeros_have_no_ratio() {
        let same = ratio(&[5.0; 6], &[5.0; 6]).unwrap();
        assert_eq!((same.estimate, same.low, same.high), (1.0, Some(1.0), Some(1.0)));
        assert_eq!(same.change(), Change::NotShown);
        assert_eq!(ratio(&[5.0; 6], &[10.0; 6]).unwrap().change(), Change::Larger);
        assert_eq!(ratio(&[0.0, 1.0], &[1.0]), None);
        assert_eq!(ratio(&[], &[1.0]), None);
        assert_eq!(ratio(&[f64::NAN], &[1.0]), None);
    }

    #[test]
    fn quantiles_of_the_normal_distribution_are_those_of_the_tables() {
        for (p, z) in [(0.5, 0.0), (0.975, 1.959_963_984_540_054), (0.01, -2.326_347_874_040_841)] {
            assert!((normal_quantile(p) - z).abs() < 1e-9, "{p}");
        }
    }

    proptest! {
        #[test]
        fn the_other_way_round_is_the_inverse(
            a in prop::collection::vec(1.0..2.0f64, 4..7),
            b in prop::collection::vec(1.0..2.0f64, 4..7),
        ) {
            let (there, back) = (ratio(&a, &b).unwrap(), ratio(&b, &a).unwrap());
            prop_assert!((there.low.unwrap() * back.high.unwrap() - 1.0).abs() < 1e-9);
            prop_assert!((there.high.unwrap() * back.low.unwrap() - 1.0).abs() < 1e-9);
            prop_assert!(there.low.unwrap() <= there.estimate && there.estimate <= there.high.unwrap());
        }

        #[test]
        fn the_unit_does_not_matter(a in prop::collection::vec(1.0..2.0f64, 6), scale in 1e-6..1e6f64) {
            let b: Vec<f64> = a.iter().rev().map(|v| v * 1.01).collect();
            let scaled = |side: &[f64]| side.iter().map(|v| v * scale).collect::<Vec<_>>();
            let (one, other) = (ratio(&a, &b).unwrap(), ratio(&scaled(&a), &scaled(&b)).unwrap());
            prop_assert!((one.low.unwrap() / other.low.unwrap() - 1.0).abs() < 1e-9);
        }
    }
}
