//! A report's page in a real browser.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a browser may take over a page, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(240);
/// One browser at a time: several on two processors only wait for each other.
static ALONE: Mutex<()> = Mutex::new(());

/// What a browser shows of a page; that anything is wrong with it is a failure.
pub(crate) fn shown(page: &Path, options: &[&str]) -> Value {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web/tests/page.mjs");
    let mut child = Command::new("node")
        .arg(script)
        .arg(page)
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("node is installed by ./dev setup");
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        text
    });
    let complaints = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if begun.elapsed() > LIMIT => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the browser took longer than {LIMIT:?}");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let (text, complaints) = (read.join().unwrap(), complaints.join().unwrap());
    assert!(status.success(), "{complaints}");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}
