//! elbencho's CSV, made by hand after what writes it.

mod common;

use common::{bytes, error, near, sample, text};
use loadline_measure::analysis::{Axis, Options, analyse};
use loadline_measure::audit::FindingKind;

#[test]
fn phases_that_do_io_are_points_and_what_is_missing_is_said() {
    let imported = sample("elbencho.csv");
    assert_eq!((imported.format, imported.points.len()), ("elbencho CSV", 6), "MKDIRS does no I/O");
    let point = &imported.points[0];
    assert_eq!(point.profile, "lab, READ, 4 KiB, random");
    assert_eq!((point.workers, point.outstanding), (Some(2), Some(8.0)), "4 threads of each of 2 hosts");
    assert_eq!((point.block_bytes, point.write_percent), (Some(4096.0), Some(0.0)));
    let (iops, mean) = (point.iops.unwrap(), point.mean_us.unwrap());
    assert_eq!((iops.value, iops.half_digit, mean.value, mean.half_digit), (40_000.0, 1.0, 200.0, 1.0));
    let throughput = point.throughput.as_ref().unwrap();
    assert_eq!(
        (throughput.bytes_per_s.value, throughput.bytes_per_s.half_digit),
        (156.0 * 1_048_576.0, 1_048_576.0)
    );
    assert_eq!((point.window_s, point.percentiles_us.len(), point.samples), (Some(10.01), 0, None));
    assert!(imported.findings.iter().any(|finding| finding.expected == "percentiles"));
    assert!(imported.findings.iter().any(|finding| finding.found == "1 row of others, passed over"));
}

#[test]
fn depths_of_one_phase_are_a_curve() {
    let analysis = analyse(sample("elbencho.csv").points, &Options::default());
    let curve = analysis.groups.iter().find(|group| group.profile == "lab, READ, 4 KiB, random").unwrap();
    assert_eq!((curve.points, curve.axis, curve.most), (3, Some(Axis::Outstanding), Some(120_000.0)));
    assert!(
        !analysis.findings.iter().any(|finding| finding.kind == FindingKind::LittlesLaw),
        "{:?}",
        analysis.findings
    );
}

#[test]
fn mixed_reads_and_writes_are_one_point_and_uneven_or_limited_threads_have_no_known_depth() {
    let points = sample("elbencho.csv").points;
    let mixed = &points[3];
    near(mixed.iops.unwrap().value, 100_000.0);
    assert_eq!(mixed.write_percent, Some(30.0));
    near(mixed.mean_us.unwrap().value, (30_000.0 * 400.0 + 70_000.0 * 280.0) / 100_000.0);
    assert_eq!((mixed.max_us.unwrap().value, mixed.outstanding), (9_000.0, Some(32.0)));
    assert_eq!((points[4].outstanding, points[5].outstanding), (None, None));
    assert_eq!(points[4].profile, "lab, WRITE, 4 KiB, random, 4 threads, depth 4");
    assert_ne!(points[4].profile, points[5].profile, "another depth is no repeat");
    let imported = sample("elbencho.csv");
    let uneven = imported.findings.iter().find(|f| f.found.contains("60000 IOPS when the first had ended"));
    assert!(uneven.is_some(), "{:?}", imported.findings);
}

#[test]
fn a_file_without_io_and_a_cell_that_is_no_number_are_refused() {
    let whole = String::from_utf8(bytes("elbencho.csv")).unwrap();
    let header = whole.lines().take(2).collect::<Vec<_>>().join("\n");
    assert!(error("f", &header).problem.contains("no row states IOPS"));
    let comma = error("f", &whole.replace(",40000,40000,", ",40000,40k,"));
    assert!(comma.place.contains("IOPS [last]") && comma.problem.contains("40k"), "{comma}");
    let cut = whole.trim_end().rsplit_once(',').unwrap().0;
    assert!(error("f", cut).place.contains("line 8"));
    let with_mark = [b"\xef\xbb\xbf".as_slice(), whole.replace('\n', "\r\n").as_bytes()].concat();
    assert_eq!(
        text("f", &with_mark).unwrap().points.len(),
        6,
        "a byte order mark and ends of lines of Windows"
    );
}
