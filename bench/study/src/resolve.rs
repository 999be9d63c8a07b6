//! A study file, validated once, with its options resolved. Later code plans and runs with this, and does not ask which options
//! are given. Pure: nothing is read.

use loadline_base::units::ByteSize;

use crate::bounds::{bounds, devices_of_unknown_workers, fill_levels};
use crate::criterion::Criterion;
use crate::disks::{fits, verified_unit};
use crate::error::StudyError;
use crate::file::Study;
use crate::fleet::ResolvedFleet;
use crate::own_cluster::{self, ClusterPlan};
use crate::point::{Point, without};
use crate::points::points;
use crate::searches::{self, SearchPlan};
use crate::{ceilings, conditions, faults, limited_volumes, published};

/// A study that can be carried out as it is written, as far as that is known without a system.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedStudy<'a> {
    /// The file.
    pub file: &'a Study,
    /// The fleet that carries out the study.
    pub fleet: ResolvedFleet,
    /// Every load that it measures, in the order of the file.
    pub points: Vec<Point>,
    /// The loads that measure what the storage below the disks can do.
    pub ceilings: Vec<Point>,
    /// Its searches, in the order in which they are made.
    pub searches: Vec<SearchPlan>,
    /// The cluster in which the run makes volumes, if it does.
    pub cluster: Option<ClusterPlan>,
    /// The size of each file or volume that is created; `None` if existing devices are measured.
    pub disk_size: Option<ByteSize>,
    /// Whether all that the loads use is written once before the first step.
    pub fill: bool,
}

impl ResolvedStudy<'_> {
    /// Validates and resolves a study. The error is of kind `Usage`: it says which option cannot be as it is, and what can be
    /// written instead.
    pub fn of(study: &Study) -> Result<ResolvedStudy<'_>, StudyError> {
        let fleet = ResolvedFleet::of(&study.fleet)?;
        // First: what is counted below must not be absurd.
        bounds(study, &fleet)?;
        conditions::check(study, &fleet)?;
        faults::check(study, &fleet)?;
        own_cluster::aligned(study)?;
        limited_volumes::check(study)?;
        let points = points(study, &fleet)?;
        let makes_files = study.makes_files();
        if makes_files {
            for point in &points {
                fits(&point.label, &point.profile, fleet.file_size, "disk_size")?;
            }
        }
        own_cluster::for_logs(study, &points)?;
        let ceilings = ceilings::points(study, &fleet, &points)?;
        let searches = searches::plan(study, &fleet)?;
        if let Some(unmet) = study.success.iter().find(|criterion| !is_measured(criterion, &points)) {
            return Err(StudyError::usage(format!(
                "success: no load of the study is one that \"{unmet}\" is about: name one of them, or add it to the profiles"
            )));
        }
        published::check(
            &study.published,
            study.condition.first().map(|condition| &condition.name),
            &points,
        )?;
        let fill = study.phases.fill.unwrap_or(makes_files || study.makes_disks());
        devices_of_unknown_workers(study, &fleet, &points, fill)?;
        fill_levels(study, &fleet, &points, fill)?;
        if study.run.verify {
            verifiable(&points, fill)?;
        }
        Ok(ResolvedStudy {
            file: study,
            cluster: own_cluster::plan(study, &fleet),
            disk_size: makes_files.then_some(fleet.file_size),
            fleet,
            points,
            ceilings,
            searches,
            fill,
        })
    }
}

/// What a run verifies it verifies in one unit from its first write to its last.
fn verifiable(points: &[Point], fill: bool) -> Result<(), StudyError> {
    let unit = |point: &Point| verified_unit(&point.profile);
    let (Some(first), Some(least)) = (points.first().map(unit), points.iter().map(unit).min()) else {
        return Ok(());
    };
    if !fill && first != least {
        return Err(StudyError::usage(format!(
            "[run] verify: the first profile is verified in units of {first} bytes, and another needs {least}: put \
             the one with the smaller blocks first, or say fill = true in [phases]"
        )));
    }
    Ok(())
}

fn is_measured(criterion: &Criterion, points: &[Point]) -> bool {
    let names = |point: &Point| {
        let table = point.table.as_ref().map(ToString::to_string);
        let bare = point.condition.as_ref().map(|condition| without(&point.label, condition));
        [Some(point.label.clone()), Some(point.family.clone()), table, bare]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
    };
    points.iter().any(|point| criterion.is_about(&names(point), &point.profile))
}
