//! Checks a plan against the cluster in which its run makes volumes, if that ran before: whether it has the nodes, and room. Nothing is
//! changed there.

use std::path::Path;

use loadline_base::units::ByteSize;
use loadline_target::FoundCluster;

use crate::check::{PlanCheck, human};
use crate::error::StudyError;
use crate::file::{SanSection, Study};
use crate::plan::Plan;
use crate::running_cluster::{access, api};

/// Bytes that the volumes of a run take of all devices together, logs included.
fn space_needed(study: &Study, plan: &Plan) -> ByteSize {
    let of = |san: &SanSection| {
        let logs = san.log().0.saturating_mul(u64::from(san.stripes().max(1)));
        plan.fleet.file_size.0.saturating_add(logs).saturating_mul(u64::from(san.copies()))
    };
    let each: u64 = study.targets().filter_map(|target| target.san).map(of).fold(0, u64::saturating_add);
    ByteSize(each.saturating_mul(plan.disks()))
}

/// Asks the cluster of the study, if it ran before, whether it has the nodes of the plan and room for the volumes, and adds what it
/// answers to `found`. Blocks for some seconds at the most. `made`: volumes that the run has made already, which need no more room.
pub fn check_cluster(study: &Study, plan: &Plan, study_folder: &Path, made: usize, found: &mut PlanCheck) {
    let Some(san) = study.running_cluster() else { return };
    // A run that goes on first brings back the nodes that its faults keep from running.
    let needed = if made == 0 { plan.fleet.nodes.as_slice() } else { &[] };
    let looked = api(san).and_then(|api| Ok(FoundCluster::look(api, access(san, study_folder), needed)?));
    match looked {
        Ok(cluster) => {
            let needed = space_needed(study, plan);
            if made == 0 && needed > cluster.free {
                found.problems.push(StudyError::usage(format!(
                    "too little space in the cluster {}: the run's volumes need {} of its devices, and {} are free. Lower disk_size, \
                     the number of disks, or the log ([target] san log)",
                    cluster.id,
                    human(needed),
                    human(cluster.free)
                )));
            }
            found.cluster = Some((cluster, needed));
        }
        Err(error) => {
            found.problems.push(StudyError { message: format!("[target] san: {}", error.message), ..error })
        }
    }
}
