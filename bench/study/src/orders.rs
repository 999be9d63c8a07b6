//! Orders to a run that is in progress, from another process of this host: to migrate machines. They come by a socket in the run's folder that
//! only the run's user can open, and are carried out in the next window that is measured.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use loadline_fleet::WorkerId;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, listen, shutdown, socket,
};
use nix::sys::stat::{Mode, fchmod};
use serde::{Deserialize, Serialize};

use crate::error::StudyError;
use crate::folder::lock::is_in_use;
use crate::migrations::MigratedMachine;

/// The socket in the run's folder.
const SOCKET: &str = "orders.sock";
/// The longest order, bytes.
const LONGEST: u64 = 64 << 10;
/// How long whoever connects may take to say what it wants.
const SAYS: Duration = Duration::from_secs(5);
/// How long an order waits until it is carried out.
const WAITS: Duration = Duration::from_secs(600);
/// How often it is looked whether whoever ordered something has gone.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An order to migrate machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveOrder {
    /// Which machines.
    pub which: Which,
    /// The node on which they are to run.
    pub to: String,
}

/// Machines of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// All that run on this node.
    OnNode(String),
    /// The one that is this worker.
    Worker(WorkerId),
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveAnswer {
    /// The machines that were migrated.
    pub migrated: Vec<MigratedMachine>,
    /// Why others were not; `None` if all were.
    pub failed: Option<String>,
    /// Whether nothing was done, since the order cannot be carried out.
    pub is_refused: bool,
}

impl MoveAnswer {
    /// Nothing is done, for this reason.
    pub(crate) fn refused(why: impl Into<String>) -> MoveAnswer {
        MoveAnswer { migrated: Vec::new(), failed: Some(why.into()), is_refused: true }
    }
}

/// An order that waits to be carried out.
pub(crate) struct Asked {
    pub(crate) order: MoveOrder,
    pub(crate) answer: mpsc::Sender<MoveAnswer>,
    /// Whoever ordered it has gone, or somebody carries it out.
    state: Arc<AtomicU8>,
}

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Takes an order out of the state of waiting; `false` if it is in another one.
fn changes(state: &AtomicU8, to: u8) -> bool {
    state.compare_exchange(WAITING, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// The orders that wait.
#[derive(Clone, Default)]
pub(crate) struct Inbox(Arc<Mutex<VecDeque<Asked>>>);

impl Inbox {
    /// The next order that somebody still waits for.
    pub(crate) fn take(&self) -> Option<Asked> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(asked) = waiting.pop_front() {
            if changes(&asked.state, TAKEN) {
                return Some(asked);
            }
        }
        None
    }

    fn put(&self, asked: Asked) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(asked);
    }
}

/// The socket of a run. Dropping it removes it.
pub(crate) struct OrdersSocket {
    pub(crate) inbox: Inbox,
    path: PathBuf,
    listener: UnixListener,
}

impl OrdersSocket {
    /// Listens in a run's folder, which this process has locked.
    pub(crate) fn open(folder: &Path) -> Result<OrdersSocket, StudyError> {
        let path = folder.join(SOCKET);
        let failed =
            |e: io::Error| StudyError::failed(format!("cannot take orders at {}: {e}", path.display()));
        // A run that was killed has left one.
        let _ = fs::remove_file(&path);
        let listener = listen_at(folder).map_err(failed)?;
        let inbox = Inbox::default();
        let (incoming, orders) = (listener.try_clone().map_err(failed)?, inbox.clone());
        let take = move || {
            for stream in incoming.incoming() {
                let Ok(stream) = stream else { return };
                // Whoever does not read its answer does not get it.
                let _ = answer(&stream, &orders);
            }
        };
        thread::Builder::new().name("orders".into()).spawn(take).map_err(failed)?;
        Ok(OrdersSocket { inbox, path, listener })
    }
}

impl Drop for OrdersSocket {
    fn drop(&mut self) {
        // It ends the thread. Both fail only if somebody else did it.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        let _ = fs::remove_file(&self.path);
    }
}

/// An address of the socket that is short enough, however long the folder's path is.
fn address(folder: &File) -> Result<UnixAddr, nix::Error> {
    UnixAddr::new(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()).as_str())
}

fn listen_at(folder: &Path) -> io::Result<UnixListener> {
    let folder = File::open(folder)?;
    let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)
        .map_err(io::Error::from)?;
    // The file that it becomes has this mode from the beginning (unix(7)).
    fchmod(socket.as_fd(), Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(socket.as_raw_fd(), &address(&folder)?)?;
    listen(&socket, Backlog::new(8)?)?;
    Ok(UnixListener::from(socket))
}

/// Reads one order, waits until it was carried out, and says what came of it.
fn answer(stream: &UnixStream, orders: &Inbox) -> io::Result<()> {
    stream.set_read_timeout(Some(SAYS))?;
    stream.set_write_timeout(Some(SAYS))?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(order) => carried_out(stream, order, orders)?,
        Err(e) => MoveAnswer::refused(format!("an order that is unknown: {e}")),
    };
    let mut stream = stream;
    writeln!(stream, "{}", serde_json::to_string(&answer)?)
}

fn carried_out(stream: &UnixStream, order: MoveOrder, orders: &Inbox) -> io::Result<MoveAnswer> {
    let (answer, answered) = mpsc::channel();
    let state = Arc::new(AtomicU8::new(WAITING));
    orders.put(Asked { order, answer, state: state.clone() });
    let limit = Instant::now() + WAITS;
    stream.set_read_timeout(Some(LOOK_EVERY))?;
    loop {
        match answered.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(mpsc::TryRecvError::Disconnected) => {
                return Ok(MoveAnswer::refused("the window has ended before it was carried out"));
            }
            Err(mpsc::TryRecvError::Empty) => {}
        }
        let has_gone = matches!((&mut &*stream).read(&mut [0]), Ok(0));
        if has_gone {
            thread::sleep(LOOK_EVERY);
        }
        // What is being carried out is carried out to its end, whoever waits for it.
        if (has_gone || Instant::now() > limit) && changes(&state, GIVEN_UP) {
            return Ok(MoveAnswer::refused(format!("nothing was measured within {} s", WAITS.as_secs())));
        }
    }
}

/// Orders that machines of the run in this folder be migrated, and waits until that is done. `waits` is called once if that takes a moment.
/// An error of kind `Usage` if no run of the folder takes orders.
pub fn order_move(run: &Path, order: &MoveOrder, waits: impl FnOnce()) -> Result<MoveAnswer, StudyError> {
    let failed = |e: &dyn std::fmt::Display| StudyError::failed(format!("{}: {e}", run.display()));
    if !is_in_use(run) {
        return Err(StudyError::usage(format!(
            "no run is in progress in {}: give the folder of a run that measures now",
            run.display()
        )));
    }
    let connected = File::open(run).map_err(|e| failed(&e)).and_then(|folder| {
        let address = address(&folder).map_err(|e| failed(&e))?;
        let path = address.path().unwrap_or(Path::new(SOCKET)).to_path_buf();
        UnixStream::connect(path).map_err(|e| {
            StudyError::usage(format!(
                "the run in {} takes no orders ({e}): machines are migrated by order if workers are virtual machines that Loadline starts, and use \
                 a cluster of the SAN (see `loadline fleet move --help`)",
                run.display()
            ))
        })
    });
    let mut stream = connected?;
    writeln!(stream, "{}", serde_json::to_string(order).map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
    let mut said = BufReader::new(&stream);
    let mut line = String::new();
    stream.set_read_timeout(Some(Duration::from_secs(2))).map_err(|e| failed(&e))?;
    if let Err(e) = said.read_line(&mut line) {
        if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return Err(failed(&e));
        }
        waits();
        stream.set_read_timeout(Some(2 * WAITS)).map_err(|e| failed(&e))?;
        said.read_line(&mut line).map_err(|e| failed(&e))?;
    }
    if line.is_empty() {
        return Err(failed(&"the run has ended before the order was carried out"));
    }
    serde_json::from_str(&line).map_err(|e| failed(&format!("its answer makes no sense: {e}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::folder::lock::lock;

    fn order() -> MoveOrder {
        MoveOrder { which: Which::OnNode("node-1".into()), to: "node-2".into() }
    }

    #[test]
    fn an_order_waits_until_it_is_carried_out_and_gets_its_answer() {
        let folder = tempfile::tempdir().unwrap();
        // Longer than the address of a socket may be.
        let run = folder.path().join("a".repeat(200));
        fs::create_dir(&run).unwrap();
        let _lock = lock(&run).unwrap();
        let socket = OrdersSocket::open(&run).unwrap();
        let mode = fs::metadata(run.join(SOCKET)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "nobody else may order anything");
        let inbox = socket.inbox.clone();
        let carries_out = thread::spawn(move || {
            let asked = loop {
                if let Some(asked) = inbox.take() {
                    break asked;
                }
                thread::sleep(Duration::from_millis(1));
            };
            assert_eq!(asked.order, order());
            asked.answer.send(MoveAnswer { failed: Some("why".into()), ..MoveAnswer::default() }).unwrap();
        });
        let answer = order_move(&run, &order(), || ()).unwrap();
        carries_out.join().unwrap();
        assert_eq!(answer.failed.as_deref(), Some("why"));
        drop(socket);
        assert!(!run.join(SOCKET).exists());
        let error = order_move(&run, &order(), || ()).unwrap_err().message;
        assert!(error.contains("takes no orders"), "{error}");
    }

    #[test]
    fn an_order_whose_giver_has_gone_is_not_carried_out() {
        let folder = tempfile::tempdir().unwrap();
        let socket = OrdersSocket::open(folder.path()).unwrap();
        let mut stream = UnixStream::connect(folder.path().join(SOCKET)).unwrap();
        writeln!(stream, "{}", serde_json::to_string(&order()).unwrap()).unwrap();
        let limit = Instant::now() + SAYS;
        while socket.inbox.0.lock().unwrap().is_empty() {
            assert!(Instant::now() < limit, "the order arrives");
            thread::sleep(Duration::from_millis(1));
        }
        drop(stream);
        while socket.inbox.0.lock().unwrap()[0].state.load(Ordering::Relaxed) != GIVEN_UP {
            assert!(Instant::now() < limit, "that it has gone is seen");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(socket.inbox.take().is_none());
    }

    #[test]
    fn a_folder_without_a_run_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = order_move(folder.path(), &order(), || ()).unwrap_err().message;
        assert!(error.contains("no run is in progress"), "{error}");
    }
}
