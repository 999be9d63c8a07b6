//! The analysis of points that are few, equal, contradictory or broken: never a panic, and never a figure from nothing.

use loadline_measure::analysis::{Analysis, Axis, Options, analyse};
use loadline_measure::audit::FindingKind;
use loadline_measure::point::{LatencyOf, Point, SeriesPoint, Stated, Throughput};
use loadline_measure::saturation::Trend;
use proptest::prelude::*;

fn point(workers: u32, iops: f64, mean_us: f64) -> Point {
    Point {
        place: format!("line {workers}"),
        profile: "4k-randread".into(),
        workers: Some(workers),
        outstanding: Some(f64::from(workers) * 8.0),
        iops: Some(Stated::exact(iops)),
        mean_us: Some(Stated::exact(mean_us)),
        ..Point::default()
    }
}

/// The limit of [`options`], microseconds.
const LIMIT_US: f64 = 2_000.0;

fn options() -> Options {
    Options { limit: Some("mean <= 2ms".parse().unwrap()), ..Options::default() }
}

fn kinds(analysis: &Analysis) -> Vec<FindingKind> {
    analysis.findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn one_point_is_no_series_and_has_no_load_line() {
    let one = analyse(vec![point(1, 8_000.0, 1_000.0)], &options());
    assert_eq!((one.groups.len(), kinds(&one)), (1, vec![]));
    let group = &one.groups[0];
    assert_eq!((group.axis, group.saturation, group.load_line, group.knee), (None, None, None, None));
    assert_eq!(group.most, Some(8_000.0));
    assert!(analyse(Vec::new(), &options()).groups.is_empty());
}

#[test]
fn single_points_are_held_to_the_limit_by_the_median_of_their_repeats() {
    let held = |points: Vec<Point>| {
        let group = analyse(points, &options()).groups.remove(0);
        assert_eq!((group.axis, &group.load_line), (None, &None));
        (group.held.map(|held| (held.within, held.latency_us)), group.judged)
    };
    let of = |mean_us: f64| point(4, 1_000.0, mean_us);
    assert_eq!(held(vec![of(LIMIT_US)]), (Some((true, Some(LIMIT_US))), 1));
    assert_eq!(held(vec![of(2.0 * LIMIT_US)]), (Some((false, Some(2.0 * LIMIT_US))), 1));
    let repeats = vec![of(1.0), of(1.0), of(9.0 * LIMIT_US)];
    assert_eq!(held(repeats).0, Some((true, Some(1.0))));
    let failed = Point { errors: 1, ..of(1.0) };
    assert_eq!(held(vec![failed]).0, Some((false, None)), "I/Os failed");
    let silent = Point { mean_us: None, ..of(1.0) };
    assert_eq!(held(vec![silent]), (None, 0), "nothing is known");
    let sweep = analyse(vec![of(1.0), point(8, 2_000.0, 2.0)], &options()).groups.remove(0);
    assert!(sweep.held.is_none() && sweep.load_line.is_some());
}

#[test]
fn equal_points_are_flat_and_have_no_knee() {
    let points = (1..=10).map(|workers| point(workers, 8_000.0, 1_000.0 * f64::from(workers))).collect();
    let flat = analyse(points, &options());
    let group = &flat.groups[0];
    assert_eq!((group.axis, group.knee), (Some(Axis::Workers), None));
    let saturation = group.saturation.unwrap();
    assert_eq!((saturation.after, saturation.bend, saturation.peak_at), (Some(Trend::Flat), None, 1.0));
    let line = group.load_line.unwrap();
    assert_eq!((line.held, line.missed), (8_000.0, Some(8_000.0)));
    assert_eq!((group.load_at_line, group.held_to), (Some(1.0), Some(2.0)));
}

#[test]
fn workers_that_reported_nothing_and_errors_are_findings_and_hold_no_limit() {
    let mut points: Vec<Point> = (1..=3).map(|n| point(n, 8_000.0 * f64::from(n), 1_000.0)).collect();
    points[1].lost_workers = 1;
    points[2].errors = 7;
    let found = analyse(points, &options());
    assert_eq!(kinds(&found), [FindingKind::Errors, FindingKind::LostWorkers]);
    let line = found.groups[0].load_line.unwrap();
    assert_eq!((line.held, line.missed), (8_000.0, Some(16_000.0)), "what failed holds nothing");
    let nothing = analyse(vec![point(1, 0.0, 0.0)], &options());
    assert_eq!(kinds(&nothing), [FindingKind::NothingMeasured]);
}

#[test]
fn what_rounding_took_is_not_held_against_littles_law() {
    let stated = |iops: &str, mean_ms: &str| {
        let mut point = point(1, 0.0, 0.0);
        point.iops = Stated::parse(iops);
        point.mean_us = Stated::parse(mean_ms).map(|mean| mean.scaled(1_000.0));
        kinds(&analyse(vec![point], &options()))
    };
    // 8 outstanding: 0.3 ms may be 0.25, and then 32,000 I/Os a second are right.
    assert_eq!(stated("32000", "0.3"), []);
    assert_eq!(stated("32000", "0.30"), [FindingKind::LittlesLaw]);
    assert_eq!(stated("32000", "0.25"), []);
}

#[test]
fn other_blocks_or_another_mix_are_another_load_and_not_a_repeat() {
    let other = |mut point: Point, write_percent: f64| {
        point.write_percent = Some(write_percent);
        point
    };
    let found =
        analyse(vec![other(point(1, 1_000.0, 1.0), 0.0), other(point(1, 9_000.0, 1.0), 100.0)], &options());
    let most: Vec<Option<f64>> = found.groups.iter().map(|group| group.most).collect();
    assert_eq!(most, [Some(1_000.0), Some(9_000.0)], "and not 5,000");
}

#[test]
fn an_offered_rate_that_was_not_carried_is_a_finding_and_so_is_more_than_either_ceiling() {
    let mut paced = point(1, 4_200.0, 1_000.0);
    (paced.rate_iops, paced.window_s) = (Some(16_000.0), Some(30.0));
    assert_eq!(kinds(&analyse(vec![paced], &options())), [FindingKind::RateNotMet]);
    let mut fast = point(1, 5_000.0, 1_600.0);
    fast.throughput =
        Some(Throughput { bytes_per_s: Stated::exact(5.24e9), unit: "B/s".into(), unit_bytes: 1.0 });
    let ceilings = ["1000000iops", "1GB/s"].map(|text| text.parse().unwrap()).to_vec();
    let found = analyse(vec![fast], &Options { ceilings, ..options() });
    assert_eq!(kinds(&found), [FindingKind::Ceiling]);
    assert!((found.groups[0].of_ceiling.unwrap() - 5.24).abs() < 1e-9);
}

#[test]
fn conditions_are_compared_where_both_were_measured() {
    let at = |condition: &str, outstanding: f64, iops: f64| {
        let mut point = point(1, iops, 1.0);
        (point.condition, point.outstanding) = (Some(condition.into()), Some(outstanding));
        point
    };
    let points = vec![at("healthy", 1.0, 2_000.0), at("healthy", 64.0, 50_000.0), at("down", 64.0, 25_000.0)];
    let found = analyse(points, &Options { audited: true, ..options() });
    let down = found.groups.iter().find(|g| g.condition.as_deref() == Some("down")).unwrap();
    assert_eq!(down.against_first, Some(0.5));
}

#[test]
fn a_window_that_slides_is_not_steady() {
    let mut sliding = point(1, 8_600.0, 930.0);
    sliding.series = (1..=100u32)
        .map(|s| SeriesPoint { at_s: f64::from(s), iops: 10_000.0 - 28.0 * f64::from(s), mean_us: None })
        .collect();
    assert_eq!(kinds(&analyse(vec![sliding], &options())), [FindingKind::NotSteady]);
}

#[test]
fn a_cliff_inside_a_window_is_told_with_its_time() {
    let mut cliff = point(1, 8_000.0, 1_000.0);
    cliff.series = (1..=60)
        .map(|s| SeriesPoint {
            at_s: f64::from(s),
            iops: if s <= 20 { 16_000.0 } else { 4_000.0 },
            mean_us: None,
        })
        .collect();
    let found = analyse(vec![cliff], &options());
    assert_eq!(kinds(&found), [FindingKind::LevelChange]);
    let finding = &found.findings[0];
    assert!(finding.found.contains("after 20 s from 16,000 to 4,000 IOPS"), "{finding}");
    assert!(finding.cause.contains("write buffer"), "{finding}");
}

fn figure() -> impl Strategy<Value = Option<Stated>> {
    prop_oneof![
        Just(None),
        prop_oneof![Just(0.0), Just(1.0), 0.0..1e18f64].prop_map(|v| Some(Stated::exact(v))),
        (0.0..1e6f64).prop_map(|v| Some(Stated { value: v, half_digit: 0.5 })),
    ]
}

fn any_point() -> impl Strategy<Value = Point> {
    let names = prop::sample::select(vec!["a", "b"]);
    let condition = prop::option::of(prop::sample::select(vec!["healthy", "down"]));
    let counts = (prop::option::of(0u32..5), prop::option::of(0u32..5), prop::option::of(0.0..1e3f64));
    let load =
        (prop::option::of(0.0..1e6f64), prop::option::of(0.0..1e7f64), prop::option::of(0.0..100.0f64));
    let figures = (figure(), figure(), figure(), figure(), figure(), figure());
    let series = prop::collection::vec(0.0..1e6f64, 0..40);
    (names, condition, counts, load, figures, series).prop_map(
        |(name, condition, counts, load, figures, series)| {
            let (iops, mean_us, p99, ceiling_iops, bytes, stated_percent) = figures;
            Point {
                profile: name.into(),
                condition: condition.map(Into::into),
                workers: counts.0,
                nodes: counts.1,
                outstanding: counts.2,
                rate_iops: load.0,
                block_bytes: load.1,
                write_percent: load.2,
                latency_of: LatencyOf::Read,
                percentiles_us: p99.map(|p| (99.0, p)).into_iter().collect(),
                throughput: bytes.map(|bytes_per_s| Throughput {
                    bytes_per_s,
                    unit: "MB/s".into(),
                    unit_bytes: 1e6,
                }),
                series: (1u32..)
                    .zip(series)
                    .map(|(s, iops)| SeriesPoint { at_s: f64::from(s), iops, mean_us: None })
                    .collect(),
                iops,
                mean_us,
                ceiling_iops,
                stated_percent,
                ..Point::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_points_make_it_panic_or_drop_one(points in prop::collection::vec(any_point(), 0..20)) {
        let count = points.len();
        for text in ["mean <= 2ms", "p99 <= 1s"] {
            let options = Options { limit: Some(text.parse().unwrap()), ..Options::default() };
            let found = analyse(points.clone(), &options);
            let shown: usize = found.groups.iter().map(|group| group.points).sum();
            prop_assert!(shown >= count, "{} of {} points are in a group", shown, count);
            let json = serde_json::to_value(&found).unwrap().to_string();
            prop_assert!(!json.contains("NaN") && !json.contains("inf"));
            for group in &found.groups {
                prop_assert!(group.most.is_none_or(f64::is_finite) && group.knee.is_none_or(f64::is_finite));
            }
        }
    }
}
