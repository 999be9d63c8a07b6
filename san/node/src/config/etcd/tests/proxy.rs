//! Stands between a store and an etcd, and does to connections what networks do: answers are lost, late, or never come.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What is done to connections.
#[derive(Debug, Default)]
struct Faults {
    /// What a member sends is held back for so many milliseconds.
    late_ms: AtomicU64,
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
                let (up, down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                all.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                std::thread::spawn(move || pass(up, server, None));
                let acts = Arc::clone(&acts);
                std::thread::spawn(move || pass(down, client, Some(&acts)));
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

    /// Drops what the member sends, or no longer.
    pub(super) fn silence(&self, silent: bool) {
        self.faults.silent.store(silent, Ordering::Relaxed);
    }

    /// Closes the connection with the next answer, in place of passing it on.
    pub(super) fn cut_next_answer(&self) {
        self.faults.cut_after.store(0, Ordering::Relaxed);
    }
}

/// Passes on what one side sends to the other.
fn pass(mut from: TcpStream, mut to: TcpStream, faults: Option<&Faults>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut buffer)
        && count > 0
    {
        if let Some(faults) = faults {
            std::thread::sleep(Duration::from_millis(faults.late_ms.load(Ordering::Relaxed)));
            if faults.silent.load(Ordering::Relaxed) {
                continue;
            }
            if faults.cut_after.load(Ordering::Relaxed) == 0 {
                faults.cut_after.store(u64::MAX, Ordering::Relaxed);
                break;
            }
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
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
