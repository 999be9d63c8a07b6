//! Whatever a file holds, reading it ends soon, with points whose figures can be calculated with or with an error.
//! `LOADLINE_FUZZ_CASES` sets how many cases each test tries.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use loadline_base::units::Rate;
use loadline_import::{Options, read};
use loadline_measure::analysis::{self, Group, analyse};
use loadline_measure::point::{Point, Stated};
use proptest::prelude::*;
use serde_json::Value;

fn cases() -> ProptestConfig {
    let cases = std::env::var("LOADLINE_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases.unwrap_or(200)) }
}

fn samples() -> Vec<(String, Vec<u8>)> {
    let mut names: Vec<String> = std::fs::read_dir(common::data())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.into_iter().map(|name| (name.clone(), common::bytes(&name))).collect()
}

fn check_point(point: &Point) {
    let plain = [
        point.block_bytes,
        point.write_percent,
        point.outstanding,
        point.rate_iops,
        point.window_s,
        point.iops.map(|stated| stated.half_digit),
    ];
    let stated = [
        point.iops,
        point.mean_us,
        point.min_us,
        point.max_us,
        point.ceiling_iops,
        point.ceiling_bytes_per_s,
        point.stated_percent,
        point.throughput.as_ref().map(|throughput| throughput.bytes_per_s),
    ];
    let percentiles = point.percentiles_us.iter().map(|(_, stated)| *stated);
    let all: Vec<Stated> = stated.into_iter().flatten().chain(percentiles).collect();
    let series = point.series.iter().flat_map(|part| [Some(part.at_s), Some(part.iops), part.mean_us]);
    let values = all.iter().flat_map(|stated| [stated.value, stated.half_digit]);
    for value in values.chain(plain.into_iter().flatten()).chain(series.flatten()) {
        assert!(value.is_finite() && value >= 0.0, "{value} in {point:?}");
    }
    assert!(point.write_percent.is_none_or(|percent| percent <= 100.0), "{point:?}");
    assert!(point.percentiles_us.iter().all(|(percent, _)| *percent > 0.0 && *percent < 100.0), "{point:?}");
}

/// What points come to, with all that a reader may state beside them.
fn check_analysis(points: Vec<Point>) {
    let options = analysis::Options {
        ceilings: vec![Rate::Iops(1e6), Rate::BytesPerSecond(1e9)],
        limit: Some("p99 <= 3ms".parse().unwrap()),
        ..analysis::Options::default()
    };
    let analysis = analyse(points, &options);
    // JSON has no NaN and no infinity: serde writes them as null, so that only figures that may be absent hide them.
    let groups = format!("{:?}", analysis.groups.iter().map(figures).collect::<Vec<_>>());
    assert!(!groups.contains("NaN") && !groups.contains("inf"), "{groups}");
    finite(&serde_json::to_value(&analysis).unwrap());
}

/// A group without its names, as text that shows figures which are none.
fn figures(group: &Group) -> String {
    let plain =
        Group { profile: String::new(), condition: None, at: None, cliffs: Vec::new(), ..group.clone() };
    let cliffs: Vec<_> = group.cliffs.iter().map(|cliff| (cliff.at_s, cliff.from, cliff.to)).collect();
    format!("{plain:?} {cliffs:?}")
}

fn finite(value: &Value) {
    match value {
        Value::Number(number) => assert!(number.as_f64().is_some_and(f64::is_finite), "{number}"),
        Value::Array(values) => values.iter().for_each(finite),
        Value::Object(values) => values.values().for_each(finite),
        _ => {}
    }
}

fn check(name: &str, bytes: &[u8]) {
    let begun = Instant::now();
    let options = Options { outstanding_per_worker: Some(1e17) };
    match read(Path::new(name), bytes, &options) {
        Ok(imported) => {
            assert!(!imported.format.is_empty());
            imported.points.iter().for_each(check_point);
            check_analysis(imported.points);
        }
        Err(error) => {
            assert!(!error.problem.is_empty() && !error.advice.is_empty());
            assert!(!error.to_string().chars().any(char::is_control), "{:?}", error.to_string());
        }
    }
    // It ends within some seconds; the bound leaves room for slow and busy computers.
    assert!(begun.elapsed() < Duration::from_secs(60), "{name} took {:?}", begun.elapsed());
}

/// One way in which a file is spoilt; places are shares of its length.
#[derive(Debug, Clone)]
enum Damage {
    Flip(f64, u8),
    Cut(f64),
    Remove(f64, usize),
    /// A piece of another place, put in here.
    Splice(f64, f64, usize),
    Insert(f64, Vec<u8>),
    /// The next number after this place becomes this text.
    Number(f64, &'static str),
}

const NUMBERS: [&str; 17] = [
    "-1",
    "0",
    "NaN",
    "inf",
    "-inf",
    "1e308",
    "1e999",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "4294967295",
    "0.0000000001",
    "1,5",
    "",
    "1e-400",
    "99999999999999999999999999999999999999999",
    "0e300",
];

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0.0..1.0_f64;
    prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Damage::Flip(at, byte)),
        at.clone().prop_map(Damage::Cut),
        (at.clone(), 1..200_usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        (at.clone(), at.clone(), 1..500_usize)
            .prop_map(|(from, to, length)| Damage::Splice(from, to, length)),
        (at.clone(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, new)| Damage::Insert(at, new)),
        (at.clone(), prop::sample::select(NUMBERS.to_vec())).prop_map(|(at, text)| Damage::Number(at, text)),
        (at, prop::sample::select(NUMBERS.to_vec())).prop_map(|(at, text)| Damage::Number(at, text)),
    ]
}

fn spoil(bytes: &mut Vec<u8>, damage: &Damage) {
    let length = bytes.len();
    let place = |share: f64| ((share * length as f64) as usize).min(length);
    match damage {
        Damage::Flip(at, byte) => {
            if let Some(old) = bytes.get_mut(place(*at)) {
                *old = *byte;
            }
        }
        Damage::Cut(at) => bytes.truncate(place(*at)),
        Damage::Remove(at, count) => {
            let from = place(*at);
            bytes.drain(from..(from + count).min(length));
        }
        Damage::Splice(from, to, count) => {
            let from = place(*from);
            let piece = bytes[from..(from + count).min(length)].to_vec();
            let to = place(*to);
            bytes.splice(to..to, piece);
        }
        Damage::Insert(at, new) => {
            let at = place(*at);
            bytes.splice(at..at, new.iter().copied());
        }
        Damage::Number(at, text) => {
            let digit = |byte: &u8| byte.is_ascii_digit() || *byte == b'.';
            let from = place(*at);
            let Some(start) = bytes[from..].iter().position(digit).map(|skip| from + skip) else { return };
            let end =
                bytes[start..].iter().position(|byte| !digit(byte)).map_or(length, |count| start + count);
            bytes.splice(start..end, text.bytes());
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn arbitrary_bytes_end_in_points_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        check("any", &bytes);
    }

    #[test]
    fn arbitrary_text_after_a_beginning_of_each_format_does_too(
        beginning in prop::sample::select(vec![
            "vms,profile,iops,latency_us\n", "iops\n", "{\"jobs\":[", "{", "<Results>", "<Profile><TimeSpans>",
            "VMs = 4\nIOPS = ", "\u{feff}a;iops\n", "sep=;\nvms;iops\n",
            "ISO date,operation,IOPS [last],IO lat us [avg]\n", "tod timestamp Run Interval rate resp\n",
            "Command Line: diskspd -g1 x\nInput parameters:\ntimespan: 1\npath: 'x'\nResults for timespan 1:\nTotal IO\n",
            "{\"jobs\":[{\"read\":{\"clat\":{},\"iops\":1,\"runtime\":",
        ]),
        rest in "[\\PC\n\",;{}<>/=:0-9eE.-]{0,300}",
    ) {
        check("text", format!("{beginning}{rest}").as_bytes());
    }

    #[test]
    fn spoilt_samples_end_in_points_or_an_error(
        (name, mut bytes) in prop::sample::select(samples()),
        damages in prop::collection::vec(damage(), 1..12),
    ) {
        damages.iter().for_each(|damage| spoil(&mut bytes, damage));
        check(&name, &bytes);
    }
}

#[test]
fn samples_as_they_are_give_figures_that_can_be_calculated_with() {
    for (name, bytes) in samples() {
        check(&name, &bytes);
    }
}

/// As many rows as are read.
fn table(header: &str, row: impl Fn(u32) -> String) -> String {
    let rows: Vec<String> = (0..199_999).map(row).collect();
    format!("{header}\n{}\n", rows.join("\n"))
}

#[test]
fn files_made_to_be_slow_end_soon() {
    for bytes in [
        "{}".repeat(500_000),
        "[".repeat(1_000_000),
        format!("iops\n{}", "1\n".repeat(199_999)),
        table("vms,profile,iops,latency_us", |row| format!("1,load {row},{row},5")),
        table("vms,profile,iops,engine", |row| format!("{},x,{row},{row}", row % 7)),
        format!("iops{}\n", ",a".repeat(500_000)),
        "\n".repeat(3_000_000),
        format!("iops\n\"{}", "1\n".repeat(500_000)),
        format!("<Results>{}</Results>", "<TimeSpan><Error>x</Error></TimeSpan>".repeat(20_000)),
        format!("<a{}/>", " a=''".repeat(500_000)),
        "<a>".repeat(500_000),
        "VMs = 1\nIOPS = 1 IO/S\n".repeat(9_000),
        "There are 1 VMs finished testing early, those\nVMs = 1\n".repeat(9_000),
    ] {
        check("slow", bytes.as_bytes());
    }
}
