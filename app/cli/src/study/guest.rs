//! `loadline guest`: what virtual machines are started from, and a machine with a shell.

mod hold;
mod relay;
mod shell;
mod terminal;
mod volume;

use loadline_fleet::FleetError;
use loadline_fleet::machine::GuestFiles;
use serde_json::json;

use crate::output::{print_error, print_line};
use crate::process::exit::Exit;

/// Look at what virtual machines as workers are started from, or at a disk from within a virtual machine.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Build(BuildArgs),
    Shell(shell::Args),
    #[command(hide = true)]
    HoldAttachment(hold::HoldArgs),
}

/// Build the image of workers that are virtual machines, or find the one that was built, and boot a machine once to see what runs it.
///
/// `loadline run --fleet vm` does the same when it starts a machine. The image has the kernel's modules that a machine needs and one program. The
/// same inputs give the same bytes. Images that were not used for 30 days are removed.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline guest build\n  \
    LOADLINE_GUEST_KERNEL=/srv/kernel loadline guest build      of /srv/kernel/vmlinuz and /srv/kernel/lib/modules/VERSION\n\n\
    Exit codes: 0 done; 2 something is missing, and the message says what.")]
struct BuildArgs {
    /// Print the result as JSON, for programs.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Exit {
    let json = match args.command {
        Command::Build(BuildArgs { json }) => json,
        Command::Shell(args) => return shell::run(&args),
        Command::HoldAttachment(args) => return hold::run(args),
    };
    match build(json) {
        Ok(()) => Exit::Done,
        Err(error) => print_error(error.kind.into(), &error.message),
    }
}

fn build(as_json: bool) -> Result<(), FleetError> {
    let files = GuestFiles::find()?;
    let acceleration = files.acceleration()?.name();
    let (qemu, image) = (&files.qemu, &files.image);
    if as_json {
        let result = json!({
            "qemu": qemu.program,
            "qemu_version": format!("{}.{}", qemu.version.0, qemu.version.1),
            "kernel": image.kernel,
            "kernel_version": image.version,
            "image": image.archive,
            "bytes": image.bytes,
            "module_bytes": image.module_bytes,
            "acceleration": acceleration,
        });
        print_line!("{result:#}");
        return Ok(());
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    print_line!("QEMU          {} {}.{}", qemu.program, qemu.version.0, qemu.version.1);
    print_line!("kernel        {} {}", image.version, image.kernel.display());
    print_line!(
        "image         {:.1} MiB, of which {:.1} MiB are modules: {}",
        mib(image.bytes),
        mib(image.module_bytes),
        image.archive.display()
    );
    print_line!("acceleration  {acceleration}");
    Ok(())
}
