//! A real etcd, on this machine, for tests.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long an etcd may take to start.
const STARTS: Duration = Duration::from_secs(30);

/// Members of an etcd. They end, and their data are removed, when this is dropped.
pub(crate) struct Server {
    folder: tempfile::TempDir,
    ports: Vec<(u16, u16)>,
    members: Mutex<Vec<Option<Child>>>,
    /// Options of each member.
    options: Vec<String>,
    /// The files with which clients connect by TLS: the authority's certificate, a client's, and its key.
    tls: Option<[PathBuf; 3]>,
}

/// A port that is free now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port is free").port()
}

impl Server {
    /// Starts an etcd of so many members.
    pub(crate) fn start(members: usize) -> Server {
        Server::with(members, &[])
    }

    /// Starts one whose members have these options.
    pub(crate) fn with(members: usize, options: &[&str]) -> Server {
        Server::launch(members, options, None)
    }

    /// Starts one of a single member that serves clients by TLS only, and only those with a certificate. `server` are the certificate
    /// and the key of the member; `client` the authority's certificate, a client's, and its key.
    pub(crate) fn with_tls(server: [&Path; 2], client: [PathBuf; 3]) -> Server {
        let text = |path: &Path| path.to_str().expect("it is ASCII").to_owned();
        let (cert, key, ca) = (text(server[0]), text(server[1]), text(&client[0]));
        let options =
            ["--cert-file", &cert, "--key-file", &key, "--trusted-ca-file", &ca, "--client-cert-auth"];
        Server::launch(1, &options, Some(client))
    }

    fn launch(members: usize, options: &[&str], tls: Option<[PathBuf; 3]>) -> Server {
        let server = Server {
            folder: tempfile::tempdir().expect("there is room"),
            ports: (0..members).map(|_| (free_port(), free_port())).collect(),
            members: Mutex::new((0..members).map(|_| None).collect()),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            tls,
        };
        (0..members).for_each(|member| server.spawn(member));
        (0..members).for_each(|member| server.wait(member));
        server
    }

    /// Where the member serves clients.
    pub(crate) fn endpoint(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.ports[member].0)
    }

    /// Where all members serve clients, as in a URL.
    pub(crate) fn endpoints(&self) -> String {
        (0..self.ports.len()).map(|member| self.endpoint(member)).collect::<Vec<_>>().join(",")
    }

    fn data(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("member-{member}"))
    }

    fn spawn(&self, member: usize) {
        let peers = |at: usize| format!("http://127.0.0.1:{}", self.ports[at].1);
        let all: Vec<String> = (0..self.ports.len()).map(|at| format!("m{at}={}", peers(at))).collect();
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://{}", self.endpoint(member));
        let log =
            std::fs::File::create(self.folder.path().join(format!("log-{member}"))).expect("there is room");
        let child = Command::new("etcd")
            .args(["--name", &format!("m{member}"), "--data-dir"])
            .arg(self.data(member))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peers(member), "--initial-advertise-peer-urls", &peers(member)])
            .args(["--initial-cluster", &all.join(","), "--logger", "zap"])
            .args(&self.options)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd is installed: './dev setup --tests' does that");
        self.members.lock().unwrap()[member] = Some(child);
    }

    /// Waits until a member serves.
    fn wait(&self, member: usize) {
        let begun = Instant::now();
        while TcpStream::connect(self.endpoint(member)).is_err()
            || !self.etcdctl(&["endpoint", "health", "--endpoints", &self.endpoint(member)])
        {
            assert!(begun.elapsed() < STARTS, "etcd starts: {}", self.log(member));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self, member: usize) -> String {
        std::fs::read_to_string(self.folder.path().join(format!("log-{member}"))).unwrap_or_default()
    }

    /// Kills a member.
    pub(crate) fn kill(&self, member: usize) {
        if let Some(mut child) = self.members.lock().unwrap()[member].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal to the process of a member.
    pub(crate) fn signal(&self, member: usize, signal: nix::sys::signal::Signal) {
        let id = self.members.lock().unwrap()[member].as_ref().expect("it runs").id();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id as i32), signal).expect("it runs");
    }

    /// Starts a member again.
    pub(crate) fn restart(&self, member: usize) {
        self.spawn(member);
        self.wait(member);
    }

    fn client(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        if let Some(files) = &self.tls {
            ["ETCDCTL_CACERT", "ETCDCTL_CERT", "ETCDCTL_KEY"].iter().zip(files).for_each(|(name, file)| {
                command.env(name, file);
            });
        }
        command
    }

    /// Runs `etcdctl`. Whether it succeeded.
    pub(crate) fn etcdctl(&self, arguments: &[&str]) -> bool {
        let run = self.client().args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.expect("etcdctl is installed: './dev setup --tests' does that").success()
    }

    /// What `etcdctl` prints. It must succeed.
    pub(crate) fn output(&self, arguments: &[&str]) -> String {
        let run = self.client().args(arguments).output();
        let output = run.expect("etcdctl is installed: './dev setup --tests' does that");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Takes a backup of the only member. The returned function puts it in place of what is there then, as the manual of etcd describes.
    pub(crate) fn backup(&self) -> impl FnOnce(&Server) + use<> {
        let file = self.folder.path().join("backup");
        let _ = std::fs::remove_file(&file);
        let path = |path: &Path| path.to_str().expect("it is ASCII").to_owned();
        assert!(self.etcdctl(&["--endpoints", &self.endpoint(0), "snapshot", "save", &path(&file)]));
        move |server: &Server| {
            server.kill(0);
            let data = server.data(0);
            std::fs::remove_dir_all(&data).expect("it was there");
            let peer = format!("http://127.0.0.1:{}", server.ports[0].1);
            assert!(server.etcdctl(&[
                "snapshot",
                "restore",
                &path(&file),
                "--data-dir",
                &path(&data),
                "--name",
                "m0",
                "--initial-cluster",
                &format!("m0={peer}"),
                "--initial-advertise-peer-urls",
                &peer,
                "--initial-cluster-token",
                "restored",
            ]));
            server.restart(0);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        (0..self.ports.len()).for_each(|member| self.kill(member));
    }
}
