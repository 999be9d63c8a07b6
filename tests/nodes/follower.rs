//! A follower of a node's stream of events.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use loadline_san_node::node::manage::{Followed, Hello, Sample};

/// How long one event may take to come.
const LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Follower {
    lines: BufReader<TcpStream>,
    pub(crate) hello: Hello,
    /// The id of the last event that had one.
    pub(crate) last_id: Option<String>,
}

impl Follower {
    /// Follows a node, from after the event with this id.
    pub(crate) fn connect(node: Ipv4Addr, after: Option<&str>) -> Follower {
        let mut stream = TcpStream::connect((node, 7400)).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("it may be so long");
        let after = after.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        // Of this version an answer has no chunks.
        let request = format!("GET /v1/stream HTTP/1.0\r\nHost: localhost\r\n{after}\r\n");
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut head).expect("it answers") > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.0 200") && head.contains("text/event-stream"), "{head}");
        let mut follower = Follower { lines, hello: NONE, last_id: None };
        let Some(Followed::Hello(hello)) = follower.next() else { panic!("it says first who it is") };
        follower.hello = hello;
        follower
    }

    /// The next message; nothing if the stream has ended.
    pub(crate) fn next(&mut self) -> Option<Followed> {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).expect("it sends each second") == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("event", of)) => name = of.into(),
                Some(("id", of)) => self.last_id = Some(of.into()),
                Some(("data", of)) => data = of.into(),
                Some(other) => panic!("unexpected: {other:?}"),
                None => break,
            }
        }
        Some(serde_json::from_str(&format!("{{\"{name}\":{data}}}")).expect("it is a message"))
    }

    /// The next sample.
    pub(crate) fn sample(&mut self) -> Sample {
        loop {
            if let Followed::Sample(sample) = self.next().expect("it goes on") {
                return *sample;
            }
        }
    }

    /// Samples until one is so.
    pub(crate) fn until(&mut self, limit: Duration, is_so: impl Fn(&Sample) -> bool) -> Vec<Sample> {
        let (begun, mut samples) = (Instant::now(), Vec::new());
        loop {
            samples.push(self.sample());
            if is_so(samples.last().expect("there is one")) {
                return samples;
            }
            assert!(begun.elapsed() < limit, "not within {limit:?}: {samples:#?}");
        }
    }
}

const NONE: Hello = Hello {
    node: String::new(),
    cluster: String::new(),
    incarnation: 0,
    version: String::new(),
    bounds_ns: Vec::new(),
};
