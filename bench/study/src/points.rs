//! Which loads a study measures: those of its list of names and its tables, and the matrix over them.

use loadline_profile::Profile;

use crate::error::StudyError;
use crate::file::Study;
use crate::name::Name;

/// More points than this are a slip in a matrix, and not a study.
pub const MOST_POINTS: usize = 10_000;

/// One load that is measured, and what it is called.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Different from every other point's label; letters, digits, dots, hyphens and underscores.
    pub label: String,
    /// The load.
    pub profile: Profile,
}

/// Every load that a study measures, in the order of the file, checked.
pub fn points(study: &Study) -> Result<Vec<Point>, StudyError> {
    let named = study.profiles.iter().map(|name| (None, name.profile().clone()));
    let tables = study.profile.iter().map(|entry| (entry.name.clone(), entry.profile()));
    let mut bases: Vec<(Option<Name>, Profile)> = named.chain(tables).collect();
    if bases.is_empty() {
        if study.matrix.is_empty() {
            return Err(StudyError::usage(
                "the study measures nothing: give it profiles = [\"B4-T1-O8-W0-PR\"], a [[profile]] table or a \
                 [matrix]",
            ));
        }
        bases.push((None, Profile::default()));
    }
    let combinations = study.matrix.combinations();
    let count = bases.len().saturating_mul(combinations);
    if count > MOST_POINTS {
        return Err(StudyError::usage(format!(
            "{} profiles in {combinations} combinations of the matrix are {count} loads, more than the \
             {MOST_POINTS} that one study measures: vary less at once",
            bases.len()
        )));
    }
    let mut points: Vec<Point> = Vec::with_capacity(count);
    for (name, base) in bases {
        for profile in study.matrix.over(base) {
            let label = match &name {
                Some(name) if combinations > 1 => format!("{name}-{}", profile.label()),
                Some(name) => name.to_string(),
                None => profile.label(),
            };
            profile.validate().map_err(|e| StudyError::usage(format!("profile {label}: {e}")))?;
            points.push(Point { label, profile });
        }
    }
    distinct(&points)?;
    Ok(points)
}

/// Two rows of one table that carry the same name could not be told apart.
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
        points(&parse("study.toml", &format!("name = \"s\"\n{text}")).unwrap())
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
