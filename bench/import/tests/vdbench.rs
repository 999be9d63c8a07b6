//! vdbench's flat file, made by hand after what writes it.

mod common;

use common::{bytes, error, near, sample, text};
use loadline_measure::audit::{FindingKind, Severity};

#[test]
fn each_run_is_a_point_over_the_intervals_that_it_averages() {
    let imported = sample("vdbench-flatfile.html");
    assert_eq!(
        (imported.format, imported.points.len()),
        ("vdbench flatfile", 2),
        "SD_format is no measurement"
    );
    let [most, tenth] = imported.points.as_slice() else { panic!() };
    assert_eq!((most.profile.as_str(), most.family(), tenth.family()), ("rd1_(100%)", "rd1", "rd1"));
    assert_eq!((most.rate_iops, tenth.rate_iops), (None, Some(2_000.0)));
    assert_eq!((most.iops.unwrap().value, most.mean_us.unwrap().value), (20_030.0, 400.0));
    near(most.max_us.unwrap().value, 3_600.0);
    assert_eq!((most.block_bytes, most.write_percent), (Some(4096.0), Some(30.0)));
    near(most.throughput.as_ref().unwrap().bytes_per_s.value, 78.2422 * 1_048_576.0);
    assert_eq!(most.window_s, Some(3.0));
    let series: Vec<(f64, f64)> = most.series.iter().map(|part| (part.at_s, part.iops)).collect();
    assert_eq!(series, [(1.0, 20_020.0), (2.0, 20_030.0), (3.0, 20_040.0)], "the first is warm-up");
    assert_eq!((most.outstanding, most.percentiles_us.len()), (None, 0));
    let expected: Vec<&str> = imported.findings.iter().map(|finding| finding.expected.as_str()).collect();
    assert_eq!(expected, ["runs that measure", "the number of I/Os outstanding", "percentiles"]);
}

#[test]
fn threads_that_differ_are_different_loads() {
    let whole = String::from_utf8(bytes("vdbench-flatfile.html")).unwrap();
    let other = whole.replace("(10%)", "(20%)").replace(" 4096 8 70 ", " 4096 32 70 ");
    let both = text("f", format!("{whole}{other}").as_bytes()).unwrap();
    let families: Vec<&str> = both.points.iter().map(|point| point.family()).collect();
    assert_eq!(families, ["rd1, 8 threads", "rd1, 8 threads", "rd1, 32 threads", "rd1, 32 threads"]);
}

#[test]
fn file_systems_count_reads_and_writes() {
    let file = "<title>Vdbench output/flatfile.html</title><pre>\n\
                tod timestamp Run Interval Reqrate Rate Resp MB/sec Read_rate Read_resp Write_rate Write_resp Xfersize Threads\n\
                10:00:01.000 x fwd1 1 9999988 500 1 2 300 1.0 100 2.0 n/a 8\n\
                10:00:02.000 x fwd1 2 9999988 500 1 2 300 1.0 100 2.0 n/a 8\n\
                10:00:02.001 x fwd1 avg_2-2 9999988 500 1 2 300 1.0 100 2.0 n/a 8\n";
    let imported = text("f", file.as_bytes()).unwrap();
    let point = &imported.points[0];
    assert_eq!((point.iops.unwrap().value, point.mean_us.unwrap().value), (400.0, 1_250.0));
    assert_eq!((point.block_bytes, point.rate_iops), (None, None));
    assert!(imported.findings.iter().any(|finding| finding.found.contains("files and directories")));
}

#[test]
fn other_pages_and_runs_that_did_not_end_are_refused_and_broken_rows_are_doubtful() {
    assert!(
        error("f", "<title>Vdbench output/summary.html</title><pre>\nx\n").advice.contains("flatfile.html")
    );
    let whole = String::from_utf8(bytes("vdbench-flatfile.html")).unwrap();
    let unfinished: String =
        whole.lines().filter(|line| !line.contains("avg_")).map(|l| format!("{l}\n")).collect();
    assert!(error("f", &unfinished).problem.contains("none was complete"));
    let broken = text("f", whole.replacen(" 2 2000 2020 ", " 2 2000 ", 1).as_bytes()).unwrap();
    assert_eq!(
        (broken.findings[0].kind, broken.findings[0].severity),
        (FindingKind::MissingIntervals, Severity::Doubt)
    );
    assert!(error("f", &whole.replace(" 20030 ", " 20.030,1 ")).problem.contains("20.030,1"));
}
