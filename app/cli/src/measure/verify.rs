//! `loadline verify`: judges what a process wrote, also one that died.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use loadline_load::{Disk, Job, Scan, Target, Verify, VerifyReport, WritePermission};
use loadline_measure::audit::{Finding, Severity};
use loadline_profile::Profile;
use serde::Serialize;

use crate::measure::bench::scan_incomplete;
use crate::output::{print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;

/// Check that a target holds every acknowledged write.
///
/// The command reads and checks every block that a journal of `loadline bench --verify --journal` lists, also if the
/// process that wrote the blocks was killed. It never writes to the target. Exit code 1 if a block is bad (lost,
/// corrupt, foreign or unreadable); 3 if there was nothing to check, or the page cache may have answered instead of
/// the storage.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
    loadline bench /dev/sdb --destroy-data --verify --journal sdb.journal --profile B4-T1-O32-W100-PR\n  \
    (killed, or the storage failed over)\n  \
    loadline verify /dev/sdb --journal sdb.journal")]
pub(crate) struct Args {
    /// A file or a block device.
    target: Target,
    /// The journal that `loadline bench --verify --journal` wrote for this target.
    #[arg(long, value_name = "FILE")]
    journal: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Exit {
    let stop = interrupt::flag();
    if !args.journal.exists() {
        let message = format!(
            "journal {} does not exist: name the journal that 'loadline bench --verify --journal' wrote",
            args.journal.display()
        );
        return print_error(Exit::Usage, &message);
    }
    let disk = Disk { target: args.target.clone(), writes: WritePermission::Refused };
    let mut job = Job::new(vec![disk], Profile::default());
    job.profile.block_size = loadline_base::units::ByteSize(4096);
    job.verify = Some(Verify { journals: vec![args.journal.clone()] });
    let terminal = std::io::stderr().is_terminal();
    let mut progress = |done: u64, total: u64| {
        if terminal {
            let _ = write!(std::io::stderr(), "\rchecking: {} of {} MiB ", done >> 20, total >> 20);
        }
    };
    let mut prepared = match loadline_load::prepare_to_scan(&job) {
        Ok(prepared) => prepared,
        Err(error) => return print_error(error.kind.into(), &error.message),
    };
    let Scan { report, incomplete } = prepared.scan(&stop, &mut progress);
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let mut findings = prepared.findings().to_vec();
    findings.extend(match &incomplete {
        Some(error) => Some(scan_incomplete(error)),
        None => report.nothing_judged(),
    });
    if args.json {
        match serde_json::to_string_pretty(&Judgement { report: &report, findings: &findings }) {
            Ok(text) => crate::output::document(&text),
            Err(error) => return print_error(Exit::Failed, &error.to_string()),
        }
    } else {
        print_line!("{}: {report}", args.target);
        report.examples.iter().for_each(|e| print_line!("  {e}"));
        findings.iter().for_each(|finding| print_line!("{finding}"));
    }
    if let Some(error) = incomplete {
        return print_error(error.kind.into(), &error.message);
    }
    let doubtful = findings.iter().any(|f| f.severity == Severity::Doubt);
    match (report.bad(), doubtful) {
        (0, false) => Exit::Done,
        (0, true) => Exit::Findings,
        _ => Exit::Failed,
    }
}

/// What it comes to, as programs read it.
#[derive(Serialize)]
struct Judgement<'a> {
    #[serde(flatten)]
    report: &'a VerifyReport,
    findings: &'a [Finding],
}
