//! The HTTP API of a cluster's nodes, as far as it is needed here (`GET /v1/openapi.json` describes all of it).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use loadline_api_client::ApiAddress;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::TargetError;
use crate::volume_limit::LimitOfVolume;

/// The time limit of a request for the state: a node that does not answer is distinguished from a slow one.
const QUICK: Duration = Duration::from_secs(3);
/// How long a change may take: of a cluster on one machine each is done in a second or two.
const PATIENT: Duration = Duration::from_secs(30);
/// The most redirects to another node for one request.
const MOST_REDIRECTS: usize = 4;

/// How everything is.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Status {
    /// The cluster's id.
    pub(crate) cluster: String,
    /// The node that was asked.
    pub(crate) asked: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) devices: Vec<Device>,
    pub(crate) volumes: Vec<Volume>,
}

/// A node.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) alive: bool,
    /// Where its API is.
    pub(crate) api: SocketAddr,
    /// A number that is larger each time its process starts.
    pub(crate) incarnation: u64,
}

/// A device.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Device {
    pub(crate) id: u32,
    pub(crate) node: String,
    /// What it has of replicas: `both`, `log` or `capacity`; of a program that knows no roles, both.
    #[serde(default)]
    pub(crate) role: String,
    /// Bytes that it has for replicas.
    pub(crate) bytes: u64,
    /// Bytes of them that are promised to replicas.
    pub(crate) promised: u64,
    /// Bytes of the largest replica for which it has room.
    pub(crate) room: u64,
    /// Replicas that it has, those that are being removed among them.
    pub(crate) replicas: usize,
    /// What it behaves as, if it is modelled.
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// How well its machine keeps up with the model, if its node reports.
    #[serde(default)]
    pub(crate) keeps_up: Option<KeepsUp>,
}

/// How well a machine keeps up with the model of a device, since the device was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct KeepsUp {
    /// How long its I/Os take by the model together, nanoseconds.
    pub modelled_ns: u64,
    /// How much longer they took, nanoseconds.
    pub late_ns: u64,
}

/// The health of a volume of which it is not known that it is served.
pub(crate) const NOT_SERVED: &[&str] = &["unknown", "waiting", "blocked"];

/// A volume.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Volume {
    pub(crate) name: String,
    /// `healthy`, `resyncing`, `degraded`, `unknown`, `waiting` or `blocked`; nothing while it is being made.
    pub(crate) health: Option<String>,
    pub(crate) attached: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) replicas: Vec<Replica>,
    /// How much its clients may do a second, if that is limited.
    #[serde(default)]
    pub(crate) limit: Option<LimitOfVolume>,
}

/// A replica.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Replica {
    pub(crate) group: u32,
    pub(crate) node: String,
    /// `in sync`, `away`, or what else it is.
    pub(crate) state: String,
    pub(crate) left_bytes: Option<u64>,
}

/// How a volume is used that is attached.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Use {
    /// How clients reach it, by the name of their protocol.
    ways: BTreeMap<String, Ways>,
}

/// How clients of a protocol reach a volume.
#[derive(Debug, Clone, Default, Deserialize)]
struct Ways {
    network: Option<String>,
    local: Option<String>,
}

impl Use {
    /// The URI of NBD, for any host. `None` if there is none.
    pub(crate) fn nbd(&self) -> Option<&str> {
        self.ways.get("nbd")?.network.as_deref()
    }

    /// The socket of vhost-user-blk, on the node's own machine. `None` if there is none.
    pub(crate) fn vhost_user(&self) -> Option<&str> {
        self.ways.get("vhost-user-blk")?.local.as_deref()
    }
}

/// A new volume.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CreateVolume<'a> {
    pub(crate) name: &'a str,
    pub(crate) bytes: u64,
    pub(crate) copies: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least: Option<u32>,
    pub(crate) stripes: u32,
    pub(crate) at: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_bytes: Option<u64>,
}

/// What a node answers when it does not do what it was asked.
#[derive(Debug, Deserialize)]
struct Refusal {
    message: String,
    /// The node that does it.
    #[serde(default)]
    api: Option<SocketAddr>,
}

enum Method<'a> {
    Get,
    Delete,
    Post(&'a serde_json::Value),
}

/// One node's API.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    address: ApiAddress,
    /// The file that proves the access, of a node at an https address.
    access: Option<PathBuf>,
}

impl Api {
    /// The API at this address, called with the access of this file.
    pub(crate) fn new(address: ApiAddress, access: Option<PathBuf>) -> Api {
        let access = access.or_else(|| address.own_access());
        Api { address, access }
    }

    /// Where it is.
    pub(crate) fn address(&self) -> &ApiAddress {
        &self.address
    }

    /// The API of another node of the same cluster.
    pub(crate) fn of_other(&self, node: SocketAddr) -> Api {
        Api { address: self.address.of_other(node), access: self.access.clone() }
    }

    pub(crate) fn status(&self) -> Result<Status, TargetError> {
        self.ask("/v1/status", &Method::Get, QUICK)
    }

    /// The page of its counters, as text.
    pub(crate) fn metrics(&self) -> Result<String, TargetError> {
        self.ask_one("/metrics", &Method::Get, QUICK)?.map_err(|refusal| {
            TargetError::failed(format!(
                "the node at {} does not tell its counters: {}",
                self.address, refusal.message
            ))
        })
    }

    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, TargetError> {
        let body = serde_json::to_value(body)
            .map_err(|e| TargetError::failed(format!("{path}: what is asked cannot be written: {e}")))?;
        self.ask(path, &Method::Post(&body), PATIENT)
    }

    pub(crate) fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, TargetError> {
        self.ask(path, &Method::Delete, PATIENT)
    }

    fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        method: &Method<'_>,
        limit: Duration,
    ) -> Result<T, TargetError> {
        let mut api = self.clone();
        for _ in 0..MOST_REDIRECTS {
            match api.ask_one(path, method, limit)? {
                Ok(answer) => {
                    let strange = |e| {
                        TargetError::failed(format!(
                            "the answer of the node at {} to {path} cannot be parsed: {e}",
                            api.address
                        ))
                    };
                    return serde_json::from_str(&answer).map_err(strange);
                }
                Err(Refusal { api: Some(other), .. }) => api = api.of_other(other),
                Err(Refusal { message, .. }) => {
                    let at = &api.address;
                    return Err(TargetError::failed(format!("the node at {at} refuses {path}: {message}")));
                }
            }
        }
        Err(TargetError::failed(format!("{path}: each node says that another one does that")))
    }

    fn ask_one(
        &self,
        path: &str,
        method: &Method<'_>,
        limit: Duration,
    ) -> Result<Result<String, Refusal>, TargetError> {
        let agent = self.address.agent(self.access.as_deref(), limit).map_err(TargetError::usage)?;
        let url = self.address.url(path);
        let answered = match method {
            Method::Get => agent.get(&url).call(),
            Method::Delete => agent.delete(&url).call(),
            Method::Post(body) => agent.post(&url).send_json(body),
        };
        let silent = |e: ureq::Error| {
            TargetError::failed(format!("the node at {} does not answer: {e}", self.address))
        };
        let mut answer = answered.map_err(silent)?;
        let is_fine = answer.status().is_success();
        let text = answer.body_mut().read_to_string().map_err(silent)?;
        if is_fine {
            return Ok(Ok(text));
        }
        let refusal = serde_json::from_str(&text).unwrap_or(Refusal { message: text, api: None });
        Ok(Err(refusal))
    }
}
