//! `loadline san support`: one archive for people who help.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use loadline_san_node::node::manage::{HostView, NodeView, StatusView, SupportView};
use loadline_study::when::When;
use serde::Serialize;

use super::status;
use crate::cluster::client::{Api, print_json};
use crate::output::archive::Archive;
use crate::output::{captured, eprint_line, print_error, print_line};
use crate::process::exit::Exit;
use crate::process::interrupt;

/// How long one answer of a node is waited for.
const ANSWERS: Duration = Duration::from_secs(20);
/// Nodes that are asked at once.
const AT_ONCE: usize = 8;
/// Bytes of all files in the archive, before they are compressed.
const MOST: u64 = 512 << 20;
/// The journal of this host's nodes: so many lines and bytes of its end, and how long it is waited for.
const JOURNAL_LINES: &str = "20000";
const JOURNAL_BYTES: usize = 8 << 20;
const JOURNAL: Duration = Duration::from_secs(20);
/// The folder in the archive.
const FOLDER: &str = "loadline-support";

const README: &str = "\
What is in this archive of 'loadline san support':

status.txt, status.json   nodes, devices and volumes, as the node saw them that was asked
versions.txt              the version of this command and of each node
missing.txt               what is not in the archive, and why; empty if all is
host.json                 the host on which the command ran
journal.txt               what nodes that systemd runs on this host have logged, also before their last start
nodes/NAME/support.json   the node's version, settings and host
nodes/NAME/log.txt        the last lines that the node's process has logged
nodes/NAME/local.json     the volumes, copies and devices of the node, as itself sees them
nodes/NAME/metrics.txt    its counters, as Prometheus reads them

The archive names hosts, addresses, volumes and clients. It has no data of volumes, and no key, token or password.
";

/// Collect what people who help need into one archive: versions, settings, status, logs, metrics and the last events of each
/// node.
///
/// The archive has no data of volumes, and no keys, tokens and passwords. It names hosts, addresses, volumes and clients. An access with
/// the role viewer is enough. The logs of nodes are the last 2000 lines since each node's process began; of nodes that systemd runs on
/// this host (loadline-node@NAME), the journal is in it too, and so are the logs of a node that does not answer. The archive is a new
/// file that only you can read.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline san support\n  \
    loadline san support --output case-17.tar.gz --api /var/lib/loadline/node-1/api.sock\n  \
    loadline san support --node node-2 node-3\n\n\
    Exit codes: 0 all is in the archive; 3 the archive is written, but something is missing, such as a node that does not answer: \
    missing.txt in it names each; 1 the archive cannot be written; 2 usage.")]
pub(super) struct Support {
    /// The file to write; it must not exist. [default: loadline-support-TIME.tar.gz in the current folder]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Ask only these nodes.
    #[arg(long = "node", value_name = "NAME", num_args = 1..)]
    nodes: Vec<String>,
    #[command(flatten)]
    api: Api,
}

/// What was collected, as JSON.
#[derive(Serialize)]
struct Collected<'a> {
    file: &'a Path,
    nodes: Vec<&'a str>,
    missing: &'a [String],
}

/// The archive while nodes are asked.
struct Collection {
    archive: Archive,
    /// What is not in it, and why.
    missing: Vec<String>,
    versions: String,
    /// The first failure of writing.
    failed: Option<std::io::Error>,
}

impl Collection {
    fn add(&mut self, name: &str, content: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        match self.archive.add(name, content) {
            Ok(true) => {}
            Ok(false) => self.miss(name, "the archive has as much as it may have"),
            Err(why) => self.failed = Some(why),
        }
    }

    fn add_json<T: Serialize>(&mut self, name: &str, content: &T) {
        let mut text = serde_json::to_string_pretty(content).expect("an answer can be written as JSON");
        text.push('\n');
        self.add(name, text.as_bytes());
    }

    fn miss(&mut self, what: &str, why: &str) {
        self.missing.push(format!("{what}: {why}").replace(char::is_control, " "));
    }
}

pub(super) fn support(args: &Support) -> Exit {
    let stop = interrupt::flag();
    let path = args.output.clone().unwrap_or_else(|| {
        let time = When::now();
        PathBuf::from(format!("loadline-support-{}.tar.gz", time.compact()))
    });
    let api = args.api.clone().within(ANSWERS);
    eprint_line!("asking {} for the status of the cluster", api.api);
    let status: Result<StatusView, String> = api.get("/v1/status").map_err(|why| why.message().to_owned());
    if let Ok(status) = &status {
        let known: Vec<&str> = status.nodes.iter().map(|node| node.name.as_str()).collect();
        if let Some(unknown) = args.nodes.iter().find(|name| !known.contains(&name.as_str())) {
            let known = known.join(", ");
            return print_error(
                Exit::Usage,
                &format!("--node: there is no node {unknown}; there are: {known}"),
            );
        }
    }
    let archive = match Archive::create(&path, FOLDER, MOST) {
        Ok(archive) => archive,
        Err(why) => {
            let advice = match why.kind() {
                std::io::ErrorKind::AlreadyExists => ": choose another name",
                _ => "",
            };
            return print_error(Exit::Usage, &format!("{}: {why}{advice}", path.display()));
        }
    };
    let versions = format!("this command: {}\n", env!("CARGO_PKG_VERSION"));
    let mut all = Collection { archive, missing: Vec::new(), versions, failed: None };
    all.add("README.txt", README.as_bytes());
    all.add_json("host.json", &HostView::here());
    let nodes = match &status {
        Ok(status) => {
            all.add("status.txt", captured(|| status::print(status)).as_bytes());
            all.add_json("status.json", status);
            let wanted = |node: &&NodeView| args.nodes.is_empty() || args.nodes.contains(&node.name);
            status.nodes.iter().filter(wanted).collect()
        }
        Err(why) => {
            eprint_line!("{why}");
            all.miss("the status and all nodes", why);
            Vec::new()
        }
    };
    let all = ask(&api, &nodes, all, &stop);
    let (code, mut all) = finish_with_journal(all);
    let names = nodes.iter().map(|node| node.name.as_str()).collect();
    let missing = std::mem::take(&mut all.missing);
    let ended = match all.failed.take() {
        None => all.archive.finish(),
        Some(why) => Err(why),
    };
    // A part of an archive is of no use.
    if stop.load(Ordering::Relaxed) {
        let _ = std::fs::remove_file(&path);
        return Exit::Interrupted;
    }
    if let Err(why) = ended {
        let _ = std::fs::remove_file(&path);
        return print_error(Exit::Failed, &format!("{} cannot be written: {why}", path.display()));
    }
    if api.json {
        print_json(&Collected { file: &path, nodes: names, missing: &missing });
    } else {
        print_line!(
            "written: {}. It names hosts, addresses, volumes and clients: look at it before you pass it on",
            path.display()
        );
        for what in &missing {
            print_line!("missing: {what}");
        }
    }
    code
}

/// Asks nodes for what they have, several at once.
fn ask(api: &Api, nodes: &[&NodeView], all: Collection, stop: &AtomicBool) -> Collection {
    let (next, done, all) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(all));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(nodes.len()) {
            scope.spawn(|| {
                while let Some(node) = nodes.get(next.fetch_add(1, Ordering::Relaxed))
                    && !stop.load(Ordering::Relaxed)
                {
                    let answers = Answers::of(api, node);
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    let number = done.fetch_add(1, Ordering::Relaxed) + 1;
                    let what =
                        answers.failed().map_or("collected".to_owned(), |why| format!("missing: {why}"));
                    eprint_line!("{number} of {}: node {}: {what}", nodes.len(), node.name);
                    answers.add(&node.name, &mut all);
                }
            });
        }
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What a node has answered.
struct Answers {
    support: Result<SupportView, String>,
    local: Result<serde_json::Value, String>,
    metrics: Result<String, String>,
}

impl Answers {
    fn of(api: &Api, node: &NodeView) -> Answers {
        let nothing =
            |why: String| Answers { support: Err(why.clone()), local: Err(why.clone()), metrics: Err(why) };
        let Ok(address) = node.api.parse() else {
            return nothing(format!("{} is no address of an API", node.api));
        };
        let api = api.of_other(address);
        let support = api.get("/v1/support").map_err(|why| why.message().to_owned());
        // A node that does not answer is not asked again. One of an older version answers, and has the rest.
        if let (Err(why), false) = (&support, node.alive) {
            return nothing(why.clone());
        }
        Answers {
            support,
            local: api.get("/v1/local").map_err(|why| why.message().to_owned()),
            metrics: api.text("/metrics"),
        }
    }

    fn failed(&self) -> Option<&str> {
        let all = [self.support.as_ref().err(), self.local.as_ref().err(), self.metrics.as_ref().err()];
        all.into_iter().flatten().next().map(String::as_str)
    }

    fn add(mut self, name: &str, all: &mut Collection) {
        if let (Err(why), Err(_), Err(_)) = (&self.support, &self.local, &self.metrics) {
            all.miss(&format!("node {name}"), why);
            return;
        }
        match &mut self.support {
            Ok(support) => {
                let log: String =
                    std::mem::take(&mut support.log).iter().map(|line| format!("{line}\n")).collect();
                let _ = writeln!(all.versions, "node {name}: {}", support.version);
                all.add_json(&format!("nodes/{name}/support.json"), support);
                all.add(&format!("nodes/{name}/log.txt"), log.as_bytes());
            }
            Err(why) => all.miss(&format!("node {name}: its settings, host and log"), why),
        }
        match &self.local {
            Ok(local) => all.add_json(&format!("nodes/{name}/local.json"), local),
            Err(why) => all.miss(&format!("node {name}: local.json"), why),
        }
        match &self.metrics {
            Ok(metrics) => all.add(&format!("nodes/{name}/metrics.txt"), metrics.as_bytes()),
            Err(why) => all.miss(&format!("node {name}: metrics.txt"), why),
        }
    }
}

/// Adds the journal, and what is known when all else is collected. Returns how the command ends.
fn finish_with_journal(mut all: Collection) -> (Exit, Collection) {
    match journal() {
        Ok(Some(text)) => all.add("journal.txt", text.as_bytes()),
        Ok(None) => {}
        Err(why) => all.miss("journal.txt", &why),
    }
    let versions = std::mem::take(&mut all.versions);
    all.add("versions.txt", versions.as_bytes());
    let mut missing = all.missing.join("\n");
    if !missing.is_empty() {
        missing.push('\n');
    }
    all.add("missing.txt", missing.as_bytes());
    (if all.missing.is_empty() { Exit::Done } else { Exit::Findings }, all)
}

/// What nodes that systemd runs on this host have logged. `None` if there are none.
fn journal() -> Result<Option<String>, String> {
    if !Path::new("/run/systemd/system").is_dir() {
        return Ok(None);
    }
    let words = ["--unit=loadline-node@*.service", "--no-pager", "--quiet", "--output=short-iso-precise"];
    let started = Command::new("journalctl")
        .args(words)
        .args(["--lines", JOURNAL_LINES])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = started.map_err(|why| format!("journalctl: {why}"))?;
    let pipe = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let (mut text, mut part) = (Vec::new(), [0; 64 << 10]);
        let mut pipe = pipe?;
        // Read to its end, so that the program is not stopped by a full pipe; the end of the text is what counts.
        while let Ok(bytes @ 1..) = pipe.read(&mut part) {
            text.extend_from_slice(&part[..bytes]);
            if text.len() > 2 * JOURNAL_BYTES {
                text.drain(..text.len() - JOURNAL_BYTES);
            }
        }
        text.drain(..text.len().saturating_sub(JOURNAL_BYTES));
        Some(String::from_utf8_lossy(&text).into_owned())
    });
    let begun = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < JOURNAL => std::thread::sleep(Duration::from_millis(20)),
            waited => {
                let _ = child.kill();
                let _ = child.wait();
                let late = format!("journalctl did not end within {} s", JOURNAL.as_secs());
                return Err(waited.err().map_or(late, |why| why.to_string()));
            }
        }
    };
    let text = reader.join().ok().flatten().unwrap_or_default();
    match (status.success(), text.is_empty()) {
        (false, true) => Err(format!("journalctl ended with {status}")),
        (_, true) => Ok(None),
        (_, false) => Ok(Some(text)),
    }
}
