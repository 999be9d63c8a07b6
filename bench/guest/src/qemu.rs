//! QEMU as a process: found, checked, started. It dies with the thread that started it, and leaves nothing on any disk: its connections
//! are sockets that it inherits.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;

use crate::control::PORT;
use crate::error::GuestError;
use crate::image::Image;
use crate::machine::Machine;

/// The oldest QEMU that has what is used here: memory of a memfd for vhost-user, and connections by inherited sockets.
const OLDEST: (u32, u32) = (5, 2);
/// How many bytes of what QEMU and the console of the machine print are kept: a kernel that panics prints many lines after its reason.
const LAST_WORDS: usize = 64 << 10;
/// How many lines of them an error has.
const LAST_LINES: usize = 3;
/// How long it may take to read what a QEMU printed that has ended.
const WORDS_LIMIT: Duration = Duration::from_secs(1);

/// What runs a machine's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub(crate) child: Child,
    pub(crate) control: UnixStream,
    pub(crate) orders: UnixStream,
    pub(crate) more_orders: UnixStream,
    words: Arc<Mutex<Vec<u8>>>,
    /// The threads that read the words; each ends with its output.
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    /// Starts a machine: for a worker, or for a session with a shell.
    pub(crate) fn start(
        qemu: &Qemu,
        machine: &Machine,
        image: &Image,
        acceleration: Acceleration,
        shell: bool,
    ) -> Result<Process, GuestError> {
        let failed = |e: &dyn std::fmt::Display| {
            GuestError::failed(format!("{} cannot be started: {e}", qemu.program))
        };
        let (control, its_control) = UnixStream::pair().map_err(|e| failed(&e))?;
        let (orders, its_orders) = UnixStream::pair().map_err(|e| failed(&e))?;
        let (more_orders, its_more) = UnixStream::pair().map_err(|e| failed(&e))?;
        let inherited = [its_control, its_orders, its_more].map(OwnedFd::from);
        let numbers = inherited.each_ref().map(AsRawFd::as_raw_fd);
        let mut command = Command::new(&qemu.program);
        command.args(arguments(machine, image, acceleration, numbers, shell));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if shell {
            // Ctrl-C at the terminal is for the command that keeps the machine: it ends the session, and the machine after it.
            command.process_group(0);
        }
        let started_by = nix::unistd::getpid();
        // SAFETY: between fork and exec it calls prctl, getppid and fcntl only, which take no locks and allocate nothing.
        unsafe {
            command.pre_exec(move || {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                if nix::unistd::getppid() != started_by {
                    return Err(std::io::ErrorKind::BrokenPipe.into());
                }
                for number in numbers {
                    // SAFETY: the sockets are open in the parent until the child was spawned, and so in the child.
                    let socket = std::os::fd::BorrowedFd::borrow_raw(number);
                    fcntl(socket, FcntlArg::F_SETFD(FdFlag::empty()))?;
                }
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|e| failed(&e))?;
        drop(inherited);
        let words = Arc::default();
        let mut readers = Vec::new();
        let outputs = [
            child.stdout.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
            child.stderr.take().map(|output| Box::new(output) as Box<dyn Read + Send>),
        ];
        for output in outputs.into_iter().flatten() {
            let kept = Arc::clone(&words);
            let keep = move || keep_last_words(output, &kept);
            let reader = thread::Builder::new().name("console".into()).spawn(keep);
            readers.push(reader.map_err(|e| failed(&e))?);
        }
        Ok(Process { child, control, orders, more_orders, words, readers })
    }

    /// What the console and QEMU printed last, at most [`LAST_LINES`] lines. If QEMU has ended, that is all that it printed.
    pub(crate) fn last_words(&mut self) -> String {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            let limit = Instant::now() + WORDS_LIMIT;
            while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < limit {
                thread::sleep(Duration::from_millis(2));
            }
        }
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        last_lines(&String::from_utf8_lossy(&words))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // A kernel that panics says why in one line. What follows is for its makers; what its first process said is before it.
    let panic = lines.iter().position(|line| line.contains("Kernel panic"));
    let end = panic.map_or(lines.len(), |panic| panic + 1);
    lines[end.saturating_sub(LAST_LINES)..end].join(" | ")
}

fn keep_last_words(mut output: Box<dyn Read + Send>, kept: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = output.read(&mut bytes) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&bytes[..read]);
        let surplus = kept.len().saturating_sub(LAST_WORDS);
        kept.drain(..surplus);
    }
}

fn arguments(
    machine: &Machine,
    image: &Image,
    acceleration: Acceleration,
    [control, orders, more_orders]: [RawFd; 3],
    shell: bool,
) -> Vec<String> {
    let (accelerator, cpu) = match (acceleration, std::env::consts::ARCH) {
        (Acceleration::Hardware, _) => ("kvm", "host"),
        // Every feature that a processor offers is one that the kernel probes for, in software: 4.3 s of boot in place of 2.
        (Acceleration::Software, "x86_64") => ("tcg", "qemu64"),
        (Acceleration::Software, _) => ("tcg", "max"),
    };
    let (board, console) = match std::env::consts::ARCH {
        "x86_64" => ("pc", "ttyS0"),
        _ => ("virt", "ttyAMA0"),
    };
    let memory = machine.memory.0;
    let mut kernel = format!("console={console} quiet panic=-1 unknown_nmi_panic random.trust_cpu=on");
    if std::env::consts::ARCH == "x86_64" {
        // The kernel waits for ticks of its timer by counting instructions, and panics ("IO-APIC + timer doesn't work") if a busy host lets
        // QEMU run too little meanwhile. With KVM it leaves that out by itself.
        kernel += " no_timer_check";
    }
    if shell {
        kernel += " loadline.shell";
    }
    let words = [
        ["-machine", &format!("{board},accel={accelerator},memory-backend=memory")],
        ["-cpu", cpu],
        ["-smp", &machine.cpus.to_string()],
        ["-m", &format!("{}M", memory >> 20)],
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
    fn last_lines_end_with_the_panic_of_a_kernel_and_begin_before_it() {
        assert_eq!(last_lines("1\n\n2\r\n3\n4\n"), "2 | 3 | 4");
        assert_eq!(
            last_lines("1\n2\n3\n[ 2.0] Kernel panic: why\nCPU: 0\nCall Trace:\n"),
            "2 | 3 | [ 2.0] Kernel panic: why"
        );
        assert_eq!(last_lines(""), "");
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
