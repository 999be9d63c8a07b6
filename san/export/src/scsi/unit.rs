//! A logical unit: what all sessions of a volume share.

use std::cell::RefCell;
use std::rc::Rc;

use super::reservations::Reservations;

/// What a logical unit says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The id of the cluster.
    pub cluster: u128,
    /// The id of the volume.
    pub volume: u64,
    /// The name of the volume.
    pub name: String,
    /// The size, bytes: a multiple of 512, and not 0.
    pub bytes: u64,
    /// The most bytes that are read or written at once: a power of two, at least 4096.
    pub most: u32,
    /// The target port groups, one a node, in rising order. The number of the only port of a group is that of the group.
    pub ports: Vec<Port>,
    /// The target port group of this node.
    pub here: u16,
}

/// A target port group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Its number, and the relative target port identifier of its port: not 0.
    pub group: u16,
    /// Whether the volume is reached there.
    pub state: AccessState,
}

/// Whether the volume is reached by a target port group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessState {
    /// By this one.
    ActiveOptimized,
    /// It could be, if the volume is moved there.
    Standby,
    /// The node is not there.
    Unavailable,
}

/// What sends commands: an I_T nexus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NexusName {
    /// The name of the initiator.
    pub initiator: String,
    /// The initiator's part of the session's identifier.
    pub isid: [u8; 6],
    /// The target port group.
    pub group: u16,
}

/// The number of an I_T nexus that has [entered](Unit::enter). A unit gives no number twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId(u32);

/// The unit of a volume. The sessions of the volume share it: they are of one loop.
pub type SharedUnit = Rc<RefCell<Unit>>;

/// A logical unit.
#[derive(Debug)]
pub struct Unit {
    about: About,
    reservations: Reservations,
    next: u32,
}

impl Unit {
    /// A unit that no initiator has reached yet. `reservations` is what the configuration keeps.
    pub fn new(about: About, reservations: Reservations) -> Unit {
        Unit { about, reservations, next: 0 }
    }

    /// What it says of itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// A session begins. Its first command is told that it is new: unit attention 29/00.
    pub fn enter(&mut self, _name: NexusName) -> NexusId {
        self.next += 1;
        NexusId(self.next)
    }

    /// A session has ended. Its RESERVE(6) ends, and its tasks are forgotten with what they had locked: the transport calls it once none
    /// of them has a [block step](super::task::Step::Block) under way.
    pub fn leave(&mut self, _nexus: NexusId) {}

    /// The unit is another one now. If the size changed, each session is told (2A/09); if states of ports changed, too (2A/06).
    pub fn change(&mut self, about: About) {
        self.about = about;
    }

    /// What the configuration keeps now. Each session that lost something is told (2A/03, 2A/04, 2A/05).
    pub fn learn(&mut self, reservations: Reservations) {
        self.reservations = reservations;
    }

    /// What the configuration keeps, as far as it is known here.
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// LOGICAL UNIT RESET: the tasks of all sessions end ([`take_ended`](Self::take_ended)), RESERVE(6) ends, and the other sessions are
    /// told (29/03).
    pub fn reset(&mut self, _by: NexusId) {}

    /// Whether tasks of this session were ended by another one (reset, PREEMPT AND ABORT) since the last call: the session is to end all
    /// that it has without an answer, before it begins others.
    pub fn take_ended(&mut self, _nexus: NexusId) -> bool {
        false
    }

    /// Whether tasks that were [ended](Self::take_ended) are still there. A reset is answered once none is.
    pub fn is_ending(&self) -> bool {
        false
    }

    /// The ticket of a task of this session that waited and may go on: [`Task::resume`](super::task::Task::resume) is to be called.
    pub fn take_resumed(&mut self, _nexus: NexusId) -> Option<u32> {
        None
    }

    /// Whether since the last call a session was given something by [`take_ended`](Self::take_ended) or
    /// [`take_resumed`](Self::take_resumed), or [`is_ending`](Self::is_ending) became false: all sessions are to be given a turn.
    pub fn take_woken(&mut self) -> bool {
        false
    }

    /// Whether sense data are sent as descriptors (D_SENSE of the control mode page), and not in the fixed format.
    pub fn sends_descriptors(&self) -> bool {
        false
    }
}
