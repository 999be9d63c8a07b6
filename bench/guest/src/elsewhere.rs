//! A QEMU on another host, as the keeper of a machine sees it that is migrated there. Whoever knows the way to that host passes the bytes of its
//! connections on.

use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bus::{Bus, QemuBus};
use crate::error::GuestError;
use crate::link::Link;
use crate::machine::Machine;
use crate::monitor::Monitor;
use crate::qemu::{Acceleration, Origin, monitor_over};
use crate::qmp::{Qmp, QmpError};
use crate::running::Running;

/// Another host, on which a machine may run.
pub trait OtherHost {
    /// Starts a QEMU there that waits for this machine. It is tried anew with another one if a migration to it fails.
    fn wait_for(&mut self, wanted: &Wanted) -> Result<OtherQemu, GuestError>;
}

/// What a machine needs of the host to which it is migrated: QEMU continues only what a QEMU like it has begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// The machine.
    pub machine: Machine,
    /// What runs its instructions.
    pub acceleration: Acceleration,
    /// The version of QEMU.
    pub qemu: (u32, u32),
    /// The processor, if the machine's own is the host's (KVM); empty otherwise.
    pub processor: String,
}

impl Wanted {
    pub(crate) fn of(origin: &Origin) -> Wanted {
        let processor = match origin.acceleration {
            Acceleration::Hardware => processor(),
            Acceleration::Software => String::new(),
        };
        Wanted {
            machine: origin.machine.clone(),
            acceleration: origin.acceleration,
            qemu: origin.qemu.version,
            processor,
        }
    }

    /// Whether a host that has this can continue the machine.
    pub(crate) fn check(&self, has: &Wanted) -> Result<(), GuestError> {
        let differs = |what: &str, wanted: String, has: String| {
            Err(GuestError::failed(format!(
                "the other host has {what} {has}, and the machine began with {wanted}: machines are migrated between hosts that have the same"
            )))
        };
        let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        if self.qemu != has.qemu {
            return differs("QEMU", version(self.qemu), version(has.qemu));
        }
        if self.acceleration != has.acceleration {
            return differs(
                "acceleration by",
                self.acceleration.name().into(),
                has.acceleration.name().into(),
            );
        }
        if self.processor != has.processor {
            return Err(GuestError::failed(
                "the other host has another processor, and the machine uses all features of the one on which it began: machines are migrated \
                 between hosts with the same processor",
            ));
        }
        Ok(())
    }
}

/// The name and the features of the host's processor.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_told = |line: &&str| {
        ["model name", "flags", "Features", "CPU part"].iter().any(|name| line.starts_with(name))
    };
    let first = text.split("\n\n").next().unwrap_or_default();
    first.lines().filter(is_told).collect::<Vec<_>>().join("\n")
}

/// A QEMU on another host, which waits for a machine, or runs one. Dropping it ends it.
#[derive(Debug)]
pub struct OtherQemu {
    /// Our end of the machine's serial port.
    pub control: UnixStream,
    /// Of orders about its devices.
    pub orders: UnixStream,
    /// Of orders about the machine.
    pub more_orders: UnixStream,
    /// By which the machine comes, until that is taken, and its number there.
    pub incoming: Option<(UnixStream, RawFd)>,
    /// The rest.
    pub link: Arc<dyn Link>,
}

impl Running for OtherQemu {
    fn control(&self) -> &UnixStream {
        &self.control
    }

    fn bus(&mut self, machine: &Machine) -> Result<Box<dyn Bus>, QmpError> {
        let orders = self.orders.try_clone().map_err(QmpError::Broken)?;
        Ok(Box::new(QemuBus::elsewhere(Qmp::begin(orders)?, machine.clone())))
    }

    fn monitor(&self) -> Result<Monitor, GuestError> {
        monitor_over(&self.more_orders)
    }

    /// It has none on this host.
    fn process(&self) -> u32 {
        0
    }

    fn link(&self) -> Option<Arc<dyn Link>> {
        Some(Arc::clone(&self.link))
    }

    fn has_read(&self) -> io::Result<bool> {
        self.link.has_read()
    }

    fn ended(&mut self, limit: Duration) -> Option<String> {
        self.link.ended(limit)
    }

    fn last_words(&mut self) -> String {
        self.link.last_words()
    }

    fn end(&mut self) {
        self.link.end();
    }
}

impl Drop for OtherQemu {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_differ_are_named_with_what_differs() {
        let wanted = Wanted {
            machine: Machine::default(),
            acceleration: Acceleration::Hardware,
            qemu: (7, 2),
            processor: "model name : a".into(),
        };
        wanted.check(&wanted.clone()).unwrap();
        let refused = |has: Wanted| wanted.check(&has).unwrap_err().message;
        let error = refused(Wanted { qemu: (8, 0), ..wanted.clone() });
        assert!(error.contains("QEMU 8.0") && error.contains("began with 7.2"), "{error}");
        let error = refused(Wanted { acceleration: Acceleration::Software, ..wanted.clone() });
        assert!(error.contains("TCG") && error.contains("began with KVM"), "{error}");
        let error = refused(Wanted { processor: "model name : b".into(), ..wanted.clone() });
        assert!(error.contains("another processor"), "{error}");
        assert!(!processor().is_empty());
    }
}
