//! A volume of a cluster as the disk of a machine: found, attached if it is not, and detached afterwards by a process that outlives this one.

use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use loadline_san_node::api::{Attach, Detach};
use loadline_san_node::node::manage::{Sample, StatusView, Use, VolumeView};

use crate::cluster::client::{Api, Failed, escaped};
use crate::output::{eprint_line, print_error};
use crate::process::exit::Exit;

/// The protocol by which machines reach volumes: any node leads to the owner, so that the loss of a node ends nothing.
const PROTOCOL: &str = "nbd";
/// How long it may take to learn how many clients a volume has: nodes report each second.
const COUNT_LIMIT: Duration = Duration::from_secs(5);
/// How long the volume may have connections after its machine has ended: a node notices the end of a host after 5 s.
const DETACH_LIMIT: Duration = Duration::from_secs(60);
const DETACH_EVERY: Duration = Duration::from_millis(200);
/// How long a node may take to answer an order to detach.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A volume that a machine uses.
pub(super) struct Attached {
    /// Where NBD clients connect, the owner's address first.
    pub(super) nodes: Vec<SocketAddr>,
    detaches: Option<(Child, ChildStdin)>,
}

/// Finds a volume, and attaches it if it is not attached, at this node. A volume that other clients use is refused for `writable`.
pub(super) fn attach(api: &Api, name: &str, node: Option<&str>, writable: bool) -> Result<Attached, Failed> {
    let usage = |why: String| Failed::new(Exit::Usage, why, false);
    let found: VolumeView = api.get(&format!("/v1/volumes/{}", escaped(name)))?;
    if found.requires_tls {
        return Err(usage(format!(
            "volume {name} admits clients over the network by TLS only, which machines do not speak: on a node's own host, give \
             'nbd+unix:///{name}?socket=FOLDER/nbd.sock' with the folder of the node"
        )));
    }
    let mut detaches = None;
    let mut owner = found.owner.clone();
    if let Some(at) = &found.attached {
        if let Some(node) = node.filter(|node| *node != at) {
            return Err(usage(format!(
                "volume {name} is attached at {at}, and stays there: leave --node {node} out, or run 'loadline volume attach {name} \
                 --node {node}' first"
            )));
        }
        if writable {
            refuse_in_use(api, name, &found)?;
        }
    } else {
        // The process is there first: whenever this one is killed, the volume is detached.
        detaches = Some(start_detaching(api, name)?);
        let order = Attach { node: node.map(str::to_owned), when_started: false, key: None };
        let done: Use = api.post(&format!("/v1/volumes/{}/attach", escaped(name)), order)?;
        owner = Some(done.node);
    }
    let status: StatusView = api.get("/v1/status")?;
    let mut nodes: Vec<_> = status
        .nodes
        .iter()
        .filter_map(|node| Some((node, node.endpoints.get(PROTOCOL)?.parse::<SocketAddr>().ok()?)))
        .collect();
    nodes.sort_by_key(|(node, _)| (Some(&node.name) != owner.as_ref(), !node.alive));
    if nodes.is_empty() {
        return Err(usage(format!(
            "no node of the cluster listens for NBD, by which a machine reaches volume {name}"
        )));
    }
    Ok(Attached { nodes: nodes.into_iter().map(|(_, address)| address).collect(), detaches })
}

impl Attached {
    /// Refuses the volume if another client has come since it was attached: a machine takes its time to boot.
    pub(super) fn refuse_in_use(&self, api: &Api, name: &str) -> Result<(), Failed> {
        let found: VolumeView = api.get(&format!("/v1/volumes/{}", escaped(name)))?;
        refuse_in_use(api, name, &found)
    }

    /// Has the volume detached that this process attached, once its machine has ended. `false`: it is still attached, and the reason was
    /// printed.
    pub(super) fn finish(&mut self) -> bool {
        let Some((mut child, input)) = self.detaches.take() else { return true };
        drop(input);
        // It has limits of its own.
        child.wait().is_ok_and(|status| status.success())
    }
}

/// A mounted file system belongs to one machine: a second writer destroys it.
fn refuse_in_use(api: &Api, name: &str, found: &VolumeView) -> Result<(), Failed> {
    let clients = clients_of(api, name, found).map_err(|why| {
        let why = format!(
            "volume {name} is attached, and whether other clients use it is not known: {why}. Try again, or look with --read-only"
        );
        Failed::new(Exit::Failed, why, false)
    })?;
    match clients {
        0 => Ok(()),
        _ => {
            let why = format!(
                "volume {name} is in use: it has {clients} connections of other clients, and a second one that writes would destroy a file \
                 system. Stop those clients first, or look with --read-only"
            );
            Err(Failed::new(Exit::Usage, why, false))
        }
    }
}

/// How many connections of clients a volume has, as its owner reports. The error is for people.
fn clients_of(api: &Api, name: &str, found: &VolumeView) -> Result<usize, String> {
    let limit = Instant::now() + COUNT_LIMIT;
    let status: StatusView = api.get("/v1/status").map_err(|why| why.message().to_owned())?;
    let owner = status.nodes.iter().find(|node| Some(&node.name) == found.owner.as_ref());
    let address = owner.and_then(|owner| owner.api.parse().ok()).ok_or("it has no owner now")?;
    let mut events = api.of_other(address).follow("/v1/stream", COUNT_LIMIT)?;
    while let Some(event) = events.receive()? {
        if event.name == "sample" {
            let sample: Sample = serde_json::from_str(&event.data).map_err(|why| why.to_string())?;
            let of = sample.volumes.iter().find(|volume| volume.name == name);
            match of {
                Some(of) => return Ok(of.clients),
                None if Instant::now() > limit => break,
                None => {}
            }
        }
    }
    Err("its owner does not report it".into())
}

/// Starts the process that detaches a volume when its input ends: that of this process does, however this process ends.
fn start_detaching(api: &Api, name: &str) -> Result<(Child, ChildStdin), Failed> {
    let failed = |why: std::io::Error| {
        Failed::new(
            Exit::Failed,
            format!("the process that detaches volume {name} cannot be started: {why}"),
            false,
        )
    };
    let mut command = Command::new("/proc/self/exe");
    command.args(["guest", "detach-afterwards", name]).args(api.arguments());
    // In a group of its own, so that Ctrl-C does not reach it.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let input = child.stdin.take().ok_or_else(|| failed(std::io::ErrorKind::BrokenPipe.into()))?;
    Ok((child, input))
}

/// Detach a volume when standard input ends. `loadline guest shell` starts this command; it is of no other use.
#[derive(clap::Args)]
pub(super) struct DetachArgs {
    /// The name of the volume.
    name: String,
    #[command(flatten)]
    api: Api,
}

/// Waits for the end of the input, and detaches the volume as soon as no client uses it.
pub(super) fn detach(args: DetachArgs) -> Exit {
    let DetachArgs { name, api } = args;
    let api = api.within(ANSWER_LIMIT);
    // Now, while its nodes answer: the one that is named may be dead by then.
    let mut apis = vec![api.clone()];
    if let Ok(status) = api.get::<StatusView>("/v1/status") {
        let others = status.nodes.iter().filter_map(|node| node.api.parse().ok());
        apis.extend(others.map(|address| api.of_other(address).within(ANSWER_LIMIT)));
    }
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let limit = Instant::now() + DETACH_LIMIT;
    loop {
        let mut why = String::new();
        for api in &apis {
            let path = format!("/v1/volumes/{}/detach", escaped(&name));
            match api.post::<_, ()>(&path, Detach { force: false, key: None }) {
                Ok(()) => return Exit::Done,
                Err(failed) => why = failed.message().to_owned(),
            }
        }
        if Instant::now() > limit {
            return print_error(
                Exit::Failed,
                &format!(
                    "volume {name} is still attached, and was not before: {why}. Detach it with 'loadline volume detach {name}'"
                ),
            );
        }
        thread::sleep(DETACH_EVERY);
    }
}

/// Prints that a volume is attached for the machine only.
pub(super) fn announce(name: &str, attached: &Attached) {
    if attached.detaches.is_some() {
        eprint_line!("volume {name} is attached for this machine, and detached when it ends");
    }
}
