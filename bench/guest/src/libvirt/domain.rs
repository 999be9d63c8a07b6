//! One machine that libvirt runs: a transient domain, which libvirt destroys when the `virsh` that created it is gone.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{UnixCredentials, getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::devices::DomainBus;
use super::folder::{MachineFolder, life_of};
use super::virsh::{Virsh, VirshError, words_of};
use super::{Libvirt, xml};
use crate::bus::Bus;
use crate::error::GuestError;
use crate::image::Image;
use crate::machine::Machine;
use crate::monitor::Monitor;
use crate::qemu::Acceleration;
use crate::qmp::QmpError;
use crate::running::Running;
use crate::words::Words;

/// How long libvirt may take to start a machine's QEMU. The first time it asks that QEMU what it can, which takes some seconds.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a machine's QEMU that was killed may take to be gone.
const END_LIMIT: Duration = Duration::from_secs(10);
/// How long an earlier machine of the same worker may take to be gone.
const EARLIER_LIMIT: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(5);

/// A running domain, and our ends of its connections. Dropping it destroys it.
#[derive(Debug)]
pub(crate) struct Domain {
    virsh: Virsh,
    name: String,
    /// The `virsh` that holds the domain.
    holder: Child,
    control: UnixStream,
    qemu: UnixCredentials,
    /// Which process the QEMU is, also when another process has its number.
    life: String,
    words: Words,
    /// There until the machine has booted.
    folder: Option<MachineFolder>,
}

impl Domain {
    /// Starts a machine for the worker of this name. An earlier one of this worker is destroyed first.
    pub(crate) fn start(
        libvirt: &Libvirt,
        worker: &str,
        machine: &Machine,
        image: &Image,
        acceleration: Acceleration,
    ) -> Result<Domain, GuestError> {
        let name = domain_name(worker);
        let virsh = libvirt.virsh.clone();
        remove_earlier(&virsh, &name)?;
        let (folder, control, console) = MachineFolder::make(image)?;
        let text = xml::domain(&name, worker, machine, &folder, acceleration);
        // It goes on to wait for events of the domain, and so keeps its connection, with which the domain ends.
        let order =
            format!("create --autodestroy /dev/stdin; event --domain {name} --event lifecycle --loop");
        let mut holder = virsh.start(&[&order]).map_err(|e| GuestError::usage(e.to_string()))?;
        let begun = begin(&mut holder, &name, &text, &control, &console);
        let (control, console, qemu) = match begun {
            Ok(connections) => connections,
            Err(why) => {
                let _ = holder.kill();
                let _ = holder.wait();
                // What QEMU began with is about to be removed.
                let _ = virsh.run(&["destroy", &name], "");
                return Err(GuestError::failed(format!(
                    "libvirt does not start the virtual machine {name}: {why}"
                )));
            }
        };
        let life = life_of(u32::try_from(qemu.pid()).unwrap_or_default());
        let words = Words::default();
        // From here on an error drops the domain, which ends it at once.
        let mut domain = Domain { virsh, name, holder, control, qemu, life, words, folder: Some(folder) };
        domain.listen(console).map_err(|e| {
            GuestError::failed(format!("the connection of the virtual machine {}: {e}", domain.name))
        })?;
        Ok(domain)
    }

    /// Reads what the console and the `virsh` that holds the domain print.
    fn listen(&mut self, console: UnixStream) -> io::Result<()> {
        self.words.read(console)?;
        let outputs: [Option<Box<dyn Read + Send>>; 2] = [
            self.holder.stdout.take().map(|output| Box::new(output) as _),
            self.holder.stderr.take().map(|output| Box::new(output) as _),
        ];
        outputs.into_iter().flatten().try_for_each(|output| self.words.read(output))
    }

    /// Waits until its QEMU is gone; `false`: it is not within the limit.
    fn is_gone_within(&self, limit: Duration) -> bool {
        let limit = Instant::now() + limit;
        while self.process_lives() {
            if Instant::now() >= limit {
                return false;
            }
            thread::sleep(POLL_EVERY);
        }
        true
    }

    fn process_lives(&self) -> bool {
        lives(self.process(), &self.life)
    }
}

/// Hands the domain to `virsh`, and waits until its QEMU has connected. The error is in words.
fn begin(
    holder: &mut Child,
    name: &str,
    text: &str,
    control: &UnixListener,
    console: &UnixListener,
) -> Result<(UnixStream, UnixStream, UnixCredentials), String> {
    if let Some(mut stdin) = holder.stdin.take() {
        // One that has ended already says why.
        let _ = stdin.write_all(text.as_bytes());
    }
    let limit = Instant::now() + START_LIMIT;
    let (mut first, mut second) = (None, None);
    loop {
        for (listener, connection) in [(control, &mut first), (console, &mut second)] {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(false).map_err(|e| e.to_string())?;
                // The names of the sockets are in QEMU's command line, which every user of the host can read.
                let peer = getsockopt(&stream, PeerCredentials).map_err(|e| e.to_string())?;
                if u32::try_from(peer.pid()).is_ok_and(|process| is_domain(process, name)) {
                    *connection = Some((stream, peer));
                }
            }
        }
        if let (Some((control, qemu)), Some((console, _))) = (&first, &second) {
            let copy = |stream: &UnixStream| stream.try_clone().map_err(|e| e.to_string());
            return Ok((copy(control)?, copy(console)?, *qemu));
        }
        if let Ok(Some(status)) = holder.try_wait() {
            let mut errors = String::new();
            if let Some(mut output) = holder.stderr.take() {
                let _ = output.read_to_string(&mut errors);
            }
            let words = words_of(&errors);
            // That there are no events of a domain which does not start is no news.
            let first = words.as_deref().and_then(|words| words.split("; failed to get domain").next());
            let unsaid = || format!("virsh ended ({status}) and did not say why");
            return Err(first.map_or_else(unsaid, str::to_string));
        }
        if Instant::now() >= limit {
            return Err(format!("its QEMU did not connect within {START_LIMIT:?}; see libvirt's own log"));
        }
        thread::sleep(POLL_EVERY);
    }
}

/// Sees to it that there is no domain of this name: one that an earlier machine of this worker was may still write to its disks.
fn remove_earlier(virsh: &Virsh, name: &str) -> Result<(), GuestError> {
    let limit = Instant::now() + EARLIER_LIMIT;
    let mut why = String::new();
    loop {
        match virsh.run(&["domstate", name], "") {
            Err(VirshError::Refused(words)) if words.contains("failed to get domain") => return Ok(()),
            Err(error) => return Err(virsh.cannot_connect(error)),
            Ok(_) if Instant::now() >= limit => {
                return Err(GuestError::failed(format!(
                    "libvirt has a machine {name} already, which cannot be destroyed{why}: remove it with virsh destroy, or virsh \
                     undefine"
                )));
            }
            Ok(_) => match virsh.run(&["destroy", name], "") {
                Ok(_) => {}
                Err(error) => why = format!(" ({error})"),
            },
        }
        thread::sleep(POLL_EVERY);
    }
}

/// The name of a worker's domain: the same for each machine of a worker, so that libvirt never runs two of them, and another for each
/// run.
fn domain_name(worker: &str) -> String {
    let run = life_of(std::os::unix::process::parent_id());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digest = Sha256::digest(format!("{boot} {run}"));
    let run: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    format!("loadline-{run}-{}", worker.chars().map(safe).collect::<String>())
}

/// Whether this process is the QEMU of libvirt's domain of this name.
pub(crate) fn is_domain(process: u32, name: &str) -> bool {
    let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let wanted = format!("guest={name}");
    line.split(|byte| *byte == 0)
        .any(|word| String::from_utf8_lossy(word).split(',').any(|part| part == wanted))
}

/// Whether the process that had this life has a thread that has not ended: one that was killed may write to its disks until then, also when
/// its command line is gone.
fn lives(process: u32, life: &str) -> bool {
    let has_ended = |stat: &str| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']));
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    life_of(process) == life && stats.any(|stat| !has_ended(&stat))
}

impl Running for Domain {
    fn control(&self) -> &UnixStream {
        &self.control
    }

    fn bus(&mut self, machine: &Machine) -> Result<Box<dyn Bus>, QmpError> {
        let mut bus = DomainBus::new(self.virsh.clone(), self.name.clone(), machine, self.qemu);
        // Libvirt has QEMU wait, when a machine has turned itself off, until libvirt ends it: without a libvirt forever. A QEMU before 6.0
        // does not know the command, and waits.
        let _ = bus.command("set-action", json!({ "shutdown": "poweroff" }));
        Ok(Box::new(bus))
    }

    fn monitor(&self) -> Result<Monitor, GuestError> {
        Ok(Monitor::Libvirt(self.virsh.clone(), self.name.clone()))
    }

    fn process(&self) -> u32 {
        u32::try_from(self.qemu.pid()).unwrap_or_default()
    }

    fn ended(&mut self, limit: Duration) -> Option<String> {
        if !self.is_gone_within(limit) {
            return None;
        }
        let libvirt = match self.virsh.run(&["version", "--daemon"], "") {
            Ok(_) => String::new(),
            Err(error) => format!(", and libvirt does not answer any more ({error})"),
        };
        Some(format!("libvirt's domain {} has ended{libvirt}", self.name))
    }

    fn last_words(&mut self) -> String {
        let ended = !self.process_lives();
        if ended {
            // It holds nothing any more, and its output would be waited for.
            let _ = self.holder.kill();
        }
        self.words.last(ended)
    }

    fn end(&mut self) {
        // It waits until the domain is gone; an error means that it is, or that libvirt is.
        let destroyed = !self.process_lives() || self.virsh.run(&["destroy", &self.name], "").is_ok();
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        if !destroyed && self.process_lives() {
            // Without this right the machine turns itself off, when its keeper is gone.
            let killed = kill(Pid::from_raw(self.qemu.pid()), Signal::SIGKILL);
            // It may write to its disks until it is gone.
            if killed.is_ok() {
                self.is_gone_within(END_LIMIT);
            }
        }
    }

    fn booted(&mut self) {
        self.folder = None;
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::libvirt_uri::LibvirtUri;

    #[test]
    fn a_machine_whose_libvirt_is_gone_is_killed_and_gone_when_its_end_returns() {
        // In place of QEMU: what has much memory takes a while to be gone.
        const MEMORY: u64 = 128 << 20;
        let [zeros, all] = [MEMORY, 2 * MEMORY].map(|bytes| bytes.to_string());
        let mut head = Command::new("head");
        let mut head = head.args(["-c", &zeros, "/dev/zero"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut qemu = Command::new("tail");
        let qemu = qemu.args(["-c", &all]).stdin(head.stdout.take().unwrap()).stdout(Stdio::piped());
        let mut qemu = qemu.spawn().unwrap();
        let kib = || {
            let status = fs::read_to_string(format!("/proc/{}/status", qemu.id())).unwrap();
            let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
            kib.map_or(0, |kib| kib.parse::<u64>().unwrap())
        };
        let limit = Instant::now() + START_LIMIT;
        while kib() < MEMORY >> 10 {
            assert!(Instant::now() < limit, "it has its memory");
            thread::sleep(POLL_EVERY);
        }
        head.wait().unwrap();
        let (control, _machine) = UnixStream::pair().unwrap();
        let us = getsockopt(&control, PeerCredentials).unwrap();
        let pid = i32::try_from(qemu.id()).unwrap();
        let peer = nix::libc::ucred { pid, uid: us.uid(), gid: us.gid() };
        let life = life_of(qemu.id());
        let domain = Domain {
            virsh: Virsh::new(&LibvirtUri::parse("qemu:///system?socket=/no/libvirt").unwrap()).unwrap(),
            name: "loadline-test".into(),
            holder: Command::new("true").spawn().unwrap(),
            control,
            qemu: UnixCredentials::from(peer),
            life: life.clone(),
            words: Words::default(),
            folder: None,
        };
        assert!(lives(qemu.id(), &life) && !lives(qemu.id(), "1-1"));
        drop(domain);
        assert!(!lives(qemu.id(), &life), "its end returns when it is gone");
        assert!(!qemu.wait().unwrap().success());
    }

    #[test]
    fn the_name_of_a_workers_domain_is_always_the_same_and_is_one_that_libvirt_takes() {
        let name = domain_name("node-1/0");
        assert_eq!(name, domain_name("node-1/0"));
        assert!(name.starts_with("loadline-") && name.ends_with("-node-1-0"), "{name}");
        assert!(domain_name("a;b c'd").ends_with("-a-b-c-d"));
    }

    #[test]
    fn a_process_is_the_machine_of_a_domain_only_by_its_whole_name() {
        let process = std::process::Command::new("sh")
            .args(["-c", "read line", "-name", "guest=loadline-1-a,debug-threads=on"])
            .stdin(std::process::Stdio::piped())
            .spawn();
        let mut process = process.unwrap();
        // The kernel shows the words of a program a moment after the program has begun.
        let words = format!("/proc/{}/cmdline", process.id());
        let limit = Instant::now() + START_LIMIT;
        while fs::read(&words).unwrap().is_empty() {
            assert!(Instant::now() < limit, "its words are shown");
            thread::sleep(POLL_EVERY);
        }
        let found = ["loadline-1-a", "loadline-1", "loadline-1-ab"].map(|name| is_domain(process.id(), name));
        drop(process.stdin.take());
        process.wait().unwrap();
        assert_eq!(found, [true, false, false]);
    }
}
