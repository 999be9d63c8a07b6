//! `loadline verify`: judges what a process wrote, also one that died.

use std::io::IsTerminal;
use std::path::PathBuf;

use loadline_load::{Disk, Job, Target, Verify, WritePermission};
use loadline_profile::Profile;

use crate::bench::exit_of;
use crate::exit::{Exit, complain};
use crate::interrupt;

/// Check that every acknowledged write is there.
///
/// Reads every block that a journal of `loadline bench --verify --journal` knows of and checks it: also after the
/// process that wrote them was killed. Never writes to the target. Exit code 1 if a block is not what it should be.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
    loadline bench /dev/sdb --destroy-data --verify --journal sdb.journal --profile B4-T1-O32-W100-PR\n  \
    (killed, or the storage failed over)\n  \
    loadline verify /dev/sdb --journal sdb.journal")]
pub(crate) struct Args {
    /// A file or a block device.
    target: Target,
    /// What was acknowledged.
    #[arg(long, value_name = "FILE")]
    journal: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Exit {
    let stop = interrupt::flag();
    if !args.journal.exists() {
        let message =
            format!("journal {} does not exist: name the one that was written", args.journal.display());
        return complain(Exit::Usage, &message);
    }
    let disk = Disk { target: args.target.clone(), writes: WritePermission::Refused };
    let mut job = Job::new(vec![disk], Profile::default());
    job.profile.block_size = loadline_base::units::ByteSize(4096);
    job.verify = Some(Verify { journals: vec![args.journal.clone()] });
    let terminal = std::io::stderr().is_terminal();
    let mut progress = |done: u64, total: u64| {
        if terminal {
            eprint!("\rchecking: {} of {} MiB ", done >> 20, total >> 20);
        }
    };
    let report = loadline_load::prepare_to_scan(&job).and_then(|mut p| p.scan(&stop, &mut progress));
    if terminal {
        eprint!("\r\x1b[K");
    }
    let report = match report {
        Ok(report) => report,
        Err(error) => return complain(exit_of(&error), &error.message),
    };
    if args.json {
        match serde_json::to_string_pretty(&report) {
            Ok(text) => println!("{text}"),
            Err(error) => return complain(Exit::Failed, &error.to_string()),
        }
    } else {
        println!(
            "{}: {} blocks checked, {} lost, {} corrupt, {} foreign, {} not judged",
            args.target, report.checked, report.lost, report.corrupt, report.foreign, report.unjudged
        );
        report.examples.iter().for_each(|e| println!("  {e}"));
    }
    if report.bad() > 0 { Exit::Failed } else { Exit::Done }
}
