//! Workers and controllers that are played by the test, over the wire as it is documented.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use loadline_base::clock::Nanos;
use loadline_base::units::{ByteSize, TimeSpan};
use loadline_fleet::clock_offset::KnownClock;
use loadline_fleet::wire::{
    Digits, Hello, Measured, PROTOCOL, Proven, Reply, Side, ToController, ToWorker, WorkerOrder,
};
use loadline_fleet::{
    EventSink, FleetError, FleetEvent, FleetSpec, Placement, WorkerOptions, run_worker, tls,
};
use loadline_load::{CpuTime, VerifyReport};
use loadline_load::{Disk, Job, Target, WritePermission};
use loadline_measure::interval::{Interval, Phase};
use loadline_profile::Profile;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use serde::de::DeserializeOwned;

pub const TOKEN: &str = "the-right-token-of-a-fleet";
/// I/Os in each second of a fake worker.
pub const IOS: u64 = 100;

/// What bytes go through: a socket, or TLS on one.
pub trait Bytes: Read + Write + Send {}
impl<T: Read + Write + Send> Bytes for T {}

/// One end of a connection, blocking.
pub struct Wire {
    stream: Box<dyn Bytes>,
    buffer: Vec<u8>,
    /// The channel binding, if the connection is encrypted.
    pub channel: Digits,
}

impl Wire {
    /// A connection that is not encrypted.
    pub fn plain(stream: TcpStream) -> Wire {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Wire { stream: Box::new(stream), buffer: Vec::new(), channel: Digits::from([0; 32]) }
    }

    /// The worker's end.
    pub fn connect(address: SocketAddr) -> Wire {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut tls = ClientConnection::new(tls::worker_config(), tls::controller_name()).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).unwrap();
        }
        let channel = tls::channel_binding(&tls).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Wire { stream: Box::new(StreamOwned::new(tls, stream)), buffer: Vec::new(), channel }
    }

    /// The controller's end.
    pub fn accept(listener: &TcpListener) -> Wire {
        let (mut stream, _) = listener.accept().unwrap();
        let mut tls = ServerConnection::new(tls::controller_config().unwrap()).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut stream).unwrap();
        }
        let channel = tls::channel_binding(&tls).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Wire { stream: Box::new(StreamOwned::new(tls, stream)), buffer: Vec::new(), channel }
    }

    pub fn send(&mut self, message: &impl serde::Serialize) -> std::io::Result<()> {
        let body = serde_json::to_vec(message).unwrap();
        self.stream.write_all(&[&(body.len() as u32).to_be_bytes()[..], &body].concat())
    }

    /// The next message within a time. `Err`: the connection ended. `Ok(None)`: nothing came.
    pub fn receive<T: DeserializeOwned>(&mut self, limit: Duration) -> std::io::Result<Option<T>> {
        let deadline = Instant::now() + limit;
        loop {
            if self.buffer.len() >= 4 {
                let len = u32::from_be_bytes(self.buffer[..4].try_into().unwrap()) as usize;
                if self.buffer.len() >= 4 + len {
                    let frame: Vec<u8> = self.buffer.drain(..4 + len).skip(4).collect();
                    return Ok(Some(serde_json::from_slice(&frame).unwrap()));
                }
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.buffer.extend_from_slice(&bytes[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }
}

pub fn hello(name: &str) -> Hello {
    Hello {
        protocol: PROTOCOL,
        nonce: Digits::random().unwrap(),
        version: env!("CARGO_PKG_VERSION").into(),
        name: name.into(),
        node: "test-node".into(),
        host: "test-host".into(),
        pid: 7,
    }
}

/// Introduces itself and gives the last answer.
pub fn greet(address: SocketAddr, hello: Hello) -> (Wire, ToWorker) {
    greet_with(address, hello, TOKEN)
}

/// Introduces itself with a token, right or wrong, whatever the controller has proved, and gives the last answer.
pub fn greet_with(address: SocketAddr, hello: Hello, token: &str) -> (Wire, ToWorker) {
    let mut wire = Wire::connect(address);
    let worker = hello.nonce;
    wire.send(&ToController::Hello(hello)).unwrap();
    let mut answer = wire.receive(Duration::from_secs(5)).unwrap().expect("an answer to a hello");
    if let ToWorker::Challenge { nonce: controller, proof } = answer {
        let proven = Proven { channel: wire.channel, worker, controller };
        assert!(proven.is_proof(TOKEN, Side::Controller, &proof));
        wire.send(&ToController::Proof { proof: proven.proof(token, Side::Worker) }).unwrap();
        answer = wire.receive(Duration::from_secs(5)).unwrap().expect("an answer to a proof");
    }
    (wire, answer)
}

/// How a worker of this name is started.
pub fn options(join: String, name: &str) -> WorkerOptions {
    WorkerOptions {
        join,
        token: TOKEN.into(),
        name: Some(name.into()),
        node: None,
        cpus: None,
        cgroups: Vec::new(),
        child: false,
        inside: None,
    }
}

/// A real worker, on a thread.
pub fn work(join: String, name: &'static str) -> thread::JoinHandle<Result<(), FleetError>> {
    thread::spawn(move || run_worker(options(join, name), &mut |_| {}))
}

/// Reads a hello, and answers as a controller with this token does.
pub fn challenge(wire: &mut Wire, token: &str) -> Proven {
    let worker = match wire.receive(Duration::from_secs(5)).unwrap() {
        Some(ToController::Hello(hello)) => hello.nonce,
        other => panic!("{other:?}"),
    };
    let proven = Proven { channel: wire.channel, worker, controller: Digits::random().unwrap() };
    let proof = proven.proof(token, Side::Controller);
    wire.send(&ToWorker::Challenge { nonce: proven.controller, proof }).unwrap();
    proven
}

/// What a fake worker does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Its connection ends in the second second, after it reported lost writes.
    Dies,
    /// It says nothing from the second second on, and keeps its connection.
    Hangs,
    /// It sends its records six seconds late.
    FallsBehind,
    /// It sends a record that is none.
    Garbles,
    /// It refuses its job.
    Refuses,
    /// It counts more I/Os than it sends.
    LosesRecords,
    /// Its stop condition ends its load after a second.
    StopCondition,
}

/// A worker that the test plays. It ends when the controller says goodbye or its connection ends.
pub struct Fake {
    wire: Wire,
    fault: Fault,
    job: Option<Job>,
    run: Option<Running>,
    heartbeat: Instant,
    pub stops: Arc<Mutex<u32>>,
}

struct Running {
    task: u64,
    start: Nanos,
    sent: u64,
}

impl Fake {
    /// Joins.
    pub fn join(address: SocketAddr, name: &str, fault: Fault) -> Fake {
        let (wire, answer) = greet(address, hello(name));
        assert!(matches!(answer, ToWorker::Welcome { .. }), "{answer:?}");
        Fake { wire, fault, job: None, run: None, heartbeat: Instant::now(), stops: Arc::default() }
    }

    /// Joins, and works on a thread of its own.
    pub fn start(address: SocketAddr, name: &'static str, fault: Fault) -> thread::JoinHandle<()> {
        thread::spawn(move || Fake::join(address, name, fault).work())
    }

    /// Works until it is dismissed, or its connection ends.
    pub fn work(mut self) {
        while let Ok(true) = self.turn() {}
    }

    /// One turn of work. `false`: it was dismissed.
    pub fn turn(&mut self) -> std::io::Result<bool> {
        if self.hangs() {
            thread::sleep(Duration::from_millis(50));
            // Whatever comes is left lying; only whether the test is over is of interest.
            return Ok(self
                .run
                .as_ref()
                .is_some_and(|r| Nanos::now().since(r.start) < Nanos(30_000_000_000)));
        }
        if self.heartbeat.elapsed() > Duration::from_millis(700) {
            self.heartbeat = Instant::now();
            self.wire.send(&ToController::Heartbeat)?;
        }
        match self.wire.receive(Duration::from_millis(20))? {
            Some(ToWorker::Bye) => return Ok(false),
            Some(ToWorker::Stop { task }) => {
                *self.stops.lock().unwrap() += 1;
                self.run = None;
                self.reply(task, Reply::Stopped)?;
            }
            Some(ToWorker::Do { task, order: WorkerOrder::Prepare { job, .. } }) => {
                self.job = Some(*job);
                let message = "it does not like the job".to_string();
                match self.fault {
                    Fault::Refuses => {
                        let kind = loadline_fleet::wire::FailureKind::Usage;
                        self.reply(task, Reply::Failed { kind, message })?;
                    }
                    _ => self.reply(task, Reply::Prepared { clock: KnownClock::default(), host: None })?,
                }
            }
            Some(ToWorker::Do { task, order: WorkerOrder::Run { start, .. } }) => {
                self.run = Some(Running { task, start, sent: 0 });
            }
            Some(ToWorker::Do { task, order: WorkerOrder::Fill(_) }) => self.reply(task, Reply::Filled)?,
            _ => {}
        }
        self.run_on()
    }

    fn hangs(&self) -> bool {
        self.fault == Fault::Hangs && self.run.as_ref().is_some_and(|run| run.sent >= 1)
    }

    fn run_on(&mut self) -> std::io::Result<bool> {
        let (Some(run), Some(job)) = (&mut self.run, &self.job) else { return Ok(true) };
        let task = run.task;
        let late = if self.fault == Fault::FallsBehind { Nanos(6_000_000_000) } else { Nanos(0) };
        let due = run.start + Nanos((run.sent + 1) * 1_000_000_000) + late;
        if Nanos::now() < due {
            return Ok(true);
        }
        let seconds = job.measure.0.as_secs();
        let exceeds = self.fault == Fault::StopCondition && run.sent >= 1;
        let stop_condition = exceeds.then(|| "max>1s: it was worse".to_string());
        if run.sent == seconds || stop_condition.is_some() {
            let more = if self.fault == Fault::LosesRecords { 1 } else { 0 };
            let measured = Measured {
                began_late_ns: 0,
                cpu: CpuTime::default(),
                host_cpu: None,
                findings: Vec::new(),
                engine: "fake".into(),
                verify: None,
                completed: seconds * IOS + more,
                errors: 0,
                stop_condition,
            };
            self.run = None;
            self.reply(task, Reply::Measured(Box::new(measured)))?;
            return Ok(true);
        }
        let mut record = record(run.sent as i64).encode();
        run.sent += 1;
        if self.fault == Fault::Dies {
            let report = VerifyReport { checked: 2, lost: 2, ..VerifyReport::default() };
            self.reply(task, Reply::Found(Box::new(report)))?;
        }
        if self.fault == Fault::Garbles {
            record.read.as_mut().unwrap().response.as_mut().unwrap().count += 1;
        }
        self.reply(task, Reply::Intervals(vec![record]))?;
        Ok(self.fault != Fault::Dies)
    }

    fn reply(&mut self, task: u64, reply: Reply) -> std::io::Result<()> {
        self.wire.send(&ToController::Reply { task, reply })
    }
}

/// What a fake worker measures in a second.
pub fn record(second: i64) -> Interval {
    let mut record = Interval::new(second, Phase::Measure, 0);
    for i in 0..IOS {
        record.read.response.record(Nanos(100_000 + i));
        record.read.bytes += 4096;
        record.completions.set(Nanos(i * 10_000_000));
    }
    record
}

/// A job on a disk that completes everything at once, without warm-up.
pub fn job(seconds: u64) -> Job {
    let disk = Disk { target: Target::Null(ByteSize::GIB), writes: WritePermission::Refused };
    let profile = Profile { outstanding: 1, rate: Some("1000iops".parse().unwrap()), ..Profile::default() };
    let mut job = Job::new(vec![disk], profile);
    (job.warm_up, job.measure, job.drain) =
        (TimeSpan::seconds(0), TimeSpan::seconds(seconds), TimeSpan::seconds(1));
    job
}

/// A fleet of joined workers on a free port.
pub fn joined(workers: u32, wait: TimeSpan) -> FleetSpec {
    let mut spec = FleetSpec::new(Placement::Joined(loadline_fleet::JoiningWorkers { workers, wait }));
    spec.token = Some(TOKEN.into());
    spec
}

/// Collects events, and sends the controller's address as soon as there is one.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Vec<FleetEvent>>>);

impl Events {
    pub fn sink(&self) -> EventSink {
        let all = self.0.clone();
        Box::new(move |event| all.lock().unwrap().push(event))
    }

    pub fn all(&self) -> Vec<FleetEvent> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for an event, ten seconds at the most.
    pub fn wait<T>(&self, what: impl Fn(&FleetEvent) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(found) = self.all().iter().find_map(&what) {
                return found;
            }
            assert!(Instant::now() < deadline, "no such event among {:#?}", self.all());
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.wait(|event| match event {
            FleetEvent::Listening { address } => Some(*address),
            _ => None,
        })
    }

    /// The seconds of hosts that were reported.
    pub fn host_seconds(&self) -> Vec<i64> {
        let second = |event| match event {
            FleetEvent::HostSecond { second, .. } => Some(second.second),
            _ => None,
        };
        self.all().into_iter().filter_map(second).collect()
    }

    /// The connections that the controller refused, and why.
    pub fn rejected(&self) -> Vec<String> {
        let why = |event| match event {
            FleetEvent::Rejected { why, .. } => Some(why),
            _ => None,
        };
        self.all().into_iter().filter_map(why).collect()
    }
}

pub fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}
