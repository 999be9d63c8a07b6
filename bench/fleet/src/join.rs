//! How a worker gets into a fleet: dial, encrypt the connection, introduce itself, be let in; and again, for a while.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{ReadHalf, WriteHalf, split};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::cpus::CpuList;
use crate::error::FleetError;
use crate::frame::{self, FrameError, FrameReader, parse};
use crate::identity::WorkerId;
use crate::outside::Inside;
use crate::tls::{self, EncryptedStream, Stream};
use crate::wire::{
    Digits, Hello, LONGEST_FRAME, LONGEST_HELLO, PROTOCOL, Proven, Side, ToController, ToWorker,
};

/// How long a controller that is not there yet is tried.
const JOIN_LIMIT: Duration = Duration::from_secs(30);
/// How long one attempt may take, from dialling to being let in.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(8);
/// The first pause between two attempts; each one is twice the last, up to a second.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How a worker is started.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The controller's `HOST:PORT`.
    pub join: String,
    /// What it and its controller prove to each other that they have.
    pub token: String,
    /// Its name in the fleet. `None`: made of the host's name and the process id.
    pub name: Option<String>,
    /// The node that it is placed on. `None`: the host's name.
    pub node: Option<String>,
    /// The CPUs that it may run on.
    pub cpus: Option<CpuList>,
    /// Control groups that it moves into before anything else.
    pub cgroups: Vec<PathBuf>,
    /// Whether it is a child of its controller, and dies with it.
    pub child: bool,
    /// How it reaches what is outside, if it runs in a virtual machine.
    pub inside: Option<Inside>,
}

/// A connection to the controller that has let this worker in.
pub(crate) type Joined =
    (FrameReader<ReadHalf<EncryptedStream>>, WriteHalf<EncryptedStream>, WorkerId, IpAddr);

/// Why an attempt to join did not succeed.
enum Failure {
    /// Trying again can help.
    Again(String),
    /// Trying again cannot help.
    Final(FleetError),
}

/// A refusal of any version of the protocol.
#[derive(Deserialize)]
struct AnyRefusal {
    refused: AnyRefusalBody,
}

/// The fields of a refusal that every version of the protocol has.
#[derive(Deserialize)]
struct AnyRefusalBody {
    protocol: u32,
    why: String,
}

/// Joins the fleet, trying for [`JOIN_LIMIT`].
pub(crate) async fn join(options: &WorkerOptions, tell: &mut dyn FnMut(&str)) -> Result<Joined, FleetError> {
    let address = &options.join;
    if address.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
        return Err(FleetError::usage(format!(
            "\"{address}\" is no address of a controller: give --join HOST:PORT, as the controller prints it"
        )));
    }
    let connector = TlsConnector::from(tls::worker_config());
    let deadline = Instant::now() + JOIN_LIMIT;
    let mut pause = FIRST_PAUSE;
    let mut reported = false;
    loop {
        let attempt = timeout(ATTEMPT_LIMIT, attempt(options, &connector)).await;
        let why = match attempt
            .unwrap_or_else(|_| Err(Failure::Again(format!("no answer in {ATTEMPT_LIMIT:?}"))))
        {
            Ok(joined) => return Ok(joined),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Again(why)) => why,
        };
        if Instant::now() + pause >= deadline {
            return Err(FleetError::failed(format!(
                "cannot join the controller at {address} for {JOIN_LIMIT:?}: {why}. Is it running, does it listen on \
                 an address that this host reaches, and is the port right?"
            )));
        }
        if !reported && pause > FIRST_PAUSE * 4 {
            tell(&format!("waiting for the controller at {address}: {why}"));
            reported = true;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn hello(options: &WorkerOptions, nonce: Digits) -> ToController {
    let host =
        nix::unistd::gethostname().map_or_else(|_| "unknown".into(), |h| h.to_string_lossy().into_owned());
    let pid = std::process::id();
    ToController::Hello(Hello {
        protocol: PROTOCOL,
        nonce,
        version: env!("CARGO_PKG_VERSION").into(),
        name: options.name.clone().unwrap_or_else(|| format!("{host}-{pid}")),
        node: options.node.clone().unwrap_or_else(|| host.clone()),
        host,
        pid,
    })
}

/// A connection to the controller, and this host's address on the way.
async fn dial(options: &WorkerOptions) -> io::Result<(Stream, IpAddr)> {
    if let Some(inside) = &options.inside {
        let stream = UnixStream::connect(&inside.controller).await?;
        return Ok((Box::new(stream), Ipv4Addr::LOCALHOST.into()));
    }
    let stream = TcpStream::connect(&options.join).await?;
    stream.set_nodelay(true)?;
    let ip = stream.local_addr()?.ip();
    Ok((Box::new(stream), ip))
}

async fn attempt(options: &WorkerOptions, connector: &TlsConnector) -> Result<Joined, Failure> {
    let (address, token) = (&options.join, &options.token);
    let again = |e: &dyn std::fmt::Display| Failure::Again(e.to_string());
    let nonce = Digits::random().map_err(Failure::Final)?;
    let (stream, ip) = dial(options).await.map_err(|e| again(&e))?;
    let (stream, channel) = tls::connect(connector, stream).await.map_err(|e| match tls::meaning(&e) {
        Some(why) => Failure::Final(FleetError::usage(format!(
            "the program that listens at {address} is not a Loadline controller, or one of another version: the handshake of the \
             encrypted connection failed ({why})"
        ))),
        None => Failure::Again(format!("the connection ended before it was encrypted ({e})")),
    })?;
    let (reader, mut writer) = split(stream);
    let mut reader = FrameReader::new(reader, LONGEST_HELLO);
    frame::send(&mut writer, &hello(options, nonce)).await.map_err(|e| again(&e))?;
    let (challenge, proof) = match answer(&mut reader).await? {
        (_, Ok(ToWorker::Challenge { nonce, proof })) => (nonce, proof),
        (frame, other) => return Err(refused(address, &frame, other.ok())),
    };
    // Before anything else is believed: otherwise a program without the token could have this worker write to any path.
    let proven = Proven { channel, worker: nonce, controller: challenge };
    if !proven.is_proof(token, Side::Controller, &proof) {
        return Err(Failure::Final(FleetError::usage(format!(
            "the program that listens at {address} does not have this worker's token, or another program decrypts the \
             connection on the way: give this worker the --token that the controller prints, and check that the address is \
             the controller's"
        ))));
    }
    let proof = ToController::Proof { proof: proven.proof(token, Side::Worker) };
    frame::send(&mut writer, &proof).await.map_err(|e| again(&e))?;
    match answer(&mut reader).await? {
        (_, Ok(ToWorker::Welcome { worker })) => {
            reader.allow(LONGEST_FRAME);
            Ok((reader, writer, worker, ip))
        }
        (frame, other) => Err(refused(address, &frame, other.ok())),
    }
}

/// The next frame, and the message in it.
async fn answer(
    reader: &mut FrameReader<ReadHalf<EncryptedStream>>,
) -> Result<(Vec<u8>, Result<ToWorker, FrameError>), Failure> {
    let frame =
        reader.next().await.map_err(|e| Failure::Again(format!("the program that listens there: {e}")))?;
    let frame = frame.ok_or_else(|| Failure::Again("it closed the connection".into()))?;
    let message = parse(&frame);
    Ok((frame, message))
}

/// What an answer means that does not lead on.
fn refused(address: &str, frame: &[u8], message: Option<ToWorker>) -> Failure {
    if let Some(ToWorker::Refused { why, retry: true, .. }) = message {
        return Failure::Again(why);
    }
    Failure::Final(match parse::<AnyRefusal>(frame) {
        Ok(AnyRefusal { refused }) if refused.protocol != PROTOCOL => FleetError::usage(format!(
            "the controller at {address} speaks version {} of the protocol, and this worker version {PROTOCOL}: \
             use the same version of loadline for both",
            refused.protocol
        )),
        Ok(AnyRefusal { refused }) => {
            FleetError::usage(format!("the controller at {address} refused this worker: {}", refused.why))
        }
        Err(_) => {
            FleetError::usage(format!("the program that listens at {address} is not a Loadline controller"))
        }
    })
}
