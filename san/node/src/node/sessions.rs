//! Sessions between a node that forwards clients and the node that owns their volumes.
//!
//! ```text
//!   forwarding node                                    owner
//!     LLsess, session ──────────────────────────────▶  opened, or refused
//!     ping, every PING ─────────────────────────────▶  answer
//!     no answer for ANSWER_LIMIT: all connections      nothing for PING_LIMIT: the session is given up,
//!     of the session are aborted                        all its connections end, its number is refused
//! ```
//!
//! Each forwarded connection names its session. So what a client has sent, and what lies in the send queue of a node that cannot
//! reach the owner, is carried out within seconds or never: when the owner has given the session up, it takes nothing that
//! names it, whenever that arrives. Numbers only grow, and so do the incarnations of a node.
//!
//! The incarnation must be the one that the configuration has of the node. Otherwise a process that was replaced could open a session at an
//! owner that has restarted, and one sender of a number that no process has yet would shut out all processes of its node that follow.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use loadline_san_core::ids::{Incarnation, NodeId};
use loadline_san_protocol::ClusterId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connection::Link;
use tokio::sync::watch;

use super::{Node, NodeState, sockets};
use crate::config::catalog::Catalog;
use crate::event_loop::command::{LoopCommand, SessionId};
use crate::event_loop::peer_sender::Preamble;
use crate::strangers;

/// Between two pings.
const PING: Duration = Duration::from_millis(500);
/// A session is lost if no ping that was sent within this time has been answered.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);
/// The owner gives a session up if it receives nothing for so long.
pub(super) const PING_LIMIT: Duration = Duration::from_secs(3);
/// How long a session may take to be opened.
const OPENS: Duration = Duration::from_secs(1);
/// How long a session that is opened waits for the configuration: it must be opened within [`OPENS`].
const LIFE_READ: Duration = Duration::from_millis(300);
/// The time between an attempt to reach a node that failed and the next one.
const RETRY_AFTER: Duration = Duration::from_millis(300);
/// A session without connections is closed after so many pings.
const IDLE: u32 = 60;

const OPENED: [u8; 8] = *b"LLopen\0\x01";
const REFUSED: [u8; 8] = *b"LLgone\0\x01";
const MAGIC: [u8; 8] = *b"LLsess\0\x01";

/// What the connection of a session begins with. It is as long as a [`Preamble`].
pub(super) fn encode(cluster: ClusterId, id: SessionId) -> [u8; Preamble::BYTES] {
    let mut bytes = [0; Preamble::BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&cluster.0.to_le_bytes());
    encode_id(id, &mut bytes[24..40]);
    bytes
}

/// From the wire. `None` if it is something else.
pub(super) fn decode(bytes: &[u8; Preamble::BYTES]) -> Option<(ClusterId, SessionId)> {
    let cluster = ClusterId(u128::from_le_bytes(bytes[8..24].try_into().expect("sixteen bytes")));
    (bytes[..8] == MAGIC).then(|| (cluster, decode_id(&bytes[24..40])))
}

/// The sixteen bytes of a session's id.
pub(super) fn encode_id(id: SessionId, into: &mut [u8]) {
    into[..8].copy_from_slice(&id.incarnation.0.to_le_bytes());
    into[8..12].copy_from_slice(&id.node.0.to_le_bytes());
    into[12..16].copy_from_slice(&id.number.to_le_bytes());
}

pub(super) fn decode_id(bytes: &[u8]) -> SessionId {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    SessionId {
        node: NodeId(number(8)),
        incarnation: Incarnation(u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))),
        number: number(12),
    }
}

/// The sessions of a node.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Those by which it forwards clients to owners, by node.
    to: BTreeMap<u32, Arc<tokio::sync::Mutex<Slot>>>,
    /// Those by which other nodes forward clients to it: the newest of each node, and whether it is open.
    from: BTreeMap<u32, (SessionId, bool)>,
    numbers: AtomicU32,
}

/// The session with one owner.
#[derive(Debug, Default)]
struct Slot {
    session: Option<Arc<Session>>,
    failed: Option<(Instant, String)>,
}

/// A session with an owner.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    address: SocketAddr,
    lost: watch::Sender<bool>,
    /// Why, if it is lost because nothing was answered for too long.
    unanswered: AtomicBool,
}

impl Session {
    fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Nothing more goes by this session.
    pub(super) fn lose(&self) {
        self.lost.send_replace(true);
    }

    /// Why it is lost, with the owner's name.
    pub(super) fn why_lost(&self, owner: &str) -> String {
        match self.unanswered.load(Ordering::Relaxed) {
            true => {
                format!("{owner}, which owns the volume, has not answered for {} s", ANSWER_LIMIT.as_secs())
            }
            false => format!("{owner}, which owns the volume, has ended the session with this node"),
        }
    }

    /// Waits until it is lost.
    pub(super) async fn lost(&self) {
        let mut lost = self.lost.subscribe();
        // The sender is here, as long as this is waited for.
        let _ = lost.wait_for(|lost| *lost).await;
    }
}

impl Sessions {
    /// Another node opens a session. Whether it may; and the session of that node which ends by it.
    fn open(&mut self, id: SessionId) -> (bool, Option<SessionId>) {
        match self.from.get(&id.node.0).copied() {
            Some((known, _)) if id <= known => (false, None),
            before => {
                self.from.insert(id.node.0, (id, true));
                (true, before.filter(|(_, open)| *open).map(|(before, _)| before))
            }
        }
    }

    /// A node is no part of the cluster any more. Its session, if one is open; and where the session with it is.
    fn forget(&mut self, node: u32) -> (Option<SessionId>, Option<Arc<tokio::sync::Mutex<Slot>>>) {
        let to = self.to.remove(&node);
        (self.from.remove(&node).filter(|(_, open)| *open).map(|(id, _)| id), to)
    }

    /// Ends sessions of processes that do not run as their nodes, as the configuration has it: those that are to be ended in the loops.
    fn keep_lives(&mut self, catalog: &Catalog) -> Vec<SessionId> {
        let mut ended = Vec::new();
        self.from.retain(|node, (id, open)| {
            let Some(life) = catalog.nodes.get(node).map(|(node, _)| node.incarnation) else { return true };
            if life != id.incarnation.0 && std::mem::replace(open, false) {
                ended.push(*id);
            }
            // The number of a process that there was counts for ever.
            id.incarnation.0 <= life
        });
        ended
    }

    /// A session is given up. Whether it was open.
    fn give_up(&mut self, id: SessionId) -> bool {
        match self.from.get_mut(&id.node.0) {
            Some((known, open)) if *known == id => std::mem::replace(open, false),
            _ => false,
        }
    }

    /// Whether connections that name this session are taken.
    pub(super) fn is_open(&self, id: SessionId) -> bool {
        self.from.get(&id.node.0) == Some(&(id, true))
    }
}

impl Node {
    /// The session with the owner of a volume; it is opened if there is none. Why there is none, if it cannot be.
    pub(super) async fn session_with(&self, node: u32, address: SocketAddr) -> Result<Arc<Session>, String> {
        let slot = self.state().sessions.to.entry(node).or_default().clone();
        let mut slot = slot.lock().await;
        if let Some(session) = slot.session.as_ref().filter(|s| s.address == address && !s.is_lost()) {
            return Ok(session.clone());
        }
        if let Some((_, why)) = slot.failed.as_ref().filter(|(when, _)| when.elapsed() < RETRY_AFTER) {
            return Err(why.clone());
        }
        slot.session = None;
        let number = self.state().sessions.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let id = SessionId { node: self.0.me.node, incarnation: self.0.me.incarnation, number };
        let preamble = encode(self.0.cluster, id);
        let opened = tokio::time::timeout(OPENS, async {
            let mut stream = self.link_to(node, address).await?;
            let mut answer = [0; 8];
            let exchanged = async {
                stream.write_all(&preamble).await?;
                stream.flush().await?;
                stream.read_exact(&mut answer).await
            };
            exchanged.await.map_err(|error: std::io::Error| error.to_string())?;
            Ok::<_, String>((stream, answer))
        });
        let begun = Instant::now();
        let stream = match opened.await {
            Ok(Ok((stream, OPENED))) => Ok(stream),
            Ok(Ok(_)) => Err("it refuses the session".into()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(format!("it has not answered for {} s", OPENS.as_secs())),
        };
        match stream {
            Ok(stream) => {
                let session = Arc::new(Session {
                    id,
                    address,
                    lost: watch::channel(false).0,
                    unanswered: AtomicBool::new(false),
                });
                slot.session = Some(session.clone());
                slot.failed = None;
                tokio::spawn(ping(stream, session.clone(), begun));
                Ok(session)
            }
            Err(why) => {
                slot.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// Fails if the process that opens a session does not run as its node, as the configuration has it. What is wrong, for people. While the
    /// configuration store does not answer in time, a process is believed that has begun since: volumes are to be served then, too.
    pub(super) async fn check_life(&self, id: SessionId) -> Result<(), String> {
        let life = || self.state().catalog.nodes.get(&id.node.0).map_or(0, |(node, _)| node.incarnation);
        if life() < id.incarnation.0 && !self.refresh_within(LIFE_READ).await {
            return Ok(());
        }
        match life().cmp(&id.incarnation.0) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(format!("a newer process runs as node {}", id.node.0)),
            std::cmp::Ordering::Less => {
                Err(format!("the configuration knows no process of node {} with its incarnation", id.node.0))
            }
        }
    }

    /// Sessions of processes that do not run as their nodes any more end.
    pub(super) fn end_sessions_of_former_lives(&self) {
        let ended = {
            let NodeState { sessions, catalog, .. } = &mut *self.state();
            sessions.keep_lives(catalog)
        };
        ended.into_iter().for_each(|id| self.end_session(id));
    }

    /// Answers that no session is opened.
    pub(super) async fn refuse_session(mut stream: Link) {
        let _ = stream.write_all(&REFUSED).await;
        let _ = stream.flush().await;
    }

    /// Another node opens a session with this one, and keeps it open by its pings.
    pub(super) async fn take_session(&self, cluster: ClusterId, id: SessionId, mut stream: Link) {
        if cluster != self.0.cluster {
            let text = format!(
                "a node of cluster {cluster} opens a session, but this node belongs to cluster {}",
                self.0.cluster
            );
            strangers::warn("sessions", "", &id.node.0, &text);
            return;
        }
        let (opened, before) = self.state().sessions.open(id);
        if let Some(before) = before {
            self.end_session(before);
        }
        if !opened {
            return Node::refuse_session(stream).await;
        }
        let mut answered = stream.try_send(&OPENED);
        let (mut pings, mut last_ping) = ([0; 64], Instant::now());
        while answered {
            answered = match tokio::time::timeout(PING_LIMIT, stream.read(&mut pings)).await {
                // What comes so late was there while this process was stopped: the other node has lost the session since.
                Ok(Ok(_)) if last_ping.elapsed() > PING_LIMIT + PING => false,
                // If there is no room for the answer, the node does not read, and will find the session lost.
                // It may have ended because the node was removed.
                Ok(Ok(count)) => {
                    count > 0 && self.state().sessions.is_open(id) && stream.try_send(&pings[..count])
                }
                Ok(Err(_)) | Err(_) => false,
            };
            last_ping = Instant::now();
        }
        if self.state().sessions.give_up(id) {
            self.end_session(id);
        }
        // No more data may arrive by this connection.
        sockets::abort(stream);
    }

    /// A node is no part of the cluster any more: the clients that it forwards are disconnected, and those that are forwarded to it.
    pub(super) fn end_sessions_of(&self, node: u32) {
        let (ended, to) = self.state().sessions.forget(node);
        if let Some(id) = ended {
            self.end_session(id);
        }
        if let Some(to) = to {
            // A session may just be opened.
            tokio::spawn(async move {
                if let Some(session) = &to.lock().await.session {
                    session.lose();
                }
            });
        }
    }

    fn end_session(&self, id: SessionId) {
        self.0.loops.iter().for_each(|orders| _ = orders.give(LoopCommand::EndSession(id)));
    }
}

/// Sends the pings of a session until it is lost, or has no connections for a while.
async fn ping(mut stream: Link, session: Arc<Session>, opened: Instant) {
    let (mut unanswered, mut answers, mut idle) = (VecDeque::new(), [0; 64], 0);
    // The moment at which the newest ping was sent that was answered: what it proves is as old as that.
    let mut proved = opened;
    let mut ticks = tokio::time::interval(PING);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while idle < IDLE {
        let deadline = tokio::time::Instant::from_std(proved + ANSWER_LIMIT);
        tokio::select! {
            _ = ticks.tick() => {
                if stream.try_send(&[0]) {
                    unanswered.push_back(Instant::now());
                }
                // The slot has one, and this task.
                idle = if Arc::strong_count(&session) <= 2 { idle + 1 } else { 0 };
            }
            read = stream.read(&mut answers) => match read {
                Ok(count) if count > 0 => {
                    proved = unanswered.drain(..count.min(unanswered.len())).next_back().unwrap_or(proved);
                }
                _ => break,
            },
            () = tokio::time::sleep_until(deadline) => {
                session.unanswered.store(true, Ordering::Relaxed);
                break;
            }
            () = session.lost() => break,
        }
    }
    session.lose();
    sockets::abort(stream);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(node: u32, incarnation: u64, number: u32) -> SessionId {
        SessionId { node: NodeId(node), incarnation: Incarnation(incarnation), number }
    }

    #[test]
    fn a_session_is_itself_after_the_wire_and_nothing_else_is_one() {
        let (cluster, session) = (ClusterId(1 << 100 | 7), id(3, 1 << 40, 9));
        let bytes = encode(cluster, session);
        assert_eq!(decode(&bytes), Some((cluster, session)));
        for at in 0..8 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(decode(&other), None);
        }
    }

    #[test]
    fn sessions_of_processes_that_do_not_run_as_their_node_end() {
        let mut catalog = Catalog::default();
        let node = serde_json::json!({"name": "b", "api": "127.0.0.1:1", "peer": "127.0.0.1:2", "endpoints": {}, "incarnation": 5});
        catalog.nodes.insert(1, (serde_json::from_value(node).unwrap(), 1));
        let mut sessions = Sessions::default();
        for (opened, ended, stays) in [(id(1, 5, 1), vec![], true), (id(1, 9, 1), vec![id(1, 9, 1)], false)] {
            assert!(sessions.open(opened).0);
            assert_eq!(sessions.keep_lives(&catalog), ended);
            assert_eq!(sessions.is_open(opened), stays);
        }
        assert!(sessions.open(id(1, 5, 2)).0, "a number that no process has shuts none out");
        catalog.nodes.get_mut(&1).unwrap().0.incarnation = 6;
        assert_eq!(sessions.keep_lives(&catalog), [id(1, 5, 2)], "a newer process runs");
        assert!(!sessions.open(id(1, 5, 2)).0, "its number is used up");
        assert!(sessions.open(id(1, 6, 1)).0);
    }

    #[test]
    fn a_session_that_was_given_up_is_never_open_again() {
        let mut sessions = Sessions::default();
        assert!(!sessions.is_open(id(1, 5, 1)), "it was never opened");
        assert_eq!(sessions.open(id(1, 5, 1)), (true, None));
        assert!(sessions.is_open(id(1, 5, 1)));
        assert!(sessions.give_up(id(1, 5, 1)));
        assert!(!sessions.give_up(id(1, 5, 1)), "once");
        assert!(!sessions.is_open(id(1, 5, 1)));
        assert_eq!(sessions.open(id(1, 5, 1)), (false, None), "its number is used up");
        assert_eq!(sessions.open(id(1, 4, 9)), (false, None), "it is of a former process");
        assert_eq!(sessions.open(id(1, 5, 2)), (true, None));
        assert_eq!(sessions.open(id(2, 1, 1)), (true, None), "another node has its own numbers");
        assert_eq!(sessions.open(id(1, 6, 1)), (true, Some(id(1, 5, 2))), "it ends the one before");
        assert!(!sessions.is_open(id(1, 5, 2)) && sessions.is_open(id(1, 6, 1)));
        assert!(!sessions.give_up(id(1, 5, 2)), "it is over already");
    }
}
