//! The report as one offline page: an HTML file that holds everything, and requests nothing from any server.
//!
//! The page is a program (`web/`, built into this crate) and a stream of [`Message`]s, of which a later one takes the
//! place of an earlier one of the same kind (and step). In the file they are lines of JSON, compressed, all at once.
//!
//! | module | idea |
//! | --- | --- |
//! | [`mod@series`] | what it shows of one complete step |
//! | [`mod@tenths`] | what completed in each tenth of a second around faults |
//! | [`mod@workers`] | its workers, and which of them stand out |
//! | [`mod@bands`] | what happened in the run, for the timeline |

pub mod bands;
pub mod series;
pub mod tenths;
pub mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use loadline_load::host::Inventory;
use loadline_packed::unpack;
use loadline_study::live::LiveRun;
use loadline_study::resume::command;
use loadline_study::{RunFolder, StudyError};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::compare::Comparison;
use crate::report::Report;
use bands::{Band, bands};
use series::StepSeries;

/// The page without data, as `web/` builds it.
static TEMPLATE: LazyLock<String> =
    LazyLock::new(|| unpack(include_bytes!(concat!(env!("OUT_DIR"), "/report.html"))));
/// Where in it the run's name goes, as text.
const TITLE: &str = "LOADLINE-TITLE";
/// Where what is said goes where no script runs, as HTML.
const PLAIN: &str = "LOADLINE-PLAIN";
/// Where the data go, in base64.
const DATA: &str = "LOADLINE-DATA";
/// What a browser lets a page do that is a file, and one that is read from a server.
const OFFLINE: &str = "img-src data: blob:";
const LIVE: &str = "img-src data: blob:; connect-src 'self'";

/// One message of the stream that the page is made of.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// What the run came to so far.
    Run(Box<Run>),
    /// One complete step, over its window.
    Step(Box<StepSeries>),
    /// What the run does at this second; `null` if no process works on it.
    Live(Option<Box<LiveRun>>),
    /// Why the run cannot be read any more, in a sentence. What was read before stays.
    Unreadable(String),
}

/// The complete steps of a run, as they are sent: each once.
#[derive(Debug, Default)]
pub struct Course {
    sent: BTreeSet<u32>,
    hosts: BTreeMap<String, Inventory>,
}

impl Course {
    /// Sends the steps that are complete and were not sent before, one at a time: a result of many workers is large.
    ///
    /// # Errors
    /// A series cannot be read, or `send` fails.
    pub fn send(
        &mut self,
        folder: &RunFolder,
        mut send: impl FnMut(Message) -> Result<(), StudyError>,
    ) -> Result<(), StudyError> {
        for step in &folder.plan.steps {
            if self.sent.contains(&step.number) {
                continue;
            }
            // A result that cannot be read is among the report's notices.
            let Ok(Some(result)) = folder.result(step) else { continue };
            for (name, host) in &result.hosts {
                self.hosts.entry(name.clone()).or_insert_with(|| host.clone());
            }
            send(Message::Step(Box::new(StepSeries::of(folder, step, result)?)))?;
            self.sent.insert(step.number);
        }
        Ok(())
    }

    /// What the run came to so far.
    pub fn run(&self, folder: &RunFolder, report: &Report, baseline: Option<Comparison>) -> Message {
        let (bands, unread) = bands(folder);
        Message::Run(Box::new(Run {
            report: report.clone(),
            folder: folder.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            study_text: folder.manifest.study_text.clone(),
            hosts: self.hosts.values().cloned().collect(),
            bands,
            files: files(folder),
            baseline,
            notices: unread.into_iter().collect(),
            place: None,
        }))
    }
}

/// The page without data, for a server: it reads the messages of its run as they come, from `/api/runs/ID/stream` if its own address is
/// `/runs/ID/report/report.html`.
pub fn live_document() -> String {
    let page = TEMPLATE.replace(OFFLINE, LIVE);
    [(TITLE, "Loadline"), (PLAIN, ""), (DATA, "")]
        .into_iter()
        .fold(page, |page, (word, text)| page.replacen(word, text, 1))
}

/// What the run came to so far, and what it was made with.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The report, which is also `report.json`.
    pub report: Report,
    /// The name of the run's folder.
    pub folder: String,
    /// The study, word for word.
    pub study_text: String,
    /// The hosts of the workers, and what is below their disks.
    pub hosts: Vec<Inventory>,
    /// What happened beside the steps.
    pub bands: Vec<Band>,
    /// Files beside the page: their paths relative to it, and what they are.
    pub files: Vec<RawFile>,
    /// Against an earlier run, if one was named.
    pub baseline: Option<Comparison>,
    /// What could not be read, in sentences.
    pub notices: Vec<String>,
    /// Where the run is, if a console sends this; `null` in a file, which other people may get.
    pub place: Option<Place>,
}

/// Where a run is on the machine of the console, and how it is continued there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The path of the run's folder.
    pub path: String,
    /// The command that continues the run.
    pub resume: String,
    /// The folder in which the command has to be typed; `null` if any folder will do.
    pub resume_in: Option<String>,
}

impl Place {
    /// That of a run.
    pub fn of(folder: &RunFolder) -> Place {
        let resume = folder.manifest.resume.as_ref();
        let destroys = if folder.manifest.destroy_data { " --destroy-data" } else { "" };
        let options = resume.map_or(destroys, |resume| &resume.options);
        // What an option names may be relative.
        let in_folder = resume.filter(|resume| !resume.options.is_empty());
        Place {
            path: folder.path().display().to_string(),
            resume: command(folder.path(), options),
            resume_in: in_folder.map(|resume| resume.current_folder.display().to_string()),
        }
    }
}

/// A file that the page links to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawFile {
    /// Its path, relative to the page.
    pub path: String,
    /// What it is.
    pub what: String,
}

/// The whole page of a run, finished or not, as the text of an HTML file.
pub fn document(
    folder: &RunFolder,
    report: &Report,
    baseline: Option<Comparison>,
) -> Result<String, StudyError> {
    // Into memory, where writing does not fail.
    let failed = |e: std::io::Error| StudyError::failed(format!("cannot compress the report's data: {e}"));
    let mut lines = GzEncoder::new(Vec::new(), Compression::best());
    let mut course = Course::default();
    course.send(folder, |message| line(&mut lines, &message).map_err(failed))?;
    line(&mut lines, &course.run(folder, report, baseline)).map_err(failed)?;
    let data = STANDARD.encode(lines.finish().map_err(failed)?);
    Ok(fill(&TEMPLATE, report, &data))
}

fn line(out: &mut impl Write, message: &Message) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, message)?;
    out.write_all(b"\n")
}

/// The template with this run in it.
fn fill(template: &str, report: &Report, data: &str) -> String {
    let title = format!("{} {}", report.study, report.run_id);
    let tiles = report.tiles.all().map(|tile| format!("{}: {}", tile.title, tile.headline));
    let verdict = &report.verdict;
    let sentences = tiles.iter().chain(&verdict.carries).chain(&verdict.limited_by);
    let plain: String = sentences.map(|sentence| format!("<p>{}</p>", escaped(sentence))).collect();
    // Each is put where the template has its word, and the inserted text is not searched again.
    let mut page = String::with_capacity(template.len() + data.len() + plain.len());
    let mut rest = template;
    for (word, text) in [(TITLE, escaped(&title)), (PLAIN, plain), (DATA, data.to_string())] {
        if let Some((before, after)) = rest.split_once(word) {
            page.push_str(before);
            page.push_str(&text);
            rest = after;
        }
    }
    page + rest
}

/// Text as it stands in HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn files(folder: &RunFolder) -> Vec<RawFile> {
    let all = [
        ("report.json", "report.json", "every figure of this page, for programs"),
        ("steps.csv", "steps.csv", "a row for each step, for spreadsheets"),
        ("report.md", "report.md", "the tables, as text"),
        ("../run.json", "run.json", "the study, the plan, and how far the run came"),
        ("../study.toml", "study.toml", "the study, word for word"),
        ("../events.jsonl", "events.jsonl", "what happened, in the order of time"),
    ];
    let is_there = |path: &str, name: &str| !path.starts_with("..") || folder.path().join(name).exists();
    let there = all.into_iter().filter(|(path, name, _)| is_there(path, name));
    there.map(|(path, _, what)| RawFile { path: path.into(), what: what.into() }).collect()
}

/// The schema of [`Message`], of which the page's types are made.
pub fn schema() -> Value {
    loadline_study::json_schema::of::<Message>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_has_a_place_for_everything_once() {
        for word in [TITLE, PLAIN, DATA, OFFLINE] {
            assert_eq!(TEMPLATE.matches(word).count(), 1, "{word}");
        }
        let order: Vec<Option<usize>> = [TITLE, PLAIN, DATA].map(|word| TEMPLATE.find(word)).to_vec();
        assert!(order.is_sorted());
    }

    #[test]
    fn what_stands_in_the_page_itself_is_escaped() {
        assert_eq!(escaped("<script>'&\""), "&lt;script&gt;&#39;&amp;&quot;");
    }
}
