//! What the fleet completed in each tenth of a second of a window in which something was done to the storage: from the step's
//! `seconds.jsonl`.

use std::io::{BufRead, BufReader, Read};

use loadline_measure::tenths::TENTHS;
use loadline_study::RunFolder;
use loadline_study::folder::regular;
use loadline_study::folder::series::{SECONDS, SecondLine};
use loadline_study::planned_step::Step;
use schemars::JsonSchema;
use serde::Serialize;

/// The most columns that the page gets of a step: those of a longer window are of several tenths each.
const MOST_COLUMNS: usize = 12_000;
/// The longest window that is read, seconds.
const LONGEST_WINDOW_S: usize = 86_400;
/// The most that is read of the file.
const MOST_BYTES: u64 = 1 << 30;
/// The longest line of it that is read.
const LONGEST_LINE: u64 = 1 << 20;

/// I/Os that completed with success over a window, in equal short spans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tenths {
    /// The length of each span, milliseconds: 100, or a multiple of it if the window is long.
    pub span_ms: u64,
    /// The I/Os of each span, from the beginning of the window on; the last one may be shorter than the others.
    pub ios: Vec<u64>,
}

/// The tenths of a step's window of so many seconds; `None` if the step's file does not count them, or cannot be read. The second value
/// says why a file that is there cannot be read to its end.
pub(crate) fn tenths(folder: &RunFolder, step: &Step, window_s: f64) -> (Option<Tenths>, Option<String>) {
    let path = folder.step_path(step).join(SECONDS);
    let file = match regular::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return (None, None),
        Err(e) => return (None, Some(format!("{} cannot be opened: {e}", path.display()))),
    };
    let seconds = (window_s.ceil().max(0.0) as usize).min(LONGEST_WINDOW_S);
    match counts(BufReader::new(file.take(MOST_BYTES)), seconds) {
        Ok(counts) => (counts.map(joined), None),
        Err(why) => {
            let why = format!(
                "{} cannot be read to its end ({why}): its window is drawn by the second",
                path.display()
            );
            (None, Some(why))
        }
    }
}

/// The I/Os of each tenth; `None` if no line counts them.
fn counts(mut reader: impl BufRead, seconds: usize) -> Result<Option<Vec<u64>>, String> {
    let mut counts = vec![0u64; seconds * TENTHS];
    let (mut line, mut is_counted) = (Vec::new(), false);
    loop {
        line.clear();
        let read =
            reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(|e| e.to_string())?;
        if read == 0 {
            return Ok(is_counted.then_some(counts));
        }
        let line: SecondLine = serde_json::from_slice(&line).map_err(|e| e.to_string())?;
        let Ok(second) = usize::try_from(line.second) else { continue };
        for (tenth, count) in line.tenths.iter().take(TENTHS).enumerate() {
            is_counted = true;
            if let Some(sum) = counts.get_mut(second * TENTHS + tenth) {
                *sum = sum.saturating_add(u64::from(*count));
            }
        }
    }
}

/// Several tenths as one, if there are too many.
fn joined(counts: Vec<u64>) -> Tenths {
    let several = counts.len().div_ceil(MOST_COLUMNS).max(1);
    Tenths {
        span_ms: 100 * several as u64,
        ios: counts
            .chunks(several)
            .map(|part| part.iter().fold(0, |sum: u64, one| sum.saturating_add(*one)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(second: i64, tenths: &str) -> String {
        format!(r#"{{"worker":"a/0","second":{second},"phase":"measure","disk":0,"completions":""{tenths}}}"#)
            + "\n"
    }

    #[test]
    fn the_tenths_of_all_workers_add_up_and_what_is_outside_of_the_window_is_left_out() {
        let text = [
            line(-1, r#","tenths":[9]"#),
            line(0, r#","tenths":[1,2]"#),
            line(0, r#","tenths":[10]"#),
            line(1, r#","tenths":[0,0,0,0,0,0,0,0,0,5]"#),
            line(2, r#","tenths":[7]"#),
        ]
        .concat();
        let found = counts(text.as_bytes(), 2).unwrap().unwrap();
        assert_eq!(found.len(), 20);
        assert_eq!((found[0], found[1], found[19], found.iter().sum::<u64>()), (11, 2, 5, 18));
    }

    #[test]
    fn a_series_that_does_not_count_them_has_none_and_a_torn_one_is_an_error() {
        assert_eq!(counts(line(0, "").as_bytes(), 1), Ok(None));
        assert!(counts(&br#"{"worker"#[..], 1).is_err());
    }

    #[test]
    fn a_long_window_has_longer_spans() {
        let found = joined(vec![1; 2 * MOST_COLUMNS + 1]);
        assert_eq!((found.span_ms, found.ios[0], found.ios.last()), (300, 3, Some(&1)));
        assert_eq!(joined(vec![1; 20]).span_ms, 100);
    }
}
