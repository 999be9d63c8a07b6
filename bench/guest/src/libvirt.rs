//! Machines that libvirt starts: for hosts whose machines are managed by it, so that they are seen there (`virsh list`), and its limits
//! and permissions apply.
//!
//! A machine is a transient domain. `virsh create --autodestroy` starts it and holds its connection for as long as the keeper lives, so
//! that libvirt ends the domain with the keeper, however that ends. If libvirt itself is gone by then, the machine sees that its keeper
//! is gone, and turns itself off.
//!
//! | module | idea |
//! | --- | --- |
//! | `virsh` | its client, as a process for each request |
//! | `folder` | the kernel, the image and the sockets of one machine, where libvirt's QEMU may read them |
//! | `xml` | a domain and its disks in libvirt's language |
//! | `domain` | one running machine |
//! | `devices` | its disks, by libvirt |
//! | `access` | what its QEMU, another user's process, may open of ours |

mod access;
mod devices;
mod domain;
mod folder;
mod virsh;
mod xml;

pub(crate) use domain::{Domain, is_domain};
pub(crate) use virsh::Virsh;

use crate::error::GuestError;
use crate::libvirt_uri::LibvirtUri;

/// A libvirt that answers.
#[derive(Debug, Clone)]
pub struct Libvirt {
    virsh: Virsh,
    /// The version of its daemon, such as `9.0.0`.
    pub version: String,
    /// The QEMU that it starts, with its version, such as `QEMU 7.2.22`.
    pub qemu: String,
}

impl Libvirt {
    /// Connects to the libvirt of this host. The error is of kind `Usage` if there is none, or if it does not let us in: it says what to
    /// do; and of kind `Failed` if it does not answer.
    pub fn connect(uri: &LibvirtUri) -> Result<Libvirt, GuestError> {
        let virsh = Virsh::new(uri)?;
        let said = virsh.run(&["version", "--daemon"], "").map_err(|e| virsh.cannot_connect(e))?;
        let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let known = value("Running against daemon").zip(value("Running hypervisor"));
        let (version, qemu) = known.ok_or_else(|| {
            GuestError::failed(format!(
                "virsh does not say which libvirt is at {}, but: {}",
                virsh.uri(),
                said.lines().next().unwrap_or("nothing")
            ))
        })?;
        if !qemu.starts_with("QEMU") {
            return Err(GuestError::usage(format!(
                "the libvirt at {} starts machines by {qemu}: virtual machines as workers need its QEMU driver (qemu:///system)",
                virsh.uri()
            )));
        }
        Ok(Libvirt { version: version.trim().into(), qemu: qemu.trim().into(), virsh })
    }

    /// Which libvirt it is.
    pub fn uri(&self) -> &str {
        self.virsh.uri()
    }
}
