//! Does a result hold together? Each finding says what was expected, what was found, and what usually causes it.

use std::fmt;

use loadline_base::figures::{counted, thousands};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::summary::LatencySummary;
use crate::window::Figures;

pub mod level;
pub mod points;

/// How far a finding reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; the figures stand.
    Note,
    /// A figure is doubtful: exit code 3.
    Doubt,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// Mean outstanding is not IOPS × mean latency.
    LittlesLaw,
    /// Mean outside minimum and maximum, or percentiles that decrease.
    Order,
    /// I/Os failed.
    Errors,
    /// Workers were lost, hung, fell behind or never came.
    LostWorkers,
    /// The offered rate was not carried.
    RateNotMet,
    /// I/Os of the window never completed.
    Censored,
    /// The generator itself was the bottleneck.
    GeneratorBound,
    /// Something else used the host's CPU.
    NoisyHost,
    /// Nothing completed at all.
    NothingMeasured,
    /// I/O went through the page cache, as the load asks or because direct I/O is refused.
    NotDirect,
    /// io_uring was refused, and threads issued the I/O; or it was used without registered memory.
    Fallback,
    /// Reads of blocks that were never written.
    UnwrittenReads,
    /// The profile could not be applied exactly.
    Adjusted,
    /// What was to be done to the storage was not done.
    Fault,
    /// The storage's own counters do not say what the workers say.
    Counters,
    /// Data were read back that were not what was written.
    Integrity,
    /// A stop condition ended the run.
    Stopped,
    /// Seconds are missing from the series.
    MissingIntervals,
    /// IOPS × block size is not the throughput.
    Throughput,
    /// More than the storage can do.
    Ceiling,
    /// Conditions that are compared differ in more than one thing.
    TwoVariables,
    /// The load was measured before it was steady.
    NotSteady,
    /// The level changed in the middle of the window.
    LevelChange,
    /// Nothing completed for a while.
    Stall,
    /// Something of the storage behaved as a model says, or had a share of its machine, and was not itself.
    Modelled,
    /// The figure is outside of what was predicted from models of the devices.
    Prediction,
    /// The volumes had a limit of what their clients do a second.
    Limited,
}

/// One thing that a reader of the figures should know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// How far it reaches.
    pub severity: Severity,
    /// What it is about.
    pub kind: FindingKind,
    /// What was expected.
    pub expected: String,
    /// What was found.
    pub found: String,
    /// What usually causes it, and what to do.
    pub cause: String,
}

impl Finding {
    /// A finding that makes a figure doubtful.
    pub fn doubt(
        kind: FindingKind,
        expected: impl Into<String>,
        found: impl Into<String>,
        cause: impl Into<String>,
    ) -> Finding {
        let severity = Severity::Doubt;
        Finding { severity, kind, expected: expected.into(), found: found.into(), cause: cause.into() }
    }

    /// A finding that is worth knowing.
    pub fn note(
        kind: FindingKind,
        expected: impl Into<String>,
        found: impl Into<String>,
        cause: impl Into<String>,
    ) -> Finding {
        Finding { severity: Severity::Note, ..Finding::doubt(kind, expected, found, cause) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Doubt => "doubtful",
        };
        write!(f, "{severity}: expected {}; found {}. {}", self.expected, self.found, self.cause)
    }
}

/// The load that a measurement requested, as far as the audit needs it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestedLoad {
    /// I/Os kept outstanding in all, if the load was a closed loop.
    pub outstanding: Option<f64>,
    /// I/Os a second offered in all, if the load was rate-driven.
    pub rate_iops: Option<f64>,
    /// Whether the rate arrives at random, so that what was offered varies.
    pub poisson: bool,
    /// CPU seconds that the generator used in the window, and how many cores it could have used at the most
    /// (its threads, or the host's cores if those are fewer).
    pub generator_cpu: Option<(f64, f64)>,
    /// Share of the host's CPU time in the window that the hypervisor gave to others (0 to 1).
    pub steal: Option<f64>,
    /// Whether storage is judged (a study), or this is a single `bench`, which on memory always is bound by the
    /// generator: there it is a note.
    pub study: bool,
}

/// Little's law is checked to this share.
pub(crate) const LITTLE_TOLERANCE: f64 = 0.05;
/// A rate is carried if what completed is within this share of it, beyond the noise of counting.
const RATE_TOLERANCE: f64 = 0.01;
/// The generator counts as saturated above this share of the CPU it could use.
const CPU_SATURATED: f64 = 0.95;

/// Whether an offered load was carried: of `expected` I/Os in the window so many completed. One in a hundred may be
/// missing, or what counting them makes uncertain: a Poisson count of n varies by √n, of which three are allowed; of even
/// arrivals, one more or less falls on an edge of the window.
pub fn is_carried(completed: f64, expected: f64, poisson: bool) -> bool {
    let noise = if poisson { 3.0 * expected.sqrt() } else { 1.0 };
    completed >= expected - (expected * RATE_TOLERANCE).max(noise).max(1.0)
}

/// The audit of one measured window.
pub fn audit(figures: &Figures, requested: &RequestedLoad) -> Vec<Finding> {
    let mut findings = Vec::new();
    let total = &figures.total;
    let completed = total.iops * figures.window_s;
    if completed == 0.0 {
        findings.push(Finding::doubt(
            FindingKind::NothingMeasured,
            "I/Os that complete in the window",
            format!("none in {} s, {}", figures.window_s, counted(figures.errors, "error")),
            "The storage hangs or fails every request, or the rate is so low that no I/O was due.",
        ));
    }
    if figures.errors > 0 {
        findings.push(Finding::doubt(
            FindingKind::Errors,
            "no errors",
            format!(
                "{} failed ({}, {})",
                counted(figures.errors, "I/O"),
                counted(figures.read.errors, "read"),
                counted(figures.write.errors, "write")
            ),
            "Failed I/Os are in no latency or IOPS figure. See the kernel log for the device.",
        ));
    }
    if total.censored > 0 {
        findings.push(Finding::doubt(
            FindingKind::Censored,
            "every I/O of the window to complete",
            format!("{} had not completed when the drain ended; their age counts as a lower bound of the latency", total.censored),
            "The storage hung, or the offered rate is much higher than the storage carries: the true latencies are the printed ones or higher.",
        ));
    }
    if let (Some(outstanding), Some(mean)) = (requested.outstanding, total.latency_us.mean)
        && figures.errors == 0
        && total.censored == 0
    {
        let product = total.iops * mean / 1e6;
        // With few I/Os the ones at the window's edges weigh in: at most one round of all outstanding.
        let tolerance = LITTLE_TOLERANCE.max(outstanding / completed.max(1.0));
        if (product / outstanding - 1.0).abs() > tolerance {
            findings.push(Finding::doubt(
                FindingKind::LittlesLaw,
                format!("IOPS × mean latency to equal the {outstanding} outstanding I/Os (Little's law)"),
                format!("{:.0} × {:.1} us = {product:.2}", total.iops, mean),
                if product < outstanding {
                    "The generator did not keep all I/Os outstanding: it was short of CPU, or a worker stopped early."
                } else {
                    "Latency was not measured where the I/O was issued."
                },
            ));
        }
    }
    if let Some(rate) = requested.rate_iops {
        let expected = rate * figures.window_s;
        if !is_carried(completed, expected, requested.poisson) {
            findings.push(Finding::doubt(
                FindingKind::RateNotMet,
                format!("{} I/Os a second, as offered", in_words(rate)),
                format!("{} completed ({:.1} %)", in_words(total.iops), 100.0 * completed / expected),
                "The storage does not carry this rate; latencies then grow with the length of the run.",
            ));
        }
    }
    for (what, summary) in [
        ("total", Some(&total.latency_us)),
        ("read", Some(&figures.read.latency_us)),
        ("write", Some(&figures.write.latency_us)),
        ("service", figures.service_us.as_ref()),
    ] {
        if let Some(finding) = summary.and_then(|s| order(what, s)) {
            findings.push(finding);
        }
    }
    findings.extend(generator_bound(figures, requested));
    if let Some(steal) = requested.steal.filter(|s| *s > 0.05) {
        findings.push(Finding::note(
            FindingKind::NoisyHost,
            "the host's CPU for this measurement alone",
            format!("{:.0} % of it went to other virtual machines (steal)", 100.0 * steal),
            "A shared host: compare in pairs, or repeat on a quieter one.",
        ));
    }
    findings
}

/// A rate, with its decimals where they are much of it.
fn in_words(iops: f64) -> String {
    if iops < 100.0 { format!("{iops:.3}") } else { thousands(iops) }
}

fn order(what: &str, summary: &LatencySummary) -> Option<Finding> {
    let points = [
        summary.min,
        summary.p50,
        summary.p90,
        summary.p95,
        summary.p99,
        summary.p99_9,
        summary.p99_99,
        summary.p99_999,
        summary.max,
    ];
    let known: Vec<f64> = points.into_iter().flatten().collect();
    let rising = known.windows(2).all(|pair| pair[0] <= pair[1]);
    let inside = match (summary.min, summary.mean, summary.max) {
        (Some(min), Some(mean), Some(max)) => min <= mean * 1.000_001 && mean <= max * 1.000_001,
        _ => true,
    };
    (!rising || !inside).then(|| {
        Finding::doubt(
            FindingKind::Order,
            format!(
                "the {what} latencies to rise from minimum over the percentiles to maximum, the mean between"
            ),
            format!("{summary:?}"),
            "The figures were not taken from one histogram.",
        )
    })
}

fn generator_bound(figures: &Figures, requested: &RequestedLoad) -> Option<Finding> {
    let saturated = requested.generator_cpu.and_then(|(used, cores)| {
        let share = used / (cores * figures.window_s);
        (share > CPU_SATURATED)
            .then(|| format!("it used {:.0} % of the CPU that it could use", 100.0 * share))
    });
    let late = figures.lateness_us.as_ref().and_then(|lateness| {
        let (lateness, response) = (lateness.mean?, figures.total.latency_us.mean?);
        (lateness > response / 10.0).then(|| {
            format!("it issued {lateness:.0} us late on average, of a response time of {response:.0} us")
        })
    });
    let found = saturated.or(late)?;
    let severity = if requested.study { Severity::Doubt } else { Severity::Note };
    Some(Finding {
        severity,
        ..Finding::doubt(
            FindingKind::GeneratorBound,
            "the generator to have CPU to spare",
            found,
            "The storage may carry more load at lower latency than these figures show: add hosts, or lower the load.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::OperationFigures;

    fn figures(iops: f64, mean_us: f64) -> Figures {
        let latency_us = LatencySummary {
            mean: Some(mean_us),
            min: Some(mean_us / 2.0),
            max: Some(mean_us * 9.0),
            ..LatencySummary::default()
        };
        let total = OperationFigures { iops, latency_us, ..OperationFigures::default() };
        Figures { window_s: 10.0, read: total.clone(), total, ..Figures::default() }
    }

    fn kinds(figures: &Figures, requested: &RequestedLoad) -> Vec<FindingKind> {
        audit(figures, requested).iter().map(|f| f.kind).collect()
    }

    #[test]
    fn a_closed_loop_must_obey_littles_law() {
        let requested = RequestedLoad { outstanding: Some(32.0), ..RequestedLoad::default() };
        assert_eq!(kinds(&figures(32_000.0, 1_000.0), &requested), []);
        assert_eq!(kinds(&figures(33_000.0, 1_000.0), &requested), []);
        assert_eq!(kinds(&figures(20_000.0, 1_000.0), &requested), [FindingKind::LittlesLaw]);
        assert_eq!(kinds(&figures(64_000.0, 1_000.0), &requested), [FindingKind::LittlesLaw]);
    }

    #[test]
    fn a_rate_that_is_not_carried_is_said() {
        let requested = RequestedLoad { rate_iops: Some(1_000.0), ..RequestedLoad::default() };
        assert_eq!(kinds(&figures(995.0, 100.0), &requested), []);
        assert_eq!(kinds(&figures(600.0, 100.0), &requested), [FindingKind::RateNotMet]);
        let slow = RequestedLoad { rate_iops: Some(0.2), ..RequestedLoad::default() };
        assert_eq!(kinds(&figures(0.1, 100.0), &slow), [], "one of two in 10 s is the noise of counting");
    }

    #[test]
    fn a_saturated_generator_is_a_finding_in_a_study_and_a_note_in_a_bench() {
        let cpu = RequestedLoad { generator_cpu: Some((9.9, 1.0)), ..RequestedLoad::default() };
        assert_eq!(audit(&figures(1.0, 1.0), &cpu)[0].severity, Severity::Note);
        let study = RequestedLoad { study: true, ..cpu };
        assert_eq!(audit(&figures(1.0, 1.0), &study)[0].severity, Severity::Doubt);
    }

    #[test]
    fn percentiles_that_decrease_are_found() {
        let mut wrong = figures(10.0, 100.0);
        wrong.read.latency_us.p50 = Some(70.0);
        wrong.read.latency_us.p99 = Some(60.0);
        assert_eq!(kinds(&wrong, &RequestedLoad::default()), [FindingKind::Order]);
    }

    #[test]
    fn nothing_completed_and_errors_are_findings() {
        let mut dead = figures(0.0, 1.0);
        dead.errors = 7;
        assert_eq!(
            kinds(&dead, &RequestedLoad::default()),
            [FindingKind::NothingMeasured, FindingKind::Errors]
        );
    }
}
