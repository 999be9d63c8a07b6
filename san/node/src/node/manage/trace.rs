//! Single requests of a volume, from their arrival at its owner to their answer.

use std::time::Duration;

use loadline_san_core::ids::VolumeId;
use loadline_san_core::lease::Moment;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::ManageError;
use crate::event_loop::command::LoopCommand;
use crate::event_loop::tracer::{Leg, Trace, TraceOrder, Work};
use crate::node::Node;

/// Requests of one trace at the most.
const MOST_REQUESTS: u32 = 1000;
/// Milliseconds that requests are waited for at the most: an HTTP client waits as long.
const MOST_MS: u32 = 60_000;
/// How much longer the loop may take.
const GRACE: Duration = Duration::from_secs(2);

/// Which requests are to be followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceRequests {
    /// How many, 1 to 1000, one after another and spread over the time.
    pub requests: u32,
    /// The time in milliseconds, 1 to 60,000. The answer comes earlier if there are enough.
    pub within_ms: u32,
}

/// Requests of a volume that were followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TraceView {
    /// The volume.
    pub volume: String,
    /// The node that owns it.
    pub owner: String,
    /// The requests, in the order of their arrival.
    pub requests: Vec<RequestTrace>,
}

/// One request. Times are in nanoseconds since the owner received it, by the owner's clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestTrace {
    /// `read`, `map`, `write`, `zero`, `trim` or `flush`.
    pub kind: String,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// Where the client is. A client of another node is named by that node's connection.
    pub client: String,
    /// It was answered without an error.
    pub succeeded: bool,
    /// When the answer was given to the client's connection.
    pub total_ns: u64,
    /// What was done for it, in the order of the beginnings.
    pub spans: Vec<Span>,
}

/// One thing that was done for a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Span {
    /// The kind of work.
    pub what: SpanKind,
    /// The node of the replica that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The replica that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u64>,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended. None if the request was answered before.
    pub end_ns: Option<u64>,
}

/// The kinds of [`Span`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// The request waits until it may begin: behind others, or for room in the logs.
    Queue,
    /// A replica of the owner's node writes its log.
    Log,
    /// A replica of another node writes its log, and both messages travel.
    Peer,
    /// A replica of the owner's node reads.
    Read,
    /// A replica of another node reads, and both messages travel.
    PeerRead,
    /// Everything is done; the answer waits to be given to the client's connection.
    Answer,
}

impl Node {
    /// Follows requests of a volume that this node owns, until there are enough of them or the time is over.
    pub async fn trace_volume(&self, name: &str, wanted: TraceRequests) -> Result<TraceView, ManageError> {
        let TraceRequests { requests, within_ms } = wanted;
        if !(1..=MOST_REQUESTS).contains(&requests) || !(1..=MOST_MS).contains(&within_ms) {
            return Err(ManageError::Wrong(format!(
                "a trace of {requests} requests within {within_ms} ms was requested: give 1 to {MOST_REQUESTS} requests, and 1 to {MOST_MS} ms (a minute)"
            )));
        }
        self.refresh().await?;
        let (id, _) = self.volume(name)?;
        let record = self.record_of(id)?;
        self.at_owner(name, &record).await?;
        let (answer, traces) = oneshot::channel();
        let limit = Duration::from_millis(within_ms.into());
        let limit_ns = limit.as_nanos() as u64;
        // The last one is to have time, too.
        let every_ns = limit_ns / (u64::from(requests) + 1);
        let order = TraceOrder { wanted: requests as usize, every_ns, limit_ns, answer };
        self.loop_of(id).give(LoopCommand::Trace(VolumeId(id), order));
        match tokio::time::timeout(limit + GRACE, traces).await {
            Ok(Ok(traces)) => {
                let requests = traces.iter().map(|trace| self.view_of(trace)).collect();
                Ok(TraceView { volume: name.into(), owner: self.name().into(), requests })
            }
            Ok(Err(_)) => {
                Err(ManageError::InUse(format!("node {} does not serve volume {name} any more", self.name())))
            }
            Err(_) => Err(ManageError::TimedOut(
                "a thread of the data path does not answer in time: try again".into(),
            )),
        }
    }

    fn view_of(&self, trace: &Trace) -> RequestTrace {
        let at = |moment: Moment| moment.since(trace.received);
        let span = |what, begin, end: Option<Moment>| Span {
            what,
            node: None,
            replica: None,
            begin_ns: at(begin),
            end_ns: end.map(at),
        };
        let of_leg = |leg: &Leg| {
            let what = match (leg.work, leg.node == self.0.me.node) {
                (Work::Log(..), true) => SpanKind::Log,
                (Work::Log(..), false) => SpanKind::Peer,
                (Work::Read(_), true) => SpanKind::Read,
                (Work::Read(_), false) => SpanKind::PeerRead,
            };
            let node = self.state().catalog.nodes.get(&leg.node.0).map(|(node, _)| node.name.clone());
            let node = node.unwrap_or_else(|| leg.node.0.to_string());
            Span { node: Some(node), replica: Some(leg.replica.0), ..span(what, leg.sent, leg.done) }
        };
        let queue = span(SpanKind::Queue, trace.received, Some(trace.begun));
        let answer = span(SpanKind::Answer, trace.completed, Some(trace.answered));
        let spans = [queue].into_iter().chain(trace.legs.iter().map(of_leg)).chain([answer]);
        RequestTrace {
            kind: trace.kind.into(),
            offset: trace.sector * 512,
            bytes: u64::from(trace.sectors) * 512,
            client: trace.client.clone(),
            succeeded: trace.succeeded,
            total_ns: at(trace.answered),
            spans: spans.collect(),
        }
    }
}
