//! A worker that is a process of this program on this machine.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::error::FleetError;
use crate::identity::WorkerId;
use crate::launcher::WorkerExit;
use crate::node::NodeSpec;
use crate::orders::{Answered, Awaited, KeeperOrder, line_of};
use crate::started::{MACHINE_VARIABLE, StartedMachine};

/// How many bytes of what a worker printed last are kept for the message about its exit.
const LAST_WORDS: usize = 2 << 10;
/// How long a process whose connection ended may take to be dead, so that its death is named and not the
/// connection's end.
const DEATH_LIMIT: Duration = Duration::from_millis(300);

/// How often it is looked whether a process group is gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a keeper may take to read an order.
const ORDER_LIMIT: Duration = Duration::from_secs(2);

/// The exit code of a worker that refuses its command line or its order.
const USAGE: i32 = 2;

/// The environment variable in which a token travels to a child: every user of the host can read a command line.
pub const TOKEN_VARIABLE: &str = "LOADLINE_TOKEN";

/// The environment variable that carries to a worker the address at which other hosts reach its host, where its connection to the controller
/// does not say it.
const HOST_IP_VARIABLE: &str = "LOADLINE_HOST_IP";

/// The address that the process which started this worker gave it for its host.
pub(crate) fn given_host_ip() -> Option<IpAddr> {
    std::env::var(HOST_IP_VARIABLE).ok()?.parse().ok()
}

/// The environment variable that carries the controller's process id to a child.
const CONTROLLER_VARIABLE: &str = "LOADLINE_CONTROLLER_PID";

/// Whether the controller that started this process as its child was gone before anything could bind the two lives
/// together. A process without that variable relies on its connection alone.
pub(crate) fn is_orphan() -> bool {
    let expected = std::env::var(CONTROLLER_VARIABLE).ok().and_then(|pid| pid.parse().ok());
    is_other_parent(expected, std::os::unix::process::parent_id())
}

fn is_other_parent(expected: Option<u32>, parent: u32) -> bool {
    expected.is_some_and(|controller| controller != parent)
}

/// How a local worker is started, each time anew.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) program: PathBuf,
    pub(crate) id: WorkerId,
    pub(crate) node: NodeSpec,
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) controller: SocketAddr,
    pub(crate) token: Arc<str>,
    pub(crate) log_dir: Option<PathBuf>,
    /// The address at which other hosts reach this one, if the connection to the controller does not say it.
    pub(crate) host_ip: Option<IpAddr>,
    /// The virtual machine that this host is, if the worker is the first one in it.
    pub(crate) machine: Option<StartedMachine>,
    /// The address at which it receives a machine of another host, in place of being a worker. The token is the key of that migration.
    pub(crate) receive: Option<IpAddr>,
}

/// Where the last lines are that a worker printed on its standard error.
#[derive(Debug)]
enum ErrorOutput {
    /// Here; the task ends with what it reads.
    Kept(Arc<Mutex<Vec<u8>>>, JoinHandle<()>),
    /// At the end of this file.
    Logged(PathBuf),
}

/// A running worker process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct LocalWorker {
    child: Child,
    /// Its process group: of a machine's keeper, QEMU is in it too.
    group: Option<Pid>,
    output: ErrorOutput,
    /// What its keeper is to answer.
    awaited: Awaited,
}

impl Launch {
    /// Starts the process.
    pub(crate) fn start(&self) -> Result<LocalWorker, FleetError> {
        let mut command = Command::new(&self.program);
        command
            .arg0("loadline")
            .args(["worker", "--child", "--join", &reachable(self.controller).to_string()])
            .args(["--name", &self.id.0, "--node", &self.node.name])
            .args(self.node.cpus.iter().flat_map(|cpus| ["--cpus", cpus]))
            .env(TOKEN_VARIABLE, &*self.token)
            .env(CONTROLLER_VARIABLE, std::process::id().to_string())
            .envs(self.host_ip.map(|ip| (HOST_IP_VARIABLE, ip.to_string())))
            .envs(
                self.machine
                    .as_ref()
                    .and_then(|m| Some((MACHINE_VARIABLE, serde_json::to_string(&m.launched()).ok()?))),
            )
            // Orders about a machine, which the process keeps.
            .stdin(if self.node.machine.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(if self.node.machine.is_some() { Stdio::piped() } else { Stdio::null() })
            // Ctrl-C on the terminal is for the controller, which orders the workers to stop.
            .process_group(0)
            .kill_on_drop(true);
        if let Some(machine) = &self.node.machine {
            command.arg("--machine").arg(serde_json::to_string(machine).expect("a machine is JSON"));
        }
        if let Some(ip) = self.receive {
            command.arg("--receive").arg(ip.to_string());
        }
        for group in &self.cgroups {
            command.arg("--cgroup").arg(group);
        }
        let log =
            self.log_dir.as_ref().map(|folder| folder.join(format!("{}.log", self.id.0.replace('/', "-"))));
        match &log {
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path).map_err(|e| {
                    FleetError::failed(format!(
                        "cannot write the log of worker {}, {}: {e}",
                        self.id,
                        path.display()
                    ))
                })?;
                command.stderr(file)
            }
            None => command.stderr(Stdio::piped()),
        };
        let mut child = command.spawn().map_err(|e| {
            FleetError::failed(format!("cannot start worker {} ({}): {e}", self.id, self.program.display()))
        })?;
        let words = match (log, child.stderr.take()) {
            (Some(path), _) => ErrorOutput::Logged(path),
            (None, stderr) => {
                let kept = Arc::default();
                let task = tokio::spawn(keep_last_words(stderr, Arc::clone(&kept)));
                ErrorOutput::Kept(kept, task)
            }
        };
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let awaited = Awaited::of(child.stdout.take());
        Ok(LocalWorker { child, group, output: words, awaited })
    }
}

/// The address at which a process of this machine reaches a listener.
pub(crate) fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

async fn keep_last_words(stderr: Option<ChildStderr>, kept: Arc<Mutex<Vec<u8>>>) {
    let Some(mut stderr) = stderr else { return };
    let mut bytes = [0; 1024];
    while let Ok(n @ 1..) = stderr.read(&mut bytes).await {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(&bytes[..n]);
        let surplus = kept.len().saturating_sub(LAST_WORDS);
        kept.drain(..surplus);
    }
}

fn end_of_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(LAST_WORDS as u64)))?;
    let mut bytes = Vec::new();
    file.take(LAST_WORDS as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl LocalWorker {
    /// How it ended, if it has.
    pub(crate) async fn ended(&mut self) -> Option<WorkerExit> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(self.exit(status).await)
    }

    /// How it ended, if it does so within [`DEATH_LIMIT`]: its connection has ended.
    pub(crate) async fn ends_now(&mut self) -> Option<WorkerExit> {
        let status = timeout(DEATH_LIMIT, self.child.wait()).await.ok()?.ok()?;
        Some(self.exit(status).await)
    }

    /// Waits until it has ended by itself, with all that it has started: a QEMU whose keeper is killed may still write to its disks for a
    /// moment. `false`: it has not within `limit`.
    pub(crate) async fn wait(&mut self, limit: Duration) -> bool {
        let ended = async {
            let _ = self.child.wait().await;
            while self.group_lives() {
                sleep(LOOK_EVERY).await;
            }
        };
        timeout(limit, ended).await.is_ok()
    }

    /// Orders something of the keeper of the machine that it is.
    pub(crate) async fn order(&mut self, order: &KeeperOrder) -> Result<(), FleetError> {
        let failed = |why: &str| FleetError::failed(format!("the virtual machine takes no orders: {why}"));
        let input = self.child.stdin.as_mut().ok_or_else(|| failed("the worker is a process"))?;
        let written = timeout(ORDER_LIMIT, input.write_all(line_of(order).as_bytes())).await;
        written.map_err(|_| failed("it reads none"))?.map_err(|e| failed(&e.to_string()))
    }

    /// Orders that its machine is migrated.
    pub(crate) async fn migrate(&mut self, node: &str, order: &KeeperOrder) -> Result<Answered, FleetError> {
        let answered = self.awaited.one(node);
        self.order(order).await?;
        Ok(answered)
    }

    /// Gets the address at which it receives a machine; none if it ends before.
    pub(crate) fn address(&self) -> oneshot::Receiver<SocketAddr> {
        self.awaited.address()
    }

    /// The node to which its machine was migrated last; `None` if it was not.
    pub(crate) fn node(&self) -> Option<String> {
        self.awaited.node()
    }

    /// Whether a process of its group is left. Once none is, the group is forgotten: its number may become a stranger's.
    fn group_lives(&mut self) -> bool {
        self.group = self.group.filter(|group| killpg(*group, None).is_ok());
        self.group.is_some()
    }

    /// Kills it, without waiting.
    pub(crate) fn kill(&mut self) {
        // An error means that it has ended.
        let _ = self.child.start_kill();
        let _ = self.group.map(|group| killpg(group, Signal::SIGKILL));
    }

    async fn exit(&mut self, status: ExitStatus) -> WorkerExit {
        self.group_lives();
        let words = match &mut self.output {
            ErrorOutput::Kept(kept, task) => {
                // What it said may still be in the pipe.
                if !task.is_finished() {
                    let _ = timeout(DEATH_LIMIT, task).await;
                }
                kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
            }
            ErrorOutput::Logged(path) => end_of_file(path).unwrap_or_default(),
        };
        let words = String::from_utf8_lossy(&words);
        let last: Vec<&str> = words.lines().rev().filter(|l| !l.trim().is_empty()).take(3).collect();
        let last = last.into_iter().rev().collect::<Vec<_>>().join(" | ");
        let message = match last.is_empty() {
            true => format!("its process ended ({status})"),
            false => format!("its process ended ({status}); its last output: {last}"),
        };
        WorkerExit { message, usage: status.code() == Some(USAGE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(program: &str) -> Launch {
        Launch {
            program: program.into(),
            id: WorkerId("a/0".into()),
            node: NodeSpec::named("a"),
            cgroups: Vec::new(),
            controller: SocketAddr::from(([0, 0, 0, 0], 7)),
            token: "secret-token".into(),
            log_dir: None,
            host_ip: None,
            machine: None,
            receive: None,
        }
    }

    fn script(folder: &Path, text: &str) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().into()
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn a_child_whose_parent_is_not_its_controller_is_an_orphan() {
        assert!(is_other_parent(Some(4711), 1));
        assert!(!is_other_parent(Some(4711), 4711) && !is_other_parent(None, 1));
    }

    #[test]
    fn the_token_travels_in_the_environment_and_never_in_the_arguments() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "echo \"args: $*; env: $LOADLINE_TOKEN\" >&2; exit 3");
        let exit = run(async { launch(&program).start().unwrap().ends_now().await }).unwrap().message;
        assert!(exit.contains("env: secret-token") && exit.contains("exit status: 3"), "{exit}");
        assert!(exit.contains("--child --join 127.0.0.1:7 --name a/0 --node a;"), "{exit}");
    }

    #[test]
    fn what_a_worker_said_last_is_in_its_log_and_in_its_exit() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "seq 1 5000 >&2; echo 'out of ideas' >&2; kill -9 $$");
        let launch = Launch { log_dir: Some(folder.path().into()), ..launch(&program) };
        let exit = run(async { launch.start().unwrap().ends_now().await }).unwrap().message;
        assert!(exit.contains("signal: 9") && exit.ends_with("5000 | out of ideas"), "{exit}");
        assert!(std::fs::read_to_string(folder.path().join("a-0.log")).unwrap().starts_with("1\n2\n"));
    }

    #[test]
    fn a_worker_that_does_not_end_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let program = script(folder.path(), "trap '' TERM INT; while :; do sleep 0.1; done");
        let ended = run(async {
            let mut worker = launch(&program).start().unwrap();
            assert_eq!(worker.ended().await, None);
            assert!(!worker.wait(Duration::from_millis(50)).await);
            worker.kill();
            assert!(worker.wait(Duration::from_secs(5)).await);
            worker.ended().await
        });
        assert!(ended.unwrap().message.contains("signal: 9"));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run(async { launch("/no/such/loadline").start().unwrap_err() });
        assert!(error.message.contains("/no/such/loadline") && error.message.contains("a/0"), "{error}");
    }
}
