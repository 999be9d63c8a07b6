//! Hosts of a rack on which a how-to is followed: each has a network namespace with its address, and mount, process and host name
//! namespaces of its own (`host.sh`), with one shell that runs what is typed there.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::nodes::hosts::Hosts;
use super::page::{self, Again, Block, Section, Step};

/// The addresses of the hosts begin so.
const NETWORK: [u8; 3] = [10, 0, 0];
/// The folders of runs begin so, and go on with the id of the process.
const PREFIX: &str = "loadline-witness-";
/// How long the commands of a block may take.
const BLOCK: Duration = Duration::from_secs(120);
/// How long it may take until a block that shows a state shows the expected one.
const SHOWS: Duration = Duration::from_secs(120);

/// The hosts, by the last byte of their addresses.
pub(crate) struct Rack {
    hosts: Vec<Host>,
    network: Hosts,
    folder: PathBuf,
    /// Scripts that were typed.
    typed: usize,
    begun: Instant,
}

struct Host {
    name: &'static str,
    number: u8,
    shell: Option<Shell>,
}

struct Shell {
    child: Child,
    scripts: ChildStdin,
    codes: Receiver<String>,
}

/// Where a run keeps what is gone with it: in memory, if there is a place.
fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.into() } else { std::env::temp_dir() }
}

/// The folder with the programs of etcd.
fn etcd() -> PathBuf {
    let beside = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in a folder").join("etcd/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([beside]);
    folders.find(|folder| folder.join("etcd").is_file()).expect("./dev setup --tests installs etcd")
}

/// Removes the folders of runs whose process is dead.
fn remove_leftovers() {
    for entry in fs::read_dir(place()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX);
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Rack {
    /// Starts hosts of these names, each with the last byte of its address.
    pub(crate) fn start(names: &[(&'static str, u8)]) -> Rack {
        remove_leftovers();
        let most = names.iter().map(|(_, number)| *number).max().expect("there are hosts");
        let folder = place().join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir_all(&folder).expect("there is room");
        let hosts = names.iter().map(|&(name, number)| Host { name, number, shell: None }).collect();
        let mut rack = Rack {
            hosts,
            network: Hosts::in_network(NETWORK, most),
            folder,
            typed: 0,
            begun: Instant::now(),
        };
        names.iter().for_each(|(name, _)| rack.boot(name));
        rack
    }

    fn host(&self, name: &str) -> &Host {
        let found = self.hosts.iter().find(|host| host.name == name);
        found.unwrap_or_else(|| panic!("there is no host {name}"))
    }

    /// The address of a host.
    pub(crate) fn address(&self, name: &str) -> Ipv4Addr {
        let [a, b, c] = NETWORK;
        Ipv4Addr::new(a, b, c, self.host(name).number)
    }

    /// The folder of a host's files, as this machine sees it.
    fn files(&self, name: &str) -> PathBuf {
        self.folder.join(self.address(name).to_string())
    }

    /// Puts a file into root's folder on a host.
    pub(crate) fn put(&self, host: &str, name: &str, content: &str) {
        fs::write(self.files(host).join("root").join(name), content).expect("there is room");
    }

    /// Switches a host on. What is enabled there starts.
    pub(crate) fn boot(&mut self, name: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/witness/host.sh");
        let files = self.files(name);
        fs::create_dir_all(&files).expect("there is room");
        let said = File::options().create(true).append(true).open(files.join("said")).expect("there is room");
        let mut command = self.network.command(self.host(name).number, "unshare");
        command.args(["--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc", "bash"]);
        command.arg(script).arg(&files).arg(name).arg(etcd()).arg(env!("CARGO_BIN_EXE_loadline"));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said)
            .spawn()
            .expect("nsenter and unshare are part of util-linux");
        let (scripts, codes) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (send, receive) = channel();
        std::thread::spawn(move || {
            BufReader::new(codes).lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let ready = receive.recv_timeout(BLOCK);
        let said = fs::read_to_string(files.join("said")).unwrap_or_default();
        assert_eq!(ready.as_deref(), Ok("ready"), "host {name} starts: {said}");
        let host = self.hosts.iter_mut().find(|host| host.name == name).expect("it was found above");
        host.shell = Some(Shell { child, scripts, codes: receive });
        self.plug(name);
    }

    /// Takes the power of a host away: all its processes end at once, and nothing is sent that says so.
    pub(crate) fn power_off(&mut self, name: &str) {
        self.unplug(name);
        let host = self.hosts.iter_mut().find(|host| host.name == name).expect("there is such a host");
        drop(host.shell.take());
    }

    /// Takes the cable of a host out.
    pub(crate) fn unplug(&self, name: &str) {
        self.network.unplug(self.host(name).number);
    }

    /// Puts the cable of a host in again.
    pub(crate) fn plug(&self, name: &str) {
        self.network.plug(self.host(name).number);
    }

    /// Cuts or mends the connection of two hosts, both ways.
    pub(crate) fn connect(&self, one: &str, other: &str, connected: bool) {
        let (one, other) = (self.host(one).number, self.host(other).number);
        for (from, to) in [(one, other), (other, one)] {
            if connected { self.network.mend(from, to) } else { self.network.cut(from, to) }
        }
    }

    /// Types commands on a host. The exit code and what was printed.
    pub(crate) fn type_on(&mut self, name: &str, commands: &str) -> (i32, String) {
        self.typed += 1;
        let (file, files) = (format!("typed-{}", self.typed), self.files(name));
        fs::write(files.join(&file), commands).expect("there is room");
        let host = self.hosts.iter_mut().find(|host| host.name == name);
        let shell = host.and_then(|host| host.shell.as_mut());
        let shell = shell.unwrap_or_else(|| panic!("host {name} is on"));
        writeln!(shell.scripts, "/run/host/{file}").expect("the shell reads");
        let code = shell.codes.recv_timeout(BLOCK);
        let printed = fs::read_to_string(files.join(format!("{file}.out"))).unwrap_or_default();
        match code {
            Ok(code) => (code.parse().expect("a number"), printed),
            // `set -e` ends the shell.
            Err(RecvTimeoutError::Disconnected) => panic!("on {name}: {commands}\nfailed: {printed}"),
            Err(RecvTimeoutError::Timeout) => {
                panic!("on {name}: {commands}\ndid not end within {BLOCK:?}: {printed}")
            }
        }
    }

    /// Types the commands of a section where the page says, in its order, and compares what they print.
    pub(crate) fn follow(&mut self, page: &[Section], section: &Section) {
        for step in &section.steps {
            match step {
                Step::Type(block) => block.hosts.iter().for_each(|host| self.follow_block(host, block)),
                Step::Again(again) => self.repeat(page, again),
            }
        }
    }

    fn repeat(&mut self, page: &[Section], again: &Again) {
        for link in &again.sections {
            let section = page.iter().find(|section| section.link() == *link);
            let section = section.unwrap_or_else(|| panic!("there is a section {link}"));
            for (host, other) in &again.hosts {
                section.blocks_of(other).for_each(|block| self.follow_block(host, block));
            }
        }
    }

    fn follow_block(&mut self, host: &str, block: &Block) {
        eprintln!("{:.1} s: line {} on {host}", self.begun.elapsed().as_secs_f64(), block.line);
        let commands = &block.commands;
        if block.prints.is_empty() {
            self.type_on(host, &format!("set -e\n{commands}\nset +e\n"));
            return;
        }
        // The exit code says how the state is, which is compared. All but the last command, which shows the state, are typed once.
        let (before, shows) = commands.rsplit_once('\n').unwrap_or(("", commands));
        self.type_on(host, &format!("set -e\n{before}\nset +e\n"));
        let begun = Instant::now();
        loop {
            let (_, printed) = self.type_on(host, shows);
            let Some(missing) = page::missing(&block.prints, &printed) else { return };
            let waited = begun.elapsed();
            assert!(waited < SHOWS, "line {}: '{shows}' is to show '{missing}': {printed}", block.line);
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The first process of the host ends with it, and with that all others.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The pipe is held by the first process until it has ended.
        while self.codes.recv_timeout(BLOCK).is_ok() {}
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        self.hosts.iter_mut().for_each(|host| drop(host.shell.take()));
        if std::thread::panicking() {
            for host in &self.hosts {
                for entry in fs::read_dir(self.files(host.name).join("log")).into_iter().flatten().flatten() {
                    let log = fs::read_to_string(entry.path()).unwrap_or_default();
                    let shown = if entry.file_name() == "loadline" { 60 } else { 10 };
                    let from = log.lines().count().saturating_sub(shown);
                    let last: Vec<&str> = log.lines().skip(from).collect();
                    eprintln!("---- {} on {}\n{}", entry.file_name().display(), host.name, last.join("\n"));
                }
            }
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
