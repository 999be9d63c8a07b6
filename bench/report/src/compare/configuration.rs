//! What differs between two runs beside their figures: the study, the fleet, what its hosts are, the engines.

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::figures::listed;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compare::record::{LoadRecord, RunRecord};

/// A value longer than this is cut where it is printed.
const LONGEST: usize = 60;
/// So much of what two long values have in common is printed before their first difference.
const CONTEXT: usize = 12;
/// How many workers, hosts or loads are named one by one.
const MOST_NAMED: usize = 6;

/// Something that is one thing in A and another in B.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// What: a key of the study such as `run.seed`, or words such as `host: kernel`.
    pub what: String,
    /// The hosts or loads that it is about; empty if it is about the whole run.
    pub of: Vec<String>,
    /// What it is in A; `null` if it is not given there.
    pub a: Option<String>,
    /// What it is in B; `null` if it is not given there.
    pub b: Option<String>,
}

impl Difference {
    fn new(what: impl Into<String>, a: Option<String>, b: Option<String>) -> Difference {
        Difference { what: what.into(), of: Vec::new(), a, b }
    }

    /// `run.seed: 1 -> 2`, with long values cut to where they differ, and without control characters.
    pub fn line(&self) -> String {
        let of = match self.of.is_empty() {
            true => String::new(),
            false => format!(" ({})", printable(&listed(&self.of, MOST_NAMED))),
        };
        let (a, b) = (self.a.as_deref().map(printable), self.b.as_deref().map(printable));
        // In characters, since text is cut between them.
        let same = match (&a, &b) {
            (Some(a), Some(b)) => a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let show = |value: &Option<String>| {
            value.as_ref().map_or("not given".to_string(), |value| cut(value, same.saturating_sub(CONTEXT)))
        };
        format!("{}{of}: {} -> {}", printable(&self.what), show(&a), show(&b))
    }
}

/// What is longer than a line without what is before `from`, and without what is too much after it.
fn cut(value: &str, from: usize) -> String {
    if value.chars().count() <= LONGEST {
        return value.to_string();
    }
    let rest: Vec<char> = value.chars().skip(from).collect();
    let (before, after) = (if from > 0 { "…" } else { "" }, if rest.len() > LONGEST { "…" } else { "" });
    let kept: String = rest.into_iter().take(LONGEST).collect();
    format!("{before}{kept}{after}")
}

/// Control characters would do to a terminal what they like.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => printable.extend(c.escape_default()),
            false => printable.push(c),
        }
    }
    printable
}

/// What two runs must have in common, so that a difference of their figures is one of what is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constant {
    /// How they were measured: the hosts' CPUs, how long, with which engine, and whether data were verified. Targets, disks
    /// and fleet may be what is judged.
    Method,
    /// That, and what was measured: targets, disks and fleet.
    System,
}

/// Keys of the method, or what they begin with.
const METHOD: [&str; 7] = [
    "host: CPU",
    "phases.measure",
    "phases.steady",
    "phases.warm_up",
    "run.engine",
    "run.poll",
    "run.verify",
];
/// The same of the system.
const SYSTEM: [&str; 7] = [
    "target.",
    "policy.",
    "fleet.",
    "host: disks: device",
    "host: disks: file system",
    "host: disks: kind",
    "host: disks: model",
];
/// Keys that begin like those and change no figure.
const NEITHER: [&str; 2] = ["fleet.listen", "fleet.wait"];

/// What differs and should be constant.
pub fn unlike(a: &RunRecord, b: &RunRecord, constant: Constant) -> Vec<Difference> {
    differences(a, b).into_iter().filter(|difference| is_constant(&difference.what, constant)).collect()
}

/// Whether two runs must have this key of the study, or this fact of a host, in common.
pub(super) fn is_constant(what: &str, constant: Constant) -> bool {
    let begins = |keys: &[&str]| keys.iter().any(|key| what.starts_with(key));
    let is_of_system = constant == Constant::System && (begins(&SYSTEM) || what == "host: disks");
    (begins(&METHOD) || is_of_system) && !NEITHER.contains(&what)
}

/// Everything that differs, the most general first.
pub fn differences(a: &RunRecord, b: &RunRecord) -> Vec<Difference> {
    let mut all = Vec::new();
    if a.loadline != b.loadline {
        let version = |run: &RunRecord| Some(run.loadline.clone());
        all.push(Difference::new("Loadline", version(a), version(b)));
    }
    all.extend(of_maps("", &a.configuration, &b.configuration));
    all.extend(of_maps("", &a.fleet, &b.fleet));
    all.extend(of_hosts(&a.hosts, &b.hosts));
    all.extend(of_engines(a, b));
    all
}

/// What differs in the loads of one name: the profile, and what it was put on.
pub(super) fn of_loads(a: &LoadRecord, b: &LoadRecord) -> Vec<Difference> {
    of_maps("", &a.keys, &b.keys)
}

fn of_maps(prefix: &str, a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<Difference> {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differs = |key: &&String| a.get(*key) != b.get(*key);
    let of =
        |key: &String| Difference::new(format!("{prefix}{key}"), a.get(key).cloned(), b.get(key).cloned());
    keys.into_iter().filter(differs).map(of).collect()
}

/// What each host is, by its name.
type Hosts = BTreeMap<String, BTreeMap<String, String>>;

/// What differs in what the hosts are. Hosts of one name are compared, and the others in the order of their names. The
/// same difference of many hosts is one.
fn of_hosts(a: &Hosts, b: &Hosts) -> Vec<Difference> {
    let in_both = a.iter().filter_map(|(name, host)| Some((name.clone(), host, b.get(name)?)));
    let rest_of_a = a.iter().filter(|(name, _)| !b.contains_key(*name));
    let rest_of_b = b.iter().filter(|(name, _)| !a.contains_key(*name));
    let in_turn = rest_of_a
        .zip(rest_of_b)
        .map(|((name, host), (other, there))| (format!("{name} -> {other}"), host, there));
    let mut all: Vec<Difference> = Vec::new();
    for (name, host, other) in in_both.chain(in_turn) {
        for difference in of_maps("host: ", host, other) {
            add(&mut all, difference, &name);
        }
    }
    all.sort_by(|one, other| one.what.cmp(&other.what));
    all
}

/// Adds a difference, or what it is about to the same one.
fn add(all: &mut Vec<Difference>, difference: Difference, of: &str) {
    let same = |known: &&mut Difference| {
        (&known.what, &known.a, &known.b) == (&difference.what, &difference.a, &difference.b)
    };
    match all.iter_mut().find(same) {
        Some(known) => known.of.push(of.to_string()),
        None => all.push(Difference { of: vec![of.to_string()], ..difference }),
    }
}

/// What issued a load on each side, if that is known and not the same.
pub(super) fn other_engines<'a>(
    a: &'a RunRecord,
    b: &'a RunRecord,
    label: &str,
) -> Option<(&'a BTreeSet<String>, &'a BTreeSet<String>)> {
    let known = |run: &'a RunRecord| run.engines.get(label).filter(|engines| !engines.is_empty());
    known(a).zip(known(b)).filter(|(of_a, of_b)| of_a != of_b)
}

fn of_engines(a: &RunRecord, b: &RunRecord) -> Vec<Difference> {
    let mut all = Vec::new();
    for label in a.engines.keys() {
        let Some((of_a, of_b)) = other_engines(a, b, label) else { continue };
        let named = |engines: &BTreeSet<String>| {
            let names: Vec<&str> = engines.iter().map(String::as_str).collect();
            Some(names.join(" and "))
        };
        add(&mut all, Difference::new("engine", named(of_a), named(of_b)), label);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::extract::facts;
    use loadline_load::host::{DiskInventory, Inventory};

    #[test]
    fn long_values_are_cut_to_where_they_differ_and_nothing_reaches_the_terminal() {
        let value = |last: &str| Some(format!("{}{last}{}", "x".repeat(500), "y".repeat(500)));
        let line = Difference::new("key", value("a"), value("ä")).line();
        assert!(line.contains("xxxay") && line.contains("xxxäy") && line.chars().count() < 200, "{line}");
        let line = Difference::new("description", Some("\u{1b}[2Ja\nb".into()), None).line();
        assert_eq!(line, "description: \\u{1b}[2Ja\\nb -> not given");
    }

    #[test]
    fn the_same_difference_of_many_hosts_is_one_and_other_names_are_compared_in_turn() {
        let host = |kernel: &str, scheduler: &str| Inventory {
            kernel: Some(kernel.into()),
            disks: vec![
                DiskInventory {
                    settings: BTreeMap::from([("scheduler".to_string(), scheduler.to_string())]),
                    kind: "file".into(),
                    ..DiskInventory::default()
                };
                2
            ],
            ..Inventory::default()
        };
        let hosts = |names: [&str; 3], kernel: &str| -> BTreeMap<String, Inventory> {
            names.map(|name| (name.to_string(), host(kernel, "none"))).into()
        };
        let (a, mut b) = (hosts(["h1", "h2", "old"], "6.1"), hosts(["h1", "h2", "new"], "6.8"));
        b.insert("h2".into(), host("6.8", "mq-deadline"));
        // One of three: the others' kind did not change.
        b.get_mut("h2")
            .unwrap()
            .disks
            .push(DiskInventory { kind: "file".into(), ..DiskInventory::default() });
        let facts = |hosts: BTreeMap<String, Inventory>| -> Hosts {
            hosts.iter().map(|(name, host)| (name.clone(), facts(host))).collect()
        };
        let lines: Vec<String> = of_hosts(&facts(a), &facts(b)).iter().map(Difference::line).collect();
        assert_eq!(
            lines,
            [
                "host: disks (h2): 2 -> 3",
                "host: disks: scheduler (h2): none -> mq-deadline (2)",
                "host: kernel (h1, h2, old -> new): 6.1 -> 6.8",
            ]
        );
    }
}
