//! A program that runs until it ends, a limit has passed, or Ctrl-C is pressed.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::stop;

/// How often the program is polled.
const TICK: Duration = Duration::from_millis(50);
/// What was asked to end may take so long.
const GRACE: Duration = Duration::from_secs(30);
/// The end of what it wrote, as far as it is shown.
const TAIL: i64 = 1500;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It exited with this code.
    Code(i32),
    /// Something killed it.
    Signal(i32),
    /// It took longer than this, and was ended.
    Limit(Duration),
    /// Ctrl-C was pressed.
    Stopped,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Code(code) => write!(f, "exit code {code}"),
            Ending::Signal(signal) => write!(f, "killed by signal {signal}"),
            Ending::Limit(limit) => write!(f, "ended, since it took more than {} s", limit.as_secs()),
            Ending::Stopped => write!(f, "stopped"),
        }
    }
}

impl From<ExitStatus> for Ending {
    fn from(status: ExitStatus) -> Ending {
        match status.code() {
            Some(code) => Ending::Code(code),
            None => Ending::Signal(status.signal().unwrap_or(0)),
        }
    }
}

/// Runs a program whose output goes to two files. It is a group of processes of its own, so that Ctrl-C at the terminal
/// reaches it once, from here. `progress` is called every second.
pub(crate) fn run(
    command: &mut Command,
    (out, errors): (File, File),
    limit: Duration,
    mut progress: impl FnMut(Duration),
) -> io::Result<Ending> {
    command.stdin(Stdio::null()).stdout(out).stderr(errors).process_group(0);
    let mut running = Running(command.spawn()?);
    let begun = Instant::now();
    let mut reported = Duration::ZERO;
    loop {
        if let Some(status) = running.0.try_wait()? {
            return Ok(status.into());
        }
        let so_far = begun.elapsed();
        if stop::asked() > 0 {
            running.end()?;
            return Ok(Ending::Stopped);
        }
        if so_far > limit {
            running.end()?;
            return Ok(Ending::Limit(limit));
        }
        if so_far >= reported {
            progress(so_far);
            reported = so_far + Duration::from_secs(1);
        }
        std::thread::sleep(TICK);
    }
}

/// A process, with all that it started in its group. It is killed when dropped.
struct Running(Child);

impl Running {
    /// Asks it to end, and kills it if it does not, or if the user cannot wait.
    fn end(&mut self) -> io::Result<()> {
        // It may have ended meanwhile.
        let _ = kill(self.pid(), Signal::SIGINT);
        let asked = Instant::now();
        while asked.elapsed() < GRACE && stop::asked() < 2 {
            if self.0.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(TICK);
        }
        self.kill();
        Ok(())
    }

    fn kill(&mut self) {
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.0.wait();
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(i32::MAX))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            self.kill();
        }
    }
}

/// The end of a file, to show why.
pub(crate) fn tail(path: &Path) -> String {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::End(-TAIL.min(i64::try_from(length).unwrap_or(TAIL))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    read().unwrap_or_default()
}
