//! The receiver: a process on a host to which a machine of another host is migrated. It starts QEMU, and gives the machine's keeper all of its
//! connections.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loadline_base::units::ByteSize;
use loadline_guest::{Acceleration, Arrival, ArrivalStreams, Hypervisor, Image, Machine, Qemu, Wanted, room};
use loadline_load::memory;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

use super::channel::{Channel, FromReceiver, Opened, Passed, Purpose, ToReceiver};
use crate::error::FleetError;
use crate::join::WorkerOptions;
use crate::machine::find_image;
use crate::orders::KeeperAnswer;
use crate::tls::controller_config;
use crate::token::check_token;
use crate::wire::SILENCE_LIMIT;
use crate::worker::confine;

/// How long it waits for a keeper.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// How long the last bytes of a QEMU that has ended may take to be passed on.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// How often it is looked whether QEMU has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the receiver sends a sign of life.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// The longest pause of a machine, milliseconds: its keeper allows less.
const LONGEST_PAUSE_MS: u64 = 60_000;
/// The most of what QEMU printed last that is sent, bytes.
const WORDS: usize = 4 << 10;
/// Connections at once that have not proved themselves.
const STRANGERS: usize = 16;

/// What its QEMUs are started from.
struct Files {
    qemu: Qemu,
    image: Image,
    acceleration: Acceleration,
}

/// Runs a receiver for one machine at an address of this host, and prints where it listens, one line of JSON. `options` has the key as
/// token. It ends when it has had no keeper for half a minute. To be called by a process's first thread, before it starts any other.
pub fn run_receiver(options: &WorkerOptions, machine: &Machine, ip: IpAddr) -> Result<(), FleetError> {
    check_token(&options.token)?;
    machine.check()?;
    confine(options)?;
    let (image, cache) = find_image()?;
    let hypervisor = Hypervisor::of(machine)?;
    let Hypervisor::Qemu(qemu) = hypervisor.clone() else {
        return Err(FleetError::usage("machines that libvirt starts are not migrated: leave out libvirt"));
    };
    let acceleration = hypervisor.acceleration(&image, &cache)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| FleetError::failed(format!("cannot start the receiver: {e}")))?;
    let result = runtime.block_on(receive(Files { qemu, image, acceleration }, ip, &options.token));
    runtime.shutdown_background();
    result
}

async fn receive(files: Files, ip: IpAddr, key: &str) -> Result<(), FleetError> {
    let failed = |e: std::io::Error| FleetError::failed(format!("cannot listen on {ip} for a machine: {e}"));
    let listener = TcpListener::bind((ip, 0)).await.map_err(failed)?;
    let address: SocketAddr = listener.local_addr().map_err(failed)?;
    let answer = serde_json::to_string(&KeeperAnswer::Receives(address)).expect("an answer is JSON");
    println!("{answer}");
    let mut channels = accept(listener, controller_config()?, key);
    let mut machine = 0;
    let mut waits_until = Instant::now() + WAIT_LIMIT;
    // Connections of a machine that is over are closed with the channel that they came by.
    while let Ok(Some(channel)) = timeout_at(waits_until, channels.recv()).await {
        if channel.purpose == Purpose::Link {
            machine += 1;
            // Whatever went wrong, the keeper has been told, or is gone.
            serve(&files, machine, channel, &mut channels).await;
            waits_until = Instant::now() + WAIT_LIMIT;
        }
    }
    Ok(())
}

/// Accepts connections, and returns those that have proved themselves. If too many have not, the oldest of them is closed.
fn accept(listener: TcpListener, tls: Arc<ServerConfig>, key: &str) -> mpsc::Receiver<Channel> {
    let (send, channels) = mpsc::channel(STRANGERS);
    let (tls, key): (_, Arc<str>) = (TlsAcceptor::from(tls), key.into());
    let mut strangers: VecDeque<AbortHandle> = VecDeque::new();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            };
            strangers.retain(|stranger| !stranger.is_finished());
            if strangers.len() >= STRANGERS {
                strangers.pop_front().inspect(AbortHandle::abort);
            }
            let (tls, key) = (tls.clone(), key.clone());
            let greeted = tokio::spawn(async move { Channel::greet(&tls, stream, &key).await });
            strangers.push_back(greeted.abort_handle());
            let send = send.clone();
            tokio::spawn(async move {
                match greeted.await {
                    Ok(Ok(channel)) => drop(send.send(channel).await),
                    Ok(Err(why)) => eprintln!("loadline: a connection was closed: {why}"),
                    Err(_) => eprintln!("loadline: a connection was closed: there were too many"),
                }
            });
        }
    });
    channels
}

/// One QEMU, from its start to its end.
struct Served {
    arrival: Arrival,
    /// Connections of QEMU that the keeper has not opened yet, with the numbers that they have in QEMU.
    streams: BTreeMap<u8, (UnixStream, Option<RawFd>)>,
    /// What was passed on by the machine's serial port.
    control: Arc<Passed>,
    pumps: JoinSet<()>,
}

fn place(purpose: Purpose) -> u8 {
    purpose as u8
}

impl Served {
    fn start(files: &Files, wanted: &Wanted) -> Result<Served, FleetError> {
        let (free, _) = memory::available();
        room::check(1, wanted.machine.memory, ByteSize(free))?;
        let (arrival, streams) = Arrival::start(wanted, &files.qemu, &files.image, files.acceleration)?;
        let ArrivalStreams { control, orders, more_orders, incoming: (incoming, number) } = streams;
        let streams = [
            (Purpose::Control, control, None),
            (Purpose::Orders, orders, None),
            (Purpose::MoreOrders, more_orders, None),
            (Purpose::Incoming, incoming, Some(number)),
        ];
        let streams = streams.map(|(purpose, stream, number)| (place(purpose), (stream, number)));
        let (control, pumps) = (Arc::default(), JoinSet::new());
        Ok(Served { arrival, streams: streams.into(), control, pumps })
    }

    /// Gives a connection to the keeper.
    async fn open(&mut self, mut channel: Channel) {
        let found = match channel.purpose {
            Purpose::Departure => {
                let departure = self.arrival.departure().map(|stream| (stream, None));
                departure.map_err(|e| format!("QEMU cannot be given a connection to leave by: {e}"))
            }
            purpose => {
                let stream = self.streams.remove(&place(purpose));
                stream.ok_or_else(|| "this connection of QEMU is used".to_string())
            }
        };
        let (stream, number) = match found {
            Ok(found) => found,
            Err(why) => return drop(channel.send(&Opened::Refused(why)).await),
        };
        if channel.send(&Opened::Number(number)).await.is_err() {
            return;
        }
        let passed = match channel.purpose {
            Purpose::Control => self.control.clone(),
            _ => Arc::default(),
        };
        self.pumps.spawn(async move { drop(channel.pass(stream, passed).await) });
    }

    /// What QEMU printed last, short enough for a message.
    fn words(&mut self) -> String {
        let words = self.arrival.last_words();
        let from = words.len().saturating_sub(WORDS);
        let from = (from..words.len()).find(|at| words.is_char_boundary(*at)).unwrap_or_default();
        words[from..].into()
    }

    /// Waits until all that the machine said is sent: QEMU has ended.
    async fn sent(&self) {
        let _ = timeout(DRAIN_LIMIT, self.control.out_ended.notified()).await;
        // For whoever waits for it next.
        self.control.out_ended.notify_one();
    }

    /// Waits until the keeper has all that the machine said, and leaves: a connection that is closed earlier could take it along.
    async fn drain(&self, link: &mut Channel) {
        self.sent().await;
        while let Ok(Ok(_)) = timeout(DRAIN_LIMIT, link.next::<ToReceiver>()).await {}
    }

    fn has_read(&self, bytes: u64) -> bool {
        self.control.given.load(Ordering::SeqCst) == bytes && self.arrival.has_read().unwrap_or(false)
    }
}

/// Runs one QEMU for a keeper, until either has ended.
async fn serve(files: &Files, machine: u32, mut link: Channel, channels: &mut mpsc::Receiver<Channel>) {
    let Ok(Ok(ToReceiver::Begin(wanted))) = timeout(SILENCE_LIMIT, link.next()).await else { return };
    let mut served = match Served::start(files, &wanted) {
        Ok(served) => served,
        Err(error) => return drop(link.send(&FromReceiver::Refused(error.message)).await),
    };
    if link.send(&FromReceiver::Waits { machine }).await.is_err() {
        return;
    }
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut alive_at = Instant::now();
    let mut silent_at = Instant::now() + SILENCE_LIMIT;
    // When a machine that stands still is to go on.
    let mut goes_on_at = None;
    loop {
        let answer = tokio::select! {
            channel = channels.recv() => match channel {
                // The keeper begins another one only when it has given this one up.
                None => return,
                Some(channel) if channel.purpose == Purpose::Link => return,
                Some(channel) if channel.machine == machine => { served.open(channel).await; None }
                Some(_) => None,
            },
            message = link.next::<ToReceiver>() => {
                silent_at = Instant::now() + SILENCE_LIMIT;
                match message {
                    Err(_) | Ok(ToReceiver::Begin(_)) => return,
                    Ok(ToReceiver::End) => {
                        served.arrival.end();
                        let ended = FromReceiver::Ended { how: "QEMU was ended".into(), words: String::new() };
                        if link.send(&ended).await.is_ok() {
                            served.drain(&mut link).await;
                        }
                        return;
                    }
                    Ok(ToReceiver::Alive) => None,
                    Ok(ToReceiver::HasRead { bytes }) => Some(FromReceiver::Read(served.has_read(bytes))),
                    Ok(ToReceiver::LastWords) => Some(FromReceiver::Words(served.words())),
                    Ok(ToReceiver::Pause { ms }) => match served.arrival.stand_still(false) {
                        Ok(()) => {
                            goes_on_at = Some(Instant::now() + Duration::from_millis(ms.min(LONGEST_PAUSE_MS)));
                            None
                        }
                        Err(e) => Some(FromReceiver::Paused(Err(e.desc().into()))),
                    },
                }
            },
            () = moment(goes_on_at) => {
                goes_on_at = None;
                let went_on = served.arrival.stand_still(true);
                Some(FromReceiver::Paused(went_on.map_err(|e| e.desc().to_string())))
            }
            _ = look.tick() => {
                if let Some(how) = served.arrival.ended(Duration::ZERO) {
                    let words = served.words();
                    if link.send(&FromReceiver::Ended { how, words }).await.is_ok() {
                        served.drain(&mut link).await;
                    }
                    return;
                }
                let is_due = Instant::now() >= alive_at;
                is_due.then(|| { alive_at = Instant::now() + ALIVE_EVERY; FromReceiver::Alive })
            }
            () = sleep_until(silent_at) => return,
        };
        if let Some(answer) = answer
            && link.send(&answer).await.is_err()
        {
            return;
        }
    }
}

/// Waits until a moment; for ever if there is none.
async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::tls::worker_config;

    #[tokio::test]
    async fn connections_that_say_nothing_keep_no_keeper_out() {
        let key = "the key of this migration";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut channels = accept(listener, controller_config().unwrap(), key);
        let mut silent = Vec::new();
        for _ in 0..3 * STRANGERS {
            silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        let tls = TlsConnector::from(worker_config());
        let began = Instant::now();
        Channel::dial(&tls, address, key, Purpose::Link, 0).await.map(drop).unwrap();
        assert_eq!(channels.recv().await.unwrap().purpose, Purpose::Link);
        assert!(began.elapsed() < Duration::from_secs(3), "no silent one was waited for");
    }
}
