//! `loadline san trace`: where the time of single requests goes.

use loadline_base::units::{ByteSize, TimeSpan};
use loadline_san_node::node::manage::{RequestTrace, Span, SpanKind, TraceRequests, TraceView};

use crate::cluster::client::{Api, Failed, escaped, print_json};
use crate::output::{print_error, print_line};
use crate::process::exit::Exit;

/// Requests of one trace at most, and milliseconds that it lasts at most; a node refuses more.
const MOST_REQUESTS: u32 = 1000;
const MOST_MS: u32 = 60_000;
/// Characters of the picture of a request.
const PICTURE: usize = 40;

/// Show where the time of single requests goes: trace requests of a volume's clients, and draw each one as a waterfall.
///
/// The owner of the volume traces one request after another, spread over the time of --for. Other requests are not slowed
/// down. Each line of a request is one part of its time, from the beginning of the part to its end.
///
/// queue: the request waits behind other requests, or for room in the logs;
/// log, read: a copy on the owner's node writes its log, or reads;
/// peer: a copy on another node does the same, with both messages between the nodes;
/// answer: all copies are done, and the owner passes the answer to the client's connection.
///
/// The time on the network between client and owner is not included. Exit code 3 if no client sent a request.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    loadline san trace vm-1\n  \
    loadline san trace vm-1 --requests 100 --for 20s --json > trace.json")]
pub(super) struct Trace {
    /// The volume.
    volume: String,
    /// The number of requests to trace, 1 to 1000.
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    requests: u32,
    /// How long to wait for the requests, 1ms to 1m.
    #[arg(long = "for", value_name = "TIME", default_value = "5s")]
    limit: TimeSpan,
    #[command(flatten)]
    api: Api,
}

pub(super) fn trace(args: &Trace) -> Exit {
    match ask(args) {
        Ok(exit) => exit,
        Err(failed) => failed.print_error(),
    }
}

fn ask(args: &Trace) -> Result<Exit, Failed> {
    if !(1..=MOST_REQUESTS).contains(&args.requests) {
        return Ok(print_error(Exit::Usage, &format!("--requests: give 1 to {MOST_REQUESTS}")));
    }
    let within_ms = u32::try_from(args.limit.0.as_millis()).unwrap_or(u32::MAX);
    if !(1..=MOST_MS).contains(&within_ms) {
        return Ok(print_error(Exit::Usage, "--for: give 1ms to 1m"));
    }
    let path = format!("/v1/volumes/{}/trace", escaped(&args.volume));
    let view: TraceView = args.api.post(&path, TraceRequests { requests: args.requests, within_ms })?;
    // A trace without a request says nothing about the volume: a script must not take it for a result.
    let exit = if view.requests.is_empty() { Exit::Findings } else { Exit::Done };
    if args.api.json {
        print_json(&view);
        return Ok(exit);
    }
    print_line!("{}", args.api.naming(&format!("volume {}, owned by node {}", view.volume, view.owner)));
    if view.requests.is_empty() {
        print_line!("no client sent a request within {}", args.limit);
    }
    for request in &view.requests {
        print_line!();
        lines(request).iter().for_each(|line| print_line!("{line}"));
    }
    Ok(exit)
}

/// A request as text: a line of what it was, and one for each thing that was done for it.
fn lines(request: &RequestTrace) -> Vec<String> {
    let RequestTrace { kind, offset, bytes, client, total_ns, spans, succeeded } = request;
    let what = match bytes {
        0 => kind.clone(),
        _ => format!("{kind} of {} at byte {offset}", ByteSize(*bytes)),
    };
    let failed = if *succeeded { "" } else { ", answered with an error" };
    let mut text = vec![format!("{what}, from {client}: {}{failed}", us(*total_ns))];
    let labels: Vec<String> = spans.iter().map(label).collect();
    let width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    for (span, label) in spans.iter().zip(&labels) {
        let end = match span.end_ns {
            Some(end) => us(end),
            None => "later than the answer".into(),
        };
        text.push(format!("  {label:width$} |{}| {} to {end}", bar(span, *total_ns), us(span.begin_ns)));
    }
    text
}

fn label(span: &Span) -> String {
    let what = match span.what {
        SpanKind::Queue => "queue",
        SpanKind::Log => "log",
        SpanKind::Peer => "peer",
        SpanKind::Read => "read",
        SpanKind::PeerRead => "peer read",
        SpanKind::Answer => "answer",
    };
    match &span.node {
        Some(node) => format!("{what}, {node}"),
        None => what.into(),
    }
}

/// Where a span lies in the time of its request: at least one character.
fn bar(span: &Span, total_ns: u64) -> String {
    let place = |ns: u64| (ns.min(total_ns) as u128 * PICTURE as u128 / u128::from(total_ns.max(1))) as usize;
    let begin = place(span.begin_ns).min(PICTURE - 1);
    let end = place(span.end_ns.unwrap_or(total_ns)).clamp(begin + 1, PICTURE);
    format!("{}{}{}", " ".repeat(begin), "=".repeat(end - begin), " ".repeat(PICTURE - end))
}

/// In microseconds, as exactly as that is of use.
fn us(ns: u64) -> String {
    match ns {
        0..100_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{} us", loadline_base::figures::thousands(ns as f64 / 1e3)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_drawn_with_everything_at_its_time() {
        let span = |what, node: Option<&str>, begin_ns, end_ns| Span {
            what,
            node: node.map(str::to_owned),
            replica: node.map(|_| 7),
            begin_ns,
            end_ns,
        };
        let request = RequestTrace {
            kind: "write".into(),
            offset: 8192,
            bytes: 4096,
            client: "10.0.0.5:999".into(),
            succeeded: true,
            total_ns: 400_000,
            spans: vec![
                span(SpanKind::Queue, None, 0, Some(4_000)),
                span(SpanKind::Log, Some("node-1"), 10_000, Some(200_000)),
                span(SpanKind::Peer, Some("node-2"), 10_000, None),
                span(SpanKind::Answer, None, 390_000, Some(400_000)),
            ],
        };
        assert_eq!(
            lines(&request),
            [
                "write of 4KiB at byte 8192, from 10.0.0.5:999: 400 us",
                "  queue        |=                                       | 0.0 us to 4.0 us",
                "  log, node-1  | ===================                    | 10.0 us to 200 us",
                "  peer, node-2 | =======================================| 10.0 us to later than the answer",
                "  answer       |                                       =| 390 us to 400 us",
            ]
        );
    }
}
