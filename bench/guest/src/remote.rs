//! What is done to a machine as a whole while it runs.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::GuestError;
use crate::qmp::{Qmp, QmpError};

/// An order about a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum MachineOrder {
    /// Its kernel crashes: it gets an interrupt that it takes for broken hardware.
    Crash,
    /// It stands still for so long, and goes on.
    Pause {
        /// Milliseconds.
        ms: u64,
    },
}

/// The way to a running machine.
#[derive(Debug)]
pub struct Remote {
    qmp: Qmp,
}

impl Remote {
    pub(crate) fn begin(stream: UnixStream) -> Result<Remote, GuestError> {
        let qmp = Qmp::begin(stream)
            .map_err(|e| GuestError::failed(format!("the virtual machine takes no orders: {e}")))?;
        Ok(Remote { qmp })
    }

    /// Carries out an order, and returns when that is done: a machine that is paused goes on then.
    pub fn carry_out(&mut self, order: MachineOrder) -> Result<(), GuestError> {
        let failed = |e: QmpError| {
            GuestError::failed(format!("the virtual machine does not take the order {order:?}: {e}"))
        };
        match order {
            MachineOrder::Crash => self.qmp.command("inject-nmi", json!({})).map(drop).map_err(failed),
            MachineOrder::Pause { ms } => {
                self.qmp.command("stop", json!({})).map_err(failed)?;
                thread::sleep(Duration::from_millis(ms));
                self.qmp.command("cont", json!({})).map(drop).map_err(failed)
            }
        }
    }
}
