//! A volume that is attached for a machine only: by a process that outlives the command that keeps the machine.
//!
//! That process orders the attach itself, with a key that no other attachment has, and orders the detach with the same key when its input
//! ends. So the command may be killed at any moment: the attach is never carried out without the detach after it, and the detach ends no
//! attachment that was ordered meanwhile.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loadline_san_node::api::{Attach, Detach};
use loadline_san_node::node::manage::{ClientsView, StatusView, Use, VolumeView};
use serde::{Deserialize, Serialize};

use super::relay::MayUse;
use crate::cluster::client::{Api, Failed, escaped};
use crate::output::{eprint_line, print_error};
use crate::process::exit::Exit;

/// How long the volume may have connections after its machine has ended: a node notices the end of a host after 5 s.
const DETACH_LIMIT: Duration = Duration::from_secs(60);
const DETACH_EVERY: Duration = Duration::from_millis(200);
/// How long a node may take to answer an order to detach.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long a node may take to say how a volume is attached.
const ASK_LIMIT: Duration = Duration::from_secs(3);
/// How long an attach can still be carried out whose answer is not known: longer than a node waits until the volume is served.
const LATE: Duration = Duration::from_secs(30);

/// What the process reports, as one line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Attached(Use),
    Failed { is_usage: bool, message: String },
}

/// The process that holds an attachment, and the key of that.
pub(super) struct Holder {
    child: Child,
    input: Option<ChildStdin>,
    api: Api,
    name: String,
    key: String,
}

impl Holder {
    /// Attaches a volume that is not attached, at this node. Returns where it is.
    pub(super) fn attach(api: &Api, name: &str, node: Option<&str>) -> Result<(Holder, Use), Failed> {
        let failed = |why: io::Error| {
            let why =
                format!("the process that attaches volume {name} for the machine cannot be started: {why}");
            Failed::new(Exit::Failed, why, false)
        };
        let mut random = [0; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .map_err(failed)?;
        let key = format!("{:032x}", u128::from_ne_bytes(random));
        let mut command = Command::new("/proc/self/exe");
        command.args(["guest", "hold-attachment", name, "--key", &key]).args(api.arguments());
        if let Some(node) = node {
            command.args(["--node", node]);
        }
        // In a group of its own, so that Ctrl-C does not reach it.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let input = child.stdin.take();
        let mut line = String::new();
        // The process waits for each answer of a node for a limited time.
        let read = child.stdout.take().map(|output| BufReader::new(output).read_line(&mut line));
        let report = read.transpose().map_err(failed)?.and_then(|_| serde_json::from_str(&line).ok());
        match report {
            Some(Report::Attached(at)) => {
                Ok((Holder { child, input, api: api.clone(), name: name.into(), key }, at))
            }
            Some(Report::Failed { is_usage, message }) => {
                let exit = if is_usage { Exit::Usage } else { Exit::Failed };
                Err(Failed::new(exit, message, false))
            }
            None => {
                let why = format!(
                    "the process that attaches volume {name} for the machine has ended without a report"
                );
                let _ = ends_attachment(&apis_of(api), name, &key);
                Err(Failed::new(Exit::Failed, why, false))
            }
        }
    }

    /// The key of the attachment.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// What says whether the volume still has this attachment: of the first node that answers. Once it has another one, that is printed.
    pub(super) fn is_in_force(&self) -> Arc<MayUse> {
        let (apis, name, key) = (apis_within(&self.api, ASK_LIMIT), self.name.clone(), self.key.clone());
        let told = AtomicBool::new(false);
        Arc::new(move || {
            let path = format!("/v1/volumes/{}", escaped(&name));
            let found = apis.iter().find_map(|api| api.get::<VolumeView>(&path).ok())?;
            let is_ours = found.attach_key.as_ref() == Some(&key);
            if !is_ours && !told.swap(true, Ordering::Relaxed) {
                eprint_line!(
                    "loadline: another command has attached or detached volume {name}. This machine does not use the volume any more, and \
                     its unfinished writes are lost"
                );
            }
            Some(is_ours)
        })
    }

    /// Has the volume detached, once its machine has ended. `false`: it is still attached, and the reason was printed.
    pub(super) fn finish(&mut self) -> bool {
        drop(self.input.take());
        // It has limits of its own.
        match self.child.wait() {
            Ok(status) if status.code().is_some() => status.success(),
            // It was killed.
            _ => detached(&apis_of(&self.api), &self.name, &self.key) == Exit::Done,
        }
    }
}

/// Attach a volume, and detach it when standard input ends. `loadline guest shell` starts this command; it is of no other use.
#[derive(clap::Args)]
pub(super) struct HoldArgs {
    /// The name of the volume.
    name: String,
    /// The key of the attachment.
    #[arg(long)]
    key: String,
    /// The node at which it is attached.
    #[arg(long)]
    node: Option<String>,
    #[command(flatten)]
    api: Api,
}

/// Attaches the volume, reports that, waits for the end of the input, and detaches the volume as soon as no client uses it.
pub(super) fn run(args: HoldArgs) -> Exit {
    let HoldArgs { name, key, node, api } = args;
    let order = Attach { node, when_started: false, key: Some(key.clone()) };
    match api.post::<_, Use>(&format!("/v1/volumes/{}/attach", escaped(&name)), order) {
        Ok(at) => report(&Report::Attached(at)),
        Err(why) => {
            let is_usage = why.exit() == Exit::Usage;
            report(&Report::Failed { is_usage, message: why.message().into() });
            // A node that refuses has done nothing. Otherwise the order may have been carried out, or may still be.
            if !is_usage {
                let apis = apis_of(&api);
                let limit = Instant::now() + LATE;
                while Instant::now() < limit {
                    let _ = ends_attachment(&apis, &name, &key);
                    thread::sleep(DETACH_EVERY);
                }
            }
            return Exit::Failed;
        }
    }
    // Now, while its nodes answer: the one that is named may be dead by then.
    let apis = apis_of(&api);
    let _ = io::stdin().read_to_end(&mut Vec::new());
    detached(&apis, &name, &key)
}

/// The command that reads it may be gone.
fn report(report: &Report) {
    let line = serde_json::to_string(report).expect("a report is JSON");
    let mut out = io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The API of every node of the cluster, the one that is named first, with this limit for an answer.
fn apis_within(api: &Api, limit: Duration) -> Vec<Api> {
    let api = api.clone().within(limit);
    let mut apis = vec![api.clone()];
    if let Ok(status) = api.get::<StatusView>("/v1/status") {
        let others = status.nodes.iter().filter_map(|node| node.api.parse().ok());
        apis.extend(others.map(|address| api.of_other(address).within(limit)));
    }
    apis
}

fn apis_of(api: &Api) -> Vec<Api> {
    apis_within(api, ANSWER_LIMIT)
}

/// Orders the end of the attachment with this key, of one node after the other. `Err`: it is not ended, and why.
fn ends_attachment(apis: &[Api], name: &str, key: &str) -> Result<(), String> {
    let path = format!("/v1/volumes/{}/detach", escaped(name));
    let mut why = String::new();
    for api in apis {
        match api.post::<_, ClientsView>(&path, Detach { force: false, key: Some(key.into()) }) {
            Ok(_) => return Ok(()),
            Err(failed) => why = failed.message().to_owned(),
        }
    }
    Err(why)
}

/// Ends the attachment with this key as soon as no client uses it.
fn detached(apis: &[Api], name: &str, key: &str) -> Exit {
    let limit = Instant::now() + DETACH_LIMIT;
    loop {
        let Err(why) = ends_attachment(apis, name, key) else { return Exit::Done };
        if Instant::now() > limit {
            let why = format!(
                "volume {name} is still attached, and was not before: {why}. Detach it with 'loadline volume detach {name}'"
            );
            return print_error(Exit::Failed, &why);
        }
        thread::sleep(DETACH_EVERY);
    }
}
