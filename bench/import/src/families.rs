//! What the sweep is called that a point belongs to, where its name states how much was outstanding.

use std::collections::{HashMap, HashSet};

use loadline_measure::point::Point;
use loadline_profile::Profile;

/// Gives points whose loads are named as ours the name of their sweep, unless they have one.
pub(crate) fn name(points: &mut [Point]) {
    let families = of_names(points);
    for (point, family) in points.iter_mut().zip(families) {
        if point.family.is_none() {
            point.family = family;
        }
    }
}

/// The name of each point's sweep. `None` where the load's own name will do: it is none of ours, no other load of the
/// source differs from it in nothing but depth, or the depth is not known, so that without the name nothing would tell
/// it apart.
pub(crate) fn of_names(points: &[Point]) -> Vec<Option<String>> {
    let mut parsed: HashMap<&str, Option<(String, u32)>> = HashMap::new();
    let mut loads: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, point) in points.iter().enumerate() {
        if point.family.is_some() || point.outstanding.is_none() {
            continue;
        }
        let known = parsed.entry(&point.profile).or_insert_with(|| {
            let profile = Profile::of_letters(&point.profile).ok()?;
            Some((profile.family(), profile.threads))
        });
        if let Some((family, _)) = known {
            loads.entry(family.clone()).or_default().push(at);
        }
    }
    let mut families = vec![None; points.len()];
    for (family, rows) in loads {
        let of = |row: &usize| points.get(*row);
        let names: HashSet<&str> = rows.iter().filter_map(of).map(|point| point.profile.as_str()).collect();
        if names.len() < 2 {
            continue;
        }
        let threads = |point: &Point| parsed.get(point.profile.as_str())?.as_ref().map(|(_, count)| *count);
        let with_threads = |point: &Point| {
            let count = threads(point).unwrap_or_default();
            format!("{family}, {}", crate::text::counted(count as usize, "thread", "threads"))
        };
        // Two threads of eight are not four of four, though as many are outstanding.
        let plain = |_: &Point| family.clone();
        let namings: [&dyn Fn(&Point) -> String; 2] = [&plain, &with_threads];
        let chosen = namings.into_iter().find(|named| distinct(rows.iter().filter_map(of), named));
        let Some(named) = chosen else { continue };
        for row in &rows {
            if let Some(slot) = families.get_mut(*row) {
                *slot = of(row).map(named);
            }
        }
    }
    families
}

/// Whether loads of different names still differ by their sweep and their place on it.
fn distinct<'a>(points: impl Iterator<Item = &'a Point>, named: &dyn Fn(&Point) -> String) -> bool {
    let mut seen: HashMap<_, &str> = HashMap::new();
    for point in points {
        let place = (named(point), &point.condition, point.workers, point.outstanding.map(f64::to_bits));
        if *seen.entry(place).or_insert(&point.profile) != point.profile {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families(rows: &[(&str, Option<f64>)]) -> Vec<String> {
        let point = |(name, outstanding): &(&str, Option<f64>)| Point {
            profile: (*name).to_string(),
            workers: Some(1),
            outstanding: *outstanding,
            ..Point::default()
        };
        let mut points: Vec<Point> = rows.iter().map(point).collect();
        name(&mut points);
        points.iter().map(|point| point.family().to_string()).collect()
    }

    #[test]
    fn names_that_differ_in_depth_are_one_sweep() {
        let sweep = families(&[("B4-T1-O1-W0-PR", Some(1.0)), ("b4t1o8w0pr", Some(8.0)), ("x", Some(9.0))]);
        assert_eq!(sweep, ["B4-W0-PR", "B4-W0-PR", "x"]);
    }

    #[test]
    fn a_name_alone_or_of_unknown_depth_stays() {
        let alone = [("B4-T1-O1-W0-PR", Some(1.0)), ("B8-T1-O8-W0-PR", Some(8.0))];
        assert_eq!(families(&alone), ["B4-T1-O1-W0-PR", "B8-T1-O8-W0-PR"]);
        let open = [("B4-T1-O1-W0-PR", None), ("B4-T1-O8-W0-PR", None)];
        assert_eq!(families(&open), ["B4-T1-O1-W0-PR", "B4-T1-O8-W0-PR"]);
    }

    #[test]
    fn as_many_outstanding_by_other_threads_is_no_repeat() {
        let by_threads = [("B4-T2-O8-W0-PR", Some(16.0)), ("B4-T1-O16-W0-PR", Some(16.0))];
        assert_eq!(families(&by_threads), ["B4-W0-PR, 2 threads", "B4-W0-PR, 1 thread"]);
        let misnamed = [("B4-T1-O8-W0-PR", Some(16.0)), ("B4-T1-O16-W0-PR", Some(16.0))];
        assert_eq!(families(&misnamed), ["B4-T1-O8-W0-PR", "B4-T1-O16-W0-PR"]);
    }
}
