//! What starts the machines of a host: QEMU as a process of ours, or libvirt.

use std::path::Path;

use crate::error::GuestError;
use crate::image::Image;
use crate::keeper::Keeper;
use crate::libvirt::Libvirt;
use crate::machine::Machine;
use crate::probe::{probe, probe_libvirt};
use crate::qemu::{Acceleration, Qemu};

/// What starts machines.
#[derive(Debug, Clone)]
pub enum Hypervisor {
    /// QEMU, as a process of ours.
    Qemu(Qemu),
    /// Libvirt, which starts QEMU.
    Libvirt(Libvirt),
}

impl Hypervisor {
    /// Finds what a machine is to be started by.
    pub fn of(machine: &Machine) -> Result<Hypervisor, GuestError> {
        match &machine.libvirt {
            None => Qemu::find().map(Hypervisor::Qemu),
            Some(uri) => Libvirt::connect(uri).map(Hypervisor::Libvirt),
        }
    }

    /// What runs the machines' instructions: it is tried once after the host has booted, and kept in the folder `cache`.
    pub fn acceleration(&self, image: &Image, cache: &Path) -> Result<Acceleration, GuestError> {
        match self {
            Hypervisor::Qemu(qemu) => probe(qemu, image, cache),
            Hypervisor::Libvirt(libvirt) => probe_libvirt(libvirt, image, cache),
        }
    }

    /// Starts the machine of a worker. It ends with the calling thread.
    pub fn start(
        &self,
        worker: &str,
        machine: &Machine,
        image: &Image,
        acceleration: Acceleration,
    ) -> Result<Keeper, GuestError> {
        match self {
            Hypervisor::Qemu(qemu) => Keeper::start(qemu, machine, image, acceleration),
            Hypervisor::Libvirt(libvirt) => {
                Keeper::start_by_libvirt(libvirt, worker, machine, image, acceleration)
            }
        }
    }

    /// The version of the libvirt that starts machines, if one does.
    pub fn libvirt(&self) -> Option<&str> {
        match self {
            Hypervisor::Qemu(_) => None,
            Hypervisor::Libvirt(libvirt) => Some(&libvirt.version),
        }
    }
}
