//! What is done to a machine as a whole while it runs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::GuestError;
use crate::qmp::{Qmp, QmpError};
use crate::running::{Running, locked};

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
    pub(crate) running: Arc<Running>,
    pub(crate) qmp: Qmp,
}

impl Remote {
    pub(crate) fn begin(running: Arc<Running>) -> Result<Remote, GuestError> {
        let failed = |e: &dyn std::fmt::Display| {
            GuestError::failed(format!("the virtual machine takes no orders: {e}"))
        };
        let stream = locked(&running.process).more_orders.try_clone().map_err(|e| failed(&e))?;
        let qmp = Qmp::begin(stream).map_err(|e| failed(&e))?;
        Ok(Remote { running, qmp })
    }

    fn process(&self) -> Pid {
        // Linux has no process ids beyond 2^22.
        Pid::from_raw(locked(&self.running.process).child.id() as i32)
    }

    /// Carries out an order, and returns when that is done: a machine that is paused goes on then.
    pub fn carry_out(&mut self, order: MachineOrder) -> Result<(), GuestError> {
        let failed = |e: QmpError| {
            GuestError::failed(format!("the virtual machine does not take the order {order:?}: {e}"))
        };
        match order {
            MachineOrder::Crash => self.qmp.command("inject-nmi", json!({})).map(drop).map_err(failed),
            MachineOrder::Pause { ms } => {
                // Not by QEMU's own `stop`: with it the machine's clock stands still too, and the machine never learns of the pause.
                let process = self.process();
                kill(process, Signal::SIGSTOP).map_err(|e| failed(QmpError::Refused(e.desc().into())))?;
                thread::sleep(Duration::from_millis(ms));
                kill(process, Signal::SIGCONT).map_err(|e| failed(QmpError::Refused(e.desc().into())))
            }
        }
    }
}
