//! `loadline fleet move`: machines of a run that is in progress are migrated.

use std::path::PathBuf;

use loadline_fleet::WorkerId;
use loadline_study::orders::{MoveAnswer, MoveOrder, Which, order_move};

use crate::output::{error_line, print_error, print_line};
use crate::process::exit::Exit;

/// Migrate virtual machines of a run to another node while they measure.
///
/// The workers of the run must be virtual machines that Loadline starts, here or on hosts, and their disks volumes of a cluster of the SAN. The machines are migrated one after the
/// other, by QEMU's live migration. Volumes that they reach as local disks go with them; volumes that they reach by NBD stay where they are, and are
/// reached through the new node. The order waits until the run measures a window, ten minutes at most. The report shows it, and says that the window is not comparable with
/// others. Before the next load, machines and volumes are where the study places them. A study does the same with
/// `faults = [{ at = "10s", do = "migrate", node = "node-1", to = "node-2" }]`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline fleet move run --node node-1 --to node-2          all machines of node-1\n  \
    loadline fleet move run --worker node-1/0 --to node-2      one machine\n\n\
    Exit codes: 0 done; 1 some were not migrated, or not everything is as it should be: the message says what; 2 the order cannot be carried out; 130 after Ctrl-C.")]
pub(crate) struct MoveArgs {
    /// The folder of the run.
    run: PathBuf,
    /// Migrate all machines that run on this node.
    #[arg(long, value_name = "NODE", required_unless_present = "worker", conflicts_with = "worker")]
    node: Option<String>,
    /// Migrate the machine that is this worker.
    #[arg(long, value_name = "WORKER")]
    worker: Option<String>,
    /// The node on which they are to run.
    #[arg(long, value_name = "NODE")]
    to: String,
    /// Print the result as JSON, for programs.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: MoveArgs) -> Exit {
    let MoveArgs { run, node, worker, to, json } = args;
    let which = match (node, worker) {
        (Some(node), _) => Which::OnNode(node),
        (None, worker) => Which::Worker(WorkerId(worker.unwrap_or_default())),
    };
    let waits = || {
        error_line(format_args!(
            "the order waits until the run measures a window, or has migrated the machines"
        ))
    };
    let answer = match order_move(&run, &MoveOrder { which, to }, waits) {
        Ok(answer) => answer,
        Err(error) => return print_error(error.kind.into(), &error.message),
    };
    if json {
        print_line!("{}", serde_json::to_string_pretty(&answer).expect("an answer is JSON"));
    } else {
        show(&answer);
    }
    match &answer.failed {
        None => Exit::Done,
        Some(why) if answer.is_refused => print_error(Exit::Usage, why),
        Some(why) => print_error(Exit::Failed, why),
    }
}

fn show(answer: &MoveAnswer) {
    for machine in &answer.migrated {
        print_line!(
            "{} is on {} now: migrated in {:.2} s, stood still for {:.0} ms",
            machine.worker,
            machine.to,
            machine.took_s,
            machine.downtime_ms
        );
    }
}
