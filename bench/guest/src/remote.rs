//! What is done to a machine as a whole while it runs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::GuestError;
use crate::monitor::Monitor;
use crate::qmp::QmpError;
use crate::shared::{Shared, locked};

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
    pub(crate) shared: Arc<Shared>,
    pub(crate) monitor: Monitor,
}

impl Remote {
    pub(crate) fn begin(shared: Arc<Shared>) -> Result<Remote, GuestError> {
        let monitor = locked(&shared.running).monitor()?;
        Ok(Remote { shared, monitor })
    }

    /// Carries out an order, and returns when that is done: a machine that is paused goes on then.
    pub fn carry_out(&mut self, order: MachineOrder) -> Result<(), GuestError> {
        let failed = |e: QmpError| {
            GuestError::failed(format!("the virtual machine does not take the order {order:?}: {e}"))
        };
        match order {
            MachineOrder::Crash => self.monitor.crash().map_err(failed),
            MachineOrder::Pause { ms } => {
                // Not by QEMU's own `stop`: with it the machine's clock stands still too, and the machine never learns of the pause.
                let length = Duration::from_millis(ms);
                let (process, link) = {
                    let running = locked(&self.shared.running);
                    (running.process(), running.link())
                };
                if let Some(link) = link {
                    return link.pause(length);
                }
                if !self.monitor.is_of(process) {
                    return Err(failed(QmpError::Refused("it has ended".into())));
                }
                // Linux has no process ids beyond 2^22.
                let process = Pid::from_raw(process as i32);
                kill(process, Signal::SIGSTOP).map_err(|e| failed(self.monitor.refused(e)))?;
                thread::sleep(length);
                kill(process, Signal::SIGCONT).map_err(|e| failed(self.monitor.refused(e)))
            }
        }
    }
}
