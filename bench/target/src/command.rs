//! A command of the user's, run by the shell: with a limit, and without any way for what it is about to become what is run.

use std::collections::VecDeque;
use std::io::{ErrorKind as IoKind, PipeReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use loadline_base::units::TimeSpan;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::TargetError;

/// How much of the end of a command's output is kept, bytes.
const MOST_SAID: usize = 4 << 10;
/// How often a command is polled.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Its end is checked at least after so many reads of its output: one that never stops writing ends by its limit.
const READS_AT_ONCE: usize = 64;
/// How long one that was killed may take to be gone. One whose I/O hangs in the kernel is left to the kernel.
const GONE: Duration = Duration::from_secs(5);
/// The environment of commands, so that nothing of it is ever a part of their text.
pub(crate) const VARIABLES: [&str; 4] = ["NODE", "BY", "LOADLINE_ACTION", "LOADLINE_WAS"];

/// A command that has ended by itself.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// How it ended and the last of its output, in words.
    pub(crate) how: String,
}

/// Which shell reads a line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shell<'a> {
    /// `/bin/sh` on this machine.
    Here,
    /// `/bin/sh` on another host: this program with these arguments, not empty, runs there what its last argument says. It passes its
    /// input on, and when it ends the line ends there too.
    OnHost(&'a [String]),
}

/// The longest line for another host, bytes: with the variables it fits a pipe of the kernel.
const LONGEST_LINE: usize = 32 << 10;

/// What a shell of another host reads: the variables, and the line, which is read as a whole before it runs.
fn script(line: &str, variables: &[(&str, &str)]) -> String {
    let quoted = |value: &str| format!("'{}'", value.replace('\'', r"'\''"));
    let unset = format!("unset {}\n", VARIABLES.join(" "));
    let exports: String =
        variables.iter().map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect();
    // In a session of its own, all of which ends when the input does: the connection has ended then.
    format!(
        "exec 3<&0\n{unset}{exports}loadline_line=$(cat <<'LOADLINE_END'\n{line}\nLOADLINE_END\n)\n\
         $(command -v setsid) /bin/sh -c \"$loadline_line\" < /dev/null 3<&- &\nloadline_job=$!\n\
         (cat <&3 > /dev/null; kill -KILL -$loadline_job $loadline_job) > /dev/null 2>&1 &\nloadline_watch=$!\n\
         wait $loadline_job\nloadline_code=$?\nkill -KILL $loadline_watch 2> /dev/null\nexit $loadline_code\n"
    )
}

/// Runs a line with a shell, in a process group of its own. Its environment is that of the shell and these variables; of
/// [`VARIABLES`] it has no others. At the limit, and when `stop` turns true, it is killed with all of its group on this machine.
pub(crate) fn run(
    line: &str,
    shell: Shell<'_>,
    variables: &[(&str, &str)],
    limit: TimeSpan,
    stop: &AtomicBool,
) -> Result<Ended, TargetError> {
    let cannot = |e: std::io::Error| TargetError::failed(format!("\"{line}\" cannot be run: {e}"));
    let (mut reader, writer) = std::io::pipe().map_err(cannot)?;
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|e| cannot(e.into()))?;
    // Open until the command has ended.
    let mut script_end = None;
    let mut command = match shell {
        Shell::Here => {
            let mut command = Command::new("/bin/sh");
            command.arg("-c").arg(line).stdin(Stdio::null());
            command
        }
        Shell::OnHost(start) => {
            if line.len() > LONGEST_LINE {
                return Err(TargetError::usage(format!(
                    "a command of {} bytes is too long for another host: write a script there, and name it",
                    line.len()
                )));
            }
            let (input, mut end) = std::io::pipe().map_err(cannot)?;
            end.write_all(script(line, variables).as_bytes()).map_err(cannot)?;
            script_end = Some(end);
            let (program, arguments) = start.split_first().ok_or_else(|| {
                TargetError::failed("a host without a program that reaches it: this is a bug of Loadline")
            })?;
            let mut command = Command::new(program);
            command.args(arguments).arg("exec /bin/sh").stdin(input);
            command
        }
    };
    command.process_group(0);
    command.stdout(writer.try_clone().map_err(cannot)?).stderr(writer);
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let mut child = command.spawn().map_err(cannot)?;
    // It has our ends of the pipe too, until it is dropped.
    drop(command);
    let (begun, mut said) = (Instant::now(), Said::default());
    loop {
        said.receive(&mut reader);
        match child.try_wait() {
            Ok(Some(status)) => {
                // What it leaves running may hold the pipe: its end is not waited for.
                said.receive(&mut reader);
                drop(script_end);
                return Ok(Ended { code: status.code(), how: format!("{}{said}", in_words(status)) });
            }
            Ok(None) => {}
            Err(error) => {
                kill(&mut child);
                return Err(cannot(error));
            }
        }
        if stop.load(Ordering::Relaxed) {
            kill(&mut child);
            return Err(TargetError::interrupted());
        }
        if begun.elapsed() >= limit.0 {
            kill(&mut child);
            said.receive(&mut reader);
            return Err(TargetError::failed(format!(
                "\"{line}\" has not ended within {limit}, and was killed{said}"
            )));
        }
        sleep(LOOK_EVERY);
    }
}

/// Kills all of its group, and waits until it is gone itself.
fn kill(child: &mut Child) {
    // Its exit was not collected, so no other process has its number yet.
    let _ = killpg(Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)), Signal::SIGKILL);
    let begun = Instant::now();
    while begun.elapsed() < GONE && matches!(child.try_wait(), Ok(None)) {
        sleep(LOOK_EVERY);
    }
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        (None, None) => "it ended".into(),
    }
}

/// The last of a command's output.
#[derive(Debug, Default)]
struct Said {
    last: VecDeque<u8>,
    is_cut: bool,
}

impl Said {
    /// Reads the output that is there, with a bounded number of reads.
    fn receive(&mut self, from: &mut PipeReader) {
        let mut bytes = [0; MOST_SAID];
        for _ in 0..READS_AT_ONCE {
            match from.read(&mut bytes) {
                Ok(0) => return,
                Ok(count) => {
                    self.last.extend(&bytes[..count]);
                    let over = self.last.len().saturating_sub(MOST_SAID);
                    self.is_cut |= over > 0;
                    drop(self.last.drain(..over));
                }
                Err(error) if error.kind() == IoKind::Interrupted => {}
                // There is no output now. Any other error is not the command's.
                Err(_) => return,
            }
        }
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes: Vec<u8> = self.last.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        match text.trim() {
            "" => f.write_str(", and said nothing"),
            text if self.is_cut => write!(f, ", and the last that it said was: …{text}"),
            text => write!(f, ", and said: {text}"),
        }
    }
}
