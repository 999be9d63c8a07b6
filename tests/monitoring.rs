//! What ships for Prometheus and Grafana: every metric that the alert rules and the dashboard name exists, and Prometheus evaluates all of
//! their expressions on a real cluster.

#[path = "support/metrics.rs"]
mod metrics;
mod nodes;
#[path = "support/prometheus.rs"]
mod prometheus;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use metrics::{names, of_reference};
use nodes::{Cluster, run};
use prometheus::{Prometheus, program, rules};
use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const RULES: &str = "packaging/prometheus/loadline.rules.yml";
const TESTS_OF_RULES: &str = "packaging/prometheus/loadline.rules.test.yml";

/// Labels that Prometheus adds, that the rules and the dashboard take over from `loadline_node_info`, or that histograms have.
const ADDED: [&str; 5] = ["instance", "job", "cluster", "node", "le"];

fn text(file: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{file}")).expect("it is there")
}

fn dashboard() -> Value {
    serde_json::from_str(&text("packaging/grafana/loadline.json")).expect("it is JSON")
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The expressions of the dashboard, each with a name: those of panels, annotations and variables.
fn expressions(dashboard: &Value) -> Vec<(String, String)> {
    let owned = |value: &Value| value.as_str().expect("it is text").to_owned();
    let mut all = Vec::new();
    for panel in list(dashboard, "panels") {
        for target in list(panel, "targets") {
            all.push((
                format!("{} {}", owned(&panel["title"]), owned(&target["refId"])),
                owned(&target["expr"]),
            ));
        }
    }
    for annotation in list(&dashboard["annotations"], "list").iter().filter(|of| !of["expr"].is_null()) {
        all.push((format!("annotation {}", owned(&annotation["name"])), owned(&annotation["expr"])));
    }
    for variable in list(&dashboard["templating"], "list").iter().filter(|of| of["type"] == "query") {
        let query = owned(&variable["query"]["query"]);
        let expression = query.strip_prefix("query_result(").and_then(|rest| rest.strip_suffix(')'));
        let labels =
            || query.strip_prefix("label_values(").and_then(|rest| rest.split_once(',')).map(|of| of.0);
        let expression = expression.or_else(labels).expect("one of both");
        all.push((format!("variable {}", owned(&variable["name"])), expression.to_owned()));
    }
    all
}

#[test]
fn rules_and_dashboard_name_only_metrics_and_labels_that_exist() {
    let mut metrics = of_reference();
    for (name, (kind, labels)) in metrics.clone() {
        if kind == "histogram" {
            for suffix in ["_bucket", "_sum", "_count"] {
                metrics.insert(format!("{name}{suffix}"), (String::new(), labels.clone()));
            }
        }
    }
    let rules = rules(&text(RULES));
    for (name, _) in rules.iter().filter(|(name, _)| name.starts_with("loadline:")) {
        let labels = ["volume", "op"].map(str::to_owned);
        metrics.insert(name.clone(), (String::new(), labels.into()));
    }
    let labels: BTreeSet<&str> =
        metrics.values().flat_map(|(_, labels)| labels).map(String::as_str).chain(ADDED).collect();
    let dashboard = dashboard();
    let mut all = expressions(&dashboard);
    assert!(all.len() > 60 && rules.len() > 15, "{} and {}", all.len(), rules.len());
    all.extend(rules);
    // Also what texts of alerts query, and what tests of rules are given.
    for (file, begin, end) in [(RULES, "range printf \"", "\" "), (TESTS_OF_RULES, "{series: '", "'")] {
        let lines = text(file);
        let used = lines.lines().filter_map(|line| line.split_once(begin)?.1.split_once(end));
        let before = all.len();
        all.extend(used.map(|(used, _)| (file.to_owned(), used.replace("%q", "\"\""))));
        assert!(all.len() > before, "{file} has some");
    }
    for (of, expression) in &all {
        for (name, metric) in names(expression) {
            match metric {
                // A matcher of a metric.
                Some(metric) => {
                    let known = metrics.get(&metric).is_some_and(|(_, labels)| labels.contains(&name));
                    let known = known || ADDED.contains(&&*name) || metric == "up" || metric == "ALERTS";
                    assert!(known, "{of}: {metric} has no label {name}: {expression}");
                }
                None if name.starts_with("loadline") || name.starts_with("process") => {
                    assert!(metrics.contains_key(&name), "{of}: no metric {name}: {expression}");
                }
                None => {}
            }
        }
        for grouping in ["by (", "on (", "group_left ("] {
            for rest in expression.split(grouping).skip(1) {
                let listed = rest.split(')').next().unwrap_or_default().split(',').map(str::trim);
                for label in listed.filter(|label| !label.is_empty()) {
                    assert!(labels.contains(label), "{of}: no label {label}: {expression}");
                }
            }
        }
    }
}

#[test]
fn the_dashboard_fits_any_grafana() {
    let dashboard = dashboard();
    assert!(dashboard["id"].is_null(), "an id is of one Grafana");
    let panels = list(&dashboard, "panels");
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().expect("it has one")).collect();
    assert_eq!(ids.len(), panels.len(), "ids of panels are unique");
    fn sources(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                if key == "datasource" {
                    found.insert(value["uid"].as_str().expect("a type and a uid").into());
                }
                sources(value, found);
            }),
            Value::Array(values) => values.iter().for_each(|value| sources(value, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    sources(&dashboard, &mut found);
    assert_eq!(
        found,
        ["$datasource", "-- Grafana --"].map(|of| of.replace("$datasource", "${datasource}")).into()
    );
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("it has one");
        assert!(panel["type"] == "row" || panel["description"].is_string(), "{title} says what it shows");
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("it has a place");
        assert!(at("x") + at("w") <= 24, "{title}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} covers another panel");
            }
        }
        let refs: BTreeSet<&str> =
            list(panel, "targets").iter().filter_map(|target| target["refId"].as_str()).collect();
        assert_eq!(refs.len(), list(panel, "targets").len(), "{title}");
    }
    for wanted in ["Node missing", "Node started", "Epoch", "Copy out of sync"] {
        assert!(list(&dashboard["annotations"], "list").iter().any(|of| of["name"] == wanted), "{wanted}");
    }
}

#[test]
fn the_alerts_fire_when_they_should_and_only_then() {
    for (command, file) in [("check", RULES), ("test", TESTS_OF_RULES)] {
        run(Command::new(program("promtool")).args([command, "rules"]).arg(format!("{ROOT}/{file}")));
    }
}

/// Expressions of panels that have no data while all is well and clients load the volume.
const EMPTY_IF_WELL: [&str; 11] = [
    // Nothing is missing, and no process is older or younger than others.
    "annotation Node missing",
    "annotation Node started",
    "annotation Epoch",
    "annotation Copy out of sync",
    "Copies missing A",
    // No copy comes back.
    "Resync: bytes left A",
    "Resync: time left A",
    // The log has room.
    "Log: slows writes A",
    // At one moment there may be no request, no sync, and no device that fills up.
    "Unanswered requests A",
    "Mean time of syncs by device A",
    "Devices D",
];

#[test]
fn prometheus_evaluates_every_expression_on_a_real_cluster_and_sees_a_node_that_is_killed() {
    let mut cluster = Cluster::start(3);
    cluster.loadline(&["volume", "create", "disk", "--size", "64MiB", "--copies", "2"]);
    cluster.loadline(&["volume", "attach", "disk", "--node", "node-1"]);
    let place = cluster.folder().join("prometheus");
    let prometheus = Prometheus::start(&place, cluster.address(100), &cluster.addresses());
    let uri = format!("nbd://{}:10809/disk", cluster.addresses()[0]);
    let mut load = Command::new(env!("CARGO_BIN_EXE_loadline"));
    load.args([
        "bench",
        &uri,
        "--destroy-data",
        "--profile",
        "B4-T1-O8-W50-PR",
        "--warm-up",
        "0s",
        "--for",
        "300s",
    ]);
    load.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut load = load.spawn().expect("the program is there");

    let info = prometheus.wait_for("loadline_node_info", 3);
    let id = info[0].split("cluster=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("it has one");
    let filled = |expression: &str| {
        // Percentiles do not wait for many requests here.
        let mut filled = expression.replace(">= 10 / (1", ">= 0.001 / (1").replace(">= 1000", "> 0");
        for (variable, value) in [
            ("$cluster", id),
            ("$__rate_interval", "10s"),
            ("$__range", "1m"),
            ("$quantile", "0.99"),
            ("$volume", ".*"),
            ("[5m]", "[10s]"),
        ] {
            filled = filled.replace(variable, value);
        }
        assert!(!filled.contains('$'), "{filled}");
        filled
    };
    let dashboard = dashboard();
    let all = expressions(&dashboard);
    let expression = |name: &str| {
        let found = all.iter().find(|(of, _)| of == name).unwrap_or_else(|| panic!("no {name}"));
        filled(&found.1)
    };
    prometheus.wait_for(&expression("IOPS B"), 1);
    for (name, of) in all.iter().filter(|(name, _)| !EMPTY_IF_WELL.contains(&&**name)) {
        prometheus.wait_for(&filled(of), 1);
        assert!(!name.is_empty());
    }
    let rules = rules(&text(RULES));
    let alert = |name: &str| filled(&rules.iter().find(|(of, _)| of == name).expect("there is one").1);
    for (name, of) in &rules {
        let found = prometheus.query(&filled(of));
        assert_eq!(
            found.is_empty(),
            !name.starts_with("loadline:"),
            "{name} of a healthy cluster: {found:?}"
        );
    }

    // A node with a copy dies. It is named, and is not green anywhere.
    let has_copy = |node: u8| cluster.http(node, "/metrics").contains("loadline_replica_usable{");
    let node = if has_copy(2) { 2 } else { 3 };
    assert!(cluster.http(1, "/metrics").contains("loadline_volume_served{volume=\"disk\"} 1"));
    cluster.kill(node);
    let name = format!("node=\"node-{node}\"");
    for of in [alert("LoadlineNodeMissing"), expression("annotation Node missing")] {
        let found = prometheus.wait_for(&of, 1);
        assert!(found.len() == 1 && found[0].contains(&name), "{found:?}");
    }
    assert_eq!(prometheus.wait_for(&format!("({}) == 1", expression("Nodes missing A")), 1).len(), 1);
    let states = prometheus.query(&expression("Nodes A"));
    assert!(states.iter().any(|state| state.contains(&name) && state.ends_with("=> 0")), "{states:?}");
    for of in ["LoadlineCopyMissing", "LoadlineOneCopyLeft"] {
        prometheus.wait_for(&alert(of), 1);
    }
    for of in ["annotation Copy out of sync", "annotation Epoch", "Copies missing A"] {
        prometheus.wait_for(&expression(of), 1);
    }
    // It returns, and the copy is resynced.
    cluster.start_node(node);
    prometheus.wait_for(&expression("annotation Node started"), 1);
    prometheus.wait_for(&format!("({}) == 0", expression("Volumes with a copy missing A")), 1);
    prometheus.wait_for("sum(loadline_resync_bytes_total) > 0", 1);
    let begun = Instant::now();
    while !prometheus.query(&alert("LoadlineNodeMissing")).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "the node reports again");
    }
    let _ = load.kill();
    let _ = load.wait();
}
