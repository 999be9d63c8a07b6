//! An action is carried out: the API of a node does it, by the access that the console has.
//!
//! Everything here blocks, within limits of time and size.

use std::path::PathBuf;
use std::time::Duration;

use loadline_api_client::{ApiAddress, escaped};
use loadline_base::units::ByteSize;
use loadline_san_node::api::{Attach, Detach, Fault};
use loadline_san_node::node::manage::{Drain, ErrorKind, Maintain, Move, Resize, StatusView, Use, WaysView};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::action::{Action, MaintainNode};
use crate::follower::shown;
use crate::following::{Place, status};
use crate::preview;

/// Longer than anything that a node waits for.
const LIMIT: Duration = Duration::from_secs(90);
/// Bytes of an answer at most.
const LONGEST: u64 = 1 << 20;
/// How often a node may name another one for a request.
const MOST_NODES: usize = 4;

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Done {
    /// It, for people.
    pub message: String,
    /// More about it: how programs reach a volume that is attached.
    pub more: Vec<String>,
}

/// Why something was not done, or is not known to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    /// It is not possible, as the node or the status says: nothing has changed.
    Refused(String),
    /// No node answers: nothing has changed.
    Unreachable(String),
    /// A node was asked, and has not answered, or says that it is not done yet.
    Unknown(String),
}

impl Undone {
    /// Why, for people.
    pub fn why(&self) -> &str {
        match self {
            Undone::Refused(why) | Undone::Unreachable(why) | Undone::Unknown(why) => why,
        }
    }
}

/// The API of a cluster, as the console calls it.
#[derive(Debug, Clone)]
pub(crate) struct NodeApi {
    api: ApiAddress,
    access: Option<PathBuf>,
}

impl NodeApi {
    /// The API of the first of these nodes that answers, with its status.
    fn first(place: &Place, known: &[ApiAddress]) -> Result<(NodeApi, StatusView), String> {
        let access = place.access.clone().or_else(|| place.api.own_access());
        let mut why = String::new();
        for api in std::iter::once(&place.api).chain(known.iter().filter(|api| **api != place.api)) {
            match status(api, access.as_deref()) {
                Ok(status) => return Ok((NodeApi { api: api.clone(), access }, status)),
                Err(reason) => why = format!("{api} does not answer: {reason}"),
            }
        }
        Err(why)
    }

    /// The API of another node.
    fn of_other(&self, address: &str) -> Option<NodeApi> {
        Some(NodeApi { api: self.api.of_other(address.parse().ok()?), access: self.access.clone() })
    }

    /// What the node answers to a GET.
    pub(crate) fn get(&self, path: &str) -> Result<Value, Undone> {
        self.ask("GET", path, &Value::Null)
    }

    /// What the node answers that carries it out: a node that cannot do it names the one that can.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, Undone> {
        let mut api = self.api.clone();
        for _ in 0..MOST_NODES {
            match self.ask_one(&api, method, path, body)? {
                Ok(answer) => return Ok(answer),
                Err(Fault { kind: ErrorKind::Elsewhere, api: Some(other), .. }) => api = api.of_other(other),
                Err(fault) => return Err(undone(fault)),
            }
        }
        Err(Undone::Refused("each node refers to another node for this request: try again".into()))
    }

    fn ask_one(
        &self,
        api: &ApiAddress,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<Result<Value, Fault>, Undone> {
        let agent = api.agent(self.access.as_deref(), LIMIT).map_err(Undone::Unreachable)?;
        let url = api.url(path);
        let answered = match method {
            "GET" => agent.get(&url).call(),
            "DELETE" => agent.delete(&url).call(),
            _ => agent.post(&url).send_json(body),
        };
        let mut answer = answered.map_err(|why| {
            let text = format!("{api} does not answer: {}", shown(&why.to_string()));
            let is_refused =
                matches!(&why, ureq::Error::Io(why) if why.kind() == std::io::ErrorKind::ConnectionRefused);
            match is_refused || matches!(why, ureq::Error::ConnectionFailed | ureq::Error::HostNotFound) {
                true => Undone::Unreachable(text),
                false => not_known(&text),
            }
        })?;
        let is_fine = answer.status().is_success();
        let text = answer.body_mut().with_config().limit(LONGEST).read_to_string();
        let text = text.map_err(|why| not_known(&format!("{api}: {why}")))?;
        let strange = |why| not_known(&format!("{api} sends what is not understood ({why})"));
        Ok(match is_fine {
            true => Ok(serde_json::from_str(&text).map_err(strange)?),
            false => Err(serde_json::from_str(&text).map_err(strange)?),
        })
    }
}

/// What the fault of a node means for what was asked for.
fn undone(Fault { kind, message, .. }: Fault) -> Undone {
    match kind {
        ErrorKind::Late => Undone::Unknown(message),
        // A change may have reached the configuration store, and the answer of the store not the node.
        ErrorKind::Unavailable => not_known(&message),
        _ => Undone::Refused(message),
    }
}

fn not_known(why: &str) -> Undone {
    Undone::Unknown(format!(
        "it is not known whether this was done: {why}. The page shows what the cluster does now"
    ))
}

/// The request that carries an action out: method, path and content.
fn request(action: &Action) -> (&'static str, String, Value) {
    let of = |volume: &str, what: &str| format!("/v1/volumes/{}{what}", escaped(volume));
    let post = |path: String, content: Value| ("POST", path, content);
    match action {
        Action::CreateVolume(wanted) => post("/v1/volumes".into(), json!(wanted)),
        Action::ResizeVolume(to) => post(of(&to.volume, "/resize"), json!(Resize { bytes: to.bytes })),
        Action::LimitVolume(to) => post(of(&to.volume, "/limit"), json!(to.limit)),
        Action::MoveVolume(to) => {
            post(of(&to.volume, "/move"), json!(Move { from: to.from.clone(), to: to.to.clone() }))
        }
        Action::AttachVolume(to) => post(
            of(&to.volume, "/attach"),
            json!(Attach { node: to.node.clone(), when_started: false, key: None }),
        ),
        Action::DetachVolume(from) => {
            post(of(&from.volume, "/detach"), json!(Detach { force: from.force, key: None }))
        }
        Action::DeleteVolume(gone) => ("DELETE", of(&gone.volume, ""), Value::Null),
        Action::ScrubVolume(whole) => post(of(&whole.volume, "/scrub"), Value::Null),
        Action::MaintainNode(MaintainNode { node, stop, force }) => post(
            format!("/v1/nodes/{}/maintenance", escaped(node)),
            json!(Maintain { stop: *stop, force: *force }),
        ),
        Action::DrainNode(of) => {
            post(format!("/v1/nodes/{}/drain", escaped(&of.node)), json!(Drain { stop: of.stop }))
        }
    }
}

/// What was done, for people.
fn done(action: &Action, answer: Value) -> Done {
    let mut more = Vec::new();
    let message = match action {
        Action::CreateVolume(of) => {
            let bytes = ByteSize(of.bytes.next_multiple_of(4096));
            format!("volume {} of {bytes} is made; it is not attached", of.name)
        }
        Action::ResizeVolume(of) => {
            let bytes = ByteSize(of.bytes.next_multiple_of(4096));
            format!("volume {} has {bytes}; its clients see the new size when they connect again", of.volume)
        }
        Action::LimitVolume(of) if of.limit.iops.is_none() && of.limit.bytes_per_s.is_none() => {
            format!("volume {} has no limit", of.volume)
        }
        Action::LimitVolume(of) => format!("volume {} has a limit of {}", of.volume, of.limit),
        Action::MoveVolume(of) => format!("volume {} moves from {} to {}", of.volume, of.from, of.to),
        Action::AttachVolume(of) => match serde_json::from_value::<Use>(answer) {
            Ok(how) => {
                for (protocol, WaysView { network, local }) in &how.ways {
                    let network = network.iter().map(|uri| format!("{protocol}, from anywhere: {uri}"));
                    let local =
                        local.iter().map(|uri| format!("{protocol}, on the machine of {}: {uri}", how.node));
                    more.extend(network.chain(local));
                }
                more.extend(how.notes());
                format!("volume {} is attached at node {}", how.volume, how.node)
            }
            Err(_) => format!("volume {} is attached", of.volume),
        },
        Action::DetachVolume(of) => format!("volume {} is detached", of.volume),
        Action::DeleteVolume(of) => format!("volume {} is deleted", of.volume),
        Action::ScrubVolume(of) => format!("the scrub of volume {} has begun", of.volume),
        Action::DrainNode(of) if of.stop => {
            format!("the drain of node {} is stopped; the node is used again", of.node)
        }
        Action::DrainNode(of) => format!("the drain of node {} has begun", of.node),
        Action::MaintainNode(of) if of.stop => format!("node {} is not in maintenance any more", of.node),
        Action::MaintainNode(of) => {
            format!("node {} is in maintenance: stop it when it owns no volumes any more", of.node)
        }
    };
    Done { message, more }
}

/// What became of an action.
#[derive(Debug)]
pub(crate) struct Carried {
    /// What was done.
    pub(crate) done: Done,
    /// The nodes that scrub a volume now, by their names.
    pub(crate) scrubs: Vec<(String, NodeApi)>,
    /// Nodes that do not scrub their copies of it, and why.
    pub(crate) not_begun: Vec<(String, String)>,
    /// The status of the cluster afterwards, if a node reports it.
    pub(crate) status: Option<StatusView>,
}

/// Carries an action out, if the cluster's status of now does not show that it is not possible, or that it would do something else than what
/// was `shown`. `known` are APIs of nodes of the cluster, besides that of the place.
pub(crate) fn carry_out(
    place: &Place,
    known: &[ApiAddress],
    (action, shown): (&Action, Option<&str>),
) -> Result<Carried, Undone> {
    let (api, status) = NodeApi::first(place, known).map_err(Undone::Unreachable)?;
    if let Some(why) = preview::refusal(&status, action, shown) {
        return Err(Undone::Refused(why));
    }
    let (method, path, content) = request(action);
    let Action::ScrubVolume(whole) = action else {
        let answer = api.ask(method, &path, &content)?;
        let status = self::status(&api.api, api.access.as_deref()).ok();
        let (scrubs, not_begun) = Default::default();
        return Ok(Carried { done: done(action, answer), scrubs, not_begun, status });
    };
    // Each node scrubs its own copies.
    let volume = status.volumes.iter().find(|volume| volume.name == whole.volume);
    let has_copy = |name: &str| volume.is_some_and(|of| of.replicas.iter().any(|copy| copy.node == name));
    let (mut begun, mut not_begun, mut why) = (Vec::new(), Vec::new(), None);
    for node in status.nodes.iter().filter(|node| node.alive && has_copy(&node.name)) {
        let Some(there) = api.of_other(&node.api) else { continue };
        match there.ask(method, &path, &content) {
            Ok(_) => begun.push((node.name.clone(), there)),
            Err(reason) => {
                not_begun.push((node.name.clone(), reason.why().to_owned()));
                why = Some(reason);
            }
        }
    }
    match why.filter(|_| begun.is_empty()) {
        Some(why) => Err(why),
        None => {
            let more = not_begun.iter().map(|(node, why)| format!("not the copies at node {node}: {why}"));
            let done = Done { more: more.collect(), ..done(action, Value::Null) };
            Ok(Carried { done, scrubs: begun, not_begun, status: None })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{AttachVolume, DeleteVolume, DrainNode};

    #[test]
    fn a_hostile_name_stays_one_part_of_the_path() {
        let volume = "../nodes/x?a=b#c".to_owned();
        let (method, path, _) =
            request(&Action::DeleteVolume(DeleteVolume { volume, confirm: String::new() }));
        assert_eq!((method, &*path), ("DELETE", "/v1/volumes/..%2Fnodes%2Fx%3Fa%3Db%23c"));
        let (_, path, content) = request(&Action::DrainNode(DrainNode { node: "a/b".into(), stop: true }));
        assert_eq!((&*path, content), ("/v1/nodes/a%2Fb/drain", json!({ "stop": true })));
    }

    #[test]
    fn of_a_change_that_the_configuration_store_did_not_confirm_it_is_not_known_whether_it_was_done() {
        let of = |kind| undone(Fault { kind, message: "etcd does not answer".into(), api: None });
        assert!(matches!(of(ErrorKind::Unavailable), Undone::Unknown(why) if why.contains("not known")));
        assert!(matches!(of(ErrorKind::Late), Undone::Unknown(_)));
        assert!(matches!(of(ErrorKind::Conflict), Undone::Refused(_)));
    }

    #[test]
    fn what_is_attached_is_said_with_the_ways_to_it() {
        let action = Action::AttachVolume(AttachVolume { volume: "a".into(), node: None });
        let ways = json!({ "nbd": { "network": "nbd://h/a", "local": null } });
        let how = json!({ "volume": "a", "node": "n", "ways": ways, "requires_tls": false });
        let Done { message, more } = done(&action, how);
        assert_eq!(message, "volume a is attached at node n");
        assert_eq!(more, ["nbd, from anywhere: nbd://h/a"]);
    }
}
