//! `loadline new`: from a question to a study that is checked and ready to run.

mod dialogue;
mod paths;

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};

use loadline_question::{Answers, Draft, Fault, Field, draft, target};
use loadline_study::check::{PlanCheck, RunPlace};
use loadline_study::folder::default_path;
use loadline_study::when::When;
use loadline_study::{Plan, StudyError};
use serde::Serialize;

use crate::output::text::quoted;
use crate::output::{self, eprint_line, print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;
use crate::study::run::{checked, plan};

/// Make a study from a question: a file with a comment for each choice, and its plan with the time and the space.
///
/// On a terminal the command asks what the options do not answer: an empty line takes the default in brackets, and ? explains. Without a
/// terminal, or with --yes, everything takes its default. The command measures nothing, and overwrites no file.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline new                                      ask everything\n  \
    loadline new capacity --load database --limit 10ms\n  \
    loadline new node-down --effort quick --yes\n  \
    loadline new slower --target /mnt/storage --load file-server\n  \
    loadline new accept --target https://10.0.0.11:7400 --access-file access.pem \\\n    \
    --hosts node-1=root@10.0.0.11,node-2=root@10.0.0.12,node-3=root@10.0.0.13\n\n\
    Exit codes: 0 the study is written and can run; 2 an answer cannot be used, or the study could not run here: nothing is written;\n\
    1 the file could not be written; 130 after Ctrl-C.")]
pub(crate) struct Args {
    /// capacity (how many machines of this kind?), node-down (what if a node dies?), slower (did it get slower?) or accept (do I accept
    /// this cluster?).
    #[arg(value_name = "QUESTION")]
    question: Option<String>,
    /// Where the storage is: 'cluster' (started here), the API of a cluster that runs already (https://HOST:7400, IP:PORT or the path of
    /// api.sock), a folder, or existing disks (/dev/sdb,nbd://HOST/EXPORT). [default: cluster]
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// What the machines do: office-desktops, database, file-server, backup, or a profile such as B4-T1-O4-W30-PR. [default: database]
    #[arg(long, value_name = "LOAD")]
    load: Option<String>,
    /// The latency limit of capacity and accept: 10ms for 95 of 100 I/Os, or with another percentile 'p99 <= 10ms'. [default: 10ms]
    #[arg(long, value_name = "TIME")]
    limit: Option<String>,
    /// Nodes of a cluster that is started here. [default: 3]
    #[arg(long, value_name = "NUMBER")]
    nodes: Option<String>,
    /// Machines on each node; for capacity the most to try. [default: 4]
    #[arg(long, value_name = "NUMBER")]
    machines: Option<String>,
    /// How long the study measures: quick, normal or thorough. [default: normal]
    #[arg(long, value_name = "EFFORT")]
    effort: Option<String>,
    /// The nodes of a cluster that runs already, each with the host that SSH reaches: node-1=root@10.0.0.11,node-2=root@10.0.0.12.
    #[arg(long, value_name = "HOSTS")]
    hosts: Option<String>,
    /// The file that proves the access to an API at https://.
    #[arg(long, value_name = "FILE")]
    access_file: Option<String>,
    /// The nodes of other storage, for node-down and accept: the run asks you to stop and to start one of them. [default: node-1, node-2,
    /// node-3]
    #[arg(long, value_name = "NAMES")]
    members: Option<String>,
    /// The size of the disk of each machine. [default: by the effort]
    #[arg(long, value_name = "SIZE")]
    disk_size: Option<String>,
    /// The name of the study. [default: the question]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The file to write. It must not exist. [default: NAME.toml in the current folder]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Ask nothing: what is not given takes its default.
    #[arg(long, short)]
    yes: bool,
    /// Print the file, the next command and the plan as JSON, for programs.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Made<'a> {
    file: &'a Path,
    next: String,
    destroys_data: bool,
    plan: &'a loadline_question::draft::PlanFigures,
    space: Vec<Space<'a>>,
}

/// Space that the run needs in one file system.
#[derive(Serialize)]
struct Space<'a> {
    folder: &'a Path,
    purpose: &'a str,
    needed_bytes: u64,
    free_bytes: u64,
}

pub(crate) fn run(args: Args) -> Exit {
    made(&args).unwrap_or_else(|error| print_error(error.kind.into(), &error.message))
}

fn made(args: &Args) -> Result<Exit, StudyError> {
    let mut answers = given(args);
    if !args.yes && io::stdin().is_terminal() && io::stderr().is_terminal() {
        let taken = |answers: &Answers| free(&file_of(args, answers)).err().map(|why| why.message);
        let refuse = |answers: &Answers| args.output.is_none().then(|| taken(answers)).flatten();
        let done = dialogue::complete(&mut answers, &mut io::stdin().lock(), &mut io::stderr(), &refuse);
        if !done.map_err(|e| StudyError::failed(format!("the terminal cannot be used: {e}")))? {
            return Err(StudyError::usage("the answers ended before the last question: nothing is written"));
        }
    }
    paths::begin_at(&mut answers, &std::env::current_dir().unwrap_or_default());
    let draft = draft(&answers).map_err(|faults| refused(&faults))?;
    let file = file_of(args, &answers);
    free(&file)?;
    let (plan, found, out) = planned(&draft, &file)?;
    if !found.problems.is_empty() {
        return Err(cannot_run(&answers, args, found));
    }
    write(&file, &draft.text)?;
    let next = next(&file, &draft);
    if draft.destroys_data {
        eprint_line!("warning: this study writes to existing disks: when it runs, all data on them is lost");
    }
    if args.json {
        let space = found.space.iter().map(|space| Space {
            folder: &space.folder,
            purpose: &space.purpose,
            needed_bytes: space.needed.0,
            free_bytes: space.free.0,
        });
        let (destroys_data, space) = (draft.destroys_data, space.collect());
        let made = Made { file: &file, next, destroys_data, plan: &draft.plan, space };
        output::document(&serde_json::to_string_pretty(&made).unwrap_or_default());
    } else {
        plan::print(&draft.study, &plan, &found, &out, &[]);
        print_line!("\nwrote {}", quoted(&file));
        print_line!("next: {next}");
    }
    Ok(Exit::Done)
}

/// The answers that options give.
fn given(args: &Args) -> Answers {
    let mut answers = Answers::default();
    if let Some(text) = &args.target {
        target::set(&mut answers, text, |path| Path::new(path).is_dir());
    }
    for (field, option) in [
        (Field::Question, &args.question),
        (Field::Nodes, &args.nodes),
        (Field::AccessFile, &args.access_file),
        (Field::Hosts, &args.hosts),
        (Field::Members, &args.members),
        (Field::Load, &args.load),
        (Field::Machines, &args.machines),
        (Field::Limit, &args.limit),
        (Field::Effort, &args.effort),
        (Field::DiskSize, &args.disk_size),
        (Field::Name, &args.name),
    ] {
        if option.is_some() {
            answers.set(field, option.clone());
        }
    }
    answers
}

/// How an answer is given on the command line.
fn option(field: Field) -> &'static str {
    match field {
        Field::Question => "QUESTION",
        Field::Storage | Field::Api | Field::Folder | Field::Devices => "--target",
        Field::Nodes => "--nodes",
        Field::AccessFile => "--access-file",
        Field::Hosts => "--hosts",
        Field::Members => "--members",
        Field::Load => "--load",
        Field::Machines => "--machines",
        Field::Limit => "--limit",
        Field::Effort => "--effort",
        Field::DiskSize => "--disk-size",
        Field::Name => "--name",
    }
}

/// Faults as one error, a line each.
fn refused(faults: &[Fault]) -> StudyError {
    let line = |fault: &Fault| match fault.missing {
        true => format!("{} is missing: {}", option(fault.field), fault.message),
        false => format!("{}: {}", option(fault.field), fault.message),
    };
    StudyError::usage(faults.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// Where the study is written.
fn file_of(args: &Args, answers: &Answers) -> PathBuf {
    let name = || PathBuf::from(format!("{}.toml", answers.value(Field::Name).unwrap_or_default()));
    args.output.clone().unwrap_or_else(name)
}

/// That a file can be made there, as far as that is known before.
fn free(file: &Path) -> Result<(), StudyError> {
    if fs::symlink_metadata(file).is_ok() {
        return Err(StudyError::usage(format!(
            "{} exists, and is not overwritten: give another --name or --output",
            file.display()
        )));
    }
    let folder = folder_of(file);
    if !folder.is_dir() {
        return Err(StudyError::usage(format!(
            "--output: {} is not a folder: make it, or name another file",
            folder.display()
        )));
    }
    Ok(())
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The plan, checked on this machine, on the hosts and in the cluster of the study, as `loadline run --plan` does; and the folder of such a
/// run. Nothing is changed.
fn planned(draft: &Draft, file: &Path) -> Result<(Plan, PlanCheck, PathBuf), StudyError> {
    // Not before: until the last answer, Ctrl-C ends the program at once.
    let stop = interrupt::flag();
    let plan = Plan::of(&draft.study)?;
    let folder = std::path::absolute(folder_of(file))
        .map_err(|e| StudyError::failed(format!("no current folder: {e}")))?;
    let out = default_path(draft.study.name.as_str(), &When::now());
    // The run itself starts only with --destroy-data, which the next command names.
    let place = RunPlace { study_folder: &folder, run: &out, destroy_data: draft.destroys_data, made: &[] };
    let found = checked(&draft.study, &plan, &place, 0, &stop)?;
    Ok((plan, found, out))
}

/// The error of a study that could not run here, with the command that makes it again.
fn cannot_run(answers: &Answers, args: &Args, found: PlanCheck) -> StudyError {
    let options = Field::ALL.iter().filter_map(|field| {
        let text = answers.given(*field)?;
        let value = quoted(Path::new(text));
        match field {
            Field::Question => Some(value),
            Field::Storage if text != "cluster" => None,
            _ => Some(format!("{} {value}", option(*field))),
        }
    });
    let output = args.output.iter().map(|file| format!("--output {}", quoted(file)));
    let again = options.chain(output).collect::<Vec<_>>().join(" ");
    let message = |error: StudyError| StudyError {
        message: format!(
            "the study could not run, so nothing is written: {}\nto make it again: loadline new {again}",
            error.message
        ),
        ..error
    };
    match found.accept() {
        Err(error) => message(error),
        Ok(_) => StudyError::failed("the study could not run"),
    }
}

/// Makes the file, which does not exist; it is there as a whole or not at all.
fn write(file: &Path, text: &str) -> Result<(), StudyError> {
    let opened = OpenOptions::new().write(true).create_new(true).open(file);
    let mut opened = opened.map_err(|e| match e.kind() {
        ErrorKind::AlreadyExists => {
            StudyError::usage(format!("{} exists, and is not overwritten", file.display()))
        }
        _ => StudyError::failed(format!("{} cannot be made: {e}; name another --output", file.display())),
    })?;
    opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all()).map_err(|e| {
        let _ = fs::remove_file(file);
        StudyError::failed(format!("{} cannot be written: {e}; name another --output", file.display()))
    })
}

/// The command that runs the study.
fn next(file: &Path, draft: &Draft) -> String {
    // A path that begins with a hyphen would be an option.
    let path = match file.to_string_lossy().starts_with('-') {
        true => Path::new(".").join(file),
        false => file.to_path_buf(),
    };
    let options: String = draft.run_options.iter().map(|option| format!(" {option}")).collect();
    format!("loadline run {}{options}", quoted(&path))
}
