//! Output of fio 3.33, trimmed of what is not read.

mod common;

use common::{bytes, error, findings, near, sample, text};
use loadline_import::Imported;
use loadline_import::curves::join;
use loadline_measure::analysis::{Axis, Options, analyse};
use loadline_measure::audit::points::audit;
use loadline_measure::audit::{FindingKind, Severity};
use loadline_measure::point::{LatencyOf, Point};

/// IOPS × mean latency.
fn in_flight(point: &Point) -> f64 {
    point.iops.unwrap().value * point.mean_us.unwrap().value / 1e6
}

fn texts(imported: &Imported) -> String {
    imported.findings.iter().map(|finding| finding.to_string()).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_processes_of_numjobs_count_together() {
    let imported = sample("fio-numjobs.json");
    assert_eq!((imported.format, imported.points.len()), ("fio JSON", 1));
    let point = &imported.points[0];
    assert_eq!((point.outstanding, point.workers, point.lost_workers), (Some(16.0), Some(2), 0));
    assert_eq!((point.block_bytes, point.write_percent), (Some(4096.0), Some(0.0)));
    assert!((in_flight(point) / 16.0 - 1.0).abs() < 0.05, "{}", in_flight(point));
    assert_eq!(point.latency_of, LatencyOf::All);
    near(point.iops.unwrap().value, 21728.135932 + 21696.651674);
    near(point.mean_us.unwrap().value, (366.175651571 * 43478.0 + 367.196464701 * 43415.0) / 86893.0);
    near(point.throughput.as_ref().unwrap().bytes_per_s.value, 88998444.0 + 88869485.0);
    assert_eq!((point.samples, point.window_s), (Some(86893), Some(2.001)));
    near(point.min_us.unwrap().value, 13.59);
    near(point.max_us.unwrap().value, 4789.563);
    assert_eq!(point.place, "fio-numjobs.json, jobs 1 to 2 \"two\"");
    assert!(point.percentiles_us.is_empty(), "percentiles of two processes are never averaged");
    let analysis = analyse(imported.points, &Default::default());
    assert_eq!(analysis.groups[0].most.map(f64::round), Some(43_425.0));
}

#[test]
fn a_process_that_did_nothing_is_a_lost_worker_of_its_job() {
    let idle = r#"{"total_ios":0,"iops":0,"runtime":0}"#;
    let entry = |read: &str| {
        format!(
            r#"{{"jobname":"j","groupid":0,"job options":{{"numjobs":"2"}},"read":{read},"write":{idle}}}"#
        )
    };
    let side = r#"{"total_ios":2000,"iops":200.0,"bw_bytes":819200,"runtime":10000,
        "lat_ns":{"min":1000,"max":9000000,"mean":800000.0,"N":2000},
        "clat_ns":{"bins":{"800000":2000},"percentile":{"90.000000":800000}}}"#;
    let of =
        |entries: &[String]| text("f", format!("{{\"jobs\":[{}]}}", entries.join(",")).as_bytes()).unwrap();
    let lame = of(&[entry(side), entry(idle)]);
    let point = &lame.points[0];
    assert_eq!((lame.points.len(), point.workers, point.lost_workers), (1, Some(2), 1));
    assert_eq!((point.iops.unwrap().value, point.samples), (200.0, Some(2000)));
    assert!(texts(&lame).contains("job 2 \"j\" reported nothing"), "{}", texts(&lame));
    let both = of(&[entry(side), entry(side)]);
    let point = &both.points[0];
    assert_eq!(point.histogram.as_ref().unwrap().count(), 4000);
    assert_eq!(point.percentiles_us.len(), 1, "bins of both add up");
    let one_without = of(&[entry(side), entry(&side.replace(r#""bins":{"800000":2000},"#, ""))]);
    assert!(one_without.points[0].histogram.is_none() && one_without.points[0].percentiles_us.is_empty());
}

#[test]
fn jobs_of_one_name_and_different_loads_or_hosts_are_different_loads() {
    let side = r#"{"total_ios":2000,"iops":200.0,"bw_bytes":819200,"runtime":10000}"#;
    let none = r#"{"total_ios":0,"iops":0,"runtime":0}"#;
    let entry = |options: &str, more: &str| {
        format!(
            r#"{{"jobname":"x","groupid":0,{more}"job options":{{{options}}},"read":{side},"write":{none}}}"#
        )
    };
    let of = |entries: &[String]| {
        let json = format!("{{\"jobs\":[{}]}}", entries.join(","));
        let points = text("f", json.as_bytes()).unwrap().points;
        points.iter().map(|p| (p.family().to_string(), p.workers.unwrap())).collect::<Vec<_>>()
    };
    let small = entry(r#""bs":"4k","rw":"randread","numjobs":"4""#, "");
    let large = entry(r#""bs":"128k","rw":"randread""#, "");
    let four = [&small, &small, &small, &small].map(String::clone);
    let five = [four.as_slice(), &[large]].concat();
    assert_eq!(of(&five), [("x, 4 KiB".to_string(), 4), ("x, 128 KiB".to_string(), 1)]);
    assert_eq!(of(&four), [("x".to_string(), 4)], "the plain name where nothing differs");
    let mixed = |writes: &str| entry(&format!(r#""rw":"randrw","rwmixwrite":"{writes}""#), "");
    let mixes = [mixed("30"), mixed("70"), entry(r#""rw":"read""#, "")];
    let names: Vec<String> = of(&mixes).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["x, randrw, 30 % writes", "x, randrw, 70 % writes", "x, read"]);
    let hosts = ["a", "b"].map(|host| entry("", &format!(r#""hostname":"{host}","#)));
    let names: Vec<String> = of(&hosts).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["x, a", "x, b"]);
}

#[test]
fn results_of_hosts_that_ran_together_are_no_intermediate_states() {
    let host = |ms: u64, ios: u64, runtime: u64| {
        format!(
            r#"{{"timestamp_ms":{ms},"jobs":[{{"jobname":"x","groupid":0,"read":
            {{"total_ios":{ios},"iops":200.0,"bw_bytes":819200,"runtime":{runtime}}},
            "write":{{"total_ios":0,"runtime":0}}}}]}}"#
        )
    };
    let both = |later: String| {
        let earlier = host(1_795_407_000_000, 600_000, 60_000);
        text("f", format!("{earlier}\n{later}\n").as_bytes()).unwrap()
    };
    for (ms, ios, runtime) in [
        (1_795_407_001_000, 590_000, 60_000),
        (1_795_407_001_000, 630_000, 60_001),
        (1_795_407_030_000, 900_000, 60_001),
    ] {
        assert_eq!(both(host(ms, ios, runtime)).points.len(), 2, "{ms} {ios} {runtime}");
    }
    let state = both(host(1_795_407_010_000, 700_000, 70_000));
    assert_eq!(state.points.len(), 1);
    assert!(texts(&state).contains("1 intermediate state of runs"), "{}", texts(&state));
}

#[test]
fn merged_processes_count_together_and_bins_give_percentiles_over_both_directions() {
    let imported = sample("fio-group-mixed.json");
    assert_eq!((imported.format, imported.points.len()), ("fio JSON+", 1));
    let point = &imported.points[0];
    assert_eq!((point.outstanding, point.workers), (Some(24.0), Some(3)));
    assert_eq!((point.block_bytes, point.write_percent), (Some(8192.0), Some(30.0)));
    assert_eq!(point.samples, Some(112525 + 48196));
    near(point.iops.unwrap().value, 56234.382809 + 24085.957021);
    assert!((in_flight(point) / 24.0 - 1.0).abs() < 0.05, "{}", in_flight(point));
    assert_eq!(point.histogram.as_ref().unwrap().count(), 112525 + 48196);
    let values: Vec<f64> = point.percentiles_us.iter().map(|(_, stated)| stated.value).collect();
    assert!(values.len() > 10 && values.windows(2).all(|pair| pair[0] <= pair[1]));
}

#[test]
fn a_rate_is_no_closed_loop_and_lat_percentiles_are_preferred() {
    let imported = sample("fio-rate.json");
    let point = &imported.points[0];
    assert_eq!((point.outstanding, point.rate_iops), (None, Some(500.0)));
    assert!(texts(&imported).contains("driven by a rate"));
    assert!(!texts(&imported).contains("completion latency"));
    assert_eq!(point.histogram.as_ref().unwrap().count(), 1000);
    assert_eq!(point.percentiles_us.last().unwrap().0, 90.0, "of 1,000 I/Os a hundred lie beyond it");
}

#[test]
fn think_time_is_no_closed_loop() {
    let imported = sample("fio-thinktime.json");
    assert_eq!((imported.points[0].outstanding, imported.points[0].rate_iops), (None, None));
    assert!(texts(&imported).contains("thinktime"));
}

#[test]
fn warnings_before_the_json_are_counted_and_quoted() {
    let imported = sample("fio-warning.json");
    assert_eq!(imported.points.len(), 1);
    assert!(
        texts(&imported).contains("1 other line passed over")
            && texts(&imported).contains("note: both iodepth >= 1 and")
    );
}

#[test]
fn different_jobs_merged_into_one_entry_have_no_known_depth() {
    let imported = sample("fio-different-jobs-in-a-group.json");
    let [mixed, alike] = imported.points.as_slice() else { panic!("{:?}", imported.points) };
    assert_eq!((mixed.outstanding, mixed.block_bytes, mixed.workers), (None, None, None));
    assert!(mixed.write_percent.is_some_and(|percent| percent > 50.0 && percent < 55.0), "as measured");
    assert_eq!((alike.outstanding, alike.workers), (Some(8.0), Some(2)));
    assert_eq!((alike.block_bytes, alike.write_percent), (None, Some(50.0)), "reads of 4k and writes of 8k");
    assert!(alike.percentiles_us.is_empty(), "percentiles of two directions are never averaged");
}

#[test]
fn the_sum_over_all_clients_is_not_counted_again() {
    let imported = sample("fio-client.json");
    assert_eq!(imported.points.len(), 3);
    assert!(imported.points.iter().all(|point| point.profile != "All clients"));
    assert!(imported.points[0].place.contains("on 127.0.0.1"));
    assert!(texts(&imported).contains("7 other lines passed over"), "{}", texts(&imported));
    let outstanding: Vec<_> = imported.points.iter().map(|p| (p.workers, p.outstanding)).collect();
    assert_eq!(outstanding, [(Some(2), Some(8.0)), (Some(1), Some(4.0)), (Some(2), Some(8.0))]);
}

#[test]
fn intermediate_states_of_one_run_are_left_out() {
    let imported = sample("fio-status-interval.json");
    assert_eq!(imported.points.len(), 1);
    assert_eq!(imported.points[0].samples, Some(31813));
    assert_eq!(imported.points[0].outstanding, Some(1.0), "psync keeps one outstanding");
    assert!(texts(&imported).contains("2 intermediate states"));
}

#[test]
fn directions_that_fio_counted_together_and_latencies_that_it_did_not_take_are_understood() {
    let unified = sample("fio-unified.json");
    let point = &unified.points[0];
    assert_eq!((point.outstanding, point.samples), (Some(24.0), Some(62406)));
    assert!((in_flight(point) / 24.0 - 1.0).abs() < 0.05, "{}", in_flight(point));
    let untimed = sample("fio-gtod-reduce.json");
    let point = &untimed.points[0];
    assert_eq!((point.mean_us, point.min_us, point.outstanding), (None, None, Some(8.0)));
    near(point.iops.unwrap().value, 13104.895105);
}

#[test]
fn runs_one_after_the_other_are_all_kept() {
    let mut both = bytes("fio-numjobs.json");
    both.extend_from_slice(b"fio: some warning\n");
    both.extend(bytes("fio-rate.json"));
    let imported = text("both.json", &both).unwrap();
    assert_eq!(imported.points.len(), 2);
    assert_eq!(imported.points[1].place, "both.json, result 2, job 1 \"rated\"");
}

#[test]
fn a_file_that_is_cut_off_keeps_its_complete_results_in_doubt_or_is_refused() {
    let whole = bytes("fio-numjobs.json");
    let half = &whole[..whole.len() / 2];
    let refused = text("half.json", half).unwrap_err();
    assert!(refused.problem.contains("it ends in the middle"), "{refused}");
    let kept = text("cut.json", &[&whole, half].concat()).unwrap();
    assert_eq!(kept.points.len(), 1);
    assert!(findings(&kept).contains(&(FindingKind::MissingIntervals, Severity::Doubt)));
}

#[test]
fn broken_json_is_refused_with_its_line() {
    assert_eq!(error("f", "note: x\n{\n \"jobs\": [,]\n}\n").place, "f, line 3");
    assert!(error("f", "{\"a\": 1}").problem.contains("\"jobs\""));
    assert!(error("f", &"{\"a\":".repeat(100_000)).problem.contains("no JSON"));
}

/// A job of one direction, with options; 200,000 I/Os in 10 s.
fn job(options: &str, more: &str) -> String {
    let side = r#"{"total_ios":200000,"iops":20000.0,"bw_bytes":81920000,"runtime":10000,
        "lat_ns":{"min":1000,"max":9000000,"mean":800000.0,"N":200000},
        "clat_ns":{"min":900,"max":9000000,"mean":790000.0,"N":200000,"percentile":{"99.000000":2000000}}}"#;
    let none = r#"{"total_ios":0,"iops":0,"runtime":0}"#;
    format!(
        r#"{{"jobs":[{{"jobname":"j","groupid":0,"job options":{{{options}}},"read":{side},"write":{none}{more}}}]}}"#
    )
}

#[test]
fn what_is_outstanding_follows_from_the_options() {
    for (options, more, outstanding) in [
        (r#""ioengine":"libaio","iodepth":"16""#, "", Some(16.0)),
        (r#""ioengine":"io_uring""#, "", Some(1.0)),
        (r#""ioengine":"pvsync2","iodepth":"16""#, "", Some(1.0)),
        ("", "", Some(1.0)),
        (r#""iodepth":"16""#, "", None),
        (r#""ioengine":"libaio","iodepth":"16","numjobs":"4""#, r#","job_runtime":40000"#, Some(64.0)),
        (r#""ioengine":"libaio","iodepth":"16","numjobs":"4""#, "", Some(64.0)),
        (r#""ioengine":"libaio","iodepth":"16","numjobs":"4""#, r#","job_runtime":80000"#, None),
        (r#""ioengine":"libaio","iodepth":"16","rate":"1m""#, "", None),
        (r#""ioengine":"libaio","iodepth":"x""#, "", None),
    ] {
        let imported = text("f", job(options, more).as_bytes()).unwrap();
        assert_eq!(imported.points[0].outstanding, outstanding, "{options} {more}");
    }
}

#[test]
fn errors_and_jobs_that_did_nothing_are_doubtful() {
    let failed = text("f", job("", r#","error":5"#).as_bytes()).unwrap();
    assert_eq!((failed.points[0].errors, failed.points[0].lost_workers), (1, 1));
    assert!(findings(&failed).contains(&(FindingKind::Errors, Severity::Doubt)));
    let continued = text("f", job("", r#","error":0,"total_err":7"#).as_bytes()).unwrap();
    assert_eq!((continued.points[0].errors, continued.points[0].lost_workers), (7, 0));
    let idle =
        text("f", br#"{"jobs":[{"jobname":"i","read":{"total_ios":0},"write":{"total_ios":0}}]}"#).unwrap();
    assert_eq!((idle.points[0].lost_workers, idle.points[0].iops), (1, None));
    assert!(findings(&idle).contains(&(FindingKind::LostWorkers, Severity::Doubt)));
    assert!(texts(&idle).contains("reported nothing"));
}

#[test]
fn trims_are_left_out_and_said_and_leave_open_what_was_outstanding() {
    let trims = r#","trim":{"total_ios":9}"#;
    let imported = text("f", job(r#""ioengine":"libaio","iodepth":"16""#, trims).as_bytes()).unwrap();
    assert_eq!((imported.points[0].samples, imported.points[0].outstanding), (Some(200000), None));
    assert!(texts(&imported).contains("trims are outstanding too"));
}

/// Two processes of a job, each of 10,000 I/Os a second, for so long.
fn processes(first_s: u64, second_s: u64) -> String {
    let process = |seconds: u64| {
        let ios = 10_000 * seconds;
        let (read, none) = (
            format!(
                r#"{{"total_ios":{ios},"iops":10000.0,"bw_bytes":40960000,"runtime":{},
                    "lat_ns":{{"min":1000,"max":9000000,"mean":100000.0,"N":{ios}}}}}"#,
                seconds * 1000
            ),
            r#"{"total_ios":0,"iops":0,"runtime":0}"#,
        );
        let options = r#"{"ioengine":"libaio","iodepth":"1","numjobs":"2"}"#;
        format!(r#"{{"jobname":"j","groupid":0,"job options":{options},"read":{read},"write":{none}}}"#)
    };
    format!(r#"{{"jobs":[{},{}]}}"#, process(first_s), process(second_s))
}

#[test]
fn processes_that_ran_for_different_times_count_over_the_longest_and_that_is_said() {
    let imported = text("f", processes(5, 60).as_bytes()).unwrap();
    let point = &imported.points[0];
    let iops = point.iops.unwrap().value;
    assert!((iops - 650_000.0 / 60.0).abs() < 0.01, "{iops}");
    let bytes = point.throughput.as_ref().unwrap().bytes_per_s.value;
    assert!((bytes - 4096.0 * iops).abs() < 1.0, "{bytes}");
    assert_eq!((point.window_s, point.outstanding), (Some(60.0), None));
    assert!(texts(&imported).contains("runtimes from 5.0 s to 60.0 s"), "{}", texts(&imported));
    let alike = text("f", processes(60, 60).as_bytes()).unwrap();
    assert_eq!(alike.points[0].iops.unwrap().value, 20_000.0);
    assert!(!texts(&alike).contains("runtimes"), "{}", texts(&alike));
}

#[test]
fn what_fio_itself_takes_for_each_io_is_no_contradiction() {
    // One outstanding, 10 us of latency and 0.8 us of its own: 92,593 a second.
    let quick = |own: f64| {
        let iops = 1e6 / (10.0 + own);
        let ios = (iops * 10.0) as u64;
        job(r#""ioengine":"libaio","iodepth":"1""#, "")
            .replace("20000.0", &format!("{iops:.3}"))
            .replace("81920000", &format!("{:.0}", iops * 4096.0))
            .replace("800000.0", "10000.0")
            .replace("200000", &ios.to_string())
    };
    let doubted = |own: f64| {
        let imported = text("f", quick(own).as_bytes()).unwrap();
        audit(&imported.points).iter().any(|finding| finding.kind == FindingKind::LittlesLaw)
    };
    assert!(!doubted(0.8) && doubted(3.0));
}

#[test]
fn figures_that_are_missing_or_impossible_are_refused() {
    let broken = job("", "").replace("20000.0", "-5.0");
    assert!(error("f", &broken).problem.contains("\"iops\""));
    let negative = String::from_utf8(bytes("fio-2.json")).unwrap().replace("200000", "-7");
    assert!(error("f", &negative).problem.contains("total_ios"));
}

#[test]
fn fio_2_states_microseconds_and_percentiles_of_completion() {
    let imported = sample("fio-2.json");
    assert_eq!((imported.format, imported.points.len()), ("fio 2 JSON", 1));
    let point = &imported.points[0];
    assert_eq!((point.iops.unwrap().value, point.iops.unwrap().half_digit), (20_000.0, 0.005));
    near(point.throughput.as_ref().unwrap().bytes_per_s.value, 80_000.0 * 1024.0);
    assert_eq!((point.mean_us.unwrap().value, point.max_us.unwrap().value), (800.0, 9_005.0));
    let percentiles: Vec<(f64, f64)> = point.percentiles_us.iter().map(|(p, us)| (*p, us.value)).collect();
    assert_eq!(percentiles, [(50.0, 780.0), (99.0, 2_008.0)], "20 samples lie beyond 99.99 %");
    assert_eq!((point.outstanding, point.workers, point.samples), (Some(16.0), Some(1), Some(200_000)));
    assert!(imported.findings.iter().any(|f| f.found.contains("microseconds, as fio 2 writes them")));
    assert!(audit(&imported.points).is_empty(), "16 outstanding are 20,000 a second of 800 us");
}

#[test]
fn fio_before_2_2_counts_no_ios_and_without_options_nothing_is_known_of_its_load() {
    let whole = String::from_utf8(bytes("fio-2.json")).unwrap();
    let uncounted = whole.replace("\"total_ios\"", "\"other\"");
    let point = text("f", uncounted.as_bytes()).unwrap().points.remove(0);
    assert_eq!((point.samples, point.iops.unwrap().half_digit), (Some(200_000), 1.0));
    let bare = whole.replace("global options", "x").replace("job options", "y");
    let point = text("f", bare.as_bytes()).unwrap().points.remove(0);
    assert_eq!((point.workers, point.outstanding, point.block_bytes), (None, None, None));
    let numbered = whole.replacen(
        "\"percentile\"",
        "\"bins\": {\"FIO_IO_U_PLAT_BITS\": 6, \"0\": 7}, \"percentile\"",
        1,
    );
    let imported = text("f", numbered.as_bytes()).unwrap();
    assert!(imported.points[0].histogram.is_none());
    assert!(imported.findings.iter().any(|f| f.found.contains("numbered ones")));
}

/// fio's result of a job of that name, depth and further options, in fio's own words.
fn at_depth(name: &str, depth: u32, more: &str) -> String {
    let whole = String::from_utf8(bytes("fio-2.json")).unwrap();
    let options = format!("\"iodepth\": \"{depth}\"{more}");
    whole.replace("\"iodepth\": \"16\"", &options).replace("\"reads\"", &format!("\"{name}\""))
}

#[test]
fn files_that_differ_in_depth_name_and_time_are_one_curve_and_in_nothing_else() {
    let sources = |files: [String; 3]| {
        let read = |(file, content): (usize, String)| {
            text("f", content.as_bytes()).unwrap().into_source(format!("{file}.json"))
        };
        join(files.into_iter().enumerate().map(read).collect())
    };
    let curve = sources([
        at_depth("qd1", 1, ""),
        at_depth("qd4", 4, ", \"runtime\": \"60\"").replace("1480611510", "1480611999"),
        at_depth("qd16", 16, ""),
    ]);
    assert_eq!((curve.len(), curve[0].name().as_str()), (1, "0.json, 1.json, 2.json"));
    let analysis = analyse(curve[0].points.clone(), &Options::default());
    assert_eq!((analysis.groups.len(), analysis.groups[0].axis), (1, Some(Axis::Outstanding)));
    assert_eq!(analysis.groups[0].profile, "4 KiB, randread");
    assert!(curve[0].findings.iter().any(|f| f.found.starts_with("3 files that are equal")), "{curve:?}");
    let apart = sources([
        at_depth("qd1", 1, ""),
        at_depth("qd4", 4, ", \"norandommap\": \"1\""),
        at_depth("qd16", 16, "").replace("/dev/sdb", "/dev/sdc"),
    ]);
    assert_eq!(apart.len(), 3);
}

#[test]
fn jobs_of_one_file_are_a_curve_only_if_each_waits_for_the_one_before() {
    let two = |more: &str| {
        let (first, second) = (at_depth("qd1", 1, ""), at_depth("qd8", 8, more));
        let job = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["jobs"][0].clone();
        let mut whole: serde_json::Value = serde_json::from_str(&first).unwrap();
        whole["jobs"] = serde_json::json!([job(&first), job(&second)]);
        let imported = text("f", whole.to_string().as_bytes()).unwrap();
        let joined = join(vec![imported.into_source("f".into())]);
        joined[0].points.iter().map(|point| point.family().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(two(", \"stonewall\": \"1\""), ["4 KiB, randread", "4 KiB, randread"]);
    assert_eq!(two(""), ["qd1", "qd8"], "they ran at the same time");
}

#[test]
fn bins_that_do_not_add_up_are_left_out() {
    let wrong =
        job("", "").replace(r#""N":200000,"percentile""#, r#""N":200000,"bins":{"800000":7},"percentile""#);
    let imported = text("f", wrong.as_bytes()).unwrap();
    assert!(imported.points[0].histogram.is_none());
    assert!(texts(&imported).contains("do not add up"));
}
