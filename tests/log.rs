//! What a node logs: how much, in which form, and that what repeats does not fill the disk.

mod nodes;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nodes::Cluster;

/// Node 1, started with these options, and what it logs.
struct Logged<'a> {
    cluster: &'a Cluster,
    child: Child,
    file: std::path::PathBuf,
}

impl Logged<'_> {
    fn start<'a>(cluster: &'a Cluster, name: &str, options: &[&str]) -> Logged<'a> {
        let file = cluster.folder().join(name);
        let child = Command::new(env!("CARGO_BIN_EXE_loadline"))
            .args(["san", "serve", "--config"])
            .arg(cluster.folder().join("node-1/node.toml"))
            .args(options)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create_new(&file).expect("there is room"))
            .spawn()
            .expect("the program is there");
        let logged = Logged { cluster, child, file };
        logged.wait("the node answers", || logged.connect().is_some());
        logged
    }

    /// To where the other nodes connect.
    fn connect(&self) -> Option<TcpStream> {
        TcpStream::connect((self.cluster.addresses()[0], 7401)).ok()
    }

    fn wait(&self, what: &str, mut until: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !until() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{what}: {}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }

    /// Comes as a node does that speaks another version, and waits until the connection is closed.
    fn come_as_a_stranger(&self) {
        let mut stream = self.connect().expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("it can have a limit");
        stream.write_all(&[7; 4096]).expect("it takes as much");
        // Closed, or reset because it has not read everything.
        if let Err(why) = stream.read(&mut [0]) {
            assert_eq!(why.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}

impl Drop for Logged<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_log_is_as_long_and_in_the_form_that_is_asked_for_and_repeats_do_not_fill_it() {
    let mut cluster = Cluster::start(1);
    cluster.kill(1);

    let node = Logged::start(&cluster, "json", &["--log-format", "json"]);
    for _ in 0..30 {
        node.come_as_a_stranger();
    }
    let text = node.text();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect();
    let of_strangers: Vec<_> = lines
        .iter()
        .filter(|line| {
            line["message"].as_str().is_some_and(|message| message.contains("the sender is not a node"))
        })
        .collect();
    assert_eq!(of_strangers.len(), 5, "{text}");
    for line in of_strangers {
        assert_eq!(line["level"], "warning");
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
        assert!(line["client"].as_str().is_some_and(|client| client.starts_with("127.")), "{line}");
    }
    drop(node);

    let node = Logged::start(&cluster, "text", &[]);
    node.come_as_a_stranger();
    let text = node.text();
    let line = text.lines().find(|line| line.contains("the sender is not a node")).expect("it is logged");
    assert!(line.contains("Z warning: 127."), "{line}");
    drop(node);

    let node = Logged::start(&cluster, "errors", &["--log", "error"]);
    node.come_as_a_stranger();
    assert_eq!(node.text(), "");
    drop(node);

    let config = cluster.folder().join("node-1/node.toml");
    let config = config.to_str().expect("it is text");
    let (code, said) = cluster.try_loadline(&["san", "serve", "--config", config, "--log", "all"]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("warn"), "the possible values are named: {said}");
}
