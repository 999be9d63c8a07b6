//! A node's process.

use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use loadline_cgroup::NodeGroups;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::TargetError;
use crate::network::NodeNetwork;

/// How long one may take to stop after a signal; then it is killed.
const STOPS: Duration = Duration::from_secs(10);
/// How often the process is polled.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// One that runs, or has ended. Killed when this is dropped.
#[derive(Debug)]
pub(crate) struct NodeProcess {
    child: Child,
    log: PathBuf,
}

impl NodeProcess {
    /// Starts `loadline san serve` in these control groups, and in this network if there is one; what it says goes behind what is in its log. It ends with the thread that
    /// starts it.
    pub(crate) fn start(
        program: &Path,
        config: &Path,
        log: &Path,
        groups: &NodeGroups,
        network: Option<&NodeNetwork>,
    ) -> Result<NodeProcess, TargetError> {
        let open = || File::options().create(true).append(true).open(log);
        let out = open().and_then(|out| Ok((out.try_clone()?, out)));
        let (out, err) = out.map_err(|e| TargetError::io("open", log, &e))?;
        let mut command = Command::new(program);
        command
            .args(["san", "serve", "--with-parent", &std::process::id().to_string(), "--config"])
            .arg(config);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        // Ctrl-C at the terminal is for the study, which stops its nodes when it is done.
        command.process_group(0);
        let child = match network {
            Some(network) => network.spawn(&mut command)?,
            None => command.spawn().map_err(|e| TargetError::io("start", program, &e))?,
        };
        let mut process = NodeProcess { child, log: log.to_path_buf() };
        // All threads that it has begun by now move with it.
        if let Err(error) = groups.admit(process.pid()) {
            // If it has ended at once, why it has is what matters.
            return Err(match process.ended() {
                Some(how) => TargetError::failed(format!("a node of the cluster has ended: {how}")),
                None => error.into(),
            });
        }
        Ok(process)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Why it has ended, in words; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{}; what it said is in {}", in_words(status), self.log.display()))
    }

    /// Sends a signal to the process. The error is that of the system, as if the process has ended.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), TargetError> {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX));
        kill(pid, signal)
            .map_err(|e| TargetError::failed(format!("{signal} to the node's process {pid}: {e}")))
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        // It may have ended already; one whose I/O hangs in the kernel is left to the kernel.
        let _ = self.child.kill();
        let begun = Instant::now();
        while begun.elapsed() < STOPS && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Orders the process to end, also if it is stopped.
    pub(crate) fn ask_to_stop(&self) {
        // A stopped process would not receive SIGTERM.
        let _ = self.signal(Signal::SIGCONT);
        let _ = self.signal(Signal::SIGTERM);
    }

    /// Waits until the process has ended after SIGTERM, up to a limit, and then kills it.
    pub(crate) fn stop(&mut self, asked: Instant) {
        while asked.elapsed() < STOPS && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_EVERY);
        }
        self.kill();
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        (None, None) => "it ended".into(),
    }
}
