//! `loadline fleet clean`: what runs have left in the cluster in which they made machines.

use std::path::PathBuf;

use loadline_proxmox::{Api, Cleaned, Stop, clean};
use loadline_study::{StudyError, read};
use serde_json::json;

use crate::output::{eprint_line, print_error, print_line};
use crate::process::exit::Exit;

/// Delete the machines that runs have left in the cluster of a study.
///
/// A run deletes its machines when it ends, also after Ctrl-C, and it deletes first what runs of this user on this host have left that
/// were killed. This command does only that. A machine is deleted if its name and its description carry the id of such a run, and no other
/// is touched. Machines of runs of other users or hosts are named: once you know that such a run is over, give its id with --run.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline fleet clean study.toml\n  \
    loadline fleet clean study.toml --run 5be0c3d1\n\n\
    Exit codes: 0 done; 1 something is left that could not be deleted; 2 usage or configuration.")]
pub(crate) struct CleanArgs {
    /// The study file whose [fleet.proxmox] names the cluster.
    #[arg(value_name = "STUDY.toml")]
    study: PathBuf,
    /// Delete what this run has left too, wherever it ran: the eight digits in the names of its machines. The machines of a run that goes on
    /// are deleted under it.
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: CleanArgs) -> Exit {
    match cleaned(&args) {
        Ok(cleaned) => told(&args, &cleaned),
        Err(error) => print_error(error.kind.into(), &error.message),
    }
}

fn cleaned(args: &CleanArgs) -> Result<Cleaned, StudyError> {
    let (study, _) = read::read(&args.study)?;
    let cluster = study.fleet.proxmox.ok_or_else(|| {
        StudyError::usage(format!(
            "study {} makes no machines: it has no [fleet.proxmox]",
            args.study.display()
        ))
    })?;
    let tell = |text: String| eprint_line!("{text}");
    let cleaned =
        Api::new(&cluster, Stop::default()).and_then(|api| clean(&api, &cluster, args.run.as_deref(), &tell));
    // By way of the fleet, whose errors have the same kinds.
    cleaned.map_err(|error| loadline_fleet::FleetError::from(error).into())
}

fn told(args: &CleanArgs, cleaned: &Cleaned) -> Exit {
    let Cleaned { deleted, others, left } = cleaned;
    if args.json {
        print_line!("{:#}", json!({"deleted": deleted, "others": others, "left": left}));
    } else {
        let list = |ids: &[u32]| ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        for (run, ids) in deleted {
            print_line!("run {run}: deleted VM {}", list(ids));
        }
        for (run, ids) in others {
            print_line!(
                "run {run}: VM {} may belong to a run that goes on, and stays. If that run is over: loadline fleet clean {} --run {run}",
                list(ids),
                args.study.display()
            );
        }
        if deleted.is_empty() && others.is_empty() && left.is_empty() {
            print_line!("no run has left a machine");
        }
    }
    match left.is_empty() {
        true => Exit::Done,
        false => print_error(Exit::Failed, &left.join("\n")),
    }
}
