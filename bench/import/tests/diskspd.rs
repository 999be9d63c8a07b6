//! DISKSPD's XML, made by hand after what writes it.

mod common;

use common::{bytes, error, findings, near, sample, text};
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
fn a_profile_alone_says_loads_without_figures() {
    let imported = sample("diskspd-profile.xml");
    assert_eq!((imported.format, imported.points.len()), ("DISKSPD XML profile", 3));
    let [alone, shared, rated] = imported.points.as_slice() else { panic!() };
    assert_eq!((alone.profile.as_str(), alone.outstanding), ("B4-T1-O32-W0-PR", Some(32.0)));
    assert_eq!((alone.iops, alone.window_s), (None, Some(60.0)));
    assert_eq!((shared.outstanding, shared.write_percent), (Some(32.0), Some(100.0)), "-F4 -O8");
    assert_eq!((rated.outstanding, rated.rate_iops), (None, Some(1500.0)));
    assert_eq!(rated.place, "diskspd-profile.xml, Profile/TimeSpans/TimeSpan[3]");
}

#[test]
fn fixed_threads_serve_every_target() {
    let profile = |span: &str, targets: &str| {
        let xml = format!(
            "<Profile><TimeSpans><TimeSpan>{span}<Targets>{targets}</Targets></TimeSpan></TimeSpans></Profile>"
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
    assert_eq!(profile("", "<Target/>"), (Some(2.0), None), "as DISKSPD has it unless said");
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
    assert!(error("f", "<html><body/></html>").problem.contains("neither"));
    assert!(error("f", "<Results/>").problem.contains("TimeSpan"));
}

#[test]
fn a_result_that_is_cut_off_is_refused() {
    let whole = bytes("diskspd-result.xml");
    let error = text("f", &whole[..whole.len() - 300]).unwrap_err();
    assert!(error.problem.contains("ends in the middle"), "{error}");
}
