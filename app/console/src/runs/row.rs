//! What a page gets of runs.

use std::collections::BTreeMap;

use loadline_measure::spread::Spread;
use loadline_report::baseline::trend::BetweenRuns;
use loadline_report::compare::{Comparison, Figure};
use loadline_report::kind::StudyKind;
use loadline_report::tiles::{Tile, Tiles};
use loadline_study::when::When;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a run came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStanding {
    /// A process works in its folder.
    InProgress,
    /// Every step is complete.
    Finished,
    /// It is not finished, and no process works in its folder.
    Interrupted,
    /// Its folder cannot be read.
    Unreadable,
}

/// A run, in the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunRow {
    /// Identifies the run in this API: 16 hexadecimal digits, which depend on the path of its folder.
    pub id: String,
    /// Its folder: an absolute path.
    pub path: String,
    /// How far it came.
    pub standing: RunStanding,
    /// Why its folder cannot be read, and what to do; `null` if it can be read.
    pub fault: Option<String>,
    /// The id that the run gave itself; this and the rest is `null` or empty if its folder cannot be read.
    pub run_id: Option<String>,
    /// The study's name.
    pub study: Option<String>,
    /// What the study is about.
    pub kind: Option<StudyKind>,
    /// When it began. Of a folder that cannot be read, when the folder was changed last.
    pub begun: When,
    /// When it was finished.
    pub finished: Option<When>,
    /// Steps that are complete.
    pub complete: usize,
    /// Steps in all.
    pub planned: usize,
    /// The cluster in which it was measured, or the hosts of its workers.
    pub measured_on: Option<String>,
    /// The answer of the verdict.
    pub answer: Option<Tile>,
    /// The version of the Loadline that measured.
    pub loadline: Option<String>,
    /// The commit that was checked out where the study is.
    pub commit: Option<String>,
    /// Tags that people gave it, in alphabetical order.
    pub tags: Vec<String>,
    /// A note that people wrote.
    pub note: String,
    /// Why its tags and its note cannot be read, and what to do.
    pub notes_fault: Option<String>,
}

/// A folder of runs that the console follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FolderRow {
    /// An absolute path.
    pub path: String,
    /// Why it cannot be read. Its runs are not in the list then.
    pub fault: Option<String>,
}

/// Runs: a part of all that match, the latest first.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunsView {
    /// How many match.
    pub total: usize,
    /// Those that were asked for.
    pub runs: Vec<RunRow>,
    /// Studies of all runs, in alphabetical order: 500 at most.
    pub studies: Vec<String>,
    /// Tags of all runs, in alphabetical order: 500 at most.
    pub tags: Vec<String>,
    /// The folders that the console follows.
    pub folders: Vec<FolderRow>,
    /// How many runs the console has still to read before the list is complete.
    pub unread: usize,
    /// What people should know of the list, in sentences.
    pub notices: Vec<String>,
}

/// The figures of a load over its repeats, as the report of the run has them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadFigures {
    /// The load, as the report names it.
    pub label: String,
    /// The load without its condition. Of a load line: the load that was varied, a colon, and what was varied.
    pub load: String,
    /// The condition in which it was measured; empty if the study has none.
    pub condition: String,
    /// What people call it.
    pub name: String,
    /// Whether it is the load line of a search: the most I/Os a second within a limit. Then it has IOPS alone, without an interval.
    pub is_load_line: bool,
    /// Complete repeats.
    pub repeats: usize,
    /// How many of them are doubtful.
    pub doubtful: usize,
    /// I/Os a second.
    pub iops: Option<Spread>,
    /// Mean response time, microseconds.
    pub mean_us: Option<Spread>,
    /// 99th percentile of the response times, microseconds.
    pub p99_us: Option<Spread>,
}

impl LoadFigures {
    /// One of its figures.
    pub fn figure(&self, figure: Figure) -> Option<Spread> {
        match figure {
            Figure::Iops => self.iops,
            Figure::MeanUs => self.mean_us,
            Figure::P99Us => self.p99_us,
        }
    }
}

/// A run, with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RunDetail {
    /// What the list has of it.
    pub run: RunRow,
    /// The verdict in three short texts.
    pub tiles: Option<Tiles>,
    /// Its loads, in the order in which they were measured, and then its load lines.
    pub loads: Vec<LoadFigures>,
}

/// What people add to a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Notes {
    /// Tags: 20 at most, each of 1 to 40 characters.
    #[serde(default)]
    pub tags: Vec<String>,
    /// A note: 4,000 characters at most.
    #[serde(default)]
    pub note: String,
}

/// Two runs, compared.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ComparisonView {
    /// What `loadline compare --json` prints for the two folders. A is the base.
    pub comparison: Comparison,
    /// What a reader should know of it, in sentences.
    pub sentences: Vec<String>,
    /// What the figures are, and what decides, in sentences.
    pub legend: String,
    /// Loads of both runs by the names that people use.
    pub names: BTreeMap<String, String>,
}

/// A load of which runs of a study have figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TrendLoad {
    /// The load without its condition.
    pub load: String,
    /// The condition; empty if there is none.
    pub condition: String,
    /// What people call it.
    pub name: String,
}

/// One figure of a load in a run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TrendPoint {
    /// The run.
    pub id: String,
    /// When the run began.
    pub begun: When,
    /// The version of the Loadline that measured.
    pub loadline: Option<String>,
    /// The figure over the repeats: median and interval.
    pub value: Spread,
    /// Complete repeats.
    pub repeats: usize,
    /// How many of them are doubtful.
    pub doubtful: usize,
    /// Whether it was measured like the last run: the same load, on the same system, in the same way.
    pub is_like_last: bool,
    /// The noise of up to 20 runs before it that were measured like it; `null` with fewer than five.
    pub band: Option<BetweenRuns>,
    /// Whether the median lies outside of the band; `null` without a band.
    pub is_outside: Option<bool>,
}

/// One figure of a load over the runs of a study.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TrendView {
    /// The study.
    pub study: String,
    /// The load without its condition; empty if no run of the study has a figure.
    pub load: String,
    /// The condition; empty if there is none.
    pub condition: String,
    /// The figure.
    pub figure: Figure,
    /// The loads of the study: 500 at most.
    pub loads: Vec<TrendLoad>,
    /// A point for each run that has the figure and is not in progress, the oldest first: the last 500 runs.
    pub points: Vec<TrendPoint>,
}
