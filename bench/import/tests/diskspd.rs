//! DISKSPD's XML and text, made by hand after what writes them.

mod common;

use common::{bytes, error, findings, near, sample, text};
use loadline_import::curves::join;
use loadline_measure::audit::{FindingKind, Severity};
use loadline_measure::point::LatencyOf;

fn changed(from: &str, to: &str) -> String {
    let whole = String::from_utf8(bytes("diskspd-result.xml")).unwrap();
    assert!(whole.contains(from), "{from}");
    whole.replace(from, to)
}

#[test]
fn a_result_says_its_load_and_its_figures() {
    let imported = sample("diskspd-result.xml");
    assert_eq!((imported.format, imported.points.len()), ("DISKSPD XML", 1));
    let point = &imported.points[0];
    assert_eq!((point.profile.as_str(), point.workers), ("B4-T2-O16-W30-PR", Some(1)));
    assert_eq!((point.block_bytes, point.write_percent), (Some(4096.0), Some(30.0)));
    assert_eq!((point.outstanding, point.rate_iops, point.window_s), (Some(32.0), None, Some(3.0)));
    near(point.iops.unwrap().value, 32_000.0);
    near(point.iops.unwrap().half_digit, 32_000.0 * 0.005 / 3.0);
    near(point.throughput.as_ref().unwrap().bytes_per_s.value, 32_000.0 * 4096.0);
    assert_eq!((point.latency_of, point.samples), (LatencyOf::All, Some(96_000)));
    let us = |stated: Option<loadline_measure::point::Stated>| stated.unwrap().value;
    assert_eq!((us(point.min_us), us(point.mean_us), us(point.max_us)), (101.0, 1000.0, 9000.0));
    let percents: Vec<f64> = point.percentiles_us.iter().map(|(percent, _)| *percent).collect();
    assert_eq!(percents, [50.0, 99.0], "96 samples lie beyond 99.9 %");
    assert_eq!(findings(&imported), [(FindingKind::Adjusted, Severity::Note)]);
    assert_eq!(point.series.len(), 3);
    assert_eq!((point.series[1].at_s, point.series[1].iops), (2.0, 32_000.0));
    near(point.series[0].mean_us.unwrap(), (22_000.0 * 800.0 + 10_000.0 * 1440.0) / 32_000.0);
}

#[test]
fn a_profile_is_what_diskspd_is_given_and_no_result() {
    let whole = String::from_utf8(bytes("diskspd-result.xml")).unwrap();
    let (_, rest) = whole.split_once("<Profile>").unwrap();
    let (profile, _) = rest.split_once("</Profile>").unwrap();
    let refused = error("p.xml", &format!("<Profile>{profile}</Profile>"));
    assert!(refused.problem.contains("XML profile") && refused.problem.contains("no results"), "{refused}");
    assert!(refused.advice.contains("-Rxml"), "{refused}");
}

#[test]
fn fixed_threads_serve_every_target() {
    let profile = |span: &str, targets: &str| {
        let xml = format!(
            "<Results><Profile><TimeSpans><TimeSpan>{span}<Targets>{targets}</Targets></TimeSpan></TimeSpans></Profile>\
             <TimeSpan><TestTimeSeconds>1</TestTimeSeconds><Thread><Target><BytesCount>4096</BytesCount>\
             <IOCount>1</IOCount></Target></Thread></TimeSpan></Results>"
        );
        let point = text("p.xml", xml.as_bytes()).unwrap().points.remove(0);
        (point.outstanding, point.rate_iops)
    };
    let two =
        "<Target><RequestCount>8</RequestCount></Target><Target><RequestCount>4</RequestCount></Target>";
    assert_eq!(profile("", two), (Some(12.0), None));
    assert_eq!(profile("<ThreadCount>3</ThreadCount>", two), (Some(36.0), None));
    assert_eq!(
        profile("<ThreadCount>3</ThreadCount><RequestCount>5</RequestCount>", two),
        (Some(15.0), None)
    );
    assert_eq!(profile("", "<Target/>"), (Some(2.0), None), "as DISKSPD has it by default");
    let slow = "<Target><BlockSize>4096</BlockSize><Throughput>4096</Throughput></Target>";
    assert_eq!(profile("", slow), (None, Some(1000.0)), "bytes a millisecond");
    let thinks = "<Target><ThinkTime>5</ThinkTime><BurstSize>2</BurstSize></Target>";
    assert_eq!(profile("", thinks), (None, None));
}

#[test]
fn files_of_powershell_in_utf_16_are_read() {
    let mut wide = vec![0xff, 0xfe];
    let whole = String::from_utf8(bytes("diskspd-result.xml")).unwrap();
    whole.encode_utf16().for_each(|unit| wide.extend(unit.to_le_bytes()));
    assert_eq!(text("w.xml", &wide).unwrap().points.len(), 1);
}

#[test]
fn a_test_that_was_interrupted_or_threads_that_did_nothing_are_doubtful() {
    let whole = changed("<TestTimeSeconds>", "<Error>The test was interrupted</Error><TestTimeSeconds>");
    let stopped = text("f", whole.as_bytes()).unwrap();
    assert_eq!((stopped.points[0].iops, stopped.points[0].lost_workers), (None, 1));
    assert_eq!(findings(&stopped), [(FindingKind::LostWorkers, Severity::Doubt)]);
    let whole = changed("<Id>1</Id>", "<Id>1</Id></Thread><Thread>");
    let idle = text("f", whole.as_bytes()).unwrap();
    assert!(findings(&idle).contains(&(FindingKind::LostWorkers, Severity::Doubt)), "{:?}", idle.findings);
}

#[test]
fn results_without_latencies_have_none() {
    let whole = String::from_utf8(bytes("diskspd-result.xml")).unwrap();
    let (before, rest) = whole.split_once("<Latency ").unwrap();
    let (_, after) = rest.split_once("</Latency>").unwrap();
    let imported = text("f", format!("{before}{after}").as_bytes()).unwrap();
    assert_eq!((imported.points[0].mean_us, imported.points[0].min_us), (None, None));
    near(imported.points[0].iops.unwrap().value, 32_000.0);
}

#[test]
fn reads_alone_are_latencies_of_reads() {
    let whole = changed("AverageTotalMilliseconds", "Other").replace("TotalMilliseconds", "Other");
    let point = text("f", whole.as_bytes()).unwrap().points.remove(0);
    assert_eq!((point.latency_of, point.mean_us.unwrap().value), (LatencyOf::Read, 800.0));
}

#[test]
fn figures_that_are_none_are_refused_with_their_element() {
    let broken = changed("<IOCount>48000</IOCount>", "<IOCount>-48000</IOCount>");
    let error_ = error("r.xml", &broken);
    assert_eq!(error_.place, "r.xml, Results/TimeSpan/Thread/Target");
    assert!(error_.problem.contains("<IOCount> is \"-48000\""), "{error_}");
    assert!(error("f", &changed("1.000</Average", "1,000</Average")).problem.contains("1,000"));
    assert!(error("f", &changed("3.00</Test", "0</Test")).problem.contains("TestTimeSeconds"));
    assert!(error("f", "<html><body/></html>").problem.contains("no result of DISKSPD"));
    assert!(error("f", "<Results/>").problem.contains("TimeSpan"));
}

#[test]
fn a_result_that_is_cut_off_is_refused() {
    let whole = bytes("diskspd-result.xml");
    let error = text("f", &whole[..whole.len() - 300]).unwrap_err();
    assert!(error.problem.contains("ends in the middle"), "{error}");
}

fn us(stated: Option<loadline_measure::point::Stated>) -> f64 {
    stated.unwrap().value
}

#[test]
fn text_says_the_same_as_xml() {
    let imported = sample("diskspd-2.0.txt");
    assert_eq!((imported.format, imported.points.len()), ("DISKSPD text", 1));
    let point = &imported.points[0];
    assert_eq!((point.profile.as_str(), point.workers), ("B4-T2-O16-W30-PR", Some(1)));
    assert_eq!((point.block_bytes, point.write_percent), (Some(4096.0), Some(30.0)));
    assert_eq!((point.outstanding, point.rate_iops, point.window_s), (Some(32.0), None, Some(10.0)));
    assert_eq!((us(point.iops), point.iops.unwrap().half_digit), (32_000.0, 0.005));
    near(point.throughput.as_ref().unwrap().bytes_per_s.value, 32_000.0 * 4096.0);
    assert_eq!((us(point.min_us), us(point.mean_us), us(point.max_us)), (101.0, 1_000.0, 9_000.0));
    assert_eq!((point.latency_of, point.samples), (LatencyOf::All, Some(320_000)));
    let percents: Vec<(f64, f64)> = point.percentiles_us.iter().map(|(p, us)| (*p, us.value)).collect();
    assert_eq!(percents.last(), Some(&(99.9, 5_000.0)), "32 samples lie beyond 99.99 %");
    assert_eq!(percents.iter().find(|(percent, _)| *percent == 99.0), Some(&(99.0, 2_500.0)));
    let expected: Vec<&str> = imported.findings.iter().map(|finding| finding.expected.as_str()).collect();
    assert_eq!(expected.len(), 2, "{expected:?}");
    assert!(expected[0].starts_with("IOPS of each interval (-D)"), "{expected:?}");
}

#[test]
fn text_of_2_2_with_processor_groups_several_targets_and_limits() {
    let imported = sample("diskspd-2.2.txt");
    let [both, limited] = imported.points.as_slice() else { panic!("{:?}", imported.points) };
    assert_eq!((both.profile.as_str(), both.outstanding), ("B64-T1-O4-W100-PS", Some(8.0)), "two targets");
    assert_eq!((us(both.iops), both.block_bytes), (5_000.0, Some(65_536.0)));
    assert_eq!((both.mean_us, both.percentiles_us.len()), (None, 0), "measured without -L");
    assert_eq!((limited.outstanding, limited.rate_iops), (None, Some(10_000.0)));
    assert!(limited.place.contains("time span 2"), "{}", limited.place);
    assert!(findings(&imported).iter().all(|(_, severity)| *severity == Severity::Note));
    assert!(imported.findings.iter().any(|f| f.expected == "latencies" && f.found == "none in 2 time spans"));
}

fn changed_text(from: &str, to: &str) -> String {
    let whole = String::from_utf8(bytes("diskspd-2.0.txt")).unwrap();
    assert!(whole.contains(from), "{from}");
    whole.replace(from, to)
}

#[test]
fn runs_that_were_appended_to_one_text_are_a_sweep() {
    let deeper = changed_text("operations: 16", "operations: 32").replace("-o16", "-o32");
    let whole = format!("{}{deeper}", String::from_utf8(bytes("diskspd-2.0.txt")).unwrap());
    let imported = text("both.txt", whole.as_bytes()).unwrap();
    let depths: Vec<Option<f64>> = imported.points.iter().map(|point| point.outstanding).collect();
    assert_eq!(depths, [Some(32.0), Some(64.0)]);
    assert!(imported.points.iter().all(|point| point.family() == "B4-W30-PR"));
    assert!(imported.points[1].place.contains("run 2"), "{}", imported.points[1].place);
}

#[test]
fn a_limit_that_old_text_only_has_in_its_command_line_is_no_closed_loop() {
    let limited = text("f", changed_text("-o16 ", "-o16 -g4096 ").as_bytes()).unwrap();
    assert_eq!(
        (limited.points[0].outstanding, limited.points[0].rate_iops),
        (None, Some(2_000.0)),
        "2 threads"
    );
    let profile = text("f", changed_text("-b4K -d10 -o16 -t2 -r -w30 -L -D", "-Xp.xml").as_bytes()).unwrap();
    assert_eq!((profile.points[0].outstanding, profile.points[0].rate_iops), (None, None));
}

#[test]
fn a_row_without_io_has_no_mean_whatever_is_written_there() {
    let row = "     1 |               0 |            0 |       0.00 |       0.00 | -nan(ind) |       0.00 |       N/A | c:\\test.dat (1GiB)\r\n";
    let idle = text("f", changed_text("     1 | ", &format!("{row}     2 | ")).as_bytes()).unwrap();
    assert_eq!((idle.points[0].iops.unwrap().value, us(idle.points[0].mean_us)), (32_000.0, 1_000.0));
    assert_eq!(findings(&idle)[0], (FindingKind::LostWorkers, Severity::Doubt));
}

#[test]
fn text_that_was_cut_or_changed_is_doubtful_or_refused() {
    let whole = String::from_utf8(bytes("diskspd-2.0.txt")).unwrap();
    let cut = text("f", whole.split_once("total:").unwrap().0.as_bytes()).unwrap();
    assert_eq!((cut.points[0].iops, cut.points[0].lost_workers), (None, 1));
    assert_eq!(findings(&cut)[0], (FindingKind::MissingIntervals, Severity::Doubt));
    let only = whole.split_once("Results for").unwrap().0;
    assert!(error("f", only).problem.contains("no results"));
    let lying = text("f", changed_text("|   32000.00 |", "|   64000.00 |").as_bytes()).unwrap();
    assert_eq!(findings(&lying)[0], (FindingKind::MissingIntervals, Severity::Doubt), "{:?}", lying.findings);
    let comma = error("f", &changed_text("1.000 |      12.50", "1,000 |      12.50"));
    assert!(comma.problem.contains("1,000") && comma.place.contains("line"), "{comma}");
    let stopped = "Results for timespan 1:\n***\nThe test was interrupted before the measurements began.\n";
    let stopped = text("f", stopped.as_bytes()).unwrap();
    assert_eq!(findings(&stopped)[0], (FindingKind::LostWorkers, Severity::Doubt));
}

#[test]
fn files_at_several_depths_are_one_curve_if_the_rest_is_equal() {
    let join_with = |second: String| {
        let both = [changed_text("x", "x"), second];
        let read =
            |(at, whole): (usize, &String)| text("f", whole.as_bytes()).unwrap().into_source(at.to_string());
        join(both.iter().enumerate().map(read).collect()).len()
    };
    let deeper = changed_text("operations: 16", "operations: 32");
    assert_eq!(join_with(deeper.clone()), 1);
    assert_eq!(join_with(deeper.replace("software cache disabled", "using software cache")), 2);
    assert_eq!(join_with(deeper.replace("c:\\test.dat'", "d:\\test.dat'")), 2);
    let xml = |depth: &str, more: &str| {
        let whole = changed("<RequestCount>16<", &format!("<RequestCount>{depth}<")).replace("vm-1", more);
        text("f", whole.as_bytes()).unwrap().into_source(depth.into())
    };
    assert_eq!(join(vec![xml("16", "vm-1"), xml("4", "vm-1")]).len(), 1);
    assert_eq!(join(vec![xml("16", "vm-1"), xml("4", "vm-2")]).len(), 2, "two computers");
}
