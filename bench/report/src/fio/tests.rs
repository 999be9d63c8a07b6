use super::*;
use std::time::{Duration, UNIX_EPOCH};

use loadline_fleet::{Loss, LossReason, WorkerId, WorkerInfo};
use loadline_load::CpuTime;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::interval::{Interval, Phase};
use loadline_measure::window::Window;
use loadline_study::Plan;
use loadline_study::folder::result::WorkerResult;
use loadline_study::read::parse;
use serde_json::{Value, json};

fn study(load: &str) -> Study {
    let rest = "[fleet]\nworkers_per_node = 2\ndisks_per_worker = 3\n[phases]\nmeasure = \"2s\"\n";
    parse("s.toml", &format!("name = \"s\"\n{load}\n{rest}")).unwrap()
}

/// Its first step, in whose seconds so many reads and writes were done, each of which took so many microseconds.
fn measured(study: &Study, seconds: [(u64, u64); 2], reads_us: u64, writes_us: u64) -> StepResult {
    let step = Plan::of(study).unwrap().steps.remove(0);
    let mut window = Window::new(Nanos(2 * Nanos::SECOND.0));
    for (second, (reads, writes)) in (0..).zip(seconds) {
        let mut interval = Interval::new(second, Phase::Measure, 0);
        interval.read.response.record_many(Nanos(reads_us * 1000), reads);
        interval.write.response.record_many(Nanos(writes_us * 1000), writes);
        interval.read.bytes = reads * step.profile.block_size.bytes();
        interval.write.bytes = writes * step.profile.block_size.bytes();
        if step.profile.rate.is_some() {
            interval.service.record_many(Nanos(10_000), reads + writes);
        }
        window.add(&interval);
    }
    let mut result =
        StepResult::empty("run", &step, When::at(UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)));
    (result.figures, result.histograms, result.seconds) =
        (window.figures(), window.histograms(), window.seconds());
    result.cpu = CpuTime { user_s: 3.0, system_s: 6.0, polling_s: 0.0 };
    result.workers = ["node-1/0", "node-1/1"].map(|id| worker(id, "io_uring")).into();
    result
}

fn worker(id: &str, engine: &str) -> WorkerResult {
    WorkerResult {
        worker: WorkerInfo {
            id: WorkerId(id.into()),
            node: "node-1".into(),
            host: "host".into(),
            pid: 1,
            version: "0".into(),
        },
        figures: Default::default(),
        clock_error_ns: None,
        began_late_ns: None,
        cpu: None,
        host_cpu: None,
        engine: Some(engine.into()),
        findings: Vec::new(),
        lost: None,
    }
}

fn exported(study: &Study, result: &StepResult) -> Value {
    serde_json::from_str(&document(study, result).unwrap().text()).unwrap()
}

const MIX: &str = "profiles = [\"B8-T2-O4-W20-PR\"]";

#[test]
fn a_step_is_one_job_of_the_whole_fleet() {
    let study = study(MIX);
    let json = exported(&study, &measured(&study, [(300, 100), (500, 100)], 200, 3_000));
    assert_eq!(
        (&json["timestamp"], &json["timestamp_ms"]),
        (&json!(1_700_000_000), &json!(1_700_000_000_123_u64))
    );
    assert_eq!(json["time"], "Tue Nov 14 22:13:20 2023");
    assert!(json["fio version"].as_str().unwrap().starts_with("loadline-"));
    let job = &json["jobs"][0];
    assert_eq!(job["jobname"], "B8-T2-O4-W20-PR");
    let options = &job["job options"];
    for (key, value) in [
        ("rw", "randrw"),
        ("bs", "8k"),
        ("iodepth", "4"),
        ("numjobs", "12"),
        ("rwmixread", "80"),
        ("ioengine", "io_uring"),
        ("runtime", "2s"),
        ("description", "study s, step 1, repeat 1; measured by loadline"),
    ] {
        assert_eq!(options[key], value, "{key}");
    }
    // 3 s in user space, of 12 threads in 2 s each.
    assert_eq!(
        (&job["usr_cpu"], &job["sys_cpu"], &job["job_runtime"]),
        (&json!(12.5), &json!(25.0), &json!(24_000))
    );
    assert_eq!(job["total_err"], Value::Null);
    assert_eq!(
        job["read"],
        json!({
            "io_bytes": 6_553_600, "io_kbytes": 6400, "bw_bytes": 3_276_800, "bw": 3200, "iops": 400.0,
            "runtime": 2000, "total_ios": 800, "short_ios": 0, "drop_ios": 0,
            "slat_ns": { "min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0 },
            "clat_ns": same(200_000, 800, 199_680), "lat_ns": same(200_000, 800, 199_680),
            "bw_min": 2400, "bw_max": 4000, "bw_agg": 100.0, "bw_mean": 3200.0, "bw_dev": 1131.370849898476,
            "bw_samples": 2, "iops_min": 300, "iops_max": 500, "iops_mean": 400.0,
            "iops_stddev": 141.4213562373095, "iops_samples": 2,
        })
    );
    assert_eq!(job["trim"]["runtime"], 0);
    assert_eq!((&job["latency_us"]["250"], &job["latency_ms"]["4"]), (&json!(80.0), &json!(20.0)));
    let sum = |unit: &str| job[unit].as_object().unwrap().values().filter_map(Value::as_f64).sum::<f64>();
    assert_eq!([sum("latency_ns"), sum("latency_us"), sum("latency_ms")], [0.0, 80.0, 20.0]);
}

/// Latencies that are all the same; 800 of them carry the percentiles from the 20th to the 80th.
fn same(ns: u64, count: u64, bin: u64) -> Value {
    let percentile: serde_json::Map<String, Value> =
        (2..=8).map(|tenth| (format!("{}0.000000", tenth), json!(ns))).collect();
    json!({
        "min": ns, "max": ns, "mean": ns as f64, "stddev": 0.0, "N": count,
        "percentile": percentile, "bins": { bin.to_string(): count },
    })
}

#[test]
fn a_percentile_needs_a_hundred_samples_on_either_side() {
    let of = |count: u64| {
        let mut histogram = LatencyHistogram::new();
        (1..=count).for_each(|i| histogram.record(Nanos(i * 1000)));
        Latency::of(&histogram).percentile.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(of(199), [""; 0]);
    assert_eq!(of(200), ["50.000000"]);
    let deep = of(10_000);
    assert_eq!((deep[0].as_str(), deep[12].as_str(), deep.len()), ("1.000000", "99.000000", 13));
}

#[test]
fn the_deviation_is_within_one_percent_of_that_of_the_samples() {
    let mut histogram = LatencyHistogram::new();
    let samples: Vec<f64> = (0..5000_u64).map(|i| (50_000 + i * i % 70_001) as f64).collect();
    samples.iter().for_each(|ns| histogram.record(Nanos(*ns as u64)));
    let (exact, found) = (Samples::of(&samples), Latency::of(&histogram));
    assert!((found.stddev / exact.deviation - 1.0).abs() < 0.01, "{} for {}", found.stddev, exact.deviation);
    assert!((found.mean - exact.mean).abs() < 1e-6);
}

#[test]
fn bins_are_fios() {
    // As fio 3.33 wrote them of latencies in them.
    for (ns, name) in [(0, 0), (127, 127), (128, 129), (3135, 3120), (64_707, 64_768), (2_770_390, 2_768_896)]
    {
        assert_eq!(bin(ns), name, "{ns}");
    }
    assert_eq!([END_OF_BINS - 1, END_OF_BINS, u64::MAX].map(bin), [17_112_760_320; 3]);
    let mut histogram = LatencyHistogram::new();
    [1 << 34, 1 << 40, u64::MAX / 4].into_iter().for_each(|ns| histogram.record(Nanos(ns)));
    assert_eq!(bins(&histogram), [(17_112_760_320, 3)]);
}

#[test]
fn service_times_stand_as_completion_latency_where_one_direction_has_them() {
    let load = |writes: u8| {
        study(&format!("[[profile]]\nuse = \"B8-T2-O4-W{writes}-PR\"\nrate = \"600iops poisson\""))
    };
    let reads = load(0);
    let json = exported(&reads, &measured(&reads, [(300, 0), (300, 0)], 200, 0));
    let job = &json["jobs"][0];
    let means =
        |section: &Value| [&section["lat_ns"], &section["clat_ns"]].map(|l| l["mean"].as_f64().unwrap());
    assert_eq!((means(&job["read"]), means(&job["write"])), ([200_000.0, 10_000.0], [0.0, 0.0]));
    // Of each of six threads of a worker.
    assert_eq!(
        (&job["job options"]["rate_iops"], &job["job options"]["rate_process"]),
        (&json!("100"), &json!("poisson"))
    );
    let mix = load(25);
    let json = exported(&mix, &measured(&mix, [(300, 100), (300, 100)], 200, 400));
    let job = &json["jobs"][0];
    assert_eq!((means(&job["read"]), means(&job["write"])), ([200_000.0, 0.0], [400_000.0, 0.0]));
    assert!(job["read"]["clat_ns"].get("bins").is_none());
    assert_eq!(job["job options"]["rate_iops"], "75,25");
}

#[test]
fn a_ceiling_has_a_process_for_each_thread_on_what_is_below() {
    let node = "[[ceilings.node]]\nname = \"node-1\"\ndevices = [\"null:1GiB\", \"null:2GiB\"]\n[fleet]";
    let study = parse("s.toml", &format!("name = \"s\"\n{MIX}\n{node}\nworkers_per_node = 2\n")).unwrap();
    let mut result = measured(&study, [(300, 100), (500, 100)], 200, 300);
    assert_eq!((result.step.purpose, result.step.profile.threads), (Purpose::Ceiling, 4));
    result.workers.truncate(1);
    assert_eq!(exported(&study, &result)["jobs"][0]["job options"]["numjobs"], "8");
}

#[test]
fn what_is_not_known_is_not_made_up() {
    let study = study(MIX);
    let whole = measured(&study, [(300, 100), (500, 100)], 200, 300);
    let mut result = whole.clone();
    result.seconds[1].bytes -= 512;
    let json = exported(&study, &result);
    let read = &json["jobs"][0]["read"];
    assert_eq!(
        (&read["bw_samples"], &read["bw_max"], &read["iops_samples"]),
        (&json!(0), &json!(0), &json!(2))
    );
    result.seconds.clear();
    assert_eq!(exported(&study, &result)["jobs"][0]["read"]["iops_samples"], 0);
    result.workers[1].engine = Some("threads".into());
    result.workers[1].lost =
        Some(Loss { reason: LossReason::Died, message: "gone".into(), unix_ms: 1, after_s: None });
    result.figures.errors = 7;
    result.findings = [FindingKind::LostWorkers, FindingKind::Errors]
        .map(|kind| Finding::doubt(kind, "none", "some", "x"))
        .into();
    result.findings.push(Finding::note(FindingKind::Fallback, "none", "some", "x"));
    let job = &exported(&study, &result)["jobs"][0];
    assert_eq!(job["job options"].get("ioengine"), None);
    let description = job["job options"]["description"].as_str().unwrap();
    assert!(description.ends_with("loadline; doubtful: errors, lost-workers"), "{description}");
    assert_eq!((&job["job options"]["numjobs"], &job["job_runtime"]), (&json!("12"), &json!(12_000)));
    assert_eq!((&job["total_err"], &job["usr_cpu"]), (&json!(7), &json!(25.0)));
    result.workers.clear();
    let job = &exported(&study, &result)["jobs"][0];
    assert_eq!((&job["usr_cpu"], &job["job_runtime"]), (&json!(0.0), &json!(0)), "finite");
    let nothing = exported(&study, &measured(&study, [(0, 0), (0, 0)], 0, 0));
    assert_eq!(nothing["jobs"][0]["read"], json!(Section::default()));
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_the_file() {
    let study = study(MIX);
    let good = measured(&study, [(300, 100), (500, 100)], 200, 300);
    let refused = |change: &dyn Fn(&mut StepResult), words: &str| {
        let mut result = good.clone();
        change(&mut result);
        let message = document(&study, &result).unwrap_err().message;
        assert!(
            message.contains(words) && message.contains("steps/001-B8-T2-O4-W20-PR-r1/result.json"),
            "{message}"
        );
    };
    let broken = |result: &mut StepResult| result.histograms.write.as_mut().unwrap().count += 1;
    refused(&broken, "histograms.write: not a latency histogram: its count");
    refused(&|result| result.figures.window_s = 0.0, "window_s is 0");
    refused(&|result| result.step.profile.threads = 0, "profile");
    refused(
        &|result| result.ended = serde_json::from_value(json!("2023-02-29T00:00:00.000Z")).unwrap(),
        "ended",
    );
}

#[test]
fn moments_are_read_as_they_are_written() {
    for seconds in [0, 951_782_400, 951_868_800, 1_735_689_599, 4_107_542_400] {
        let (ms, _) = moment(&When::at(UNIX_EPOCH + Duration::from_secs(seconds))).unwrap();
        assert_eq!(ms, seconds * 1000);
    }
    for text in
        ["", "Z", "2023-13-01T00:00:00.000Z", "2023-00-01T00:00:00.000Z", "2023-01-01T24:00:00.000Z", "a-b"]
    {
        assert_eq!(moment(&serde_json::from_value(json!(text)).unwrap()), None, "{text}");
    }
}
