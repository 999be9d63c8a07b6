//! What each node reports of itself at this moment, and how the node that is asked collects these reports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use loadline_san_core::ids::{Incarnation, NodeId, Owner};
use loadline_san_core::volume::view::{self, Session};
use loadline_san_core::volume::{ReturnProgress, Status};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;

use crate::config::catalog::{self, ReplicaState};
use crate::event_loop::command::{
    LoopCommand, LoopState, ReplicaState as LoopReplica, VolumeState as LoopVolume,
};
use crate::node::Node;

/// The header of every answer that has the cluster's id.
pub const CLUSTER_HEADER: &str = "loadline-cluster";

/// How long another node may take to report.
const REPORTS: Duration = Duration::from_millis(1000);
/// How long the threads of this node's data path may take.
const LOOPS: Duration = Duration::from_millis(700);
/// Of a replica whose device went back in time.
pub(super) const OLDER: &str = "the device of the copy holds an older state than before: the device was restored from a backup, or exchanged";
/// A longer report is not read.
const LONGEST: u64 = 64 << 20;

/// What a node reports of itself at this moment. It asks no other node, and not the configuration store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalView {
    /// Sessions of initiators of iSCSI.
    #[serde(default)]
    pub initiators: Vec<InitiatorAt>,
    /// Initiators of iSCSI that have lost sessions within the last 15 s by which they reached volumes, and may come back.
    #[serde(default)]
    pub lost_initiators: Vec<LostInitiator>,
    /// Its name.
    pub node: String,
    /// The life of its process: a larger number for each later one.
    pub incarnation: u64,
    /// Why it does not use the configuration store, if it does not.
    pub store_fault: Option<String>,
    /// Threads of its data path that did not report in time. What belongs to them is missing here.
    pub silent_loops: usize,
    /// Volumes that it owns, takes over or watches, by rising id.
    pub volumes: Vec<LocalVolume>,
    /// Its replicas, by rising id.
    pub replicas: Vec<LocalReplica>,
    /// Its devices.
    pub devices: Vec<LocalDevice>,
    /// The ids of volumes that commands at other nodes were making, and that it has removed because these nodes counted as stopped: the
    /// last 1,000.
    #[serde(default)]
    pub taken_back: Vec<u64>,
}

/// An owner: a node, in one life of its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnerView {
    /// The id of the node.
    pub node: u32,
    /// The life of its process.
    pub incarnation: u64,
}

impl From<Owner> for OwnerView {
    fn from(owner: Owner) -> OwnerView {
        OwnerView { node: owner.node.0, incarnation: owner.incarnation.0 }
    }
}

impl From<OwnerView> for Owner {
    fn from(view: OwnerView) -> Owner {
        Owner { node: NodeId(view.node), incarnation: Incarnation(view.incarnation) }
    }
}

/// What a node does with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// It does not own it.
    Watching,
    /// It takes it over, and waits for the configuration store.
    Claiming,
    /// It takes it over, and waits until members have reported.
    Sealing,
    /// It takes it over, and makes the members equal.
    Equalizing,
    /// It takes it over, and waits for the configuration store a second time.
    Activating,
    /// It serves it.
    Active,
    /// It serves it, and a change of its record is undecided.
    Changing,
    /// The configuration store holds an older record than was promised. A person decides.
    Blocked,
}

impl Doing {
    /// It serves the volume.
    pub(super) fn serves(self) -> bool {
        matches!(self, Doing::Active | Doing::Changing)
    }

    pub(super) fn of(status: Status) -> Doing {
        match status {
            Status::Watching => Doing::Watching,
            Status::Claiming => Doing::Claiming,
            Status::Sealing => Doing::Sealing,
            Status::Equalizing => Doing::Equalizing,
            Status::Activating => Doing::Activating,
            Status::Active => Doing::Active,
            Status::Changing => Doing::Changing,
            Status::Blocked => Doing::Blocked,
        }
    }
}

/// A session of an initiator of iSCSI at a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InitiatorAt {
    /// The id of the volume.
    pub volume: u64,
    /// The name of the initiator.
    pub name: String,
    /// Whether it reaches the volume by this session. Otherwise it stands by.
    pub is_active: bool,
}

/// An initiator that has lost its session with a node a moment ago.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostInitiator {
    /// The id of the volume.
    pub volume: u64,
    /// The name of the initiator.
    pub name: String,
}

impl InitiatorAt {
    pub(super) fn of(
        (volume, name, is_active): &(loadline_san_core::ids::VolumeId, String, bool),
    ) -> InitiatorAt {
        InitiatorAt { volume: volume.0, name: name.clone(), is_active: *is_active }
    }
}

/// A volume at a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalVolume {
    /// Its id.
    pub id: u64,
    /// What the node does with it.
    pub doing: Doing,
    /// Clients that reach it here.
    pub clients: usize,
    /// If it has a logical unit: the version of the reservations that each of the unit's commands obeys which are under way.
    pub obeyed: Option<u64>,
    /// Why it is blocked, if it is.
    pub blocked: Option<String>,
    /// The epoch of the record that the node knows; 0 before it knows one.
    pub epoch: u64,
    /// The owner that this record names.
    pub owner: Option<OwnerView>,
    /// Its groups, if the node serves it.
    pub groups: Vec<LocalGroup>,
    /// The replicas to which the node has a session or asks for one.
    pub members: Vec<LocalMember>,
    /// Replicas that are coming back.
    pub returning: Vec<LocalReturn>,
}

/// How far a replica is that is coming back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalReturn {
    /// Its id.
    pub replica: u64,
    /// Blocks that are still to be copied.
    pub left: u64,
    /// Blocks of the copies that were begun.
    pub copied: u64,
    /// Everything is copied, and not only what was changed while it was away.
    pub full: bool,
}

/// A group of a volume, as its owner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalGroup {
    /// Replicas in sync.
    pub in_sync: usize,
    /// Replicas in sync that new writes need.
    pub least: usize,
    /// Reads are answered: the leases of all members are held.
    pub reads: bool,
    /// No device of a member is full.
    pub room: bool,
}

/// A replica, as the node that owns the volume or takes it over sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalMember {
    /// Its id.
    pub replica: u64,
    /// It must have every write. Otherwise it is returning.
    pub required: bool,
    /// How the session with it stands.
    pub session: SessionView,
}

/// How the session with a replica stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionView {
    /// It is open, and the replica answers.
    Answers,
    /// It is open, and the replica does not answer, or does not do what it was told.
    Silent,
    /// It was asked for, and there is no answer yet.
    Asked,
    /// The replica reports that it has failed or is damaged.
    Failed,
}

impl SessionView {
    fn of(session: Session) -> SessionView {
        match session {
            Session::Answers => SessionView::Answers,
            Session::Silent => SessionView::Silent,
            Session::Asked => SessionView::Asked,
            Session::Failed => SessionView::Failed,
        }
    }
}

/// A replica at its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalReplica {
    /// Its id.
    pub id: u64,
    /// Whether it is used.
    pub state: Usable,
    /// Why it is not, as far as that is known.
    pub why: Option<String>,
    /// The highest epoch that it follows or has promised.
    pub epoch: Option<u64>,
    /// The owner that it follows.
    pub owner: Option<OwnerView>,
}

/// Whether a replica is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Usable {
    /// It is open.
    Open,
    /// It is being opened.
    Opening,
    /// It is not open.
    NotOpened,
    /// It was found damaged.
    Damaged,
    /// Its device has failed.
    Failed,
}

/// A device at its node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocalDevice {
    /// Its id.
    pub id: u32,
    /// Why it is not used, if it is not.
    pub fault: Option<String>,
    /// Bytes of it that replicas have taken, in whole chunks. Not known while the device is not open, or is being changed.
    #[serde(default)]
    pub taken: Option<u64>,
    /// How well the machine keeps up with its model, if it has one.
    #[serde(default)]
    pub model: Option<ModelView>,
}

/// A device that behaves as a model says, and how well the machine keeps up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelView {
    /// What it is a model of.
    pub name: String,
    /// I/Os since the device was opened.
    pub ios: u64,
    /// How long they take by the model together, nanoseconds.
    pub modelled_ns: u64,
    /// How much longer they took together, nanoseconds: the machine's part, which no such device would add.
    pub late_ns: u64,
}

/// Why there is no report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) enum Silent {
    /// Its address refuses connections, or cannot be reached: no process of it serves.
    Gone(String),
    /// It takes connections and does not report, or what it reports is not understood.
    Mute(String),
}

impl Silent {
    /// What to write after the name of the node.
    pub(super) fn why(&self) -> &str {
        let (Silent::Gone(why) | Silent::Mute(why)) = self;
        why
    }
}

/// What each node reports, by its id.
pub(in crate::node) type Reports = BTreeMap<u32, Result<LocalView, Silent>>;

impl LocalView {
    pub(in crate::node) fn volume(&self, id: u64) -> Option<&LocalVolume> {
        let index = self.volumes.binary_search_by_key(&id, |volume| volume.id);
        index.ok().map(|index| &self.volumes[index])
    }

    pub(super) fn replica(&self, id: u64) -> Option<&LocalReplica> {
        let index = self.replicas.binary_search_by_key(&id, |replica| replica.id);
        index.ok().map(|index| &self.replicas[index])
    }
}

impl Node {
    /// What this node reports of itself at this moment.
    pub async fn local(&self) -> LocalView {
        let loops = self.fresh_loops(LOOPS).await;
        let silent_loops = loops.iter().filter(|of| of.is_none()).count();
        let mut volumes: Vec<LocalVolume> =
            loops.iter().flatten().flat_map(|of| &of.volumes).map(volume).collect();
        volumes.sort_by_key(|volume| volume.id);
        for (id, obeyed) in loops.iter().flatten().flat_map(|of| &of.obeyed) {
            if let Ok(index) = volumes.binary_search_by_key(&id.0, |volume| volume.id) {
                volumes[index].obeyed = Some(*obeyed);
            }
        }
        let open: BTreeMap<u64, &LoopReplica> =
            loops.iter().flatten().flat_map(|of| &of.replicas).map(|of| (of.id.0, of)).collect();
        let state = self.state();
        let here = state.catalog.replicas.iter().filter(|(_, (replica, _))| replica.node == self.id());
        let replicas = here.filter(|(_, (replica, _))| replica.state == ReplicaState::Ready);
        let replicas = replicas.map(|(id, (replica, _))| {
            if let Some(open) = open.get(id) {
                return of_open(*id, open);
            }
            let silent = loops[(replica.volume % loops.len() as u64) as usize].is_none();
            let (usable, why) = if let Some((_, why)) = state.broken_of(replica) {
                (Usable::NotOpened, why)
            } else if let Some((_, why, _)) = state.unopened.get(id) {
                (Usable::NotOpened, why.clone())
            } else if silent {
                (Usable::Opening, "the copy's data-path thread does not answer in time".into())
            } else {
                (Usable::Opening, "it is being opened".into())
            };
            LocalReplica { id: *id, state: usable, why: Some(why), epoch: None, owner: None }
        });
        let devices = state.catalog.devices.iter().filter(|(_, (device, _))| device.node == self.id());
        let devices = devices.map(|(id, _)| LocalDevice {
            id: *id,
            fault: state.broken.get(id).cloned(),
            taken: state.taken_of(*id),
            model: state.devices.get(id).and_then(|open| open.file.model()).map(|device| {
                let lateness = device.lateness();
                ModelView {
                    name: device.model().name.clone(),
                    ios: lateness.ios,
                    modelled_ns: lateness.modelled_ns,
                    late_ns: lateness.late_ns,
                }
            }),
        });
        let initiators = loops.iter().flatten().flat_map(|of| &of.initiators);
        let lost = loops.iter().flatten().flat_map(|of| &of.lost_initiators);
        LocalView {
            initiators: initiators.map(InitiatorAt::of).collect(),
            lost_initiators: lost
                .map(|(id, name)| LostInitiator { volume: id.0, name: name.clone() })
                .collect(),
            node: self.name().into(),
            incarnation: self.0.me.incarnation.0,
            store_fault: state.store.fault().map(|fault| fault.text),
            silent_loops,
            volumes,
            replicas: replicas.collect(),
            devices: devices.collect(),
            taken_back: state.taken_back.iter().copied().collect(),
        }
    }

    /// How each loop is at this moment; nothing of one that does not answer in time.
    pub(super) async fn fresh_loops(&self, limit: Duration) -> Vec<Option<LoopState>> {
        let ask = |(number, orders): (u32, &crate::event_loop::LoopSender)| {
            let (answer, answered) = oneshot::channel();
            self.state().state_requests.entry(number).or_default().push(answer);
            orders.give(LoopCommand::ReportState);
            (number, answered)
        };
        let asked: Vec<_> = (0..).zip(&self.0.loops).map(ask).collect();
        let until = tokio::time::Instant::now() + limit;
        let mut loops = Vec::new();
        for (number, answered) in asked {
            let in_time = matches!(tokio::time::timeout_at(until, answered).await, Ok(Ok(())));
            loops.push(in_time.then(|| self.state().loops[number as usize].clone()));
        }
        loops
    }

    /// Asks all nodes of the cluster at once what they report.
    pub(in crate::node) async fn reports(&self) -> Reports {
        let nodes = self.state().catalog.nodes.clone();
        let mut asked = Vec::new();
        for (id, (node, _)) in nodes {
            let this = self.clone();
            asked.push((id, tokio::spawn(async move { this.fetch_report(id, &node).await })));
        }
        let mut reports = Reports::new();
        for (id, report) in asked {
            let failed = |_| Err(Silent::Mute("could not be asked".into()));
            reports.insert(id, report.await.unwrap_or_else(failed));
        }
        reports
    }

    /// What a node reports; `None` if the cluster does not have it.
    pub(in crate::node) async fn report_of(&self, id: u32) -> Option<Result<LocalView, Silent>> {
        let node = self.state().catalog.nodes.get(&id).map(|(node, _)| node.clone())?;
        Some(self.fetch_report(id, &node).await)
    }

    async fn fetch_report(&self, id: u32, node: &catalog::Node) -> Result<LocalView, Silent> {
        if id == self.id() {
            return Ok(self.local().await);
        }
        let cluster = self.cluster_id().to_string();
        let fetched = async {
            let gone = |_| Silent::Gone("does not answer".into());
            let stream = self.connect_to(node.api).await.map_err(gone)?;
            let unproved = |why| Silent::Mute(format!("does not prove that it is this node ({why})"));
            let link = self.protect_api(stream, id, node.api).await.map_err(unproved)?;
            fetch(link, node.api, &cluster, &node.name).await
        };
        match tokio::time::timeout(REPORTS, fetched).await {
            Ok(report) => report,
            Err(_) => Err(Silent::Mute("does not answer in time".into())),
        }
    }
}

/// The report of the node with this API, which must be of this cluster and have this name: otherwise another node listens at the address
/// that the configuration has.
async fn fetch(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    api: SocketAddr,
    cluster: &str,
    name: &str,
) -> Result<LocalView, Silent> {
    let gone = |_| Silent::Gone("does not answer".into());
    let mute = |why: String| Silent::Mute(format!("sends an invalid answer ({why})"));
    let request = format!("GET /v1/local HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(gone)?;
    stream.flush().await.map_err(gone)?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await.map_err(gone)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(end) = end else { return Err(mute("no HTTP".into())) };
    let head = String::from_utf8_lossy(&answer[..end]);
    if head.split(' ').nth(1) != Some("200") {
        return Err(mute(head.lines().next().unwrap_or_default().into()));
    }
    let another =
        |of: String| Err(Silent::Mute(format!("is not the node that listens at {api}: that is {of}")));
    let headers = head.lines().filter_map(|line| line.split_once(": "));
    let is =
        headers.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(CLUSTER_HEADER)).map(|(_, id)| id);
    if is != Some(cluster) {
        return another(format!(
            "a node of another cluster ({})",
            is.unwrap_or("without an id").escape_debug()
        ));
    }
    let report: LocalView =
        serde_json::from_slice(&answer[end + 4..]).map_err(|why| mute(why.to_string()))?;
    if report.node != name {
        return another(format!("node {}", report.node.escape_debug()));
    }
    Ok(report)
}

fn returning(of: &ReturnProgress) -> LocalReturn {
    LocalReturn { replica: of.replica.0, left: of.left, copied: of.copied, full: of.is_full }
}

fn volume(of: &LoopVolume) -> LocalVolume {
    let view::View { status, blocked, epoch, owner, groups, members, .. } = &of.view;
    let group = |group: &view::GroupView| LocalGroup {
        in_sync: group.in_sync,
        least: group.least,
        reads: group.reads,
        room: group.room,
    };
    let member = |member: &view::MemberView| LocalMember {
        replica: member.replica.0,
        required: member.required,
        session: SessionView::of(member.session),
    };
    LocalVolume {
        id: of.id.0,
        doing: Doing::of(*status),
        clients: of.clients,
        obeyed: None,
        blocked: blocked.clone(),
        epoch: epoch.0,
        owner: owner.map(OwnerView::from),
        groups: groups.iter().map(group).collect(),
        members: members.iter().map(member).collect(),
        returning: of.returning.iter().map(returning).collect(),
    }
}

fn of_open(id: u64, open: &LoopReplica) -> LocalReplica {
    let (state, why) = if open.failed || open.view.failed {
        (Usable::Failed, Some("its device has failed".into()))
    } else if open.view.damaged {
        (Usable::Damaged, Some("the node found the copy damaged when the node opened it".into()))
    } else if open.view.went_back {
        (Usable::Damaged, Some(OLDER.into()))
    } else {
        (Usable::Open, None)
    };
    let follows = open.view.follows;
    let (epoch, owner) = (Some(follows.epoch.0), Some(OwnerView::from(follows.owner)));
    LocalReplica { id, state, why, epoch, owner }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// What is reported of a node, if its address answers this.
    fn fetched(answer: &'static str) -> Result<LocalView, Silent> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let api = listener.local_addr().unwrap();
            let serves = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let _ = stream.read(&mut request).await;
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
            let stream = TcpStream::connect(api).await.unwrap();
            let fetched = fetch(stream, api, "c1", "node-1").await;
            serves.await.unwrap();
            fetched
        })
    }

    #[test]
    fn a_node_of_another_cluster_at_the_address_of_a_node_is_no_member() {
        const BODY: &str = r#"{"node":"node-1","incarnation":1,"store_fault":null,"silent_loops":0,"volumes":[],"replicas":[],"devices":[]}"#;
        let says = |head: &str, body: &str| -> Result<LocalView, Silent> {
            let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}");
            fetched(Box::leak(answer.into_boxed_str()))
        };
        assert!(says("Loadline-Cluster: c1", BODY).is_ok());
        for (head, body, named) in [
            ("loadline-cluster: c2", BODY.to_owned(), "another cluster (c2)"),
            ("server: x", BODY.to_owned(), "another cluster (without an id)"),
            ("loadline-cluster: c1", BODY.replace("node-1", "node-2"), "node node-2"),
        ] {
            let Err(Silent::Mute(why)) = says(head, &body) else { panic!("{head} is a member") };
            assert!(why.contains(named), "{why}");
        }
    }
}
