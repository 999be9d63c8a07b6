//! Predicts a step on modelled nodes, from where its volumes are when it begins.

use std::collections::{BTreeMap, BTreeSet};

use loadline_fleet::WorkerId;
use loadline_load::Job;
use loadline_measure::capacity::{Load, NodeDevices, Prediction, Software, predict};

use crate::disks::used;
use crate::error::StudyError;
use crate::folder::RunFolder;
use crate::own_cluster::{device_model, log_model};
use crate::planned_step::Step;
use crate::predicted::{asked, is_predictable, is_random};
use crate::runner::Runner;
use crate::running_cluster::volume_prefix;
use crate::volumes::volumes_of;
use crate::workers::Workers;

/// What software and network add at the most, assumed of one machine that is not busy, seconds.
const READ_S: f64 = 0.2e-3;
const WRITE_S: f64 = 0.5e-3;

impl<W: Workers> Runner<'_, W> {
    /// What the step is predicted to do on the volumes as they are now; `None` if a node is not modelled, or if faults are done that the
    /// models say nothing of.
    pub(crate) async fn prediction(
        &mut self,
        step: &Step,
        jobs: &BTreeMap<WorkerId, Job>,
    ) -> Result<Option<Prediction>, StudyError> {
        let study = &self.owned.folder.manifest.study;
        let Some(capacity) = device_model(study)?.filter(|_| is_predictable(study, step)) else {
            return Ok(None);
        };
        let devices = NodeDevices { capacity, log: log_model(study)? };
        let Some(harness) = &self.harness else { return Ok(None) };
        let Some(placement) = harness.placement(&mut self.stop).await? else { return Ok(None) };
        let RunFolder { manifest, plan, .. } = &self.owned.folder;
        let prefix = volume_prefix(study, &manifest.run_id);
        let volumes = volumes_of(study, plan, &prefix, &manifest.workers, step.policy.as_ref());
        let at_work = volumes.into_iter().filter(|(worker, _)| jobs.contains_key(worker));
        let names: BTreeSet<String> =
            at_work.flat_map(|(_, volumes)| volumes).map(|volume| volume.name).collect();
        let [at_least, at_most] =
            [false, true].map(|has_burst| asked((step, study, has_burst), &names, &placement));
        let (Some(at_least), Some(at_most)) = (at_least, at_most) else { return Ok(None) };
        let nodes = plan.fleet.nodes.iter().map(|node| (node.clone(), devices.clone())).collect();
        let san = study.san(step.policy.as_ref()).cloned().unwrap_or_default();
        let is_scattered = plan.loads().any(|other| {
            let is_small = other.profile.block_size < step.profile.block_size;
            is_small && is_random(&other.profile) && other.profile.write_percent > 0
        });
        let load = Load {
            block: step.profile.block_size.0,
            write_share: f64::from(step.profile.write_percent) / 100.0,
            is_random: is_random(&step.profile),
            working_set: used(&step.profile, plan.fleet.file_size)
                .0
                .saturating_sub(step.profile.base_offset.0),
            log: san.log().0,
            seconds: (study.phases.warm_up.0 + study.phases.measure.0).as_secs_f64(),
            warm_up: study.phases.warm_up.0.as_secs_f64(),
            is_scattered,
        };
        let most_iops = study.nodes().and_then(|node| node.machine_iops);
        let software =
            Software { read_s: READ_S, write_s: WRITE_S, most_iops: most_iops.map(|iops| iops as f64) };
        // Whether clients have used the bursts of their limits up before the window is not known.
        let Some(least) = predict(&nodes, &load, &at_least, software) else { return Ok(None) };
        let mut prediction = predict(&nodes, &load, &at_most, software);
        if let Some(prediction) = &mut prediction {
            prediction.iops.low = prediction.iops.low.min(least.iops.low);
        }
        Ok(prediction)
    }
}
