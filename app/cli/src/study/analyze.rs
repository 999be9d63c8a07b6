//! `loadline analyze`: runs of ours and results of other tools, audited, and what they come to.

use std::path::{Path, PathBuf};

use loadline_base::units::Rate;
use loadline_import::LARGEST_FILE;
use loadline_import::curves::{self, Alike, Source};
use loadline_measure::analysis::{LatencyLimit, Options, analyse};
use loadline_report::analysis::{Analyses, SourceAnalysis, is_doubtful, text};
use loadline_report::own::{self, Own};
use loadline_report::{picture, points};
use loadline_study::RunFolder;

use crate::output::{self, print_error, print_line};
use crate::process::exit::Exit;
use crate::study::bounded;

/// Audit and analyse results: whether the figures of each result are consistent, at which load a growing series
/// saturates and how throughput changes beyond that load, where the knee is, and how much load the storage carries
/// within a latency limit.
///
/// The command reads run folders of Loadline, results of `loadline bench --json`, fio's JSON and JSON+ (fio 2 and 3),
/// DISKSPD's XML and text, elbencho's CSV, vdbench's flatfile.html, HCIBench's `-res.txt` files (the file name states
/// the load), and CSV tables whose column names contain units, such as `vms,profile,iops,mb_per_s,latency_ms`. A file
/// may have at most 64 MiB.
///
/// Files that differ only in depth or rate, in name and in time form one curve and are analysed together.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline analyze runs/files-20260131-120000\n  \
    loadline analyze qd1.json qd4.json qd16.json --limit 'p99 <= 3ms'\n  \
    loadline analyze table.csv --outstanding-per-worker 32 --ceiling 26400000iops\n\n\
    Exit codes: 0 done; 2 a file cannot be read or parsed; 3 done, with findings that make\n\
    a figure doubtful, such as a damaged step of a run.")]
pub(crate) struct Args {
    /// Result files, or run folders.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// I/Os that each worker (virtual machine) kept outstanding, for files that do not state this number.
    #[arg(long, value_name = "N", value_parser = positive)]
    outstanding_per_worker: Option<f64>,
    /// The maximum of the storage: `26400000iops` or `112.5GB/s`. Give the option twice to state both.
    #[arg(long, value_name = "RATE")]
    ceiling: Vec<Rate>,
    /// Draw the load line at this latency: `p99 <= 3ms`, or `mean <= 2ms` if a file has no percentiles. A single point
    /// has no load line and is only compared with the limit.
    #[arg(long, value_name = "LIMIT")]
    limit: Option<LatencyLimit>,
    /// Print the analysis as JSON, for programs.
    #[arg(long)]
    json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("give a number above 0".into()),
    }
}

pub(crate) fn run(args: Args) -> Exit {
    let options = Options { ceilings: args.ceiling.clone(), limit: args.limit.clone(), audited: false };
    let mut found = Vec::new();
    for file in &args.files {
        match read(file, &args, &options) {
            Ok(read) => found.push(read),
            Err(message) => return print_error(Exit::Usage, &message),
        }
    }
    let sources = analysed(found, &options);
    let doubtful = sources.iter().any(|source| is_doubtful(&source.analysis));
    if args.json {
        let document = serde_json::to_string_pretty(&Analyses::new(sources, &options));
        match document {
            Ok(document) => output::document(&document),
            Err(error) => return print_error(Exit::Failed, &format!("cannot print the analysis: {error}")),
        }
    } else {
        for (at, source) in sources.iter().enumerate() {
            if at > 0 {
                print_line!();
            }
            output::write(text(source, args.limit.as_ref()).as_bytes());
            let pictures = args.limit.as_ref().map(|limit| picture::of_analysis(&source.analysis, limit));
            if let Some(pictures) = pictures.filter(|pictures| !pictures.is_empty()) {
                output::write(format!("\n{pictures}").as_bytes());
            }
        }
    }
    if doubtful { Exit::Findings } else { Exit::Done }
}

/// What one argument holds.
enum AnalysisInput {
    /// A run's folder, analysed.
    Run(SourceAnalysis),
    /// A file, which may be one of several of one curve.
    File(Source),
}

/// Analyses files, those of one curve together, in the order in which they were named.
fn analysed(found: Vec<AnalysisInput>, options: &Options) -> Vec<SourceAnalysis> {
    let (mut files, mut places) = (Vec::new(), Vec::new());
    for found in found {
        match found {
            AnalysisInput::Run(analysis) => places.push(Some(analysis)),
            AnalysisInput::File(file) => {
                files.push(file);
                places.push(None);
            }
        }
    }
    let mut joined = curves::join(files).into_iter();
    let mut sources = Vec::new();
    for place in places {
        sources.extend(place.or_else(|| joined.next().map(|source| analysis_of(source, options))));
    }
    sources
}

fn analysis_of(source: Source, options: &Options) -> SourceAnalysis {
    let (name, points) = (source.name(), source.points.len());
    let mut analysis = analyse(source.points, &Options { audited: source.audited, ..options.clone() });
    analysis.findings.splice(0..0, source.findings);
    SourceAnalysis { source: name, kind: source.kind, points, analysis }
}

fn read(path: &Path, args: &Args, options: &Options) -> Result<AnalysisInput, String> {
    let source = path.display().to_string();
    if path.is_dir() {
        let folder = RunFolder::open(path).map_err(|e| e.message)?;
        let (analysis, points) = points::analysis(&folder, options).map_err(|e| e.message)?;
        if points == 0 {
            return Err(format!("{source}: no step of the run is complete: there is nothing to analyse yet"));
        }
        return Ok(AnalysisInput::Run(SourceAnalysis {
            source,
            kind: "run of Loadline".into(),
            points,
            analysis,
        }));
    }
    let bytes = bounded::read(path, LARGEST_FILE as u64)?;
    let text = std::str::from_utf8(&bytes).ok().map(|text| text.trim_start_matches('\u{feff}'));
    if let Some(own) = text.and_then(|text| own::read(path, text)) {
        let Own { kind, point, alike, findings } = own.map_err(|e| e.message)?;
        return Ok(AnalysisInput::File(Source {
            names: vec![source],
            kind: kind.into(),
            points: vec![point],
            alike: vec![alike.map(|(key, label)| Alike { key, label })],
            findings,
            audited: true,
        }));
    }
    let import = loadline_import::Options { outstanding_per_worker: args.outstanding_per_worker };
    let imported = loadline_import::read(path, &bytes, &import).map_err(|e| e.to_string())?;
    Ok(AnalysisInput::File(imported.into_source(source)))
}
