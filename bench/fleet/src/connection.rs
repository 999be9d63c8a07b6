//! The controller's end of the connections: accepts them, and carries the messages of those that have proved that they know the
//! token ([`crate::greeting`]).
//!
//! Every connection is a task of its own, which answers questions about the time at once and sends heartbeats
//! whatever the controller is busy with. What matters reaches the controller through one bounded queue: a worker
//! that sends too much waits. Messages of the controller wait in a bounded queue of the connection: a worker that
//! does not read them is given up.

use std::sync::Arc;
use std::time::Duration;

use loadline_base::clock::Nanos;
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::event::LossReason;
use crate::frame::{self, FrameError, FrameReader, parse};
use crate::greeting::{Greeted, REFUSAL_LIMIT, greet, refuse};
use crate::inbound::{ConnectionNumber, Inbound};
use crate::tls::EncryptedStream;
use crate::unauthenticated::{AcceptPace, UnauthenticatedConnections};
use crate::wire::{HEARTBEAT, LONGEST_FRAME, SILENCE_LIMIT, ToController, ToWorker};

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
pub(crate) async fn accept(
    listener: TcpListener,
    token: Arc<str>,
    tls: TlsAcceptor,
    inbox: mpsc::Sender<Inbound>,
) {
    let unauthenticated = Arc::new(UnauthenticatedConnections::new(inbox.clone()));
    let mut pace = AcceptPace::new();
    let mut number: ConnectionNumber = 0;
    loop {
        let accepted = tokio::select! {
            accepted = async { pace.next().await; listener.accept().await } => accepted,
            () = inbox.closed() => return,
        };
        let Ok((stream, from)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        number += 1;
        let mut place = unauthenticated.place(from.ip());
        let (token, tls, inbox) = (token.clone(), tls.clone(), inbox.clone());
        let unauthenticated = unauthenticated.clone();
        tokio::spawn(async move {
            let greeted = tokio::select! {
                greeted = greet(stream, &tls, &token) => greeted,
                why = place.taken() => Err(why),
            };
            drop(place);
            let connection = match greeted {
                Ok(greeted) => admit(number, greeted, &inbox).await,
                Err(why) => Err(why),
            };
            match connection {
                Ok(Some(connection)) => connection.keep().await,
                Ok(None) => {}
                Err(why) => unauthenticated.refuse(from, why),
            }
        });
    }
}

/// Asks the controller whether a worker that has the token may join; the error says why it may not. `None`: the controller
/// is ending.
async fn admit(
    number: ConnectionNumber,
    greeted: Greeted,
    inbox: &mpsc::Sender<Inbound>,
) -> Result<Option<Connection>, String> {
    let Greeted { hello, mut reader, mut writer } = greeted;
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
            // If this fails, keeping the connection fails next, and reports it to the controller.
            let _ = frame::send(&mut connection.writer, &ToWorker::Welcome { worker }).await;
            Ok(Some(connection))
        }
    }
}

/// A worker's connection.
struct Connection {
    number: ConnectionNumber,
    reader: FrameReader<ReadHalf<EncryptedStream>>,
    writer: WriteHalf<EncryptedStream>,
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
