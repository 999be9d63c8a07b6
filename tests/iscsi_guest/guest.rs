//! A running machine, and the commands that it carries out.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::image::Image;
use crate::netns::{self, Network};

/// How long it may take until the first command, without hardware virtualisation on a busy host.
const BOOTS: Duration = Duration::from_secs(90);
/// The same, with it: it takes a few seconds, or does not end.
const HELPED: Duration = Duration::from_secs(15);
/// How long a command may take, unless it is said.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// How much later than the limit of a command the machine may say that it is over.
const LATE: Duration = Duration::from_secs(10);
/// How often a condition is checked.
const AGAIN: Duration = Duration::from_millis(200);
const MEMORY: &str = "512M";
/// Lines of the kernel and of multipathd that are shown of a machine that does not do what is expected.
const SHOWN: usize = 60;

/// A running machine. It is killed by dropping it.
pub(crate) struct Guest {
    child: Child,
    commands: BufReader<UnixStream>,
    number: u32,
    /// What it has written to its console: the messages of the kernel.
    console: Arc<Mutex<String>>,
}

/// What a command has printed, and its exit code.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) text: String,
}

impl Guest {
    /// Boots a machine as this host of the network. `folder` is for its sockets. Returns when iscsid and multipathd run in it.
    pub(crate) fn boot(image: &Image, network: &Network, host: usize, folder: &Path) -> Guest {
        connect(network, host);
        // With the host's help where it gives some: known only by trying.
        let helped = Path::new("/dev/kvm").exists().then_some(("kvm", HELPED));
        let mut said = String::new();
        for (accelerator, limit) in helped.into_iter().chain([("tcg", BOOTS)]) {
            match Guest::start(image, network, host, folder, accelerator, limit) {
                Ok(guest) => return guest,
                Err(console) => said += &format!("with {accelerator}:\n{console}\n"),
            }
        }
        panic!("the machine is to boot. Its console says {said}");
    }

    /// The error is what the console said.
    fn start(
        image: &Image,
        network: &Network,
        host: usize,
        folder: &Path,
        accelerator: &str,
        limit: Duration,
    ) -> Result<Guest, String> {
        let until = Instant::now() + limit;
        let socket = folder.join(format!("guest-{host}"));
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).expect("there is room");
        listener.set_nonblocking(true).expect("it is a socket");
        let mut command = network.command(host, Path::new("qemu-system-x86_64"));
        command
            .args([
                "-M",
                "q35",
                "-accel",
                accelerator,
                "-cpu",
                "max",
                "-m",
                MEMORY,
                "-nodefaults",
                "-no-reboot",
            ])
            .args(["-display", "none", "-monitor", "none", "-serial", "stdio"])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.archive)
            .arg("-append")
            .arg(format!("console=ttyS0 quiet panic=-1 net.ifnames=0 guest={host}"))
            .args(["-netdev", &format!("tap,id=net,ifname={TAP},script=no,downscript=no")])
            .args(["-device", "virtio-net-pci,netdev=net,romfile="])
            .arg("-chardev")
            .arg(format!("socket,id=commands,path={}", socket.display()))
            .args([
                "-device",
                "virtio-serial-pci",
                "-device",
                "virtserialport,chardev=commands,name=commands",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("./dev setup --tests installs QEMU");
        let console = Arc::new(Mutex::new(String::new()));
        let streams: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("it is a pipe")),
            Box::new(child.stderr.take().expect("it is a pipe")),
        ];
        for stream in streams {
            let console = console.clone();
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut line = Vec::new();
                while stream.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    console.lock().expect("nothing panics with it").push_str(&String::from_utf8_lossy(&line));
                    line.clear();
                }
            });
        }
        let mut guest = Started { child: Some(child), console };
        let stream = loop {
            match listener.accept() {
                Ok((stream, _)) => break stream,
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && guest.runs() && Instant::now() < until =>
                {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(_) => return Err(guest.said()),
            }
        };
        stream.set_nonblocking(false).expect("it is a socket");
        let mut commands = BufReader::new(stream);
        match line_of(&mut commands, until) {
            Some(line) if line == "ready" => {}
            _ => return Err(guest.said()),
        }
        let child = guest.child.take().expect("it is there until now");
        Ok(Guest { child, commands, number: 0, console: guest.console.clone() })
    }

    /// Has the machine carry out a command of its shell, of one line, within [`LIMIT`].
    pub(crate) fn ask(&mut self, command: &str) -> Answer {
        self.ask_within(command, LIMIT)
    }

    /// The same within this time, in full seconds. If the command takes longer, the exit code is 124. Panics if the machine does not
    /// answer.
    pub(crate) fn ask_within(&mut self, command: &str, limit: Duration) -> Answer {
        self.answer(command, limit).unwrap_or_else(|| {
            let console = self.console();
            panic!("the machine does not answer: {command}\nIts console says:\n{}", end_of(&console))
        })
    }

    fn answer(&mut self, command: &str, limit: Duration) -> Option<Answer> {
        assert!(!command.contains('\n'), "a command is one line: {command}");
        self.number += 1;
        let until = Instant::now() + limit + LATE;
        let line = format!("{} {} {command}\n", self.number, limit.as_secs().max(1));
        self.commands.get_mut().write_all(line.as_bytes()).ok()?;
        let head = line_of(&mut self.commands, until)?;
        let mut fields = head.split(' ');
        let number: u32 = fields.next()?.parse().ok()?;
        let code = fields.next()?.parse().ok()?;
        let bytes: usize = fields.next()?.parse().ok()?;
        assert_eq!(number, self.number, "answers come in order");
        let mut text = vec![0; bytes];
        read_all(&mut self.commands, &mut text, until)?;
        Some(Answer { code, text: String::from_utf8_lossy(&text).into_owned() })
    }

    /// The same, and the command must succeed. Returns what it printed.
    pub(crate) fn run(&mut self, command: &str) -> String {
        self.run_within(command, LIMIT)
    }

    pub(crate) fn run_within(&mut self, command: &str, limit: Duration) -> String {
        let Answer { code, text } = self.ask_within(command, limit);
        if code != 0 {
            panic!("in the machine, {command} ends with {code}: {text}\n{}", self.state());
        }
        text
    }

    /// Waits until something is so of the machine, at most this long.
    pub(crate) fn eventually(
        &mut self,
        what: &str,
        limit: Duration,
        mut is_so: impl FnMut(&mut Guest) -> bool,
    ) {
        let until = Instant::now() + limit;
        while !is_so(self) {
            if Instant::now() > until {
                panic!("not within {limit:?}: {what}\n{}", self.state());
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// What the kernel has written so far.
    pub(crate) fn console(&self) -> String {
        self.console.lock().expect("nothing panics with it").clone()
    }

    /// Lines of the kernel by which an application, or a file system, has seen an error of the multipath device. Errors of single paths
    /// are expected if paths are cut.
    pub(crate) fn errors(&mut self) -> Vec<String> {
        let lines = self.run("dmesg");
        let is_error = |line: &&str| {
            line.contains("error, dev dm-")
                || line.contains("Buffer I/O error on dev dm-")
                || line.contains("EXT4-fs error")
                || line.contains("EXT4-fs warning")
                || line.contains("Remounting filesystem read-only")
        };
        lines.lines().filter(is_error).map(str::to_owned).collect()
    }

    /// What is known of sessions and paths, for a person.
    pub(crate) fn state(&mut self) -> String {
        let parts = [
            "iscsiadm -m session -P 1",
            "multipathd show paths",
            "multipath -ll",
            "tail -n 60 /run/multipathd.log",
            "dmesg",
        ];
        let mut text = String::new();
        for part in parts {
            let said =
                self.answer(part, Duration::from_secs(5)).map_or("no answer".into(), |answer| answer.text);
            text += &format!("== {part}\n{}\n", end_of(&said));
        }
        text
    }

    /// Turns the machine off, as its administrator does.
    pub(crate) fn power_off(mut self) {
        let _ = self.commands.get_mut().write_all(b"0 10 poweroff -f\n");
        let until = Instant::now() + LIMIT;
        while self.child.try_wait().expect("it is ours").is_none() {
            assert!(Instant::now() < until, "it turns itself off: {}", end_of(&self.console()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A machine that has not said yet that it is ready.
struct Started {
    child: Option<Child>,
    console: Arc<Mutex<String>>,
}

impl Started {
    fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_none()))
    }

    fn said(&self) -> String {
        end_of(&self.console.lock().expect("nothing panics with it"))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The interface of a guest in the namespace of its host.
const TAP: &str = "guest";

/// The addresses of the machine that is this host.
pub(crate) fn addresses(host: usize) -> [String; 2] {
    [1, 2].map(|number| format!("10.78.{host}.{number}"))
}

/// Connects the machine of a host with all other hosts: its own forwards packets, so that its links are those of the machine, and are cut
/// as those of any host. Of the kinds of [`netns::Passage`], `Down` loses the way back to the machine.
fn connect(network: &Network, host: usize) {
    let own = network.name(host);
    netns::ip(
        &["-n", &own],
        &format!(
            "tuntap add dev {TAP} mode tap\naddr add 10.78.{host}.254/24 dev {TAP}\nlink set {TAP} up\n"
        ),
    );
    let forward = network
        .command(host, Path::new("sh"))
        .args(["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])
        .status()
        .expect("it runs");
    assert!(forward.success(), "a host may forward packets");
    for peer in network.peers(host) {
        let (gateway, device) = (netns::address(host), netns::link(host));
        let line = format!(
            "route replace 10.78.{host}.0/24 via {gateway} dev {device} onlink src {}\n",
            netns::address(peer)
        );
        netns::ip(&["-n", &network.name(peer)], &line);
    }
}

/// The next line, without its end, if it comes until then.
fn line_of(stream: &mut BufReader<UnixStream>, until: Instant) -> Option<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        read_all(stream, &mut byte, until)?;
        match byte[0] {
            b'\n' => return Some(String::from_utf8_lossy(&line).into_owned()),
            other => line.push(other),
        }
    }
}

/// Fills all of it, if the bytes come until then.
fn read_all(stream: &mut BufReader<UnixStream>, into: &mut [u8], until: Instant) -> Option<()> {
    let mut got = 0;
    while got < into.len() {
        let left = until.checked_duration_since(Instant::now())?;
        stream.get_ref().set_read_timeout(Some(left.max(Duration::from_millis(1)))).ok()?;
        match stream.read(&mut into[got..]) {
            Ok(0) => return None,
            Ok(bytes) => got += bytes,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// The last lines of a text.
fn end_of(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}
