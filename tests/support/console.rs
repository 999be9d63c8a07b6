//! The console, asked as a program asks it, and its pages in a real browser.

#![allow(dead_code, reason = "each test uses its own part")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Said, finish, loadline, signal};

/// How long anything may take, on a machine that has much else to do.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A console that runs until this is dropped.
pub(crate) struct Console {
    child: Child,
    /// Its port on this machine.
    pub(crate) port: u16,
    /// The link by which its user signs in, if there is one.
    pub(crate) link: Option<String>,
}

impl Console {
    /// Starts `loadline console` with these arguments, and waits until it says where it is.
    pub(crate) fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Console {
        Console::start_by(loadline().arg("console").args(arguments))
    }

    /// The same with a cache of its own, in this folder.
    pub(crate) fn start_in<A: AsRef<OsStr>>(
        place: &Path,
        cache: &Path,
        arguments: impl IntoIterator<Item = A>,
    ) -> Console {
        let mut command = loadline();
        command.arg("console").args(arguments).current_dir(place);
        Console::start_by(command.env("XDG_CACHE_HOME", cache).env_remove("CACHE_DIRECTORY"))
    }

    fn start_by(command: &mut Command) -> Console {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it is built");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut next = || lines.next().expect("it says more").expect("it is text");
        let first = next();
        let port = first.split(';').next().and_then(|address| address.rsplit(':').next()?.parse().ok());
        let port = port.unwrap_or_else(|| panic!("it says where it is: {first}"));
        // One that other machines reach has no link.
        let link = first.contains("http://127.0.0.1:").then(|| {
            let (text, link) = (next(), next().trim().to_owned());
            assert!(text.contains("for you alone") && link.contains("/#/sign-in/"), "{text} {link}");
            link
        });
        Console { child, port, link }
    }

    /// The address of its page.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The key of the link.
    pub(crate) fn key(&self) -> &str {
        self.link.as_ref().and_then(|link| link.rsplit('/').next()).expect("it has a link")
    }

    /// Sends its process a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// See [`ask`].
    pub(crate) fn ask(&self, request: &str, lines: &str, body: &str) -> (u16, String, String) {
        ask(self.port, request, lines, body)
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status, the head and the content of the answer to a request such as `GET /`, with these lines in its head (each ends with a line
/// break) and this body.
pub(crate) fn ask(port: u16, request: &str, lines: &str, body: &str) -> (u16, String, String) {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("it may be so long");
    let host = if lines.contains("Host: ") { String::new() } else { format!("Host: 127.0.0.1:{port}\r\n") };
    let length = body.len();
    let text = format!(
        "{request} HTTP/1.1\r\n{host}Connection: close\r\n{lines}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(text.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is text");
    let (head, content) = answer.split_once("\r\n\r\n").expect("it has a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("it has a status"), head.to_owned(), content.to_owned())
}

/// A script of `web/tests` with a browser.
fn script<A: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new("node");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/tests").join(name));
    if let Some(folder) = std::env::var_os("LOADLINE_SCREENSHOTS") {
        command.arg("--screenshots").arg(folder);
    }
    // A key may begin with a dash.
    command.arg("--").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a script of `web/tests` to its end. That anything is wrong with the pages is a failure.
pub(crate) fn browse<A: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = A>,
    limit: Duration,
) -> Said {
    let child = script(name, arguments).spawn().expect("node is installed by ./dev setup");
    let said = finish(child, limit);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    said
}

/// A browser that shows a page, and does what its script understands.
pub(crate) struct Browser {
    child: Child,
    asks: Option<ChildStdin>,
    says: Receiver<String>,
}

impl Browser {
    /// Opens the page with a script of `web/tests`.
    pub(crate) fn open(name: &str, page: &str) -> Browser {
        let child = script(name, [page]).stdin(Stdio::piped()).spawn();
        let mut child = child.expect("node is installed by ./dev setup");
        let (asks, pipe) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        // Read by a thread of its own: a pipe has no limit of time.
        let (sends, says) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(pipe).lines().map_while(Result::ok).try_for_each(|line| sends.send(line))
        });
        Browser { child, asks, says }
    }

    /// What the page shows at this moment.
    pub(crate) fn read(&mut self) -> Value {
        self.then("read")
    }

    /// What the page shows once that was done: see the script.
    pub(crate) fn then(&mut self, command: &str) -> Value {
        writeln!(self.asks.as_mut().expect("it runs"), "{command}").expect("it runs");
        match self.says.recv_timeout(LIMIT) {
            Ok(line) => serde_json::from_str(&line).expect("it is JSON"),
            Err(RecvTimeoutError::Timeout) => panic!("{command}: the browser does not answer"),
            Err(RecvTimeoutError::Disconnected) => {
                let _ = self.child.kill();
                let mut why = String::new();
                let _ = self.child.stderr.take().expect("it is piped").read_to_string(&mut why);
                panic!("the browser has ended: {why}");
            }
        }
    }

    /// Waits until the page shows that.
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let shown = self.read();
            if is_so(&shown) {
                return shown;
            }
            assert!(begun.elapsed() < LIMIT, "{what}: {shown:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Lets the script look at the page as it is at the end, and closes it: nothing was wrong with it.
    pub(crate) fn close(mut self) {
        drop(self.asks.take());
        let pipe = self.child.stderr.take().expect("it is piped");
        let wrong = std::thread::spawn(|| std::io::read_to_string(pipe).expect("it is text"));
        let begun = Instant::now();
        while self.child.try_wait().expect("it is ours").is_none() {
            assert!(begun.elapsed() < LIMIT * 3, "the browser does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
        let wrong = wrong.join().expect("it does not panic");
        assert!(self.child.wait().expect("it is ours").success(), "{wrong}");
    }
}

/// A browser that is still open ends with the test.
impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
