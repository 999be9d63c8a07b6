//! What a step on modelled nodes is predicted to do, before it is measured, and how far the measured figure is from it.

use std::collections::{BTreeMap, BTreeSet};

use loadline_base::figures::thousands;
use loadline_measure::audit::{Finding, FindingKind};
use loadline_measure::capacity::Volume;
use loadline_profile::{Pattern, Profile};
use loadline_target::{FaultKind, PlacedVolume};

use crate::faults::has_faults;
use crate::file::Study;
use crate::folder::result::StepResult;
use crate::name::Name;
use crate::planned_step::{Purpose, Step};
use crate::volume_limit::VolumeLimit;

/// Whether the models say what becomes of the step: a node that is gone takes its device with it, but what a slow device does, or one that
/// fails in the window, no model says.
pub(crate) fn is_predictable(study: &Study, step: &Step) -> bool {
    let is_modelled =
        |what: &FaultKind| matches!(what, FaultKind::Kill | FaultKind::Freeze | FaultKind::Return);
    let of_condition = |name: &Name| {
        let place = study.condition.iter().position(|one| one.name == *name).unwrap_or(0);
        let mut actions = study.condition.iter().take(place + 1).flat_map(|condition| &condition.actions);
        actions.all(|fault| is_modelled(&fault.what))
    };
    step.purpose != Purpose::Ceiling
        && !has_faults(study, step)
        && step.profile.flush_every.is_none()
        && (step.profile.hot_spots.is_empty() || step.profile.write_percent == 0)
        && step.condition.as_ref().is_none_or(of_condition)
}

pub(crate) fn is_random(profile: &Profile) -> bool {
    matches!(profile.pattern, Pattern::Random | Pattern::Mixed { .. })
}

/// The volumes of a step with what is asked of each; `None` if one has no owner. A volume with a limit has its whole burst left for the window
/// if `has_burst`, and has used it up before otherwise.
pub(crate) fn asked(
    (step, study, has_burst): (&Step, &Study, bool),
    names: &BTreeSet<String>,
    placement: &BTreeMap<String, PlacedVolume>,
) -> Option<Vec<Volume>> {
    let profile = &step.profile;
    let window_s = study.phases.measure.0.as_secs_f64();
    // A worker's rate is shared by its disks.
    let disks = f64::from(study.fleet.disks_per_worker.max(1));
    let offered = profile.rate.map(|offered| offered.rate.iops(profile.block_size) / disks);
    let limit_of = |limit: VolumeLimit| match has_burst {
        true => limit.most_iops(profile.block_size.0, window_s),
        false => limit.sustained_iops(profile.block_size.0),
    };
    let limited = step.volume_limit.map(limit_of);
    let volume = |name: &String| {
        let placed = placement.get(name)?;
        Some(Volume {
            owner: placed.owner.clone()?,
            stripes: placed.stripes.clone(),
            outstanding: f64::from(profile.threads) * f64::from(profile.outstanding),
            most_iops: offered.into_iter().chain(limited).reduce(f64::min),
        })
    };
    names.iter().map(volume).collect()
}

/// What a reader should know of a measured figure that is outside of what was predicted.
pub(crate) fn finding(result: &StepResult) -> Option<Finding> {
    let prediction = result.prediction.as_ref().filter(|_| result.lost() == 0)?;
    let iops = result.figures.total.iops;
    let departure = prediction.departure(iops);
    let expected = format!(
        "{} to {} I/Os a second, as predicted from the models of the devices; the load is limited by {}",
        thousands(prediction.iops.low),
        thousands(prediction.iops.high),
        prediction.binds
    );
    let found =
        |by: f64, than: &str| format!("{} I/Os a second: {:.0} % {than}", thousands(iops), 100.0 * by);
    if !prediction.agrees(iops) && departure > 1.0 {
        return Some(Finding::doubt(
            FindingKind::Prediction,
            expected,
            found(departure - 1.0, "more than the most"),
            "The devices behaved faster than their models, or served I/Os that the prediction does not know of. Do not take the figure for \
             that of such drives; report the problem with the run's folder.",
        ));
    }
    if !prediction.agrees(iops) {
        let destaged =
            result.storage.as_ref().map(|counts| counts.destaged_bytes_per_s).filter(|bytes| *bytes > 0.0);
        let destaged = destaged.map_or(String::new(), |bytes| {
            format!(
                ", while the nodes destaged {:.1} MB/s of what this load or one before it wrote",
                bytes / 1e6
            )
        });
        return Some(Finding::note(
            FindingKind::Prediction,
            expected,
            format!("{}{destaged}", found(1.0 - departure, "less than the least")),
            "Something other than the devices' speed limits the load: the machine's processors, the cpu_limit or the network of the nodes, logs that loads before have left full, or \
             copies that are brought in sync. A longer warm_up lets logs settle.",
        ));
    }
    None
}

#[cfg(test)]
#[path = "predicted_tests.rs"]
mod tests;
