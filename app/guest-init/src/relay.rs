//! Between the worker, which speaks by sockets, and the keeper, at the other end of one serial port.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use loadline_guest::control::{self, Ended, Frame, ToKeeper, ToMachine};
use serde_json::Value;

use crate::WORKER;
use crate::boot;
use crate::worker::{CONTROLLER, KEEPER, TOLD_AT, Told};

/// Bytes of a connection in one frame.
const PIECE: usize = 64 << 10;
/// How many bytes of what the worker printed last are kept.
const LAST_WORDS: usize = 2 << 10;

/// The machine's end of the port, for several threads.
type Out = Arc<Mutex<File>>;
/// The open connection of the worker, with its number.
type Connection = Arc<Mutex<Option<(u32, UnixStream)>>>;
/// The standard input of the worker, once the worker runs: what it reads there after its options is how long the machine stood still.
type More = Arc<Mutex<Option<ChildStdin>>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports to the keeper, runs the worker that the keeper starts, and reports how it ended.
pub(crate) fn run() -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| format!("the port to the keeper: {e}");
    let mut port = boot::port()?;
    let out: Out = Arc::new(Mutex::new(port.try_clone().map_err(|e| failed(&e))?));
    let controller = UnixListener::bind(CONTROLLER).map_err(|e| format!("{CONTROLLER}: {e}"))?;
    let keeper = UnixListener::bind(KEEPER).map_err(|e| format!("{KEEPER}: {e}"))?;
    control::say(&mut *locked(&out), &ToKeeper::Hello).map_err(|e| failed(&e))?;
    let start = control::read::<ToMachine>(&mut port).map_err(|e| failed(&e))?;
    let Some(Frame::Message(ToMachine::Start { worker, since_start_ns, seed })) = start else {
        return Err(format!("the keeper began with {start:?}, and not with the start of the worker"));
    };
    boot::seed(&seed)?;
    boot::name(worker["name"].as_str().unwrap_or("worker"));
    let connection = Connection::default();
    let (answers, answered) = mpsc::channel();
    spawn({
        let (out, connection) = (out.clone(), connection.clone());
        move || carry_connections(&controller, &out, &connection)
    })?;
    spawn({
        let out = out.clone();
        move || carry_questions(&keeper, &out, &answered)
    })?;
    let more = More::default();
    spawn({
        let more = more.clone();
        move || {
            listen(&mut port, &connection, &answers, &more);
            // A QEMU of the keeper's own ends with it; one that libvirt started may outlive both, and must not write on.
            eprintln!("guest-init: the keeper of this machine is gone");
            boot::power_off();
        }
    })?;
    let mut child = start_worker(&Told { worker, since_start_ns }, &more)?;
    let ended = worker_ended(&mut child)?;
    control::say(&mut *locked(&out), &ToKeeper::Ended(ended)).map_err(|e| failed(&e))
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    thread::Builder::new().spawn(work).map(drop).map_err(|e| format!("a thread cannot be started: {e}"))
}

/// Starts the worker. No thread can be started after it.
fn start_worker(told: &Told, more: &More) -> Result<Child, String> {
    let failed = |e: std::io::Error| format!("the worker cannot be started: {e}");
    let told_at = loadline_base::clock::Nanos::now().0 + boot::clock_ahead();
    let mut command = Command::new("/proc/self/exe");
    command
        .arg(WORKER)
        .env(TOLD_AT, told_at.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: it does nothing. With it the child is forked, and shares no memory with this process: only such a child may have
    // another clock.
    unsafe { command.pre_exec(|| Ok(())) };
    let mut child = command.spawn().map_err(failed)?;
    let mut input = child.stdin.take().expect("it is a pipe");
    writeln!(input, "{}", told.line()).map_err(failed)?;
    *locked(more) = Some(input);
    Ok(child)
}

/// Waits until the worker has ended.
fn worker_ended(child: &mut Child) -> Result<Ended, String> {
    let failed = |e: std::io::Error| format!("the worker cannot be waited for: {e}");
    let words = last_words(child);
    let status = child.wait().map_err(failed)?;
    Ok(Ended { code: status.code(), signal: status.signal(), words })
}

/// What the worker prints, to the console too; the last of it when it has ended.
fn last_words(child: &mut Child) -> String {
    let mut kept = Vec::new();
    let mut bytes = [0; 1024];
    if let Some(mut output) = child.stderr.take() {
        while let Ok(read @ 1..) = output.read(&mut bytes) {
            let _ = std::io::stderr().write_all(&bytes[..read]);
            kept.extend_from_slice(&bytes[..read]);
            let surplus = kept.len().saturating_sub(LAST_WORDS);
            kept.drain(..surplus);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

/// Passes the worker's connections on, one at a time.
fn carry_connections(listener: &UnixListener, out: &Out, connection: &Connection) {
    let mut bytes = vec![0; PIECE];
    for (number, stream) in listener.incoming().enumerate() {
        let number = number as u32;
        let Ok(mut stream) = stream else { continue };
        let Ok(back) = stream.try_clone() else { continue };
        *locked(connection) = Some((number, back));
        if control::say(&mut *locked(out), &ToKeeper::Dial(number)).is_err() {
            return;
        }
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            if control::pass(&mut *locked(out), number, &bytes[..read]).is_err() {
                return;
            }
        }
        let _ = control::say(&mut *locked(out), &ToKeeper::HungUp(number));
    }
}

/// Passes the worker's questions on, and the answers back.
fn carry_questions(listener: &UnixListener, out: &Out, answered: &mpsc::Receiver<Value>) {
    for stream in listener.incoming().flatten() {
        let Ok(from) = stream.try_clone() else { continue };
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let Ok(question) = serde_json::from_str(&line) else { break };
            if control::say(&mut *locked(out), &ToKeeper::Ask(question)).is_err() {
                return;
            }
            let Ok(answer) = answered.recv() else { return };
            if writeln!(&stream, "{answer}").is_err() {
                break;
            }
        }
    }
}

/// Hears what the keeper says, until it is gone: then the machine is too.
fn listen(port: &mut File, connection: &Connection, answers: &mpsc::Sender<Value>, more: &More) {
    loop {
        match control::read::<ToMachine>(port) {
            Ok(Some(Frame::Data(number, bytes))) => {
                // Written without the lock: a worker that does not read must not keep its next connection.
                let stream = match &*locked(connection) {
                    Some((open, stream)) if *open == number => stream.try_clone(),
                    _ => continue,
                };
                let _ = stream.and_then(|mut stream| stream.write_all(&bytes));
            }
            Ok(Some(Frame::Message(ToMachine::HungUp(number)))) => {
                if let Some((_, stream)) = locked(connection).take_if(|(open, _)| *open == number) {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
            Ok(Some(Frame::Message(ToMachine::Answer(answer)))) => {
                if answers.send(answer).is_err() {
                    return;
                }
            }
            Ok(Some(Frame::Message(ToMachine::StoodStill(nanoseconds)))) => {
                // A worker that has ended needs no clock.
                let _ = locked(more).as_mut().map(|input| writeln!(input, "{nanoseconds}"));
            }
            // These are of a machine's beginning, and of sessions.
            Ok(Some(Frame::Message(
                ToMachine::Start { .. } | ToMachine::Session(_) | ToMachine::Resize(_) | ToMachine::End,
            ))) => {}
            Ok(None) | Err(_) => return,
        }
    }
}
