//! Two runs as one value: which loads became faster or slower, and what else differs. Pure: a
//! function of two [`Run`]s.
//!
//! | module | idea |
//! | --- | --- |
//! | [`run`] | one side: a run's report, and under which circumstances it was measured |
//! | [`record`], `extract` | all that is compared of a run, small enough to be kept; and what a run's record is made of |
//! | [`figure`] | the figures that are compared |
//! | [`configuration`] | what differs beside the figures |
//! | `likeness` | which runs of a load belong in one series |
//! | [`load`] | one load on both sides, and the word for it |
//! | [`text`], [`markdown`], [`junit`] | as aligned text, and as files for a CI |

pub mod configuration;
mod extract;
pub mod figure;
pub mod junit;
mod likeness;
pub mod load;
pub mod markdown;
pub mod record;
pub mod run;
pub mod text;

use std::collections::BTreeSet;

use loadline_base::figures::listed;
use loadline_study::StudyError;
use loadline_study::when::When;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use configuration::{Constant, Difference};
pub use figure::Figure;
pub use load::{Compared, Load, Verdict};
pub use record::RunRecord;
pub use run::Run;

/// How many missing steps or loads are named one by one.
const MOST_NAMED: usize = 12;
/// Of loads that did not change, this share is called faster or slower: the intervals are those of 95 %.
const CALLED_BY_CHANCE: f64 = 0.05;
/// From so many judged loads on it is said how many chance calls.
const LOADS_FOR_CHANCE: usize = 5;

/// A larger difference between the shares of CPU that the hypervisor gave others in the two runs is a doubt.
const STEAL: f64 = 0.02;
/// The same for the time in which some task waited for a CPU. The load itself causes a part of it.
const PRESSURE: f64 = 0.2;

/// The same thing of both runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Both<T> {
    /// Of A, the baseline.
    pub a: T,
    /// Of B, the candidate.
    pub b: T,
}

/// Which run it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Side {
    /// The run's folder, as it was given.
    pub folder: String,
    /// The study's name.
    pub study: String,
    /// The run's id.
    pub run_id: String,
    /// The version of the Loadline that measured.
    pub loadline: String,
    /// When the run began.
    pub begun: When,
    /// Steps that are complete.
    pub complete: usize,
    /// Steps in all.
    pub planned: usize,
}

/// What two runs say about each other. Every key is always there; `null` where there is no honest figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// `loadline-comparison`.
    pub format: String,
    /// Version of this format.
    pub version: u64,
    /// The two runs.
    pub runs: Both<Side>,
    /// What makes the comparison as a whole doubtful, in sentences.
    pub doubts: Vec<String>,
    /// What differs between the runs beside their figures.
    pub configuration: Vec<Difference>,
    /// Every load of either run: those of A in the order in which they were measured, then those that only B has.
    pub loads: Vec<Load>,
    /// Loads that are said to be faster, slower, or neither.
    pub judged: usize,
    /// How many of them chance alone would call faster or slower if none had changed.
    pub called_by_chance: f64,
    /// So many percent slower is allowed: a load counts as slower for the exit code if its whole interval lies beyond.
    pub allowed_slower_percent: f64,
    /// Whether a run has searches: their steps are no repeats of a load, and are not compared.
    pub searches: bool,
}

/// The format of a comparison.
pub const FORMAT: &str = "loadline-comparison";
/// Its version.
pub const VERSION: u64 = 1;

/// What the user should do, and so which exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No load is shown to be slower by more than is allowed, and nothing makes that doubtful.
    Fine,
    /// No load is shown to be slower by more than is allowed, but something makes that doubtful, or was not judged.
    Doubtful,
    /// A load is slower by more than is allowed, with its whole interval.
    Slower,
}

impl Comparison {
    /// Compares two runs; `allowed_slower_percent` is 0 if any slowness counts.
    ///
    /// A usage error if both are the same run, or no load is complete in both.
    pub fn of(a: &Run, b: &Run, allowed_slower_percent: f64) -> Result<Comparison, StudyError> {
        let (a, b) = (RunRecord::from(a), RunRecord::from(b));
        Comparison::of_records(&a, &b, allowed_slower_percent, Constant::Method)
    }

    /// The same of what was kept of a run, or of two. What is not `constant` makes the comparison doubtful.
    pub fn of_records(
        a: &RunRecord,
        b: &RunRecord,
        allowed_slower_percent: f64,
        constant: Constant,
    ) -> Result<Comparison, StudyError> {
        if a.is_same_run(b) {
            return Err(StudyError::usage(format!(
                "{} and {} are the same run ({}): give the folders of two runs",
                a.place, b.place, a.run_id
            )));
        }
        let configuration = configuration::differences(a, b);
        let loads = load::all(a, b, allowed_slower_percent);
        if loads.iter().all(|load| matches!(load.verdict, Verdict::OnlyInA | Verdict::OnlyInB)) {
            return Err(nothing_in_common(a, b));
        }
        let judged = loads.iter().filter(|load| load.verdict.is_judged()).count();
        Ok(Comparison {
            format: FORMAT.into(),
            version: VERSION,
            runs: Both { a: a.side(), b: b.side() },
            doubts: doubts(a, b, constant),
            configuration,
            loads,
            judged,
            called_by_chance: judged as f64 * CALLED_BY_CHANCE,
            allowed_slower_percent,
            searches: a.searches || b.searches,
        })
    }

    /// What the user should do.
    pub fn outcome(&self) -> Outcome {
        if self.loads.iter().any(|load| load.beyond_allowed) {
            return Outcome::Slower;
        }
        let doubtful = |load: &Load| load.is_doubtful() || !load.verdict.is_judged();
        if !self.doubts.is_empty() || self.loads.iter().any(doubtful) {
            return Outcome::Doubtful;
        }
        Outcome::Fine
    }

    /// What a reader should know of the loads, in sentences.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![self.summary()];
        if self.judged >= LOADS_FOR_CHANCE {
            sentences.push(format!(
                "{} loads were judged at 95 %: if none had changed, chance alone would call about {:.1} of them \
                 faster or slower.",
                self.judged, self.called_by_chance
            ));
        }
        for load in self.loads.iter().filter(|load| load.limit_undecided) {
            let (slower, detectable) = (load.slowdown_percent.unwrap_or_default(), load.detectable_percent);
            let why = match slower > self.allowed_slower_percent {
                true => format!("the estimate is {} slower", load::share(slower)),
                false => format!(
                    "the smallest slowdown that 9 of 10 such comparisons find is {}",
                    load::share(detectable.unwrap_or_default())
                ),
            };
            sentences.push(format!(
                "doubtful: {}: {} % slower is allowed, the interval contains that, and {why}: measure more repeats, or on a \
                 quieter host.",
                load.label, self.allowed_slower_percent
            ));
        }
        for load in &self.loads {
            match load.verdict {
                Verdict::Slower if !load.beyond_allowed => sentences.push(format!(
                    "{}: slower, but not shown to be slower by more than the allowed {} %.",
                    load.label, self.allowed_slower_percent
                )),
                Verdict::NotTheSameLoad | Verdict::OnlyInA | Verdict::OnlyInB => {
                    sentences.push(format!("{}: {}.", load.label, load.sentence()));
                }
                _ => {}
            }
        }
        let doubtful: Vec<&str> = self
            .loads
            .iter()
            .filter(|load| load.has_doubtful_repeats())
            .map(|load| load.label.as_str())
            .collect();
        if !doubtful.is_empty() {
            sentences.push(format!(
                "doubtful: {}: repeats lost workers, had errors, or have another finding that makes a figure so; \
                 see loadline report.",
                listed(&doubtful, MOST_NAMED)
            ));
        }
        if self.searches {
            sentences.push("Searches are not compared: loadline report says what each run's came to.".into());
        }
        let engines: Vec<&str> =
            self.loads.iter().filter(|load| load.other_engine).map(|load| load.label.as_str()).collect();
        if !engines.is_empty() {
            sentences.push(format!(
                "doubtful: {}: A and B were issued by different engines, which differ in what they cost.",
                listed(&engines, MOST_NAMED)
            ));
        }
        sentences
    }

    /// How many loads got which word.
    fn summary(&self) -> String {
        let count = |verdict: &Verdict| {
            let count = self.loads.iter().filter(|load| load.verdict == *verdict).count();
            (count > 0).then(|| format!("{count} {}", verdict.word()))
        };
        let counts: Vec<String> = Verdict::ALL.iter().filter_map(count).collect();
        let loads = if self.loads.len() == 1 { "load" } else { "loads" };
        format!("{} {loads}: {}.", self.loads.len(), counts.join(", "))
    }
}

/// The comparison for programs.
pub fn document(comparison: &Comparison) -> String {
    // Every key is text and every figure finite or null: it cannot fail.
    let mut text = serde_json::to_string_pretty(comparison).unwrap_or_default();
    text.push('\n');
    text
}

fn doubts(a: &RunRecord, b: &RunRecord, constant: Constant) -> Vec<String> {
    let mut doubts = Vec::new();
    for (name, run) in [("A", a), ("B", b)] {
        if run.damaged > 0 {
            doubts.push(format!(
                "{name} has damaged steps ({}): loadline report names them and says what is wrong",
                run.damaged
            ));
        }
        if !run.missing.is_empty() {
            doubts.push(format!(
                "{name} is unfinished: {} of {} steps are complete; missing: {}",
                run.complete,
                run.planned,
                listed(&run.missing, MOST_NAMED)
            ));
        }
    }
    let unlike = configuration::unlike(a, b, constant);
    if !unlike.is_empty() {
        let lines: Vec<String> = unlike.iter().map(Difference::line).collect();
        doubts.push(format!(
            "A and B were not measured alike ({}): a difference may come from that",
            listed(&lines, MOST_NAMED)
        ));
    }
    doubts.extend(machines(a, b));
    if a.disks != b.disks {
        doubts.push(format!(
            "A has disks: {}, B: {}; each of them gets the load, so it is not the same in all",
            a.disks, b.disks
        ));
    }
    if a.versions != b.versions {
        let named = |versions: &BTreeSet<String>| {
            versions.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")
        };
        doubts.push(format!(
            "A was measured by Loadline {}, B by {}: a difference may be one of the generators",
            named(&a.versions),
            named(&b.versions)
        ));
    }
    doubts
}

/// What the machines did beside the load, where that was not the same in both runs.
fn machines(a: &RunRecord, b: &RunRecord) -> Vec<String> {
    let all = [
        ("the hypervisor gave others", "of the CPU", STEAL, [a.steal, b.steal]),
        ("some task waited for a CPU", "of the time", PRESSURE, [a.cpu_pressure, b.cpu_pressure]),
    ];
    let differs = |(what, of, least, sides): (&str, &str, f64, [Option<f64>; 2])| {
        let [Some(a), Some(b)] = sides else { return None };
        ((a - b).abs() > least).then(|| {
            format!(
                "{what} {:.0} % {of} in A, and {:.0} % in B, on the busiest host of a median step: a difference may be the machine's",
                100.0 * a,
                100.0 * b
            )
        })
    };
    all.into_iter().filter_map(differs).collect()
}

fn nothing_in_common(a: &RunRecord, b: &RunRecord) -> StudyError {
    let has = |run: &RunRecord| {
        let labels: Vec<&str> = run.loads.iter().map(|load| load.label.as_str()).collect();
        match labels.is_empty() {
            true => format!("{} has no complete step", run.place),
            false => format!("{} has {}", run.place, listed(&labels, MOST_NAMED)),
        }
    };
    StudyError::usage(format!(
        "no load is complete in both runs: {}; {}. Loads are matched by name, and searches are not compared: give two runs of one study, or name \
         its profiles alike",
        has(a),
        has(b)
    ))
}
