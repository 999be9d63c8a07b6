//! Hosts whose clocks disagree: one takes the certificate of the other for one that has expired or is not valid yet, and refuses it. That is
//! said once for each host, however often it tries again, and counted.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use loadline_san_transport::handshake::HandshakeError;
use thiserror::Error;

use super::Node;
use super::unproved::Source;
use crate::strangers;

/// A host that was not refused for so long is news again.
const EPISODE: Duration = Duration::from_secs(600);
/// Hosts that are remembered. Of more, each refusal is news; the log bounds them.
const MOST: usize = 1024;

/// Why there is no connection with another node, for people.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{why}")]
pub(crate) struct Refused {
    why: String,
    /// The clocks of the two hosts disagree.
    of_clocks: bool,
    /// By the clock of this host, a certificate of the cluster is not valid: no stranger has one.
    of_this_clock: bool,
}

impl Refused {
    /// For a reason that has nothing to do with clocks.
    pub(crate) fn new(why: impl Into<String>) -> Refused {
        Refused { why: why.into(), of_clocks: false, of_this_clock: false }
    }

    /// Whether the clocks of the two hosts disagree.
    pub(super) fn is_of_clocks(&self) -> bool {
        self.of_clocks
    }
}

impl From<HandshakeError> for Refused {
    fn from(error: HandshakeError) -> Refused {
        let (of_clocks, of_this_clock) = (error.is_of_clocks(), error.is_of_this_clock());
        Refused { why: error.to_string(), of_clocks, of_this_clock }
    }
}

impl From<std::io::Error> for Refused {
    fn from(error: std::io::Error) -> Refused {
        Refused::new(error.to_string())
    }
}

/// Connections that clocks have refused.
#[derive(Debug, Default)]
pub(crate) struct ClockRefusals {
    /// How many.
    pub(crate) count: u64,
    /// When each host was refused last.
    last: BTreeMap<Source, Instant>,
}

impl ClockRefusals {
    /// A connection with a host is refused. Whether that is to be said.
    fn add(&mut self, host: Source, now: Instant) -> bool {
        self.count += 1;
        self.last.retain(|_, last| now.duration_since(*last) < EPISODE);
        if self.last.len() >= MOST && !self.last.contains_key(&host) {
            return true;
        }
        self.last.insert(host, now).is_none()
    }
}

impl Node {
    /// A connection from another host is refused: it is counted, and logged unless the same was said before. That the other side refuses the
    /// certificate of this node proves nothing of clocks: a stranger can say so.
    pub(crate) fn refuse(&self, to: &'static str, from: IpAddr, why: &Refused) {
        if !why.of_this_clock {
            return self.count_refused(to, from, &why.why);
        }
        let is_news = {
            let mut state = self.state();
            state.refused_connections += 1;
            state.clock_refusals.add(from.into(), Instant::now())
        };
        if is_news {
            // Apart from what strangers cause, which must not hide this.
            let text = format!("a connection from {from} to {to} is refused: {}", why.why);
            strangers::warn("clocks of hosts", "", &from, &text);
        }
    }

    /// A connection to another host has failed. It is counted if that is for the clocks; whatever has connected reports it.
    pub(super) fn note_clocks(&self, host: IpAddr, why: &Refused) {
        if why.of_clocks {
            self.state().clock_refusals.add(host.into(), Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_whose_clock_disagrees_is_said_once_and_counted_and_news_again_later() {
        let host = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        let (mut refusals, begun) = (ClockRefusals::default(), Instant::now());
        let said = |refusals: &mut ClockRefusals, from, second| {
            refusals.add(host(from), begun + Duration::from_secs(second))
        };
        let often: Vec<bool> =
            (0..1200).step_by(2).map(|second| said(&mut refusals, "10.0.0.1", second)).collect();
        assert!(often[0] && !often[1..].contains(&true));
        assert!(said(&mut refusals, "10.0.0.2", 1200), "another one");
        assert_eq!(refusals.count, 601);
        assert!(said(&mut refusals, "10.0.0.1", 3000), "after it was right");
    }
}
