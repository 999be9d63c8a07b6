//! Faults on purpose, in clusters for development: they are off unless `node.toml` enables them.

use loadline_san_core::ids::NodeId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::volumes::unknown_node;
use super::{ManageError, listed};
use crate::event_loop::command::{DeviceFault, LoopCommand};
use crate::identity::set_clock_off;
use crate::node::Node;

/// A fault that this node is to have until it is healed or the node ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "fault")]
pub enum TestFault {
    /// A device does nothing that it is asked any more.
    FailDevice {
        /// Which, of this node.
        device: u32,
    },
    /// A device takes longer.
    SlowDevice {
        /// Which, of this node.
        device: u32,
        /// By so much, for each thing that it is asked.
        milliseconds: u32,
    },
    /// The node takes its host's clock to be wrong, where it checks certificates, accesses and tokens.
    ClockOff {
        /// By so many seconds; less than 0: the clock is behind.
        seconds: i64,
    },
    /// All messages between another node and this one are lost.
    DropPeer {
        /// The name of the other node.
        node: String,
    },
}

impl Node {
    fn may_have_faults(&self) -> Result<(), ManageError> {
        match self.0.settings.test_faults {
            true => Ok(()),
            false => Err(ManageError::Wrong(
                "this node does not accept test faults: set test_faults = true in its node.toml ('loadline san dev' does that \
                 for its nodes)"
                    .into(),
            )),
        }
    }

    /// Has a fault from now on.
    pub async fn test_fault(&self, fault: TestFault) -> Result<(), ManageError> {
        self.may_have_faults()?;
        self.refresh().await?;
        let state = self.state();
        let of_device = |device: u32| {
            let mine = state.catalog.devices.iter().filter(|(_, (of, _))| of.node == self.id());
            let mine: Vec<u32> = mine.map(|(id, _)| *id).collect();
            if !mine.contains(&device) {
                let are = listed(mine.iter().map(ToString::to_string));
                return Err(ManageError::Unknown {
                    kind: "device of this node",
                    name: device.to_string(),
                    are,
                });
            }
            Ok(device)
        };
        let order = match &fault {
            TestFault::FailDevice { device } => {
                (of_device(*device)?, DeviceFault { fails: true, slow_ns: 0 })
            }
            TestFault::SlowDevice { device, milliseconds } => {
                let slow_ns = u64::from((*milliseconds).min(60_000)) * 1_000_000;
                (of_device(*device)?, DeviceFault { fails: false, slow_ns })
            }
            TestFault::ClockOff { seconds } => {
                set_clock_off(*seconds);
                return Ok(());
            }
            TestFault::DropPeer { node } => {
                let (id, _) = state.catalog.node(node).ok_or_else(|| unknown_node(&state.catalog, node))?;
                self.0.loops.iter().for_each(|orders| _ = orders.give(LoopCommand::Drop(NodeId(id))));
                return Ok(());
            }
        };
        let (device, how) = order;
        for orders in &self.0.loops {
            orders.give(LoopCommand::Fault(device, how));
        }
        Ok(())
    }

    /// Has no fault any more. What has failed by then has failed.
    pub async fn no_test_faults(&self) -> Result<(), ManageError> {
        self.may_have_faults()?;
        set_clock_off(0);
        self.0.loops.iter().for_each(|orders| _ = orders.give(LoopCommand::NoFaults));
        Ok(())
    }
}
