//! Hosts in network namespaces, each with an SSH server of its own, and a machine of the controller's that reaches them.
//!
//! Host 0 is the controller's. Every other host has a host key, a name, a folder in place of its user's cache, and a log; all of it is in
//! one folder in memory, and removed with the last test that uses it. No server and no file of this machine's own SSH is used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::netns::{self, Network, address};
use crate::support::{Said, eventually, finish};

/// Hosts with an SSH server: `h1`, `h2`, ...
pub(crate) const HOSTS: usize = 4;
/// Further hosts behind them, without an SSH server: for a configuration store.
pub(crate) const FURTHER: usize = 4;
/// How long a command may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// The hosts that the tests of this process share.
static SHARED: Mutex<Weak<Hosts>> = Mutex::new(Weak::new());

pub(crate) struct Hosts {
    pub(crate) network: Network,
    pub(crate) folder: PathBuf,
    servers: Vec<Child>,
    /// Numbers for names.
    next: AtomicUsize,
}

/// The hosts; `None` where there can be none.
pub(crate) fn hosts() -> Option<Arc<Hosts>> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("network namespaces need root: not tested");
        return None;
    }
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(hosts) = shared.upgrade() {
        return Some(hosts);
    }
    let hosts = Arc::new(Hosts::new());
    *shared = Arc::downgrade(&hosts);
    Some(hosts)
}

fn done(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().expect("./dev setup --tests installs it");
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Where cargo has put the programs, and the folder of all that it makes.
fn program_folder() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_loadline")).parent().expect("a folder")
}

fn target() -> &'static Path {
    program_folder().parent().expect("cargo's folder")
}

fn key(path: &Path) -> String {
    done("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path.to_str().unwrap()]);
    fs::read_to_string(path.with_extension("pub")).unwrap()
}

/// Writes a program of a shell.
fn program_of(path: &Path, line: &str) {
    fs::write(path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Hosts {
    fn new() -> Hosts {
        netns::remove_leftovers();
        // The number tells these hosts apart from those of other tests, and from hosts that another thread still removes.
        static SETS: AtomicUsize = AtomicUsize::new(900);
        let number = SETS.fetch_add(1, Ordering::Relaxed);
        let network = Network::new(number, HOSTS + 1 + FURTHER);
        let folder = netns::folder(number);
        let mut hosts = Hosts { network, folder, servers: Vec::new(), next: AtomicUsize::new(0) };
        hosts.prepare();
        hosts
    }

    fn prepare(&mut self) {
        let folder = self.folder.clone();
        let at = |name: &str| folder.join(name).display().to_string();
        // sshd wants it, and systems without the service do not have it.
        let _ = fs::create_dir("/run/sshd");
        let program = folder.join("loadline");
        fs::copy(env!("CARGO_BIN_EXE_loadline"), &program).unwrap();
        fs::copy(program_folder().join("guest-init"), folder.join("guest-init"))
            .expect("app/guest-init/build.sh makes it");
        // What is copied to each host is a quarter without what debuggers need.
        let _ = Command::new("strip").arg("-s").arg(&program).status();
        let user = key(&folder.join("user-key"));
        key(&folder.join("other-key"));
        fs::write(folder.join("authorized_keys"), user).unwrap();
        fs::write(folder.join("banner"), "Authorized use only.\nAllocated port 1 is not for you\n").unwrap();
        let (mut known, mut wrong, mut config) = (String::new(), String::new(), String::new());
        let other = fs::read_to_string(folder.join("other-key.pub")).unwrap();
        for host in 1..=HOSTS {
            let public = key(&folder.join(format!("host-key-{host}")));
            known += &format!("{} {public}", address(host));
            wrong += &format!("{} {other}", address(host));
            config += &format!("Host h{host}\n  HostName {}\n", address(host));
            fs::create_dir_all(folder.join(format!("h{host}/data"))).unwrap();
            self.serve(host, &format!("sshd-{host}"), 22, "");
        }
        let fake = folder.join("fake");
        fs::create_dir(&fake).unwrap();
        program_of(&fake.join("uname"), "echo sparc64");
        // Host 1 has further servers: one that asks for a password, one whose shell prints, one without a shell.
        self.serve(1, "password", 2201, "PubkeyAuthentication no\nPasswordAuthentication yes\n");
        let talk = "ForceCommand echo Welcome; printf unfinished; echo noise >&2; eval \"$SSH_ORIGINAL_COMMAND\"; echo late\n";
        self.serve(1, "talks", 2202, &format!("Banner {}\n{talk}", at("banner")));
        self.serve(1, "no-shell", 2203, "ForceCommand echo This account is not available.; exit 1\n");
        self.serve(1, "no-forward", 2204, "AllowTcpForwarding no\n");
        self.serve(
            1,
            "other-machine",
            2205,
            &format!("ForceCommand PATH={}:$PATH; export PATH; eval \"$SSH_ORIGINAL_COMMAND\"\n", at("fake")),
        );
        let full = format!("trap \"\" XFSZ; ulimit -f 100; export XDG_CACHE_HOME={}", at("full"));
        self.serve(1, "full", 2206, &format!("ForceCommand {full}; eval \"$SSH_ORIGINAL_COMMAND\"\n"));
        // A host of its own cache, whose line takes little until the file `go` is there.
        let slow = format!("export XDG_CACHE_HOME={}", at("slow"));
        let line =
            format!("dd bs=64k count=16 2>/dev/null; until [ -e {} ]; do sleep 0.1; done; cat", at("go"));
        let line = format!("ForceCommand {slow}; {{ {line}; }} | eval \"$SSH_ORIGINAL_COMMAND\"\n");
        self.serve(1, "slow", 2207, &line);
        for (name, port) in [
            ("password", 2201),
            ("talks", 2202),
            ("no-shell", 2203),
            ("no-forward", 2204),
            ("other-machine", 2205),
            ("full", 2206),
            ("slow", 2207),
            ("closed", 2299),
        ] {
            config += &format!("Host {name}\n  HostName {}\n  Port {port}\n  HostKeyAlias {0}\n", address(1));
        }
        config += &format!("Host wrong-key\n  HostName {}\n  IdentityFile {}\n", address(1), at("other-key"));
        config += &format!("Host * !wrong-key\n  IdentityFile {}\n", at("user-key"));
        config +=
            &format!("Host wrong-host\n  HostName {}\n  UserKnownHostsFile {}\n", address(1), at("wrong"));
        config += &format!("Host unknown-host\n  HostName {}\n  UserKnownHostsFile /dev/null\n", address(1));
        config += &format!("Host no-user\n  HostName {}\n  User nobody-of-this-name\n", address(1));
        config += &format!("Host jumped\n  HostName {}\n  ProxyJump h2\n", address(1));
        config += "Host silent\n  HostName 10.77.0.200\n  ConnectTimeout 2\n";
        config += &format!(
            "Host *\n  User root\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n  \
             GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  IdentityAgent none\n",
            at("known")
        );
        fs::write(folder.join("known"), known).unwrap();
        fs::write(folder.join("wrong"), wrong).unwrap();
        fs::write(folder.join("config"), config).unwrap();
        // The user's own configuration of ssh, in place of that in the home directory.
        fs::create_dir(folder.join("bin")).unwrap();
        program_of(&folder.join("bin/ssh"), &format!("exec /usr/bin/ssh -F {} \"$@\"", at("config")));
        for host in 1..=HOSTS {
            eventually("the SSH server answers", LIMIT, || {
                self.controller(Path::new("ssh"))
                    .args([&format!("h{host}"), "true"])
                    .stderr(Stdio::null())
                    .status()
                    .unwrap()
                    .success()
            });
        }
    }

    /// Starts an SSH server on a host.
    fn serve(&mut self, host: usize, name: &str, port: u16, more: &str) {
        let file = |name: String| self.folder.join(name).display().to_string();
        let config = format!(
            "ListenAddress {}:{port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\nUseDNS no\n\
             SetEnv XDG_CACHE_HOME={} LOADLINE_GUEST_KERNEL={}\n{more}",
            address(host),
            file(format!("host-key-{host}")),
            file("authorized_keys".into()),
            file(format!("h{host}/cache")),
            // A host has its kernel in /boot; these have the one of the tests.
            target().join("guest").display(),
        );
        let path = self.folder.join(format!("{name}.conf"));
        fs::write(&path, config).unwrap();
        let log = fs::File::create(self.folder.join(format!("{name}.log"))).unwrap();
        let line = format!("hostname h{host} && exec /usr/sbin/sshd -D -e -f {}", path.display());
        let server = self
            .network
            .command(host, Path::new("unshare"))
            .args(["--uts", "sh", "-c", &line])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("unshare is part of util-linux");
        self.servers.push(server);
    }

    /// A command on the controller's machine, with its configuration of SSH.
    pub(crate) fn controller(&self, program: &Path) -> Command {
        let path =
            format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        // `ip netns exec` looks the program up itself.
        let program = if program == Path::new("ssh") { self.folder.join("bin/ssh") } else { program.into() };
        let mut command = self.network.command(0, &program);
        command.env("PATH", path).current_dir(&self.folder);
        command
    }

    /// `loadline` on the controller's machine, its output taken.
    pub(crate) fn loadline(&self, words: &[&str]) -> Command {
        let mut command = self.controller(&self.folder.join("loadline"));
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Said {
        finish(self.loadline(words).spawn().expect("it starts"), LIMIT)
    }

    /// Ends at once all that runs on a host but the server that accepts connections.
    pub(crate) fn end_connections(&self, host: usize) {
        let output = Command::new("ip").args(["netns", "pids", &self.network.name(host)]).output().unwrap();
        for id in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            if self.servers.iter().all(|server| server.id().to_string() != id) {
                let _ = Command::new("kill").args(["-9", id]).stderr(Stdio::null()).status();
            }
        }
    }

    /// A name that no other test of this process uses.
    pub(crate) fn name(&self, what: &str) -> String {
        format!("{what}-{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Writes a study, and returns its path.
    pub(crate) fn study(&self, text: &str) -> String {
        let path = self.folder.join(format!("{}.toml", self.name("study")));
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The folder of a host in which the tests make files.
    pub(crate) fn data(&self, host: usize) -> PathBuf {
        self.folder.join(format!("h{host}/data"))
    }

    /// Command lines of the processes that the controller or SSH started on a host, servers of SSH apart.
    pub(crate) fn processes(&self, host: usize) -> Vec<String> {
        let output = Command::new("ip").args(["netns", "pids", &self.network.name(host)]).output().unwrap();
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = lines.split_whitespace().filter_map(|id| fs::read(format!("/proc/{id}/cmdline")).ok());
        let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
        lines.filter(|line| line.contains("loadline") && !line.contains("sshd")).collect()
    }

    /// Waits until nothing runs on a host, and nothing temporary is there.
    pub(crate) fn is_left_clean(&self, host: usize) {
        self.is_left_clean_but(host, "\n");
    }

    /// The same, apart from processes with these words in their command lines.
    pub(crate) fn is_left_clean_but(&self, host: usize, words: &str) {
        // What other tests run there ends too.
        let limit = LIMIT;
        let none = || self.processes(host).iter().all(|line| line.contains(words));
        eventually(&format!("h{host} is clean"), limit, none);
        let cache = self.folder.join(format!("h{host}/cache/loadline/programs"));
        for program in fs::read_dir(&cache).into_iter().flatten().flatten() {
            let names = || -> Vec<_> {
                let entries = fs::read_dir(program.path()).unwrap().flatten();
                entries.map(|entry| entry.file_name()).filter(|name| name != "loadline").collect()
            };
            eventually("no copy that is not whole is left", limit, || names().is_empty());
        }
        let made = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("loadline-");
        eventually("no file of a run is left", limit, || {
            !fs::read_dir(self.data(host)).unwrap().flatten().any(|entry| made(&entry.file_name()))
        });
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
