//! Every estimator beside what numpy and scipy compute of the same input (`reference/make.py`).

use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use loadline_measure::bootstrap;
use loadline_measure::change::levels;
use loadline_measure::difference::ratio;
use loadline_measure::knee::{SENSITIVITY, knee};
use loadline_measure::saturation::saturation;
use loadline_measure::spread::Spread;
use loadline_measure::stats::{isotonic, mean, noise, t_995};
use loadline_measure::steady::steadiness;
use serde_json::Value;

fn reference() -> Value {
    serde_json::from_str(include_str!("reference/reference.json")).unwrap()
}

fn cases(name: &str) -> Vec<Value> {
    let cases = reference()[name].as_array().cloned().unwrap();
    assert!(!cases.is_empty());
    cases
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn pairs(value: &Value) -> Vec<(f64, f64)> {
    value.as_array().unwrap().iter().map(numbers).map(|pair| (pair[0], pair[1])).collect()
}

/// Equal but for the last digits.
fn near(found: f64, expected: &Value) -> bool {
    let expected = expected.as_f64().unwrap();
    (found - expected).abs() <= 1e-6 * expected.abs().max(1e-3)
}

#[test]
fn steady_state_is_that_of_polyfit() {
    for case in cases("steadiness") {
        let found = steadiness(&numbers(&case["rounds"])).unwrap();
        for (value, name) in [(found.mean, "mean"), (found.range, "range"), (found.slope, "slope")] {
            assert!(near(value, &case[name]), "{name}: {found:?} for {case}");
        }
    }
}

#[test]
fn isotonic_regression_and_noise_are_those_of_scipy() {
    for case in cases("isotonic") {
        let found = isotonic(&numbers(&case["values"]));
        assert!(found.iter().zip(case["pooled"].as_array().unwrap()).all(|(f, e)| near(*f, e)), "{case}");
    }
    for case in cases("noise") {
        assert!(near(noise(&numbers(&case["values"])).unwrap(), &case["noise"]));
    }
}

#[test]
fn the_interval_of_a_median_is_the_binomial_one() {
    for case in cases("median_intervals") {
        let size = case["size"].as_u64().unwrap();
        let ranks: Vec<f64> = (0..size).map(|rank| rank as f64).collect();
        let found = Spread::of(&ranks).unwrap();
        assert!(near(found.low, &case["low"]) && near(found.high, &case["high"]), "{found:?} for {case}");
    }
}

#[test]
fn quantiles_of_students_t_are_those_of_scipy() {
    for case in cases("t_995") {
        let pair = numbers(&case);
        let found = t_995(pair[0] as usize);
        assert!((found / pair[1] - 1.0).abs() < 5e-3, "{found} for {case}");
    }
}

#[test]
fn the_interval_of_a_ratio_is_what_the_exact_test_does_not_reject() {
    for case in cases("ratios") {
        let found = ratio(&numbers(&case["a"]), &numbers(&case["b"])).unwrap();
        assert!(near(found.estimate, &case["estimate"]), "{found:?} for {case}");
        assert!(near(found.low.unwrap(), &case["low"]), "{found:?} for {case}");
        assert!(near(found.high.unwrap(), &case["high"]), "{found:?} for {case}");
    }
}

#[test]
fn a_bend_is_where_least_squares_and_the_information_criterion_put_it() {
    for case in cases("bends") {
        let found = saturation(&pairs(&case["points"])).unwrap();
        assert_eq!(found.bend, case["bend"].as_f64(), "{found:?} for {case}");
        assert!(near(found.slope.unwrap(), &case["slope"]) && near(found.noise.unwrap(), &case["noise"]));
        assert_eq!(
            serde_json::to_value(found.after.unwrap()).unwrap(),
            case["after"],
            "{found:?} for {case}"
        );
    }
}

#[test]
fn a_knee_is_where_the_curve_is_farthest_below_its_chord() {
    for case in cases("knees") {
        assert_eq!(knee(&pairs(&case["points"]), SENSITIVITY), case["knee"].as_u64().map(|k| k as usize));
    }
}

#[test]
fn the_levels_of_a_series_are_its_cheapest_partition() {
    for case in cases("partitions") {
        let found = levels(&numbers(&case["series"]));
        let mut bounds: Vec<f64> = found.iter().map(|level| level.from as f64).collect();
        bounds.extend(found.last().map(|level| level.to as f64));
        assert_eq!(bounds, numbers(&case["bounds"]), "{case}");
        let heights = found.iter().zip(case["levels"].as_array().unwrap());
        assert!(heights.into_iter().all(|(level, expected)| near(level.level, expected)));
    }
}

#[test]
fn the_bootstrap_of_a_mean_is_scipys_but_for_the_chance_of_its_draws() {
    for case in cases("bootstraps") {
        let values = numbers(&case["values"]);
        let drawn = |groups: &[Vec<usize>]| mean(&groups[0].iter().map(|i| values[*i]).collect::<Vec<_>>());
        let (low, high) = bootstrap::interval(&[values.len()], drawn).unwrap();
        let (expected_low, expected_high) = (case["low"].as_f64().unwrap(), case["high"].as_f64().unwrap());
        let width = expected_high - expected_low;
        // A thousand draws place a 2.5 % quantile to some 5 % of the interval's width.
        assert!((low - expected_low).abs() < 0.12 * width && (high - expected_high).abs() < 0.12 * width);
    }
}

#[test]
fn quantiles_of_merged_histograms_are_within_one_percent_of_the_exact_ones() {
    for case in cases("quantiles") {
        let mut parts = vec![LatencyHistogram::new(); 7];
        for (at, sample) in numbers(&case["samples"]).into_iter().enumerate() {
            parts[at % 7].record(Nanos(sample as u64));
        }
        let mut merged = LatencyHistogram::new();
        parts.iter().for_each(|part| merged.merge(part));
        for (share, exact) in numbers(&case["shares"]).into_iter().zip(numbers(&case["quantiles"])) {
            let found = merged.quantile(share).unwrap().0 as f64;
            assert!((found / exact - 1.0).abs() < 0.01, "{found} for {exact}: {share} of {}", case["of"]);
        }
    }
}

#[test]
fn percentiles_of_a_hundred_million_merged_samples_are_within_one_percent_of_the_exact_ones() {
    const SAMPLES: u64 = 100_000_000;
    // Sample i of a permutation of 0..SAMPLES: the quantiles are known exactly without sorting.
    const STEP: u64 = 61_803_399;
    // From 1 us to 10 s, more of the short ones: what a storage with a tail does.
    let latency = |rank: u64| {
        let share = rank as f64 / SAMPLES as f64;
        (1_000.0 / (1.0 - share).max(1e-7)) as u64 + 50_000 * rank / SAMPLES
    };
    let mut workers = vec![LatencyHistogram::new(); 64];
    for i in 0..SAMPLES {
        let rank = i * STEP % SAMPLES;
        workers[(i % 64) as usize].record(Nanos(latency(rank)));
    }
    let mut fleet = LatencyHistogram::new();
    workers.iter().for_each(|worker| fleet.merge(&worker.encode().decode().unwrap()));
    assert_eq!(fleet.count(), SAMPLES);
    for beyond in [500_000, 100_000, 50_000, 10_000, 1_000, 100, 10] {
        let rank = SAMPLES - SAMPLES / 1_000_000 * beyond - 1;
        let exact = latency(rank) as f64;
        let found = fleet.quantile(1.0 - beyond as f64 / 1e6).unwrap().0 as f64;
        assert!((found / exact - 1.0).abs() < 0.01, "{found} for {exact}, {beyond} in a million beyond");
    }
}
