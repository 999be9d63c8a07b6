//! Whether a host lets us in by SSH, before anything else is done with it.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::failure::meaning;
use super::session::HostAddress;

/// How long one attempt may take.
const LIMIT: Duration = Duration::from_secs(20);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Logs in once, and runs nothing. Blocks for at most 20 s. The error says why that does not work.
pub(in crate::launcher) fn reach(address: &HostAddress) -> Result<(), String> {
    let mut child = Command::new("ssh")
        .arg("-T")
        .args(address.options())
        .arg("--")
        .args([address.destination.as_str(), "true"])
        .env("SSH_ASKPASS", "false")
        .env("SSH_ASKPASS_REQUIRE", "force")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("ssh cannot be started: {e}; install the OpenSSH client (openssh-client)"))?;
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_EVERY),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("ssh {} did not end within {LIMIT:?}", address.destination));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    // The few lines that ssh prints are in the pipe whole.
    if let Some(errors) = child.stderr.take() {
        let _ = errors.take(16 << 10).read_to_string(&mut said);
    }
    let lines: Vec<String> = said.lines().map(String::from).collect();
    Err(meaning(&address.destination, &lines))
}
