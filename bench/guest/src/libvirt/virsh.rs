//! The client of libvirt, `virsh`: one process for each request, with a limit of time.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::error::{ErrorKind, GuestError};
use crate::libvirt_uri::LibvirtUri;
use crate::qmp::QmpError;

const PROGRAM: &str = "virsh";
/// How long a request may take. A busy libvirt answers within some seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// How long an output may be open after its process has ended.
const OUTPUT_LIMIT: Duration = Duration::from_secs(1);

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum VirshError {
    /// `virsh` is not there.
    Missing(std::io::Error),
    /// Libvirt, or `virsh`, refused it, in its words.
    Refused(String),
    /// There was no answer in time.
    Slow(Duration),
}

impl std::fmt::Display for VirshError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VirshError::Missing(e) => {
                write!(
                    f,
                    "{PROGRAM} cannot be started: {e}; it is libvirt's client: apt install libvirt-clients"
                )
            }
            VirshError::Refused(why) => f.write_str(why),
            VirshError::Slow(limit) => write!(f, "libvirt did not answer within {limit:?}"),
        }
    }
}

impl From<VirshError> for QmpError {
    fn from(error: VirshError) -> QmpError {
        match error {
            VirshError::Refused(why) => QmpError::Refused(why),
            VirshError::Slow(_) => {
                QmpError::Broken(std::io::Error::new(std::io::ErrorKind::TimedOut, error.to_string()))
            }
            other => QmpError::Broken(std::io::Error::other(other.to_string())),
        }
    }
}

/// The way to one libvirt of this host.
#[derive(Debug, Clone)]
pub(crate) struct Virsh {
    program: PathBuf,
    uri: String,
    limit: Duration,
}

impl Virsh {
    /// The error is of kind `Usage`: the URI is of another host.
    pub(crate) fn new(uri: &LibvirtUri) -> Result<Virsh, GuestError> {
        match uri.elsewhere() {
            None => Ok(Virsh { program: PROGRAM.into(), uri: uri.to_string(), limit: LIMIT }),
            Some((host, _)) => Err(GuestError::usage(format!(
                "libvirt = \"{uri}\": machines are started on the host of their libvirt: set ssh = \"{host}\" for the node"
            ))),
        }
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// A `virsh` with these words, whose output is read. It dies with the calling thread.
    pub(crate) fn start(&self, words: &[&str]) -> Result<Child, VirshError> {
        let mut command = Command::new(&self.program);
        command
            .args(["-q", "-c", &self.uri])
            .args(words)
            // Its words are compared.
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started_by = nix::unistd::getpid();
        // SAFETY: between fork and exec it calls prctl and getppid only, which take no locks and allocate nothing.
        unsafe {
            command.pre_exec(move || {
                nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
                match nix::unistd::getppid() == started_by {
                    true => Ok(()),
                    false => Err(std::io::ErrorKind::BrokenPipe.into()),
                }
            });
        }
        command.spawn().map_err(VirshError::Missing)
    }

    /// Has libvirt do something, and returns what `virsh` prints. `input` is what it reads.
    pub(crate) fn run(&self, words: &[&str], input: &str) -> Result<String, VirshError> {
        let mut child = self.start(words)?;
        if let Some(mut stdin) = child.stdin.take() {
            // Much less than a pipe holds, so that it does not wait. One that has ended already says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let (output, errors) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let limit = Instant::now() + self.limit;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                _ if Instant::now() < limit => thread::sleep(Duration::from_millis(3)),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(VirshError::Slow(self.limit));
                }
            }
        };
        let text = |from: mpsc::Receiver<Vec<u8>>| {
            let bytes = from.recv_timeout(OUTPUT_LIMIT).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (output, errors) = (text(output), text(errors));
        match status.success() {
            true => Ok(output),
            false => Err(VirshError::Refused(words_of(&errors).unwrap_or_else(|| {
                format!("{PROGRAM} {} ended ({status}) and did not say why", words.first().unwrap_or(&""))
            }))),
        }
    }

    /// What a failure to connect means, and what to do.
    pub(crate) fn cannot_connect(&self, error: VirshError) -> GuestError {
        let words = error.to_string();
        let denied = ["Permission denied", "authentication", "access denied", "polkit"];
        let advice = if denied.iter().any(|word| words.contains(word)) {
            ". Your user must be in the group libvirt (then log in anew); or use qemu:///session"
        } else if words.contains("Failed to connect socket") || words.contains("Connection refused") {
            ". Start libvirt there: systemctl start libvirtd (or virtqemud); apt install libvirt-daemon-system"
        } else {
            ""
        };
        // What this host lacks is not there the next time either.
        let is_lack = matches!(error, VirshError::Missing(_)) || !advice.is_empty();
        let kind = if is_lack { ErrorKind::Usage } else { ErrorKind::Failed };
        // Who reads it may be at another host, which has started this one's workers by SSH.
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        let host = host.map_or_else(|_| String::new(), |host| format!(" of the host {host}"));
        let message = format!("the libvirt at {}{host} cannot be used: {words}{advice}", self.uri);
        GuestError { kind, message }
    }
}

/// Reads an output to its end, by a thread of its own.
fn collect(output: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    if let Some(mut output) = output {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = output.read_to_end(&mut bytes);
            let _ = send.send(bytes);
        });
    }
    receive
}

/// What `virsh` says in its errors, in one line; `None`: nothing.
pub(crate) fn words_of(errors: &str) -> Option<String> {
    let lines = errors.lines().map(|line| line.trim().trim_start_matches("error: ").trim());
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_virsh_are_one_line_without_its_marks() {
        let said =
            "error: Failed to attach device from /dev/stdin\nerror: internal error: unable to open\n\n";
        assert_eq!(
            words_of(said).as_deref(),
            Some("Failed to attach device from /dev/stdin; internal error: unable to open")
        );
        assert_eq!(words_of("\n"), None);
    }

    #[test]
    fn a_virsh_that_is_slow_is_ended_and_one_that_is_killed_or_silent_is_named() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let stand_in = |lines: &str| {
            let program = folder.path().join("virsh");
            std::fs::write(&program, format!("#!/bin/sh\n{lines}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            let virsh = Virsh { program, uri: "qemu:///system".into(), limit: Duration::from_millis(300) };
            virsh.run(&["domstate", "x"], "")
        };
        let begun = Instant::now();
        let slow = stand_in("exec sleep 60").unwrap_err();
        assert!(matches!(slow, VirshError::Slow(_)) && begun.elapsed() < Duration::from_secs(30), "{slow}");
        let killed = stand_in("echo half of; kill -9 $$").unwrap_err().to_string();
        assert!(
            killed.contains("virsh domstate ended (signal: 9") && killed.contains("did not say why"),
            "{killed}"
        );
        let refused = stand_in("echo 'error: no such thing' >&2; exit 1").unwrap_err().to_string();
        assert_eq!(refused, "no such thing");
        assert_eq!(stand_in("echo running; echo \"$4\"").unwrap(), "running\ndomstate\n");
    }

    #[test]
    fn a_libvirt_that_does_not_run_or_refuses_a_user_is_named_with_what_to_do() {
        let virsh = Virsh::new(&LibvirtUri::system()).unwrap();
        let refused = |why: &str| virsh.cannot_connect(VirshError::Refused(why.into()));
        let error =
            refused("Failed to connect socket to '/run/libvirt/libvirt-sock': No such file or directory");
        assert!(error.message.contains("systemctl start libvirtd"), "{error}");
        let error = refused("Failed to connect socket to '/run/libvirt/libvirt-sock': Permission denied");
        assert!(error.message.contains("group libvirt") && error.kind == ErrorKind::Usage, "{error}");
        let error = virsh.cannot_connect(VirshError::Slow(Duration::from_secs(30)));
        assert!(error.message.contains("within 30s") && error.kind == ErrorKind::Failed, "{error}");
        let elsewhere = LibvirtUri::parse("qemu+ssh://root@a/system").unwrap();
        assert!(Virsh::new(&elsewhere).unwrap_err().message.contains("ssh = \"root@a\""));
    }
}
