//! A node under a service manager: what it reports, and the unit by which systemd runs it.

mod nodes;

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::libc;
use nodes::Cluster;

/// The time after which the manager of these tests would end a silent node.
const SILENCE: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(40);

/// A service manager that only listens.
struct Manager {
    socket: UnixDatagram,
    node: Child,
}

impl Manager {
    /// Starts the first node of a cluster, whose process was ended.
    fn start(cluster: &Cluster) -> Manager {
        let path = cluster.folder().join("notify");
        let socket = UnixDatagram::bind(&path).expect("there is room");
        let log = std::fs::File::create(cluster.folder().join("log-of-service")).expect("there is room");
        let node = Command::new(env!("CARGO_BIN_EXE_loadline"))
            .args(["san", "serve", "--config"])
            .arg(cluster.node_folder(1).join("node.toml"))
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", SILENCE.as_micros().to_string())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program is there");
        Manager { socket, node }
    }

    /// The next report within this time.
    fn next(&self, within: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(within)).expect("it can have a limit");
        let mut text = [0; 4096];
        match self.socket.recv(&mut text) {
            Ok(bytes) => Some(String::from_utf8_lossy(&text[..bytes]).into_owned()),
            Err(why) if why.kind() == ErrorKind::WouldBlock => None,
            Err(why) => panic!("{why}"),
        }
    }

    /// Waits for a report that has this line.
    fn wait_for(&self, line: &str) {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            if self.next(Duration::from_secs(1)).is_some_and(|report| report.lines().any(|it| it == line)) {
                return;
            }
        }
        panic!("no report {line}");
    }

    /// Waits for a report with a line that begins so. No report before it says that the node is alive, once it was silent for a moment.
    fn wait_for_hang(&self, begin: &str) {
        let (begun, mut alive) = (Instant::now(), 0);
        while begun.elapsed() < LIMIT {
            match self.next(Duration::from_secs(1)) {
                Some(report) if report.lines().any(|line| line.starts_with(begin)) => {
                    // Those of the time in which the thread counts as busy.
                    assert!(alive <= 8, "{alive} reports of a node that hangs");
                    return;
                }
                Some(report) if report == "WATCHDOG=1" => alive += 1,
                _ => {}
            }
        }
        panic!("no report {begin}");
    }

    /// The thread of the node that has this name.
    fn thread(&self, name: &str) -> i32 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.node.id())).expect("it runs");
        let is_it = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let task = threads.flatten().find(is_it).expect("it has such a thread");
        task.file_name().to_str().expect("a number").parse().expect("a number")
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

/// One thread of another process that does nothing until this is dropped.
struct Frozen(i32);

impl Frozen {
    fn new(thread: i32) -> Frozen {
        // SAFETY: these calls use no memory of this process but the status, which lives longer than the call.
        unsafe {
            let none = std::ptr::null_mut::<libc::c_void>();
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, none, none), 0, "it is a child");
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none), 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(thread, &raw mut status, libc::__WALL), thread);
        }
        Frozen(thread)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the call uses no memory of this process.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}

#[test]
fn a_node_reports_that_it_serves_that_it_lives_which_thread_hangs_and_that_it_stops() {
    let mut cluster = Cluster::start(1);
    cluster.kill(1);
    let mut manager = Manager::start(&cluster);
    let first = manager.next(LIMIT).expect("it reports");
    assert_eq!(first, "READY=1\nSTATUS=node node-1 serves");
    // It takes requests at once, and its device is open.
    let status: serde_json::Value = serde_json::from_str(&cluster.http(1, "/v1/status")).expect("it is JSON");
    assert!(status["devices"][0]["taken"].is_u64(), "its device is open: {status}");
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1");
    }
    for (thread, hangs) in [
        ("loop-0", "STATUS=hangs: loop-0 has completed nothing"),
        ("config", "STATUS=hangs: config has completed nothing"),
    ] {
        let frozen = Frozen::new(manager.thread(thread));
        manager.wait_for_hang(hangs);
        while let Some(report) = manager.next(SILENCE) {
            assert_ne!(report, "WATCHDOG=1", "while {thread} hangs");
        }
        drop(frozen);
        manager.wait_for("STATUS=node node-1 serves");
        manager.wait_for("WATCHDOG=1");
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(manager.node.id() as i32), nix::sys::signal::SIGTERM)
        .expect("it runs");
    manager.wait_for("STOPPING=1");
    assert!(manager.node.wait().expect("it is ours").success());
}

/// Runs a script as root in new namespaces. `None` if this user may make none.
fn in_namespaces(kinds: &[&str], script: &str, args: &[&std::ffi::OsStr]) -> Option<std::process::Output> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("new namespaces need root: not tested");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/service").join(script);
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "240", "unshare", "--mount", "--propagation", "private"]).args(kinds);
    Some(command.arg(script).args(args).stdin(Stdio::null()).output().expect("timeout is part of coreutils"))
}

#[test]
fn join_writes_a_unit_and_enables_it_or_changes_nothing() {
    let program = env!("CARGO_BIN_EXE_loadline").as_ref();
    let Some(done) = in_namespaces(&[], "stand-in.sh", &[program]) else { return };
    assert!(
        done.status.success(),
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}

/// A loop device over a file, as long as this lives.
struct LoopDevice(String);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn systemd_runs_nodes_from_the_first_start_to_the_last() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = tempfile::tempdir().expect("there is room");
    let (unit, script) =
        (here.join("packaging/loadline-node@.service"), here.join("tests/service/script.sh"));
    let file = out.path().join("disk");
    std::fs::File::create(&file).and_then(|file| file.set_len(700 << 20)).expect("there is room");
    // Some containers have no loop devices: then the node has files alone.
    let found = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
    let found = found.ok().filter(|found| found.status.success());
    let device = found.map(|found| LoopDevice(String::from_utf8_lossy(&found.stdout).trim().to_owned()));
    let mut args = vec![
        env!("CARGO_BIN_EXE_loadline").as_ref(),
        unit.as_os_str(),
        script.as_os_str(),
        out.path().as_os_str(),
    ];
    if let Some(LoopDevice(path)) = &device {
        std::fs::write(out.path().join("device"), path.trim_start_matches("/dev/")).expect("there is room");
        args.push(path.as_ref());
    }
    let kinds = ["--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"];
    let Some(done) = in_namespaces(&kinds, "host.sh", &args) else { return };
    if done.status.code() == Some(77) {
        eprintln!("systemd cannot run here: not tested: {}", String::from_utf8_lossy(&done.stderr));
        return;
    }
    let printed = std::fs::read_to_string(out.path().join("printed")).unwrap_or_default();
    assert!(printed.ends_with("all is well\n"), "{printed}\n----\n{}", String::from_utf8_lossy(&done.stderr));
}
