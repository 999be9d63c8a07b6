//! `loadline doctor`: what makes storage figures wrong or slow, found before anything is measured.

mod fleet;
mod print;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use loadline_base::units::TimeSpan;
use loadline_doctor::report::HostReport;
use loadline_doctor::scratch::{self, Scratch};
use loadline_doctor::{DoctorReport, ExamineOptions, Severity, devices, examine};
use loadline_load::LoadError;

use crate::output::{self, print_error};
use crate::process::exit::Exit;
use crate::process::interrupt;
use crate::process::made::Made;
use crate::process::secret::TokenFile;

/// Find what makes storage figures wrong or slow, on this host or on every host of a fleet, before anything is measured.
///
/// The command checks the kernel, io_uring, limits, CPUs, the load of other programs, clocks, memory and disks. Each
/// finding states the expected value, the cost of the difference, and the command that fixes the cause. The command
/// changes nothing and writes to no disk, except that --folder makes a file of 32 MiB in that folder, writes to the
/// file for a second, and removes it. With --study or --inventory, hosts also get a copy of the program (in
/// ~/.cache/loadline) if they do not have it.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline doctor                                this host and all its disks\n  \
    loadline doctor /dev/nvme1n1 --folder /data    one disk, and the time of durable writes on it\n  \
    loadline doctor --json > host.json             for programs: see 'loadline schema doctor'\n\n\
    A fleet: wait for three hosts, and measure the network between them as well\n  \
    loadline doctor --join 3 --listen 192.168.7.1:7400 --folder /data\n  \
    LOADLINE_TOKEN=... loadline worker --name node-1 --join 192.168.7.1:7400     on each host\n\n\
    The hosts of a study, or of an Ansible inventory, by SSH\n  \
    loadline doctor --study study.toml\n  \
    loadline doctor --inventory hosts.ini --group storage --folder /data\n\n\
    Levels of findings: 'bad': figures would be wrong, data is at risk, or a command cannot run;\n\
    'slow': the finding costs performance; 'note': the finding is only worth knowing; 'ok'.\n\n\
    Exit codes: 0 no finding is worse than a note; 1 the check failed, or a worker was lost;\n\
    2 usage: no such device or folder, a port in use; 3 a finding is bad or slow; 130 after\n\
    Ctrl-C.")]
pub(crate) struct Args {
    /// Disks to check, such as /dev/nvme1n1. [default: every whole disk]
    #[arg(value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Make a file in this folder and measure how long a durable write to the file takes.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Wait for N workers, one on each host. Each worker checks its host and the network to the next host.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    join: Option<u32>,
    /// Check every host of the fleet of this study, by SSH: the disks that the study names there, or every whole disk.
    #[arg(long, value_name = "STUDY.toml", conflicts_with = "join")]
    study: Option<PathBuf>,
    /// Check every host of this Ansible inventory (INI or YAML), by SSH.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["join", "study"])]
    inventory: Option<PathBuf>,
    /// Only the hosts of this group of the inventory.
    #[arg(long, value_name = "GROUP", requires = "inventory")]
    group: Option<String>,
    /// The address at which workers join.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7400", requires = "join")]
    listen: SocketAddr,
    /// How long to wait until all workers have joined.
    #[arg(long, value_name = "TIME", default_value = "5m", requires = "join")]
    wait: TimeSpan,
    /// The secret that workers need to join; it also protects their connections. A token of your own must be as hard to
    /// guess as a random one, and has at least 16 characters. Every user of this host can read a token on a command line:
    /// use --token-file, or LOADLINE_TOKEN. [default: a random token, which is printed]
    #[arg(long, env = "LOADLINE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    token_file: TokenFile,
    /// Print JSON, for programs.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Exit {
    let stop = interrupt::flag();
    let found = match fleet::source(&args) {
        Ok(None) => on_this_host(&args, &stop).map_err(|error| (error.kind, error.message)),
        Ok(Some(source)) => {
            fleet::on_workers(&args, source, &stop).map_err(|error| (error.kind, error.message))
        }
        Err(error) => Err((error.kind, error.message)),
    };
    let report = match found {
        Ok(report) => report,
        Err((kind, message)) => return print_error(kind.into(), &message),
    };
    if args.json {
        match serde_json::to_string_pretty(&report) {
            Ok(text) => output::document(&text),
            Err(error) => return print_error(Exit::Failed, &format!("cannot print the report: {error}")),
        }
    } else {
        output::write(print::text(&report, print::width()).as_bytes());
    }
    exit_of(&report)
}

fn on_this_host(args: &Args, stop: &Arc<AtomicBool>) -> Result<DoctorReport, LoadError> {
    for device in &args.devices {
        devices::named(device).map_err(LoadError::usage)?;
    }
    let mut made = Made;
    let scratch = args.folder.as_ref().map(|folder| {
        let file = scratch::place(folder);
        made.disk(&file, scratch::SIZE).map(|identity| Scratch { file, identity })
    });
    let options = ExamineOptions { devices: args.devices.clone(), scratch: scratch.transpose()? };
    let examined = examine(&options, stop)?;
    Ok(DoctorReport::new(vec![HostReport::new(examined, None, None)], Vec::new(), Vec::new()))
}

fn exit_of(report: &DoctorReport) -> Exit {
    if !report.lost.is_empty() {
        let lost: Vec<String> =
            report.lost.iter().map(|lost| format!("worker {}: {}", lost.worker, lost.why)).collect();
        let what = format!(
            "not every host could be checked; the findings of the other hosts are valid. {}",
            lost.join("; ")
        );
        return print_error(Exit::Failed, &what);
    }
    if report.worst > Severity::Note { Exit::Findings } else { Exit::Done }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loadline_doctor::report::Lost;
    use loadline_doctor::{Check, Examination};

    #[test]
    fn the_exit_code_follows_from_the_worst() {
        let of = |check: Check, lost: Vec<Lost>| {
            let examined = Examination { checks: vec![check], ..Examination::default() };
            exit_of(&DoctorReport::new(vec![HostReport::new(examined, None, None)], Vec::new(), lost))
        };
        assert_eq!(of(Check::ok("a", "b"), Vec::new()), Exit::Done);
        assert_eq!(of(Check::note("a", "b"), Vec::new()), Exit::Done);
        assert_eq!(of(Check::slow("a", "b"), Vec::new()), Exit::Findings);
        assert_eq!(of(Check::bad("a", "b"), Vec::new()), Exit::Findings);
        let lost = vec![Lost { worker: "b".into(), why: "its process ended".into() }];
        assert_eq!(of(Check::ok("a", "b"), lost), Exit::Failed);
    }
}
