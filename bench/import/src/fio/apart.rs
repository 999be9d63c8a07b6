//! What distinguishes jobs of one name.

use std::collections::HashMap;

use loadline_measure::point::Point;

use super::load::JobOptions;

/// Gives points of one name whose loads or hosts differ a family that states how. `options`: one entry for each point.
pub(super) fn distinguish(points: &mut [Point], options: &[(JobOptions, Option<String>)]) {
    let mut names: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, point) in points.iter().enumerate() {
        names.entry(point.profile.clone()).or_default().push(at);
    }
    for (name, rows) in names.into_iter().filter(|(_, rows)| rows.len() > 1) {
        let parts: Vec<Vec<Option<&str>>> =
            rows.iter().filter_map(|at| options.get(*at)).map(parts).collect();
        let differ =
            |part: usize| parts.windows(2).any(|pair| matches!(pair, [a, b] if a.get(part) != b.get(part)));
        let differing: Vec<usize> =
            (0..parts.first().map_or(0, Vec::len)).filter(|part| differ(*part)).collect();
        for (at, parts) in rows.iter().zip(&parts).filter(|_| !differing.is_empty()) {
            let labels = differing.iter().filter_map(|part| parts.get(*part).copied().flatten());
            let family: Vec<&str> =
                Some(name.as_str()).filter(|name| !name.is_empty()).into_iter().chain(labels).collect();
            if let Some(point) = points.get_mut(*at).filter(|_| family.len() > 1) {
                point.family = Some(family.join(", "));
            }
        }
    }
}

/// Size, kind, mix, and host: two hosts of one result ran together, so that they are no repeats.
fn parts((options, host): &(JobOptions, Option<String>)) -> Vec<Option<&str>> {
    options.parts.iter().chain([host]).map(Option::as_deref).collect()
}
