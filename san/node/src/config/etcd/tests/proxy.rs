//! Stands between a store and an etcd, and does to connections what networks do: answers are lost, late, or never come; and what slow disks do.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A part of the key that each commit writes.
const COMMIT: &[u8] = b"/commits/";

/// What is done to connections.
#[derive(Debug, Default)]
struct Faults {
    /// What a member sends is held back for so many milliseconds.
    late_ms: AtomicU64,
    /// A commit is held back for so many milliseconds before a member receives it.
    slow_ms: AtomicU64,
    /// What a member sends is dropped, and the connection stays open.
    silent: AtomicBool,
    /// So many chunks that a member sends still pass; then the connections are closed.
    cut_after: AtomicU64,
    ends: AtomicBool,
}

/// A listener that forwards connections to a member.
pub(super) struct Proxy {
    endpoint: String,
    faults: Arc<Faults>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// Begins to forward to `member`.
    pub(super) fn start(member: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let endpoint = listener.local_addr().expect("it is bound").to_string();
        let faults = Arc::new(Faults { cut_after: AtomicU64::new(u64::MAX), ..Faults::default() });
        let open = Arc::new(Mutex::new(Vec::new()));
        let (all, acts) = (Arc::clone(&open), Arc::clone(&faults));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if acts.ends.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(server) = TcpStream::connect(&member) else { continue };
                // Small packets are not held back to be joined: that would delay each answer by 40 ms.
                [&client, &server].into_iter().for_each(|socket| _ = socket.set_nodelay(true));
                let (up, down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                all.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                let of_commits = Arc::clone(&acts);
                std::thread::spawn(move || pass(up, server, |sent| of_commits.slow(sent)));
                let acts = Arc::clone(&acts);
                std::thread::spawn(move || pass(down, client, |_| acts.act()));
            }
        });
        Proxy { endpoint, faults, open }
    }

    /// Where it listens.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Holds back what the member sends for so long.
    pub(super) fn delay(&self, late: Duration) {
        self.faults.late_ms.store(late.as_millis() as u64, Ordering::Relaxed);
    }

    /// Holds back each commit for so long, and what comes after it on its connection.
    pub(super) fn delay_commits(&self, slow: Duration) {
        self.faults.slow_ms.store(slow.as_millis() as u64, Ordering::Relaxed);
    }

    /// Drops what the member sends, or no longer.
    pub(super) fn silence(&self, silent: bool) {
        self.faults.silent.store(silent, Ordering::Relaxed);
    }

    /// Closes the connection with the next answer, in place of passing it on.
    pub(super) fn cut_next_answer(&self) {
        self.faults.cut_after.store(0, Ordering::Relaxed);
    }
}

/// What becomes of a chunk.
enum Fate {
    Passes,
    Dropped,
    /// The connection is closed.
    Cut,
}

impl Faults {
    /// What becomes of a chunk that a member sends.
    fn act(&self) -> Fate {
        std::thread::sleep(Duration::from_millis(self.late_ms.load(Ordering::Relaxed)));
        if self.silent.load(Ordering::Relaxed) {
            return Fate::Dropped;
        }
        match self.cut_after.load(Ordering::Relaxed) {
            0 => {
                self.cut_after.store(u64::MAX, Ordering::Relaxed);
                Fate::Cut
            }
            _ => Fate::Passes,
        }
    }

    /// What becomes of a chunk that a client sends. Only a commit has the key of its client's last commit.
    fn slow(&self, sent: &[u8]) -> Fate {
        let slow = self.slow_ms.load(Ordering::Relaxed);
        if slow > 0 && sent.windows(COMMIT.len()).any(|bytes| bytes == COMMIT) {
            std::thread::sleep(Duration::from_millis(slow));
        }
        Fate::Passes
    }
}

/// Passes on what one side sends to the other.
fn pass(mut from: TcpStream, mut to: TcpStream, fate: impl Fn(&[u8]) -> Fate) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
    {
        match fate(&buffer[..count]) {
            Fate::Passes if to.write_all(&buffer[..count]).is_ok() => {}
            Fate::Dropped => {}
            Fate::Passes | Fate::Cut => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.faults.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.endpoint);
        for socket in self.open.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}
