//! What was done to a node of a cluster, and not healed yet.

use crate::fault::FaultKind;

/// What was done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// No fault was injected, or all were healed.
    Up,
    /// Its process is gone.
    Killed,
    /// Its process is stopped.
    Frozen,
    /// It does everything, only slower.
    Slow,
    /// No other node receives its messages.
    Cut,
    /// Its host is cut off: neither other nodes nor we reach it, and others take over what it owned.
    HostCut,
    /// Its device failed: it is used again when the node is started again.
    Failed,
    /// A volume without clients has what was free on its device.
    Filled,
}

impl NodeState {
    /// What a fault makes of a node. The node itself only drops messages to be cut off; a command cuts its host off.
    pub(crate) fn after(what: FaultKind, by_command: bool) -> NodeState {
        match what {
            FaultKind::Kill => NodeState::Killed,
            FaultKind::Freeze => NodeState::Frozen,
            FaultKind::Cut if by_command => NodeState::HostCut,
            FaultKind::Cut => NodeState::Cut,
            FaultKind::FailDevice => NodeState::Failed,
            FaultKind::SlowDevice { .. } => NodeState::Slow,
            FaultKind::Fill => NodeState::Filled,
            FaultKind::Return
            | FaultKind::KillMachine
            | FaultKind::CrashMachine
            | FaultKind::PauseMachine { .. }
            | FaultKind::Migrate => NodeState::Up,
        }
    }

    /// Whether it does everything that it did before, however slowly.
    pub(crate) fn serves(self) -> bool {
        matches!(self, NodeState::Up | NodeState::Slow | NodeState::Filled)
    }

    /// Whether it is excluded: other nodes take over what it owned.
    pub(crate) fn is_gone(self) -> bool {
        matches!(self, NodeState::Killed | NodeState::Frozen | NodeState::HostCut)
    }
}
