//! The controller's end of the connections: checks that a new connection knows the token, then carries a worker's messages.
//!
//! Every connection is a task of its own, which answers questions about the time at once and sends heartbeats
//! whatever the controller is busy with. What matters reaches the controller through one bounded queue: a worker
//! that sends too much waits. Messages of the controller wait in a bounded queue of the connection: a worker that
//! does not read them is given up.

use std::sync::Arc;
use std::time::Duration;

use loadline_base::clock::Nanos;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::event::LossReason;
use crate::frame::{self, FrameError, FrameReader, parse};
use crate::inbound::{ConnectionNumber, Inbound, Refusal};
use crate::unauthenticated::UnauthenticatedConnections;
use crate::wire::{
    AnyHello, Digits, HEARTBEAT, Hello, LONGEST_FRAME, LONGEST_HELLO, Nonces, PROTOCOL, SILENCE_LIMIT, Side,
    ToController, ToWorker,
};

/// How long a new connection may take to introduce itself and to prove that it knows the token.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How long a refusal may take to be sent.
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);
/// The most messages to one worker that wait to be sent. The controller gives few orders at a time.
const ORDERS_WAITING: usize = 64;
/// Messages of all workers that wait for the controller; then the workers wait.
pub(crate) const MESSAGES_WAITING: usize = 256;
/// The pause after a connection could not be accepted: usually there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The controller's side of a worker's connection. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct WorkerConnection {
    pub(crate) number: ConnectionNumber,
    pub(crate) outgoing: mpsc::Sender<ToWorker>,
}

/// Accepts connections for as long as the controller listens to `inbox`.
pub(crate) async fn accept(listener: TcpListener, token: Arc<str>, inbox: mpsc::Sender<Inbound>) {
    let unauthenticated = Arc::new(UnauthenticatedConnections::new(inbox.clone()));
    let mut number: ConnectionNumber = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = inbox.closed() => return,
        };
        let Ok((stream, from)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let place = match unauthenticated.place(from.ip()) {
            Ok(place) => place,
            Err(why) => {
                unauthenticated.refuse(from, why);
                continue;
            }
        };
        number += 1;
        let (token, inbox, unauthenticated) = (token.clone(), inbox.clone(), unauthenticated.clone());
        tokio::spawn(async move {
            match greet(number, stream, &token, &inbox).await {
                Ok(Some(connection)) => {
                    drop(place);
                    connection.keep().await;
                }
                Ok(None) => {}
                Err(why) => unauthenticated.refuse(from, why),
            }
        });
    }
}

/// Lets a new connection in, or returns why it was refused. `None`: the controller is ending.
async fn greet(
    number: ConnectionNumber,
    stream: TcpStream,
    token: &str,
    inbox: &mpsc::Sender<Inbound>,
) -> Result<Option<Connection>, String> {
    let _ = stream.set_nodelay(true);
    let (reader, mut writer) = split(stream);
    let mut reader = FrameReader::new(reader, LONGEST_HELLO);
    let introduced = timeout(HELLO_LIMIT, introduce(&mut reader, &mut writer, token)).await;
    let hello = match introduced {
        Err(_) => return Err(format!("it sent no hello within {HELLO_LIMIT:?}")),
        Ok(Err(Unproved { why, tell })) => {
            if tell {
                refuse(&mut writer, Refusal { why: why.clone(), retry: false }).await;
            }
            return Err(why);
        }
        Ok(Ok(hello)) => hello,
    };
    let (outgoing, to_send) = mpsc::channel(ORDERS_WAITING);
    let (answer, answered) = oneshot::channel();
    let request = Inbound::JoinRequest { connection: number, hello, outgoing, answer };
    if inbox.send(request).await.is_err() {
        return Ok(None);
    }
    match answered.await {
        Err(_) => Ok(None),
        Ok(Err(refusal)) => {
            let why = refusal.why.clone();
            refuse(&mut writer, refusal).await;
            Err(why)
        }
        Ok(Ok(worker)) => {
            reader.allow(LONGEST_FRAME);
            let mut connection = Connection { number, reader, writer, to_send, inbox: inbox.clone() };
            // If this fails, keeping the connection fails next, and tells the controller.
            let _ = frame::send(&mut connection.writer, &ToWorker::Welcome { worker }).await;
            Ok(Some(connection))
        }
    }
}

/// Why a connection has not proved that it knows the token.
struct Unproved {
    why: String,
    /// Whether the reason is sent to it: it speaks frames, and is still connected.
    tell: bool,
}

/// The hello of a connection that has proved that it knows the token.
async fn introduce(
    reader: &mut FrameReader<ReadHalf<TcpStream>>,
    writer: &mut WriteHalf<TcpStream>,
    token: &str,
) -> Result<Hello, Unproved> {
    let silent = |why: String| Unproved { why, tell: false };
    let told = |why: String| Unproved { why, tell: true };
    let frame = reader.next().await.map_err(|e| silent(e.to_string()))?;
    let frame = frame.ok_or_else(|| silent("it connected and left without a word".into()))?;
    let hello = check(&frame).map_err(told)?;
    let controller = Digits::random().map_err(|e| told(e.message))?;
    let nonces = Nonces { worker: hello.nonce, controller };
    let challenge = ToWorker::Challenge { nonce: controller, proof: nonces.proof(token, Side::Controller) };
    frame::send(writer, &challenge).await.map_err(|e| silent(e.to_string()))?;
    let wrong = "its token is not the token of this fleet: give the worker the --token of the controller";
    match reader.next().await {
        // A worker leaves at this point when the controller's proof does not fit its own token.
        Ok(None) | Err(FrameError::Broken(_)) => Err(silent(format!(
            "it closed the connection when it had to prove that it has the token; probably {wrong}"
        ))),
        Err(e) => Err(silent(e.to_string())),
        Ok(Some(frame)) => match parse(&frame) {
            Ok(ToController::Proof { proof }) if nonces.is_proof(token, Side::Worker, &proof) => Ok(hello),
            Ok(ToController::Proof { .. }) => Err(told(wrong.into())),
            _ => Err(told("its second message does not prove that it has the token".into())),
        },
    }
}

/// The hello in the first frame of a connection, if it speaks this protocol.
fn check(frame: &[u8]) -> Result<Hello, String> {
    let any: AnyHello = parse(frame).map_err(|_| "its first message is not a worker's hello".to_string())?;
    if any.hello.protocol != PROTOCOL {
        return Err(format!(
            "it speaks version {} of the protocol, and this controller version {PROTOCOL}: use the same version of \
             loadline for both",
            any.hello.protocol
        ));
    }
    match parse(frame) {
        Ok(ToController::Hello(hello)) => Ok(hello),
        Ok(_) => Err("its first message is not a worker's hello".into()),
        Err(e) => Err(e.to_string()),
    }
}

async fn refuse(writer: &mut WriteHalf<TcpStream>, refusal: Refusal) {
    let Refusal { why, retry } = refusal;
    let refused = ToWorker::Refused { protocol: PROTOCOL, why, retry };
    // A peer that does not read this message changes nothing.
    let _ = timeout(REFUSAL_LIMIT, async {
        frame::send(writer, &refused).await?;
        writer.shutdown().await.map_err(FrameError::from)
    })
    .await;
}

/// A worker's connection.
struct Connection {
    number: ConnectionNumber,
    reader: FrameReader<ReadHalf<TcpStream>>,
    writer: WriteHalf<TcpStream>,
    to_send: mpsc::Receiver<ToWorker>,
    inbox: mpsc::Sender<Inbound>,
}

impl Connection {
    /// Carries messages until the connection is over, and returns why it is.
    async fn keep(mut self) {
        let (reason, why) = self.carry().await;
        let _ = self.inbox.send(Inbound::Gone { connection: self.number, reason, why }).await;
        let _ = timeout(REFUSAL_LIMIT, self.writer.shutdown()).await;
    }

    async fn carry(&mut self) -> (LossReason, String) {
        let mut tick = interval(HEARTBEAT);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Ticks, and not a span of time: if it was the controller that stood still, what the worker said meanwhile
        // is read before the ticks are counted far.
        let mut silent_ticks = 0;
        loop {
            tokio::select! {
                read = self.reader.next() => {
                    silent_ticks = 0;
                    match read {
                        Ok(Some(frame)) => {
                            if let Err(end) = self.handle_frame(&frame).await {
                                return end;
                            }
                        }
                        Ok(None) => return (LossReason::Died, "its connection ended".into()),
                        Err(FrameError::Broken(e)) => {
                            return (LossReason::Died, format!("its connection broke: {e}"));
                        }
                        Err(e) => return (LossReason::Garbled, e.to_string()),
                    }
                }
                word = self.to_send.recv() => match word {
                    // The controller has dropped the connection: it knows why.
                    None => return (LossReason::Died, "the controller closed its connection".into()),
                    Some(word) => if let Err(end) = self.send(&word).await {
                        return end;
                    }
                },
                _ = tick.tick() => {
                    silent_ticks += 1;
                    if silent_ticks > SILENCE_LIMIT.as_secs() / HEARTBEAT.as_secs() {
                        return (LossReason::Hung, format!("no message arrived for {SILENCE_LIMIT:?}"));
                    }
                    if let Err(end) = self.send(&ToWorker::Heartbeat).await {
                        return end;
                    }
                }
            }
        }
    }

    async fn handle_frame(&mut self, frame: &[u8]) -> Result<(), (LossReason, String)> {
        match parse(frame).map_err(|e| (LossReason::Garbled, e.to_string()))? {
            ToController::Heartbeat => Ok(()),
            ToController::Ping { sent } => self.send(&ToWorker::Pong { sent, at: Nanos::now() }).await,
            ToController::Reply { task, reply } => {
                // An error means that the controller is ending, which ends this task too.
                let _ = self.inbox.send(Inbound::Reply { connection: self.number, task, reply }).await;
                Ok(())
            }
            ToController::Leaving { why } => Err((LossReason::Died, why)),
            ToController::Hello(_) | ToController::Proof { .. } => {
                Err((LossReason::Garbled, "it introduced itself twice".into()))
            }
        }
    }

    async fn send(&mut self, word: &ToWorker) -> Result<(), (LossReason, String)> {
        frame::send(&mut self.writer, word).await.map_err(|e| match e {
            FrameError::Broken(e) if e.kind() == std::io::ErrorKind::TimedOut => {
                (LossReason::Hung, format!("it takes no messages: {e}"))
            }
            e => (LossReason::Died, e.to_string()),
        })
    }
}
