//! The kind of a study: which chart answers its question, and so comes first.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conditions::ConditionRow;
use crate::curves::{Curve, CurveAxis};
use crate::faults::FaultsRow;

/// The fewest points of a curve that is drawn.
pub(crate) const FEWEST_POINTS: usize = 3;

/// What a study is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StudyKind {
    /// Something is done to the storage while it is measured.
    Faults,
    /// Workers are added, on several policies.
    Policies,
    /// Each load in several conditions, on several policies, or with another variable changed.
    Conditions,
    /// Workers are added.
    Growth,
    /// Latency against IOPS.
    #[default]
    Latency,
}

impl StudyKind {
    /// By what was measured so far.
    pub(crate) fn of(faults: &[FaultsRow], conditions: &[ConditionRow], curves: &[Curve]) -> StudyKind {
        let grows = curves
            .iter()
            .any(|curve| curve.axis == CurveAxis::Workers && curve.points.len() >= FEWEST_POINTS);
        let has_policies = curves.iter().any(|curve| curve.policy.is_some());
        if !faults.is_empty() {
            StudyKind::Faults
        } else if grows && has_policies {
            StudyKind::Policies
        } else if conditions.iter().any(|row| row.workers.is_none()) {
            StudyKind::Conditions
        } else if grows {
            StudyKind::Growth
        } else {
            StudyKind::Latency
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions;
    use crate::curves::curves;
    use crate::rows::StepRow;

    /// One load with so many workers on each policy; the most have no number, since they are all.
    fn grown(policies: &[&str]) -> Vec<StepRow> {
        let step = |policy: &str, workers: usize| StepRow {
            label: format!("4k-{policy}-w{workers}"),
            family: format!("4k-{policy}"),
            policy: policy.parse().ok(),
            asked_workers: Some(workers as u32).filter(|workers| *workers < 3),
            workers,
            outstanding: Some(workers as f64),
            iops: workers as f64,
            ..StepRow::none()
        };
        policies.iter().flat_map(|policy| (1..=3).map(move |workers| step(policy, workers))).collect()
    }

    fn kind(steps: &[StepRow]) -> StudyKind {
        StudyKind::of(&[], &conditions::rows(steps), &curves(steps))
    }

    #[test]
    fn workers_that_are_added_on_policies_are_growth_and_not_conditions() {
        assert_eq!(kind(&grown(&["one", "two"])), StudyKind::Policies);
        assert_eq!(kind(&grown(&[""])), StudyKind::Growth);
        assert_eq!(kind(&grown(&[""])[..1]), StudyKind::Latency);
        let one_size: Vec<StepRow> =
            grown(&["one", "two"]).into_iter().filter(|step| step.asked_workers.is_none()).collect();
        assert_eq!(kind(&one_size), StudyKind::Conditions);
    }
}
