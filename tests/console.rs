//! The console, in a real browser, of a real cluster that loses a node.

mod nodes;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nodes::Cluster;
use nodes::client::Nbd;
use serde_json::Value;

/// How long anything may take, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(60);

/// A console that runs until this is dropped.
struct Console(Child, u16);

impl Console {
    fn start(clusters: &[String]) -> Console {
        let mut child = Command::new(env!("CARGO_BIN_EXE_loadline"))
            .args(["console", "--port", "0"])
            .args(clusters)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it is built");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it is text");
        let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(';').next()?.parse().ok());
        Console(child, port.unwrap_or_else(|| panic!("it says where it is: {line}")))
    }

    /// The status and the content of an answer to a request with these lines in its head.
    fn ask(&self, path: &str, lines: &str) -> (u16, String) {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.1)).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("it may be so long");
        let request = format!("GET {path} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is text");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        (status.expect("it has a status"), answer)
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A browser that shows the console's page.
struct Browser {
    child: Child,
    asks: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Browser {
    fn open(console: &Console) -> Browser {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/tests/console.mjs");
        let mut command = Command::new("node");
        command.arg(script).arg(format!("http://127.0.0.1:{}/", console.1));
        if let Some(folder) = std::env::var_os("LOADLINE_SCREENSHOTS") {
            command.arg("--screenshots").arg(folder);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("node is installed by ./dev setup");
        let (asks, says) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        Browser { child, asks, says: BufReader::new(says) }
    }

    /// What the page shows at this moment.
    fn read(&mut self) -> Value {
        writeln!(self.asks.as_mut().expect("it runs"), "read").expect("it runs");
        let mut line = String::new();
        if self.says.read_line(&mut line).expect("it is text") == 0 {
            let mut why = String::new();
            let _ = self.child.stderr.take().expect("it is piped").read_to_string(&mut why);
            panic!("the browser has ended: {why}");
        }
        serde_json::from_str(&line).expect("it is JSON")
    }

    /// Waits until the page shows that.
    fn until(&mut self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let shown = self.read();
            if is_so(&shown) {
                return shown;
            }
            assert!(begun.elapsed() < LIMIT, "{what}: {shown:#}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Looks at the page in all its forms, and closes it: nothing was wrong with it.
    fn close(mut self) {
        drop(self.asks.take());
        let mut wrong = String::new();
        self.child.stderr.take().expect("it is piped").read_to_string(&mut wrong).expect("it is text");
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

fn row<'v>(shown: &'v Value, table: &str, name: &str) -> Option<&'v Vec<Value>> {
    let rows = shown[table].as_array()?.iter().filter_map(Value::as_array);
    rows.into_iter().find(|row| row[0] == name)
}

#[test]
fn the_page_shows_what_a_cluster_does_and_never_green_or_0_of_what_is_not_known() {
    let mut cluster = Cluster::start(3);
    // A name that would be a tag, if it was not escaped.
    for (name, node) in [("calm", "node-1"), ("busy", "node-2")] {
        cluster.loadline(&["volume", "create", name, "--size", "32MiB"]);
        cluster.loadline(&["volume", "attach", name, "--node", node]);
    }
    let [first, second] = [0, 1].map(|node| format!("{}:7400", cluster.addresses()[node]));
    let console = Console::start(&[format!("<b>lab={first}"), format!("other={second}")]);
    let mut browser = Browser::open(&console);
    browser.until("all nodes report", |shown| {
        shown["overall"] == "Healthy" && shown["nodes"][2][1] == "reports"
    });

    let mut client = Nbd::connect(cluster.addresses()[1], "busy").expect("it is served");
    let is_writing = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            let mut number = 0;
            while is_writing.load(std::sync::atomic::Ordering::Relaxed) {
                client.write(number % 4096, 7).expect("it is written");
                number += 1;
            }
        });
        let shown = browser.until("the busy volume is first", |shown| {
            shown["volumes"][0][0] == "busy" && shown["volumes"][0][5] != "0"
        });
        assert_eq!(row(&shown, "volumes", "calm").expect("it is there")[5], "0", "{shown:#}");
        let of = |name| &row(&shown, "nodes", name).expect("it is there")[3];
        assert!(of("node-2") == of("Total") && of("node-1") == "0", "{shown:#}");

        cluster.kill(3);
        let shown = browser.until("a node that does not report is unknown", |shown| {
            row(shown, "nodes", "node-3")
                .is_some_and(|row| row[1].as_str().is_some_and(|of| of.starts_with("unknown since")))
                && shown["overall"] == "Degraded"
        });
        let lost = row(&shown, "nodes", "node-3").expect("it is there");
        assert!(lost[2..].iter().all(|cell| cell == "unknown"), "{lost:?}");
        assert_eq!(row(&shown, "nodes", "Total").expect("it is there")[1], "without node-3");
        assert!(
            shown["why"].as_array().is_some_and(|why| why
                .iter()
                .any(|why| why.as_str().is_some_and(|why| why.contains("node-3"))))
        );
        browser.until("it is an event", |shown| {
            shown["events"].as_array().is_some_and(|all| {
                all.iter().any(|one| one.as_str().is_some_and(|one| one.contains("node-3 does not report")))
            })
        });
        is_writing.store(false, std::sync::atomic::Ordering::Relaxed);
        writes.join().expect("all were written");
    });
    cluster.start_node(3);
    // The same for programs, a line each second.
    let lines = cluster.loadline(&["watch", "--json", "--for", "4s"]);
    let last: Value =
        serde_json::from_str(lines.lines().last().expect("there are some")).expect("it is JSON");
    assert!(
        last["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3) && last["known"] == true,
        "{last:#}"
    );
    let shown = browser.until("it is healthy again", |shown| shown["overall"] == "Healthy");
    assert!(shown["alerts"].as_array().is_some_and(Vec::is_empty) && shown["charts"] == 4, "{shown:#}");
    browser.close();
}

#[test]
fn what_a_stranger_asks_is_refused_and_what_is_not_there_is_named() {
    let console = Console::start(&["lab=127.0.0.1:9".into()]);
    let local = "Host: 127.0.0.1\r\n";
    assert_eq!(console.ask("/", local).0, 200);
    // A page of another site, and a name that leads here.
    assert_eq!(console.ask("/api/clusters", "Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n").0, 403);
    assert_eq!(console.ask("/api/clusters", "Host: evil.example\r\n").0, 403);
    let (status, answer) = console.ask("/api/clusters/none/volumes", local);
    assert!(status == 404 && answer.contains("there are: lab"), "{answer}");
    let (status, answer) = console.ask("/api/clusters/lab/volumes", local);
    assert!(status == 503 && answer.contains("no node of the cluster has answered yet"), "{answer}");
    assert_eq!(console.ask("/none", local).0, 404);
    let (status, answer) = console.ask("/api/openapi.json", local);
    assert!(status == 200 && answer.contains("/api/clusters/{name}/stream"), "{answer}");
    for header in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
    ] {
        assert!(answer.contains(header), "{answer}");
    }
    // A screen needs a terminal.
    let output = Command::new(env!("CARGO_BIN_EXE_loadline")).arg("watch").stdin(Stdio::null()).output();
    let output = output.expect("it is built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("loadline watch --json"), "{said}");
    // A second console on the port, names that are the same, and what is no address.
    let port = console.1.to_string();
    for (arguments, code, says) in [
        (vec!["--port", &port, "lab=127.0.0.1:9"], 1, "another console"),
        (vec!["--port", "0", "a=127.0.0.1:9", "a=127.0.0.2:9"], 2, "give each a name of its own"),
        (vec!["--port", "0", "lab=nowhere"], 2, "IP:PORT"),
        (vec!["--port", "0", "https://node-1:7400"], 2, "--access"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_loadline")).arg("console").args(&arguments).output();
        let output = output.expect("it is built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(says), "{arguments:?}: {said}");
    }
}
