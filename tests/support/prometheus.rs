//! A Prometheus for one test, and what is in its files of rules.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long Prometheus may take to have data: a scrape takes place each second.
const LIMIT: Duration = Duration::from_secs(30);

/// One that runs. It ends with the test.
pub(crate) struct Prometheus {
    child: Child,
    at: (Ipv4Addr, u16),
}

/// A program of Prometheus.
pub(crate) fn program(name: &str) -> PathBuf {
    let beside =
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in a folder").join("prometheus/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&path).chain([beside]).map(|folder| folder.join(name));
    programs.find(|program| program.is_file()).expect("./dev setup --tests installs Prometheus")
}

impl Prometheus {
    /// Starts it in a new folder, at this address. It scrapes the nodes at these addresses each second.
    pub(crate) fn start(folder: &Path, at: Ipv4Addr, nodes: &[Ipv4Addr]) -> Prometheus {
        std::fs::create_dir(folder).expect("there is room");
        let targets: Vec<String> = nodes.iter().map(|node| format!("\"{node}:7400\"")).collect();
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n  - job_name: test\n    static_configs:\n      - targets: [{}]\n",
            targets.join(", ")
        );
        std::fs::write(folder.join("prometheus.yml"), config).expect("there is room");
        let log = std::fs::File::create(folder.join("log")).expect("there is room");
        let child = Command::new(program("prometheus"))
            .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={at}:9090"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program is there");
        Prometheus { child, at: (at, 9090) }
    }

    /// The series of an expression at this moment, as `name="value", ... => value`. Values that are no numbers are left out.
    fn try_query(&self, expression: &str) -> Result<Vec<String>, String> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let mut stream = TcpStream::connect(self.at).map_err(|why| why.to_string())?;
        let body = format!("query={encoded}");
        let (length, kind) = (body.len(), "application/x-www-form-urlencoded");
        let head = format!(
            "POST /api/v1/query HTTP/1.0\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        );
        let mut answer = String::new();
        let exchanged =
            stream.write_all((head + &body).as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        exchanged.map_err(|why| why.to_string())?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let answer: Value = serde_json::from_str(body).map_err(|_| answer.clone())?;
        let found = answer["data"]["result"].as_array().ok_or_else(|| answer.to_string())?;
        let line = |series: &Value| {
            let labels = series["metric"].as_object().expect("it has labels").iter();
            let labels: Vec<String> = labels.map(|(name, value)| format!("{name}={value}")).collect();
            format!("{} => {}", labels.join(", "), series["value"][1].as_str().expect("it has a value"))
        };
        Ok(found.iter().map(line).filter(|line| !line.ends_with("=> NaN")).collect())
    }

    /// The same of an expression that must be valid, by a Prometheus that has answered before.
    pub(crate) fn query(&self, expression: &str) -> Vec<String> {
        self.try_query(expression).unwrap_or_else(|why| panic!("{expression}: {why}"))
    }

    /// The same, once there are so many series.
    pub(crate) fn wait_for(&self, expression: &str, series: usize) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let found = self.try_query(expression);
            match found {
                Ok(found) if found.len() >= series => return found,
                Ok(found) => assert!(begun.elapsed() < LIMIT, "only {found:?} of {expression}"),
                Err(why) => {
                    assert!(begun.elapsed() < LIMIT && !why.contains("parse error"), "{expression}: {why}")
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rules of a file: the name of an alert or a recorded metric, and its expression.
pub(crate) fn rules(file: &str) -> Vec<(String, String)> {
    let mut rules: Vec<(String, String)> = Vec::new();
    let mut folded = false;
    for line in file.lines() {
        let text = line.trim();
        if let Some(name) = text.strip_prefix("- alert: ").or_else(|| text.strip_prefix("- record: ")) {
            rules.push((name.into(), String::new()));
        }
        let Some((_, expression)) = rules.last_mut() else { continue };
        if let Some(first) = text.strip_prefix("expr: ") {
            folded = first == ">-";
            expression.push_str(if folded { "" } else { first });
        } else if folded && line.starts_with("          ") {
            expression.push_str(text);
            expression.push(' ');
        } else {
            folded = false;
        }
    }
    rules
}
