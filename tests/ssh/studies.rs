//! Studies of a cluster of the SAN on hosts, with a fleet on the same hosts.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::ssh_hosts::HOSTS;
use crate::ssh_san::San;
use crate::support::Said;

/// The hosts as nodes of a fleet.
fn fleet() -> String {
    let node = |host| format!("[[fleet.node]]\nname = \"h{host}\"\nssh = \"h{host}\"\n");
    format!("[fleet]\ndisk_size = \"32MiB\"\n{}", (1..=HOSTS).map(node).collect::<String>())
}

/// A study of a load that writes and reads, on volumes of three copies with these further words about the cluster. Each worker offers a
/// rate that leaves most of the processors to other tests.
pub(crate) fn study(san: &San, more: &str, cluster: &str, measure: &str) -> String {
    format!(
        "name = \"on-hosts\"\n{more}\n[target.san]\napi = \"{}\"\naccess_file = \"{}\"\ncopies = 3\nleast = 1\nlog = \"32MiB\"\n{cluster}\n\
         [[profile]]\nuse = \"B4-T1-O4-W50-PR\"\nrate = \"300iops\"\n\
         [phases]\nwarm_up = \"0s\"\nmeasure = \"{measure}\"\ncool_down = \"0s\"\n[run]\nrepeats = 1\n{}",
        san.api(1),
        san.access().display(),
        fleet()
    )
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The results of a run, in the order of its steps.
pub(crate) fn results(run: &Path) -> Vec<Value> {
    let mut steps: Vec<_> =
        fs::read_dir(run.join("steps")).unwrap().flatten().map(|step| step.path()).collect();
    steps.sort();
    steps
        .iter()
        .map(|step| step.join("result.json"))
        .filter(|file| file.exists())
        .map(|file| json(&file))
        .collect()
}

/// The host on which each worker of a step ran.
pub(crate) fn places(step: &Value) -> Vec<(String, String)> {
    let workers = step["workers"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    workers.iter().map(|one| (text(&one["worker"]["id"]), text(&one["worker"]["host"]))).collect()
}

pub(crate) fn is_measured(said: &Said) {
    assert!(matches!(said.code, Some(0 | 3)), "{}{}", said.out, said.err);
}
