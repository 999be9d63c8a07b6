//! `loadline guest shell`: a virtual machine with a shell and a disk.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use loadline_base::units::ByteSize;
use loadline_fleet::machine::{GuestFiles, cache_folder, first_program, machine_disk};
use loadline_guest::control::Ended;
use loadline_guest::session::{CheckReport, ERRORS, Task};
use loadline_guest::shell::{SessionEnd, Wish};
use loadline_guest::{
    Acceleration, Contents, GuestError, Image, Kernel, Machine, MachineDisk, NbdServer, ShellMachine, Tools,
    room,
};
use loadline_load::{Disk, Lent, Target, WritePermission, lend, memory};
use serde_json::json;

use super::relay::Relay;
use super::terminal::{self, Keys, Raw};
use super::volume::{self, Attached};
use crate::cluster::client::{Api, Failed, print_json};
use crate::output::{eprint_line, print_line, write};
use crate::process::exit::Exit;
use crate::process::interrupt;

/// Start a small virtual machine with a shell and a disk: a volume of a cluster, or any target of the load generator. In the machine the
/// disk is /dev/vda. Nothing of the machine is left when it ends.
///
/// A volume that is not attached is attached for the machine, and detached when the machine ends. The machine reaches a volume by NBD, and
/// goes on when a node is lost: it connects to the next node. On a terminal, Ctrl-] ends the machine. With a COMMAND, the machine runs that
/// and ends. Without a terminal and a COMMAND, the shell reads commands from standard input.
///
/// The machine has busybox, and what this host has of e2fsprogs and xfsprogs. What the machine has mounted is unmounted when the shell or the
/// COMMAND ends.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline guest shell vm-7\n  \
    loadline guest shell vm-7 --check\n  \
    loadline guest shell vm-7 --read-only -- sh -c 'mount -o ro,norecovery /dev/vda /mnt && ls -l /mnt'\n  \
    loadline guest shell ./disk.img -- mkfs.ext4 -q /dev/vda\n  \
    loadline guest shell vhost-user:/srv/loadline/node-1/vhost/vm-7.sock\n\n\
    Exit codes: that of the shell or the COMMAND, 127 if the machine has no such program, 128 and the number of the signal that ended it; 1 the \
    machine failed; 2 usage, or the host lacks something; 130 ended by Ctrl-] or Ctrl-C. With --check: 0 clean, 1 not clean or not checked, 2 \
    no file system that can be checked.")]
pub(super) struct Args {
    /// The name of a volume; or a file or block device by a path with a slash, nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH,
    /// vhost-user:SOCKET, rbd:POOL/IMAGE, iscsi://HOST/IQN/LUN.
    #[arg(value_name = "VOLUME|DISK")]
    disk: String,
    /// Check the ext4 or xfs file system of the first partition, or of the whole disk if it has none: mount it, which replays its journal,
    /// unmount it, and run 'e2fsck -fn' or 'xfs_repair -n', which repair nothing.
    #[arg(long)]
    check: bool,
    /// Write nothing to the disk. With --check the file system is not mounted and its journal is not replayed, so that a file system that is
    /// in use, or was when its machine ended, may not be clean.
    #[arg(long)]
    read_only: bool,
    /// The node at which a volume is attached that is not attached. [default: the node with the most copies in sync]
    #[arg(long)]
    node: Option<String>,
    /// The memory of the machine. A check of a large file system needs more.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    memory: ByteSize,
    #[command(flatten)]
    api: Api,
    /// What the machine runs in place of a shell.
    #[arg(last = true, conflicts_with = "check")]
    command: Vec<String>,
}

/// The disk that the arguments name, ready to be attached to the machine.
enum Source {
    Volume(String, Attached),
    Disk(MachineDisk, Lent),
}

/// What a machine of a session is started from.
struct Parts {
    files: GuestFiles,
    image: Image,
    acceleration: Acceleration,
    machine: Machine,
}

pub(super) fn run(args: &Args) -> Exit {
    let stop = interrupt::flag();
    session(args, &stop).unwrap_or_else(|why| why.print_error())
}

fn session(args: &Args, stop: &Arc<AtomicBool>) -> Result<Exit, Failed> {
    if args.api.json && !args.check {
        return Err(usage(
            "--json is for --check: the output of a shell or a COMMAND is passed on as it is".into(),
        ));
    }
    let parts = parts(args)?;
    let mut source = source(args, stop)?;
    let result = in_machine(args, &parts, &source, stop);
    // The machine has ended; what it had is given back.
    if let Source::Volume(_, attached) = &mut source
        && !attached.finish()
    {
        return match result {
            Ok(Exit::Done) => Ok(Exit::Failed),
            other => other,
        };
    }
    result
}

fn parts(args: &Args) -> Result<Parts, Failed> {
    let machine = Machine { memory: args.memory, ..Machine::default() };
    machine.check().map_err(|e| usage(format!("--memory: {}", e.message)))?;
    let (free, _) = memory::available();
    room::check(1, args.memory, ByteSize(free)).map_err(of_guest)?;
    let files = GuestFiles::find().map_err(|e| Failed::new(e.kind.into(), e.message, false))?;
    let acceleration = files.acceleration().map_err(|e| Failed::new(e.kind.into(), e.message, false))?;
    let tools = Tools::find().map_err(of_guest)?;
    if args.check && !tools.has("e2fsck") && !tools.has("xfs_repair") {
        return Err(usage(
            "--check needs e2fsck or xfs_repair, and this host has neither: apt install e2fsprogs xfsprogs"
                .into(),
        ));
    }
    let of_fleet = |e: loadline_fleet::FleetError| Failed::new(e.kind.into(), e.message, false);
    let cache = cache_folder().map_err(of_fleet)?;
    let first = first_program(&cache).map_err(of_fleet)?;
    let contents = Contents::Shell { files: &tools.files, links: &tools.links };
    let image =
        Image::build(&Kernel::find().map_err(of_guest)?, &first, contents, &cache).map_err(of_guest)?;
    Ok(Parts { files, image, acceleration, machine })
}

fn source(args: &Args, stop: &AtomicBool) -> Result<Source, Failed> {
    let writable = !args.read_only;
    if !args.disk.contains(['/', ':']) {
        let attached = volume::attach(&args.api, &args.disk, args.node.as_deref(), writable, stop);
        let attached = attached.map_err(|why| match Path::new(&args.disk).exists() {
            true => why.with(&format!("; for the file, give ./{}", args.disk)),
            false => why,
        })?;
        attached.announce(&args.disk);
        return Ok(Source::Volume(args.disk.clone(), attached));
    }
    if let Some(node) = &args.node {
        return Err(usage(format!("--node {node} is for a volume, and {} is none", args.disk)));
    }
    let of_load = |e: loadline_load::LoadError| Failed::new(e.kind.into(), e.message, false);
    let target: Target = args.disk.parse().map_err(of_load)?;
    match target {
        Target::Null(_) => {
            return Err(usage("the null target is nowhere: name a volume, a file or a device".into()));
        }
        Target::Vhost(_) if args.read_only => {
            return Err(usage(
                "a disk by vhost-user cannot be attached for reading only: name the volume instead, which is reached by NBD".into(),
            ));
        }
        _ => {}
    }
    let writes = if writable { WritePermission::Destroy } else { WritePermission::Refused };
    let disk = Disk { target, writes };
    let lent = lend(&disk).map_err(of_load)?;
    Ok(Source::Disk(machine_disk(&disk, &lent).map_err(of_load)?, lent))
}

/// Starts the machine, and carries out the session. When this returns, the machine has ended.
fn in_machine(args: &Args, parts: &Parts, source: &Source, stop: &Arc<AtomicBool>) -> Result<Exit, Failed> {
    let Parts { files, image, acceleration, machine } = parts;
    let is_terminal = !args.check && args.command.is_empty() && terminal::is_there();
    let started = ShellMachine::start(&files.qemu, machine, image, *acceleration);
    let mut machine = started.map_err(of_guest)?;
    let mut ends = || stop.load(Ordering::Relaxed).then_some(Wish::End);
    if is_terminal {
        eprint_line!("the virtual machine boots ({})", acceleration.name());
    }
    let Some(took) = machine.booted(&mut ends).map_err(of_guest)? else { return Ok(Exit::Interrupted) };
    let writable = !args.read_only;
    let relay;
    let disk = match source {
        Source::Disk(disk, lent) => {
            debug_assert_eq!(lent.writable, writable);
            disk.clone()
        }
        Source::Volume(name, attached) => {
            let may_use = attached.may_use();
            relay = Relay::start(attached.nodes.clone(), machine.process(), may_use).map_err(|e| {
                Failed::new(Exit::Failed, format!("the relay to volume {name} cannot be started: {e}"), false)
            })?;
            MachineDisk::Nbd { server: NbdServer::Relay(relay.name), export: name.clone() }
        }
    };
    machine.attach(&disk, writable).map_err(of_guest)?;
    if let (Source::Volume(name, attached), true) = (source, writable) {
        attached.refuse_second(&args.api, name)?;
    }
    if is_terminal {
        eprint_line!(
            "it has booted in {:.1} s. {} is /dev/vda{}; 'exit' ends the machine, and so does Ctrl-]",
            took.as_secs_f64(),
            args.disk,
            if writable { "" } else { ", for reading only" }
        );
    }
    let task = match (args.check, is_terminal) {
        (true, _) => Task::Check,
        (_, true) => Task::Shell(Some(terminal::kind())),
        _ if args.command.is_empty() => Task::Shell(None),
        _ => Task::Command(args.command.clone()),
    };
    let ended = carry_out(machine, task, writable, stop)?;
    match ended {
        SessionEnd::ByWish => Ok(Exit::Interrupted),
        SessionEnd::Ended(_) if stop.load(Ordering::Relaxed) => Ok(Exit::Interrupted),
        SessionEnd::Ended(ended) if args.check => say_check(args, &ended),
        SessionEnd::Ended(ended) => Ok(exit_of(&ended)),
    }
}

/// Passes on what is typed and what is printed, until the session has ended.
fn carry_out(
    machine: ShellMachine,
    task: Task,
    writable: bool,
    stop: &Arc<AtomicBool>,
) -> Result<SessionEnd, Failed> {
    let is_terminal = matches!(task, Task::Shell(Some(_)));
    let is_check = task == Task::Check;
    // What the session prints is the user's own, also if it steers the terminal.
    let mut output = |stream: u32, bytes: &[u8]| -> io::Result<()> {
        if stream == ERRORS {
            return io::stderr().write_all(bytes);
        }
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush())
    };
    let escapes = Arc::new(AtomicU32::new(0));
    let raw = is_terminal.then(Raw::begin).transpose();
    let _raw =
        raw.map_err(|e| Failed::new(Exit::Failed, format!("the terminal cannot be used: {e}"), false))?;
    let mut size = terminal::now();
    let mut wish = || match escapes.load(Ordering::Relaxed) {
        2.. => Some(Wish::Kill),
        1 => Some(Wish::End),
        0 if stop.load(Ordering::Relaxed) => Some(Wish::End),
        0 if is_terminal && terminal::now() != size => {
            size = terminal::now();
            Some(Wish::Resize(size))
        }
        0 => None,
    };
    let ended = match (is_terminal, is_check) {
        (true, _) => {
            let keys = Keys::new(io::stdin(), Arc::clone(&escapes));
            machine.run(task, writable, keys, &mut output, &mut wish)
        }
        (_, true) => machine.run(task, writable, io::empty(), &mut output, &mut wish),
        _ => machine.run(task, writable, io::stdin(), &mut output, &mut wish),
    };
    match ended.map_err(of_guest)? {
        SessionEnd::Ended(_) if escapes.load(Ordering::Relaxed) > 0 => Ok(SessionEnd::ByWish),
        ended => Ok(ended),
    }
}

fn exit_of(ended: &Ended) -> Exit {
    let code = match (ended.code, ended.signal) {
        (Some(code), _) => code,
        (None, signal) => 128 + signal.unwrap_or_default(),
    };
    match u8::try_from(code) {
        Ok(0) => Exit::Done,
        Ok(code) => Exit::Program(code),
        Err(_) => Exit::Failed,
    }
}

/// Prints what a check found.
fn say_check(args: &Args, ended: &Ended) -> Result<Exit, Failed> {
    let failed = |why: String| Err(Failed::new(Exit::Failed, why, false));
    let disk = &args.disk;
    let checked = match serde_json::from_str(&ended.words) {
        Ok(CheckReport::Checked(checked)) => checked,
        Ok(CheckReport::Refused(why)) => return Err(usage(format!("{disk} cannot be checked: {why}"))),
        Ok(CheckReport::Failed(why)) => return failed(format!("{disk} was not checked: {why}")),
        Err(_) if !ended.words.is_empty() => {
            return failed(format!("{disk} was not checked: {}", ended.words));
        }
        Err(e) => {
            return failed(format!("{disk} was not checked: the report of the machine has no sense: {e}"));
        }
    };
    let exit = if checked.clean { Exit::Done } else { Exit::Failed };
    if args.api.json {
        let _ = print_json(&json!({
            "disk": disk,
            "partition": checked.partition,
            "not_checked": checked.not_checked,
            "file_system": checked.file_system,
            "journal_replayed": checked.journal_replayed,
            "clean": checked.clean,
            "tool": checked.tool,
            "tool_exit_code": checked.exit_code,
            "words": checked.words,
        }));
        return Ok(exit);
    }
    if !checked.clean {
        write(checked.words.as_bytes());
    }
    let place = checked.partition.map_or(String::new(), |number| format!(", partition {number}"));
    print_line!(
        "{disk}{place}: the {} file system is {} ({})",
        checked.file_system,
        if checked.clean { "clean" } else { "not clean" },
        checked.tool
    );
    if let Some(other) = &checked.not_checked {
        print_line!(
            "The whole disk begins with the superblock of an {other} file system too, which was not checked: the table of partitions is newer"
        );
    }
    if args.read_only {
        print_line!(
            "It was not mounted, and its journal was not replayed: if it was in use when its machine ended, it may be clean after that. \
             Check again without --read-only"
        );
    } else if !checked.journal_replayed {
        print_line!("It cannot be mounted.");
    }
    Ok(exit)
}

fn usage(why: String) -> Failed {
    Failed::new(Exit::Usage, why, false)
}

fn of_guest(error: GuestError) -> Failed {
    let exit = match error.kind {
        loadline_guest::ErrorKind::Usage => Exit::Usage,
        loadline_guest::ErrorKind::Failed | loadline_guest::ErrorKind::Again => Exit::Failed,
    };
    Failed::new(exit, error.message, false)
}
