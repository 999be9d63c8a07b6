//! What the decisions are worth: searches and comparisons of simulated storage whose truth is known, over many seeds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use loadline_base::clock::Nanos;
use loadline_base::histogram::LatencyHistogram;
use loadline_measure::change::levels;
use loadline_measure::difference::{Change, ratio};
use loadline_measure::saturation::{Trend, saturation};
use loadline_measure::search::{Next, Probe, Scale, Search, SearchOutcome};
use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

struct Chance(Xoshiro256PlusPlus);

impl Chance {
    fn new(seed: u64) -> Chance {
        Chance(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Above 0, up to 1.
    fn share(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.share().ln()
    }

    /// By Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.share().ln()).sqrt() * (std::f64::consts::TAU * self.share()).cos()
    }
}

/// Runs a search against a storage: whether a load of so much holds the limit. What it found, and after how many
/// measurements.
fn searched(search: Search, mut holds: impl FnMut(f64) -> bool) -> (SearchOutcome, usize) {
    let mut probes: Vec<Probe> = Vec::new();
    loop {
        match search.next(&probes) {
            Next::Measure(load) => probes.push(Probe { load, held: holds(load) }),
            Next::Done(found) => {
                assert_borne_out(found, &probes);
                return (found, probes.len());
            }
        }
        assert!(probes.len() < 1000, "it does not end: {probes:?}");
    }
}

/// What a search states of a load is what most of its measurements said.
fn assert_borne_out(found: SearchOutcome, probes: &[Probe]) {
    let (held, missed) = match found {
        SearchOutcome::Bracket { held, missed } => (Some(held), Some(missed)),
        SearchOutcome::Nothing { missed } => (None, Some(missed)),
        SearchOutcome::Everything { held } => (Some(held), None),
        SearchOutcome::Undecided => (None, None),
    };
    for (load, expected) in [(held, true), (missed, false)] {
        let Some(load) = load else { continue };
        let mine: Vec<bool> = probes.iter().filter(|p| p.load == load).map(|p| p.held).collect();
        let agree = mine.iter().filter(|held| **held == expected).count();
        assert!(2 * agree > mine.len(), "{load} of {found:?}: {mine:?}");
    }
}

/// An M/M/c queue: Poisson arrivals, exponential service, `SERVERS` servers, first come first served.
const SERVERS: usize = 8;
const SERVICE_US: f64 = 800.0;
const LIMIT_US: f64 = 6_000.0;

/// The 99th percentile of the response times of so many requests at this rate, microseconds.
fn queue_p99(rate: f64, requests: u32, chance: &mut Chance) -> f64 {
    let mut free: BinaryHeap<Reverse<u64>> = (0..SERVERS).map(|_| Reverse(0)).collect();
    let (mut histogram, mut now_us) = (LatencyHistogram::new(), 0.0);
    for request in 0..requests {
        now_us += chance.exponential(1e6 / rate);
        let arrives = (now_us * 1e3) as u64;
        let Reverse(begins) = free.pop().unwrap();
        let ends = begins.max(arrives) + (chance.exponential(SERVICE_US) * 1e3) as u64;
        free.push(Reverse(ends));
        // The first tenth warms up.
        if request >= requests / 10 {
            histogram.record(Nanos(ends - arrives));
        }
    }
    histogram.quantile(0.99).unwrap().as_micros()
}

/// P(response > t) of the queue (Erlang C, and service beside an exponential wait), from which its capacity follows.
fn queue_capacity() -> f64 {
    let beyond = |rate: f64| {
        let (mu, c) = (1e6 / SERVICE_US, SERVERS as f64);
        let offered = rate / mu;
        let (mut term, mut sum) = (1.0, 1.0);
        for k in 1..SERVERS {
            term *= offered / k as f64;
            sum += term;
        }
        let waiting = term * offered / c / (1.0 - offered / c);
        let waits = waiting / (sum + waiting);
        let (a, t) = (c * mu - rate, LIMIT_US / 1e6);
        (-mu * t).exp() + waits * mu * ((-a * t).exp() - (-mu * t).exp()) / (mu - a)
    };
    let (mut low, mut high) = (1.0, SERVERS as f64 * 1e6 / SERVICE_US);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if beyond(middle) <= 0.01 { low = middle } else { high = middle }
    }
    low
}

/// Loads from the lowest to the highest that the search had to tell apart, each by `width` above the one before.
fn grid(width: f64) -> usize {
    ((2.0 * 1.1f64).ln() / (1.0 + width).ln()).ceil() as usize
}

#[test]
fn the_search_brackets_the_capacity_of_a_queue_in_95_of_100_runs_and_in_fewer_steps_than_a_grid() {
    let capacity = queue_capacity();
    let (mut right, mut steps) = (0, 0);
    for seed in 0..100 {
        let mut chance = Chance::new(seed);
        // The figure of a closed loop beforehand, a few percent off.
        let most = SERVERS as f64 * 1e6 / SERVICE_US * (1.0 + 0.03 * chance.normal());
        let search = Search { scale: Scale::Real { most, width: 0.05, least: 0.0 }, repeats: 3 };
        let (found, took) = searched(search, |rate| queue_p99(rate, 150_000, &mut chance) <= LIMIT_US);
        steps += took;
        if let SearchOutcome::Bracket { held, missed } = found {
            assert!(missed / held <= 1.0 + 0.05 + 1e-9, "seed {seed}: {held} to {missed}");
            right += usize::from((held..=missed).contains(&capacity));
        }
    }
    println!("right in {right} of 100, {} steps each, a grid has {}", steps / 100, grid(0.05));
    assert!(right >= 95, "right in {right} of 100");
    assert!(steps < 100 * grid(0.05), "{steps} steps in all, a grid has {} each", grid(0.05));
}

#[test]
fn the_search_finds_a_cliff_although_one_measurement_in_thirty_is_an_outlier() {
    let (mut right, mut steps) = (0, 0);
    for seed in 0..100 {
        let mut chance = Chance::new(1_000 + seed);
        let most = 100_000.0;
        let capacity = most * (0.15 + 0.8 * chance.share());
        let search = Search { scale: Scale::Real { most, width: 0.05, least: 0.0 }, repeats: 3 };
        let (found, took) = searched(search, |rate| {
            let outlier = chance.share() < 1.0 / 30.0;
            !outlier && rate <= capacity * (1.0 + 0.003 * chance.normal())
        });
        steps += took;
        if let SearchOutcome::Bracket { held, missed } = found {
            right += usize::from((held..=missed).contains(&capacity));
        }
    }
    println!(
        "right in {right} of 100, {} steps each, a grid with as many repeats has {}",
        steps / 100,
        3 * grid(0.05)
    );
    assert!(right >= 95, "right in {right} of 100");
    assert!(steps < 100 * 3 * grid(0.05));
}

#[test]
fn the_search_over_workers_finds_neighbours_and_measures_each_often_enough() {
    for capacity in 0..=24u32 {
        let mut measured = Vec::new();
        let search = Search { scale: Scale::Whole { most: 20 }, repeats: 3 };
        let (found, _) = searched(search, |workers| {
            measured.push(workers);
            workers <= f64::from(capacity)
        });
        let times = |load: f64| measured.iter().filter(|m| **m == load).count();
        match found {
            SearchOutcome::Bracket { held, missed } => {
                assert_eq!((held, missed), (f64::from(capacity), f64::from(capacity) + 1.0));
                assert!(times(held) >= 3 && times(missed) >= 3, "{measured:?}");
            }
            SearchOutcome::Nothing { missed } => assert_eq!((capacity, missed, times(1.0)), (0, 1.0, 3)),
            SearchOutcome::Everything { held } => {
                assert!(capacity >= 20 && held == 20.0 && times(20.0) == 3, "{measured:?}");
            }
            SearchOutcome::Undecided => panic!("{capacity}: {measured:?}"),
        }
        assert!(measured.iter().all(|m| (1.0..=20.0).contains(m)));
    }
}

#[test]
fn an_end_whose_two_measurements_disagree_is_measured_a_third_time() {
    let search = Search { scale: Scale::Whole { most: 4 }, repeats: 2 };
    for third in [true, false] {
        let mut of_three = [true, false, third].into_iter();
        let (found, took) = searched(search, |workers| match workers {
            3.0 => of_three.next().unwrap(),
            workers => workers < 3.0,
        });
        let (held, missed) = if third { (3.0, 4.0) } else { (2.0, 3.0) };
        assert_eq!(found, SearchOutcome::Bracket { held, missed }, "after {took} measurements");
        assert_eq!(of_three.next(), None, "all three were asked for");
    }
}

#[test]
fn an_edge_that_blurs_gives_a_bracket_that_was_seen() {
    let mut undecided = 0;
    for seed in 0..500 {
        let mut chance = Chance::new(seed);
        let search = Search { scale: Scale::Real { most: 1_000.0, width: 0.05, least: 0.0 }, repeats: 6 };
        let (found, _) = searched(search, |load| {
            let probability = 1.0 / (1.0 + ((load / 700.0 - 1.0) / 0.03).exp());
            chance.share() < probability
        });
        undecided += usize::from(found == SearchOutcome::Undecided);
    }
    assert!(undecided <= 50, "{undecided} of 500 undecided");
}

#[test]
fn a_search_ends_whatever_is_measured() {
    for seed in 0..2_000 {
        let mut chance = Chance::new(seed);
        let bias = chance.share();
        let scale = match seed % 2 {
            0 => Scale::Real { most: 1e5, width: 0.05, least: 0.0 },
            _ => Scale::Whole { most: 1 + (seed % 50) as u32 },
        };
        let search = Search { scale, repeats: 1 + (seed % 6) as u32 };
        let (_, took) = searched(search, |_| chance.share() < bias);
        assert!(took <= 40 + 12, "seed {seed}: {took}");
    }
    let search = Search { scale: Scale::Real { most: 1e5, width: 0.05, least: 0.0 }, repeats: 2 };
    assert!(matches!(searched(search, |_| true).0, SearchOutcome::Everything { .. }));
    assert!(matches!(searched(search, |_| false).0, SearchOutcome::Nothing { .. }));
    let scale = Scale::Real { most: 1e5, width: 0.05, least: 3_000.0 };
    let mut loads = Vec::new();
    let found = searched(Search { scale, ..search }, |load| {
        loads.push(load);
        false
    });
    assert_eq!(
        found.0,
        SearchOutcome::Nothing { missed: 3_000.0 },
        "not below the least that says something: {loads:?}"
    );
}

#[test]
fn comparing_six_repeats_with_six_of_the_same_calls_a_difference_in_at_most_8_percent() {
    let called = pairs(1.0, |change| change != Change::NotShown);
    println!("{called} of 1000 called different");
    assert!(called <= 80, "{called} of 1000");
}

#[test]
fn comparing_six_repeats_with_six_that_are_ten_percent_faster_finds_it_in_at_least_78_percent() {
    let found = pairs(1.1, |change| change == Change::Larger);
    println!("{found} of 1000 found");
    assert!(found >= 780, "{found} of 1000");
}

/// Over a thousand pairs of six repeats a side, at 5 % noise, B being `truth` times A: how many are called so.
fn pairs(truth: f64, called: impl Fn(Change) -> bool) -> usize {
    let mut chance = Chance::new(7);
    let mut side = |middle: f64| (0..6).map(|_| middle * (1.0 + 0.05 * chance.normal())).collect::<Vec<_>>();
    (0..1000)
        .filter(|_| {
            let (a, b) = (side(20_000.0), side(20_000.0 * truth));
            called(ratio(&a, &b).unwrap().change())
        })
        .count()
}

#[test]
fn growing_series_are_told_rising_flat_and_falling_through_five_percent_of_noise() {
    let shape = |after: f64| move |x: f64| x.min(8.0) / 8.0 + after * (x - 8.0).max(0.0);
    for (after, trend) in [(0.05, Trend::Rising), (0.0, Trend::Flat), (-0.04, Trend::Falling)] {
        let mut chance = Chance::new(99);
        let right = (0..200)
            .filter(|_| {
                let noisy = |n: u32| {
                    let workers = f64::from(n);
                    (workers, 1e5 * shape(after)(workers) * (1.0 + 0.05 * chance.normal()))
                };
                saturation(&(1..=20).map(noisy).collect::<Vec<_>>()).unwrap().after == Some(trend)
            })
            .count();
        println!("{trend:?}: right in {right} of 200");
        assert!(right >= 180, "{trend:?}: right in {right} of 200");
    }
}

#[test]
fn a_cliff_is_told_from_a_quarter_of_noise() {
    let mut chance = Chance::new(5);
    let mut series = |cliff: f64| -> Vec<f64> {
        (0..120)
            .map(|s| if s < 70 { 1.0 } else { cliff })
            .map(|l| 1e4 * l * (1.0 + 0.25 * chance.normal()).max(0.0))
            .collect()
    };
    let alarms = (0..200).filter(|_| levels(&series(1.0)).len() > 1).count();
    let found = (0..200)
        .filter(|_| {
            let found = levels(&series(0.5));
            found.len() == 2 && found[0].to.abs_diff(70) <= 3
        })
        .count();
    println!("{alarms} false alarms and {found} of 200 found");
    assert!(alarms <= 10 && found >= 180, "{alarms} false alarms, {found} of 200 found");
}
