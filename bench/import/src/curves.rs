//! Results that are places of one curve, in one file or in several: equal in everything but how much was outstanding or
//! offered, and in name and time.
//!
//! A reader states of a point what it has to share with others to be on one curve ([`Alike`]). Files are joined only if no
//! two of them state the same place: those may as well be a measurement before a change and one after it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use loadline_base::figures::listed;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::point::Point;

/// So many files are named; the others are counted.
const MOST_NAMED: usize = 6;

/// What the points of one curve have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alike {
    /// Everything that a source states of the load but depth or rate, name and time. Equal keys are one load.
    pub key: String,
    /// What the curve is called if its points have several names.
    pub label: String,
}

/// A file, and its places on one curve.
type Holder = (usize, BTreeSet<u64>);

/// What one file or several of one curve hold.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// The files, as the user named them.
    pub names: Vec<String>,
    /// What they were taken for.
    pub kind: String,
    /// What was measured.
    pub points: Vec<Point>,
    /// For each point what it shares with others of its curve; `None` if that is not known. As long as `points`.
    pub alike: Vec<Option<Alike>>,
    /// What a reader should know of the files.
    pub findings: Vec<Finding>,
    /// Whether the points were audited when they were measured.
    pub audited: bool,
}

impl Source {
    /// The name of the file, or of all of them, separated by commas.
    pub fn name(&self) -> String {
        self.names.join(", ")
    }

    /// Where a point is on its curve: what was outstanding or offered in all.
    fn place(&self, at: usize) -> Option<(&Alike, u64)> {
        let point = self.points.get(at)?;
        let load = point.rate_iops.or(point.outstanding)?;
        Some((self.alike.get(at)?.as_ref()?, load.to_bits()))
    }

    /// The places on each curve.
    fn curves(&self) -> BTreeMap<&Alike, BTreeSet<u64>> {
        let mut curves: BTreeMap<&Alike, BTreeSet<u64>> = BTreeMap::new();
        for (alike, load) in (0..self.points.len()).filter_map(|at| self.place(at)) {
            curves.entry(alike).or_default().insert(load);
        }
        curves
    }

    /// Gives the points of each curve one family; returns what the curves are called.
    fn name_curves(&mut self) -> Vec<String> {
        let several: BTreeSet<Alike> = (self.curves().into_iter())
            .filter(|(_, loads)| loads.len() > 1)
            .map(|(alike, _)| alike.clone())
            .collect();
        let mut called: HashMap<String, usize> = HashMap::new();
        let mut names = Vec::new();
        for alike in several {
            let rows: Vec<usize> = (0..self.points.len())
                .filter(|at| self.alike.get(*at) == Some(&Some(alike.clone())))
                .collect();
            let of = |at: &usize| self.points.get(*at).map(|point| point.profile.clone());
            let mut own: Vec<String> = rows.iter().filter_map(of).collect();
            own.dedup();
            let name = match own.as_slice() {
                [one] if !one.is_empty() => one.clone(),
                _ => alike.label.clone(),
            };
            // Two loads that differ in something that the name does not say stay two.
            let count = called.entry(name.clone()).or_default();
            *count += 1;
            let name = if *count > 1 { format!("{name}, load {count}") } else { name };
            for at in rows {
                if let Some(point) = self.points.get_mut(at) {
                    point.family = Some(name.clone());
                }
            }
            names.push(name);
        }
        names
    }
}

/// Joins files whose points are on one curve, and gives the points of each curve one family. What was joined, and what
/// was not because two files state the same place of a curve, is a note.
pub fn join(mut sources: Vec<Source>) -> Vec<Source> {
    let mut holders: BTreeMap<(String, Alike), Vec<Holder>> = BTreeMap::new();
    for (file, source) in sources.iter().enumerate() {
        for (alike, loads) in source.curves() {
            holders.entry((source.kind.clone(), alike.clone())).or_default().push((file, loads));
        }
    }
    // Which source each file belongs to: the first of those that it is joined with.
    let mut first: Vec<usize> = (0..sources.len()).collect();
    let mut apart: BTreeSet<Vec<usize>> = BTreeSet::new();
    for files in holders.into_values().filter(|files| files.len() > 1) {
        let members: Vec<usize> = files.iter().map(|(file, _)| *file).collect();
        let all: usize = files.iter().map(|(_, loads)| loads.len()).sum();
        let distinct: BTreeSet<u64> = files.into_iter().flat_map(|(_, loads)| loads).collect();
        if distinct.len() < all {
            apart.insert(members);
            continue;
        }
        let of = |file: &usize| first.get(*file).copied();
        let groups: BTreeSet<usize> = members.iter().filter_map(of).collect();
        let Some(lowest) = groups.first().copied() else { continue };
        first.iter_mut().filter(|group| groups.contains(group)).for_each(|group| *group = lowest);
    }
    for files in apart {
        let names = |file: &usize| sources.get(*file).map(Source::name);
        let names: Vec<String> = files.iter().filter_map(names).collect();
        let Some(source) = files.first().and_then(|file| sources.get_mut(*file)) else { continue };
        source.findings.push(Finding::note(
            FindingKind::Adjusted,
            "files of one load at different depths, which would be one curve",
            format!("the same load at the same depth in {}", listed(&names, MOST_NAMED)),
            "They may be repeats, or from before and after a change, so that each file is analysed alone. Repeats belong \
             into one CSV with a column `repeat`.",
        ));
    }
    let mut joined: Vec<Option<Source>> = Vec::new();
    for (file, source) in sources.into_iter().enumerate() {
        let group = first.get(file).copied().unwrap_or(file);
        match joined.get_mut(group).and_then(Option::as_mut) {
            Some(whole) => {
                whole.names.extend(source.names);
                whole.points.extend(source.points);
                whole.alike.extend(source.alike);
                for finding in source.findings {
                    if !whole.findings.contains(&finding) {
                        whole.findings.push(finding);
                    }
                }
                joined.push(None);
            }
            None => joined.push(Some(source)),
        }
    }
    let mut joined: Vec<Source> = joined.into_iter().flatten().collect();
    for source in &mut joined {
        let files = source.names.len();
        let curves = source.name_curves();
        if curves.is_empty() {
            continue;
        }
        let found = match files {
            1 => "results that are equal in everything but depth or rate, name and time".to_string(),
            files => format!("{files} files that are equal in everything but depth or rate, name and time"),
        };
        let what = if curves.len() == 1 { "one curve" } else { "curves" };
        source.findings.push(Finding::note(
            FindingKind::Adjusted,
            "results of different loads",
            found,
            format!("They are places of {what}: {}.", listed(&curves, MOST_NAMED)),
        ));
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: &str, loads: &[(&str, &str, f64)]) -> Source {
        let mut source = Source { names: vec![file.into()], kind: "fio JSON".into(), ..Source::default() };
        for (name, key, outstanding) in loads {
            let outstanding = Some(*outstanding);
            source.points.push(Point { profile: (*name).into(), outstanding, ..Point::default() });
            source.alike.push(Some(Alike { key: (*key).into(), label: "4 KiB randread".into() }));
        }
        source
    }

    fn shape(sources: &[Source]) -> Vec<(String, Vec<String>)> {
        let families = |source: &Source| source.points.iter().map(|p| p.family().to_string()).collect();
        sources.iter().map(|source| (source.name(), families(source))).collect()
    }

    #[test]
    fn three_files_of_one_load_at_three_depths_are_one_curve() {
        let files = [("a", "qd1", 1.0), ("b", "qd4", 4.0), ("c", "qd16", 16.0)]
            .map(|(file, name, depth)| source(file, &[(name, "k", depth)]));
        let joined = join(files.to_vec());
        assert_eq!(shape(&joined), [("a, b, c".to_string(), vec!["4 KiB randread".to_string(); 3])]);
        assert!(joined[0].findings[0].cause.contains("one curve: 4 KiB randread"));
    }

    #[test]
    fn another_load_or_the_same_depth_again_stays_apart() {
        let other = join(vec![source("a", &[("x", "k", 1.0)]), source("b", &[("x", "other", 4.0)])]);
        assert_eq!(other.len(), 2);
        assert!(other.iter().all(|source| source.findings.is_empty()));
        let again = join(vec![source("a", &[("x", "k", 1.0)]), source("b", &[("x", "k", 1.0)])]);
        assert_eq!(again.len(), 2);
        assert!(again[0].findings[0].found.contains("the same load at the same depth in a, b"));
    }

    #[test]
    fn loads_of_one_name_that_differ_elsewhere_are_two_curves() {
        let files = [1.0, 4.0].map(|depth| source("f", &[("x", "k", depth), ("x", "l", depth)]));
        let joined = join(files.to_vec());
        assert_eq!(joined.len(), 1);
        let families: Vec<&str> = joined[0].points.iter().map(Point::family).collect();
        assert_eq!(families, ["x", "x, load 2", "x", "x, load 2"]);
    }
}
