//! What is kept under one name, as far as a run needs it: the pinned result, and those that were kept last.

use std::collections::BTreeSet;

use loadline_base::figures::listed;
use loadline_study::StudyError;

use crate::baseline::kept::{KeptResult, PINNED_FILE, is_kept, parse_pinned};
use crate::baseline::name::BaselineName;
use crate::baseline::store::BaselineStore;

/// So many results are read: those that were kept last.
pub const MOST_RESULTS: usize = 20;
/// How many loads are named one by one.
const MOST_NAMED: usize = 12;

/// What is kept under one name.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The result that new runs are compared with; `None` if nothing is kept.
    pub pinned: Option<KeptResult>,
    /// The results that were kept last, the oldest first; at most [`MOST_RESULTS`].
    pub recent: Vec<KeptResult>,
    /// The files of all kept results.
    pub files: BTreeSet<String>,
}

impl History {
    /// Reads it. The error is one of usage: it names a file that is damaged, or of another version, and says what to do.
    pub fn read(store: &dyn BaselineStore, baseline: &BaselineName) -> Result<History, StudyError> {
        let all = store.files(baseline)?;
        let files: BTreeSet<String> = all.iter().filter(|file| is_kept(file)).cloned().collect();
        let kept = |file: &str| KeptResult::parse(&store.place(baseline, file), store.read(baseline, file)?);
        let pinned = match all.contains(PINNED_FILE) {
            true => {
                let place = store.place(baseline, PINNED_FILE);
                let file = parse_pinned(&place, store.read(baseline, PINNED_FILE)?)?;
                if !files.contains(&file) {
                    return Err(StudyError::usage(format!(
                        "{place} says that {file} is pinned, and that is not there. Restore it from a copy, or move {} \
                         away: then the oldest kept result is the pinned one",
                        PINNED_FILE
                    )));
                }
                Some(file)
            }
            // A crash between the two files of a first result leaves no more than that, until a further result is added.
            false => files.first().cloned(),
        };
        let recent = files.iter().skip(files.len().saturating_sub(MOST_RESULTS));
        let recent = recent.map(|file| kept(file)).collect::<Result<Vec<KeptResult>, StudyError>>()?;
        let pinned = pinned.map(|file| kept(&file)).transpose()?;
        Ok(History { pinned, recent, files })
    }

    /// Checks that a run of this study with these loads can be compared with the pinned result. A run that is `accepted`
    /// takes its place, and needs no more than a load.
    pub fn check_study(
        &self,
        baseline: &BaselineName,
        study: &str,
        loads: &BTreeSet<String>,
        accepted: bool,
    ) -> Result<(), StudyError> {
        if loads.is_empty() {
            return Err(StudyError::usage(
                "--baseline: the study has no load besides its searches, and searches are not compared",
            ));
        }
        let Some(pinned) = self.pinned.as_ref().filter(|_| !accepted) else { return Ok(()) };
        if pinned.run.study != study {
            return Err(StudyError::usage(format!(
                "the baseline {baseline} keeps results of the study {}, and this is the study {study}: give another \
                 --baseline NAME, or pin a run of this study with --accept ({})",
                pinned.run.study, pinned.run.place
            )));
        }
        if pinned.run.loads.iter().any(|load| loads.contains(&load.label)) {
            return Ok(());
        }
        let named = |labels: Vec<&str>| listed(&labels, MOST_NAMED);
        Err(StudyError::usage(format!(
            "no load of this study is in the baseline {baseline}: the study has {}; {} has {}. Give another --baseline \
             NAME, or pin a run of this study with --accept",
            named(loads.iter().map(String::as_str).collect()),
            pinned.run.place,
            named(pinned.run.loads.iter().map(|load| load.label.as_str()).collect())
        )))
    }
}
