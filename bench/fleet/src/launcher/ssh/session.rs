//! A connection to one host by the system's `ssh`: the program is copied where it is missing, and an agent runs there.
//!
//! `ssh` is a child of this process, without a connection of its own to share (`ControlPath=none`) and without a terminal. When this
//! process ends, however it ends, the child's input ends, and with it the agent and its workers.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::failure::{last_of, meaning};
use super::messages::{FromAgent, LONGEST_LINE, ToAgent};
use super::program::{PROGRAMS_VARIABLE, Programs};
use crate::copies::CopyReporter;
use crate::error::FleetError;
use crate::node::NodeSpec;
use crate::token::random_token;

/// How long `ssh` may take until a shell of the host answers. Its own limit of 10 s ends only the dialling.
const SHELL_LIMIT: Duration = Duration::from_secs(40);
/// How long the copy of the program may take.
const COPY_LIMIT: Duration = Duration::from_secs(900);
/// How long the agent may take to start, and to take a message.
const AGENT_LIMIT: Duration = Duration::from_secs(20);
/// How long the last words of a connection that ended are waited for.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(2);
/// Lines of a host that are kept for messages.
const LINES_KEPT: usize = 40;
/// Messages of the agent that wait.
const MESSAGES_WAITING: usize = 64;

/// What runs on the host: one line without single quotes, backslashes and exclamation marks, so that every login shell hands it to
/// `/bin/sh` as it is. It reports the architecture; reads the checksum and the size of the program; takes the program from its input
/// if the host does not have it, for [`COPY_LIMIT`] at most, since it does not notice a network that is cut; and becomes the agent. A
/// temporary file carries the number of the process that writes it.
const SCRIPT: &str = r#"m=MARKER; say() { echo "$m $*"; }; sum() { sha256sum "$1" | cut -c 1-64; }; fail() { say failed "$*"; exit 3; }; echo; say architecture "$(uname -m)"; read -r s n || exit 3; d=${XDG_CACHE_HOME:-$HOME/.cache}/loadline/programs; p=$d/$s/loadline; umask 077; mkdir -p "$d/$s" && touch "$d/$s" || fail "cannot make the folder $d"; for f in "$d"/*/new.*; do kill -0 "${f##*.}" 2>/dev/null || rm -f "$f"; done; find "$d" -mindepth 1 -maxdepth 1 -type d -mtime +30 -exec rm -rf {} +; t=$d/$s/new.$$; clean() { rm -f "$t"; }; if [ "$(sum "$p" 2>/dev/null)" != "$s" ]; then trap clean 0; trap "exit 3" 1 2 13 15; say needed; w=$(command -v timeout); ${w:+$w 900} head -c "$n" > "$t" || fail "cannot write to $d"; [ "$(sum "$t")" = "$s" ] || fail "the copy in $d is not whole"; chmod 700 "$t" && mv -f "$t" "$p" || fail "cannot write to $d"; fi; say starting; exec "$p" host-agent "$m""#;

/// Where a host is.
#[derive(Debug, Clone)]
pub(crate) struct HostAddress {
    /// The name of its node.
    pub(crate) node: String,
    /// What `ssh` takes.
    pub(crate) destination: String,
    pub(crate) key: Option<PathBuf>,
    /// The file with the only keys that the host may have. `None`: as `ssh_config` decides.
    pub(crate) known_hosts: Option<PathBuf>,
}

impl HostAddress {
    pub(crate) fn failed(&self, why: impl std::fmt::Display) -> FleetError {
        FleetError::failed(self.says(why))
    }

    pub(crate) fn usage(&self, why: impl std::fmt::Display) -> FleetError {
        FleetError::usage(self.says(why))
    }

    /// The options of `ssh` for each connection to it.
    pub(crate) fn options(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = Vec::new();
        let option = |text: &str| ["-o".into(), OsString::from(text)];
        match (&self.key, &self.known_hosts) {
            (Some(key), Some(_)) => all.extend(option(&format!("IdentityFile={}", literal(key)))),
            // Of a study: ssh may expand it.
            (Some(key), None) => all.extend(["-i".into(), key.clone().into_os_string()]),
            (None, _) => {}
        }
        all.extend(OPTIONS.iter().flat_map(|text| option(text)));
        if let Some(file) = &self.known_hosts {
            let strict =
                ["StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null", "IdentitiesOnly=yes"];
            all.extend(strict.iter().flat_map(|text| option(text)));
            all.extend(option(&format!("UserKnownHostsFile={}", literal(file))));
        }
        all
    }

    fn says(&self, why: impl std::fmt::Display) -> String {
        format!("host {} ({}): {why}", self.node, self.destination)
    }
}

/// A path as an option of `ssh` takes it: as one word, also with blanks, and with nothing in it that is expanded, such as `%h`.
fn literal(path: &Path) -> String {
    let path = path.display().to_string().replace('%', "%%");
    format!("\"{}\"", path.replace('\\', "\\\\").replace('"', "\\\""))
}

/// What the agent said of its host.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) client: Option<std::net::IpAddr>,
}

/// The lines that a host printed and that are no messages, the last ones last.
type Said = Arc<Mutex<Vec<String>>>;

/// A running connection. Dropping it ends it, and with it the agent and its workers.
#[derive(Debug)]
pub(crate) struct Session {
    address: HostAddress,
    child: Child,
    input: ChildStdin,
    messages: mpsc::Receiver<String>,
    said: Said,
    port: watch::Receiver<Option<u16>>,
    pub(crate) ready: Ready,
}

impl Session {
    /// Connects, copies the program if it is missing there, and starts the agent. With `forward`, a port of the host leads to this
    /// address.
    pub(crate) async fn open(
        address: &HostAddress,
        programs: &Programs,
        forward: Option<SocketAddr>,
    ) -> Result<Session, FleetError> {
        let marker = format!("loadline-{}", &random_token()?[..16]);
        let mut child = command(address, &marker, forward).spawn().map_err(|e| {
            FleetError::failed(format!(
                "ssh cannot be started: {e}; install the OpenSSH client (openssh-client)"
            ))
        })?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(address.failed("ssh has no pipes"));
        };
        let said = Said::default();
        let (send, messages) = mpsc::channel(MESSAGES_WAITING);
        let (send_port, port) = watch::channel(None);
        tokio::spawn(read_output(output, marker, send, Arc::clone(&said)));
        tokio::spawn(read_errors(errors, send_port, Arc::clone(&said)));
        let ready = Ready { client: None };
        let mut session = Session { address: address.clone(), child, input, messages, said, port, ready };
        session.start(programs).await?;
        Ok(session)
    }

    async fn start(&mut self, programs: &Programs) -> Result<(), FleetError> {
        let architecture = self.word("architecture", SHELL_LIMIT).await?;
        let program = programs
            .of(&architecture)
            .map_err(|e| FleetError { message: self.address.says(e.message), ..e })?;
        let wanted = format!("{} {}\n", program.checksum, program.bytes.len());
        // If this fails, the host's answer says why.
        let _ = timeout(AGENT_LIMIT, self.input.write_all(wanted.as_bytes())).await;
        let mut state = self.next(COPY_LIMIT).await?;
        if state == "needed" {
            let node = self.address.node.clone();
            let copy = CopyReporter::begin(&programs.copies, &node, program.bytes.len() as u64);
            let _ = timeout(COPY_LIMIT, self.copy(&program.bytes, &copy)).await;
            state = self.next(COPY_LIMIT).await?;
            if state == "starting" {
                copy.complete();
            }
        }
        if let Some(what) = state.strip_prefix("failed ") {
            let said = self.last_words().await;
            let why = last_of(&said).map(|why| format!(" ({why})")).unwrap_or_default();
            return Err(self.address.failed(format!(
                "the program cannot be copied: {what}{why}. Make room there, or set XDG_CACHE_HOME on the host to a folder that has \
                 room and allows programs"
            )));
        }
        if state != "starting" {
            return Err(self.address.failed(format!("its shell answered {:?}", state)));
        }
        match self.receive_within(AGENT_LIMIT).await {
            Some(FromAgent::Ready { version, client, .. }) if version == env!("CARGO_PKG_VERSION") => {
                self.ready = Ready { client };
                Ok(())
            }
            Some(FromAgent::Ready { version, .. }) => Err(self.address.usage(format!(
                "the program for its architecture is loadline {}, and this is {}: use the same version for both",
                version.escape_default(),
                env!("CARGO_PKG_VERSION")
            ))),
            _ => {
                let said = self.last_words().await;
                let why = last_of(&said).unwrap_or_else(|| "it says nothing".into());
                Err(self.address.failed(format!(
                    "the program does not start there: {why}. If a library is missing or older there, name a folder that has the \
                     static program, as loadline-{architecture}, in {PROGRAMS_VARIABLE}"
                )))
            }
        }
    }

    /// Sends the program. If that fails, the host's answer says why.
    async fn copy(&mut self, mut bytes: &[u8], copy: &CopyReporter<'_>) {
        while let Ok(sent @ 1..) = self.input.write(bytes).await {
            copy.sent(sent as u64);
            bytes = &bytes[sent..];
        }
    }

    /// The port of the host that leads to the controller.
    pub(crate) async fn forwarded_port(&mut self) -> Result<u16, FleetError> {
        let port = timeout(AGENT_LIMIT, self.port.wait_for(Option::is_some)).await;
        let port = port.ok().and_then(|port| *port.ok()?);
        port.ok_or_else(|| {
            self.address.failed("ssh did not report the port that it forwards: is it OpenSSH?")
        })
    }

    /// The next message of the agent; `None` if the connection has ended. Nothing is lost if the future is dropped.
    pub(crate) async fn receive(&mut self) -> Option<FromAgent> {
        serde_json::from_str(&self.messages.recv().await?).ok()
    }

    async fn receive_within(&mut self, limit: Duration) -> Option<FromAgent> {
        timeout(limit, self.receive()).await.ok()?
    }

    /// Sends a message to the agent. `false`: the connection has ended, or takes nothing.
    pub(crate) async fn send(&mut self, message: &ToAgent) -> bool {
        let Ok(mut text) = serde_json::to_string(message) else { return false };
        text.push('\n');
        matches!(timeout(AGENT_LIMIT, self.input.write_all(text.as_bytes())).await, Ok(Ok(())))
    }

    /// Waits so long for `ssh` to end by itself.
    pub(crate) async fn ends_within(&mut self, limit: Duration) {
        let _ = timeout(limit, self.child.wait()).await;
    }

    /// Why the connection has ended, in words.
    pub(crate) async fn why_ended(&mut self) -> String {
        let said = self.last_words().await;
        last_of(&said).unwrap_or_else(|| "without a word".into())
    }

    async fn word(&mut self, name: &str, limit: Duration) -> Result<String, FleetError> {
        let line = self.next(limit).await?;
        let word = line.strip_prefix(name).map(|rest| rest.trim().to_string());
        word.ok_or_else(|| self.address.failed(format!("its shell answered {line:?}")))
    }

    /// The next line that begins with the marker, without it.
    async fn next(&mut self, limit: Duration) -> Result<String, FleetError> {
        match timeout(limit, self.messages.recv()).await {
            Ok(Some(line)) => Ok(line),
            Err(_) => Err(self.address.failed(format!("no answer of its shell within {limit:?}"))),
            Ok(None) => {
                let status = timeout(LAST_WORDS_LIMIT, self.child.wait()).await.ok().and_then(Result::ok);
                let said = self.last_words().await;
                // 255: ssh itself failed. Anything else is of the host's shell.
                if status.and_then(|status| status.code()) == Some(255) {
                    return Err(self.address.failed(meaning(&self.address.destination, &said)));
                }
                let why = last_of(&said).map(|why| format!(": {why}")).unwrap_or_default();
                Err(self.address.failed(format!(
                    "its shell ran no command{why}. The user needs a shell there that runs commands (POSIX sh, bash, zsh, fish)"
                )))
            }
        }
    }

    /// What the host said, once `ssh` has ended or had time to.
    async fn last_words(&mut self) -> Vec<String> {
        let _ = timeout(LAST_WORDS_LIMIT, self.child.wait()).await;
        // The reader of its errors ends with it.
        let _ = timeout(LAST_WORDS_LIMIT, async { while self.port.changed().await.is_ok() {} }).await;
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The options of each connection.
const OPTIONS: [&str; 13] = [
    // A question would never be answered.
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "LogLevel=INFO",
    "RequestTTY=no",
    "ForwardX11=no",
    "ForwardAgent=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    // A shared connection would outlive this process, and the forwarded port with it.
    "ControlMaster=no",
    "ControlPath=none",
    "ExitOnForwardFailure=yes",
];

/// What starts a program on a node's host by `ssh`, without any question, to be followed by what a shell of the host is to run. `None`
/// if the node is on this machine.
pub fn ssh_shell(node: &NodeSpec) -> Option<Vec<String>> {
    let destination = node.ssh.clone()?;
    let mut all: Vec<String> =
        ["env", "SSH_ASKPASS=false", "SSH_ASKPASS_REQUIRE=force", "ssh", "-T"].map(String::from).into();
    for option in OPTIONS {
        all.extend(["-o".into(), option.into()]);
    }
    if let Some(key) = &node.ssh_key {
        all.extend(["-i".into(), key.display().to_string()]);
    }
    all.extend(["--".into(), destination]);
    Some(all)
}

fn command(address: &HostAddress, marker: &str, forward: Option<SocketAddr>) -> Command {
    let mut command = Command::new("ssh");
    command.arg("-T").args(address.options());
    if let Some(controller) = forward {
        command.args(["-R", &format!("127.0.0.1:0:{controller}")]);
    }
    command
        .arg("--")
        .arg(&address.destination)
        .arg(format!("exec /bin/sh -c '{}'", SCRIPT.replace("MARKER", marker)))
        // BatchMode is not handed on to jump hosts: what they would ask is answered with a refusal.
        .env("SSH_ASKPASS", "false")
        .env("SSH_ASKPASS_REQUIRE", "force")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C on the terminal is for the controller, which ends the connection in order.
        .process_group(0)
        .kill_on_drop(true);
    command
}

fn keep(said: &Said, line: &str) {
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() == LINES_KEPT {
        said.remove(0);
    }
    said.push(line.chars().take(300).collect());
}

/// The next line, of at most so many bytes; `None` at the end.
async fn next_line(input: &mut (impl AsyncBufReadExt + Unpin)) -> Option<String> {
    let mut line = Vec::new();
    match input.take(LONGEST_LINE).read_until(b'\n', &mut line).await {
        Ok(1..) => Some(String::from_utf8_lossy(&line).trim_end().to_string()),
        _ => None,
    }
}

async fn read_output(
    output: impl AsyncRead + Unpin,
    marker: String,
    messages: mpsc::Sender<String>,
    said: Said,
) {
    let mut output = BufReader::new(output);
    let marker = format!("{marker} ");
    while let Some(line) = next_line(&mut output).await {
        match line.split_once(&marker) {
            Some((_, message)) => {
                if messages.send(message.to_string()).await.is_err() {
                    return;
                }
            }
            None => keep(&said, &line),
        }
    }
}

/// `port` ends with the errors.
async fn read_errors(errors: impl AsyncRead + Unpin, port: watch::Sender<Option<u16>>, said: Said) {
    let mut errors = BufReader::new(errors);
    while let Some(line) = next_line(&mut errors).await {
        let allocated =
            line.strip_prefix("Allocated port ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        if allocated.is_some() {
            port.send_replace(allocated);
        }
        keep(&said, &line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_passes_every_login_shell_unchanged() {
        assert!(!SCRIPT.contains(['\'', '\\', '\n']));
        // History expansion of csh, also within single quotes.
        let bangs: Vec<usize> = SCRIPT.match_indices('!').map(|(at, _)| at).collect();
        assert!(bangs.iter().all(|at| SCRIPT[*at..].starts_with("!= ")), "{bangs:?}");
    }

    #[test]
    fn what_a_shell_prints_is_no_message() {
        let output: &[u8] = b"Welcome\nloadline-x\nno newlineloadline-x architecture x86_64\nbye";
        let (send, mut receive) = mpsc::channel(4);
        let said = Said::default();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read_output(output, "loadline-x".into(), send, Arc::clone(&said)));
        assert_eq!(receive.try_recv().unwrap(), "architecture x86_64");
        assert!(receive.try_recv().is_err());
        assert_eq!(*said.lock().unwrap(), ["Welcome", "loadline-x", "bye"]);
    }
}
