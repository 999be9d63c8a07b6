//! Other tools' results as measured points.
//!
//! [`read`] finds out what a file holds ([`detect`]) and hands it to the reader of that format: [`csv`], [`fio`],
//! [`diskspd`], [`elbencho`], [`vdbench`] or [`hcibench`]. [`curves`] joins files that are one curve. What a file does not
//! state stays `None` in its points; what it states and cannot be kept is named in a finding; what could be taken for
//! another figure than was meant is an error.

use std::path::Path;

use loadline_measure::audit::Finding;
use loadline_measure::point::Point;
use thiserror::Error;

use curves::{Alike, Source};

pub mod csv;
pub mod curves;
pub mod detect;
pub mod diskspd;
pub mod elbencho;
mod families;
pub mod fio;
pub mod hcibench;
mod numbers;
mod text;
pub mod vdbench;
mod words;
mod xml;

/// The largest file that is read, in bytes: 64 MiB. Results with histograms of hundreds of workers stay below it, and
/// the tree that is made of it fits into memory.
pub const LARGEST_FILE: usize = 64 << 20;

/// What a user states about a file that it does not say itself.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Options {
    /// I/Os that each worker kept outstanding (`--outstanding-per-worker`). It counts where the file has the number of
    /// workers, does not say how many were outstanding, and was not driven by a rate.
    pub outstanding_per_worker: Option<f64>,
}

impl Options {
    /// What is outstanding in all, if the user stated it.
    fn outstanding(&self, workers: Option<u32>) -> Option<f64> {
        let each = self.outstanding_per_worker.filter(|each| numbers::is_figure(*each) && *each > 0.0)?;
        Some(each * f64::from(workers?))
    }
}

/// What a file holds.
#[derive(Debug, Clone, Default)]
pub struct Imported {
    /// What it was taken for: `CSV`, `fio JSON`, `fio JSON+`, `fio 2 JSON`, `DISKSPD XML`, `DISKSPD text`, `elbencho CSV`,
    /// `vdbench flatfile`, `HCIBench result`.
    pub format: &'static str,
    /// What it says was measured, in the file's order.
    pub points: Vec<Point>,
    /// For each point what it shares with others of its curve. Shorter than `points` where the rest is not known.
    pub alike: Vec<Option<Alike>>,
    /// What a reader should know of the file itself: parts that were passed over, values that contradict each other.
    pub findings: Vec<Finding>,
}

impl Imported {
    /// The file as a source, which may be joined with others of its curve.
    pub fn into_source(self, name: String) -> Source {
        let Imported { format, points, mut alike, findings } = self;
        alike.resize(points.len(), None);
        Source { names: vec![name], kind: format.to_string(), points, alike, findings, audited: false }
    }
}

/// A file that cannot be read as what it seems to be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{place}: {problem}: {advice}")]
pub struct ImportError {
    /// The file, and the line or element in it.
    pub place: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub advice: String,
}

impl ImportError {
    fn new(place: impl Into<String>, problem: impl Into<String>, advice: impl Into<String>) -> ImportError {
        ImportError { place: place.into(), problem: problem.into(), advice: advice.into() }
    }
}

/// Reads what a file holds, whatever it is. It is recognised by its content; of its name only HCIBench's results need
/// more than where they lie, since nothing but the name states their load.
///
/// Points of loads that would else be taken for repeats or places of one sweep have what distinguishes them in their
/// `family`; those whose names of ours differ in threads and depth alone (`B4-T1-O1-W0-PR`, `B4-T1-O8-W0-PR`) have the
/// same one (`B4-W0-PR`), so that they are a sweep.
pub fn read(name: &Path, bytes: &[u8], options: &Options) -> Result<Imported, ImportError> {
    let file = text::kept(&name.display().to_string());
    if bytes.len() > LARGEST_FILE {
        let problem =
            format!("{} bytes are more than the {} MiB that are read", bytes.len(), LARGEST_FILE >> 20);
        return Err(ImportError::new(file, problem, "give the result alone, without logs or raw records"));
    }
    let text = text::decode(&file, bytes)?;
    let mut imported = match detect::format(&text) {
        Some(detect::Format::Json) => fio::read(&file, &text),
        Some(detect::Format::Xml) => diskspd::read(&file, &text),
        Some(detect::Format::DiskspdText) => diskspd::text::read(&file, &text),
        Some(detect::Format::Vdbench) => vdbench::read(&file, &text),
        Some(detect::Format::Elbencho) => elbencho::read(&file, &text),
        Some(detect::Format::HciBench) => hcibench::read(&file, name, &text, options),
        Some(detect::Format::Csv) => csv::read(&file, &text, options),
        None => Err(detect::unknown(&file, &text)),
    }?;
    families::name(&mut imported.points);
    Ok(imported)
}
