//! `loadline run --baseline`: the run is compared with the pinned result of a baseline, and kept.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use loadline_base::figures::listed;
use loadline_report::baseline::gate::{KeptAs, document};
use loadline_report::baseline::{
    BaselineName, BaselineStore, Gate, History, KeptResult, Pin, junit, markdown, open, text,
};
use loadline_report::compare::{Run, RunRecord, junit as comparison_junit};
use loadline_study::planned_step::Purpose;
use loadline_study::{Plan, RunFolder, Study, StudyError};

use crate::output::text::quoted;
use crate::output::{self, eprint_line, print_error, print_line};
use crate::process::exit::Exit;
use crate::study::compare::judge::{JudgeArgs, Page, exit_of, remove_earlier, write};

/// Where results are kept by default.
const FOLDER: &str = "baselines";
/// A comparison takes so many repeats a side.
const REPEATS_FOR_AN_INTERVAL: usize = 4;
/// How many loads are named one by one.
const MOST_NAMED: usize = 6;

/// The options of a baseline.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Baseline")]
pub(crate) struct GateArgs {
    /// Compare the run with the pinned result of this baseline, then keep the run in it. The first run is pinned.
    #[arg(long, value_name = "NAME")]
    baseline: Option<BaselineName>,
    /// Where results are kept: a folder, or git:REF for a branch or ref in the git repository of the current folder.
    /// [default: the folder baselines]
    #[arg(long, value_name = "PLACE", requires = "baseline")]
    baselines: Option<String>,
    /// Compare the run and do not keep it, as for a pull request.
    #[arg(long, requires = "baseline", conflicts_with = "accept")]
    compare_only: bool,
    /// Pin this run, after a change that is known and wanted. Later runs are compared with this run.
    #[arg(long, requires = "baseline")]
    accept: bool,
    #[command(flatten)]
    judge: JudgeArgs,
}

/// A baseline that was checked before the load.
pub(super) struct PreparedGate {
    name: BaselineName,
    store: Box<dyn BaselineStore>,
    pages: Vec<Page<Gate>>,
    allowed: f64,
    compare_only: bool,
    accept: bool,
}

impl GateArgs {
    /// Opens the store and checks it and the files that are to be written; `None` without a baseline. If `measures`, earlier
    /// pages are removed: a run that ends by an error leaves no verdict of another.
    pub(super) fn prepare(&self, measures: bool) -> Result<Option<PreparedGate>, StudyError> {
        let Some(name) = self.baseline.clone() else {
            return match self.judge.typed().first() {
                None => Ok(None),
                Some(option) => Err(StudyError::usage(format!(
                    "{option} needs a baseline to compare with: add --baseline NAME"
                ))),
            };
        };
        let pages =
            self.judge.pages((comparison_junit::HEAD, junit::document), (markdown::HEAD, markdown::page))?;
        if measures {
            remove_earlier(&pages)?;
        }
        let store = open(self.baselines.as_deref().unwrap_or(FOLDER))?;
        store.check(&name, !self.compare_only)?;
        let (compare_only, accept) = (self.compare_only, self.accept);
        Ok(Some(PreparedGate { name, store, pages, allowed: self.judge.allowed(), compare_only, accept }))
    }

    /// The options that were given, as a shell reads them, each after a space.
    pub(super) fn typed(&self) -> String {
        let value = |option: &str, value: &str| format!("--{option} {}", quoted(Path::new(value)));
        let flags = [("--compare-only", self.compare_only), ("--accept", self.accept)];
        let all = (self.baseline.iter().map(|name| value("baseline", name.as_str())))
            .chain(self.baselines.iter().map(|place| value("baselines", place)))
            .chain(flags.iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| flag.to_string()))
            .chain(self.judge.typed());
        all.map(|option| format!(" {option}")).collect()
    }
}

impl PreparedGate {
    /// Checks, before anything is measured, that this study can be compared with what is kept.
    pub(super) fn check_study(&self, study: &Study, plan: &Plan) -> Result<(), StudyError> {
        let mut repeats: BTreeMap<String, usize> = BTreeMap::new();
        for step in plan.steps.iter().filter(|step| !matches!(step.purpose, Purpose::Search { .. })) {
            *repeats.entry(step.label.clone()).or_default() += 1;
        }
        let history = History::read(&*self.store, &self.name)?;
        let loads: BTreeSet<String> = repeats.keys().cloned().collect();
        history.check_study(&self.name, study.name.as_str(), &loads, self.accept)?;
        let few: Vec<String> = repeats
            .into_iter()
            .filter(|(_, n)| *n < REPEATS_FOR_AN_INTERVAL)
            .map(|(label, _)| label)
            .collect();
        if !few.is_empty() {
            eprint_line!(
                "doubtful: {}: a comparison takes {REPEATS_FOR_AN_INTERVAL} repeats a side, and the study has fewer \
                 (run.repeats)",
                listed(&few, MOST_NAMED)
            );
        }
        Ok(())
    }

    /// Compares a run that is done, keeps it if it is one to be kept, and prints both. `run` is the exit code of the run
    /// alone.
    pub(super) fn conclude(&self, folder: &RunFolder, run: Exit, json: bool) -> Exit {
        let outcome = self.compared(folder);
        let (this, history, mut gate) = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return print_error(worse(error.kind.into(), run), &self.advice(&error, folder)),
        };
        let kept = match self.reason_not_to_keep(&this, run) {
            None => {
                let pin = if self.accept { Pin::Always } else { Pin::IfFirst };
                gate.keep(&*self.store, &self.name, &this, pin, self.allowed)
            }
            Some(because) => {
                let file = self.store.place(&self.name, &this.file());
                gate.note_not_added(&history, &this, because, file);
                Ok(())
            }
        };
        self.note(&mut gate, &this, run);
        match json {
            true => output::document(&document(&gate)),
            false => {
                print_line!();
                output::write(text::page(&gate).as_bytes());
            }
        }
        let mut exit = worse(run, self.exit(&gate));
        if let Err(written) = write(&self.pages, &gate) {
            exit = worse(exit, written);
        }
        match kept {
            Ok(()) => exit,
            Err(error) => print_error(worse(Exit::Failed, exit), &self.advice(&error, folder)),
        }
    }

    fn compared(&self, folder: &RunFolder) -> Result<(KeptResult, History, Gate), StudyError> {
        let record = RunRecord::from(&Run::open(folder.path())?);
        let this = KeptResult::new(record, folder.manifest.commit.clone());
        // As it is now: another run may have been kept or accepted meanwhile.
        let history = History::read(&*self.store, &self.name)?;
        let gate = Gate::of(&self.name, &history, &this, self.allowed, self.accept)?;
        Ok((this, history, gate))
    }

    /// Why a run is not kept; `None` if it is to be.
    fn reason_not_to_keep(&self, this: &KeptResult, run: Exit) -> Option<&'static str> {
        if run == Exit::Failed {
            return Some("the storage failed");
        }
        if !this.run.missing.is_empty() {
            return Some("not all steps are complete");
        }
        self.compare_only.then_some("--compare-only")
    }

    /// What the run itself came to, where that decides the exit code.
    fn note(&self, gate: &mut Gate, this: &KeptResult, run: Exit) {
        let folder = &this.run.place;
        match run {
            Exit::Missed => gate.notes.push(format!(
                "The run missed a limit or a criterion of its study (exit code 99): loadline report {folder}."
            )),
            Exit::Findings => gate
                .notes
                .push(format!("The run has findings that make a figure doubtful: loadline report {folder}.")),
            _ => {}
        }
        if self.compare_only && gate.comparison.is_none() && gate.kept == KeptAs::Pinned {
            gate.notes.push("Nothing to compare with: this run is the pinned result (exit code 3).".into());
        } else if self.compare_only && gate.comparison.is_none() {
            gate.notes.push(format!(
                "Nothing to compare with: no other result is kept in the baseline {}. A run without --compare-only keeps \
                 the first (exit code 3).",
                self.name
            ));
        }
        if self.accept && gate.comparison.is_some() {
            gate.notes
                .push("The run is accepted, so that the comparison does not decide the exit code.".into());
        }
    }

    fn exit(&self, gate: &Gate) -> Exit {
        match gate.outcome() {
            _ if self.accept => Exit::Done,
            Some(outcome) => exit_of(outcome),
            None if self.compare_only => Exit::Findings,
            None => Exit::Done,
        }
    }

    /// An error after the load, and how the run is compared and kept without another load.
    fn advice(&self, error: &StudyError, folder: &RunFolder) -> String {
        format!(
            "{}\nthe run is complete in {}: loadline run --resume with the same options compares and keeps it without \
             another load",
            error.message,
            folder.path().display()
        )
    }
}

/// The first that applies of usage, failed, missed, findings.
fn worse(one: Exit, other: Exit) -> Exit {
    let order = [Exit::Usage, Exit::Failed, Exit::Missed, Exit::Findings];
    order.into_iter().find(|exit| [one, other].contains(exit)).unwrap_or(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_exit_code_that_applies_wins() {
        assert_eq!(worse(Exit::Done, Exit::Done), Exit::Done);
        assert_eq!(worse(Exit::Findings, Exit::Missed), Exit::Missed);
        assert_eq!(worse(Exit::Failed, Exit::Missed), Exit::Failed);
        assert_eq!(worse(Exit::Failed, Exit::Usage), Exit::Usage);
        assert_eq!(worse(Exit::Done, Exit::Findings), Exit::Findings);
    }

    #[test]
    fn options_are_typed_again_as_they_were_given() {
        let args = GateArgs {
            baseline: Some("x".parse().unwrap()),
            baselines: Some("my results".into()),
            accept: true,
            ..GateArgs::default()
        };
        assert_eq!(args.typed(), " --baseline x --baselines 'my results' --accept");
        assert_eq!(GateArgs::default().typed(), "");
    }
}
