//! What is done to a machine as a whole while it runs.

use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::GuestError;
use crate::libvirt::{Virsh, is_domain};
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
    monitor: Monitor,
    process: Pid,
}

/// Who passes orders on to QEMU.
#[derive(Debug)]
enum Monitor {
    Qmp(Qmp),
    Libvirt(Virsh, String),
}

impl Remote {
    pub(crate) fn by_qmp(stream: UnixStream, process: u32) -> Result<Remote, GuestError> {
        let qmp = Qmp::begin(stream)
            .map_err(|e| GuestError::failed(format!("the virtual machine takes no orders: {e}")))?;
        Remote::new(Monitor::Qmp(qmp), process)
    }

    /// The way to libvirt's domain of this name, whose QEMU is this process.
    pub(crate) fn by_libvirt(virsh: Virsh, domain: String, process: u32) -> Result<Remote, GuestError> {
        Remote::new(Monitor::Libvirt(virsh, domain), process)
    }

    fn new(monitor: Monitor, process: u32) -> Result<Remote, GuestError> {
        let process = i32::try_from(process).map(Pid::from_raw);
        let process = process.map_err(|_| GuestError::failed("QEMU has no process id"))?;
        Ok(Remote { monitor, process })
    }

    /// Carries out an order, and returns when that is done: a machine that is paused goes on then.
    pub fn carry_out(&mut self, order: MachineOrder) -> Result<(), GuestError> {
        let failed = |e: QmpError| {
            GuestError::failed(format!("the virtual machine does not take the order {order:?}: {e}"))
        };
        match order {
            MachineOrder::Crash => match &mut self.monitor {
                Monitor::Qmp(qmp) => qmp.command("inject-nmi", json!({})).map(drop).map_err(failed),
                Monitor::Libvirt(virsh, domain) => {
                    virsh.run(&["inject-nmi", domain], "").map(drop).map_err(|e| failed(e.into()))
                }
            },
            MachineOrder::Pause { ms } => {
                // Not by QEMU's own `stop`: with it the machine's clock stands still too, and the machine never learns of the pause.
                if let Monitor::Libvirt(_, domain) = &self.monitor
                    && !is_domain(self.process.as_raw().unsigned_abs(), domain)
                {
                    return Err(failed(QmpError::Refused("it has ended".into())));
                }
                kill(self.process, Signal::SIGSTOP).map_err(|e| failed(self.refused(e)))?;
                thread::sleep(Duration::from_millis(ms));
                kill(self.process, Signal::SIGCONT).map_err(|e| failed(self.refused(e)))
            }
        }
    }
    fn refused(&self, error: Errno) -> QmpError {
        QmpError::Refused(match (&self.monitor, error) {
            (Monitor::Libvirt(..), Errno::EPERM) => {
                "its QEMU runs as another user, whose processes only root may stop: run as root, or use qemu:///session".into()
            }
            _ => error.desc().into(),
        })
    }
}
