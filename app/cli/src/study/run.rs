//! `loadline run`: a study, planned, run, resumed.

mod cluster_page;
mod copies;
mod gate;
pub(super) mod plan;
pub(crate) mod progress;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadline_base::units::ByteSize;
use loadline_console::following::Place;
use loadline_fleet::{LibvirtUri, check_token, or_stop};
use loadline_report::baseline::git::commit_of;
use loadline_report::{Report, json, write};
use loadline_study::check::{PlanCheck, RunPlace, check, human};
use loadline_study::cluster_check::check_cluster;
use loadline_study::folder::manifest::{Manifest, RunState};
use loadline_study::folder::{OwnedFolder, default_path};
use loadline_study::host_check::check_hosts;
use loadline_study::resume::{self, Resume};
use loadline_study::run::RunVerdict;
use loadline_study::when::When;
use loadline_study::{Plan, RunFolder, Study, StudyError, read};
use tokio::sync::watch;

use crate::console::served::WithConsole;
use crate::output::text::{counted, quoted};
use crate::output::{self, eprint_line, print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;
use crate::process::secret::TokenFile;
use crate::study::report;
use cluster_page::WithClusterPage;
use gate::{GateArgs, PreparedGate};

/// How often the command checks whether Ctrl-C was pressed.
const TICK: Duration = Duration::from_millis(50);

/// Run a study: a fleet of workers measures every load of a study file, with the repeats that the file states.
///
/// The run's folder is complete after every step. After Ctrl-C or a crash, `--resume` continues the run. The run
/// removes the files that it made when it is finished, and keeps them until then.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline run studies/files.toml --plan      print the steps, the time and the space\n  \
    loadline run studies/files.toml\n  \
    loadline run --resume runs/files-20260131-120000\n  \
    loadline run study.toml --console           with a page that shows the run while it runs\n  \
    loadline run studies/quick.toml --fleet vm  each worker is a virtual machine\n  \
    loadline run studies/quick.toml --fleet libvirt   the same, started by the libvirt of this machine\n  \
    loadline run study.toml --baseline main     compare with the pinned result, and keep this run\n  \
    loadline run study.toml --baseline main --compare-only --junit run.xml --markdown run.md\n\n\
    Exit codes: 0 done; 1 the run failed; 2 usage or configuration; 3 done, with findings that make\n\
    a figure doubtful; 99 the run missed a limit of the study, or a limit ended it; 130 after Ctrl-C.\n\
    With --baseline also 99 if a load is slower by more than --allow-slower allows, and 3 if the\n\
    comparison is doubtful, or --compare-only has nothing to compare with. If several codes apply,\n\
    the exit code is the first of 2, 1, 99, 3.")]
pub(crate) struct Args {
    /// The study file. `loadline schema study` describes it.
    #[arg(value_name = "STUDY.toml", required_unless_present = "resume")]
    study: Option<PathBuf>,
    /// In its place: a study that is built in.
    #[arg(skip)]
    text: Option<&'static str>,
    /// Print every step, its length, the space that it needs and the total, and exit without measuring.
    #[arg(long)]
    plan: bool,
    /// The run's folder. It must be new or empty. [default: runs/NAME-DATE-TIME]
    #[arg(long, value_name = "DIR", conflicts_with = "resume")]
    out: Option<PathBuf>,
    /// Continue the run in this folder: complete steps are kept, and all other steps are measured again.
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// What each worker is, whatever the study says: a process, or a virtual machine. The machine is as large as the study's fleet
    /// says, or has 1 CPU and 128MiB. A run that is continued keeps it. One of: process; vm (a virtual machine, by QEMU or as the study
    /// says); libvirt (a virtual machine that libvirt starts, at qemu:///system); libvirt:URI (the same at qemu:///session, or at
    /// qemu+ssh://USER@HOST/system of a host).
    #[arg(long, value_name = "KIND", value_parser = WorkerKind::parse, conflicts_with = "resume")]
    fleet: Option<WorkerKind>,
    /// Keep the files, and the volumes in a cluster, that the run made after the run is finished.
    #[arg(long)]
    keep: bool,
    /// Allow profiles to write to the study's devices. All data on the devices can be lost.
    #[arg(long)]
    destroy_data: bool,
    /// Run the commands that the study names in target.external or target.san: under your user, or on hosts as the user whom SSH logs in.
    /// --plan prints the commands.
    #[arg(long)]
    run_commands: bool,
    /// The secret that workers need to join; it also protects their connections. A token of your own must be as hard to
    /// guess as a random one, and has at least 16 characters. Every user of this host can read a token on a command line:
    /// use --token-file, or LOADLINE_TOKEN. [default: a random token, which is printed]
    #[arg(long, env = "LOADLINE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    token_file: TokenFile,
    #[command(flatten)]
    console: WithConsole,
    /// Print the result as JSON, for programs, in place of the table. With --baseline, print the comparison and the
    /// trend; the run's own report is report/report.json in the run's folder.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    gate: GateArgs,
}

/// What a worker is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum WorkerKind {
    /// A process.
    Process,
    /// A virtual machine.
    Vm,
    /// A virtual machine that this libvirt starts.
    Libvirt(LibvirtUri),
}

impl WorkerKind {
    fn parse(text: &str) -> Result<WorkerKind, String> {
        match text {
            "process" => Ok(WorkerKind::Process),
            "vm" => Ok(WorkerKind::Vm),
            "libvirt" => Ok(WorkerKind::Libvirt(LibvirtUri::system())),
            _ => match text.strip_prefix("libvirt:") {
                Some(uri) => LibvirtUri::parse(uri).map(WorkerKind::Libvirt).map_err(|e| e.message),
                None => Err("workers are process, vm, libvirt or libvirt:URI".into()),
            },
        }
    }

    /// Changes the fleet of a study: its workers are of this kind.
    fn apply(&self, study: &mut Study) -> Result<(), StudyError> {
        let fleet = &mut study.fleet;
        match self {
            WorkerKind::Libvirt(uri) => {
                let machine = fleet.machine.get_or_insert_default();
                if fleet.node.is_empty() {
                    machine.libvirt = Some(uri.clone());
                }
                for node in &mut fleet.node {
                    node.machine.get_or_insert_with(|| machine.clone()).libvirt = Some(uri.clone());
                }
                fleet.move_to_libvirt()?;
            }
            WorkerKind::Vm => {
                fleet.machine.get_or_insert_default();
            }
            WorkerKind::Process => {
                fleet.machine = None;
                fleet.node.iter_mut().for_each(|node| node.machine = None);
            }
        }
        Ok(())
    }
}

impl Args {
    /// To run a study that is built in.
    pub(crate) fn of_text(text: &'static str, out: Option<PathBuf>, plan: bool, json: bool) -> Args {
        let (study, resume, token, text) = (None, None, None, Some(text));
        let token_file = TokenFile::default();
        let (keep, destroy_data, run_commands) = (false, false, false);
        let fleet = None;
        let (gate, console) = (GateArgs::default(), WithConsole::NONE);
        Args {
            study,
            text,
            plan,
            out,
            resume,
            fleet,
            keep,
            destroy_data,
            run_commands,
            token,
            token_file,
            console,
            json,
            gate,
        }
    }
}

pub(crate) fn run(mut args: Args) -> Exit {
    let stop = interrupt::flag();
    args.token = match args.token_file.or(args.token.as_deref()) {
        Ok(token) => token,
        Err(why) => return print_error(Exit::Usage, &why),
    };
    // Before anything is begun.
    if let Some(Err(error)) = args.token.as_deref().map(check_token) {
        return print_error(error.kind.into(), &error.message);
    }
    let outcome =
        args.gate.prepare(!args.plan).and_then(|gate| Ok((prepared(&args, gate.as_ref(), &stop)?, gate)));
    match outcome {
        Ok((None, _)) => Exit::Done,
        Ok((Some(owned), gate)) => carry_out(&args, owned, gate.as_ref(), &stop),
        Err(error) => print_error(error.kind.into(), &error.message),
    }
}

/// The folder to work in; `None` if there is nothing to be done but what was printed.
fn prepared(
    args: &Args,
    gate: Option<&PreparedGate>,
    stop: &Arc<AtomicBool>,
) -> Result<Option<OwnedFolder>, StudyError> {
    match &args.resume {
        Some(folder) => resumed(args, gate, folder, stop),
        None => begun(args, gate, stop),
    }
}

/// Checks a plan on this machine, on the hosts of its fleet, and in the cluster that ran before, in which the run has made so many
/// volumes already. Nothing is changed.
pub(super) fn checked(
    study: &Study,
    plan: &Plan,
    place: &RunPlace<'_>,
    volumes: usize,
    stop: &Arc<AtomicBool>,
) -> Result<PlanCheck, StudyError> {
    let mut found = check(study, plan, place);
    check_cluster(study, plan, place.study_folder, volumes, &mut found);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| StudyError::failed(format!("cannot start: {e}")))?;
    runtime.block_on(async {
        let mut stopped = watched(Arc::clone(stop));
        let mut shown = progress::on_stderr();
        or_stop(&mut stopped, check_hosts(study, plan, place, &mut found, &mut *shown)).await
    })?;
    Ok(found)
}

fn begun(
    args: &Args,
    gate: Option<&PreparedGate>,
    stop: &Arc<AtomicBool>,
) -> Result<Option<OwnedFolder>, StudyError> {
    let built_in = PathBuf::from("quick.toml");
    let (path, (mut study, text)) = match (&args.study, args.text) {
        (Some(path), _) => (path, read::read(path)?),
        (None, Some(text)) => (&built_in, (read::parse("the built-in study", text)?, text.to_string())),
        (None, None) => {
            return Err(StudyError::usage("name a study file, or a run's folder with --resume"));
        }
    };
    let named =
        |e: StudyError| StudyError { message: format!("study {}: {}", path.display(), e.message), ..e };
    if let Some(kind) = &args.fleet {
        kind.apply(&mut study)?;
    }
    let plan = Plan::of(&study).map_err(named)?;
    gate.map_or(Ok(()), |gate| gate.check_study(&study, &plan))?;
    let absolute =
        std::path::absolute(path).map_err(|e| StudyError::failed(format!("no current folder: {e}")))?;
    let study_folder = absolute.parent().unwrap_or(Path::new("/"));
    let out = args.out.clone().unwrap_or_else(|| default_path(study.name.as_str(), &When::now()));
    let place = RunPlace { study_folder, run: &out, destroy_data: args.destroy_data, made: &[] };
    let found = checked(&study, &plan, &place, 0, stop)?;
    if args.plan {
        plan::print(&study, &plan, &found, &out, &[]);
        found.accept()?;
        return Ok(None);
    }
    found.accept()?;
    may_run_commands(args, &study)?;
    let mut manifest = Manifest::new(study, text, study_folder.to_path_buf())?;
    (manifest.destroy_data, manifest.keep_files) = (args.destroy_data, args.keep);
    manifest.commit = commit_of(&manifest.study_folder);
    manifest.resume = resume_of(args);
    OwnedFolder::create(&out, manifest).map(Some)
}

fn resumed(
    args: &Args,
    gate: Option<&PreparedGate>,
    folder: &Path,
    stop: &Arc<AtomicBool>,
) -> Result<Option<OwnedFolder>, StudyError> {
    let again = |run: &RunFolder| -> Result<PlanCheck, StudyError> {
        let manifest = &run.manifest;
        let place = RunPlace {
            study_folder: &manifest.study_folder,
            run: run.path(),
            destroy_data: args.destroy_data,
            made: &manifest.files,
        };
        if manifest.state == RunState::Finished {
            return Ok(PlanCheck::default());
        }
        checked(&manifest.study, &run.plan, &place, manifest.volumes.len(), stop)
    };
    if args.plan {
        let run = RunFolder::open(folder)?;
        same_study(args, &run)?;
        gate.map_or(Ok(()), |gate| gate.check_study(&run.manifest.study, &run.plan))?;
        let complete: Vec<u32> = run
            .results()?
            .iter()
            .filter(|(_, result)| result.is_some())
            .map(|(step, _)| step.number)
            .collect();
        let found = again(&run)?;
        plan::print(&run.manifest.study, &run.plan, &found, run.path(), &complete);
        found.accept()?;
        return Ok(None);
    }
    let mut owned = OwnedFolder::resume(folder)?;
    same_study(args, &owned.folder)?;
    gate.map_or(Ok(()), |gate| gate.check_study(&owned.folder.manifest.study, &owned.folder.plan))?;
    again(&owned.folder)?.accept()?;
    if owned.folder.manifest.state == RunState::Begun {
        may_run_commands(args, &owned.folder.manifest.study)?;
    }
    if owned.folder.manifest.state == RunState::Begun {
        // A device may have another name today: the warning that its data may be lost is printed each time.
        owned.folder.manifest.destroy_data = args.destroy_data;
        owned.folder.manifest.keep_files |= args.keep;
        owned.folder.manifest.resume = resume_of(args);
        owned.save()?;
    }
    Ok(Some(owned))
}

/// A study may come from any source, so its commands are run only with --run-commands.
fn may_run_commands(args: &Args, study: &Study) -> Result<(), StudyError> {
    let external = study.target.external.iter().flat_map(|external| external.lines()).count();
    let count = external + study.node_commands().lines().count();
    if count == 0 || args.run_commands {
        return Ok(());
    }
    Err(StudyError::usage(format!(
        "this study runs commands under your user ([target] has {count}): read the commands, which --plan prints, and add --run-commands"
    )))
}

/// A study named beside `--resume` must be the one that the run began with.
fn same_study(args: &Args, run: &RunFolder) -> Result<(), StudyError> {
    let Some(path) = &args.study else { return Ok(()) };
    let (study, text) = read::read(path)?;
    // With --fleet the run's study differs from its file.
    if study == run.manifest.study || text == run.manifest.study_text {
        return Ok(());
    }
    Err(StudyError::usage(format!(
        "{} is not the study that the run in {} began with, and one run cannot contain steps of two studies. To continue the \
         run, leave out the study file; to measure this study, start a new run without --resume",
        path.display(),
        run.path().display()
    )))
}

fn carry_out(args: &Args, owned: OwnedFolder, gate: Option<&PreparedGate>, stop: &Arc<AtomicBool>) -> Exit {
    let path = owned.folder.path().to_path_buf();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return print_error(Exit::Failed, &format!("cannot start: {e}")),
    };
    eprint_line!("run folder: {}", path.display());
    // It ends after all that follows: its pages show how the run ended.
    let id = owned.folder.manifest.run_id.clone();
    let page = match args.console.start(cluster_of(&owned.folder), Some((&id, &path))) {
        Ok(page) => page,
        Err(why) => {
            return print_error(Exit::Failed, &format!("{why}\nto go on: {}", resume_line(args, &path)));
        }
    };
    if let Some(page) = &page {
        eprint_line!("page:       http://{}/runs/{id}", page.address);
        eprint_line!("to end the run from its page, sign in first, by {}", page.link());
    }
    let mut shown = progress::on_stderr();
    if let Some(page) = &page {
        shown = Box::new(WithClusterPage { console: page.console.clone(), shown });
    }
    let token = args.token.clone();
    let outcome = runtime.block_on(async {
        let stopped = watched(Arc::clone(stop));
        loadline_study::run::run(owned, shown, token, stopped).await
    });
    match outcome {
        Ok(folder) => finished(args, gate, &folder),
        Err(error) => {
            let exit = Exit::from(error.kind);
            let what = match exit {
                Exit::Interrupted => "stopped".to_string(),
                _ => error.message,
            };
            // Where nothing was begun, nothing is left to go on with.
            match path.join(loadline_study::folder::manifest::FILE).exists() {
                true => {
                    let left = left(&path);
                    print_error(exit, &format!("{what}\n{left}\nto go on: {}", resume_line(args, &path)))
                }
                false => print_error(exit, &what),
            }
        }
    }
}

/// The cluster that ran before and is measured, if there is one: its page is beside that of the run.
fn cluster_of(run: &RunFolder) -> Option<Place> {
    let (api, access) = run.manifest.study.cluster_api(&run.manifest.study_folder)?;
    Some(Place { name: cluster_page::NAME.into(), api, access })
}

/// Turns true when the flag does.
pub(crate) fn watched(stop: Arc<AtomicBool>) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        while !stop.load(Ordering::Relaxed) {
            tokio::time::sleep(TICK).await;
        }
        let _ = sender.send(true);
    });
    receiver
}

/// What a run that was not finished has left, how large it is, and how it is removed.
fn left(path: &Path) -> String {
    let manifest = RunFolder::open(path).map(|run| run.manifest);
    let (made, volumes) = manifest.map(|manifest| (manifest.files, manifest.volumes)).unwrap_or_default();
    let outside: Vec<&Path> = made
        .iter()
        .map(|file| file.path.as_path())
        .filter(|file| !file.starts_with(path) && file.exists())
        .collect();
    let bytes = [path].into_iter().chain(outside.iter().copied()).map(size_of).sum::<u64>();
    let others = match outside.len() {
        0 => String::new(),
        count => format!(" and {count} files that it made elsewhere"),
    };
    let all: Vec<String> = [path].into_iter().chain(outside.iter().copied()).map(quoted).collect();
    let remove = match all.len() {
        0..=8 => format!("rm -r {}", all.join(" ")),
        _ => format!("rm -r {}, and the files that run.json in this folder lists", quoted(path)),
    };
    let in_cluster = match volumes.as_slice() {
        [] => String::new(),
        [first, ..] => format!(
            "\n{} of the run are left in the cluster, as {first}: the run removes them at its end when it is resumed. To remove one \
             now: loadline volume detach {first} --force && loadline volume delete {first} --confirm {first}; run.json names them all",
            counted(volumes.len() as u64, "volume")
        ),
    };
    format!(
        "the unfinished run left {} in {}{others}; to remove these files: {remove}{in_cluster}",
        human(ByteSize(bytes)),
        path.display()
    )
}

/// Bytes that a file, or all that is in a folder, takes on the disk. What cannot be checked is not counted.
fn size_of(path: &Path) -> u64 {
    let Ok(of) = std::fs::symlink_metadata(path) else { return 0 };
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
    let inside: u64 = inside.filter(|_| of.is_dir()).map(|entry| size_of(&entry.path())).sum();
    of.blocks() * 512 + inside
}

/// What a person types to go on.
fn resume_line(args: &Args, path: &Path) -> String {
    resume::command(path, &resume_options(args))
}

/// The options with which this run is continued, each after a space.
fn resume_options(args: &Args) -> String {
    let destroy = if args.destroy_data { " --destroy-data" } else { "" };
    let commands = if args.run_commands { " --run-commands" } else { "" };
    format!("{destroy}{commands}{}", args.gate.typed())
}

/// What the run's folder keeps of these arguments, so that its page shows the same line.
fn resume_of(args: &Args) -> Option<Resume> {
    let current_folder = std::env::current_dir().ok()?;
    Some(Resume { options: resume_options(args), current_folder })
}

fn finished(args: &Args, gate: Option<&PreparedGate>, folder: &RunFolder) -> Exit {
    let outcome = Report::of(folder).and_then(|report| {
        write::files(&report, folder, None)?;
        Ok((report, RunVerdict::of(folder)?))
    });
    let (report, verdict) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return print_error(error.kind.into(), &error.message),
    };
    if args.json {
        if gate.is_none() {
            output::document(&json::document(&report));
        }
    } else {
        report::print(&report);
        print_line!("\nresults: {}", folder.path().display());
        print_line!("page:    {}", quoted(&folder.path().join("report/report.html")));
        print_line!("again:   loadline report {}", quoted(folder.path()));
    }
    // What is only seen of all steps together, such as more than the ceiling.
    let doubts = report.steps.iter().filter(|step| step.is_doubtful()).count();
    let exit = exit_of_run(&RunVerdict { doubts: verdict.doubts.max(doubts), ..verdict });
    let exit = after_cleanup(args, folder, exit);
    gate.map_or(exit, |gate| gate.conclude(folder, exit, args.json))
}

/// The exit code of a run that is done, if files that it made are left.
fn after_cleanup(args: &Args, folder: &RunFolder, exit: Exit) -> Exit {
    let is_left = folder.manifest.state != RunState::Finished;
    if is_left && matches!(exit, Exit::Done | Exit::Findings) {
        let files =
            folder.manifest.files.iter().map(|file| format!("{} ({})", file.path.display(), file.worker));
        let what = format!(
            "every step is complete, and these files, which the run made, could not be removed: {}\nto remove them: {}",
            files.collect::<Vec<_>>().join(", "),
            resume_line(args, folder.path())
        );
        return print_error(Exit::Findings, &what);
    }
    exit
}

/// The exit code of a run that is done.
fn exit_of_run(verdict: &RunVerdict) -> Exit {
    if verdict.bad_blocks > 0 {
        let bad = verdict.bad_blocks;
        let what = format!(
            "the storage failed: {} found a block that does not hold the written data",
            counted(bad, "check")
        );
        return print_error(Exit::Failed, &what);
    }
    if !verdict.missed.is_empty() {
        return Exit::Missed;
    }
    if verdict.doubts > 0 { Exit::Findings } else { Exit::Done }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_exit_code_that_applies_wins() {
        let clean = RunVerdict { complete: 1, planned: 1, ..RunVerdict::default() };
        assert_eq!(exit_of_run(&clean), Exit::Done);
        let doubtful = RunVerdict { doubts: 2, ..clean };
        assert_eq!(exit_of_run(&doubtful), Exit::Findings);
        let missed = RunVerdict { missed: vec!["p99".into()], ..doubtful };
        assert_eq!(exit_of_run(&missed), Exit::Missed);
        assert_eq!(exit_of_run(&RunVerdict { bad_blocks: 1, ..missed }), Exit::Failed);
    }
}
