//! `loadline worker`: joins a fleet, from any host.

use std::net::IpAddr;
use std::path::PathBuf;

use loadline_fleet::cpus::CpuList;
use loadline_fleet::{Machine, WorkerOptions, run_receiver, run_worker, run_worker_in_machine};

use crate::output::print_error;
use crate::process::exit::Exit;
use crate::process::log::LogArgs;
use crate::process::secret::TokenFile;

/// Join a fleet: run the loads that the controller orders on this host, until the controller ends the session or its
/// connection breaks.
///
/// The controller is the `loadline run` of a study whose workers join; `loadline run` prints the address and the
/// token. The connection is encrypted (TLS 1.3). Worker and controller prove to each other over it that they have the
/// token, and never send the token itself. No certificate is needed.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
    LOADLINE_TOKEN=5be0c3d1a2f94477 loadline worker --join 192.168.7.1:7400\n\n\
    If this host does not reach the controller, through a tunnel from the controller's host:\n  \
    ssh -R 7400:127.0.0.1:7400 HOST loadline worker --join 127.0.0.1:7400 --token-file - < token")]
pub(crate) struct Args {
    /// The controller's address.
    #[arg(long, value_name = "HOST:PORT")]
    join: String,
    /// The token of the fleet. Every user of this host can read a token on a command line: use --token-file, or
    /// LOADLINE_TOKEN.
    #[arg(long, env = "LOADLINE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    token_file: TokenFile,
    /// The worker's name in the fleet. A worker that joins again must use the same name. [default: the host's name and
    /// the process id]
    #[arg(long)]
    name: Option<String>,
    /// The node that the worker belongs to. [default: the host's name]
    #[arg(long)]
    node: Option<String>,
    /// The CPUs on which the worker may run, such as 0-3,6.
    #[arg(long)]
    cpus: Option<CpuList>,
    /// A control group to move into; given by the controller to its own processes.
    #[arg(long, hide = true)]
    cgroup: Vec<PathBuf>,
    /// Started by the controller itself: print errors only, and die with it.
    #[arg(long, hide = true)]
    child: bool,
    /// Run in a virtual machine of this size; given by the controller to its own processes.
    #[arg(long, hide = true, value_name = "JSON", value_parser = machine)]
    machine: Option<Machine>,
    /// Receive the machine of a worker of another host, at this address; given by an agent to its own processes.
    #[arg(long, hide = true, value_name = "IP", requires = "machine")]
    receive: Option<IpAddr>,
    #[command(flatten)]
    log: LogArgs,
}

fn machine(text: &str) -> Result<Machine, String> {
    serde_json::from_str(text).map_err(|e| format!("no virtual machine: {e}"))
}

pub(crate) fn run(args: Args) -> Exit {
    let Args { join, token, token_file, name, node, cpus, cgroup: cgroups, child, machine, receive, log } =
        args;
    if !child {
        log.begin();
    }
    let token = match token_file.or(token.as_deref()) {
        Ok(Some(token)) => token,
        Ok(None) => {
            let what = "a worker needs the token of its fleet: give --token-file FILE, or set LOADLINE_TOKEN";
            return print_error(Exit::Usage, what);
        }
        Err(why) => return print_error(Exit::Usage, &why),
    };
    let mut log = |text: &str| tracing::info!("{text}");
    let options = WorkerOptions { join, token, name, node, cpus, cgroups, child, inside: None };
    let result = match (machine, receive) {
        (Some(machine), Some(ip)) => run_receiver(&options, &machine, ip),
        (Some(machine), None) => run_worker_in_machine(options, &machine, &mut log),
        (None, _) => run_worker(options, &mut log),
    };
    match result {
        Ok(()) => Exit::Done,
        Err(error) => print_error(error.kind.into(), &error.message),
    }
}
