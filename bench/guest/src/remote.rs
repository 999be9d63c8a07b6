//! What is done to a machine as a whole while it runs.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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
    process: Pid,
}

impl Remote {
    pub(crate) fn begin(stream: UnixStream, process: u32) -> Result<Remote, GuestError> {
        let qmp = Qmp::begin(stream)
            .map_err(|e| GuestError::failed(format!("the virtual machine takes no orders: {e}")))?;
        let process = i32::try_from(process).map(Pid::from_raw);
        let process = process.map_err(|_| GuestError::failed("QEMU has no process id"))?;
        Ok(Remote { qmp, process })
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
                kill(self.process, Signal::SIGSTOP)
                    .map_err(|e| failed(QmpError::Refused(e.desc().into())))?;
                thread::sleep(Duration::from_millis(ms));
                kill(self.process, Signal::SIGCONT).map_err(|e| failed(QmpError::Refused(e.desc().into())))
            }
        }
    }
}
