//! Which loads a study measures: those of its list of names and its tables, and the matrix over them.

use loadline_profile::Profile;

use crate::error::StudyError;
use crate::file::Study;
use crate::fleet::ResolvedFleet;
use crate::limited_volumes::in_force;
use crate::name::Name;
use crate::point::Point;

/// More points than this are a slip in a matrix, and not a study.
pub const MOST_POINTS: usize = 10_000;

/// Every load that a study measures, in the order of the file, checked.
pub fn points(study: &Study, fleet: &ResolvedFleet) -> Result<Vec<Point>, StudyError> {
    let bases = bases(study)?;
    let workers = fleet.workers;
    let policies = study.policy.len().max(1).saturating_mul(study.condition.len().max(1));
    let (combinations, variations) = (study.matrix.combinations(workers), study.vary.variations(workers));
    let count =
        [bases.len(), combinations, variations, policies].into_iter().fold(1usize, usize::saturating_mul);
    if count > MOST_POINTS {
        return Err(StudyError::usage(format!(
            "{} profiles in {combinations} combinations of the matrix, {variations} variations and {policies} policies or conditions \
             are {count} loads, more than the {MOST_POINTS} that one study measures: vary less at once",
            bases.len()
        )));
    }
    let alone = combinations == 1 && study.vary.is_empty();
    let mut points: Vec<Point> = Vec::with_capacity(count);
    for (name, base) in bases {
        for combined in study.matrix.over(base, workers) {
            for point in study.vary.one_at_a_time(combined, workers) {
                for point in on_policies(study, &point).iter().flat_map(|point| in_conditions(study, point)) {
                    points.push(checked(point.named(name.as_ref(), alone), workers)?);
                }
            }
        }
    }
    distinct(&points)?;
    Ok(points)
}

/// The loads that are searched: each profile in each combination of the matrix, on each policy, in the first condition.
pub fn searched(study: &Study, fleet: &ResolvedFleet) -> Result<Vec<Point>, StudyError> {
    let workers = fleet.workers;
    let alone = study.matrix.combinations(workers) == 1 && study.vary.is_empty();
    let mut points = Vec::new();
    for (name, base) in bases(study)? {
        for combined in study.matrix.over(base, workers) {
            // In the first condition only.
            let each = on_policies(study, &combined);
            let first = each.iter().flat_map(|point| in_conditions(study, point).into_iter().take(1));
            points.extend(first.map(|point| point.named(name.as_ref(), alone)));
        }
    }
    Ok(points)
}

fn in_conditions(study: &Study, point: &Point) -> Vec<Point> {
    if study.condition.is_empty() {
        return vec![point.clone()];
    }
    let names = study.condition.iter().map(|condition| condition.name.clone());
    names.map(|name| Point { condition: Some(name), ..point.clone() }).collect()
}

fn on_policies(study: &Study, point: &Point) -> Vec<Point> {
    let on = |policy: Option<&Name>| Point {
        volume_limit: in_force(point.varied_limit, study.san(policy)),
        policy: policy.cloned(),
        ..point.clone()
    };
    if study.policy.is_empty() {
        return vec![on(None)];
    }
    study.policy.iter().map(|policy| on(Some(&policy.name))).collect()
}

/// The names and tables of the file, before anything is varied.
fn bases(study: &Study) -> Result<Vec<(Option<Name>, Point)>, StudyError> {
    let named = study.profiles.iter().map(|name| (name.known(), name.profile().clone()));
    let tables = study.profile.iter().map(|entry| (entry.name.clone(), entry.profile()));
    let mut bases: Vec<(Option<Name>, Profile)> = named.chain(tables).collect();
    if bases.is_empty() {
        if study.matrix.is_empty() && study.vary.is_empty() {
            return Err(StudyError::usage(
                "the study measures nothing: give it profiles = [\"B4-T1-O8-W0-PR\"], a [[profile]] table or a \
                 [matrix]",
            ));
        }
        bases.push((None, Profile::default()));
    }
    Ok(bases.into_iter().map(|(name, profile)| (name, Point::of(profile))).collect())
}

fn checked(point: Point, workers: u32) -> Result<Point, StudyError> {
    let usage = |what: String| Err(StudyError::usage(format!("profile {}: {what}", point.label)));
    if let Err(e) = point.profile.validate() {
        return usage(e.to_string());
    }
    match point.workers {
        Some(count) if count == 0 || count > workers => {
            usage(format!("{count} workers: the fleet has {workers}; give 1 to {workers}"))
        }
        _ => Ok(point),
    }
}

/// Refuses two loads of the same label: rows of a table could not be distinguished.
fn distinct(points: &[Point]) -> Result<(), StudyError> {
    let mut labels: Vec<&str> = points.iter().map(|point| point.label.as_str()).collect();
    labels.sort_unstable();
    match labels.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(StudyError::usage(format!(
            "profile {} is there twice: remove one, or give one of the [[profile]] tables another name (to measure \
             a load several times, set repeats in [run])",
            pair[0]
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::parse;

    fn points_of(text: &str) -> Result<Vec<Point>, StudyError> {
        let study = parse("study.toml", &format!("name = \"s\"\n{text}")).unwrap();
        points(&study, &ResolvedFleet::of(&study.fleet)?)
    }

    fn labels(text: &str) -> Vec<String> {
        points_of(text).unwrap().into_iter().map(|point| point.label).collect()
    }

    #[test]
    fn a_simple_list_of_names_is_a_study() {
        let text = r#"profiles = ["B4-T1-O8-W0-PR", "B64-T2-O4-W100-PS"]"#;
        assert_eq!(labels(text), ["B4-T1-O8-W0-PR", "B64-T2-O4-W100-PS"]);
    }

    #[test]
    fn a_name_that_people_know_is_the_label() {
        let text = r#"profiles = ["oltp", "4K-randread", "B4-T1-O8-W0-PR"]"#;
        assert_eq!(labels(text), ["oltp", "4k-randread", "B4-T1-O8-W0-PR"]);
        let varied = "profiles = [\"oltp\"]\n[matrix]\noutstanding = [1, 8]";
        assert_eq!(labels(varied), ["oltp-B8-T1-O1-W30-PR", "oltp-B8-T1-O8-W30-PR"]);
    }

    #[test]
    fn a_table_changes_what_it_names_and_keeps_the_rest() {
        let text = "[[profile]]\nuse = \"B8-T2-O4-W30-PR\"\nworking_set = \"50%\"\nrate = \"500iops\"";
        let point = points_of(text).unwrap().remove(0);
        assert_eq!((point.profile.threads, point.profile.outstanding), (2, 4));
        assert_eq!(point.profile.rate.unwrap().to_string(), "500iops");
        assert!(point.label.starts_with("B8-T2-O4-W30-PR-"), "{}", point.label);
    }

    #[test]
    fn a_matrix_measures_every_combination_once() {
        let text = "[matrix]\nblock_size = [\"4K\", \"64K\"]\nwrite_percent = [0, 100]\noutstanding = [1, 8]";
        assert_eq!(
            labels(text),
            [
                "B4-T1-O1-W0-PR",
                "B4-T1-O8-W0-PR",
                "B4-T1-O1-W100-PR",
                "B4-T1-O8-W100-PR",
                "B64-T1-O1-W0-PR",
                "B64-T1-O8-W0-PR",
                "B64-T1-O1-W100-PR",
                "B64-T1-O8-W100-PR",
            ]
        );
    }

    #[test]
    fn a_named_table_in_a_matrix_keeps_its_name_in_front() {
        let text = "[[profile]]\nname = \"oltp\"\nblock_size = \"8K\"\n[matrix]\nthreads = [1, 2]";
        assert_eq!(labels(text), ["oltp-B8-T1-O32-W0-PR", "oltp-B8-T2-O32-W0-PR"]);
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_the_profiles_name() {
        for (text, part) in [
            ("", "measures nothing"),
            ("profiles = [\"B4-T1-O8-W0-PR\", \"b4t1o8w0pr\"]", "there twice"),
            ("[matrix]\nblock_size = [1000]", "multiple of 512"),
            ("[[profile]]\nname = \"x\"\nthreads = 0", "profile x"),
            (
                &format!(
                    "[matrix]\nthreads = {0:?}\noutstanding = {0:?}\nwrite_percent = {1:?}",
                    (1..=100).collect::<Vec<u32>>(),
                    [0, 1]
                ),
                "20000 loads",
            ),
        ] {
            let message = points_of(text).unwrap_err().message;
            assert!(message.contains(part), "{message}");
        }
    }
}
