//! The limits of a study's volumes: which a study may state, which is in force in a step, and what the step may reach then.

use loadline_base::figures::{counted, thousands};
use loadline_measure::audit::{Finding, FindingKind};

use crate::error::StudyError;
use crate::file::{SanSection, Study};
use crate::folder::result::StepResult;
use crate::volume_limit::{LimitValue, VolumeLimit};

/// Beyond what a limit allows by so much, it was not in force.
const TOLERANCE: f64 = 0.05;

impl Study {
    /// The values that the study varies the limit of its volumes over.
    fn limit_values(&self) -> impl Iterator<Item = LimitValue> {
        self.matrix.volume_limit.iter().chain(&self.vary.volume_limit).copied()
    }

    /// The limits that its policies, or its target, give their volumes.
    fn san_limits(&self) -> impl Iterator<Item = VolumeLimit> {
        self.targets().filter_map(|target| target.san?.limit)
    }

    /// Whether any step may be measured on limited volumes.
    pub(crate) fn limits_volumes(&self) -> bool {
        self.limit_values().next().is_some() || self.san_limits().next().is_some()
    }
}

/// What limits of volumes a study cannot state.
pub(crate) fn check(study: &Study) -> Result<(), StudyError> {
    let usage = |message: String| Err(StudyError::usage(message));
    let varied = study.limit_values().filter_map(LimitValue::limit).map(|limit| ("volume_limit", limit));
    for (key, limit) in varied.chain(study.san_limits().map(|limit| ("san: limit", limit))) {
        if let Err(why) = limit.check() {
            return usage(format!("{key}: {why}"));
        }
    }
    if study.limit_values().next().is_some() && study.fewest_copies().is_none() {
        return usage(
            "volume_limit: the run limits volumes in a cluster of the SAN only: set san = {} in [target], or offer other storage a rate \
             instead (rate = [\"500iops\"])"
                .into(),
        );
    }
    Ok(())
}

/// The limit of a policy's volumes for a load that varies it, or does not.
pub(crate) fn in_force(varied: Option<LimitValue>, san: Option<&SanSection>) -> Option<VolumeLimit> {
    match varied {
        Some(value) => value.limit(),
        None => san.and_then(|san| san.limit),
    }
}

/// What a reader of a step on limited volumes should know, given the number of volumes that it used.
pub(crate) fn findings(result: &StepResult, volumes: usize) -> Vec<Finding> {
    let Some(limit) = result.step.volume_limit else { return Vec::new() };
    let mut findings = vec![Finding::note(
        FindingKind::Limited,
        "volumes without a limit",
        format!("each volume limited to {limit}"),
        "The study asks for it. Where the storage could do more, the figures are those of the limit.",
    )];
    let total = &result.figures.total;
    let most = limit.most_iops(result.step.profile.block_size.0, result.figures.window_s) * volumes as f64;
    if total.iops > most * (1.0 + TOLERANCE) {
        findings.push(Finding::doubt(
            FindingKind::Limited,
            format!(
                "at most {} I/Os a second, by the limit of {}",
                thousands(most),
                counted(volumes as u64, "volume")
            ),
            format!("{} I/Os a second", thousands(total.iops)),
            "The limit was not in force in the whole window: something else changed it. Run the study anew.",
        ));
    }
    findings
}

#[cfg(test)]
#[path = "limited_volumes_tests.rs"]
mod tests;
