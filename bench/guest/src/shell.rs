//! A running machine of a session: its output is passed on as it comes, and a machine that does not boot, that dies or that hangs is an
//! error with words.

use std::io::{self, Read};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::{self, Ended, Frame, ToKeeper, ToMachine};
use crate::disk::MachineDisk;
use crate::error::GuestError;
use crate::image::Image;
use crate::keeper::Keeper;
use crate::machine::Machine;
use crate::port::Port;
use crate::qemu::{Acceleration, Qemu};
use crate::session::{OUTPUT, Session, Size, Task};

/// How long a machine may take from its start to its report.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long a machine may send nothing. It reports every two seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// How long the machine may take to end a session that is to end, and to unmount what is mounted, without progress: nothing is written to
/// the disk. A volume whose nodes are lost may take 120 s to be reached again.
const END_LIMIT: Duration = Duration::from_secs(150);
/// How long the order to end waits behind input that the session does not read.
const TELL_LIMIT: Duration = Duration::from_secs(5);
/// How long QEMU may take to end once its session has: then it has closed its disk, so that the disk's server knows that it does not come
/// back.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// How often the user's wishes are read.
const POLL: Duration = Duration::from_millis(50);
/// Bytes of input in one frame.
const PIECE: usize = 16 << 10;
/// Frames that wait to be handled.
const FRAMES: usize = 64;

/// What the user of a session wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// The terminal has this size now.
    Resize(Size),
    /// The session is to end in order: its processes are ended, and what is mounted is unmounted.
    End,
    /// The machine is to end at once, as if its power failed.
    Kill,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// Its program ended.
    Ended(Ended),
    /// It was ended as the user wished.
    ByWish,
}

/// A machine for one session. Dropping it kills it; nothing of it stays.
#[derive(Debug)]
pub struct ShellMachine {
    keeper: Keeper,
    frames: mpsc::Receiver<io::Result<Option<Frame<ToKeeper>>>>,
    port: Port,
    /// Since when the session is to end, or the machine has made progress with that.
    is_ending: Option<Instant>,
    /// What the machine has written to its disk since the session has ended.
    written: u64,
    /// When the order to end was sent.
    ordered: Option<Instant>,
}

impl ShellMachine {
    /// Starts a machine. It dies with the calling thread.
    pub fn start(
        qemu: &Qemu,
        machine: &Machine,
        image: &Image,
        acceleration: Acceleration,
    ) -> Result<ShellMachine, GuestError> {
        let keeper = Keeper::start_for(qemu, machine, image, acceleration, true)?;
        let (mut port, out) =
            keeper.control().and_then(|port| Ok((port, keeper.control()?))).map_err(port_failed)?;
        let (send, frames) = mpsc::sync_channel(FRAMES);
        let read = move || {
            loop {
                let frame = control::read(&mut port);
                let is_last = !matches!(frame, Ok(Some(_)));
                if send.send(frame).is_err() || is_last {
                    return;
                }
            }
        };
        thread::Builder::new().name("port".into()).spawn(read).map_err(port_failed)?;
        let port = Port::open(out).map_err(port_failed)?;
        Ok(ShellMachine { keeper, frames, port, is_ending: None, written: 0, ordered: None })
    }

    /// Waits until the machine has booted, and returns how long after its start that was; `None`: the user's wish ended the wait.
    pub fn booted(&mut self, wish: &mut dyn FnMut() -> Option<Wish>) -> Result<Option<Duration>, GuestError> {
        loop {
            if matches!(wish(), Some(Wish::End | Wish::Kill)) {
                return Ok(None);
            }
            match self.frames.recv_timeout(POLL) {
                Ok(Ok(Some(Frame::Message(ToKeeper::Hello)))) => return Ok(Some(self.keeper.age())),
                Ok(Ok(Some(other))) => {
                    return Err(GuestError::failed(format!(
                        "the virtual machine began with {other:?}, and not with hello"
                    )));
                }
                Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.keeper.died("it ended while it booted"));
                }
                Ok(Err(e)) => return Err(self.keeper.died(&e.to_string())),
                Err(RecvTimeoutError::Timeout) if self.keeper.age() > BOOT_LIMIT => {
                    let words = self.keeper.last_words();
                    return Err(GuestError::failed(format!(
                        "the virtual machine did not report within {BOOT_LIMIT:?} of its start{words}"
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Attaches the disk of the session. Call it once, before [`run`](Self::run).
    pub fn attach(&mut self, disk: &MachineDisk, writable: bool) -> Result<(), GuestError> {
        self.keeper.devices().attach(disk, writable).map(drop)
    }

    /// The process id of QEMU.
    pub fn process(&self) -> u32 {
        self.keeper.process()
    }

    /// Carries out a session. A thread of its own reads `input` until its end or the machine's. `output` gets what the session prints:
    /// [`OUTPUT`] or [`ERRORS`](crate::session::ERRORS), and bytes; if it fails, the session is ended. `wish` is asked many times a second.
    pub fn run(
        mut self,
        task: Task,
        writable: bool,
        input: impl Read + Send + 'static,
        output: &mut dyn FnMut(u32, &[u8]) -> io::Result<()>,
        wish: &mut dyn FnMut() -> Option<Wish>,
    ) -> Result<SessionEnd, GuestError> {
        let mut seed = vec![0; 64];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut seed))
            .map_err(port_failed)?;
        let session = Session { seed, name: "loadline".into(), writable, task };
        self.port.order(ToMachine::Session(session));
        self.pass_input(input)?;
        let mut heard = Instant::now();
        loop {
            match wish() {
                Some(Wish::Kill) => return Ok(SessionEnd::ByWish),
                Some(Wish::End) => self.end(),
                Some(Wish::Resize(size)) => self.port.resize(size),
                None => {}
            }
            if self.ordered.is_some_and(|at| at.elapsed() > TELL_LIMIT) && self.port.has_orders() {
                let words = self.keeper.last_words();
                return Err(GuestError::failed(format!(
                    "the virtual machine has not read the order to end within {TELL_LIMIT:?}, and is killed: its program does not read its \
                     input{words}"
                )));
            }
            if self.is_ending.is_some_and(|since| since.elapsed() > END_LIMIT) {
                let words = self.keeper.last_words();
                return Err(GuestError::failed(format!(
                    "the virtual machine did not end the session and unmount its file systems: it has written nothing to its disk for \
                     {END_LIMIT:?}, and is killed{words}"
                )));
            }
            match self.frames.recv_timeout(POLL) {
                Ok(Ok(Some(frame))) => {
                    heard = Instant::now();
                    match frame {
                        Frame::Data(stream, bytes) => {
                            if output(stream, &bytes).is_err() {
                                self.end();
                            }
                        }
                        Frame::Message(ToKeeper::Ended(ended)) => {
                            self.keeper.wait_for_end(CLOSE_LIMIT);
                            return Ok(SessionEnd::Ended(ended));
                        }
                        Frame::Message(ToKeeper::Written(written)) if written > self.written => {
                            self.written = written;
                            self.is_ending = self.is_ending.map(|_| Instant::now());
                        }
                        Frame::Message(ToKeeper::HungUp(OUTPUT)) => {
                            self.is_ending.get_or_insert_with(Instant::now);
                        }
                        Frame::Message(_) => {}
                    }
                }
                Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.keeper.died("its connection ended"));
                }
                Ok(Err(e)) => return Err(self.keeper.died(&e.to_string())),
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > SILENCE_LIMIT => {
                    let words = self.keeper.last_words();
                    return Err(GuestError::failed(format!(
                        "the virtual machine has sent nothing for {SILENCE_LIMIT:?}, and is killed{words}"
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Has the session ended in order. Later calls do nothing.
    fn end(&mut self) {
        if self.is_ending.is_none() {
            self.port.order(ToMachine::End);
            self.is_ending = Some(Instant::now());
            self.ordered = self.is_ending;
        }
    }

    fn pass_input(&self, mut input: impl Read + Send + 'static) -> Result<(), GuestError> {
        let port = self.port.clone();
        let pass = move || {
            let mut bytes = vec![0; PIECE];
            while let Ok(read @ 1..) = input.read(&mut bytes) {
                if port.pass(&bytes[..read]).is_err() {
                    return;
                }
            }
            let _ = port.pass(&[]);
        };
        thread::Builder::new().name("input".into()).spawn(pass).map(drop).map_err(port_failed)
    }
}

impl Drop for ShellMachine {
    fn drop(&mut self) {
        self.port.close();
    }
}

fn port_failed(e: io::Error) -> GuestError {
    GuestError::failed(format!("the virtual machine's port: {e}"))
}
