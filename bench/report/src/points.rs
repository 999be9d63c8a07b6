//! A run's complete steps as measured points, to be analysed like those of other tools.

use loadline_base::figures::listed;
use loadline_measure::analysis::{Analysis, Options, analyse};
use loadline_measure::audit::{Finding, FindingKind, Severity};
use loadline_measure::point::{Point, SeriesPoint, Stated, Throughput};
use loadline_measure::summary::PERCENTILES;
use loadline_study::folder::result::StepResult;
use loadline_study::planned_step::Purpose;
use loadline_study::{RunFolder, StudyError};

/// So many steps of one finding are named.
const MOST_NAMED: usize = 12;

/// The complete steps of a run (but the ceilings), and what was found of each when it was measured. A step whose result
/// cannot be read is a finding that makes the analysis doubtful; the error is that of the first, if no step can be read.
pub fn of(folder: &RunFolder) -> Result<(Vec<Point>, Vec<Finding>), StudyError> {
    let mut points = Vec::new();
    let mut unreadable: Vec<StudyError> = Vec::new();
    let mut read = 0_usize;
    // The same finding of several steps is one, in the words of the first.
    let mut findings: Vec<(Finding, Vec<u32>)> = Vec::new();
    // One step at a time: a result of many workers is large.
    for step in &folder.plan.steps {
        let result = match folder.result(step) {
            Ok(Some(result)) => result,
            Ok(None) => continue,
            Err(error) => {
                unreadable.push(error);
                continue;
            }
        };
        read += 1;
        if step.purpose == Purpose::Ceiling {
            continue;
        }
        for finding in result.findings.iter().filter(|finding| finding.severity == Severity::Doubt) {
            let same = |(known, _): &&mut (Finding, Vec<u32>)| {
                (known.kind, &known.cause) == (finding.kind, &finding.cause)
            };
            match findings.iter_mut().find(same) {
                Some((_, steps)) if steps.last() == Some(&step.number) => {}
                Some((_, steps)) => steps.push(step.number),
                None => findings.push((finding.clone(), vec![step.number])),
            }
        }
        points.push(point(&result, Some(folder.plan.fleet.disks_per_worker)));
    }
    let worded = |(finding, steps): (Finding, Vec<u32>)| match steps.as_slice() {
        [one] => Finding { expected: format!("step {one}: {}", finding.expected), ..finding },
        many => Finding {
            expected: format!("steps {}: {}", listed(many, MOST_NAMED), finding.expected),
            found: format!("{} (in the first of them)", finding.found),
            ..finding
        },
    };
    if let Some(first) = unreadable.first().filter(|_| read == 0) {
        return Err(first.clone());
    }
    let missing = unreadable.into_iter().map(|error| {
        Finding::doubt(
            FindingKind::MissingIntervals,
            "a result of every complete step",
            error.message,
            "Its figures are in nothing that follows; those of the other steps are.",
        )
    });
    Ok((points, missing.chain(findings.into_iter().map(worded)).collect()))
}

/// Analyses a run: its steps were audited when they were measured, with more than the figures tell, so what was found
/// then stands in the place of another audit.
pub fn analysis(folder: &RunFolder, options: &Options) -> Result<(Analysis, usize), StudyError> {
    let (points, findings) = of(folder)?;
    let count = points.len();
    let mut analysis = analyse(points, &Options { audited: true, ..options.clone() });
    analysis.findings.splice(0..0, findings);
    Ok((analysis, count))
}

/// A complete step as a measured point. What was outstanding in all is not known without the disks of each worker.
pub(crate) fn point(result: &StepResult, disks_per_worker: Option<u32>) -> Point {
    let (step, total) = (&result.step, &result.figures.total);
    let profile = &step.profile;
    let workers = result.workers.len() as f64;
    let latency = &total.latency_us;
    let exact = |value: Option<f64>| value.map(Stated::exact);
    let percentile = |(name, beyond): &(&str, u64)| {
        let value = latency.percentile(name)?;
        Some((100.0 - *beyond as f64 / 1e4, Stated::exact(value)))
    };
    let seconds = result.seconds.iter().zip(1u32..).map(|(second, at)| SeriesPoint {
        at_s: f64::from(at),
        iops: second.iops(),
        mean_us: second.mean_us,
    });
    Point {
        place: format!("step {}", step.number),
        profile: step.label.clone(),
        family: Some(if step.family.is_empty() { step.label.clone() } else { step.family.clone() }),
        repeat: step.repeat,
        workers: u32::try_from(result.workers.len()).ok(),
        nodes: u32::try_from(result.nodes.len()).ok().filter(|nodes| *nodes > 0),
        block_bytes: Some(profile.block_size.0 as f64),
        write_percent: Some(f64::from(profile.write_percent)),
        outstanding: profile
            .rate
            .is_none()
            .then(|| f64::from(profile.threads) * f64::from(profile.outstanding) * workers)
            .zip(disks_per_worker)
            .map(|(of_one_disk, disks)| of_one_disk * f64::from(disks)),
        rate_iops: profile.rate.map(|offered| offered.rate.iops(profile.block_size) * workers),
        window_s: Some(result.figures.window_s),
        iops: Some(Stated::exact(total.iops)),
        throughput: Some(Throughput {
            bytes_per_s: Stated::exact(total.bytes_per_s),
            unit: "B/s".into(),
            unit_bytes: 1.0,
        }),
        mean_us: exact(latency.mean),
        min_us: exact(latency.min),
        max_us: exact(latency.max),
        percentiles_us: PERCENTILES.iter().filter_map(percentile).collect(),
        errors: result.figures.errors,
        lost_workers: u32::try_from(result.lost()).unwrap_or(u32::MAX),
        series: seconds.collect(),
        ..Point::default()
    }
}
