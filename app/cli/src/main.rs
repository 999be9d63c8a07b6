//! The `loadline` command.

mod cluster;
mod console;
#[cfg(test)]
mod manual;
mod measure;
mod output;
mod process;
#[cfg(test)]
mod reference;
mod san;
mod study;
mod watch;

use clap::{CommandFactory, Parser, Subcommand};

use cluster::{device, node, volume};
use measure::{bench, doctor, profile, verify};
use process::{exit, limits};
use study::{analyze, compare, demo, fleet, guest, host_agent, new, report, run, schema, worker};

#[derive(Parser)]
#[command(
    version,
    about = "Measures block storage: how much load it carries within a latency limit, from one host or many.\n\
             Provides block storage: a virtual SAN that keeps copies of each volume on several nodes.",
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 the run failed; 2 usage or configuration; 3 done, with findings that make a \
                  figure doubtful; 99 a stated limit was missed, or a load became slower; 130 after Ctrl-C."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Doctor(doctor::Args),
    Bench(Box<bench::Args>),
    Verify(verify::Args),
    New(new::Args),
    Run(run::Args),
    Demo(demo::Args),
    Report(report::Args),
    Analyze(analyze::Args),
    Compare(compare::Args),
    Schema(schema::Args),
    Worker(worker::Args),
    Fleet(fleet::Args),
    Guest(guest::Args),
    #[command(hide = true)]
    HostAgent(host_agent::Args),
    Profile(profile::Args),
    San(san::Args),
    Volume(volume::Args),
    Device(device::Args),
    Node(node::Args),
    Console(console::Args),
    Watch(watch::Args),
}

fn main() {
    if let Err(exit) = limits::prepare() {
        exit.end();
    }
    // SAFETY: the process has one thread: nothing that was called so far starts another.
    unsafe { loadline_proxmox::take_variable() };
    done()
}

/// All but what has to come first, on as little stack as there may be.
#[inline(never)]
fn done() -> ! {
    // clap prints usage errors itself and exits with 2, which is our code for them.
    let known = Cli::command();
    let taken =
        known.find_subcommand("bench").map(|bench| bench::typed::take(std::env::args_os().collect(), bench));
    let (words, typed) = match taken {
        Some(Ok(split)) => split,
        Some(Err(message)) => output::finish(output::print_error(exit::Exit::Usage, &message)).end(),
        None => (std::env::args_os().collect(), None),
    };
    let exit = match Cli::parse_from(words).command {
        Command::Doctor(args) => doctor::run(args),
        Command::Bench(args) => bench::run(*args, typed.as_ref()),
        Command::Verify(args) => verify::run(args),
        Command::New(args) => new::run(args),
        Command::Run(args) => run::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Report(args) => report::run(args),
        Command::Analyze(args) => analyze::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Worker(args) => worker::run(args),
        Command::Fleet(args) => fleet::run(args),
        Command::Guest(args) => guest::run(args),
        Command::HostAgent(args) => host_agent::run(args),
        Command::Profile(args) => profile::run(args),
        Command::San(args) => san::run(args),
        Command::Volume(args) => volume::run(args),
        Command::Device(args) => device::run(args),
        Command::Node(args) => node::run(args),
        Command::Console(args) => console::run(args),
        Command::Watch(args) => watch::run(args),
    };
    output::finish(exit).end()
}
