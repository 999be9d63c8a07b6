//! How a comparison is judged and where it is written: the options that `compare` and `run --baseline` share.

use std::path::PathBuf;

use loadline_report::compare::Outcome;
use loadline_study::StudyError;

use super::file::Place;
use crate::output::text::quoted;
use crate::output::{eprint_line, print_error};
use crate::process::exit::Exit;

/// What is allowed, and which files are written.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct JudgeArgs {
    /// A load fails the comparison only if its whole interval is more than PERCENT slower. [default: 0]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    allow_slower: Option<f64>,
    /// Write JUnit XML with a test case for each load to this file. An existing file is overwritten only if it is such
    /// a report.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write a page of Markdown, such as a CI's summary, to this file. An existing file is overwritten only if it is
    /// such a page.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// A place, and what is written there of a `T`.
pub(crate) type Page<T> = (Place, fn(&T) -> String);

impl JudgeArgs {
    /// So many percent slower is allowed.
    pub(crate) fn allowed(&self) -> f64 {
        self.allow_slower.unwrap_or_default()
    }

    /// The options that were given, as they are typed.
    pub(crate) fn typed(&self) -> Vec<String> {
        let percent = self.allow_slower.map(|percent| format!("--allow-slower {percent}"));
        let file = |option: &str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| format!("--{option} {}", quoted(path)))
        };
        let all = [percent, file("junit", &self.junit), file("markdown", &self.markdown)];
        all.into_iter().flatten().collect()
    }

    /// Where files go, checked before anything is read or measured. Each kind of file has the text that it begins with, by
    /// which an earlier one is known, and what makes it.
    pub(crate) fn pages<T>(
        &self,
        junit: (&'static str, fn(&T) -> String),
        markdown: (&'static str, fn(&T) -> String),
    ) -> Result<Vec<Page<T>>, StudyError> {
        let requested = [("--junit", &self.junit, junit), ("--markdown", &self.markdown, markdown)];
        let mut pages: Vec<Page<T>> = Vec::new();
        for (option, path, (head, page)) in requested {
            let Some(path) = path else { continue };
            let place = Place::check(option, path, head)?;
            if pages.iter().any(|(other, _)| other.is_same(&place)) {
                return Err(StudyError::usage(format!(
                    "{option} {place} is named twice: give each its own file"
                )));
            }
            pages.push((place, page));
        }
        Ok(pages)
    }
}

/// Removes the pages that an earlier command wrote there.
pub(crate) fn remove_earlier<T>(pages: &[Page<T>]) -> Result<(), StudyError> {
    pages.iter().try_for_each(|(place, _)| place.remove_earlier())
}

/// Writes the files. If one cannot be written, the others are written all the same, and the error is its exit code.
pub(crate) fn write<T>(pages: &[Page<T>], value: &T) -> Result<(), Exit> {
    let mut written = Ok(());
    for (place, page) in pages {
        match place.write(&page(value)) {
            Ok(()) => eprint_line!("wrote {place}"),
            Err(error) => written = Err(print_error(Exit::Failed, &error.message)),
        }
    }
    written
}

/// The exit code of a comparison.
pub(crate) fn exit_of(outcome: Outcome) -> Exit {
    match outcome {
        Outcome::Fine => Exit::Done,
        Outcome::Doubtful => Exit::Findings,
        Outcome::Slower => Exit::Missed,
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number: Result<f64, _> = text.trim().trim_end_matches('%').trim().parse();
    match number {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("give percent from 0 to 1000, such as 5".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_a_number_that_makes_sense() {
        assert_eq!(percent("5"), Ok(5.0));
        assert_eq!(percent("2.5%"), Ok(2.5));
        for text in ["", "-1", "nan", "inf", "five", "1001"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
