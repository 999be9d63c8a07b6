//! `loadline report --format fio`: a step of a real run as fio's JSON+, read by our own analysis and by fio's tool.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{folder, number, run};

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A finished run with a step for each of these loads, as a study has them.
fn measured(place: &Path, loads: &str) -> PathBuf {
    let study = place.join("study.toml");
    let content = format!(
        "name = \"export\"\n{loads}\n[target]\ndevices = [\"null:1GiB\", \"null:1GiB\"]\n\
         [fleet]\nworkers_per_node = 2\n[phases]\nwarm_up = \"0s\"\nmeasure = \"2s\"\ncool_down = \"0s\"\n\
         [run]\nrepeats = 1\n"
    );
    fs::write(&study, content).unwrap();
    let out = place.join("run");
    let said = run(["run", text(&study), "--out", text(&out), "--destroy-data"]);
    assert!(matches!(said.code, Some(0 | 3)), "{:?}: {}{}", said.code, said.out, said.err);
    out
}

/// `result.json` of the step of this number.
fn result(run: &Path, step: u32) -> Value {
    let begin = format!("{step:03}-");
    let folders = fs::read_dir(run.join("steps")).unwrap().flatten();
    let mut mine = folders.filter(|folder| folder.file_name().to_string_lossy().starts_with(&begin));
    let path = mine.next().expect("a folder of the step").path().join("result.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The step as fio's JSON+, and the file that it was written to.
fn export(run_folder: &Path, step: u32) -> (Value, PathBuf) {
    let said = run(["report", text(run_folder), "--format", "fio", "--step", &step.to_string()]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    let path = run_folder.join(format!("fio-{step}.json"));
    fs::write(&path, &said.out).unwrap();
    (said.json(), path)
}

/// The last row of a column of fio's CSV that is not empty.
fn last(csv: &str, column: &str) -> String {
    let mut rows = csv.lines().map(|row| row.split(',').map(str::trim).collect::<Vec<&str>>());
    let head = rows.next().expect("a row of names");
    let at =
        head.iter().position(|name| *name == column).unwrap_or_else(|| panic!("no {column} in {head:?}"));
    rows.filter_map(|row| row.get(at).filter(|cell| !cell.is_empty()).map(|cell| cell.to_string()))
        .next_back()
        .unwrap_or_else(|| panic!("nothing in {column}"))
}

/// What fio's own tool makes of the latencies of a JSON+.
fn clat2csv(json: &Path) -> String {
    const TOOL: &str = "fio_jsonplus_clat2csv";
    let csv = json.with_extension("csv");
    for check in [None, Some("--validate")] {
        let output = Command::new(TOOL).arg(json).arg(&csv).args(check).output().unwrap_or_else(|error| {
            panic!("{TOOL}, of the fio package, which needs python3, cannot be run: {error}")
        });
        let said =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{TOOL} failed; it needs python3 and its module six: {said}");
        assert!(check.is_none() || said.contains("validated"), "{said}");
    }
    let job = json.with_file_name(format!("{}_job0.csv", json.file_stem().unwrap().to_str().unwrap()));
    fs::read_to_string(job).unwrap()
}

#[test]
fn a_step_exported_as_fios_json_has_the_figures_of_the_run() {
    let place = folder();
    let out = measured(place.path(), "profiles = [\"B4-T1-O4-W0-PR\", \"B8-T2-O2-W30-PR\"]");
    let before = fs::read(out.join("report/report.json")).unwrap();
    for (step, block) in [(1, 4096.0), (2, 8192.0)] {
        let result = result(&out, step);
        let (json, path) = export(&out, step);
        let job = &json["jobs"][0];
        assert_eq!(job["jobname"], result["step"]["label"]);
        for direction in ["read", "write"] {
            let of = |path: &str| number(job, &format!("{direction}/{path}"));
            assert_eq!(of("iops"), number(&result, &format!("figures/{direction}/iops")));
            let count = result["histograms"][direction]["count"].as_u64().unwrap_or(0);
            for kind in ["clat_ns", "lat_ns"] {
                let latency = &job[direction][kind];
                assert_eq!(latency["N"], count, "{direction} {kind}");
                let bins = latency["bins"].as_object();
                let counted: u64 = bins.into_iter().flatten().map(|(_, count)| count.as_u64().unwrap()).sum();
                assert_eq!(counted, count, "{direction} {kind}");
            }
            let seconds = result["seconds"].as_array().unwrap();
            let done: u64 =
                seconds.iter().map(|second| second[format!("{direction}s")].as_u64().unwrap()).sum();
            assert_eq!(of("total_ios") as u64, done, "{direction}");
            assert_eq!(of("io_bytes"), done as f64 * block, "{direction}");
            assert!((of("iops_mean") - of("iops")).abs() < 1e-3 * of("iops").max(1.0), "{job}");
            assert_eq!(of("iops_samples"), if done > 0 { 2.0 } else { 0.0 });
        }
        let analysed = run(["analyze", text(&path), "--json"]);
        assert!(matches!(analysed.code, Some(0 | 3)), "{}{}", analysed.out, analysed.err);
        let analysed = analysed.json();
        let (theirs, ours) =
            (number(&analysed, "sources/0/groups/0/most"), number(&result, "figures/total/iops"));
        assert!((theirs / ours - 1.0).abs() < 1e-6, "{theirs} and {ours}: {analysed}");
    }
    assert_eq!(fs::read(out.join("report/report.json")).unwrap(), before, "the report is left alone");
}

#[test]
fn fios_own_tool_makes_a_csv_of_every_io_in_it() {
    let place = folder();
    let out = measured(place.path(), "profiles = [\"B4-T1-O4-W30-PR\"]");
    let (json, path) = export(&out, 1);
    let result = result(&out, 1);
    let csv = clat2csv(&path);
    for direction in ["read", "write"] {
        for kind in ["clat_ns", "lat_ns"] {
            let column = |what: &str| last(&csv, &format!("{direction}_{kind}_{what}"));
            assert_eq!(column("percentile"), "1.0", "{direction} {kind}");
            let all = &result["histograms"][direction]["count"];
            assert!(all.as_u64().is_some_and(|count| count > 0), "{result}");
            assert_eq!(&Value::from(column("cumulative").parse::<u64>().unwrap()), all, "{direction} {kind}");
        }
    }
    assert!(json["jobs"][0]["trim"]["clat_ns"].get("bins").is_none(), "the tool ends at an empty one");
}

#[test]
fn a_load_at_a_rate_has_response_and_service_times_apart() {
    let place = folder();
    let out = measured(place.path(), "[[profile]]\nuse = \"B4-T1-O4-W0-PR\"\nrate = \"3000iops\"");
    let (json, path) = export(&out, 1);
    let result = result(&out, 1);
    let read = &json["jobs"][0]["read"];
    for (kind, histogram) in [("lat_ns", "read"), ("clat_ns", "service")] {
        assert_eq!(read[kind]["N"], result["histograms"][histogram]["count"], "{kind}");
        assert_eq!(read[kind]["max"], result["histograms"][histogram]["max_ns"], "{kind}");
    }
    assert_eq!(json["jobs"][0]["job options"]["rate_iops"], "3000");
    let point = run(["analyze", text(&path), "--json"]);
    assert!(matches!(point.code, Some(0 | 3)), "{}{}", point.out, point.err);
    clat2csv(&path);
}

#[test]
fn a_step_that_is_not_there_is_refused_with_those_that_are() {
    let place = folder();
    let out = measured(place.path(), "profiles = [\"B4-T1-O4-W0-PR\", \"B4-T1-O4-W100-PR\"]");
    let report = |words: &[&str]| run(["report", text(&out)].iter().chain(words));
    let names = ["1 (B4-T1-O4-W0-PR, repeat 1)", "2 (B4-T1-O4-W100-PR, repeat 1)"];
    let with = |what| [what, names[0], names[1]];
    report(&["--format", "fio", "--step", "3"]).refused(2, &with("--step 3"));
    report(&["--format", "fio"]).refused(2, &with("--step"));
    report(&["--format", "fio", "--step", "0"]).refused(2, &with("no such step"));
    report(&["--step", "1"]).refused(2, &["--format"]);
    report(&["--format", "csv", "--step", "1"]).refused(2, &["fio"]);
    report(&["--format", "fio", "--step", "1", "--json"]).refused(2, &["--json"]);
    let first = fs::read_dir(out.join("steps")).unwrap().flatten().map(|e| e.path()).min().unwrap();
    fs::remove_file(first.join("result.json")).unwrap();
    let said = report(&["--format", "fio", "--step", "1"]);
    said.refused(2, &["not complete", names[1]]);
    assert!(said.out.is_empty() && !said.err.contains(names[0]), "{}{}", said.out, said.err);
}
