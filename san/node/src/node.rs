//! The control path: what a node does with its configuration, and with its connections.
//!
//! ```text
//!  configuration ─▶ reconcile ─▶ loops: devices, replicas, volumes, peers
//!       ▲                          │
//!       └── records ◀── reports ◀──┘        listeners: clients, other nodes, the API
//! ```
//!
//! | module | idea |
//! | --- | --- |
//! | `reconcile` | carries out what it finds in the configuration |
//! | `listeners`, `admission` | accepts connections, and lets clients in |
//! | `unproved`, `standing` | how many connections may have proved nothing, and how many clients may wait |
//! | `accesses` | what the configuration lets in; what it revokes ends |
//! | `welcome` | connections of other nodes, and what each is for |
//! | `forward` | clients of volumes that are owned elsewhere |
//! | `life` | a new life of the node's process begins |
//! | `reach` | nodes ask each other whether they run, and which nodes they reach |
//! | `reading` | the configuration is read now, by one task for all that wait |
//! | `sessions` | what is between a node that forwards and an owner |
//! | `links` | connections between nodes, protected as the cluster is configured |
//! | `security` | this node's identity |
//! | `probe` | whether other nodes accept the certificate of this one |
//! | [`Pulse`] | when this node serves, and whether a part of it hangs |
//! | [`NodeError`] | why a node does not serve |
//! | `clocks` | hosts whose clocks disagree |
//! | `sockets` | connections are watched over, and cut |
//! | `maintenance` | volumes of a node that a person is about to stop |
//! | `moving` | copies move from where they are to leave |
//! | `store_state` | whether this node uses the configuration store, and if not, why |
//! | `under_way` | which volumes the commands that run here make |
//! | `unfinished` | what interrupted commands have left is taken back |
//! | `waiting` | attachments that wait until their client starts: live migration |
//! | [`manage`] | the commands of people: volumes, devices, nodes |

mod accesses;
mod admission;
pub(crate) mod allocation;
mod clocks;
mod connection;
mod error;
mod events;
mod forward;
mod home;
mod leaving;
mod life;
mod limits;
mod links;
pub(crate) mod listeners;
mod maintenance;
pub mod manage;
mod moving;
mod news;
mod probe;
mod pulse;
pub(crate) mod reach;
mod read_caches;
mod reading;
mod reconcile;
pub(crate) mod refusals;
pub(crate) mod security;
mod sessions;
pub(crate) mod sockets;
mod standing;
mod store_state;
mod under_way;
mod unfinished;
mod units;
mod unproved;
mod unserved;
mod unusable;
mod volume_sockets;
mod waiting;
mod welcome;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use loadline_base::limits::STACK;
use loadline_san_core::ids::{Incarnation, NodeId, Owner, ReplicaId};
use loadline_san_core::volume::CommandError;
use loadline_san_device::file::DeviceFile;
use loadline_san_device::model::ModelledDevice;
use loadline_san_export::front_ends::Protocol;
use loadline_san_protocol::ClusterId;
use loadline_san_store::space::Space;
use loadline_san_transport::helpers::Helpers;
use tokio::sync::{Notify, oneshot, watch};

use crate::api::connections::Connections;
use crate::config;
use crate::config::catalog::{Catalog, Limit, Reserve, SocketPlace};
use crate::config::service::Config;
use crate::config::url::StoreUrl;
use crate::event_loop::command::{LoopCommand, LoopState};
use crate::event_loop::{LoopOptions, LoopSender};
use crate::identity::accesses::Accesses;
use crate::node::manage::follow::Samples;
use crate::node::read_caches::Lent;
use crate::settings::NodeSettings;
use crate::unusable::Unusable;
use clocks::ClockRefusals;
pub(crate) use clocks::Refused;
pub use error::NodeError;
use life::{begin_life, cluster_id, spin, start_loop, who_is};
pub use pulse::Pulse;
use refusals::Refusals;
use security::Security;
use sessions::Sessions;
use store_state::StoreState;
use under_way::UnderWay;
use units::KnownUnits;
pub(crate) use unproved::{Entered, Evicted, Unproved};
use unserved::UnservedInitiators;
use volume_sockets::VolumeSocket;
use waiting::WaitingAttachments;

/// How long a node waits before it reads the configuration again where an attempt has failed or is still awaited.
const CONFIG_POLL: Duration = Duration::from_millis(200);
/// How long after the configuration was read it is read again, if there was no notice of a change.
const UNNOTICED: Duration = Duration::from_secs(1);

/// Threads that compute handshakes of strangers: so many at a time.
const HELPERS: usize = 1;

/// A device that is open.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    file: DeviceFile,
    space: Arc<Mutex<Space>>,
}

/// The state of this node.
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    /// This life of this node.
    me: Option<Owner>,
    pub(crate) catalog: Catalog,
    devices: BTreeMap<u32, OpenDevice>,
    /// What is wrong with devices that are not open.
    pub(crate) broken: BTreeMap<u32, String>,
    /// Nodes that the loops know.
    peers: BTreeSet<u32>,
    replicas: BTreeSet<u64>,
    /// Replicas that this process has made and has not opened yet.
    made: BTreeSet<u64>,
    /// Extents of its volume that each open replica was opened with, or resized to.
    sizes: BTreeMap<u64, u64>,
    /// What loops were told to reserve for resyncs and scrubs.
    reserve: Option<Reserve>,
    /// What was lent to read caches of replicas.
    caches: BTreeMap<u64, Lent>,
    /// Pairs of devices, of data and of logs, with whose replicas something is being done.
    busy: BTreeSet<(u32, u32)>,
    /// Replicas that could not be opened, when, why, and the device whose failure is the reason, if one has failed.
    pub(crate) unopened: BTreeMap<u64, (Instant, String, Option<u32>)>,
    /// Replicas that are open, and why they cannot be used, if they cannot.
    opened: BTreeMap<u64, Option<Unusable>>,
    /// How often applying the configuration was begun, and how often it was finished.
    begun: u64,
    ended: u64,
    /// The configuration was read and applied once.
    applied: bool,
    /// Volumes that are not attached, and that are owned here while their copies move.
    claimed: BTreeSet<u64>,
    /// Replicas that are to leave and could not, and since when.
    waits: BTreeMap<u64, Instant>,
    /// Whether this node uses the configuration store.
    pub(crate) store: StoreState,
    /// Volumes that the loops know, and whether they are watched.
    volumes: BTreeMap<u64, bool>,
    /// The limit of each of them, as its loop knows it.
    limits: BTreeMap<u64, Option<Limit>>,
    /// Volumes whose clients are let in here.
    pub(crate) attached: BTreeSet<u64>,
    /// The sockets that volumes have of their own, by the protocol.
    sockets: BTreeMap<(u64, Protocol, SocketPlace), VolumeSocket>,
    /// Attachments that wait here until their clients start.
    waiting: WaitingAttachments,
    /// What the loops know of logical units.
    units: KnownUnits,
    sessions: Sessions,
    /// Connections that were refused since the node began to run, since the other side did not prove that it may connect.
    pub(crate) refused_connections: u64,
    /// Connections that were refused because the clocks of two hosts disagree.
    pub(crate) clock_refusals: ClockRefusals,
    /// Requests of the API that were refused.
    pub(crate) refusals: Refusals,
    /// Volumes of which an attach was ordered here.
    fenced: BTreeSet<u64>,
    /// The incarnations of nodes that stop, as the loops were told.
    stopping: BTreeMap<u32, u64>,
    /// Volumes that an owner which stops or is in maintenance has handed over to this node, and the version of the volume's entry that
    /// orders it.
    handed: BTreeMap<u64, u64>,
    /// Volumes that are left to the next process of their owner, and since when.
    kept: BTreeMap<u64, Instant>,
    pub(crate) loops: Vec<LoopState>,
    /// How many events each loop has sent.
    events: BTreeMap<u32, u64>,
    state_requests: BTreeMap<u32, Vec<oneshot::Sender<()>>>,
    /// By the number of the command.
    pending_commands: BTreeMap<u64, oneshot::Sender<Result<(), CommandError>>>,
    commands: u64,
    closing: BTreeMap<u64, oneshot::Sender<()>>,
    /// What is asked of other nodes.
    asking: reach::Asking,
    /// The last volumes that this node has removed because a command at another node had not completed them.
    pub(crate) taken_back: VecDeque<u64>,
}

impl NodeState {
    /// Devices that behave as models say, by their ids.
    pub(crate) fn modelled(&self) -> impl Iterator<Item = (u32, &ModelledDevice)> {
        self.devices.iter().filter_map(|(id, open)| Some((*id, open.file.model()?)))
    }

    /// Bytes of a device that replicas have taken. Not known while the device is not open, or another thread changes it.
    pub(crate) fn taken_of(&self, device: u32) -> Option<u64> {
        let space = self.devices.get(&device)?.space.try_lock().ok()?;
        let taken = (space.uses().iter().flatten().count() + space.lent()) as u64;
        Some(taken * space.superblock().chunk_bytes)
    }

    /// This is the configuration, as far as is known. It never goes back: two readers may deliver it in any order, and
    /// what was closed or made anew by an older one would be lost.
    fn learn(&mut self, catalog: Catalog) {
        if catalog.revision >= self.catalog.revision {
            let lines = self.me.map(|me| news::news(me, &self.catalog, &catalog)).unwrap_or_default();
            lines.iter().for_each(|(volume, line)| tracing::info!(volume, "{line}"));
            self.catalog = catalog;
        }
    }
}

/// A node. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: NodeSettings,
    me: Owner,
    /// When this life of its process began.
    since: Instant,
    /// Volumes that the life before has left to this one.
    kept: BTreeSet<u64>,
    /// The address at which it listens for other nodes.
    own: SocketAddr,
    cluster: ClusterId,
    config: Config,
    under_way: UnderWay,
    /// Where the configuration store is.
    store: Arc<Mutex<StoreUrl>>,
    loops: Vec<LoopSender>,
    /// `None` if connections are not protected.
    security: Option<Security>,
    /// The certificate was renewed.
    renewed: Notify,
    /// What the configuration names, as far as is known.
    accesses: watch::Sender<Arc<Accesses>>,
    /// Connections whose other side has not proved its identity yet.
    unproved: Unproved,
    /// Threads that compute handshakes.
    helpers: Helpers,
    state: Mutex<NodeState>,
    /// Initiators that may not reach their volumes by any path.
    unserved: UnservedInitiators,
    /// Connections of the API.
    api: Connections,
    /// What those get who follow this node.
    samples: Samples,
    /// Reads of the configuration that tasks share.
    reading: reading::Reading,
    /// The node ends by order, and takes no more clients.
    leaving: watch::Sender<bool>,
    /// It is to be restarted.
    restart: Notify,
    /// The configuration has changed, as far as this node knows.
    changed: Notify,
    /// Something of what is waited for may have happened.
    happened: Notify,
}

impl Node {
    /// Starts a node: its process has a new life, its loops run, its listeners accept. It serves until the future that this
    /// returns is dropped, or ends with what went wrong.
    pub async fn start(settings: NodeSettings) -> Result<(Node, impl Future<Output = NodeError>), NodeError> {
        limits::check(1)?;
        let (folder, folder_of_identity) = (settings.folder.clone(), settings.folder.clone());
        let store = Arc::new(Mutex::new(settings.cluster.clone()));
        let moved = store.clone();
        let on_move = Box::new(move |to: &StoreUrl| {
            crate::settings::store_moved(&folder, to);
            *moved.lock().expect("no thread panics while it holds this") = to.clone();
        });
        let config = Config::start(config::open_and_follow(&settings.cluster, on_move)?)?;
        let name = settings.name.clone();
        let (common, node) = config
            .call(move |store| who_is(store, &name))
            .await?
            .ok_or_else(|| NodeError::Unknown(settings.name.clone()))?;
        limits::check(common.loops)?;
        let security = Security::read(folder_of_identity, &common, &node)?;
        // If another process runs with this node's addresses, or this is not the host that has them, that process goes on.
        let peers = listeners::bind_peers(&node).await?;
        let name = settings.name.clone();
        let (id, node) = config
            .call(move |store| begin_life(store, &name))
            .await?
            .ok_or_else(|| NodeError::Unknown(settings.name.clone()))?;
        let (cluster, count) = (cluster_id(&common)?, common.loops);
        let me = Owner { node: NodeId(id), incarnation: Incarnation(node.incarnation) };
        let (report, reports) = tokio::sync::mpsc::unbounded_channel();
        let mut loops = Vec::new();
        let spin = spin(settings.spin_us, count);
        for number in 0..count {
            let options = LoopOptions {
                me,
                own: node.peer,
                cluster,
                number,
                spin,
                seed: me.incarnation.0 << 32 | u64::from(id) << 8 | u64::from(number),
                client_wait: settings.client_wait(),
                sweep: unserved::SWEEP,
                is_protected: security.is_some(),
            };
            loops.push(start_loop(options, report.clone())?);
        }
        let helpers = Helpers::start(HELPERS, STACK)?;
        let state = Mutex::new(NodeState {
            me: Some(me),
            loops: vec![LoopState::default(); loops.len()],
            store: StoreState::new(config.health().clone()),
            ..NodeState::default()
        });
        let (changed, happened) = (Notify::new(), Notify::new());
        let inner = Inner {
            settings,
            me,
            since: Instant::now(),
            kept: node.keeps.clone(),
            own: node.peer,
            cluster,
            config,
            under_way: UnderWay::default(),
            store,
            loops,
            security,
            renewed: Notify::new(),
            accesses: watch::Sender::default(),
            unproved: Unproved::default(),
            helpers,
            state,
            unserved: UnservedInitiators::default(),
            api: Connections::default(),
            samples: Samples::default(),
            reading: reading::Reading::default(),
            leaving: watch::Sender::default(),
            restart: Notify::new(),
            changed,
            happened,
        };
        let this = Node(Arc::new(inner));
        let clients = this.listen(&node, peers).await?;
        let api = this.open_api(node.api).await?;
        let serving = this.clone();
        Ok((this, async move {
            tokio::select! {
                () = serving.handle_events(reports) => NodeError::Io(std::io::Error::other("a thread of the data path has ended")),
                error = serving.reconcile_for_ever() => error,
                () = serving.answer_for_ever() => unreachable!("it goes on"),
                () = serving.move_for_ever() => unreachable!("it goes on"),
                () = serving.give_volumes_up_for_ever() => unreachable!("it goes on"),
                () = serving.finish_for_ever() => unreachable!("it goes on"),
                () = serving.renew_for_ever() => unreachable!("it goes on"),
                error = clients => error,
                error = api => error,
            }
        }))
    }

    /// The name of the node in the cluster.
    pub fn name(&self) -> &str {
        &self.0.settings.name
    }

    /// Its folder.
    pub(crate) fn folder(&self) -> &Path {
        &self.0.settings.folder
    }

    /// Where the configuration store is.
    pub(crate) fn store(&self) -> StoreUrl {
        self.0.store.lock().expect("no thread panics while it holds this").clone()
    }

    /// Names of its host by which clients of the API may call it.
    pub(crate) fn api_names(&self) -> &[String] {
        &self.0.settings.api_names
    }

    /// What followers get of this node.
    pub(crate) fn samples(&self) -> &Samples {
        &self.0.samples
    }

    pub(crate) fn api_connections(&self) -> &Connections {
        &self.0.api
    }

    pub(crate) fn cluster_id(&self) -> ClusterId {
        self.0.cluster
    }

    /// This life of the process.
    pub(crate) fn incarnation(&self) -> u64 {
        self.0.me.incarnation.0
    }

    /// Its id.
    pub(crate) fn id(&self) -> u32 {
        self.0.me.node.0
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, NodeState> {
        self.0.state.lock().expect("no holder panics")
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    /// The loop to which a volume belongs.
    fn loop_of(&self, volume: u64) -> &LoopSender {
        &self.0.loops[(volume % self.0.loops.len() as u64) as usize]
    }

    /// Until it was ordered, by the API, that the process of this node is replaced by another one.
    pub async fn restart_ordered(&self) {
        self.0.restart.notified().await;
    }

    /// Everything stops.
    pub fn stop(&self) {
        for commands in &self.0.loops {
            commands.give(LoopCommand::Stop);
        }
        self.0.config.close();
    }

    /// Waits until this holds, which is asked again whenever something has happened. Whether it did in time.
    pub(crate) async fn wait_until(
        &self,
        limit: Duration,
        mut holds: impl FnMut(&NodeState) -> bool,
    ) -> bool {
        let waited = tokio::time::timeout(limit, async {
            loop {
                let happens = self.0.happened.notified();
                if holds(&self.state()) {
                    return;
                }
                // It may have happened between the two.
                let _ = tokio::time::timeout(Duration::from_millis(50), happens).await;
            }
        });
        waited.await.is_ok()
    }

    /// Has all loops report their state. Whether all did so within 2 s.
    pub(crate) async fn refresh_loops(&self) -> bool {
        let mut all = true;
        for (number, commands) in (0..).zip(&self.0.loops) {
            let (answer, answered) = oneshot::channel();
            self.state().state_requests.entry(number).or_default().push(answer);
            commands.give(LoopCommand::ReportState);
            all &= matches!(tokio::time::timeout(Duration::from_secs(2), answered).await, Ok(Ok(())));
        }
        all
    }

    /// A replica is given up by its loop.
    async fn close_replica(&self, volume: u64, replica: u64) -> bool {
        let (answer, answered) = oneshot::channel();
        self.state().closing.insert(replica, answer);
        self.loop_of(volume).give(LoopCommand::CloseReplica(ReplicaId(replica)));
        tokio::time::timeout(Duration::from_secs(20), answered).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_the_configuration_never_goes_back() {
        let mut state = NodeState::default();
        for (revision, known) in [(5, 5), (3, 5), (5, 5), (6, 6), (0, 6)] {
            state.learn(Catalog { revision, ..Catalog::default() });
            assert_eq!(state.catalog.revision, known);
        }
    }
}
