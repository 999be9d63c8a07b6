//! `loadline analyze`: runs of ours and results of other tools, audited, and what they come to.

use std::fs;
use std::path::{Path, PathBuf};

use loadline_base::units::Rate;
use loadline_import::LARGEST_FILE;
use loadline_measure::analysis::{LatencyLimit, Options, analyse};
use loadline_report::analysis::{Analyses, SourceAnalysis, is_doubtful, text};
use loadline_report::points;
use loadline_study::RunFolder;

use crate::exit::Exit;
use crate::out::{self, complain, say};

/// Audit results, and say what they come to: does each figure hold together, where does a growing series saturate and
/// what comes after it, where is the knee, and how much is carried within a latency limit.
///
/// Understood are run folders of Loadline, fio's JSON and JSON+, DISKSPD's XML (results and profiles), HCIBench's
/// `-res.txt` files (their names say the load), and CSV tables whose column names carry units, such as
/// `vms,profile,iops,mb_per_s,latency_ms`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline analyze runs/files-20260131-120000\n  \
    loadline analyze fio.json --limit 'p99 <= 3ms'\n  \
    loadline analyze table.csv --outstanding-per-worker 32 --ceiling 26400000iops\n\n\
    Exit codes: 0 done; 2 a file cannot be read as what it seems to be; 3 done, with findings that make\n\
    a figure doubtful.")]
pub(crate) struct Args {
    /// Result files, or run folders.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// I/Os that each worker (virtual machine) kept outstanding, where a file does not say it.
    #[arg(long, value_name = "N", value_parser = positive)]
    outstanding_per_worker: Option<f64>,
    /// What the storage can do at the most: `26400000iops` or `112.5GB/s`. Given twice, one of each.
    #[arg(long, value_name = "RATE")]
    ceiling: Vec<Rate>,
    /// Draw the load line at this latency: `p99 <= 3ms`, or `mean <= 2ms` where a file has no percentiles.
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
    let mut sources = Vec::new();
    for file in &args.files {
        match source(file, &args, &options) {
            Ok(source) => sources.push(source),
            Err(message) => return complain(Exit::Usage, &message),
        }
    }
    let doubtful = sources.iter().any(|source| is_doubtful(&source.analysis));
    if args.json {
        let document = serde_json::to_string_pretty(&Analyses::new(sources, &options));
        match document {
            Ok(document) => out::write(format!("{document}\n").as_bytes()),
            Err(error) => return complain(Exit::Failed, &format!("cannot print the analysis: {error}")),
        }
    } else {
        for (at, source) in sources.iter().enumerate() {
            if at > 0 {
                say!();
            }
            out::write(text(source, args.limit.is_some()).as_bytes());
        }
    }
    if doubtful { Exit::Findings } else { Exit::Done }
}

fn source(path: &Path, args: &Args, options: &Options) -> Result<SourceAnalysis, String> {
    let source = path.display().to_string();
    if path.is_dir() {
        let folder = RunFolder::open(path).map_err(|e| e.message)?;
        let (analysis, points) = points::analysis(&folder, options).map_err(|e| e.message)?;
        if points == 0 {
            return Err(format!("{source}: no step of the run is complete: there is nothing to analyse yet"));
        }
        return Ok(SourceAnalysis { source, kind: "run of Loadline".into(), points, analysis });
    }
    let unreadable =
        |e: std::io::Error| format!("{source} cannot be read: {e}: give a result file or a run folder");
    let metadata = fs::metadata(path).map_err(unreadable)?;
    // Before it is read: memory is not for a file that is not taken anyway.
    if metadata.len() > LARGEST_FILE as u64 {
        return Err(format!(
            "{source}: {} bytes are more than the {LARGEST_FILE} that are read: split the file, or analyse its parts",
            metadata.len()
        ));
    }
    let bytes = fs::read(path).map_err(unreadable)?;
    let import = loadline_import::Options { outstanding_per_worker: args.outstanding_per_worker };
    let imported = loadline_import::read(path, &bytes, &import).map_err(|e| e.to_string())?;
    let points = imported.points.len();
    let mut analysis = analyse(imported.points, options);
    analysis.findings.splice(0..0, imported.findings);
    Ok(SourceAnalysis { source, kind: imported.format.to_string(), points, analysis })
}
