//! The published tables of four studies: what the audit and the analysis say of them is checked by hand.

use std::path::Path;

use loadline_import::{Options, read};
use loadline_measure::analysis::{self, Analysis, LatencyLimit, analyse};
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_measure::saturation::Trend;

fn analysed(file: &str) -> Analysis {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
    let options = Options { outstanding_per_worker: Some(32.0) };
    let imported = read(&path, &std::fs::read(&path).unwrap(), &options).unwrap();
    let limit: LatencyLimit = "mean <= 5ms".parse().unwrap();
    analyse(imported.points, &analysis::Options { limit: Some(limit), ..analysis::Options::default() })
}

fn find<'a>(analysis: &'a Analysis, kind: FindingKind, part: &str) -> Vec<&'a Finding> {
    let about = |f: &&Finding| f.kind == kind && format!("{} {}", f.expected, f.found).contains(part);
    analysis.findings.iter().filter(about).collect()
}

#[test]
fn a_stripe_study_has_latencies_that_cannot_be_those_of_its_settings() {
    let one = analysed("vsan-4-node-diskspd-stripes-1.csv");
    // 37,321 × 1.22 ms = 45.5 of one machine that keeps 32: no averaging over machines explains it.
    let alone = find(
        &one,
        FindingKind::LittlesLaw,
        "at 1 worker: 37,321 × 1.22 ms = 45.5, for 32 outstanding (42 % more)",
    );
    assert!(alone[0].cause.contains("no average over workers"), "{alone:?}");
    let short = find(&one, FindingKind::LittlesLaw, "% less");
    assert!(
        !short.is_empty()
            && short.iter().all(|f| f.cause.contains("Averaging over workers cannot explain it"))
    );
    let two = analysed("vsan-4-node-diskspd-stripes-2.csv");
    // With seven machines every load but one is short, by about one machine.
    let seven = find(&two, FindingKind::LittlesLaw, "at 7 workers:");
    assert_eq!(seven.len(), 4, "{seven:#?}");
    assert!(seven.iter().all(|f| f.found.contains("of 7 workers keep")));
    for analysis in [one, two] {
        let unit = find(&analysis, FindingKind::Throughput, "it is MiB/s");
        assert_eq!((unit.len(), unit[0].severity), (1, Severity::Note), "one slip of the whole table");
        assert!(find(&analysis, FindingKind::Order, "").is_empty());
    }
}

#[test]
fn saturation_comes_where_the_study_saw_it() {
    let one = analysed("vsan-4-node-diskspd-stripes-1.csv");
    let of = |analysis: &Analysis, profile: &str| {
        analysis.groups.iter().find(|g| g.profile == profile).unwrap().saturation.unwrap()
    };
    // One stripe grows slowly to the end with 4K writes, and has the highest peak of 4K reads, at 13 machines.
    assert_eq!(of(&one, "4k-randwrite").after, Some(Trend::Rising));
    let reads = of(&one, "4k-randread");
    assert_eq!((reads.peak, reads.peak_at, reads.after), (304_747.0, 13.0, Some(Trend::Flat)));
    // Two stripes peak early.
    let two = analysed("vsan-4-node-diskspd-stripes-2.csv");
    let writes = of(&two, "4k-randwrite");
    assert_eq!((writes.peak, writes.peak_at, writes.after), (73_770.0, 6.0, Some(Trend::Flat)));
    let line = two.groups.iter().find(|g| g.profile == "64k-randread").unwrap();
    // 103,440 IOPS were measured with 8 machines; the limit held up to 14.
    let found = line.load_line.as_ref().unwrap();
    assert_eq!((found.held, line.load_at_line, line.held_to), (103_440.0, Some(8.0), Some(14.0)));
    assert_eq!(found.missed, Some(99_864.0));
}

#[test]
fn lost_nodes_and_more_machines_on_the_others_are_two_variables() {
    let azure = analysed("azure-stack-hci-4-node.csv");
    let two = find(
        &azure,
        FindingKind::TwoVariables,
        "4 nodes with 32 workers each, 3 nodes with 42.7 workers each",
    );
    assert_eq!(two.len(), 1, "{:#?}", azure.findings);
    let changes: Vec<(String, f64)> = azure
        .groups
        .iter()
        .filter_map(|g| Some((format!("{} {}", g.profile, g.condition.as_ref()?), g.against_first?)))
        .collect();
    for (what, percent) in [
        ("B4-T2-O32-W0-PR one-node-down", -10.0),
        ("B4-T2-O32-W0-PR two-nodes-down", -21.0),
        ("B4-T2-O16-W100-PR one-node-down", -36.0),
        ("B4-T2-O16-W100-PR two-nodes-down", -56.0),
    ] {
        let found = changes.iter().find(|(name, _)| name == what).unwrap().1;
        assert_eq!((100.0 * (found - 1.0)).round(), percent, "{what}");
    }
    assert!(!find(&azure, FindingKind::LittlesLaw, "88 % less").is_empty());
}

#[test]
fn more_than_the_drives_can_do_asks_for_its_cache_and_a_percentage_is_computed_again() {
    let starwind = analysed("starwind-12-node.csv");
    let over = find(&starwind, FindingKind::Ceiling, "101.6 % of it");
    assert!(over[0].cause.contains("a cache in memory"), "{over:?}");
    assert_eq!(find(&starwind, FindingKind::Ceiling, "103.5 % of it").len(), 1);
    assert_eq!(find(&starwind, FindingKind::Ceiling, "the stated 101.5 %").len(), 1);
    assert!(starwind.groups.iter().all(|g| g.saturation.is_none()), "one point of each load is no series");
}
