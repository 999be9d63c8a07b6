//! `loadline analyze` and a study's goals: results of other tools, and real runs that search and decide.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::{finish, folder, number, run, start};

const LIMIT: Duration = Duration::from_secs(120);

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

fn published(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/import/tests/data").join(name)
}

#[test]
fn a_published_table_is_audited_and_its_saturation_told() {
    let table = published("vsan-4-node-diskspd-stripes-1.csv");
    let said = run(["analyze", text(&table), "--outstanding-per-worker", "32", "--limit", "mean <= 5ms"]);
    assert_eq!(said.code, Some(3), "findings: {}{}", said.out, said.err);
    assert!(said.out.contains("37,321 × 1.22 ms = 45.5, for 32 outstanding (42 % more)"), "{}", said.out);
    let row = said.out.lines().find(|line| line.starts_with("4k-randread ")).unwrap();
    let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(cells[..5], ["4k-randread", "20", "304,747", "13", "flat from 16 on"], "{row}");
    let picture =
        said.out.split_once("\n4k-randread: mean (o within 5.00 ms, x not)\n").expect("a picture").1;
    assert!(picture.lines().any(|line| line.starts_with("   5.00 ms |- - -")), "{picture}");
    assert!(picture.contains("load line 304,747 IOPS"), "{picture}");
    let json = run(["analyze", text(&table), "--json"]).json();
    assert_eq!((&json["format"], &json["limit"]), (&Value::from("loadline-analysis"), &Value::Null));
    assert_eq!(number(&json, "sources/0/groups/1/saturation/peak"), 304_747.0);
    // Without what was outstanding only the unit is left to be said, and that is a note.
    assert_eq!(run(["analyze", text(&table)]).code, Some(0));
    let over = run(["analyze", text(&table), "--ceiling", "300000iops"]);
    assert!(over.code == Some(3) && over.out.contains("101.6 % of it"), "{}", over.out);
}

#[test]
fn what_cannot_be_read_is_refused_with_the_line_and_what_to_do() {
    let place = folder();
    let write = |name: &str, content: &str| {
        let path = place.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    for (name, content, words) in [
        ("unit.csv", "vms,profile,iops,latency\n1,4k-randread,5,1\n", vec!["latency", "latency_us"]),
        ("comma.csv", "vms;profile;iops;latency_ms\n1;4k-randread;5;1,22\n", vec!["1,22", "line 2", "point"]),
        ("twice.csv", "vms,iops,iops\n1,5,6\n", vec!["iops", "twice"]),
        ("empty.csv", "vms,profile,iops\n", vec!["empty.csv"]),
        ("bomb.xml", "<!DOCTYPE x [<!ENTITY a \"b\">]><Results>&a;</Results>", vec!["bomb.xml"]),
        ("cut.json", "{\"fio version\": \"fio-3.33\", \"jobs\": [", vec!["cut.json", "ends"]),
        ("what.bin", "\u{1}\u{2}\u{3}", vec!["what.bin"]),
    ] {
        let path = write(name, content);
        run(["analyze", text(&path)]).refused(2, &words);
    }
    run(["analyze", "/dev/zero"]).refused(2, &["/dev/zero", "character device", "give a result file"]);
    let large = fs::File::create(place.path().join("large.json")).unwrap();
    large.set_len((64 << 20) + 1).unwrap();
    run(["analyze", text(&place.path().join("large.json"))]).refused(2, &["large.json", "64 MiB"]);
    run(["analyze", text(&place.path().join("none"))]).refused(2, &["none", "cannot be read"]);
    run(["analyze", text(place.path())]).refused(2, &["no run"]);
    let table = published("starwind-12-node.csv");
    run(["analyze", text(&table), "--limit", "p99 < 3ms"]).refused(2, &["p99 <= 3ms"]);
    run(["analyze", text(&table), "--outstanding-per-worker", "0"]).refused(2, &["above 0"]);
    run(["analyze", text(&table), "--ceiling", "fast"]).refused(2, &["fast"]);
}

/// What `loadline bench` measured with so many outstanding, as a file.
fn bench(place: &Path, depth: u32) -> PathBuf {
    let path = place.join(format!("qd{depth}.json"));
    let profile = format!("B4-T1-O{depth}-W0-PR");
    let words = ["--warm-up", "0s", "--for", "2s", "--profile", &profile, "--json", text(&path)];
    let said = run(["bench", "null:1GiB"].iter().chain(&words));
    assert!(said.code == Some(0) || said.code == Some(3), "{}{}", said.out, said.err);
    path
}

#[test]
fn results_of_bench_are_read_and_those_at_several_depths_are_one_curve() {
    let place = folder();
    let files = [1, 4, 16].map(|depth| bench(place.path(), depth));
    let said = run(["analyze", text(&files[0]), "--limit", "p50 <= 1s"]);
    assert!(said.out.contains("Loadline bench, 1 point of 1 load"), "{}{}", said.out, said.err);
    assert!(said.out.contains("within limit") && said.out.contains("yes: "), "{}", said.out);
    assert!(said.out.contains("A load line needs one load at several depths"), "{}", said.out);
    let json = run(["analyze", text(&files[0]), "--limit", "p50 <= 1ns", "--json"]).json();
    assert_eq!(json["sources"][0]["groups"][0]["held"]["within"], false, "{json}");
    let findings = json["sources"][0]["findings"].as_array().unwrap();
    assert!(
        !findings.iter().any(|finding| finding["kind"] == "missing-intervals"),
        "its seconds add up: {json}"
    );
    let words = files.each_ref().map(|file| text(file));
    let json = run(["analyze"].iter().chain(&words).chain(&["--json", "--limit", "p50 <= 1s"])).json();
    assert_eq!(json["sources"].as_array().unwrap().len(), 1, "{json}");
    let source = &json["sources"][0];
    assert_eq!(
        (&source["points"], &source["groups"][0]["axis"]),
        (&Value::from(3), &Value::from("outstanding"))
    );
    assert!(source["groups"][0]["load_line"]["held"].as_f64() > Some(0.0), "{json}");
    assert!(run(["analyze"].iter().chain(&words)).out.contains("They are places of one curve: B4-W0-PR"));
    let marked = place.path().join("marked.json");
    fs::write(&marked, [b"\xef\xbb\xbf".as_slice(), &fs::read(&files[0]).unwrap()].concat()).unwrap();
    assert!(run(["analyze", text(&marked)]).out.contains("Loadline bench"), "a byte order mark before it");
    // Figures that are not those of the recorded seconds.
    let mut changed: Value = serde_json::from_slice(&fs::read(&files[0]).unwrap()).unwrap();
    changed["total"]["iops"] = Value::from(1.0);
    fs::write(&files[0], changed.to_string()).unwrap();
    let lying = run(["analyze", text(&files[0])]);
    assert!(lying.code == Some(3) && lying.out.contains("recorded seconds"), "{}", lying.out);
    let whole = fs::read(&files[1]).unwrap();
    fs::write(&files[1], &whole[..whole.len() / 2]).unwrap();
    run(["analyze", text(&files[1])]).refused(2, &["truncated", "qd4.json"]);
    changed["format"] = Value::from(99);
    fs::write(&files[0], changed.to_string()).unwrap();
    run(["analyze", text(&files[0])]).refused(2, &["version 99", "the one that wrote it"]);
}

#[test]
fn what_is_in_a_label_does_not_steer_the_terminal() {
    let place = folder();
    let table = place.path().join("t.csv");
    fs::write(
        &table,
        "vms,profile,condition,iops\n1,\u{1b}[2Jload\u{9b}31m,\u{7}up,5\n2,x\u{1b}]0;y,up,x\u{1b}y\n",
    )
    .unwrap();
    let refused = run(["analyze", text(&table)]);
    assert!(
        refused.code == Some(2) && !refused.err.trim_end().contains(char::is_control),
        "{:?}",
        refused.err
    );
    fs::write(&table, "vms,profile,condition,iops\n1,\u{1b}[2Jload\u{9b}31m,\u{7}up,5\n").unwrap();
    for more in [&[][..], &["--json"]] {
        let said = run(["analyze", text(&table)].iter().chain(more));
        let steers = said.out.chars().any(|c| c.is_control() && c != '\n');
        assert!(said.code == Some(0) && said.out.contains("load") && !steers, "{:?}", said.out);
    }
}

#[test]
fn what_fio_measured_obeys_littles_law_until_its_depth_is_misread() {
    let place = folder();
    let file = place.path().join("disk.img");
    fs::write(&file, vec![7u8; 8 << 20]).unwrap();
    let result = place.path().join("fio.json");
    let status = Command::new("fio")
        .args([
            "--name=reads",
            "--ioengine=io_uring",
            "--rw=randread",
            "--bs=4k",
            "--iodepth=8",
            "--time_based",
        ])
        .args(["--runtime=2", "--output-format=json+", "--lat_percentiles=1", "--randrepeat=0"])
        .arg(format!("--filename={}", file.display()))
        .arg(format!("--output={}", result.display()))
        .status()
        .unwrap();
    assert!(status.success());
    let said = run(["analyze", text(&result), "--json"]);
    let json = said.json();
    let kinds = |json: &Value| -> Vec<String> {
        let findings = json["sources"][0]["findings"].as_array().unwrap();
        findings.iter().map(|f| f["kind"].as_str().unwrap().to_string()).collect()
    };
    assert!(!kinds(&json).contains(&"littles-law".to_string()), "{}", said.out);
    assert!(number(&json, "sources/0/groups/0/most") > 0.0);
    // The same figures with another depth stated cannot be.
    let lying = fs::read_to_string(&result).unwrap().replace("\"iodepth\" : \"8\"", "\"iodepth\" : \"32\"");
    fs::write(&result, lying).unwrap();
    let json = run(["analyze", text(&result), "--json"]).json();
    assert!(kinds(&json).contains(&"littles-law".to_string()), "{json}");
}

#[test]
fn a_study_searches_its_load_line_decides_and_can_be_analysed() {
    let place = folder();
    let study = place.path().join("study.toml");
    // Whatever this machine carries, it is less than the second criterion asks for, and within an hour.
    let content = "name = \"decide\"\nprofiles = [\"B4-T1-O4-W0-PR\"]\n\
                   load_line = { percentile = 50, limit = \"1h\", by = \"outstanding\" }\n\
                   capacity = { percentile = 50, limit = \"1ns\" }\n\
                   success = [\"each node >= 1 IOPS of 4K random read under 1h at p50\", \
                   \"fleet >= 1000000000 IOPS of read\"]\n\
                   [fleet]\nnodes = 2\nworkers_per_node = 2\ndisk_size = \"4MiB\"\n\
                   [phases]\nwarm_up = \"0s\"\nmeasure = \"1s\"\ncool_down = \"0s\"\nsteady = { limit = \"10s\" }\n\
                   [vary]\nworkers = [1, 2]\n\
                   [[ceilings.node]]\nname = \"node-1\"\ndevices = [\"null:1GiB\"]\n\
                   [[ceilings.node]]\nname = \"node-2\"\ndevices = [\"null:1GiB\"]\n\
                   [run]\nrepeats = 1\n";
    fs::write(&study, content).unwrap();
    let plan = run(["run", text(&study), "--plan"]);
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    for part in
        ["searches after these steps: the most I/Os outstanding", "to decide: fleet >=", "until it is steady"]
    {
        assert!(plan.out.contains(part), "no \"{part}\" in {}", plan.out);
    }
    let out = place.path().join("run");
    let said = finish(start(["run", text(&study), "--out", text(&out)]), LIMIT);
    assert_eq!(said.code, Some(99), "a criterion is missed: {}{}", said.out, said.err);
    let report = run(["report", text(&out), "--json"]).json();
    let searches = report["searches"].as_array().unwrap();
    assert_eq!(searches.len(), 2);
    assert_eq!((&searches[0]["held"], &searches[0]["missed"]), (&Value::from(4.0), &Value::Null), "{report}");
    assert_eq!((&searches[1]["held"], &searches[1]["missed"]), (&Value::Null, &Value::from(1.0)), "{report}");
    let held: Vec<bool> =
        report["criteria"].as_array().unwrap().iter().map(|c| c["held"].as_bool().unwrap()).collect();
    assert_eq!(held, [true, false]);
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps[0]["purpose"], "ceiling");
    assert!(steps.iter().skip(1).all(|step| step["warm_up"]["seconds"].as_u64().is_some_and(|s| s >= 5)));
    let grown: Vec<u64> = steps.iter().skip(1).map(|s| s["workers"].as_u64().unwrap()).collect();
    assert_eq!(grown[..3], [4, 1, 2], "{steps:?}");
    assert!(said.out.contains("NO: fleet >= 1000000000 IOPS of read"), "{}", said.out);
    let json = run(["analyze", text(&out), "--limit", "p50 <= 1h", "--json"]).json();
    assert_eq!(json["sources"][0]["kind"], "run of Loadline");
    assert!(number(&json, "sources/0/groups/0/load_line/held") > 0.0, "{json}");
    // A step's result alone, and then damaged among the others.
    let steps: Vec<PathBuf> =
        fs::read_dir(out.join("steps")).unwrap().map(|step| step.unwrap().path()).collect();
    let step = steps.iter().find(|step| text(step).contains("steps/003-")).unwrap().join("result.json");
    let alone = run(["analyze", text(&step), "--json"]).json();
    assert_eq!(alone["sources"][0]["kind"], "step of a run of Loadline");
    run(["analyze", text(&out.join("run.json"))]).refused(2, &["run.json", "give the run's folder"]);
    let whole = fs::read(&step).unwrap();
    fs::write(&step, &whole[..whole.len() / 2]).unwrap();
    for command in ["analyze", "report"] {
        let said = run([command, text(&out)]);
        assert_eq!(said.code, Some(3), "{}{}", said.out, said.err);
        assert!(said.out.contains(text(&step)) && said.out.contains("B4-"), "{}", said.out);
    }
    run(["analyze", text(&step)]).refused(2, &["truncated", "copy it anew"]);
}
