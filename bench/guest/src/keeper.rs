//! The keeper of a running machine: it waits until the machine has booted, relays its worker's connection, and answers its questions.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::attach::Devices;
use crate::control::{self, Ended, Frame, ToKeeper, ToMachine};
use crate::error::GuestError;
use crate::image::Image;
use crate::libvirt::{Domain, Libvirt};
use crate::machine::Machine;
use crate::qemu::{Acceleration, Origin, Process, Qemu};
use crate::remote::Remote;
use crate::running::Running;
use crate::shared::{Out, Said, Shared, locked};

/// How long QEMU may take to be dead once its connection has ended, so that its death is named.
const DEATH_LIMIT: Duration = Duration::from_secs(5);
/// How long the controller may not read: its worker gives it up after the same time.
const WRITE_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of a connection in one frame.
const PIECE: usize = 64 << 10;
/// Questions of a worker that wait: it asks one at a time.
const QUESTIONS: usize = 4;
/// Random bytes for a machine.
const SEED: usize = 64;

/// A machine that was started. Dropping it kills it; nothing of it stays.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    started: Instant,
}

impl Keeper {
    /// Starts a machine for a worker. It dies with the calling thread.
    pub fn start(
        qemu: &Qemu,
        machine: &Machine,
        image: &Image,
        acceleration: Acceleration,
    ) -> Result<Keeper, GuestError> {
        Keeper::start_for(qemu, machine, image, acceleration, false)
    }

    /// The same; with `shell` the machine is for a session, and Ctrl-C at the terminal does not reach QEMU.
    pub(crate) fn start_for(
        qemu: &Qemu,
        machine: &Machine,
        image: &Image,
        acceleration: Acceleration,
        shell: bool,
    ) -> Result<Keeper, GuestError> {
        let started = Instant::now();
        let origin = Origin {
            qemu: qemu.clone(),
            machine: machine.clone(),
            image: image.clone(),
            acceleration,
            shell,
        };
        let process = Process::start(&origin, None)?;
        Keeper::of(Box::new(process), machine, Some(origin), started)
    }

    /// Starts a machine through libvirt, for the worker of this name. It ends with the calling thread.
    pub fn start_by_libvirt(
        libvirt: &Libvirt,
        worker: &str,
        machine: &Machine,
        image: &Image,
        acceleration: Acceleration,
    ) -> Result<Keeper, GuestError> {
        let started = Instant::now();
        let domain = Domain::start(libvirt, worker, machine, image, acceleration)?;
        Keeper::of(Box::new(domain), machine, None, started)
    }

    fn of(
        mut running: Box<dyn Running>,
        machine: &Machine,
        origin: Option<Origin>,
        started: Instant,
    ) -> Result<Keeper, GuestError> {
        let failed = |e: io::Error| GuestError::failed(format!("the connection to QEMU: {e}"));
        let bus = match running.bus(machine) {
            Ok(bus) => bus,
            Err(error) => return Err(died(&mut *running, &error.to_string())),
        };
        let out = running.control().try_clone().map_err(failed)?;
        let shared = Shared {
            origin,
            running: Mutex::new(running),
            devices: Mutex::new(Devices::new(bus)),
            stuck: Mutex::new(None),
            out: Arc::new(Mutex::new(out)),
            continues: Mutex::new(None),
        };
        Ok(Keeper { shared: Arc::new(shared), started })
    }

    /// Waits until the machine has booted, and returns how long after its start that was.
    pub fn booted(&mut self, limit: Duration) -> Result<Duration, GuestError> {
        let failed = |e: io::Error| GuestError::failed(format!("the virtual machine's port: {e}"));
        let mut running = locked(&self.shared.running);
        running.control().set_read_timeout(Some(limit)).map_err(failed)?;
        match control::read::<ToKeeper>(&mut running.control()) {
            Ok(Some(Frame::Message(ToKeeper::Hello))) => {}
            Ok(None) => return Err(died(&mut **running, "it ended while it booted")),
            Ok(Some(other)) => {
                return Err(GuestError::failed(format!(
                    "the virtual machine began with {other:?}, and not with hello"
                )));
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                let words = console_words(&mut **running);
                return Err(GuestError::failed(format!(
                    "the virtual machine did not report within {limit:?} of its start{words}"
                )));
            }
            Err(e) => return Err(died(&mut **running, &e.to_string())),
        }
        running.control().set_read_timeout(None).map_err(failed)?;
        running.booted();
        Ok(self.started.elapsed())
    }

    /// Has the worker started, relays its connections to where `dial` leads, and has its questions answered by `answer`, until the
    /// worker has ended. `answer` is called by one thread, one question at a time.
    pub fn run(
        self,
        worker: Value,
        dial: impl Fn() -> io::Result<TcpStream>,
        answer: impl FnMut(Value, &mut Devices) -> Value + Send + 'static,
    ) -> Result<Ended, GuestError> {
        let failed = |e: io::Error| GuestError::failed(format!("the virtual machine's port: {e}"));
        let out = Arc::clone(&self.shared.out);
        let stream = locked(&self.shared.running).control().try_clone().map_err(failed)?;
        let mut said = Said { stream, shared: Arc::clone(&self.shared) };
        let mut seed = vec![0; SEED];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut seed))
            .map_err(failed)?;
        let since_start_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let questions = answer_questions(Arc::clone(&self.shared), answer).map_err(failed)?;
        let told = say(&out, &ToMachine::Start { worker, since_start_ns, seed });
        let mut connection: Option<(u32, TcpStream)> = None;
        let ended = told.and_then(|()| relay(&mut said, &out, &dial, &questions, &mut connection));
        // A worker that is gone has no connection.
        if let Some((_, stream)) = connection {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let stuck = locked(&self.shared.stuck).take();
        let result = match ended {
            Ok(Some(ended)) => Ok(ended),
            _ if stuck.is_some() => {
                let why = stuck.unwrap_or_default();
                Err(GuestError::failed(format!("the virtual machine was ended: {why}")))
            }
            Ok(None) => Err(died(&mut **locked(&self.shared.running), "its connection ended")),
            Err(e) => Err(died(&mut **locked(&self.shared.running), &e.to_string())),
        };
        // Before its disks are given back, which whoever answers questions has locked.
        locked(&self.shared.running).end();
        drop(questions);
        result
    }

    /// The way to order something of the machine while it runs. To be had once.
    pub fn remote(&self) -> Result<Remote, GuestError> {
        Remote::begin(Arc::clone(&self.shared))
    }

    /// Our end of the machine's serial port.
    pub(crate) fn control(&self) -> io::Result<UnixStream> {
        locked(&self.shared.running).control().try_clone()
    }

    /// The machine's devices.
    pub(crate) fn devices(&self) -> MutexGuard<'_, Devices> {
        locked(&self.shared.devices)
    }

    /// How long ago the machine was started.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// The last lines of the console, for an error: empty, or with the words that introduce them.
    pub(crate) fn last_words(&self) -> String {
        console_words(&mut **locked(&self.shared.running))
    }

    /// The error of a machine that is no more, or makes no sense.
    pub(crate) fn died(&self, why: &str) -> GuestError {
        died(&mut **locked(&self.shared.running), why)
    }

    /// Waits until QEMU has ended by itself, or this limit is over.
    pub(crate) fn wait_for_end(&self, limit: Duration) {
        let _ = locked(&self.shared.running).ended(limit);
    }

    /// The process id of QEMU.
    pub fn process(&self) -> u32 {
        locked(&self.shared.running).process()
    }
}

/// A keeper that is gone has no machine, whoever still has a way to it.
impl Drop for Keeper {
    fn drop(&mut self) {
        locked(&self.shared.running).end();
    }
}

fn console_words(running: &mut dyn Running) -> String {
    match running.last_words() {
        words if words.is_empty() => words,
        words => format!("; its console's last lines: {words}"),
    }
}

/// The error of a machine that is no more, or makes no sense.
fn died(running: &mut dyn Running, why: &str) -> GuestError {
    let ended = running.ended(DEATH_LIMIT);
    let status = ended.unwrap_or_else(|| format!("QEMU still runs, and is killed ({why})"));
    let words = running.last_words();
    let said = if words.is_empty() { String::new() } else { format!("; its last lines: {words}") };
    GuestError::failed(format!("the virtual machine is gone: {status}{said}"))
}

fn say(out: &Out, message: &ToMachine) -> io::Result<()> {
    control::say(&mut *locked(out), message)
}

/// Reads what the machine says until its worker has ended, or the machine.
fn relay(
    from: &mut impl Read,
    out: &Out,
    dial: &impl Fn() -> io::Result<TcpStream>,
    questions: &mpsc::SyncSender<Value>,
    connection: &mut Option<(u32, TcpStream)>,
) -> io::Result<Option<Ended>> {
    loop {
        match control::read(from)? {
            None => return Ok(None),
            Some(Frame::Message(ToKeeper::Ended(ended))) => return Ok(Some(ended)),
            Some(Frame::Message(ToKeeper::Hello | ToKeeper::Alive | ToKeeper::Written(_))) => {}
            Some(Frame::Message(ToKeeper::Dial(number))) => match connected(number, out, dial) {
                Ok(stream) => *connection = Some((number, stream)),
                Err(_) => say(out, &ToMachine::HungUp(number))?,
            },
            Some(Frame::Message(ToKeeper::HungUp(number))) => {
                if let Some((_, stream)) = connection.take_if(|(open, _)| *open == number) {
                    let _ = stream.shutdown(Shutdown::Both);
                }
            }
            Some(Frame::Message(ToKeeper::Ask(question))) => questions
                .try_send(question)
                .map_err(|_| io::Error::other("the virtual machine asks more than one question at a time"))?,
            Some(Frame::Data(number, bytes)) => {
                let Some((_, stream)) = connection.as_mut().filter(|(open, _)| *open == number) else {
                    continue;
                };
                if stream.write_all(&bytes).is_err() {
                    let _ = stream.shutdown(Shutdown::Both);
                    *connection = None;
                    say(out, &ToMachine::HungUp(number))?;
                }
            }
        }
    }
}

/// A connection to the controller, whose bytes a thread passes on to the machine.
fn connected(number: u32, out: &Out, dial: &impl Fn() -> io::Result<TcpStream>) -> io::Result<TcpStream> {
    let stream = dial()?;
    stream.set_nodelay(true)?;
    // While this waits for a controller that does not read, nothing of the machine is heard.
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    let mut from = stream.try_clone()?;
    let out = Arc::clone(out);
    let pump = move || {
        let mut bytes = vec![0; PIECE];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if control::pass(&mut *locked(&out), number, &bytes[..read]).is_err() {
                return;
            }
        }
        // If the machine is gone, its reader says so.
        let _ = say(&out, &ToMachine::HungUp(number));
    };
    thread::Builder::new().name("relay".into()).spawn(pump)?;
    Ok(stream)
}

/// A thread that answers the worker's questions: one may take long, and its connection must not wait meanwhile.
fn answer_questions(
    shared: Arc<Shared>,
    mut answer: impl FnMut(Value, &mut Devices) -> Value + Send + 'static,
) -> io::Result<mpsc::SyncSender<Value>> {
    let (questions, asked) = mpsc::sync_channel::<Value>(QUESTIONS);
    let work = move || {
        while let Ok(question) = asked.recv() {
            let mut devices = locked(&shared.devices);
            let answer = answer(question, &mut devices);
            if let Some(why) = devices.stuck() {
                // With the machine its worker stands still, and would not read an answer.
                *locked(&shared.stuck) = Some(why.clone());
                locked(&shared.running).end();
                return;
            }
            drop(devices);
            if say(&shared.out, &ToMachine::Answer(answer)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("questions".into()).spawn(work)?;
    Ok(questions)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_qemu_that_ends_at_once_is_named_with_what_is_read_of_it_after_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("qemu");
        // A process that is left over has the output, and none of the sockets.
        let script = "#!/bin/bash\n\
             (for fd in /proc/$BASHPID/fd/*; do ((${fd##*/} < 3)) || eval \"exec ${fd##*/}>&-\"; done; sleep 0.3; echo late words) &\n\
             exit 3\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let qemu = Qemu { program: program.display().to_string(), version: (7, 2) };
        let image =
            Image { kernel: "k".into(), archive: "a".into(), bytes: 0, module_bytes: 0, version: "6".into() };
        let error =
            Keeper::start(&qemu, &Machine::default(), &image, Acceleration::Software).unwrap_err().message;
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(error.contains("late words"), "{error}");
    }
}
