//! The messages between controller and worker, and their schema.
//!
//! A worker dials out to its controller over TCP and keeps that one connection. It is encrypted with TLS 1.3, with the
//! controller as the server; its certificate proves nothing ([`crate::tls`]). Inside, either side sends frames: four
//! bytes of length, big-endian, and then so many bytes of JSON, one [`ToController`] or [`ToWorker`]. The first
//! frame of a worker is [`ToController::Hello`]; the controller answers with a [`ToWorker::Challenge`], which proves
//! that it knows the token, the worker proves the same with [`ToController::Proof`], and the controller answers
//! [`ToWorker::Welcome`]. Instead of either answer it may send [`ToWorker::Refused`]. Then the controller gives orders,
//! numbered, and the worker replies with the order's number, any number of times; the last reply to an order is one
//! that [ends](Reply::is_last) it. Both sides send a heartbeat each second, and give the other up when nothing
//! arrives for [`SILENCE_LIMIT`].
//!
//! The token itself never travels ([`crate::token`]). The proofs cover the channel binding of the connection, so they
//! prove that the two have one encrypted connection, and no program in the middle. Before both proofs neither side does
//! anything for the other; after them, TLS refuses whatever was changed, repeated or left out on the way.
//!
//! In every version of the protocol, `hello.protocol`, `refused.protocol` and `refused.why` keep their place, so that
//! two versions can detect that they differ. Before version 8 the frames were not encrypted; the controller
//! answers such a hello with a refusal in the same way.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use loadline_base::clock::Nanos;
use loadline_base::units::ByteSize;
use loadline_doctor::Examination;
use loadline_load::error::ErrorKind;
use loadline_load::host::{HostSecond, Inventory};
use loadline_load::{CpuTime, VerifyReport};
use loadline_load::{FileIdentity, Job, LoadError, Target};
use loadline_measure::audit::Finding;
use loadline_measure::interval::EncodedInterval;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock_offset::KnownClock;
use crate::identity::WorkerId;
use crate::network::NetworkPathSpeed;
use crate::outcome::HostCpu;
pub use crate::token::{Digits, Proven, Side};

/// The version of these messages. Both sides must speak the same.
pub const PROTOCOL: u32 = 10;
/// The longest frame of a connection that has not proved yet that it knows the token, in bytes.
pub const LONGEST_HELLO: usize = 4 << 10;
/// The longest frame between the two afterwards, in bytes.
pub const LONGEST_FRAME: usize = 8 << 20;
/// Each side sends something at least this often.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// A peer that sends nothing for so long is given up.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(5);

/// How a worker introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The version of the messages that it speaks.
    pub protocol: u32,
    /// Made up for this connection: what the controller's proof must contain.
    pub nonce: Digits,
    /// The version of its program.
    pub version: String,
    /// Its name.
    pub name: String,
    /// The node that it is placed on.
    pub node: String,
    /// The name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

/// What is read of a hello first: the part that is the same in every version.
#[derive(Debug, Deserialize)]
pub(crate) struct AnyHello {
    pub(crate) hello: AnyHelloBody,
}

/// The fields of a hello that every version of the protocol has.
#[derive(Debug, Deserialize)]
pub(crate) struct AnyHelloBody {
    pub(crate) protocol: u32,
}

/// A file to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileToMake {
    /// Where; the folder exists.
    pub path: PathBuf,
    /// Its size.
    pub size: ByteSize,
}

/// A file to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileToRemove {
    /// Where it was made.
    pub path: PathBuf,
    /// Which file it is; any other is left alone.
    pub identity: FileIdentity,
}

/// An order to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WorkerOrder {
    /// Make files; if one fails, none stays. An empty file of a run's name (`loadline-….img`) that is there already is
    /// what the same order left behind, and is made anew. Ends with `files_made`.
    MakeFiles(Vec<FileToMake>),
    /// Remove files; one that fails does not keep the others. Ends with `files_removed`.
    RemoveFiles(Vec<FileToRemove>),
    /// Write every disk once. Ends with `filled`.
    Fill(Box<Job>),
    /// Open and check everything, and agree on the clock. Ends with `prepared`.
    Prepare {
        /// What to measure.
        job: Box<Job>,
        /// Of one worker of each host: the targets of all workers there. It tells with `prepared` what the host is,
        /// and while it runs what the host does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        watch: Option<Vec<Target>>,
    },
    /// Run what was prepared. Ends with `measured`.
    Run {
        /// When warm-up begins, on the controller's monotonic clock, nanoseconds.
        #[schemars(with = "u64")]
        start: Nanos,
        /// How long after a second's end the worker keeps its records back, nanoseconds: if all workers of a host
        /// packed and sent theirs at one moment, they would take the CPU from the load.
        #[schemars(with = "u64")]
        hold_back: Nanos,
        /// Whether it takes the place of a worker that was killed on purpose while it ran: then the load begins at once, and
        /// the phases are where `start` puts them.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        late: bool,
        /// What another worker knows better of the clock that both read, if one does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clock: Option<KnownClock>,
    },
    /// Read and check every block. Ends with `scanned`.
    Scan(Box<Job>),
    /// Let another worker measure the network to this one. Ends with `listening`, or `no_way`; it goes on for half a
    /// minute at the most.
    Listen {
        /// The address of its host to listen on; absent: that of its connection to the controller.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ip: Option<IpAddr>,
        /// The key that the other worker must send first.
        key: Digits,
    },
    /// Measure the network to a worker that listens. Ends with `network`, or `no_way`.
    MeasureNetwork {
        /// Where it listens.
        address: SocketAddr,
        /// The key that the listener expects first.
        key: Digits,
    },
    /// Examine the host. Ends with `examined`.
    Examine {
        /// Disks, by their paths there; none: every whole disk. One that is not there is a finding.
        devices: Vec<PathBuf>,
        /// A folder in which durable writes are measured, on a file that is made for it and removed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        folder: Option<PathBuf>,
    },
}

/// A message from the controller to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToWorker {
    /// The answer to a hello: this controller knows the token; now prove that you do.
    Challenge {
        /// Made up for this connection: what the worker's proof must contain.
        nonce: Digits,
        /// HMAC-SHA256, with the token as its key, of `loadline controller`, the channel binding, the worker's nonce and
        /// this one.
        proof: Digits,
    },
    /// The worker is in.
    Welcome {
        /// The worker's name in the fleet.
        worker: WorkerId,
    },
    /// The worker is not let in; the connection ends here.
    Refused {
        /// The version of the messages that the controller speaks.
        protocol: u32,
        /// Why, and what to do.
        why: String,
        /// Whether trying again in a while can help.
        retry: bool,
    },
    /// I am here.
    Heartbeat,
    /// The answer to [`ToController::Ping`].
    Pong {
        /// What the ping carried.
        #[schemars(with = "u64")]
        sent: Nanos,
        /// When it arrived, on the controller's monotonic clock, nanoseconds.
        #[schemars(with = "u64")]
        at: Nanos,
    },
    /// Do this.
    Do {
        /// The order's number, never used before.
        task: u64,
        /// What to do.
        order: WorkerOrder,
    },
    /// Stop what you do or have prepared. Ends with `stopped`, whatever was sent before.
    Stop {
        /// The number that `stopped` carries.
        task: u64,
    },
    /// The fleet is over: end.
    Bye,
}

/// A message from a worker to the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToController {
    /// The worker introduces itself.
    Hello(Hello),
    /// The answer to a challenge: I know the token too.
    Proof {
        /// HMAC-SHA256, with the token as its key, of `loadline worker`, the channel binding, the controller's nonce and
        /// the worker's.
        proof: Digits,
    },
    /// I am here.
    Heartbeat,
    /// What time is it?
    Ping {
        /// When it was sent, on the worker's monotonic clock, nanoseconds.
        #[schemars(with = "u64")]
        sent: Nanos,
    },
    /// About an order.
    Reply {
        /// The order's number.
        task: u64,
        /// What about it.
        reply: Reply,
    },
    /// I end, though the fleet is not over.
    Leaving {
        /// Why the worker ends.
        why: String,
    },
}

/// A reply to an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// It goes on.
    Progress {
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// What was measured.
    Intervals(Vec<EncodedInterval>),
    /// What its host did in a second, if it watches it.
    HostSecond(Box<HostSecond>),
    /// The bad blocks found since the run began, as soon as there are more of them.
    Found(Box<VerifyReport>),
    /// The files are there, in the order asked for.
    FilesMade(Vec<FileIdentity>),
    /// The files are gone.
    FilesRemoved,
    /// Every disk is written.
    Filled,
    /// Ready to run.
    Prepared {
        /// What it knows of the controller's clock.
        clock: KnownClock,
        /// What its host is, if it watches it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<Box<Inventory>>,
    },
    /// The run is over; all its intervals were sent.
    Measured(Box<Measured>),
    /// Every block is checked.
    Scanned(VerifyReport),
    /// Another worker can dial it.
    Listening {
        /// The address at which the worker accepts the connection.
        address: SocketAddr,
    },
    /// What the network to another worker does.
    Network(NetworkPathSpeed),
    /// The network to another worker could not be measured.
    NoWay {
        /// Why the measurement failed.
        why: String,
    },
    /// What was found on the host.
    Examined {
        /// What was found.
        examination: Box<Examination>,
        /// The host's wall clock as this was sent, milliseconds since 1970 (UTC).
        unix_ms: u64,
    },
    /// Nothing runs and nothing is prepared any more.
    Stopped,
    /// It could not be done.
    Failed {
        /// What kind of trouble it is.
        kind: FailureKind,
        /// What happened, and what to do.
        message: String,
    },
}

impl Reply {
    /// Whether the order ends with it.
    pub fn is_last(&self) -> bool {
        !matches!(self, Reply::Progress { .. } | Reply::Intervals(_) | Reply::Found(_) | Reply::HostSecond(_))
    }
}

/// What a worker knows at the end of a run beside the intervals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// How long after the agreed instant the last of its threads began, by its own clock, nanoseconds.
    pub began_late_ns: u64,
    /// CPU time of its process in the window.
    pub cpu: CpuTime,
    /// Its host's CPUs in the window.
    pub host_cpu: Option<HostCpu>,
    /// What a reader of the figures should know.
    pub findings: Vec<Finding>,
    /// Which engine ran, in words.
    pub engine: String,
    /// What the checks of blocks found, if verifying.
    pub verify: Option<VerifyReport>,
    /// I/Os that completed inside the window: the intervals must come to the same.
    pub completed: u64,
    /// I/Os intended inside the window that failed: the intervals must come to the same.
    pub errors: u64,
    /// Which stop condition (`stop_if`) ended it before its time, in words, if one did; then the two counts are those until then.
    pub stop_condition: Option<String>,
}

/// [`ErrorKind`] as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// It cannot be done as asked.
    Usage,
    /// It was begun and failed.
    Failed,
    /// A stated limit was passed before anything was measured.
    Limit,
    /// It was ordered to stop.
    Interrupted,
}

impl From<ErrorKind> for FailureKind {
    fn from(kind: ErrorKind) -> FailureKind {
        match kind {
            ErrorKind::Usage => FailureKind::Usage,
            ErrorKind::Failed => FailureKind::Failed,
            ErrorKind::Limit => FailureKind::Limit,
            ErrorKind::Interrupted => FailureKind::Interrupted,
        }
    }
}

impl From<LoadError> for Reply {
    fn from(error: LoadError) -> Reply {
        Reply::Failed { kind: error.kind.into(), message: error.message }
    }
}

/// Both directions in one type, so that there is one schema of the whole protocol.
#[derive(JsonSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "only its schema is used")]
enum Message {
    /// From the controller to a worker.
    ToWorker(ToWorker),
    /// From a worker to the controller.
    ToController(ToController),
}

/// The JSON Schema of the messages, both directions.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(Message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_hello_that_is_the_same_in_every_version_is_read_from_one_of_the_future() {
        let future = r#"{"hello":{"protocol":9,"key":"t","cloud":{"region":"x"}}}"#;
        let read: AnyHello = serde_json::from_str(future).unwrap();
        assert_eq!(read.hello.protocol, 9);
        assert!(serde_json::from_str::<ToController>(future).is_err());
    }

    #[test]
    fn a_hello_has_the_part_that_is_the_same_in_every_version() {
        let hello = Hello {
            protocol: PROTOCOL,
            nonce: Digits::random().unwrap(),
            version: "0.1.0".into(),
            name: "a".into(),
            node: "b".into(),
            host: "c".into(),
            pid: 1,
        };
        let text = serde_json::to_string(&ToController::Hello(hello)).unwrap();
        let read: AnyHello = serde_json::from_str(&text).unwrap();
        assert_eq!(read.hello.protocol, PROTOCOL);
    }

    #[test]
    fn there_is_one_schema_of_both_directions() {
        let text = serde_json::to_string(&schema()).unwrap();
        for word in ["hello", "challenge", "proof", "welcome", "refused", "prepared", "measured", "heartbeat"]
        {
            assert!(text.contains(word), "{word}");
        }
    }
}
