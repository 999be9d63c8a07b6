//! Loads by the names that people use: `4K random write, 4 outstanding, one-down`. The code (`B4-T1-O4-W100-PR-one-down`) identifies a
//! load; its name is what a reader reads first.

use std::collections::BTreeMap;

use loadline_base::figures::counted;
use loadline_study::planned_step::Purpose;

use crate::rows::StepRow;

/// The name of each load of a run, by its label; that of each family of loads, by the family; and that of a load without its
/// condition, by the label without it.
pub(crate) fn all(steps: &[StepRow]) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for step in steps {
        names.entry(step.label.clone()).or_insert_with(|| of(step));
        if !step.family.is_empty() {
            names.entry(step.family.clone()).or_insert_with(|| of_family(step));
        }
        if let Some(condition) = &step.condition {
            let without = step.label.replacen(&format!("-{condition}"), "", 1);
            let name = joined(step.profile.words(), storage(step, false), workers(step));
            names.entry(without).or_insert(name);
        }
    }
    names
}

/// The name of a load: its profile in words, and in what else it differs from other loads of its study.
pub(crate) fn of(step: &StepRow) -> String {
    let profile = &step.profile;
    match step.purpose {
        Purpose::Ceiling => format!("devices alone: {}", profile.words()),
        _ => joined(profile.words(), storage(step, true), workers(step)),
    }
}

/// The name of what the loads of one sweep have in common.
pub(crate) fn of_family(step: &StepRow) -> String {
    match step.purpose {
        Purpose::Ceiling => format!("devices alone: {}", step.profile.family_words()),
        _ => joined(step.profile.family_words(), storage(step, true), None),
    }
}

/// The name that a code has, or the code itself if it has none.
pub fn named<'a>(names: &'a BTreeMap<String, String>, code: &'a str) -> &'a str {
    names.get(code).map_or(code, String::as_str)
}

fn joined(load: String, storage: Vec<String>, workers: Option<String>) -> String {
    [load].into_iter().chain(storage).chain(workers).collect::<Vec<_>>().join(", ")
}

/// In what the storage differs: fill level, placement, limit, policy, condition.
fn storage(step: &StepRow, with_condition: bool) -> Vec<String> {
    let fill = step.fill_level.map(|percent| format!("{percent} % full"));
    let apart =
        (step.unaligned_percent > 0).then(|| format!("{} % of workers apart", step.unaligned_percent));
    let limit = step.volume_limit.map(|limit| format!("limit of {limit}"));
    let policy = step.policy.as_ref().map(ToString::to_string);
    let condition = step.condition.as_ref().filter(|_| with_condition).map(ToString::to_string);
    [fill, apart, limit, policy, condition].into_iter().flatten().collect()
}

fn workers(step: &StepRow) -> Option<String> {
    step.asked_workers.map(|workers| counted(workers.into(), "worker"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_and_its_family_and_the_load_in_no_condition_have_names() {
        let step = StepRow {
            label: "B4-T1-O4-W100-PR-one-down-w3".into(),
            family: "B4-W100-PR-one-down".into(),
            profile: "B4-T1-O4-W100-PR".parse().unwrap(),
            condition: "one-down".parse().ok(),
            asked_workers: Some(3),
            ..StepRow::none()
        };
        let names = all(&[step]);
        assert_eq!(
            names["B4-T1-O4-W100-PR-one-down-w3"],
            "4K random write, 4 outstanding, one-down, 3 workers"
        );
        assert_eq!(names["B4-W100-PR-one-down"], "4K random write, one-down");
        assert_eq!(names["B4-T1-O4-W100-PR-w3"], "4K random write, 4 outstanding, 3 workers");
        assert_eq!(named(&names, "another"), "another");
    }
}
