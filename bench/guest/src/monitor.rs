//! Who passes orders about a machine as a whole on to its QEMU.

use nix::errno::Errno;
use serde_json::json;

use crate::libvirt::{Virsh, is_domain};
use crate::qmp::{Qmp, QmpError};

/// The way to a running QEMU.
#[derive(Debug)]
pub(crate) enum Monitor {
    /// A connection of our own.
    Qmp(Qmp),
    /// Libvirt, which has a domain of this name.
    Libvirt(Virsh, String),
}

impl Monitor {
    /// Has the machine's kernel crash.
    pub(crate) fn crash(&mut self) -> Result<(), QmpError> {
        match self {
            Monitor::Qmp(qmp) => qmp.command("inject-nmi", json!({})).map(drop),
            Monitor::Libvirt(virsh, domain) => {
                virsh.run(&["inject-nmi", domain], "").map(drop).map_err(QmpError::from)
            }
        }
    }

    /// Whether this process is still the machine's QEMU. Of one that is our child that is so until it was waited for.
    pub(crate) fn is_of(&self, process: u32) -> bool {
        match self {
            Monitor::Qmp(_) => true,
            Monitor::Libvirt(_, domain) => is_domain(process, domain),
        }
    }

    /// Why a signal was refused.
    pub(crate) fn refused(&self, error: Errno) -> QmpError {
        QmpError::Refused(match (self, error) {
            (Monitor::Libvirt(..), Errno::EPERM) => {
                "its QEMU runs as another user, whose processes only root may stop: run as root, or use qemu:///session".into()
            }
            _ => error.desc().into(),
        })
    }
}
