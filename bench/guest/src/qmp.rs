//! Orders to a running QEMU: the QEMU Machine Protocol (docs/interop/qmp-spec of QEMU), over a connection of its own.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::{Value, json};

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest line of QEMU, bytes.
const LONGEST: usize = 4 << 20;
/// Events that nobody has waited for, at most.
const MOST_EVENTS: usize = 1024;

/// Why a command failed.
#[derive(Debug)]
pub enum QmpError {
    /// QEMU refused it, in its words.
    Refused(String),
    /// QEMU is gone, silent, or makes no sense.
    Broken(io::Error),
}

impl std::fmt::Display for QmpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            QmpError::Refused(why) => f.write_str(why),
            QmpError::Broken(why) => write!(f, "QEMU does not answer: {why}"),
        }
    }
}

/// Sends bytes with an open file to QEMU, which keeps the file until a command names it. Returns how many bytes were sent.
pub(crate) fn hand_over(stream: &UnixStream, bytes: &[u8], file: BorrowedFd<'_>) -> nix::Result<usize> {
    let files = [file.as_raw_fd()];
    let with = [ControlMessage::ScmRights(&files)];
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(bytes)], &with, MsgFlags::MSG_NOSIGNAL, None)
}

/// The connection to one QEMU.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    unread: Vec<u8>,
    events: VecDeque<Value>,
    /// The number of the last command. An answer carries it, so that one that comes late is of no other command.
    last: u64,
}

impl Qmp {
    /// Begins the protocol.
    pub fn begin(stream: UnixStream) -> Result<Qmp, QmpError> {
        let mut qmp = Qmp { stream, unread: Vec::new(), events: VecDeque::new(), last: 0 };
        let limit = Instant::now() + LIMIT;
        if qmp.line(limit)?.get("QMP").is_none() {
            return Err(broken("its first line is no greeting"));
        }
        qmp.command("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Carries out a command, and returns what it returns.
    pub fn command(&mut self, name: &str, arguments: Value) -> Result<Value, QmpError> {
        self.command_within(name, arguments, LIMIT)
    }

    /// The same with another limit, after which the error is [`QmpError::Broken`], of kind `TimedOut`.
    pub(crate) fn command_within(
        &mut self,
        name: &str,
        arguments: Value,
        wait: Duration,
    ) -> Result<Value, QmpError> {
        self.last += 1;
        let mut line = json!({ "execute": name, "arguments": arguments, "id": self.last }).to_string();
        line.push('\n');
        let limit = Instant::now() + wait;
        self.stream.set_write_timeout(Some(wait)).map_err(QmpError::Broken)?;
        self.stream.write_all(line.as_bytes()).map_err(QmpError::Broken)?;
        self.answer(limit, name)
    }

    /// What the last command returns.
    fn answer(&mut self, limit: Instant, name: &str) -> Result<Value, QmpError> {
        loop {
            let mut line = self.line(limit)?;
            let is_answer = line.get("error").is_some() || line.get("return").is_some();
            if is_answer && line["id"] != self.last {
                continue;
            }
            if let Some(error) = line.get("error") {
                let why = error["desc"].as_str().unwrap_or("it says no reason");
                return Err(QmpError::Refused(format!("{name}: {why}")));
            }
            if let Some(value) = line.get_mut("return") {
                return Ok(value.take());
            }
            self.keep(line);
        }
    }

    /// Waits for an event of this name whose data has this value, and takes it.
    pub fn event(&mut self, name: &str, field: &str, value: &str, wait: Duration) -> Result<Value, QmpError> {
        self.event_that(wait, |event| event["event"] == name && event["data"][field] == value)
    }

    /// Waits for an event of which this is true, and takes it.
    pub(crate) fn event_that(
        &mut self,
        wait: Duration,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value, QmpError> {
        let limit = Instant::now() + wait;
        loop {
            if let Some(index) = self.events.iter().position(&is_it) {
                return Ok(self.events.remove(index).unwrap_or_default());
            }
            let line = self.line(limit)?;
            self.keep(line);
        }
    }

    /// Gives QEMU an open file under a name.
    pub(crate) fn give(&mut self, name: &str, file: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.command_with("getfd", json!({ "fdname": name }), file).map(drop)
    }

    /// The same as [`Qmp::command`], with an open file that QEMU gets.
    pub(crate) fn command_with(
        &mut self,
        name: &str,
        arguments: Value,
        file: BorrowedFd<'_>,
    ) -> Result<Value, QmpError> {
        self.last += 1;
        let line = json!({ "execute": name, "arguments": arguments, "id": self.last });
        let line = format!("{line}\n");
        match hand_over(&self.stream, line.as_bytes(), file) {
            // A line is shorter than the buffer of a socket that the other side reads.
            Ok(bytes) if bytes == line.len() => self.answer(Instant::now() + LIMIT, name),
            Ok(_) => Err(broken("it reads nothing")),
            Err(why) => Err(QmpError::Broken(why.into())),
        }
    }

    /// Events that have come so far are of no interest.
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    fn keep(&mut self, event: Value) {
        if self.events.len() == MOST_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// The next line, until a moment.
    fn line(&mut self, limit: Instant) -> Result<Value, QmpError> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|e| broken(&format!("a line of it is no JSON: {e}")));
            }
            if self.unread.len() > LONGEST {
                return Err(broken("a line of it has no end"));
            }
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(QmpError::Broken(io::ErrorKind::TimedOut.into()));
            }
            self.stream.set_read_timeout(Some(left)).map_err(QmpError::Broken)?;
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(broken("it has ended")),
                Ok(read) => self.unread.extend_from_slice(&bytes[..read]),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(QmpError::Broken(io::ErrorKind::TimedOut.into()));
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(QmpError::Broken(e)),
            }
        }
    }
}

fn broken(why: &str) -> QmpError {
    QmpError::Broken(io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::thread;

    /// A QEMU that answers each command with these lines.
    fn peer(answers: Vec<&'static str>) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            (&theirs).write_all(b"{\"QMP\": {}}\n").unwrap();
            for answer in answers {
                lines.next().unwrap().unwrap();
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
        });
        ours
    }

    #[test]
    fn answers_are_told_from_events_and_an_event_that_came_early_is_found() {
        let answers = vec![
            "{\"return\": {}, \"id\": 1}\n",
            "{\"return\": {\"late\": 1}, \"id\": 1}\n{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"d8\"}}\n{\"return\": {\"a\": 1}, \"id\": 2}\n",
        ];
        let mut qmp = Qmp::begin(peer(answers)).unwrap();
        assert_eq!(qmp.command("x", json!({})).unwrap(), json!({"a": 1}));
        qmp.event("DEVICE_DELETED", "device", "d8", Duration::ZERO).unwrap();
        let error = qmp.event("DEVICE_DELETED", "device", "d8", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, QmpError::Broken(_)));
    }

    #[test]
    fn a_refusal_and_an_end_and_nonsense_are_told_apart() {
        let mut qmp = Qmp::begin(peer(vec![
            "{\"return\": {}, \"id\": 1}\n",
            "{\"error\": {\"desc\": \"no bus\"}, \"id\": 2}\n",
        ]))
        .unwrap();
        assert_eq!(qmp.command("x", json!({})).unwrap_err().to_string(), "x: no bus");
        assert!(qmp.command("x", json!({})).unwrap_err().to_string().contains("does not answer"));
        let error = Qmp::begin(peer(vec!["hello\n"])).unwrap_err().to_string();
        assert!(error.contains("no JSON"), "{error}");
    }
}
