//! What happened in a run between two moments, for the timeline: from `events.jsonl`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};

use loadline_study::RunFolder;
use loadline_study::folder::regular;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// The most that is read of the file.
const MOST_BYTES: u64 = 256 << 20;
/// The longest line of it that is read.
const LONGEST_LINE: u64 = 1 << 20;
/// So many are shown at the most.
const MOST: usize = 500;

/// Something that lasted, or happened at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// When it began.
    pub from: String,
    /// When it was over; `null` if that is not known.
    pub to: Option<String>,
    /// What kind of thing it is.
    pub kind: BandKind,
    /// What it was, in words.
    pub label: String,
    /// The condition's name, of a condition; else `null`.
    pub condition: Option<String>,
}

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BandKind {
    /// Disks were written before measuring.
    Fill,
    /// The load was put on until it was steady.
    WarmUp,
    /// The storage was in a condition.
    Condition,
    /// A worker was lost.
    Lost,
    /// Nothing ran: the run was stopped, and went on later.
    Stopped,
}

/// Everything that happened, in the order of its beginning, and what could not be read, in a sentence.
pub fn bands(folder: &RunFolder) -> (Vec<Band>, Option<String>) {
    let path = folder.path().join("events.jsonl");
    let failed = |e: std::io::Error| {
        let why =
            format!("{} cannot be read ({e}): what happened beside the steps is not shown", path.display());
        (Vec::new(), Some(why))
    };
    let mut reader = match regular::open(&path) {
        Ok(file) => BufReader::new(file.take(MOST_BYTES)),
        Err(e) => return failed(e),
    };
    let mut found = BandCollector::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) => break,
            // A crash may have torn a line.
            Ok(_) => serde_json::from_slice(&line).iter().for_each(|event| found.take(event)),
            Err(e) => return failed(e),
        }
    }
    let more = found.bands.len().saturating_sub(MOST);
    found.bands.truncate(MOST);
    let left = (more > 0).then(|| format!("{more} more events are in {}", path.display()));
    (found.bands, left)
}

/// The bands that were collected from the events read so far.
#[derive(Default)]
struct BandCollector {
    bands: Vec<Band>,
    /// Those that are not over, by what ends them.
    open: BTreeMap<String, usize>,
    /// When the last event was.
    last: Option<String>,
    /// Whether the run has said that it stops.
    stopped: bool,
}

impl BandCollector {
    fn take(&mut self, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let at = text(&event["at"]);
        let worker = text(&event["worker"]["id"]);
        let when = at.clone();
        match event["event"].as_str().unwrap_or_default() {
            "fill_began" => self.begin("fill".into(), at, BandKind::Fill, "the disks are filled".into()),
            "fill_done" => self.end("fill", at),
            "warm_up_began" => {
                self.begin("warm up".into(), at, BandKind::WarmUp, "warm-up until the load is steady".into());
            }
            "warm_up_ended" => self.end("warm up", at),
            "condition_entered" => {
                let name = text(&event["condition"]);
                self.end("condition", at.clone());
                self.begin("condition".into(), at, BandKind::Condition, format!("condition {name}"));
                if let Some(band) = self.bands.last_mut() {
                    band.condition = Some(name);
                }
            }
            "run_finished" => self.end("condition", at),
            "run_stopped" => {
                let label = format!("stopped: {}", text(&event["why"]));
                self.begin("stop".into(), at.clone(), BandKind::Stopped, label);
                self.stopped = true;
            }
            "run_resumed" => {
                // Whatever was going on when the run ended was over with it. One that crashed did not say so.
                let ended = self.last.clone().unwrap_or_else(|| at.clone());
                let open: Vec<String> = self.open.keys().filter(|key| *key != "stop").cloned().collect();
                open.iter().for_each(|key| self.end(key, ended.clone()));
                if !std::mem::take(&mut self.stopped) {
                    self.begin("stop".into(), ended, BandKind::Stopped, "ended without a word".into());
                }
                self.end("stop", at.clone());
            }
            "lost" => {
                let label = format!("{worker} was lost: {}", text(&event["loss"]["message"]));
                self.begin(format!("lost {worker}"), at, BandKind::Lost, label);
            }
            "restarted" => self.end(&format!("lost {worker}"), at),
            _ => {}
        }
        if !when.is_empty() {
            self.last = Some(when);
        }
    }

    fn begin(&mut self, key: String, from: String, kind: BandKind, label: String) {
        self.open.insert(key, self.bands.len());
        self.bands.push(Band { from, to: None, kind, label, condition: None });
    }

    fn end(&mut self, key: &str, at: String) {
        if let Some(band) = self.open.remove(key).and_then(|place| self.bands.get_mut(place)) {
            band.to = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_began_and_ended_is_a_band_and_a_loss_lasts_until_the_worker_is_back() {
        let mut found = BandCollector::default();
        for event in [
            json!({"at": "1", "event": "fill_began"}),
            json!({"at": "2", "event": "fill_done"}),
            json!({"at": "3", "event": "lost", "worker": {"id": "a"}, "loss": {"message": "killed"}}),
            json!({"at": "4", "event": "lost", "worker": {"id": "b"}, "loss": {"message": "<b>"}}),
            json!({"at": "5", "event": "restarted", "worker": {"id": "a"}}),
            json!({"at": "6", "event": "run_stopped", "why": "Ctrl-C"}),
            json!({"at": "9", "event": "run_resumed", "complete": 1}),
            json!("torn"),
        ] {
            found.take(&event);
        }
        let bands: Vec<_> = found.bands.iter().map(|b| (b.kind, &*b.from, b.to.as_deref())).collect();
        assert_eq!(
            bands,
            [
                (BandKind::Fill, "1", Some("2")),
                (BandKind::Lost, "3", Some("5")),
                (BandKind::Lost, "4", Some("6")),
                (BandKind::Stopped, "6", Some("9")),
            ]
        );
        assert_eq!(found.bands[2].label, "b was lost: <b>");
    }

    #[test]
    fn each_condition_is_a_band_with_its_name_until_the_next_one() {
        let mut found = BandCollector::default();
        for event in [
            json!({"at": "1", "event": "condition_entered", "condition": "healthy"}),
            json!({"at": "2", "event": "condition_entered", "condition": "one-down"}),
            json!({"at": "3", "event": "run_finished"}),
        ] {
            found.take(&event);
        }
        let bands: Vec<_> =
            found.bands.iter().map(|b| (b.condition.as_deref(), &*b.from, b.to.as_deref())).collect();
        assert_eq!(bands, [(Some("healthy"), "1", Some("2")), (Some("one-down"), "2", Some("3"))]);
    }

    #[test]
    fn a_run_that_crashed_was_over_with_its_last_word() {
        let mut found = BandCollector::default();
        for event in [
            json!({"at": "18:00", "event": "warm_up_began"}),
            json!({"at": "18:01", "event": "starting"}),
            json!({"at": "33:00", "event": "run_resumed", "complete": 0}),
        ] {
            found.take(&event);
        }
        let bands: Vec<_> = found.bands.iter().map(|b| (b.kind, &*b.from, b.to.as_deref())).collect();
        assert_eq!(
            bands,
            [(BandKind::WarmUp, "18:00", Some("18:01")), (BandKind::Stopped, "18:01", Some("33:00")),]
        );
    }
}
