//! A volume of a cluster as the disk of a machine: found, attached if it is not, and not used by another client that may write.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadline_san_node::node::manage::{Sample, StatusView, VolumeSample, VolumeView};

use super::hold::Holder;
use super::relay::MayUse;
use crate::cluster::client::{Api, Failed, escaped};
use crate::output::eprint_line;
use crate::output::text::counted;
use crate::process::exit::Exit;

/// The protocol by which machines reach volumes: any node leads to the owner, so that the loss of a node ends nothing.
const PROTOCOL: &str = "nbd";
/// How long it may take to learn how many clients a volume has: nodes report each second.
const COUNT_LIMIT: Duration = Duration::from_secs(5);
/// How long after the loss of its connection a client may come back: it may notice the loss after 10 s, wait for 6 s so that nothing old is
/// carried out (docs/how-to/attach-a-client.md), and find some nodes dead.
const COMES_BACK: Duration = Duration::from_secs(30);

/// A volume that a machine uses.
pub(super) struct Attached {
    /// Where NBD clients connect, the owner's address first.
    pub(super) nodes: Vec<SocketAddr>,
    holder: Option<Holder>,
}

/// Finds a volume, and attaches it if it is not attached, at this node. For `writable`, a volume is refused that other clients use, and one
/// whose client may come back is waited for, until `stop` is set.
pub(super) fn attach(
    api: &Api,
    name: &str,
    node: Option<&str>,
    writable: bool,
    stop: &AtomicBool,
) -> Result<Attached, Failed> {
    let found: VolumeView = api.get(&format!("/v1/volumes/{}", escaped(name)))?;
    if found.requires_tls {
        return Err(usage(format!(
            "volume {name} admits clients over the network by TLS only, which machines do not speak: on a node's own host, give \
             'nbd+unix:///{name}?socket=FOLDER/nbd.sock' with the folder of the node"
        )));
    }
    let (mut holder, mut owner) = (None, found.owner.clone());
    if let Some(at) = &found.attached {
        if let Some(node) = node.filter(|node| *node != at) {
            return Err(usage(format!(
                "volume {name} is attached at {at}, and stays there: leave --node {node} out, or run 'loadline volume attach {name} \
                 --node {node}' first"
            )));
        }
        if writable {
            refuse_other_machine(name, &found, None)?;
            wait_until_unused(api, name, stop)?;
        }
    } else {
        let (held, at) = Holder::attach(api, name, node)?;
        (holder, owner) = (Some(held), Some(at.node));
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
    Ok(Attached { nodes: nodes.into_iter().map(|(_, address)| address).collect(), holder })
}

impl Attached {
    /// Refuses the volume if another client has come while the machine has booted. The machine is connected by now: of two that come at the
    /// same time, the later one finds the earlier one.
    pub(super) fn refuse_second(&self, api: &Api, name: &str) -> Result<(), Failed> {
        let found: VolumeView = api.get(&format!("/v1/volumes/{}", escaped(name)))?;
        refuse_other_machine(name, &found, self.holder.as_ref())?;
        let limit = Instant::now() + 2 * COMES_BACK;
        loop {
            // What is reported first may be older.
            let used = use_of(api, name, 2).map_err(|why| not_known(name, &why))?;
            if used.clients > 1 {
                return Err(in_use(name, used.clients - 1));
            }
            // A client that was lost while the machine booted may come back. The machine has not begun to use the volume.
            match used.lost_client_ms.map(Duration::from_millis) {
                Some(lost) if lost < COMES_BACK && Instant::now() < limit => {}
                Some(lost) if lost < COMES_BACK => return Err(unsteady(name)),
                _ => return Ok(()),
            }
        }
    }

    /// What says whether the machine may connect again after a loss. Of a volume that was attached before, that is not to be told: whoever
    /// attaches it anew meanwhile must end the machine first.
    pub(super) fn may_use(&self) -> Arc<MayUse> {
        self.holder.as_ref().map_or_else(|| Arc::new(|| Some(true)) as Arc<MayUse>, Holder::is_in_force)
    }

    /// Prints that the volume is attached for the machine only.
    pub(super) fn announce(&self, name: &str) {
        if self.holder.is_some() {
            eprint_line!("volume {name} is attached for this machine, and detached when it ends");
        }
    }

    /// Has the volume detached if it was attached for the machine, which has ended. `false`: it is still attached, and the reason was
    /// printed.
    pub(super) fn finish(&mut self) -> bool {
        self.holder.as_mut().is_none_or(Holder::finish)
    }
}

fn usage(why: String) -> Failed {
    Failed::new(Exit::Usage, why, false)
}

fn in_use(name: &str, clients: usize) -> Failed {
    let connections = counted(clients as u64, "connection");
    usage(format!(
        "volume {name} is in use: it has {connections} of other clients, and a second one that writes would destroy a file system. \
         Stop those clients first, or look with --read-only"
    ))
}

fn unsteady(name: &str) -> Failed {
    usage(format!(
        "volume {name} is in use: a client comes and goes, or its owner changes all the time. Stop that client first, or look with \
         --read-only"
    ))
}

fn not_known(name: &str, why: &str) -> Failed {
    let why = format!(
        "volume {name} is attached, and whether other clients use it is not known: {why}. Try again, or look with --read-only"
    );
    Failed::new(Exit::Failed, why, false)
}

/// Refuses a volume that is attached for another machine with a shell: that may boot, and have no connection yet.
fn refuse_other_machine(name: &str, found: &VolumeView, own: Option<&Holder>) -> Result<(), Failed> {
    match &found.attach_key {
        Some(key) if own.is_none_or(|own| own.key() != key) => Err(usage(format!(
            "volume {name} is in use: it is attached for the machine of another 'loadline guest shell'. End that one first; if there is none any \
             more, run 'loadline volume detach {name}'; or look with --read-only"
        ))),
        _ => Ok(()),
    }
}

/// A mounted file system belongs to one machine: a second writer destroys it. A volume that has clients is refused; one whose last client
/// may come back is waited for.
fn wait_until_unused(api: &Api, name: &str, stop: &AtomicBool) -> Result<(), Failed> {
    let limit = Instant::now() + 2 * COMES_BACK;
    let mut is_announced = false;
    while !stop.load(Ordering::Relaxed) {
        let used = use_of(api, name, 1).map_err(|why| not_known(name, &why))?;
        if used.clients > 0 {
            return Err(in_use(name, used.clients));
        }
        let lost = Duration::from_millis(used.lost_client_ms.unwrap_or(u64::MAX));
        if lost >= COMES_BACK {
            return Ok(());
        }
        if Instant::now() > limit {
            return Err(unsteady(name));
        }
        if !is_announced {
            is_announced = true;
            eprint_line!(
                "volume {name} had a client, or another owner, {:.0} s ago, and the client may connect again: waiting until that is {:.0} s ago",
                lost.as_secs_f64(),
                COMES_BACK.as_secs_f64()
            );
        }
    }
    Err(Failed::new(
        Exit::Interrupted,
        format!("volume {name} was not used: the wait for it was interrupted"),
        false,
    ))
}

/// What the owner of a volume reports of its clients in its sample of this number, from 1. The error is for people.
fn use_of(api: &Api, name: &str, nth: usize) -> Result<VolumeSample, String> {
    let limit = Instant::now() + COUNT_LIMIT;
    let status: StatusView = api.get("/v1/status").map_err(|why| why.message().to_owned())?;
    let owner = status.volumes.iter().find(|volume| volume.name == name).and_then(|of| of.owner.as_ref());
    let owner = status.nodes.iter().find(|node| Some(&node.name) == owner);
    let address = owner.and_then(|owner| owner.api.parse().ok()).ok_or("it has no owner now")?;
    let mut events = api.of_other(address).follow("/v1/stream", COUNT_LIMIT)?;
    let mut samples = 0;
    while let Some(event) = events.receive()? {
        if event.name == "sample" {
            let sample: Sample = serde_json::from_str(&event.data).map_err(|why| why.to_string())?;
            samples += 1;
            let of = sample.volumes.into_iter().find(|volume| volume.name == name);
            match of {
                Some(of) if samples >= nth => return Ok(of),
                _ if Instant::now() > limit => break,
                _ => {}
            }
        }
    }
    Err("its owner does not report it".into())
}
