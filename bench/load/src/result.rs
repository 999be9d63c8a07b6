//! The result of one `loadline bench`, as programs read it. Its JSON Schema is made from these types.

use loadline_base::clock::Nanos;
use loadline_measure::audit::{Asked, Finding, Severity, audit};
use loadline_measure::interval::EncodedInterval;
use loadline_measure::window::{Figures, Histograms};
use loadline_profile::{Arrival, Profile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::host::{HostSecond, Inventory, allowed_cpus};
use crate::job::Job;
use crate::outcome::{CpuTime, LOOKING, Outcome, VerifyReport};

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
    /// Where the random numbers began.
    pub seed: u64,
    /// Who handed the I/Os to the kernel: `io_uring`, `vhost-user`, `librbd`, `threads` or `null`; and whether it looked for completions before sleeping.
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
    /// The limit that ended it early; `null` if none did.
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
        let mut asked = asked(job, f64::from(around.inventory.cpus).min(allowed_cpus()));
        asked.steal = steal;
        if outcome.engine == "null" {
            // Nothing is outstanding where everything completes at once.
            asked.outstanding = None;
        }
        if outcome.engine.ends_with(LOOKING) {
            asked.generator_cpu = None;
        }
        if let Some((used, _)) = &mut asked.generator_cpu {
            *used = outcome.cpu.user_s + outcome.cpu.system_s;
        }
        let mut findings = outcome.findings;
        findings.extend(audit(&figures, &asked));
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
            stopped: outcome.braked,
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

/// What a job asks of its figures. `cpus`: how many it can use.
pub fn asked(job: &Job, cpus: f64) -> Asked {
    let profile = &job.profile;
    let rate = profile.rate.as_ref().map(|r| r.rate.iops(profile.block_size));
    let threads = f64::from(profile.threads) * job.disks.len() as f64;
    // A flush takes a slot and is in no figure, so that Little's law says nothing of a load with flushes.
    let whole = rate.is_none() && (profile.flush_every.is_none() || profile.write_percent == 0);
    Asked {
        outstanding: whole.then_some(job.outstanding() as f64),
        poisson: profile.rate.is_some_and(|r| r.arrival == Arrival::Poisson),
        rate_iops: rate,
        // A thread and its io_uring worker in the kernel are two. Who polls uses all that there is, by design.
        generator_cpu: (!job.poll).then(|| (0.0, cpus.min(2.0 * threads))),
        steal: None,
        study: false,
    }
}

/// The moment of a monotonic time on the wall clock, seconds since 1970.
pub fn wall_clock(moment: Nanos) -> f64 {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    wall.as_secs_f64() + (moment.0 as f64 - Nanos::now().0 as f64) / 1e9
}
