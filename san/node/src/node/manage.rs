//! Management requests: volumes, devices, nodes.
//!
//! Each request writes the wanted state into the configuration, and waits until the nodes have reached it. A request that is cut
//! short leaves the wanted state in the configuration: nodes continue from there, or another request undoes it.

mod attached;
mod cache;
mod change;
mod clients;
mod create;
mod devices;
mod faults;
pub(crate) mod follow;
pub(super) mod growth;
pub(super) mod health;
mod initiators;
mod limit;
pub(super) mod local;
mod maintenance;
pub(crate) mod no_room;
mod nodes;
mod paths;
mod plan;
mod recover;
mod remove_left;
mod reserve;
pub(crate) mod room;
mod sample;
mod scrub;
mod show;
mod speed;
mod support;
mod tls;
mod trace;
mod volumes;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use loadline_base::figures;
use loadline_san_core::placement::NoPlace;
use loadline_san_core::volume::CommandError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Node;
use crate::config::ConfigError;

pub use attached::{Use, WaysView};
pub use cache::CacheVolume;
pub use change::Resize;
pub use clients::ClientsView;
pub use create::MadeVolume;
pub(super) use create::is_new;
pub use devices::AddDevice;
pub use faults::TestFault;
pub use follow::{Followed, Hello};
pub use initiators::{ChapSecret, EndInitiator, InitiatorLetIn, InitiatorView, LetInitiator};
pub use limit::LimitVolume;
pub use local::{
    CLUSTER_HEADER, Doing, InitiatorAt, LocalDevice, LocalGroup, LocalMember, LocalReplica, LocalReturn,
    LocalView, LocalVolume, LostInitiator, ModelView, OwnerView, SessionView, Usable,
};
pub use maintenance::{Maintain, volumes_that_wait};
pub use nodes::{Drain, Move};
pub use paths::{
    InitiatorPaths, PathState, PathView, PathsView, RegistrationView, ReservationView, ReservationsView,
    UnknownPaths,
};
pub(super) use plan::{has_ended, is_of};
pub use recover::Recover;
pub(super) use remove_left::{Left, RemoveLeft};
pub use sample::{DeviceSample, Ios, ReplicaSample, Sample, VolumeSample};
pub use scrub::ScrubView;
pub use show::{DeviceView, Health, NodeView, ReplicaView, StatusView, VolumeView};
pub use support::{HostView, SupportSettings, SupportView};
pub use tls::RequireTls;
pub use trace::{RequestTrace, Span, SpanKind, TraceRequests, TraceView};
pub(super) use volumes::RemoveVolume;
pub use volumes::{CreateVolume, CreateVolumes, check_size};

/// Why a text is no name of a volume or a node. The reason is for people.
pub use crate::name::check as check_name;

/// Why something is not done.
#[derive(Debug, Error)]
pub enum ManageError {
    /// There is none of this name.
    #[error("there is no {kind} {name}; there {are}")]
    Unknown {
        /// A volume, a node, a device.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        are: String,
    },
    /// The name is taken.
    #[error("there is a volume {0} already: choose another name")]
    Taken(String),
    /// It cannot be so.
    #[error("{0}")]
    Wrong(String),
    /// What the command was making was removed meanwhile.
    #[error("{0}")]
    Gone(String),
    /// There is no room.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// There is no room, and this is how much is needed and free.
    #[error("{0}")]
    NoRoom(String),
    /// It is in use.
    #[error("{0}")]
    InUse(String),
    /// Another node does that.
    #[error("only node {name} can carry out this request: send the request to {api}")]
    Elsewhere {
        /// Its name.
        name: String,
        /// Where its API is.
        api: SocketAddr,
    },
    /// The volume's owner.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// It is not so in time.
    #[error("{0}")]
    TimedOut(String),
    /// A device.
    #[error("{0}")]
    Device(String),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The kinds of [`ManageError`], for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// There is none of this name.
    Unknown,
    /// What was asked for cannot be.
    Wrong,
    /// It is taken, or in use.
    Conflict,
    /// There is no room for it.
    NoRoom,
    /// Another node does that.
    Elsewhere,
    /// It was not so in time.
    Late,
    /// The configuration store does not answer, or cannot be used.
    Unavailable,
}

impl ManageError {
    /// Of which kind it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ManageError::Unknown { .. } => ErrorKind::Unknown,
            ManageError::Taken(_) | ManageError::InUse(_) | ManageError::Command(_) => ErrorKind::Conflict,
            ManageError::Wrong(_) | ManageError::Gone(_) | ManageError::Device(_) => ErrorKind::Wrong,
            ManageError::NoPlace(_) | ManageError::NoRoom(_) => ErrorKind::NoRoom,
            ManageError::Elsewhere { .. } => ErrorKind::Elsewhere,
            ManageError::TimedOut(_) => ErrorKind::Late,
            ManageError::Config(_) => ErrorKind::Unavailable,
        }
    }
}

impl Node {
    /// Which nodes answer.
    pub(super) async fn alive(&self) -> BTreeMap<u32, bool> {
        let nodes = self.state().catalog.nodes.clone();
        let mut asking = Vec::new();
        for (id, (node, _)) in nodes {
            let this = self.clone();
            asking.push((id, tokio::spawn(async move { id == this.id() || this.answers(node.peer).await })));
        }
        let mut alive = BTreeMap::new();
        for (id, answers) in asking {
            alive.insert(id, answers.await.unwrap_or(false));
        }
        alive
    }

    /// Whether a node's process answers.
    pub(super) async fn answers(&self, address: SocketAddr) -> bool {
        let limit = Duration::from_millis(500);
        matches!(tokio::time::timeout(limit, self.connect_to(address)).await, Ok(Ok(_)))
    }
}

/// Names that a message lists.
const MOST_NAMED: usize = 8;

/// *are a, b and c*, or *are none*. Of many the first few, and how many more there are.
fn listed(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<String> = names.into_iter().collect();
    match names.as_slice() {
        [] => "are none".into(),
        [one] => format!("is {one}"),
        many if many.len() > MOST_NAMED => format!("are {}", figures::listed(many, MOST_NAMED)),
        [first @ .., last] => format!("are {} and {last}", first.join(", ")),
    }
}
