//! What a run came to beside its baseline, as one value. Pure.

use loadline_study::StudyError;
use loadline_study::when::When;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::baseline::history::History;
use crate::baseline::kept::{KeptResult, file_of};
use crate::baseline::name::BaselineName;
use crate::baseline::store::{Added, Addition, BaselineStore, Pin};
use crate::baseline::trend::Trend;
use crate::compare::{Comparison, Constant, Outcome};

/// The format of the document.
pub const FORMAT: &str = "loadline-gate";
/// Its version.
pub const VERSION: u64 = 1;

/// A run beside its baseline: what `loadline run --baseline NAME --json` prints. Every key is always there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// `loadline-gate`.
    pub format: String,
    /// Version of this format.
    pub version: u64,
    /// The baseline's name.
    pub baseline: String,
    /// This run.
    pub run: RunName,
    /// The pinned result that this run is compared with; `null` if nothing was kept before this run, or this run is the
    /// pinned one.
    pub pinned: Option<RunName>,
    /// This run (B) compared with the pinned result (A); `null` without one.
    pub comparison: Option<Comparison>,
    /// Every load of this run beside the results that were kept last.
    pub trend: Vec<Trend>,
    /// Whether this run is kept, and whether it is the pinned result now.
    pub kept: KeptAs,
    /// The file in which this run is kept; `null` if it is not.
    pub kept_in: Option<String>,
    /// Why this run is not kept, in words; `null` if it is kept.
    pub not_kept_because: Option<String>,
    /// What a reader should know of it, in sentences.
    pub notes: Vec<String>,
}

/// Which run it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunName {
    /// Its folder, or the kept result.
    pub place: String,
    /// The study's name.
    pub study: String,
    /// The run's id.
    pub run_id: String,
    /// When the run began.
    pub begun: When,
    /// The commit that was checked out; `null` if the study was in no work tree of git.
    pub commit: Option<String>,
}

/// What became of a run in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptAs {
    /// It is not kept: `--compare-only`, or the run is not one to be kept.
    NotKept,
    /// It is one of the results; another is pinned.
    Kept,
    /// It is the pinned result.
    Pinned,
}

impl RunName {
    fn of(kept: &KeptResult) -> RunName {
        RunName {
            place: kept.run.place.clone(),
            study: kept.run.study.clone(),
            run_id: kept.run.run_id.clone(),
            begun: kept.run.begun.clone(),
            commit: kept.commit.clone(),
        }
    }
}

impl Gate {
    /// A run beside what was kept before it; `allowed_slower_percent` is that of a comparison. The error is that of
    /// [`Comparison::of_records`]; a run that is `accepted` may have no load in common with the pinned result.
    pub fn of(
        baseline: &BaselineName,
        history: &History,
        this: &KeptResult,
        allowed_slower_percent: f64,
        accepted: bool,
    ) -> Result<Gate, StudyError> {
        let is_this = |kept: &KeptResult| kept.file() == this.file();
        let pinned = history.pinned.as_ref().filter(|pinned| !is_this(pinned));
        let compared = |pinned: &KeptResult| {
            Comparison::of_records(&pinned.run, &this.run, allowed_slower_percent, Constant::System)
        };
        let has_common =
            |pinned: &&KeptResult| pinned.run.loads.iter().any(|load| this.run.load(&load.label).is_some());
        let comparable = pinned.filter(|pinned| !accepted || has_common(pinned));
        let comparison = comparable.map(compared).transpose()?;
        let mut notes = Vec::new();
        if pinned.is_some() && comparable.is_none() {
            notes.push(
                "No load of this run is in the result that was pinned before, so that nothing is compared."
                    .to_string(),
            );
        }
        let trend = Trend::all(history, this, comparison.as_ref());
        Ok(Gate {
            format: FORMAT.into(),
            version: VERSION,
            baseline: baseline.to_string(),
            run: RunName::of(this),
            pinned: pinned.map(RunName::of),
            comparison,
            trend,
            kept: KeptAs::NotKept,
            kept_in: None,
            not_kept_because: None,
            notes,
        })
    }

    /// Adds this run to the store with what it came to, and notes what became of it. If another run became the pinned
    /// result since the history was read, so that this run is compared with nothing, it is compared with that one.
    pub fn keep(
        &mut self,
        store: &dyn BaselineStore,
        baseline: &BaselineName,
        this: &KeptResult,
        pin: Pin,
        allowed_slower_percent: f64,
    ) -> Result<(), StudyError> {
        let judged = match (&self.pinned, &self.comparison) {
            (Some(pinned), Some(comparison)) => {
                this.judged(file_of(&pinned.run_id, &pinned.begun), comparison)
            }
            _ => this.clone(),
        };
        let addition = Addition { file: judged.file(), text: judged.text(), pin };
        let added = store.add(baseline, &addition)?;
        if !added.is_pinned && self.pinned.is_none() {
            let history = History::read(store, baseline)?;
            let again = Gate::of(baseline, &history, this, allowed_slower_percent, false)?;
            (self.pinned, self.comparison, self.trend) = (again.pinned, again.comparison, again.trend);
        }
        self.note_added(this, added, store.place(baseline, &addition.file));
        Ok(())
    }

    /// Notes that the store has added this run, and in which file.
    pub fn note_added(&mut self, this: &KeptResult, added: Added, place: String) {
        // A run that was kept before and is compared with nothing is the pinned one.
        let was_pinned = !added.is_new && self.pinned.is_none();
        self.kept = if added.is_pinned || was_pinned { KeptAs::Pinned } else { KeptAs::Kept };
        self.kept_in = Some(place);
        if !added.is_new {
            self.notes.push("This run was kept before, and is not kept a second time.".into());
        }
        if self.kept == KeptAs::Pinned && this.run.loads.iter().any(|load| load.doubtful > 0) {
            self.notes.push(
                "doubtful: the pinned result has findings that make a figure doubtful, so every comparison with it is \
                 doubtful. Measure again on a quieter host, and pin that run with --accept."
                    .into(),
            );
        }
    }

    /// Notes that this run is not added, and why. If it is among the results that were kept before, it stays there; `place`
    /// is its file.
    pub fn note_not_added(&mut self, history: &History, this: &KeptResult, because: &str, place: String) {
        if !history.files.contains(&this.file()) {
            self.not_kept_because = Some(because.to_string());
            return;
        }
        self.kept = if self.pinned.is_none() { KeptAs::Pinned } else { KeptAs::Kept };
        self.kept_in = Some(place);
    }

    /// The outcome of the comparison; `None` without one.
    pub fn outcome(&self) -> Option<Outcome> {
        self.comparison.as_ref().map(Comparison::outcome)
    }
}

/// The document for programs.
pub fn document(gate: &Gate) -> String {
    // Every key is text and every figure finite or null: it cannot fail.
    let mut text = serde_json::to_string_pretty(gate).unwrap_or_default();
    text.push('\n');
    text
}
