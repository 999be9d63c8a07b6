//! HCIBench's summaries, made by hand after what writes them.

mod common;

use common::{bytes, error, findings, near, sample, text};
use loadline_measure::analysis::analyse;
use loadline_measure::audit::{FindingKind, Severity};
use loadline_measure::point::LatencyOf;

const VDBENCH: &str = "vdb-8vmdk-100ws-4k-70rdpct-100randompct-4threads-1600171421-res.txt";
const FIO: &str = "fio-2vmdk-90ws-64k-70rdpct-100randompct-4threads-1600171999-res.txt";

#[test]
fn a_summary_of_vdbench_is_read_with_the_load_of_its_name() {
    let imported = sample(VDBENCH);
    assert_eq!((imported.format, imported.points.len()), ("HCIBench result", 1));
    let point = &imported.points[0];
    assert_eq!((point.workers, point.lost_workers, point.averaged), (Some(8), 2, true));
    assert_eq!((point.block_bytes, point.write_percent), (Some(4096.0), Some(30.0)));
    assert_eq!(point.outstanding, Some(8.0 * 4.0 * 8.0));
    near(point.iops.unwrap().value, 107985.49);
    near(point.throughput.as_ref().unwrap().bytes_per_s.value, 421.82e6);
    near(point.mean_us.unwrap().value, 2360.0);
    assert_eq!(point.latency_of, LatencyOf::All);
    assert!(point.percentiles_us.is_empty());
    assert!(imported.findings.iter().any(|finding| finding.cause.contains("no percentile of anything")));
    assert!(findings(&imported).contains(&(FindingKind::LostWorkers, Severity::Doubt)));
}

#[test]
fn a_summary_of_fio_weighs_reads_and_writes_by_the_share_asked_for() {
    let imported = sample(FIO);
    let point = &imported.points[0];
    assert_eq!((point.workers, point.lost_workers, point.outstanding), (Some(4), 1, Some(32.0)));
    near(point.mean_us.unwrap().value, 0.7 * 1200.0 + 0.3 * 2200.0);
    assert!(point.profile.starts_with("job0, fio-2vmdk"));
    let reads = text(&FIO.replace("70rdpct", "100rdpct"), &bytes(FIO)).unwrap();
    assert_eq!(
        (reads.points[0].latency_of, reads.points[0].mean_us.unwrap().value),
        (LatencyOf::Read, 1200.0)
    );
    let renamed = text("x.txt", &bytes(FIO)).unwrap();
    assert_eq!((renamed.points[0].outstanding, renamed.points[0].mean_us), (None, None));
    assert!(renamed.findings.iter().any(|finding| finding.cause.contains("Rename the file")));
}

#[test]
fn several_jobs_in_each_machine_have_no_known_depth() {
    let whole = String::from_utf8(bytes(FIO)).unwrap();
    let (block, rest) = whole.split_once("Resource").unwrap();
    let (_, second) = block.split_once("=\n").unwrap();
    let both = format!("{block}{}Resource{rest}", second.replace("job0", "job1"));
    let imported = text(FIO, both.as_bytes()).unwrap();
    assert_eq!(imported.points.len(), 2);
    assert!(imported.points.iter().all(|point| point.outstanding.is_none() && point.lost_workers == 1));
    assert!(imported.points[1].profile.starts_with("job1"));
}

#[test]
fn datastores_of_one_file_are_conditions() {
    let whole = String::from_utf8(bytes(VDBENCH)).unwrap();
    let both = format!("{whole}{}", whole.replace("vsanDatastore", "other"));
    let imported = text(VDBENCH, both.as_bytes()).unwrap();
    let conditions: Vec<_> = imported.points.iter().map(|point| point.condition.as_deref()).collect();
    assert_eq!(conditions, [Some("vsanDatastore"), Some("other")]);
    assert_eq!(analyse(imported.points, &Default::default()).groups.len(), 2);
    assert_eq!(sample(VDBENCH).points[0].condition, None, "one datastore needs no name");
    let same = text(VDBENCH, format!("{whole}{whole}").as_bytes()).unwrap();
    assert!(same.points.iter().all(|point| point.condition.is_none()));
}

#[test]
fn a_summary_in_other_units_or_without_machines_is_refused() {
    let whole = String::from_utf8(bytes(VDBENCH)).unwrap();
    let other = error("f", &whole.replace("2.36 ms", "2.36 us"));
    assert_eq!(other.place, "f, line 8");
    assert!(other.problem.contains("LATENCY is \"2.36 us\""), "{other}");
    assert!(error("f", &whole.replace("421.82", "421,82")).problem.contains("421,82"));
    let none =
        "Datastore     = d\nAll the VMs finished testing early, no results summarized\nResource Usage:\n";
    assert!(error("f", none).problem.contains("no virtual machine"));
}
