//! QEMU as a process: found, checked, started. It dies with the thread that started it, and leaves nothing on any disk: its connections
//! are sockets that it inherits.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::bus::{Bus, QemuBus};
use crate::control::PORT;
use crate::error::GuestError;
use crate::image::Image;
use crate::machine::Machine;
use crate::monitor::Monitor;
use crate::qmp::{Qmp, QmpError};
use crate::running::Running;
use crate::words::Words;

/// The oldest QEMU that has what is used here: memory of a memfd for vhost-user, and connections by inherited sockets.
const OLDEST: (u32, u32) = (5, 2);

/// What runs a machine's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Acceleration {
    /// The processor (KVM).
    Hardware,
    /// QEMU itself (TCG).
    Software,
}

impl Acceleration {
    /// In words, as a report says it.
    pub fn name(self) -> &'static str {
        match self {
            Acceleration::Hardware => "KVM",
            Acceleration::Software => "TCG (software)",
        }
    }
}

/// A QEMU that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qemu {
    /// The program.
    pub program: String,
    /// Its version, such as 7.2.
    pub version: (u32, u32),
}

impl Qemu {
    /// The QEMU of this host for machines of its own architecture.
    pub fn find() -> Result<Qemu, GuestError> {
        Qemu::at(&format!("qemu-system-{}", std::env::consts::ARCH))
    }

    /// This program, if it is a QEMU that is new enough.
    pub fn at(program: &str) -> Result<Qemu, GuestError> {
        let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().map_err(|e| {
            GuestError::usage(format!(
                "{program} cannot be started: {e}; virtual machines need QEMU: apt install qemu-system-x86 (or qemu-system-arm)"
            ))
        })?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = version_in(&text).ok_or_else(|| {
            GuestError::usage(format!(
                "{program} does not say its version, but: {}",
                text.lines().next().unwrap_or("nothing")
            ))
        })?;
        if version < OLDEST {
            return Err(GuestError::usage(format!(
                "{program} is QEMU {}.{}: virtual machines need {}.{} or newer",
                version.0, version.1, OLDEST.0, OLDEST.1
            )));
        }
        Ok(Qemu { program: program.into(), version })
    }
}

fn version_in(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A running QEMU, and our ends of its connections. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    control: UnixStream,
    orders: UnixStream,
    more_orders: UnixStream,
    /// The number that `incoming` has in QEMU.
    pub(crate) incoming: Option<RawFd>,
    words: Words,
}

/// What a machine is started from.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) qemu: Qemu,
    pub(crate) machine: Machine,
    pub(crate) image: Image,
    pub(crate) acceleration: Acceleration,
    /// Whether it is for a session, and not for a worker.
    pub(crate) shell: bool,
}

impl Process {
    /// Starts a machine, or with `incoming` the destination of a migration: the descriptor is the stream by which the machine comes. A
    /// destination waits for `migrate-incoming`, and then for `cont`.
    pub(crate) fn start(origin: &Origin, incoming: Option<OwnedFd>) -> Result<Process, GuestError> {
        let Origin { qemu, shell, .. } = origin;
        let failed = |e: &dyn std::fmt::Display| {
            GuestError::failed(format!("{} cannot be started: {e}", qemu.program))
        };
        let (control, its_control) = UnixStream::pair().map_err(|e| failed(&e))?;
        let (orders, its_orders) = UnixStream::pair().map_err(|e| failed(&e))?;
        let (more_orders, its_more) = UnixStream::pair().map_err(|e| failed(&e))?;
        let is_destination = incoming.is_some();
        let sockets = [its_control, its_orders, its_more].map(OwnedFd::from);
        let inherited: Vec<OwnedFd> = sockets.into_iter().chain(incoming).collect();
        let numbers: Vec<RawFd> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
        let mut command = Command::new(&qemu.program);
        command.args(arguments(origin, [numbers[0], numbers[1], numbers[2]]));
        if is_destination {
            command.args(["-incoming", "defer", "-S"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if *shell {
            // Ctrl-C at the terminal is for the command that keeps the machine: it ends the session, and the machine after it.
            command.process_group(0);
        }
        let started_by = nix::unistd::getpid();
        let inherits = numbers.clone();
        // SAFETY: between fork and exec it calls prctl, getppid and fcntl only, which take no locks and allocate nothing.
        unsafe {
            command.pre_exec(move || {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                if nix::unistd::getppid() != started_by {
                    return Err(std::io::ErrorKind::BrokenPipe.into());
                }
                for &number in &inherits {
                    // SAFETY: the sockets are open in the parent until the child was spawned, and so in the child.
                    let socket = std::os::fd::BorrowedFd::borrow_raw(number);
                    fcntl(socket, FcntlArg::F_SETFD(FdFlag::empty()))?;
                }
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|e| failed(&e))?;
        drop(inherited);
        let mut words = Words::default();
        if let Some(output) = child.stdout.take() {
            words.read(output).map_err(|e| failed(&e))?;
        }
        if let Some(output) = child.stderr.take() {
            words.read(output).map_err(|e| failed(&e))?;
        }
        Ok(Process { child, control, orders, more_orders, incoming: numbers.get(3).copied(), words })
    }

    /// Our ends of the serial port, of orders about devices, and of orders about the machine.
    pub(crate) fn streams(&self) -> io::Result<[UnixStream; 3]> {
        Ok([self.control.try_clone()?, self.orders.try_clone()?, self.more_orders.try_clone()?])
    }
}

impl Running for Process {
    fn control(&self) -> &UnixStream {
        &self.control
    }

    fn bus(&mut self, machine: &Machine) -> Result<Box<dyn Bus>, QmpError> {
        let orders = self.orders.try_clone().map_err(QmpError::Broken)?;
        Ok(Box::new(QemuBus::new(Qmp::begin(orders)?, machine.clone())))
    }

    fn monitor(&self) -> Result<Monitor, GuestError> {
        monitor_over(&self.more_orders)
    }

    fn process(&self) -> u32 {
        self.child.id()
    }

    fn ended(&mut self, limit: Duration) -> Option<String> {
        let limit = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(format!("QEMU has ended ({status})")),
                Ok(None) if Instant::now() < limit => thread::sleep(Duration::from_millis(10)),
                _ => return None,
            }
        }
    }

    fn end(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// If QEMU has ended, that is of all that it printed.
    fn last_words(&mut self) -> String {
        let ended = matches!(self.child.try_wait(), Ok(Some(_)));
        self.words.last(ended)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The way to order something of a machine by a connection to its QEMU.
pub(crate) fn monitor_over(orders: &UnixStream) -> Result<Monitor, GuestError> {
    let failed =
        |e: &dyn std::fmt::Display| GuestError::failed(format!("the virtual machine takes no orders: {e}"));
    let stream = orders.try_clone().map_err(|e| failed(&e))?;
    Ok(Monitor::Qmp(Qmp::begin(stream).map_err(|e| failed(&e))?))
}

/// The board of a machine of this architecture, and the name of its console.
pub(crate) fn board() -> (&'static str, &'static str) {
    match std::env::consts::ARCH {
        "x86_64" => ("pc", "ttyS0"),
        _ => ("virt", "ttyAMA0"),
    }
}

/// What a machine's kernel is started with.
pub(crate) fn kernel_line(console: &str) -> String {
    // The kernel waits for ticks of its timer by counting instructions, and panics ("IO-APIC + timer doesn't work") if a busy host lets
    // QEMU run too little meanwhile. With KVM it leaves that out by itself.
    let timer = if std::env::consts::ARCH == "x86_64" { " no_timer_check" } else { "" };
    format!("console={console} quiet panic=-1 unknown_nmi_panic random.trust_cpu=on{timer}")
}

/// Under software QEMU 7.2 forgets writes of a machine that is migrated, unless its memory is no multiple of 256 KiB: a shortcut of its dirty
/// log for such lengths leaves the translator's own marks as they were.
const ODD_MEMORY: u64 = 8 << 10;

fn arguments(origin: &Origin, [control, orders, more_orders]: [RawFd; 3]) -> Vec<String> {
    let Origin { machine, image, acceleration, shell, .. } = origin;
    let (accelerator, cpu) = match (acceleration, std::env::consts::ARCH) {
        (Acceleration::Hardware, _) => ("kvm", "host"),
        // Every feature that a processor offers is one that the kernel probes for, in software: 4.3 s of boot in place of 2.
        (Acceleration::Software, "x86_64") => ("tcg", "qemu64"),
        (Acceleration::Software, _) => ("tcg", "max"),
    };
    let (board, console) = board();
    let memory = match acceleration {
        Acceleration::Hardware => machine.memory.0,
        Acceleration::Software => machine.memory.0 + ODD_MEMORY,
    };
    let mut kernel = kernel_line(console);
    if *shell {
        kernel += " loadline.shell";
    }
    let words = [
        ["-machine", &format!("{board},accel={accelerator},memory-backend=memory")],
        ["-cpu", cpu],
        ["-smp", &machine.cpus.to_string()],
        ["-m", &format!("{}K", memory >> 10)],
        // Shared, so that a server of a disk (vhost-user) reaches the machine's buffers.
        ["-object", &format!("memory-backend-memfd,id=memory,size={memory},share=on")],
        ["-display", "none"],
        ["-nic", "none"],
        ["-chardev", "stdio,id=console,signal=off"],
        ["-serial", "chardev:console"],
        ["-chardev", &format!("socket,id=orders,fd={orders}")],
        ["-mon", "chardev=orders,mode=control"],
        // Orders about the machine do not wait for those about its devices, which can take long.
        ["-chardev", &format!("socket,id=more-orders,fd={more_orders}")],
        ["-mon", "chardev=more-orders,mode=control"],
        ["-device", "virtio-serial-pci,addr=0x4"],
        ["-chardev", &format!("socket,id=control,fd={control}")],
        ["-device", &format!("virtserialport,chardev=control,name={PORT}")],
        ["-kernel", &image.kernel.display().to_string()],
        ["-initrd", &image.archive.display().to_string()],
        ["-append", &kernel],
    ];
    let alone = ["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_string);
    alone.into_iter().chain(words.into_iter().flatten().map(str::to_string)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version_in("QEMU emulator version 7.2.22 (Debian 1:7.2)"), Some((7, 2)));
        assert_eq!(version_in("QEMU emulator version 10.0.0"), Some((10, 0)));
        assert_eq!(version_in("busybox"), None);
    }

    #[test]
    fn a_qemu_that_is_not_there_or_is_old_or_is_none_is_named_with_what_to_do() {
        let error = Qemu::at("/no/such/qemu").unwrap_err().message;
        assert!(error.contains("apt install qemu-system-x86"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let fake = |said: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = folder.path().join("qemu");
            std::fs::write(&path, format!("#!/bin/sh\necho '{said}'\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            Qemu::at(path.to_str().unwrap()).unwrap_err().message
        };
        let error = fake("QEMU emulator version 4.1.0");
        assert!(error.contains("is QEMU 4.1") && error.contains("5.2 or newer"), "{error}");
        assert!(fake("hello").contains("does not say its version"));
    }
}
