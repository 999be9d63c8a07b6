//! One kept result, and the file that says which result is pinned. Both are JSON with a checksum, so that a file that is
//! cut short or changed is refused.

use std::collections::BTreeSet;
use std::path::Path;

use loadline_study::StudyError;
use loadline_study::folder::sealed::{self, Format};
use loadline_study::when::When;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compare::{Comparison, RunRecord};

const KEPT: Format = Format { name: "loadline-kept", version: 1 };
const PINNED: Format = Format { name: "loadline-pinned", version: 1 };
/// The file that names the pinned result.
pub const PINNED_FILE: &str = "pinned.json";

const KEPT_ADVICE: &str =
    "Restore it from a copy, or move it away: the other results stay usable. Loadline does not remove it";
const PINNED_ADVICE: &str =
    "Restore it from a copy, or move it away: then the oldest kept result is the pinned one";

/// A result that is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeptResult {
    /// `loadline-kept`.
    pub format: String,
    /// Version of this format.
    pub version: u64,
    /// The commit that was checked out in the git work tree of the study file; `null` if the study is in none.
    pub commit: Option<String>,
    /// The file of the pinned result that the run was compared with when it was kept; `null` if it was compared with none.
    #[serde(default)]
    pub compared_with: Option<String>,
    /// The loads that were slower than that, by more than was allowed.
    #[serde(default)]
    pub slower: BTreeSet<String>,
    /// All that is compared of the run.
    pub run: RunRecord,
}

/// Which result is pinned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pinned {
    format: String,
    version: u64,
    /// The file of the result.
    result: String,
}

impl KeptResult {
    /// Of a run, measured while this commit was checked out.
    pub fn new(run: RunRecord, commit: Option<String>) -> KeptResult {
        let (compared_with, slower) = (None, BTreeSet::new());
        KeptResult { format: KEPT.name.into(), version: KEPT.version, commit, compared_with, slower, run }
    }

    /// The same run with what it came to beside the pinned result in the file `pinned`.
    pub fn judged(&self, pinned: String, comparison: &Comparison) -> KeptResult {
        let slower = comparison.loads.iter().filter(|load| load.beyond_allowed);
        let slower = slower.map(|load| load.label.clone()).collect();
        KeptResult { compared_with: Some(pinned), slower, ..self.clone() }
    }

    /// The file in which it is kept: the same for the same run, and in the order in which runs began.
    pub fn file(&self) -> String {
        file_of(&self.run.run_id, &self.run.begun)
    }

    /// The text of its file.
    pub fn text(&self) -> String {
        // Every key is text and every figure finite or null: it cannot fail.
        sealed::text(self).unwrap_or_default()
    }

    /// Reads the text of a file. `place` is what messages call the file, and what the run is called in a comparison.
    pub fn parse(place: &str, text: String) -> Result<KeptResult, StudyError> {
        let mut kept: KeptResult = sealed::parse(Path::new(place), text, KEPT, KEPT_ADVICE)?;
        kept.run.place = place.to_string();
        Ok(kept)
    }
}

/// The file in which a run of this id is kept that began at this moment.
pub(super) fn file_of(run_id: &str, begun: &When) -> String {
    let millis = begun.as_str().chars().skip_while(|c| *c != '.');
    let millis: String = millis.filter(char::is_ascii_digit).collect();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let run_id: String = run_id.chars().map(plain).collect();
    format!("{run_id}-{millis}.json")
}

/// Whether a file of this name is a kept result: it begins with a date and a time.
pub fn is_kept(file: &str) -> bool {
    let begin: Vec<char> = file.chars().take(16).collect();
    let fits = |(i, c): (usize, &char)| if i == 8 || i == 15 { *c == '-' } else { c.is_ascii_digit() };
    begin.len() == 16 && begin.iter().enumerate().all(fits) && file.ends_with(".json")
}

/// The text of the file that says that this result is pinned.
pub fn pinned_text(file: &str) -> String {
    let pinned = Pinned { format: PINNED.name.into(), version: PINNED.version, result: file.to_string() };
    sealed::text(&pinned).unwrap_or_default()
}

/// The file of the result that is pinned, by the text of the file that says so.
pub fn parse_pinned(place: &str, text: String) -> Result<String, StudyError> {
    let pinned: Pinned = sealed::parse(Path::new(place), text, PINNED, PINNED_ADVICE)?;
    Ok(pinned.result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_result_is_known_by_its_name() {
        assert!(is_kept("20260131-120000-4711-123.json"));
        for other in [
            "",
            PINNED_FILE,
            "20260131-120000.json",
            "20260131-1200x0-1.json",
            "20260131-120000-1.new",
            "notes-20260131.json",
        ] {
            assert!(!is_kept(other), "{other}");
        }
    }

    #[test]
    fn the_pinned_result_is_read_as_it_was_written_and_damage_is_named() {
        let text = pinned_text("20260131-120000-1-2.json");
        assert_eq!(parse_pinned("x/pinned.json", text.clone()).unwrap(), "20260131-120000-1-2.json");
        for damaged in [&text[..text.len() / 2], "", "{}", &text.replace("120000", "130000")] {
            let message = parse_pinned("x/pinned.json", damaged.into()).unwrap_err().message;
            assert!(message.contains("x/pinned.json") && message.contains("move it away"), "{message}");
        }
    }
}
