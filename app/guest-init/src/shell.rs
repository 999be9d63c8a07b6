//! A session in place of a worker: a shell, a command, or a check of the disk. When it has ended, what is mounted is unmounted, so that
//! the file systems are whole, and the keeper gets the exit code.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use loadline_guest::control::{self, Ended, Frame, ToKeeper, ToMachine};
use loadline_guest::session::{DISK, ERRORS, INPUT, OUTPUT, Session, Task};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::boot;
use crate::check;
use crate::program::program;
use crate::terminal::{self, Terminal};
use crate::unmount::{self, unmount_all};

/// How often the keeper gets a sign of life.
const ALIVE_EVERY: Duration = Duration::from_secs(2);
/// How long processes have between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// How long the disk may take to appear, once QEMU has attached it.
const DISK_LIMIT: Duration = Duration::from_secs(60);
/// How often the user reads how much is still to be written, when file systems are unmounted.
const WORDS_EVERY: Duration = Duration::from_secs(10);
/// Bytes of output in one frame.
const PIECE: usize = 64 << 10;

/// The machine's end of the port, for several threads.
type Out = Arc<Mutex<File>>;
/// Where the session's input goes.
type Input = Arc<Mutex<Option<File>>>;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(out: &Out, message: &ToKeeper) -> Result<(), String> {
    control::say(&mut *locked(out), message).map_err(|e| format!("the port to the keeper: {e}"))
}

/// Carries out the session that the keeper orders.
pub(crate) fn run() -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| format!("the port to the keeper: {e}");
    let mut port = boot::port()?;
    let out: Out = Arc::new(Mutex::new(port.try_clone().map_err(|e| failed(&e))?));
    say(&out, &ToKeeper::Hello)?;
    let start = control::read::<ToMachine>(&mut port).map_err(|e| failed(&e))?;
    let Some(Frame::Message(ToMachine::Session(session))) = start else {
        return Err(format!("the keeper began with {start:?}, and not with a session"));
    };
    boot::seed(&session.seed)?;
    boot::name(&session.name);
    for folder in ["/mnt", "/root"] {
        let _ = fs::create_dir(folder);
    }
    spawn({
        let out = Arc::clone(&out);
        move || {
            while say(&out, &ToKeeper::Alive).is_ok() {
                thread::sleep(ALIVE_EVERY);
            }
        }
    })?;
    let (input, is_ending) = (Input::default(), Arc::new(AtomicBool::new(false)));
    let ended = match disk_appears() {
        Err(why) => broken(&out, &why),
        Ok(()) => match &session.task {
            Task::Check => {
                let (input, is_ending) = (Arc::clone(&input), Arc::clone(&is_ending));
                spawn(move || listen(&mut port, &input, &is_ending))?;
                check::run(session.writable)
            }
            _ => run_program(&session, &out, port, &input, &is_ending)?,
        },
    };
    say(&out, &ToKeeper::HungUp(OUTPUT))?;
    spawn({
        let out = Arc::clone(&out);
        // A terminal of which the machine has the other end makes no new line by itself.
        let end = if matches!(session.task, Task::Shell(Some(_))) { "\r\n" } else { "\n" };
        move || report_progress(&out, end)
    })?;
    let left = unmount_all(|| {
        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    });
    let ended = match left {
        Ok(()) => ended,
        Err(why) => broken(&out, &why),
    };
    // What was written to the disk without a file system, and to file systems that are still mounted.
    nix::unistd::sync();
    say(&out, &ToKeeper::Ended(ended))
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, String> {
    thread::Builder::new().spawn(work).map_err(|e| format!("a thread cannot be started: {e}"))
}

/// Reports what is written to the disk while file systems are unmounted: to the keeper, which waits for as long as that grows, and to the
/// user.
fn report_progress(out: &Out, end: &str) {
    let begun = Instant::now();
    let mut next_words = WORDS_EVERY;
    while say(out, &ToKeeper::Written(unmount::written_sectors())).is_ok() {
        if begun.elapsed() >= next_words {
            next_words += WORDS_EVERY;
            let line = format!(
                "loadline: in the machine: file systems are being unmounted: about {} MiB are still to be written{end}",
                unmount::unwritten_mib()
            );
            let _ = control::pass(&mut *locked(out), ERRORS, line.as_bytes());
        }
        thread::sleep(ALIVE_EVERY);
    }
}

/// A session that this program could not carry out. Its user reads why.
fn broken(out: &Out, why: &str) -> Ended {
    let _ = control::pass(&mut *locked(out), ERRORS, format!("loadline: in the machine: {why}\n").as_bytes());
    Ended { code: Some(1), signal: None, words: why.into() }
}

fn disk_appears() -> Result<(), String> {
    let path = Path::new("/dev").join(DISK);
    let limit = Instant::now() + DISK_LIMIT;
    while !fs::metadata(&path).is_ok_and(|found| found.file_type().is_block_device()) {
        if Instant::now() > limit {
            return Err(format!("the disk {} was not there after {DISK_LIMIT:?}", path.display()));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Starts the session's program, and waits until it has ended. Processes that it leaves are killed.
fn run_program(
    session: &Session,
    out: &Out,
    mut port: File,
    input: &Input,
    is_ending: &Arc<AtomicBool>,
) -> Result<Ended, String> {
    let (mut command, terminal) = match &session.task {
        Task::Command(words) => {
            let mut command = program(words.first().map_or("", String::as_str));
            command.args(&words[1..]);
            (command, None)
        }
        Task::Shell(Some(wanted)) => {
            let mut command = program("/bin/sh");
            command.env("TERM", &wanted.kind);
            (command, Some(Terminal::open(wanted.size)?))
        }
        Task::Shell(None) | Task::Check => (program("/bin/sh"), None),
    };
    command.current_dir("/root");
    match &terminal {
        Some(terminal) => terminal.give_to(&mut command).map_err(|e| format!("the terminal: {e}"))?,
        None => {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        }
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => return Ok(not_started(out, &session.task, &e)),
    };
    let readers = match terminal {
        Some(terminal) => {
            let master = terminal.into_master();
            let shown = master.try_clone().map_err(|e| format!("the terminal: {e}"))?;
            *locked(input) = Some(master);
            vec![pass_output(shown, OUTPUT, out)?]
        }
        None => take_pipes(&mut child, input, out)?,
    };
    drop(command);
    spawn({
        let (input, is_ending) = (Arc::clone(input), Arc::clone(is_ending));
        move || listen(&mut port, &input, &is_ending)
    })?;
    let (code, signal) = wait_for(Pid::from_raw(child.id() as i32))?;
    // All processes but this one. Their output is read to its end before the session is reported as ended.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    for reader in readers {
        let _ = reader.join();
    }
    Ok(Ended { code, signal, words: String::new() })
}

/// As a shell reports a program that it cannot start.
fn not_started(out: &Out, task: &Task, e: &std::io::Error) -> Ended {
    let name = match task {
        Task::Command(words) => words.first().map_or("", String::as_str),
        Task::Shell(_) | Task::Check => "/bin/sh",
    };
    let line = match e.kind() {
        ErrorKind::NotFound => {
            format!("the machine has no program {name}; it has those of busybox and of file systems")
        }
        _ => format!("{name} cannot be started in the machine: {e}"),
    };
    let code = if e.kind() == ErrorKind::NotFound { 127 } else { 126 };
    let _ = control::pass(&mut *locked(out), ERRORS, format!("loadline: {line}\n").as_bytes());
    Ended { code: Some(code), signal: None, words: line }
}

fn take_pipes(child: &mut Child, input: &Input, out: &Out) -> Result<Vec<JoinHandle<()>>, String> {
    use std::os::fd::OwnedFd;
    *locked(input) = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let outputs =
        [(child.stdout.take().map(OwnedFd::from), OUTPUT), (child.stderr.take().map(OwnedFd::from), ERRORS)];
    let mut readers = Vec::new();
    for (pipe, stream) in outputs {
        let pipe = pipe.ok_or("a program without its output")?;
        readers.push(pass_output(File::from(pipe), stream, out)?);
    }
    Ok(readers)
}

/// Passes on what a program prints, until nothing has the other end.
fn pass_output(mut from: File, stream: u32, out: &Out) -> Result<JoinHandle<()>, String> {
    let out = Arc::clone(out);
    spawn(move || {
        let mut bytes = vec![0; PIECE];
        loop {
            match from.read(&mut bytes) {
                Ok(read @ 1..) => {
                    if control::pass(&mut *locked(&out), stream, &bytes[..read]).is_err() {
                        return;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // A terminal that nothing has open any more gives an error, and not an end.
                Ok(0) | Err(_) => return,
            }
        }
    })
}

/// Waits until this process has ended, and reaps all others that end meanwhile. Its exit code, or its signal.
fn wait_for(process: Pid) -> Result<(Option<i32>, Option<i32>), String> {
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(ended, code)) if ended == process => return Ok((Some(code), None)),
            Ok(WaitStatus::Signaled(ended, signal, _)) if ended == process => {
                return Ok((None, Some(signal as i32)));
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(format!("the session's program cannot be waited for: {e}")),
        }
    }
}

/// Reads what the keeper sends, until it is gone: then the machine is too.
fn listen(port: &mut File, input: &Input, is_ending: &Arc<AtomicBool>) {
    loop {
        match control::read::<ToMachine>(port) {
            Ok(Some(Frame::Data(INPUT, bytes))) => {
                // Written without the lock, which the end of the input needs.
                let to = locked(input).as_ref().and_then(|to| to.try_clone().ok());
                let _ = to.map(|mut to| to.write_all(&bytes));
            }
            Ok(Some(Frame::Message(ToMachine::HungUp(INPUT)))) => drop(locked(input).take()),
            Ok(Some(Frame::Message(ToMachine::Resize(size)))) => {
                if let Some(master) = &*locked(input) {
                    terminal::resize(master, size);
                }
            }
            Ok(Some(Frame::Message(ToMachine::End))) => {
                if !is_ending.swap(true, Ordering::Relaxed) {
                    let _ = kill(Pid::from_raw(-1), Signal::SIGTERM);
                    let _ = kill(Pid::from_raw(-1), Signal::SIGHUP);
                    let _ = spawn(|| {
                        thread::sleep(GRACE);
                        let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
                    });
                }
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return,
        }
    }
}
