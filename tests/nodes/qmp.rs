//! The control connection of a QEMU (QMP): commands, and events that are waited for.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long QEMU may take to answer.
const ANSWERS: Duration = Duration::from_secs(60);

pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
    /// Events that came and were not waited for.
    events: Vec<Value>,
}

impl Qmp {
    /// Connects to a QEMU that is just started.
    pub(crate) fn connect(socket: &Path) -> Qmp {
        let until = Instant::now() + ANSWERS;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < until, "{}: {error}", socket.display()),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        stream.set_read_timeout(Some(ANSWERS)).expect("it is not zero");
        let mut qmp = Qmp { stream: BufReader::new(stream), events: Vec::new() };
        assert!(qmp.next().expect("it greets").get("QMP").is_some());
        qmp.run("qmp_capabilities", json!({}));
        let capability = json!({"capabilities": [{"capability": "events", "state": true}]});
        qmp.run("migrate-set-capabilities", capability);
        qmp
    }

    /// The next message; `None` if QEMU has gone.
    fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).expect("it is JSON")),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("it answers: {error}"),
        }
    }

    /// Carries out a command, which must succeed.
    pub(crate) fn run(&mut self, command: &str, arguments: Value) -> Value {
        let text = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        self.stream.get_mut().write_all(text.as_bytes()).expect("it listens");
        loop {
            let mut message = self.next().unwrap_or_else(|| panic!("{command}: it has gone"));
            if message.get("event").is_some() {
                self.events.push(message);
                continue;
            }
            return match message.get_mut("return") {
                Some(answer) => answer.take(),
                None => panic!("{command}: {message}"),
            };
        }
    }

    /// Waits until a migration has this status; events before it are dropped. Returns the status that it has got, which is another one if it
    /// cannot become this one any more; `gone` if QEMU has ended.
    pub(crate) fn migration_becomes(&mut self, status: &str) -> String {
        let last = ["completed", "failed", "cancelled"];
        loop {
            let event = match self.events.is_empty() {
                true => self.next(),
                false => Some(self.events.remove(0)),
            };
            let Some(event) = event else { return "gone".into() };
            if event.get("event").and_then(Value::as_str) == Some("MIGRATION") {
                let is = event["data"]["status"].as_str().expect("it has one");
                if is == status || last.contains(&is) {
                    return is.into();
                }
            }
        }
    }
}
