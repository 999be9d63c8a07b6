//! The keeper's way to a receiver: a thread for each QEMU there, which has its connections.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver as Answers, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use loadline_guest::{GuestError, Link, OtherHost, OtherQemu, Wanted};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::Receiver;
use super::channel::{Channel, FromReceiver, Opened, Passed, Purpose, ToReceiver};
use crate::tls::worker_config;
use crate::wire::SILENCE_LIMIT;

/// How long a QEMU may take to wait for the machine there.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long an answer may take.
const ANSWER_LIMIT: Duration = SILENCE_LIMIT;
/// How long a QEMU may take to be gone: then its receiver has ended it, since it has heard nothing from its keeper.
const END_LIMIT: Duration = SILENCE_LIMIT.saturating_add(Duration::from_secs(2));
/// How long the last bytes of a QEMU that has ended may take to come.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// How often the keeper sends a sign of life.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// The way to a host on which a receiver waits.
pub(crate) struct Way {
    receiver: Receiver,
}

impl Way {
    pub(crate) fn to(receiver: Receiver) -> Way {
        Way { receiver }
    }
}

impl OtherHost for Way {
    fn wait_for(&mut self, wanted: &Wanted) -> Result<OtherQemu, GuestError> {
        let failed = |e: &dyn std::fmt::Display| GuestError::failed(format!("the way to another host: {e}"));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| failed(&e))?;
        let (requests, asked) = mpsc::unbounded_channel();
        let (ready, is_ready) = sync_channel(1);
        let over = Arc::<Over>::default();
        let link = LinkTo { requests, over: over.clone() };
        let (receiver, wanted) = (self.receiver.clone(), wanted.clone());
        let work = move || {
            runtime.block_on(keep(&receiver, wanted, ready, asked, &over));
            runtime.shutdown_background();
        };
        thread::Builder::new().name("elsewhere".into()).spawn(work).map_err(|e| failed(&e))?;
        let [control, orders, more_orders, incoming] = match is_ready.recv_timeout(START_LIMIT) {
            Ok(Ok(streams)) => streams,
            Ok(Err(why)) => return Err(GuestError::failed(why)),
            // The thread ends when the link is dropped.
            Err(_) => return Err(failed(&format!("QEMU does not wait there within {START_LIMIT:?}"))),
        };
        let number =
            incoming.1.ok_or_else(|| failed(&"the stream by which the machine goes has no number"))?;
        Ok(OtherQemu {
            control: control.0,
            orders: orders.0,
            more_orders: more_orders.0,
            incoming: Some((incoming.0, number)),
            link: Arc::new(link),
        })
    }
}

/// Our end of a connection, and its number in QEMU.
type Stream = (UnixStream, Option<RawFd>);

/// What is asked of the thread.
enum Ask {
    HasRead(SyncSender<io::Result<bool>>),
    Pause(Duration, SyncSender<Result<(), String>>),
    LastWords(SyncSender<String>),
    Departure(SyncSender<Result<Stream, String>>),
    End,
}

/// How a QEMU ended, once it has.
#[derive(Debug, Default)]
struct Over {
    how: Mutex<Option<(String, String)>>,
    changed: Condvar,
}

impl Over {
    /// The first word counts.
    fn set(&self, how: (String, String)) {
        self.how.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(how);
        self.changed.notify_all();
    }

    fn within(&self, limit: Duration) -> Option<(String, String)> {
        let how = self.how.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(how, limit, |how| how.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

#[derive(Debug)]
struct LinkTo {
    requests: mpsc::UnboundedSender<Ask>,
    over: Arc<Over>,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a request")
    }
}

impl LinkTo {
    fn ask<T>(&self, limit: Duration, ask: impl FnOnce(SyncSender<T>) -> Ask) -> Result<T, String> {
        let (answer, answered): (SyncSender<T>, Answers<T>) = sync_channel(1);
        // If the thread has ended, so has the answer.
        let _ = self.requests.send(ask(answer));
        answered.recv_timeout(limit).map_err(|e| match e {
            RecvTimeoutError::Timeout => "the other host does not answer".into(),
            RecvTimeoutError::Disconnected => "the connection to the other host has ended".into(),
        })
    }
}

impl Link for LinkTo {
    fn has_read(&self) -> io::Result<bool> {
        self.ask(ANSWER_LIMIT, Ask::HasRead).map_err(io::Error::other)?
    }

    fn pause(&self, length: Duration) -> Result<(), GuestError> {
        let paused =
            self.ask(length + ANSWER_LIMIT, |answer| Ask::Pause(length, answer)).and_then(|done| done);
        paused.map_err(|why| GuestError::failed(format!("the virtual machine is not paused: {why}")))
    }

    fn departure(&self) -> Result<UnixStream, GuestError> {
        let stream = self.ask(2 * ANSWER_LIMIT, Ask::Departure).and_then(|stream| stream);
        stream.map(|(stream, _)| stream).map_err(GuestError::failed)
    }

    fn ended(&self, limit: Duration) -> Option<String> {
        self.over.within(limit).map(|(how, _)| how)
    }

    fn last_words(&self) -> String {
        match self.over.within(Duration::ZERO) {
            Some((_, words)) => words,
            None => self.ask(ANSWER_LIMIT, Ask::LastWords).unwrap_or_default(),
        }
    }

    fn end(&self) {
        let _ = self.requests.send(Ask::End);
        let _ = self.over.within(END_LIMIT);
    }
}

/// Has a QEMU started, and passes its connections on until it has ended, and all that it said has come.
async fn keep(
    receiver: &Receiver,
    wanted: Wanted,
    ready: SyncSender<Result<[Stream; 4], String>>,
    asked: mpsc::UnboundedReceiver<Ask>,
    over: &Over,
) {
    let mut kept = match Kept::begin(receiver, wanted).await {
        Ok((kept, streams)) => {
            // Whoever waited for it may have gone.
            let _ = ready.send(Ok(streams));
            kept
        }
        Err(why) => {
            let _ = ready.send(Err(why.clone()));
            return over.set((why, String::new()));
        }
    };
    let how = kept.serve(asked, over).await;
    over.set(how);
}

/// A QEMU there.
struct Kept {
    receiver: Receiver,
    tls: TlsConnector,
    link: Channel,
    machine: u32,
    /// What was passed on by the serial port.
    passed: Arc<Passed>,
    /// Our end of it, to see whether there is more.
    control: UnixStream,
    pumps: JoinSet<()>,
    /// Who waits for an answer, in the order of the questions.
    reads: VecDeque<SyncSender<io::Result<bool>>>,
    pauses: VecDeque<SyncSender<Result<(), String>>>,
    words: VecDeque<SyncSender<String>>,
}

impl Kept {
    async fn begin(receiver: &Receiver, wanted: Wanted) -> Result<(Kept, [Stream; 4]), String> {
        let tls = TlsConnector::from(worker_config());
        let mut link = Channel::dial(&tls, receiver.address, &receiver.key, Purpose::Link, 0).await?;
        link.send(&ToReceiver::Begin(wanted)).await.map_err(|e| e.to_string())?;
        let waits = timeout(START_LIMIT, link.next()).await;
        let machine = match waits.map_err(|_| "the receiver does not answer".to_string())?? {
            FromReceiver::Waits { machine } => machine,
            FromReceiver::Refused(why) => return Err(why),
            other => return Err(format!("the receiver answers {other:?}")),
        };
        let mut pumps = JoinSet::new();
        let passed = Arc::<Passed>::default();
        let mut streams = Vec::new();
        let mut control = None;
        for purpose in [Purpose::Control, Purpose::Orders, Purpose::MoreOrders, Purpose::Incoming] {
            let passed = if purpose == Purpose::Control { passed.clone() } else { Arc::default() };
            let (channel, stream, theirs) = open(&tls, receiver, purpose, machine).await?;
            link.send(&ToReceiver::Alive).await.map_err(|e| e.to_string())?;
            if purpose == Purpose::Control {
                control = Some(stream.0.try_clone().map_err(|e| e.to_string())?);
            }
            pumps.spawn(async move { drop(channel.pass(theirs, passed).await) });
            streams.push(stream);
        }
        let (Ok(streams), Some(control)) = (<[Stream; 4]>::try_from(streams), control) else {
            return Err("a connection is missing".into());
        };
        let (reads, pauses, words) = Default::default();
        let receiver = receiver.clone();
        Ok((Kept { receiver, tls, link, machine, passed, control, pumps, reads, pauses, words }, streams))
    }

    async fn serve(&mut self, mut asked: mpsc::UnboundedReceiver<Ask>, over: &Over) -> (String, String) {
        let mut alive = interval(ALIVE_EVERY);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silent_at = Instant::now() + SILENCE_LIMIT;
        let ended = |how: String| (how, String::new());
        loop {
            let message = tokio::select! {
                ask = asked.recv() => match ask {
                    // The link was dropped, or its owner has ended it.
                    None | Some(Ask::End) => Some(ToReceiver::End),
                    Some(ask) => self.ask(ask),
                },
                message = self.link.next::<FromReceiver>() => {
                    silent_at = Instant::now() + SILENCE_LIMIT;
                    match message {
                        Ok(FromReceiver::Ended { how, words }) => {
                            // Its last bytes are on their way here.
                            let _ = timeout(DRAIN_LIMIT, self.passed.back_ended.notified()).await;
                            return (how, words);
                        }
                        Ok(message) => self.take(message),
                        Err(why) => return ended(format!("the connection to the host on which it ran ended: {why}")),
                    }
                    None
                },
                _ = alive.tick() => Some(ToReceiver::Alive),
                () = sleep_until(silent_at) => {
                    // Its receiver may have heard the last of us a little later.
                    sleep(ALIVE_EVERY).await;
                    return ended("the host on which it ran does not answer".into());
                }
            };
            if let Some(message) = message {
                let is_end = message == ToReceiver::End;
                if let Err(why) = self.link.send(&message).await {
                    return ended(format!("the connection to the host on which it ran ended: {why}"));
                }
                if is_end {
                    let how = self.await_end().await;
                    over.set(ended(how.clone()));
                    // Its last bytes are on their way here.
                    let _ = timeout(DRAIN_LIMIT, self.passed.back_ended.notified()).await;
                    return ended(how);
                }
            }
        }
    }

    async fn await_end(&mut self) -> String {
        let until = Instant::now() + SILENCE_LIMIT;
        loop {
            match timeout_at(until, self.link.next::<FromReceiver>()).await {
                Ok(Ok(FromReceiver::Ended { how, .. })) => return how,
                Ok(Ok(_)) => {}
                // A receiver without its keeper ends its QEMU.
                Ok(Err(why)) => return why,
                Err(_) => return "the host on which it ran does not answer".into(),
            }
        }
    }

    fn ask(&mut self, ask: Ask) -> Option<ToReceiver> {
        match ask {
            Ask::HasRead(answer) => match loadline_guest::all_read(&self.control) {
                // The task that reads our end runs in this thread: what it has read, it has counted.
                Ok(true) => {
                    self.reads.push_back(answer);
                    return Some(ToReceiver::HasRead { bytes: self.passed.taken.load(Ordering::SeqCst) });
                }
                other => drop(answer.send(other)),
            },
            Ask::Pause(length, answer) => {
                self.pauses.push_back(answer);
                return Some(ToReceiver::Pause { ms: u64::try_from(length.as_millis()).unwrap_or(u64::MAX) });
            }
            Ask::LastWords(answer) => {
                self.words.push_back(answer);
                return Some(ToReceiver::LastWords);
            }
            Ask::Departure(answer) => {
                let (tls, receiver, machine) = (self.tls.clone(), self.receiver.clone(), self.machine);
                self.pumps.spawn(async move {
                    match open(&tls, &receiver, Purpose::Departure, machine).await {
                        Ok((channel, stream, theirs)) => {
                            drop(answer.send(Ok(stream)));
                            drop(channel.pass(theirs, Arc::default()).await);
                        }
                        Err(why) => drop(answer.send(Err(why))),
                    }
                });
            }
            Ask::End => return Some(ToReceiver::End),
        }
        None
    }

    fn take(&mut self, message: FromReceiver) {
        // Whoever asked may wait no more.
        match message {
            FromReceiver::Read(is_read) => {
                drop(self.reads.pop_front().map(|answer| answer.send(Ok(is_read))))
            }
            FromReceiver::Paused(done) => drop(self.pauses.pop_front().map(|answer| answer.send(done))),
            FromReceiver::Words(words) => drop(self.words.pop_front().map(|answer| answer.send(words))),
            _ => {}
        }
    }
}

/// Opens one connection of a QEMU: the channel, our end with its number, and the end that the channel's bytes are passed on to.
async fn open(
    tls: &TlsConnector,
    receiver: &Receiver,
    purpose: Purpose,
    machine: u32,
) -> Result<(Channel, Stream, UnixStream), String> {
    let mut channel = Channel::dial(tls, receiver.address, &receiver.key, purpose, machine).await?;
    let opened = timeout(ANSWER_LIMIT, channel.next()).await;
    let number = match opened.map_err(|_| "the receiver does not answer".to_string())?? {
        Opened::Number(number) => number,
        Opened::Refused(why) => return Err(why),
    };
    let (ours, theirs) = UnixStream::pair().map_err(|e| e.to_string())?;
    Ok((channel, (ours, number), theirs))
}
