//! What is done to a machine as a whole while it runs.

use std::fmt::Debug;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::error::GuestError;
use crate::qmp::QmpError;

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

/// Who passes orders on to the QEMU of one machine.
pub(crate) trait Monitor: Debug + Send {
    /// Gives the machine an interrupt that its kernel takes for broken hardware.
    fn crash(&mut self) -> Result<(), QmpError>;

    /// Whether this process is the machine's QEMU.
    fn is_its(&self, process: u32) -> bool;
}

/// The way to a running machine.
#[derive(Debug)]
pub struct Remote {
    monitor: Box<dyn Monitor>,
    process: u32,
}

impl Remote {
    pub(crate) fn new(monitor: Box<dyn Monitor>, process: u32) -> Remote {
        Remote { monitor, process }
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
                self.signal(Signal::SIGSTOP).map_err(failed)?;
                thread::sleep(Duration::from_millis(ms));
                self.signal(Signal::SIGCONT).map_err(failed)
            }
        }
    }

    fn signal(&self, signal: Signal) -> Result<(), QmpError> {
        let process = i32::try_from(self.process).ok().filter(|_| self.monitor.is_its(self.process));
        let process = process.ok_or_else(|| QmpError::Refused("it has ended".into()))?;
        kill(Pid::from_raw(process), signal).map_err(|e| {
            QmpError::Refused(match e {
                Errno::EPERM => {
                    "its QEMU runs as another user, whose processes only root may stop: run as root, or use \
                                 qemu:///session"
                        .into()
                }
                other => other.desc().into(),
            })
        })
    }
}
