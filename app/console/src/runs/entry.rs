//! What the index has of a run, made of its folder.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

use loadline_base::figures::listed;
use loadline_measure::spread::Spread;
use loadline_report::compare::{Run, RunRecord};
use loadline_report::names::named;
use loadline_report::tiles::Tiles;
use loadline_study::folder::manifest::{Manifest, RunState};
use loadline_study::plan::Plan;
use loadline_study::searches::SearchResult;
use loadline_study::when::When;
use ring::digest::{SHA256, digest};

use crate::runs::notes;
use crate::runs::row::{LoadFigures, Notes, RunRow, RunStanding};

/// Hosts that are named one by one.
const MOST_HOSTS: usize = 4;

/// A run in the index.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What a page gets of it.
    pub row: RunRow,
    /// The verdict.
    pub tiles: Option<Tiles>,
    /// The figures of each load and load line, each with a text that is equal in runs that were measured alike.
    pub figures: Vec<(LoadFigures, String)>,
}

/// The first 16 hexadecimal digits of the SHA-256 of these bytes.
pub fn short_hash(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The id of the run in this folder, an absolute path.
pub fn id_of(folder: &Path) -> String {
    short_hash(folder.as_os_str().as_bytes())
}

impl Entry {
    /// Reads the run in this folder, finished or not, and its notes. A folder that cannot be read is an entry that says why.
    pub fn read(folder: &Path, is_in_use: bool) -> Entry {
        // To open a pipe would wait for its other end.
        let is_file = fs::metadata(folder.join("run.json")).is_ok_and(|of| of.is_file());
        let is_there = folder.join("run.json").symlink_metadata().is_ok();
        let run = match is_there && !is_file {
            true => Err(format!("{}/run.json is no file that can be read", folder.display())),
            false => Run::open(folder).map_err(|e| e.message),
        };
        let entry = run.and_then(|run| {
            let entry = Entry::of(folder, &run, is_in_use);
            let text = entry.figures.iter().map(|(figures, _)| serde_json::to_string(figures));
            let is_read = |text: Result<String, _>| serde_json::from_str::<LoadFigures>(&text?);
            let wrong = text.map(is_read).find_map(Result::err);
            // The index could not give them back, and would be taken for damaged.
            wrong.map_or(Ok(entry), |_| {
                Err(format!(
                    "{} has figures that are no numbers: Loadline did not measure them",
                    folder.display()
                ))
            })
        });
        let mut entry = match entry {
            Ok(entry) => entry,
            Err(why) => Entry { row: blank(folder, why), tiles: None, figures: Vec::new() },
        };
        set_notes(&mut entry.row, notes::read(folder));
        entry
    }

    fn of(folder: &Path, run: &Run, is_in_use: bool) -> Entry {
        let (report, manifest) = (&run.report, &run.manifest);
        let standing = match manifest.state {
            RunState::Finished => RunStanding::Finished,
            RunState::Begun if is_in_use => RunStanding::InProgress,
            RunState::Begun => RunStanding::Interrupted,
        };
        let row = RunRow {
            standing,
            fault: None,
            run_id: Some(report.run_id.clone()),
            study: Some(report.study.clone()),
            kind: Some(report.kind),
            begun: report.begun.clone(),
            finished: report.finished.clone(),
            complete: report.complete,
            planned: report.planned,
            measured_on: measured_on(manifest),
            answer: Some(report.tiles.answer.clone()),
            loadline: Some(report.loadline.clone()),
            commit: manifest.commit.clone(),
            ..blank(folder, String::new())
        };
        Entry { row, tiles: Some(report.tiles.clone()), figures: figures(run) }
    }
}

/// Puts the notes into the row of a run, or why there are none.
pub fn set_notes(row: &mut RunRow, notes: Result<Notes, String>) {
    let (notes, fault) = match notes {
        Ok(notes) => (notes, None),
        Err(why) => (Notes::default(), Some(why)),
    };
    (row.tags, row.note, row.notes_fault) = (notes.tags, notes.note, fault);
}

/// A run of which nothing is known, and why.
fn blank(folder: &Path, why: String) -> RunRow {
    let changed = fs::metadata(folder).and_then(|of| of.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    RunRow {
        id: id_of(folder),
        path: folder.display().to_string(),
        standing: RunStanding::Unreadable,
        fault: Some(why),
        run_id: None,
        study: None,
        kind: None,
        begun: When::at(changed),
        finished: None,
        complete: 0,
        planned: 0,
        measured_on: None,
        answer: None,
        loadline: None,
        commit: None,
        tags: Vec::new(),
        note: String::new(),
        notes_fault: None,
    }
}

/// The cluster that ran before, or the hosts of the workers; `None` before workers were there.
fn measured_on(manifest: &Manifest) -> Option<String> {
    if let Some(cluster) = &manifest.cluster {
        return Some(format!("cluster {cluster}"));
    }
    let mut hosts: Vec<&str> = manifest.workers.iter().map(|worker| worker.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let hosts = (!hosts.is_empty()).then(|| listed(&hosts, MOST_HOSTS))?;
    let starts_cluster = Plan::of(&manifest.study).is_ok_and(|plan| plan.starts_cluster());
    Some(if starts_cluster { format!("its own cluster on {hosts}") } else { hosts })
}

fn figures(run: &Run) -> Vec<(LoadFigures, String)> {
    let (report, record) = (&run.report, RunRecord::from(run));
    let of_load = |row: &loadline_report::rows::LoadRow| {
        let step = report.steps.iter().find(|step| step.label == row.label)?;
        let condition = step.condition.as_ref().map(ToString::to_string).unwrap_or_default();
        let load = match condition.is_empty() {
            true => row.label.clone(),
            false => row.label.replacen(&format!("-{condition}"), "", 1),
        };
        let figures = LoadFigures {
            label: row.label.clone(),
            load,
            condition,
            name: named(&report.names, &row.label).to_owned(),
            is_load_line: false,
            repeats: row.repeats,
            doubtful: row.doubtful,
            iops: row.iops,
            mean_us: row.mean_us,
            p99_us: row.p99_us,
        };
        let likeness = record.likeness(&record.load(&row.label)?.keys);
        Some((figures, likeness))
    };
    let of_search = |search: &SearchResult| {
        let iops = search.iops?;
        let over = serde_json::to_value(search.over).ok()?.as_str()?.to_owned();
        let limit = format!("{} within {} us", search.percentile, search.limit_us);
        let mut keys: BTreeMap<String, String> = record.configuration.clone();
        keys.retain(|key, _| {
            key.starts_with("profile") || key.starts_with("load_line") || key.starts_with("capacity")
        });
        keys.extend([("over".into(), over.clone()), ("limit".into(), limit.clone())]);
        let figures = LoadFigures {
            label: search.label.clone(),
            load: format!("{}:{over}", search.label),
            condition: String::new(),
            name: format!("load line of {}, {limit}", named(&report.names, &search.label)),
            is_load_line: true,
            repeats: 1,
            doubtful: 0,
            iops: Some(Spread { median: iops, low: iops, high: iops, level: None }),
            mean_us: None,
            p99_us: None,
        };
        Some((figures, record.likeness(&keys)))
    };
    let loads = report.loads.iter().filter_map(of_load);
    loads.chain(report.searches.iter().filter_map(of_search)).collect()
}
