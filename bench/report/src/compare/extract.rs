//! What is recorded of a run: its figures, and its circumstances as text.

use std::collections::{BTreeMap, BTreeSet};

use loadline_load::host::{DiskInventory, Inventory};
use loadline_measure::stats::median;
use loadline_study::name::Name;
use loadline_study::planned_step::Purpose;
use serde_json::Value;

use crate::compare::record::{LoadRecord, RepeatRecord, RunRecord};
use crate::compare::run::{Run, is_of_search};
use crate::rows::{LoadRow, StepRow};

impl From<&Run> for RunRecord {
    fn from(run: &Run) -> RunRecord {
        let (report, manifest) = (&run.report, &run.manifest);
        let workers = manifest.workers.iter().map(|worker| worker.version.clone());
        let measured = || report.steps.iter().filter(|step| !is_of_search(step.purpose));
        let steal: Vec<f64> = measured().filter_map(|step| step.host_steal).collect();
        let planned = manifest.steps.iter().filter(|step| !is_of_search(step.purpose));
        RunRecord {
            place: run.folder.clone(),
            run_id: report.run_id.clone(),
            study: report.study.clone(),
            loadline: report.loadline.clone(),
            begun: report.begun.clone(),
            complete: report.complete,
            planned: report.planned,
            missing: report.missing.clone(),
            damaged: report.unreadable,
            versions: workers.chain([report.loadline.clone()]).collect(),
            disks: run.disks,
            steal: median(&steal),
            cpu_pressure: median(&run.cpu_pressure),
            configuration: study(run),
            fleet: fleet(run),
            hosts: run.hosts.iter().map(|(name, host)| (name.clone(), facts(host))).collect(),
            engines: run.engines.clone(),
            planned_loads: planned.map(|step| step.label.clone()).collect(),
            searches: !report.searches.is_empty(),
            loads: loads(run),
        }
    }
}

/// The loads of a run that have a complete repeat. A step of a search is no repeat of a load.
fn loads(run: &Run) -> Vec<LoadRecord> {
    let record = |row: &LoadRow| {
        let is_of_load = |step: &&StepRow| step.label == row.label && !is_of_search(step.purpose);
        let steps: Vec<&StepRow> = run.report.steps.iter().filter(is_of_load).collect();
        let first = steps.first()?;
        let repeat = |step: &&StepRow| RepeatRecord {
            iops: step.iops,
            mean_us: step.latency_us.mean,
            p99_us: step.latency_us.p99,
        };
        Some(LoadRecord {
            label: row.label.clone(),
            keys: load_keys(first),
            has_rate: first.profile.rate.is_some(),
            doubtful: row.doubtful,
            repeats: steps.iter().map(repeat).collect(),
        })
    };
    run.report.loads.iter().filter_map(record).collect()
}

/// What makes a load the one that it is: the keys of its profile, and what it was put on.
pub(super) fn load_keys(step: &StepRow) -> BTreeMap<String, String> {
    let mut keys = flat(&serde_json::to_value(&step.profile).unwrap_or_default());
    let on = [
        ("fill_level", step.fill_level.map(|percent| format!("{percent} %"))),
        ("unaligned_percent", Some(step.unaligned_percent).filter(|p| *p > 0).map(|p| p.to_string())),
        ("volume_limit", step.volume_limit.map(|limit| limit.to_string())),
        ("policy", step.policy.as_ref().map(Name::to_string)),
        ("condition", step.condition.as_ref().map(Name::to_string)),
        ("measured as a ceiling", (step.purpose == Purpose::Ceiling).then(|| "yes".into())),
    ];
    keys.extend(on.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?))));
    keys
}

/// The study as keys with dots. A folder for files is the one that was meant, wherever the study file was.
pub(super) fn study(run: &Run) -> BTreeMap<String, String> {
    let mut study = run.manifest.study.clone();
    study.target.folder = study.target.folder.map(|folder| run.manifest.study_folder.join(folder));
    flat(&serde_json::to_value(&study).unwrap_or_default())
}

/// The workers that measured.
pub(super) fn fleet(run: &Run) -> BTreeMap<String, String> {
    let workers = &run.manifest.workers;
    let distinct = |names: BTreeSet<&str>| names.into_iter().collect::<Vec<_>>().join(", ");
    [
        ("workers", distinct(workers.iter().map(|worker| worker.id.0.as_str()).collect())),
        ("Loadline of the workers", distinct(workers.iter().map(|worker| worker.version.as_str()).collect())),
        ("hosts", distinct(workers.iter().map(|worker| worker.host.as_str()).collect())),
    ]
    .map(|(what, names)| (what.to_string(), names))
    .into()
}

/// Every value by its keys with dots between them. A list of plain values is one value; tables in a list go by their
/// names, or by their places if they have none.
fn flat(value: &Value) -> BTreeMap<String, String> {
    let mut keys = BTreeMap::new();
    flatten(value, String::new(), &mut keys);
    keys
}

fn flatten(value: &Value, at: String, keys: &mut BTreeMap<String, String>) {
    let below = |name: &str| if at.is_empty() { name.to_string() } else { format!("{at}.{name}") };
    match value {
        Value::Object(table) => table.iter().for_each(|(name, value)| flatten(value, below(name), keys)),
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (name, value) in names(list).iter().zip(list) {
                flatten(value, below(name), keys);
            }
        }
        // A key that is not given and one that is null are the same.
        Value::Null => {}
        Value::String(text) => {
            keys.insert(at, text.clone());
        }
        Value::Array(list) => {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
            keys.insert(at, list.iter().map(plain).collect::<Vec<_>>().join(", "));
        }
        other => {
            keys.insert(at, other.to_string());
        }
    }
}

/// What the tables of a list are called: by `name` or `use` if that tells them apart, else by their places from 1.
fn names(list: &[Value]) -> Vec<String> {
    let name = |value: &Value| Some(value.get("name").or(value.get("use"))?.as_str()?.to_string());
    let named: Option<Vec<String>> = list.iter().map(name).collect();
    match named {
        Some(named) if named.iter().collect::<BTreeSet<_>>().len() == list.len() => named,
        _ => (1..=list.len()).map(|place| place.to_string()).collect(),
    }
}

/// What a host is, as far as it matters to a figure. Targets are not among it: files are made anew for each run, and
/// devices are in the study.
pub(super) fn facts(host: &Inventory) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::from([("CPUs".to_string(), host.cpus.to_string())]);
    let known = [
        ("kernel", host.kernel.clone()),
        ("CPU", host.cpu.clone()),
        ("CPU governor", host.governor.clone()),
        ("memory", host.memory.map(|bytes| format!("{} MiB", bytes >> 20))),
    ];
    facts.extend(known.into_iter().filter_map(|(what, value)| Some((what.to_string(), value?))));
    if !host.disks.is_empty() {
        facts.insert("disks".into(), host.disks.len().to_string());
    }
    let mut disks: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    for disk in &host.disks {
        for (what, value) in settings(disk) {
            *disks.entry(format!("disks: {what}")).or_default().entry(value).or_default() += 1;
        }
    }
    for (what, values) in disks {
        // How many have it is only told where not all have: else it would differ with the number of disks.
        let counted = |(value, count): (&String, &usize)| match *count == host.disks.len() {
            true => value.clone(),
            false => format!("{value} ({count})"),
        };
        facts.insert(what, values.iter().map(counted).collect::<Vec<_>>().join(", "));
    }
    facts
}

fn settings(disk: &DiskInventory) -> BTreeMap<String, String> {
    let mut settings = disk.settings.clone();
    settings.insert("kind".into(), disk.kind.clone());
    settings.extend(disk.file_system.clone().map(|value| ("file system".into(), value)));
    settings.extend(disk.device.clone().map(|value| ("device".into(), value)));
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_go_by_their_names_and_lists_are_one_value() {
        let keys =
            |value: Value| flat(&value).into_iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        assert_eq!(
            keys(json!({ "name": "s", "run": { "seed": 1, "none": null }, "profiles": ["x", "y"] })),
            ["name=s", "profiles=x, y", "run.seed=1"]
        );
        assert_eq!(
            keys(json!({ "profile": [{ "name": "x", "rate": "5iops" }, { "use": "y", "threads": 2 }] })),
            ["profile.x.name=x", "profile.x.rate=5iops", "profile.y.threads=2", "profile.y.use=y"]
        );
        assert_eq!(
            keys(json!({ "profile": [{ "use": "y", "threads": 1 }, { "use": "y", "threads": 2 }] })),
            ["profile.1.threads=1", "profile.1.use=y", "profile.2.threads=2", "profile.2.use=y"]
        );
    }
}
