//! The result of one `loadline bench`, as programs read it. Its JSON Schema is made from these types.

use loadline_base::clock::Nanos;
use loadline_measure::audit::level::disturbed;
use loadline_measure::audit::{Finding, RequestedLoad, Severity, audit};
use loadline_measure::interval::EncodedInterval;
use loadline_measure::window::{Figures, Histograms, WindowSecond};
use loadline_profile::{Arrival, Profile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host::{HostSecond, Inventory, allowed_cpus};
use crate::job::Job;
use crate::outcome::{CpuTime, Outcome, VerifyReport};

/// The version of the result's form. Readers refuse what they do not know.
pub const FORMAT: u32 = 1;

/// One measurement by one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Loadline bench result")]
pub struct BenchResult {
    /// The version of this form.
    pub format: u32,
    /// The program that measured, and its version.
    pub version: String,
    /// When the window opened, seconds since 1970 (UTC).
    pub started_unix_s: f64,
    /// The targets, in order.
    pub targets: Vec<String>,
    /// The load.
    pub profile: Profile,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The engine that handed the I/Os to the kernel: `io_uring`, `vhost-user`, `librbd`, `threads` or `null`; and whether it polled for completions before sleeping.
    pub engine: String,
    /// The figures of the window.
    #[serde(flatten)]
    pub figures: Figures,
    /// CPU time of the whole process in the window.
    pub cpu: CpuTime,
    /// What a reader of the figures should know.
    pub findings: Vec<Finding>,
    /// What checking the blocks found; `null` without `--verify`.
    pub verify: Option<VerifyReport>,
    /// What ended it early: a limit that was passed, Ctrl-C, or what failed; `null` if nothing did.
    pub stopped: Option<String>,
    /// The window's merged histograms.
    pub histograms: Histograms,
    /// What was recorded second by second, for each disk, warm-up included.
    pub seconds: Vec<EncodedInterval>,
    /// What the whole host did second by second.
    pub host: Vec<HostSecond>,
    /// What the host is.
    pub inventory: Inventory,
}

/// What surrounds an outcome.
#[derive(Debug, Clone)]
pub struct Circumstances {
    /// When the window opened, seconds since 1970.
    pub started_unix_s: f64,
    /// Second by second.
    pub seconds: Vec<EncodedInterval>,
    /// Second by second.
    pub host: Vec<HostSecond>,
    /// What the host is.
    pub inventory: Inventory,
}

impl BenchResult {
    /// The result of a job, audited.
    pub fn new(job: &Job, outcome: Outcome, around: Circumstances) -> BenchResult {
        let figures = outcome.window.figures();
        let in_window: Vec<&HostSecond> =
            around.host.iter().filter(|h| h.second >= 0 && (h.second as f64) < figures.window_s).collect();
        let steal = (!in_window.is_empty())
            .then(|| in_window.iter().map(|h| h.cpu.steal).sum::<f64>() / in_window.len() as f64);
        let cpus = f64::from(around.inventory.cpus).min(allowed_cpus());
        let mut requested_load = requested_load(job);
        let most = cpus.min(job.most_cpus(&outcome.engine) as f64);
        // A generator that polls uses all of its CPUs, by design.
        requested_load.generator_cpu = (!job.poll).then(|| (outcome.cpu.working_s(), most));
        requested_load.steal = steal;
        if outcome.engine == "null" {
            // Nothing is outstanding where everything completes at once.
            requested_load.outstanding = None;
        }
        let mut findings = outcome.findings;
        findings.extend(audit(&figures, &requested_load));
        let iops: Vec<f64> = outcome.window.seconds().iter().map(WindowSecond::iops).collect();
        findings.extend(disturbed(&iops, figures.longest_stall_ms));
        findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
        BenchResult {
            format: FORMAT,
            version: concat!("loadline ", env!("CARGO_PKG_VERSION")).into(),
            started_unix_s: around.started_unix_s,
            targets: job.disks.iter().map(|d| d.target.to_string()).collect(),
            profile: job.profile.clone(),
            seed: job.seed,
            engine: outcome.engine,
            cpu: outcome.cpu,
            findings,
            verify: outcome.verify,
            stopped: outcome.stop_condition.or(outcome.ended_early.map(|error| error.message)),
            histograms: outcome.window.histograms(),
            figures,
            seconds: around.seconds,
            host: around.host,
            inventory: around.inventory,
        }
    }

    /// Adds what became known later. What is said already is not said twice.
    pub fn add_findings(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            if !self.findings.contains(&finding) {
                self.findings.push(finding);
            }
        }
        self.findings.sort_by_key(|f| std::cmp::Reverse(f.severity));
    }

    /// Whether a finding makes a figure doubtful.
    pub fn is_doubtful(&self) -> bool {
        self.findings.iter().any(|f| f.severity == Severity::Doubt)
    }
}

/// What a job asks of its figures, whatever it runs on.
fn requested_load(job: &Job) -> RequestedLoad {
    let profile = &job.profile;
    let rate = profile.rate.as_ref().map(|r| r.rate.iops(profile.block_size));
    // A flush takes a slot and is in no figure, so that Little's law says nothing of a load with flushes.
    let whole = rate.is_none() && (profile.flush_every.is_none() || profile.write_percent == 0);
    RequestedLoad {
        outstanding: whole.then_some(job.outstanding() as f64),
        poisson: profile.rate.is_some_and(|r| r.arrival == Arrival::Poisson),
        rate_iops: rate,
        generator_cpu: None,
        steal: None,
        study: false,
    }
}

/// The moment of a monotonic time on the wall clock, seconds since 1970.
pub fn wall_clock(moment: Nanos) -> f64 {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    wall.as_secs_f64() + (moment.0 as f64 - Nanos::now().0 as f64) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Disk, WritePermission};
    use loadline_measure::audit::FindingKind;
    use loadline_measure::window::Window;

    #[test]
    fn a_generator_that_works_all_the_time_is_the_limit_and_one_that_polls_for_completions_is_not() {
        let target = "nbd+unix:///a?socket=/s".parse().unwrap();
        let job = Job::new(vec![Disk { target, writes: WritePermission::Refused }], Profile::default());
        let is_limit = |polling_s: f64, poll: bool| {
            let outcome = Outcome {
                began_late: Nanos(0),
                window: Window::new(Nanos::SECOND),
                cpu: CpuTime { user_s: 0.4, system_s: 0.6, polling_s },
                findings: Vec::new(),
                engine: "io_uring, polling before sleeping".into(),
                verify: None,
                stop_condition: None,
                ended_early: None,
            };
            let around = Circumstances {
                started_unix_s: 0.0,
                seconds: Vec::new(),
                host: Vec::new(),
                inventory: Inventory { cpus: 8, ..Inventory::default() },
            };
            let result = BenchResult::new(&Job { poll, ..job.clone() }, outcome, around);
            result.findings.iter().any(|finding| finding.kind == FindingKind::GeneratorBound)
        };
        assert!(is_limit(0.0, false), "its one thread had no moment to spare, though it was allowed to poll");
        assert!(is_limit(0.02, false));
        assert!(!is_limit(0.5, false));
        assert!(!is_limit(0.0, true), "the CPU of a generator that polls shows nothing");
    }
}
