//! Metrics as their pages list them: that of a node, and that of the documentation.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};

/// A metric: its type, and the labels of its series.
pub(crate) type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

/// The metrics of a page of `/metrics`.
pub(crate) fn of_page(page: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in page.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').expect("a name and a type");
            metrics.insert(name.into(), (kind.into(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().expect("there is one");
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| {
                name.strip_suffix(suffix)
                    .filter(|base| metrics.get(*base).is_some_and(|of| of.0 == "histogram"))
            });
            let (_, labels) = metrics.get_mut(base.unwrap_or(name)).expect("its type comes first");
            labels.extend(names(line).into_iter().filter_map(|(name, of)| of.map(|_| name)));
            labels.remove("le");
        }
    }
    metrics
}

/// The metrics of the reference.
pub(crate) fn of_reference() -> Metrics {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(file).expect("it is there");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = cells[3].split(',').map(|label| label.trim().trim_matches('`').to_owned());
        (
            cells[1].trim_matches('`').into(),
            (cells[2].into(), labels.filter(|label| !label.is_empty()).collect()),
        )
    })
    .collect()
}

/// The names in an expression outside of quotes: those of metrics, functions and words, and the labels in braces, each of these with the
/// metric that has it.
pub(crate) fn names(expression: &str) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    let (mut metric, mut in_braces, mut quoted) = (String::new(), false, false);
    let mut word = String::new();
    for next in expression.chars().chain([' ']) {
        if quoted {
            quoted = next != '"';
        } else if next.is_ascii_alphanumeric() || next == '_' || next == ':' || next == '$' {
            word.push(next);
        } else {
            if word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
                found.push((word.clone(), in_braces.then(|| metric.clone())));
                if !in_braces {
                    metric.clone_from(&word);
                }
            }
            word.clear();
            match next {
                '"' => quoted = true,
                '{' => in_braces = true,
                '}' => in_braces = false,
                _ => {}
            }
        }
    }
    found
}
