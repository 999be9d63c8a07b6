//! All other nodes of the cluster: what this loop sends to them, and what it receives from them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use foldhash::fast::RandomState;
use loadline_san_core::ids::{NodeId, ReplicaId};
use loadline_san_core::layout::GroupIndex;
use loadline_san_core::lease::Moment;
use loadline_san_core::message::{FromOwner, FromReplica, ToOwner, ToReplica};
use loadline_san_device::pool::{Blocks, Pool};
use loadline_san_device::uring::{For, Uring};
use loadline_san_transport::channel::Channel;
use loadline_san_transport::socket::{Received, shut_down};

use super::LoopOptions;
use super::keys::Keys;
use super::peer_receiver::{PeerMessage, PeerReceiver};
use super::peer_sender::{PeerSender, Preamble, ProvedPeer, Unproved};

/// The connections of one loop with all other nodes: one sender for each node, and the receivers of accepted connections.
pub(super) struct Peers {
    options: LoopOptions,
    senders: HashMap<NodeId, PeerSender, RandomState>,
    /// The node to which each key's connection leads.
    sender_keys: HashMap<u32, NodeId, RandomState>,
    receivers: HashMap<u32, PeerReceiver, RandomState>,
    /// Receivers that are ready.
    readable: VecDeque<u32>,
    /// Nodes to which nothing is sent, and from which nothing is taken, on purpose.
    dropped: HashSet<NodeId>,
    /// Something is to be sent.
    has_unsent: bool,
    /// Something was to be sent to another node, or was received, since the loop has waited.
    traffic: bool,
}

impl Peers {
    pub(super) fn new(options: LoopOptions) -> Peers {
        Peers {
            options,
            senders: HashMap::default(),
            sender_keys: HashMap::default(),
            receivers: HashMap::default(),
            readable: VecDeque::new(),
            dropped: HashSet::new(),
            has_unsent: false,
            traffic: false,
        }
    }

    /// A node is at this address, and has certificates with these fingerprints. Connections that were proved by others end.
    pub(super) fn add(&mut self, node: NodeId, name: String, address: SocketAddr, certificates: &[String]) {
        let LoopOptions { me, own, cluster, number, is_protected, .. } = self.options;
        let preamble = Preamble { cluster, from: me.node, to: node, to_loop: number };
        let new = || PeerSender::new(name, own, address, preamble, is_protected);
        let sender = self.senders.entry(node).or_insert_with(new);
        sender.moved(address);
        sender.keep_proved(certificates);
        let is_old = |of: &PeerReceiver| {
            of.from == node && of.certificate.as_ref().is_some_and(|of| !certificates.contains(of))
        };
        for (_, old) in self.receivers.extract_if(|_, receiver| is_old(receiver)) {
            shut_down(&old.channel);
        }
    }

    /// A node is removed from the cluster.
    pub(super) fn remove(&mut self, node: NodeId) {
        if let Some(mut sender) = self.senders.remove(&node) {
            sender.down("it was removed");
            self.sender_keys.remove(&sender.key);
        }
        for (_, receiver) in self.receivers.extract_if(|_, receiver| receiver.from == node) {
            shut_down(&receiver.channel);
        }
    }

    /// A node has connected. An older connection of it is lost, whether that is known here or not.
    pub(super) fn accept(
        &mut self,
        channel: Channel,
        from: NodeId,
        certificate: Option<String>,
        keys: &mut Keys,
    ) {
        for (_, old) in self.receivers.extract_if(|_, old| old.from == from) {
            shut_down(&old.channel);
        }
        let key = keys.take();
        self.receivers.insert(key, PeerReceiver::new(channel, from, certificate, self.options.cluster));
        self.readable.push_back(key);
    }

    /// The handshake of an attempt to connect to a node was done, or has failed.
    pub(super) fn proved(&mut self, node: NodeId, attempt: u64, proved: Result<ProvedPeer, String>) {
        if let Some(sender) = self.senders.get_mut(&node) {
            sender.proved(attempt, proved);
            self.has_unsent = true;
        }
    }

    /// The process at this node ends by order, soon.
    pub(super) fn ends(&mut self, node: NodeId) {
        if let Some(sender) = self.senders.get_mut(&node) {
            sender.ends();
            self.has_unsent = true;
        }
    }

    /// Another process runs there since.
    pub(super) fn ended_so(&mut self, node: NodeId) {
        if let Some(sender) = self.senders.get_mut(&node) {
            sender.ended_so();
            self.has_unsent = true;
        }
    }

    /// From now on nothing is exchanged with this node, on purpose.
    pub(super) fn drop_all(&mut self, node: NodeId) {
        self.dropped.insert(node);
    }

    /// Everything is exchanged with all nodes again.
    pub(super) fn drop_none(&mut self) {
        self.dropped.clear();
    }

    // ---- sending ---------------------------------------------------------------------------------------

    /// A message for a replica at another node. It may be lost.
    pub(super) fn send_to_replica(&mut self, node: NodeId, from: &FromOwner, message: &ToReplica<Blocks>) {
        if let Some(sender) = self.senders.get_mut(&node)
            && !self.dropped.contains(&node)
        {
            sender.send_to_replica(from, message);
            (self.has_unsent, self.traffic) = (true, true);
        }
    }

    /// A message for an owner at another node. It may be lost.
    pub(super) fn send_to_owner(&mut self, node: NodeId, from: &FromReplica, message: &ToOwner<Blocks>) {
        if let Some(sender) = self.senders.get_mut(&node)
            && !self.dropped.contains(&node)
        {
            sender.send_to_owner(from, message);
            (self.has_unsent, self.traffic) = (true, true);
        }
    }

    /// Whether messages were added since [`Self::flush`].
    pub(super) fn has_unsent(&self) -> bool {
        self.has_unsent
    }

    /// Writes messages to sockets, and connects to nodes where that is due. `news` is called for each node whose process was found to
    /// run, or not to run any more; `prove` for each connection whose handshake is to be done.
    pub(super) fn flush(
        &mut self,
        uring: &mut Uring,
        keys: &mut Keys,
        now: Moment,
        mut news: impl FnMut(NodeId, bool),
        mut prove: impl FnMut(NodeId, Unproved),
    ) {
        self.has_unsent = false;
        for (node, sender) in &mut self.senders {
            sender.flush();
            if sender.connect(now) {
                self.sender_keys.remove(&sender.key);
                sender.key = keys.take();
                self.sender_keys.insert(sender.key, *node);
            }
            while let Some((fd, what)) = sender.is_to_be_watched() {
                if uring.watch(fd, sender.key, what).is_err() {
                    sender.down("it cannot be watched");
                }
            }
            if let Some(runs) = sender.news() {
                news(*node, runs);
            }
            if let Some(unproved) = sender.take_unproved() {
                prove(*node, unproved);
            }
        }
    }

    /// Whether something was exchanged since this was last called.
    pub(super) fn take_traffic(&mut self) -> bool {
        std::mem::take(&mut self.traffic)
    }

    // ---- receiving -------------------------------------------------------------------------------------

    /// Something that the ring watches by this key is ready. False if it is nothing of a node.
    pub(super) fn ready(&mut self, key: u32, what: For) -> bool {
        if self.receivers.contains_key(&key) {
            self.readable.push_back(key);
            return true;
        }
        let Some(node) = self.sender_keys.get(&key) else { return false };
        if let Some(sender) = self.senders.get_mut(node).filter(|sender| sender.key == key) {
            sender.ready(what);
        }
        true
    }

    /// Whether connections are ready to be read.
    pub(super) fn have_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    /// Receives from all connections that are ready. `group_of`: the group of a replica of this loop. `take` is called for each
    /// message.
    pub(super) fn receive(
        &mut self,
        uring: &mut Uring,
        pool: &Pool,
        group_of: impl Fn(ReplicaId) -> Option<GroupIndex>,
        mut take: impl FnMut(PeerMessage),
    ) {
        for _ in 0..self.readable.len() {
            let Some(key) = self.readable.pop_front() else { break };
            let Some(receiver) = self.receivers.get_mut(&key) else { continue };
            self.traffic = true;
            let mut over = matches!(receiver.receive(pool), Received::End | Received::Broken(_));
            loop {
                match receiver.next(pool, &group_of) {
                    Ok(Some(_)) if self.dropped.contains(&receiver.from) => {}
                    Ok(Some(message)) => take(message),
                    Ok(None) => break,
                    Err(why) => {
                        tracing::warn!(
                            node = receiver.from.0,
                            "a message from node {} is refused, and the connection is closed: {why}",
                            receiver.from.0
                        );
                        over = true;
                        break;
                    }
                }
            }
            if let Some(why) = receiver.channel.refused() {
                tracing::warn!(
                    node = receiver.from.0,
                    "data from node {} are refused, and the connection is closed: {why}",
                    receiver.from.0
                );
                over = true;
            }
            if !over && receiver.channel.has_data() {
                // The socket does not report these bytes, because they were received from it already.
                self.readable.push_back(key);
                continue;
            }
            if over || uring.watch(receiver.channel.as_raw_fd(), key, For::Input).is_err() {
                shut_down(&receiver.channel);
                self.receivers.remove(&key);
            }
        }
    }
}
